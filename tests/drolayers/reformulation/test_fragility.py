"""Robust satisficing: closed forms, a program written out by hand, its definition on a grid, gradients, targets."""

from __future__ import annotations

import pickle

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from tests.drolayers.reformulation.differences import analytic, central, gap

A = np.array([1.0, -2.0, 0.5])
RNG = np.random.default_rng(3)
ATOMS, WEIGHTS = RNG.normal(size=(4, 3)), np.array([0.4, 0.3, 0.2, 0.1])
RADIUS = torch.tensor([[0.3]], dtype=torch.float64)


def around(atoms: np.ndarray = ATOMS, weights: np.ndarray = WEIGHTS) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(atoms)[None], torch.as_tensor(weights)[None]


@pytest.mark.parametrize(("norm", "dual"), [(1, np.inf), (2, 2), (np.inf, 1)])
def test_affine_in_closed_form(norm: float, dual: float) -> None:
    """‖a‖_* whatever the target, if the nominal mean meets it; of the squared distance ‖a‖_*² / (4 (target - mean))."""
    y, x = dro.Uncertain(3), cp.Variable(nonneg=True)
    mean, size = float(WEIGHTS @ ATOMS @ A), np.linalg.norm(A, dual)
    for order, expected in ((1, size), (2, size**2 / (4 * 0.7))):
        cost = 3 * dro.fragility(A @ y + 0.2 - x, mean + 0.9) + x
        problem = dro.DecisionProblem(cost, [x <= 0], dro.Wasserstein(y, 4, norm, order))
        for theta in (RADIUS, 5 * RADIUS):
            found = problem.solve(theta, around(), on_failure="raise").objective
            assert float(found) == pytest.approx(3 * expected, rel=1e-6)
    assert problem.parameters == {"radius": ()}


