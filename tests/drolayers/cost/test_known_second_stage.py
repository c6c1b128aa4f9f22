"""Known data in the matrix of a second stage: a rule, as with numbers, and a loss that is exact."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.cost.recourse import recourse

y = dro.Uncertain(2, dro.support.Box(0.0, 5.0))
x = cp.Variable(2, nonneg=True, name="stock")
q = np.array([1.0, 4.0, 6.0, 0.0, 0.0])
THETA = {"0.mu": torch.tensor([[2.0, 3.0]]).double(), "0.sigma": torch.tensor([1.0]).double()}


def problem(W: Any, costs: Any = q, method: str = "decision_rule") -> dro.DecisionProblem:
    """Shortage of each is bought (at a yield that W holds), at most what a common source gives for the first."""
    second = recourse(costs, W, y - x, method)
    return dro.DecisionProblem(2 * cp.sum(x) + second, [x <= 5], dro.MomentSet(y, [dro.moments.SquaredNorm()]))


def matrices(count: int) -> np.ndarray:
    """Columns: a source of both, one of each, and what is left over."""
    rng = np.random.default_rng(0)
    W = np.zeros((count, 2, 5))
    W[:, :, 0] = rng.uniform(0.2, 0.6, (count, 2))
    W[:, [0, 1], [1, 2]] = rng.uniform(0.8, 1.2, (count, 2))
    W[:, [0, 1], [3, 4]] = -1.0
    return W


@pytest.mark.parametrize("prices", [False, True])
def test_it_is_the_rule_of_its_numbers(prices: bool) -> None:
    yields, price = cp.Parameter((2, 5), name="yields"), cp.Parameter(5, nonneg=True, name="price")
    known: dict[str, Any] = {"yields": matrices(3)}
    costs = q * np.random.default_rng(1).uniform(0.8, 1.2, (3, 1)) if prices else np.tile(q, (3, 1))
    if prices:
        known["price"] = costs
    one = problem(yields, price if prices else q)
    assert one.conservative
    assert one.known == ({"price": (5,), "yields": (2, 5)} if prices else {"yields": (2, 5)})
    found = one.solve(THETA, known=known)
    assert bool(found.ok.all())
    for k in range(3):
        expected = problem(known["yields"][k], costs[k]).solve(THETA).objective
        torch.testing.assert_close(found.objective[k : k + 1], expected, rtol=1e-6, atol=1e-7)


def test_value_and_loss_follow_the_matrix() -> None:
    yields = cp.Parameter((2, 5), name="yields")
    one = problem(yields)
    W = torch.as_tensor(matrices(1)).requires_grad_()
    outcome, decision = torch.tensor([[2.5, 4.0]]).double(), {x: torch.tensor([[1.0, 1.5]]).double()}
    for value in (
        lambda W: one.solve(THETA, known={"yields": W}).objective.sum(),
        lambda W: one.loss(decision, outcome, {"yields": W}).sum(),
        lambda W: one.worst_case_cost(decision, THETA, known={"yields": W}).sum(),
    ):
        (gradient,) = torch.autograd.grad(value(W), W)
        move = torch.as_tensor(np.random.default_rng(2).normal(size=(1, 2, 5))) * (W.detach() != 0)
        step = 1e-5 * move
        change = (value(W.detach() + step) - value(W.detach() - step)) / 2e-5
        torch.testing.assert_close((gradient * move).sum(), change.detach(), rtol=1e-4, atol=1e-5)


def test_vertices_and_automatic_choice() -> None:
    yields = cp.Parameter((2, 5), name="yields")
    with pytest.raises(dro.ModelError, match=r"coefficients of the second stage hold known data \(yields\)"):
        problem(yields, method="vertices")
    with pytest.warns(UserWarning, match="a decision rule bounds the worst case"):
        problem(yields, method="auto")
    with pytest.raises(dro.ModelError, match="recourse needs q"):
        problem(cp.Parameter((3, 5)))
    with pytest.raises(dro.ModelError, match="must be numbers or affine in CVXPY parameters"):
        problem(cp.square(yields))
