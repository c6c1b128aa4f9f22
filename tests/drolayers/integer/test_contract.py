"""Checks that every oracle receives."""

from __future__ import annotations

import cvxpy as cp
import torch

import drolayers as dro
from tests.conelayers.integer.test_contract import Counted


def test_an_oracle_of_the_users_own_in_the_layer() -> None:
    y = dro.Uncertain(3)
    lots = cp.Variable(3, boolean=True, name="lots")
    problem = dro.DecisionProblem(-y @ lots, [cp.sum(lots) <= 2], dro.MomentSet.grouped(y, 3))
    theta = torch.tensor([[1.0, 2.0, 3.0, 0.1], [3.0, 1.0, 2.0, 0.1]], dtype=torch.float64)
    mine = Counted()
    layer = dro.DROLayer(problem, candidates=2, samples=2, enumerate_up_to=0, oracle=mine)
    assert torch.equal(layer(theta).best[lots], dro.DROLayer(problem)(theta).best[lots])
    decision = layer.eval()(theta)
    assert decision.oracle is not None
    assert decision.oracle.oracle == "counted"
    assert mine.asked == [2, 1]