def test_affine_under_a_metric_and_where_coordinates_stay() -> None:
    """‖B⁻ᵀa‖_* where ways y - y_n are ‖B(y - y_n)‖ long; what may not move costs nothing."""
    metric = np.array([[2.0, 0.3, 0.0], [0.0, 1.0, 0.4], [0.0, 0.0, 0.5]])
    y, x = dro.Uncertain(3), cp.Variable(nonneg=True)
    mean = float(WEIGHTS @ ATOMS @ A)
    for ball, size in (
        (dro.Wasserstein(y, 4, 2, 1, metric), np.linalg.norm(np.linalg.solve(metric.T, A))),
        (dro.Wasserstein(y, 4, 2, 1, fixed=[1]), np.linalg.norm(A[[0, 2]])),
    ):
        problem = dro.DecisionProblem(dro.fragility(A @ y + 0.2 - x, mean + 0.9) + x, [x <= 0], ball)
        found = problem.solve(RADIUS, around(), on_failure="raise").objective
        assert float(found) == pytest.approx(size, rel=1e-6)


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1e3, 1e6])
def test_units_of_outcomes_and_costs(unit: float) -> None:
    """k is a cost for every unit of distance, or of its square; the answer follows to 1e-6, or the item says FAILED."""
    for order in (1, 2):
        found = []
        for scale in (1.0, unit):
            y, x = dro.Uncertain(3, support=dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
            cost = dro.fragility(cp.maximum(-x @ y, 0.2 * scale - 2 * x @ y), 0.1 * scale)
            problem = dro.DecisionProblem(cost, [cp.sum(x) <= 1], dro.Wasserstein(y, 4, order=order))
            solution = problem.solve(RADIUS, around(scale * np.abs(ATOMS)))
            assert bool(solution.ok) or solution.statuses == [dro.Status.FAILED]
            if bool(solution.ok):
                found.append(float(solution.objective) * scale ** (order - 1))
        assert found == pytest.approx([found[0]] * len(found), rel=1e-6)


def test_program_written_by_hand() -> None:
    """sup_{y ≥ 0} {aᵀy - k‖y - y_n‖₁} = min {(a + u)ᵀy_n : ‖a + u‖_∞ ≤ k, u ≥ 0}, atom by atom and piece by piece."""
    atoms = np.abs(ATOMS)
    y, x = dro.Uncertain(3, support=dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
    cost = cp.maximum(-x @ y, 0.2 - 2 * x @ y, y[0] - x[0])
    problem = dro.DecisionProblem(dro.fragility(cost, 0.1 - 0.1 * x[0]), [cp.sum(x) <= 2], dro.Wasserstein(y, 4))
    found = problem.solve(RADIUS, around(atoms), on_failure="raise")

    z, k, v = cp.Variable(3, nonneg=True), cp.Variable(nonneg=True), cp.Variable(4)
    rules = [cp.sum(z) <= 2, WEIGHTS @ v <= 0.1 - 0.1 * z[0]]
    for n, atom in enumerate(atoms):
        for a, b in ((-z, 0.0), (-2 * z, 0.2), (np.eye(3)[0], -z[0])):
            u = cp.Variable(3, nonneg=True)
            rules += [v[n] >= (a + u) @ atom + b, cp.norm(a + u, "inf") <= k]
    value = cp.Problem(cp.Minimize(k), rules).solve(solver=cp.CLARABEL)
    assert value > 1.0 + 1e-3
    assert float(found.objective) == pytest.approx(value, rel=1e-6)


def test_definition_on_a_grid() -> None:
    """No distribution on a grid of the box is worse than the target by more than k times its distance."""
    y, x = dro.Uncertain(2, support=dro.support.Box(-1.0, 2.0)), cp.Variable(2)
    atoms, weights = np.array([[0.0, 0.5], [1.0, 0.0]]), np.array([0.6, 0.4])
    cost = cp.maximum(x @ y, y[0] - x[1], 0.3 * y[1])
    problem = dro.DecisionProblem(dro.fragility(cost, 1.1), [cp.sum(x) == 1, cp.norm(x) <= 2], dro.Wasserstein(y, 2, 2))
    nominal = around(atoms, weights)
    solution = problem.solve(RADIUS, nominal, on_failure="raise")
    k, chosen = float(solution.objective), solution.variable(x)[0].numpy()
    line = np.linspace(-1.0, 2.0, 61)
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    values = np.maximum.reduce([grid @ chosen, grid[:, 0] - chosen[1], 0.3 * grid[:, 1]])
    distance = np.linalg.norm(grid - atoms[:, None], axis=2)
    worst = {price: float(weights @ (values - price * distance).max(1)) for price in (k, 0.98 * k)}
    assert worst[k] <= 1.1 + 1e-6
    assert worst[0.98 * k] > 1.1
    # The same at the decision, which is fixed.
    again = problem.worst_case_cost({x: solution.variable(x)}, RADIUS, nominal)
    assert float(again) == pytest.approx(k, rel=1e-6)


def test_cvar_of_every_distribution() -> None:
    """The threshold is chosen with the worst distribution, and is no part of the decision: by linear programming."""
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    problem = dro.DecisionProblem(
        dro.fragility(-x @ y, 0.4) + 2 * dro.fragility(dro.cvar(-x @ y, 0.5), 1.2),
        [cp.sum(x) == 1],
        dro.Wasserstein(y, 4),
    )
    assert [v.id for v in problem.variables] == [x.id]
    found = problem.solve(RADIUS, around(), on_failure="raise")
    # (x, t, k₀, k₁, v): on all of space prices are at least the largest slope.
    c = np.r_[0, 0, 0, 0, 1, 2, np.zeros(4)]
    above = np.eye(3, 10)
    prices = np.vstack([above - np.eye(1, 10, 4), 2 * above - np.eye(1, 10, 5)])
    mean = np.r_[-WEIGHTS @ ATOMS, np.zeros(7)]
    tail = np.hstack([-2 * ATOMS, np.full((4, 1), -2.0), np.zeros((4, 2)), -np.eye(4)])
    most = np.r_[0, 0, 0, 1, 0, 0, WEIGHTS]
    bounds = [(0, None)] * 3 + [(None, None)] + [(0, None)] * 6
    expected = linprog(
        c,
        np.vstack([prices, mean, tail, most]),
        np.r_[np.zeros(6), 0.4, np.zeros(4), 1.2],
        np.r_[1, 1, 1, np.zeros(7)][None],
        [1.0],
        bounds,
    )
    assert float(found.objective) == pytest.approx(expected.fun, rel=1e-6)
    # At an outcome, what exceeds the targets.
    chosen = {x: torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)}
    loss = float(-ATOMS[0] @ [0.2, 0.3, 0.5])
    assert float(problem.loss(chosen, torch.as_tensor(ATOMS[:1]))) == pytest.approx(3 * loss - 0.4 - 2.4)


def test_gradients() -> None:
    """In the atoms, the weights and a target that is known."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    target = cp.Parameter(name="target")
    cost = dro.fragility(cp.sum(cp.maximum(2 * (y - x), x - y)), target) + cp.sum_squares(x)
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 2, norm=2, order=2))

    def decide(given: Tensor) -> Tensor:
        share = given[:, 4:5]
        nominal = given[:, :4].reshape(-1, 2, 2), torch.cat([share, 1 - share], 1)
        radius = RADIUS.expand(len(given), 1)
        solution = problem.solve(radius, nominal, on_failure="raise", known={"target": given[:, 5]})
        return torch.cat([solution.variable(x), solution.objective[:, None]], 1)

    at = torch.tensor([1.0, 0.4, 0.7, 1.5, 0.35, 2.9], dtype=torch.float64)
    found, expected = analytic(decide, at), central(decide, at, 1e-4)
    assert expected[:2].abs().amax(0).min() > 1e-2
    assert gap(found, expected) < 1e-4


def test_targets_that_cannot_be_met() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    problem = dro.DecisionProblem(dro.fragility(-x @ y, -9.0), [cp.sum(x) == 1], dro.Wasserstein(y, 4))
    assert problem.solve(RADIUS, around()).statuses == [dro.Status.INFEASIBLE]
    (missed,) = problem.shortfalls(RADIUS, around()).values()
    assert float(missed) == pytest.approx(9.0 - (WEIGHTS @ ATOMS).max(), rel=1e-6)
    with pytest.raises(dro.SolveError, match=r"item 0, E\[-var\d+ @ y \+ 9\.0\] <= 0\.0 is missed by"):
        problem.solve(RADIUS, around(), on_failure="raise")
    chosen = {x: torch.full((1, 3), 1 / 3, dtype=torch.float64)}
    assert float(problem.worst_case_cost(chosen, RADIUS, around())) == np.inf
    # What data say: the mean excess.
    (rule,) = problem.rules
    outcomes = torch.as_tensor(ATOMS)
    excess = problem.violations({x: chosen[x].expand(4, 3)}, outcomes)[rule.constraint]
    assert rule.missed(excess) == pytest.approx(9.0 - ATOMS.mean(), rel=1e-6)


def test_sets_of_its_own_and_what_is_refused() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    square, ball = dro.MomentSet(y, [m.SquaredNorm()]), dro.Wasserstein(y, 4)
    own = dro.DecisionProblem(dro.fragility(-x @ y, 0.4, ambiguity=ball) + y @ x, [cp.sum(x) == 1], square)
    # The radius of a ball that only measures is no parameter.
    assert own.parameters == square.parameters
    theta = torch.tensor([[0.1, 0.2, 0.3, 0.5]], dtype=torch.float64)
    both = own.solve(theta, around(), on_failure="raise")
    parts = [
        dro.DecisionProblem(cost, [cp.sum(x) == 1], s)
        for cost, s in ((dro.fragility(-x @ y, 0.4), ball), (y @ x, square))
    ]
    values = [
        parts[0].worst_case_cost({x: both.variable(x)}, RADIUS, around()),
        parts[1].worst_case_cost({x: both.variable(x)}, theta),
    ]
    assert float(both.objective) == pytest.approx(float(sum(values)), rel=1e-6)
    again = pickle.loads(pickle.dumps(own))
    value = again.worst_case_cost({again.variables[0]: both.variable(x)}, theta, around())
    assert float(value) == pytest.approx(float(both.objective), rel=1e-6)
    for build, match in (
        (lambda: dro.DecisionProblem(dro.fragility(-x @ y, 0.4), [], square), r"needs a dro\.Wasserstein"),
        (lambda: dro.DecisionProblem(cp.sum(x), [dro.fragility(-x @ y, 0.4) <= 1], ball), "a cost and no constraint"),
        (lambda: dro.DecisionProblem(-dro.fragility(-x @ y, 0.4) + cp.sum(x), [], ball), "not negative"),
        (lambda: dro.DecisionProblem(dro.fragility(cp.square(y[0]), 0.4), [], ball), r"\bis curved"),
        (
            lambda: dro.DecisionProblem(dro.fragility(-x @ y, 0.4), [], dro.Wasserstein(y, 4, order=np.inf)),
            "order 1 or",
        ),
        (
            lambda: dro.DecisionProblem(dro.fragility(-x @ y, 0.4), [], dro.Wasserstein(y, 4, metric=dro.Learn(3, 3))),
            "metric that is given",
        ),
        (lambda: dro.fragility(y, 0.4), "scalar"),
        (lambda: dro.fragility(dro.expected(y @ x), 0.4), "No worst case but"),
    ):
        with pytest.raises(dro.ModelError, match=match):
            build()
