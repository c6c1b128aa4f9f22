"""Costs that are curved in y: closed forms, programs on grids, central differences, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import drolayers as dro
from conelayers import make_engine
from drolayers import moments as m
from tests.drolayers.ambiguity.sets import PHI
from tests.drolayers.reformulation.differences import STEP, analytic, central, gap

ENGINE = make_engine()
TIGHT = replace(ENGINE, solver=ENGINE.solver.with_tolerance(1e-12))
INF, ATOMS = np.inf, 5
X = np.array([0.5, -0.3, 0.8])
MATRIX = np.array([[1.0, 0.4, 0.0], [-0.3, 1.0, 0.2], [0.5, 0.5, 1.0]])
DUAL = {1: INF, 2: 2, INF: 1}


def huber(u: np.ndarray, M: float) -> np.ndarray:
    return np.where(abs(u) <= M, u**2, 2 * M * abs(u) - M**2)


LOSSES: dict[str, tuple[Callable[[Any, float], Any], Callable[[np.ndarray], np.ndarray], float]] = {
    # As CVXPY writes it in units of some size, plainly in units of one, and its slope.
    "square": (lambda u, size: cp.square(u / size), np.square, INF),
    "huber": (lambda u, size: cp.huber(u / size, 1.5), lambda u: huber(u, 1.5), 3.0),
    "logistic": (lambda u, size: cp.logistic(u / size), lambda u: np.logaddexp(0.0, u), 1.0),
    "exponential": (lambda u, size: cp.exp(u / size), np.exp, INF),
}


def around(size: float = 1.0) -> dro.Nominal:
    rng = np.random.default_rng(0)
    atoms = torch.as_tensor(size * rng.normal(1, 1, (2, ATOMS, 3)))
    return dro.Nominal(atoms, torch.as_tensor(rng.dirichlet(np.ones(ATOMS), 2)))


def problem(
    loss: str, make: Callable[[dro.Uncertain], Any], size: float = 1.0
) -> tuple[dro.DecisionProblem, cp.Variable]:
    """A regression without labels: twice the loss of xᵀy - 1, and a ridge."""
    y, x = dro.Uncertain(3), cp.Variable(3)
    cost = 2 * LOSSES[loss][0](x @ y - size, size) + 0.1 * cp.sum_squares(x)
    return dro.DecisionProblem(cost, [], make(y)), x


def expected(loss: str, nominal: dro.Nominal, radius: Tensor, norm: float, order: float, A: np.ndarray) -> np.ndarray:
    """The closed forms in units of one."""
    _, value, slope = LOSSES[loss]
    u, weights = nominal.atoms.numpy() @ X - 1.0, nominal.weights.numpy()
    length = np.linalg.norm(np.linalg.solve(A.T, X), DUAL[norm])
    reach = radius[:, 0].numpy() * length
    found = {
        1: lambda: (weights * value(u)).sum(1) + slope * reach,
        2: lambda: (np.sqrt((weights * u**2).sum(1)) + reach) ** 2,
        INF: lambda: (weights * np.maximum(value(u + reach[:, None]), value(u - reach[:, None]))).sum(1),
    }[order]()
    return 2 * found + 0.1 * X @ X


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(
    ("loss", "norm", "order"),
    [
        *[("square", norm, 2) for norm in (1, 2, INF)],
        *[("huber", 1, 1), ("logistic", 2, 1)],
        *[("square", 2, INF), ("huber", INF, INF), ("logistic", 2, INF), ("exponential", 1, INF)],
    ],
)
def test_balls_in_closed_form(loss: str, norm: float, order: float, size: float) -> None:
    nominal, radius = around(size), torch.tensor([[0.3], [0.5]]).double()
    made, x = problem(loss, lambda y: dro.Wasserstein(y, ATOMS, norm, order, MATRIX), size)
    value = made.worst_case_cost({x: torch.as_tensor(X).expand(2, -1)}, size * radius, nominal)
    np.testing.assert_allclose(value, expected(loss, around(), radius, norm, order, MATRIX), rtol=1e-6)
    solution = made.solve(size * radius, nominal)
    assert bool(solution.ok.all())
    again = made.worst_case_cost({x: solution.variable(x).detach()}, size * radius, nominal)
    torch.testing.assert_close(again, solution.objective.detach(), rtol=1e-6, atol=0.0)
    assert bool((solution.objective <= value * (1 + 1e-6)).all())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_squares_under_squared_deviations(size: float) -> None:
    """(|m| + s)² with s = ‖a‖√σ; with a bound a coordinate Σ |a_i|√σ_i, since deviations can be aligned."""
    mu = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 1.0]]).double()
    sigma = torch.tensor([[0.4, 0.2, 0.7], [0.9, 0.3, 0.1]]).double()
    middle = mu.numpy() @ X - 1.0
    one, x = problem("square", lambda y: dro.MomentSet(y, [m.SquaredNorm()]), size)
    theta = {"0.mu": size * mu, "0.sigma": size**2 * sigma[:, 0]}
    found = one.worst_case_cost({x: torch.as_tensor(X).expand(2, -1)}, theta)
    far = np.sqrt(sigma[:, 0].numpy()) * np.linalg.norm(X)
    np.testing.assert_allclose(found, 2 * (abs(middle) + far) ** 2 + 0.1 * X @ X, rtol=1e-6)
    each, x = problem("square", lambda y: dro.MomentSet.grouped(y, 1), size)
    theta = {"mu": size * mu, "sigma": size**2 * sigma}
    found = each.worst_case_cost({x: torch.as_tensor(X).expand(2, -1)}, theta)
    far = np.sqrt(sigma.numpy()) @ abs(X)
    np.testing.assert_allclose(found, 2 * (abs(middle) + far) ** 2 + 0.1 * X @ X, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "make", "used"),
    [
        ("square", lambda y: dro.MomentSet(y, [m.SquaredNorm()]), None),
        ("square", lambda y: dro.Wasserstein(y, 3, 2, 2), 2),
        ("logistic", lambda y: dro.Wasserstein(y, 3, 2, 1), 1),
        ("huber", lambda y: dro.Wasserstein(y, 3, 2, 1), 1),
    ],
    ids=["moment", "order 2", "logistic", "huber"],
)
def test_no_distribution_on_a_grid_costs_more(
    loss: str, make: Callable[[dro.Uncertain], Any], used: int | None
) -> None:
    """In one dimension, as a linear program: all are below the worst case, and some distribution nearly attains it."""
    y, x = dro.Uncertain(1), cp.Variable()
    made = dro.DecisionProblem(LOSSES[loss][0](y[0] * x - 1.0, 1.0), [], make(y))
    grid = np.unique(np.concatenate([np.linspace(-6, 8, 1401), np.geomspace(8, 1e4, 60), -np.geomspace(6, 1e4, 60)]))
    at, cost = 1.3, LOSSES[loss][1](grid * 1.3 - 1.0)
    atoms, weights = np.array([0.5, 1.2, 2.1]), np.array([0.3, 0.5, 0.2])
    if used is None:
        theta, nominal = torch.tensor([[1.1, 0.6]]).double(), None
        spent, bound, sums, mass = ((grid - 1.1) ** 2)[None], 0.6, np.ones((1, len(grid))), np.ones(1)
    else:
        theta = torch.tensor([[0.4]]).double()
        nominal = dro.Nominal(torch.as_tensor(atoms)[None, :, None], torch.as_tensor(weights)[None])
        spent, bound = (abs(grid - atoms[:, None]) ** used).reshape(1, -1), 0.4**used
        sums, mass, cost = np.kron(np.eye(3), np.ones(len(grid))), weights, np.tile(cost, 3)
    f = float(made.worst_case_cost({x: torch.tensor([at])}, theta, nominal))
    size = np.maximum(np.maximum(abs(spent).max(0), cost), 1.0)
    best = linprog(-cost / size, A_ub=spent / size, b_ub=[bound], A_eq=sums / size, b_eq=mass)
    assert best.status == 0
    assert f * 0.99 <= -best.fun <= f * (1 + 1e-6)


@pytest.mark.parametrize("kind", [None, *PHI])
def test_atoms_bear_any_loss(kind: str | None) -> None:
    """Sums of losses and maxima under reweightings: the primal over probabilities, and its distribution."""
    y, x = dro.Uncertain(3), cp.Variable(3)
    u = x @ y - 1.0
    cost = cp.sum_squares(y - x) / 3 + cp.logistic(u) + 2 * cp.huber(u, 1.5) + cp.abs(y[0]) + cp.exp(0.2 * u)
    made = dro.DecisionProblem(cost, [], dro.Divergence(y, ATOMS, kind) if kind else dro.Empirical(y, ATOMS))
    nominal = around()
    theta = torch.tensor([[0.1], [0.3]]).double() if kind else torch.zeros(2, 0).double()
    decision = {x: torch.as_tensor(X).expand(2, -1)}
    found, worst = (
        made.worst_case_cost(decision, theta, nominal),
        made.worst_case_distribution(decision, theta, nominal),
    )
    for item in range(2):
        atoms, weights = nominal.atoms[item].numpy(), nominal.weights[item].numpy()
        v = atoms @ X - 1.0
        costs = (
            ((atoms - X) ** 2).sum(1) / 3 + np.logaddexp(0, v) + 2 * huber(v, 1.5) + abs(atoms[:, 0]) + np.exp(0.2 * v)
        )
        best = weights @ costs
        if kind:
            p = cp.Variable(ATOMS, nonneg=True)
            bound = weights @ PHI[kind](cp.multiply(1 / weights, p)) <= float(theta[item])
            best = cp.Problem(cp.Maximize(costs @ p), [cp.sum(p) == 1, bound]).solve(solver=cp.CLARABEL)
        assert float(found[item]) == pytest.approx(best, rel=1e-6)
        assert float(worst.probabilities[item] @ torch.as_tensor(costs)) == pytest.approx(best, rel=1e-6)


SETS: dict[str, tuple[str, Callable[[dro.Uncertain], Any], list[float]]] = {
    "square, moments": ("square", lambda y: dro.MomentSet(y, [m.SquaredNorm()]), [1.0, 2.0, 0.5, 0.4]),
    "square, order 2": ("square", lambda y: dro.Wasserstein(y, ATOMS, 2, 2, dro.Learn(3, 3)), [0.3, *MATRIX.ravel()]),
    "huber, order 1": ("huber", lambda y: dro.Wasserstein(y, ATOMS, 2, 1), [0.05]),
    "logistic, order 1": ("logistic", lambda y: dro.Wasserstein(y, ATOMS, 2, 1), [0.05]),
    "square, order inf": ("square", lambda y: dro.Wasserstein(y, ATOMS, 2, INF), [0.3]),
    "square, chi2": ("square", lambda y: dro.Divergence(y, ATOMS, "chi2"), [0.2]),
}


@pytest.mark.parametrize("name", SETS)
def test_gradients(name: str) -> None:
    """Of the optimal decision, of its value and of a given decision's, in θ, atoms and weights."""
    loss, make, theta = SETS[name]
    made, x = problem(loss, make)
    nominal = around()
    leaf = [torch.tensor(theta).double()]
    if made.ambiguity.needs_nominal:
        leaf += [nominal.atoms[0].flatten(), nominal.weights[0].log()]
    sizes = [len(part) for part in leaf]

    def split(at: Tensor) -> tuple[Tensor, dro.Nominal | None]:
        first, *rest = at.split(sizes, 1)
        return first, dro.Nominal(rest[0].reshape(-1, ATOMS, 3), rest[1].softmax(1)) if rest else None

    def solved(at: Tensor) -> Tensor:
        solution = made.solve(*split(at), engine=TIGHT)
        assert bool(solution.ok.all()), solution.statuses
        given = made.worst_case_cost({x: torch.as_tensor(X).expand(len(at), -1)}, *split(at))
        return torch.cat([solution.variable(x), solution.objective[:, None], given[:, None]], 1)

    at = torch.cat(leaf)
    # Solvers of exponential cones leave more noise in x*: there a larger step.
    found, wanted = analytic(solved, at), central(solved, at, 5 * STEP if loss == "logistic" else STEP)
    assert gap(found[:3], wanted[:3]) < 5e-4
    assert gap(found[3:], central(solved, at, 2e-4)[3:]) < 1e-4
    assert float(wanted[:3].abs().max()) > 1e-2


