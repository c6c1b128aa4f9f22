"""Programs beyond the memory of a machine, empty boxes of integers, and advice that fits the gradient rule."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import pytest
import torch

import drolayers as dro
from conelayers.errors import ModelError


@pytest.mark.parametrize("oracle", ["auto", "branch_and_bound", "enumeration"])
@pytest.mark.parametrize(
    ("declared", "constrain"),
    [
        ({"bounds": [-3, 3]}, lambda x: [x <= -4]),
        ({"bounds": [-3, 3]}, lambda x: [x >= 0.2, x <= 0.8]),
        ({}, lambda x: [x >= 5, x <= 3]),
        ({"nonneg": True}, lambda x: [x <= -1]),
    ],
)
def test_constraints_that_leave_no_integer_are_infeasible(oracle: str, declared: dict, constrain: Any) -> None:
    y, x = dro.Uncertain(1), cp.Variable(integer=True, **declared)
    cost = cp.sum(cp.abs(y - x))
    problem = dro.DecisionProblem(cost, constrain(x), dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    assert dro.DROLayer(problem, oracle=oracle)(theta).statuses == [dro.Status.INFEASIBLE] * 2


def test_a_declared_box_without_an_integer_is_an_error() -> None:
    y, x = dro.Uncertain(1), cp.Variable(integer=True, bounds=[0.2, 0.8])
    cost, moments = cp.sum(cp.abs(y - x)), dro.MomentSet(y, [dro.moments.SquaredNorm()])
    with pytest.raises(ModelError, match="no integer between its bounds: widen them"):
        dro.DecisionProblem(cost, [], moments)
