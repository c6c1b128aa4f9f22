"""Second stages in anybody's units: rows, actions, decisions, outcomes and costs may be counted in any."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import Status
from drolayers.cost.recourse import SecondStage, check_bounded, recourse
from drolayers.cost.torch_loss import evaluate
from drolayers.cost.vertices import balanced, dual_vertices

ROUTE = np.array([[1.0, 3.0], [3.0, 1.0]])
#               routes: 11   12   21   22 | stays
COSTS = np.array([*ROUTE.ravel(), 0.0, 0.0])
W = np.array([[1.0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1], [1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]])


def depots(form: str, row: float, decision: float, outcome: float, method: str = "vertices") -> float:
    """The worst case of two depots that must serve two towns, in some units of rows, decisions and outcomes."""
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 20.0 * outcome))
    x = cp.Variable(2, nonneg=True)
    stock, order = x / decision, y / outcome
    if form == "written":
        sent = cp.Variable((2, 2), nonneg=True)
        rows = [row * cp.sum(sent, axis=1) <= row * stock, row * cp.sum(sent, axis=0) == row * order]
        second = dro.recourse(cp.Minimize(cp.sum(cp.multiply(ROUTE, sent))), rows, method=method)
    else:
        second = dro.recourse(COSTS, row * W, row * cp.hstack([stock, order]))
    problem = dro.DecisionProblem(
        2 * cp.sum(stock) + second, [x <= 50 * decision], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    theta = torch.tensor([[6.0 * outcome, 4.0 * outcome, 9.0 * outcome**2]], dtype=torch.float64)
    solution = problem.solve(theta)
    assert solution.statuses == [Status.OPTIMAL]
    return float(solution.objective)


@pytest.mark.parametrize("form", ["matrix", "written"])
@pytest.mark.parametrize(
    ("row", "decision", "outcome"),
    [(1e-12, 1.0, 1.0), (1e12, 1.0, 1.0), (1.0, 1e12, 1e12), (1.0, 1e-10, 1e10), (1e-9, 1e9, 1e-9)],
)
def test_what_must_be_served_is_served_in_any_units(form: str, row: float, decision: float, outcome: float) -> None:
    """All 40 must be in stock, and the worst transport costs (6 + 4) + √9·√2: every town from its own depot."""
    assert depots(form, row, decision, outcome) == pytest.approx(80 + 10 + np.sqrt(18.0), rel=1e-6)


@pytest.mark.parametrize("row", [1e-12, 1.0, 1e12])
def test_room_for_a_rule_hides_no_infeasibility_in_any_units(row: float) -> None:
    assert depots("written", row, 1.0, 1.0, "decision_rule") == pytest.approx(80 + 10 + np.sqrt(18.0), rel=1e-6)


@pytest.mark.parametrize(("size", "price"), [(1e-9, 1.0), (1.0, 1e-9), (1e9, 1e-9), (1e-8, 1e8)])
def test_losses_by_linear_programs_follow_their_units(size: float, price: float) -> None:
    rhs = cp.Variable(4)
    second = recourse(COSTS * price, W, rhs, "decision_rule")
    value = torch.tensor([[6.0, 7.0, 5.0, 4.0], [2.0, 7.0, 5.0, 4.0], [2.0, 2.0, 5.0, 4.0]], dtype=torch.float64)
    given = (size * value).requires_grad_()
    found = evaluate(second, {rhs: given})
    np.testing.assert_allclose(found.detach() / (size * price), [9.0, 15.0, np.inf], rtol=1e-9)
    (slope,) = torch.autograd.grad(found[1], given)
    # A unit more in the first depot saves a way of 3 for one of 1.
    assert float(slope[1, 0]) == pytest.approx(-2.0 * price)


def test_what_a_solver_leaves_of_zero_is_no_infeasibility() -> None:
    rhs = cp.Variable(4)
    value = torch.tensor([[-1e-9, 0.0, 0.0, 0.0], [6.0, 7.0, 5.0, 4.0]], dtype=torch.float64)
    for method in ("vertices", "decision_rule"):
        np.testing.assert_allclose(evaluate(recourse(COSTS, W, rhs, method), {rhs: value}), [0.0, 9.0], atol=1e-6)


def test_vertices_are_those_of_the_program_that_was_written() -> None:
    rng = np.random.default_rng(0)
    plain = dual_vertices(COSTS, W)
    by_row, by_column = 10.0 ** rng.uniform(-9, 9, 4), 10.0 ** rng.uniform(-9, 9, 6)
    other = dual_vertices(COSTS * by_column, by_row[:, None] * W * by_column)
    assert plain is not None
    assert other is not None
    # Rays may have any length.
    for one, two in ((plain.points, other.points), (plain.forbidden, other.forbidden)):
        ours, theirs = one.toarray(), two.toarray() * by_row
        if two is other.forbidden:
            ours, theirs = (rays / np.abs(rays).max(axis=1, keepdims=True) for rays in (ours, theirs))
        near = np.abs(ours[:, None] - theirs[None]).max(axis=2) <= 1e-9
        assert (near.sum(axis=0) == 1).all()
        assert (near.sum(axis=1) == 1).all()


def test_balanced_matrices_have_entries_about_one() -> None:
    rng = np.random.default_rng(0)
    odd = 10.0 ** rng.uniform(-9, 9, (4, 1)) * W * 10.0 ** rng.uniform(-9, 9, 6)
    by_row, by_column = balanced(odd)
    even = by_row[:, None] * odd * by_column
    assert np.abs(np.log2(even[W != 0])).max() <= 2.0
    assert all((factors == 1.0).all() for factors in balanced(W))


@pytest.mark.parametrize("method", ["auto", "decision_rule"])
@pytest.mark.parametrize(("most", "penalty"), [(1e3, 1e2), (1e8, 1e2), (1e3, 1e8), (1e9, 1e9)])
def test_a_penalty_beside_a_price(method: str, most: float, penalty: float) -> None:
    """Numbers of one second stage that are far apart: what is short by one costs 5, whatever else could be bought."""
    y, x, g = dro.Uncertain(1), cp.Variable(1, nonneg=True), cp.Variable(3, nonneg=True)
    rows = [g[0] - g[1] + g[2] == y[0] - x[0], g[0] <= most]
    second = dro.recourse(cp.Minimize(5 * g[0] + 0.5 * g[1] + penalty * g[2]), rows, method=method)
    problem = dro.DecisionProblem(0.1 * x[0] + second, [x <= 10], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    at = {x: torch.ones(3, 1, dtype=torch.float64)}
    outcomes = torch.tensor([[2.0], [1.0], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(problem.loss(at, outcomes).tolist(), [5.1, 0.1, 0.6])


def test_bounds_and_feasibility_beside_large_numbers() -> None:
    with pytest.raises(dro.ModelError, match="unbounded"):
        check_bounded(np.array([1e7, 1.0, -2.0]), np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 0.0]]))
    stage = SecondStage(np.ones(2), np.eye(2), None)
    assert stage.solve(np.array([-1.0, 1.0]), typical=np.array([1e8, 1.0]))[0] == np.inf