def test_a_curve_that_does_not_see_y_is_no_curve() -> None:
    """Of a vector of residuals one alone sees y; known data may stand in it."""
    y, x, target = dro.Uncertain(1), cp.Variable(2), cp.Parameter(name="target")
    cost = cp.sum_squares(cp.hstack([y[0] * x[0] - target, x[1] - 3.0, target - x[1]]))
    made = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.SquaredNorm()]))
    theta = torch.tensor([[1.0, 0.25]]).double()
    decision = {x: torch.tensor([[2.0, 1.0]]).double()}
    value = made.worst_case_cost(decision, theta, known={"target": torch.tensor([0.5])})
    assert float(value) == pytest.approx((1.5 + 2 * 0.5) ** 2 + 4.0 + 0.25, rel=1e-6)
    loss = made.loss(decision, torch.tensor([[1.5]]).double(), known={"target": torch.tensor([0.5])})
    assert float(loss) == pytest.approx(2.5**2 + 4.0 + 0.25)


def test_a_mean_square_is_bounded() -> None:
    """In a constraint, and beside what is uncertain otherwise: each worst case has a distribution of its own."""
    y, x = dro.Uncertain(3), cp.Variable(3)
    rule = dro.expected(cp.square(x @ y - 1.0)) <= 1.5
    made = dro.DecisionProblem(-cp.sum(x) + y[0], [rule], dro.Wasserstein(y, ATOMS, 2, 2))
    nominal, radius = around(), torch.tensor([[0.1], [0.2]]).double()
    solution = made.solve(radius, nominal)
    assert bool(solution.ok.all())
    decision = {x: solution.variable(x).detach()}
    u = (nominal.atoms * decision[x][:, None]).sum(2) - 1.0
    mean = ((nominal.weights * u**2).sum(1).sqrt() + radius[:, 0] * decision[x].norm(dim=1)) ** 2
    torch.testing.assert_close(mean, torch.full((2,), 1.5).double(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(made.worst_case(decision, radius, nominal, of=rule)[:, 0], mean - 1.5, rtol=0, atol=1e-6)


def test_what_is_refused() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3)
    u = x @ y
    box = dro.Uncertain(3, support=dro.support.Nonnegative())
    for cost, ambiguity in (
        (cp.square(u), dro.Wasserstein(y, ATOMS, 2, 1)),
        (cp.logistic(u), dro.Wasserstein(y, ATOMS, 2, 2)),
        (cp.square(u) + y[0], dro.Wasserstein(y, ATOMS, 2, 2)),
        (cp.sum_squares(y - x), dro.Wasserstein(y, ATOMS, 2, 2)),
        (cp.square(u), dro.MomentSet(y, [m.Norm(2)])),
        (cp.square(u), dro.MomentSet(y, [m.SquaredNorm(), m.Variance()])),
        (cp.square(x @ box), dro.Wasserstein(box, ATOMS, 2, 2)),
        (cp.square(x @ box), dro.MomentSet(box, [m.SquaredNorm()])),
    ):
        with pytest.raises(dro.ModelError, match=r"curved in y, and its worst case .* is not known: any such loss may"):
            dro.DecisionProblem(cost, [], ambiguity)
    with pytest.raises(dro.ModelError, match=r"in dro\.always"):
        dro.DecisionProblem(cp.sum(x), [dro.always(cp.square(u) <= 1)], dro.Wasserstein(y, ATOMS, 2, 2))
    made, x = problem("square", lambda y: dro.Wasserstein(y, ATOMS, 2, 2))
    with pytest.raises(dro.ModelError, match="is shown where mass stays at the atoms"):
        made.worst_case_distribution({x: torch.as_tensor(X)[None]}, torch.tensor([[0.3]]), around().at([0]))
