"""Two-stage costs: exact by vertices, bounded by decision rules, infinite where the second stage is infeasible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import drolayers as dro
from drolayers import Status
from drolayers.ambiguity.base import AmbiguitySet

m = dro.moments


def newsvendor(y: dro.Uncertain, x: cp.Variable, method: str | None) -> cp.Expression:
    """Shortage costs 3, surplus 1 a unit: written with maxima (no method) or as a second stage."""
    n = y.dim
    if method is None:
        return cp.sum(cp.maximum(3 * (y - x), x - y))
    return dro.recourse(np.repeat([3.0, 1.0], n), np.hstack([np.eye(n), -np.eye(n)]), y - x, method)


def by_method(
    cost: Callable[[dro.Uncertain, cp.Variable, str], cp.Expression],
    ambiguity: Callable[[dro.Uncertain], AmbiguitySet],
    dim: int,
    support: dro.support.Support | None = None,
) -> dict[str, tuple[dro.DecisionProblem, cp.Variable]]:
    """The same problem with vertices and with a decision rule."""
    problems = {}
    for method in ("vertices", "decision_rule"):
        y, x = dro.Uncertain(dim, support), cp.Variable(dim)
        problems[method] = dro.DecisionProblem(cost(y, x, method), [], ambiguity(y)), x
    assert not problems["vertices"][0].conservative
    assert problems["decision_rule"][0].conservative
    return problems


def values(
    problems: dict[str, tuple[dro.DecisionProblem, cp.Variable]], at: Tensor, *given: Tensor | tuple
) -> list[Tensor]:
    """Worst-case costs of a decision, by vertices and by rule."""
    return [problem.worst_case_cost({x: at}, *given) for problem, x in problems.values()]


ADDITIVE = {
    "square": (lambda y: dro.MomentSet(y, [m.SquaredNorm()]), 1),
    "grouped": (lambda y: dro.MomentSet.grouped(y, 1), None),
    "l1 and square": (lambda y: dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]), 2),
    "mean and variance": (lambda y: dro.MomentSet(y, [m.Mean(sigma=None), m.Variance()]), None),
    "multiple": (lambda y: dro.MomentSet(y, [2.0 * m.SquaredNorm()]), 1),
}


@pytest.mark.parametrize("dim", [2, 4])
@pytest.mark.parametrize("name", list(ADDITIVE))
def test_component_lifting_is_exact_on_separable_sets(name: str, dim: int) -> None:
    make, count = ADDITIVE[name]
    problems = by_method(newsvendor, make, dim)
    generator = torch.Generator().manual_seed(dim)
    mu, at = (torch.rand(5, dim, generator=generator).double() for _ in range(2))
    sigma = 0.5 + torch.rand(5, dim, generator=generator).double()
    vectors = 2 if name == "mean and variance" else 1
    theta = torch.cat([mu, sigma] * vectors if count is None else [mu, sigma[:, :1]] * count, 1)
    exact, rule = values(problems, at, theta)
    torch.testing.assert_close(rule, exact, rtol=1e-6, atol=1e-7)
    y, x = dro.Uncertain(dim), cp.Variable(dim)
    direct = dro.DecisionProblem(newsvendor(y, x, None), [], make(y))
    torch.testing.assert_close(exact, direct.worst_case_cost({x: at}, theta), rtol=1e-7, atol=1e-8)
    best = [problem.solve(theta).objective for problem, _ in problems.values()]
    torch.testing.assert_close(best[1], best[0], rtol=1e-6, atol=1e-7)


def test_lifting_the_total_is_looser() -> None:
    """Two items under a joint square: a rule that sees only the whole of it, as in a sum of moments, costs more."""
    theta, found = torch.tensor([[1.0, 2.0, 1.0]], dtype=torch.float64), {}
    whole = m.SquaredNorm(index=[0]) + m.SquaredNorm(index=[1])
    cases = {
        "exact": (None, m.SquaredNorm()),
        "components": ("decision_rule", m.SquaredNorm()),
        "whole": ("decision_rule", whole),
    }
    for name, (method, moment) in cases.items():
        y, x = dro.Uncertain(2), cp.Variable(2)
        problem = dro.DecisionProblem(newsvendor(y, x, method), [], dro.MomentSet(y, [moment]))
        found[name] = float(problem.solve(theta).objective)
    assert found["exact"] == pytest.approx(np.sqrt(6.0), rel=1e-6)
    assert found["components"] == pytest.approx(found["exact"], rel=1e-6)
    assert found["whole"] > 1.1 * found["exact"]


@pytest.mark.parametrize(
    ("ambiguity", "theta"),
    [
        (lambda y: dro.MomentSet(y, [m.Norm(2)]), [1.0, 1.0, 1.0]),
        (lambda y: dro.MomentSet(y, [m.Norm(np.inf), m.SquaredNorm()]), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (lambda y: dro.MomentSet(y, [m.maximum(m.Norm(1), m.SquaredNorm())]), [1.0, 1.0, 1.0, 1.0, 1.0]),
        (lambda y: dro.MomentSet(y, [2.0 * m.SquaredNorm()]), [1.0, 1.0, 1.0]),
        (lambda y: dro.MomentSet(y, [m.SquaredNorm(index=[0]), m.SquaredNorm(index=[1])]), [1.0, 1.0, 1.0, 1.0]),
        (lambda y: dro.MomentSet(y, [m.Absolute(), m.SquaredNorm()]), [1.0, -1.0, 0.1, 1.0, 1.0, 1.0, 1.0]),
        (
            lambda y: dro.MomentSet(y, [m.AbsolutePower(3), m.PositiveSquare(), m.Norm(1)]),
            [1.0, 1.0, 2.0, 1.0] * 2 + [1.0] * 3,
        ),
        (lambda y: dro.MomentSet(y, [m.Linear(), m.SquaredNorm()]), [1.0, 1.0, 2.5, 1.0, 1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("support", [None, dro.support.Nonnegative()])
def test_rules_are_never_below_the_exact_value(
    ambiguity: Callable[[dro.Uncertain], AmbiguitySet], theta: list[float], support: dro.support.Support | None
) -> None:
    problems = by_method(newsvendor, ambiguity, 2, support)
    at = torch.rand(6, 2, generator=torch.Generator().manual_seed(3)).double() * 2
    exact, rule = values(problems, at, torch.tensor([theta] * 6, dtype=torch.float64))
    assert bool(exact.isfinite().all())
    assert bool((rule >= exact - 1e-6).all())


@pytest.mark.parametrize(("norm", "order"), product([1, 2, np.inf], [1, 2]))
def test_recourse_under_wasserstein(norm: float, order: int) -> None:
    problems = by_method(newsvendor, lambda y: dro.Wasserstein(y, 4, norm, order), 2)
    generator = torch.Generator().manual_seed(5)
    nominal = torch.rand(3, 4, 2, generator=generator).double(), torch.full((3, 4), 0.25).double()
    at = torch.rand(3, 2, generator=generator).double()
    radius = torch.tensor([[0.01], [0.1], [1.0]], dtype=torch.float64)
    exact, rule = values(problems, at, radius, nominal)
    assert bool((rule >= exact - 1e-7).all())
    sample = problems["vertices"][0].loss({problems["vertices"][1]: at[:, None].expand(3, 4, 2)}, nominal[0][:, 0])
    assert sample.shape == (3, 4)
    if order == 1:
        # The worst case moves mass along the steepest slope: regularisation by the dual norm.
        slopes = np.array(list(product([3.0, -1.0], repeat=2)))
        steepest = np.linalg.norm(slopes, {1: np.inf, 2: 2, np.inf: 1}[norm], axis=1).max()
        y, x = problems["vertices"][0].ambiguity.y, problems["vertices"][1]
        means = torch.stack([problems["vertices"][0].loss({x: at}, nominal[0][:, k]) for k in range(4)], 1).mean(1)
        torch.testing.assert_close(exact, means + steepest * radius[:, 0], rtol=1e-6, atol=1e-7)
        assert y.dim == 2


def test_loss_is_the_linear_program() -> None:
    rng = np.random.default_rng(0)
    W = np.hstack([rng.normal(size=(3, 4)), np.eye(3), -np.eye(3)])
    q = np.concatenate([W[:, :4].T @ rng.normal(size=3) + 1.0, np.full(6, 8.0)])
    T, h = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    for method in ("vertices", "decision_rule"):
        y, x = dro.Uncertain(2), cp.Variable(2)
        cost = cp.sum(x) + 2 * dro.recourse(q, W, h @ y - T @ x, method)
        problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.SquaredNorm()]))
        at, outcome = torch.as_tensor(rng.normal(size=(4, 3, 2))), torch.as_tensor(rng.normal(size=(4, 2)))
        found = problem.loss({x: at}, outcome)
        for i, j in product(range(4), range(3)):
            rhs = h @ outcome[i].numpy() - T @ at[i, j].numpy()
            second = linprog(q, A_eq=W, b_eq=rhs, bounds=(0, None)).fun
            assert float(found[i, j]) == pytest.approx(float(at[i, j].sum()) + 2 * second, rel=1e-7)


def test_worst_case_is_above_every_distribution_of_the_set() -> None:
    """Sampled distributions with the given moments never cost more than f, by the linear program itself."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    W = np.array([[1.0, -1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, -1.0, 1.0]])
    cost = dro.recourse([3.0, 1.0, 2.0, 1.0, 4.0], W, y - x)
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.SquaredNorm()]))
    at = torch.tensor([[0.2, -0.3]], dtype=torch.float64)
    f = float(problem.worst_case_cost({x: at}, torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)))
    rng = np.random.default_rng(1)
    largest = 0.0
    for _ in range(50):
        points = rng.normal(size=(5, 2))
        points /= np.sqrt((points**2).sum(1).mean())
        expected = problem.loss({x: at.expand(5, 2)}, torch.as_tensor(points)).mean()
        largest = max(largest, float(expected))
    assert 0.7 * f < largest <= f + 1e-9
    atoms, probabilities = problem.worst_case_distribution({x: at}, torch.tensor([[0.0, 0.0, 1.0]]).double())
    attained = (problem.loss({x: at.expand(atoms.shape[1], 2)}, atoms[0]) * probabilities[0]).sum()
    assert float(attained) == pytest.approx(f, rel=1e-6)


# --- Infeasible second stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [dro.support.Box(0.0, 1.0), dro.support.Nonnegative(), None])
def test_dependent_rows(support: dro.support.Support | None) -> None:
    """W has rank one, so rhs₂ = 2·rhs₁ must hold for every y: x₁ - 2x₀ = 0 where it does not depend on y."""
    W = np.array([[1.0, -1.0], [2.0, -2.0]])
    y, x = dro.Uncertain(1, support), cp.Variable(2)
    cost = dro.recourse([3.0, 1.0], W, cp.hstack([y - x[0], 2 * y - x[1]]))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.SquaredNorm()]))
    theta = torch.tensor([[0.5, 0.04]], dtype=torch.float64)
    at = torch.tensor([[0.4, 0.8], [0.4, 0.9], [0.4, 0.7]], dtype=torch.float64)
    value = problem.worst_case_cost({x: at}, theta.expand(3, 2))
    z, t = dro.Uncertain(1, support), cp.Variable(1)
    plain = dro.DecisionProblem(newsvendor(z, t, None), [], dro.MomentSet(z, [m.SquaredNorm()]))
    assert float(value[0]) == pytest.approx(float(plain.worst_case_cost({t: at[:1, :1]}, theta)), rel=1e-6)
    assert value[1:].tolist() == [np.inf, np.inf]
    solution = problem.solve(theta)
    assert solution.statuses == [Status.OPTIMAL]
    assert float(solution.variable(x)[0] @ torch.tensor([-2.0, 1.0]).double()) == pytest.approx(0.0, abs=1e-6)
    # Here it does depend on y, and no decision helps.
    wrong = dro.recourse([3.0, 1.0], W, cp.hstack([y - x[0], y - x[1]]))
    lost = dro.DecisionProblem(wrong, [], dro.MomentSet(y, [m.SquaredNorm()]))
    assert lost.solve(theta).statuses == [Status.INFINITE_WORST_CASE]
    assert lost.worst_case_cost({x: at[:1]}, theta).tolist() == [np.inf]


@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
@pytest.mark.parametrize("ball", [False, True])
def test_extreme_rays_forbid_what_cannot_be_served(method: str, ball: bool) -> None:
    """Capacity x must cover demand y up to its largest value 2; nothing else is available."""
    y, x = dro.Uncertain(1, dro.support.Box(0.0, 2.0)), cp.Variable(1)
    # Serve γ₀ = y at cost 1, leave capacity γ₁ unused: γ₀ + γ₁ = x.
    cost = 3 * x[0] + dro.recourse([1.0, 0.0], [[1.0, 0.0], [1.0, 1.0]], cp.hstack([y, x]), method)
    ambiguity = dro.Wasserstein(y, 2) if ball else dro.MomentSet(y, [m.SquaredNorm()])
    problem = dro.DecisionProblem(cost, [], ambiguity)
    nominal = (torch.tensor([[[0.5], [1.0]]]).double(), torch.full((1, 2), 0.5).double()) if ball else None
    theta = torch.tensor([[0.1]] if ball else [[0.8, 0.04]], dtype=torch.float64)
    worst_mean = 0.75 + 0.1 if ball else 0.8 + 0.2
    for at, expected in ((2.0, 6.0 + worst_mean), (3.0, 9.0 + worst_mean), (1.9, np.inf), (-1.0, np.inf)):
        value = problem.worst_case_cost({x: torch.tensor([[at]])}, theta, nominal)
        assert float(value) == pytest.approx(expected, rel=1e-6)
    solution = problem.solve(theta, nominal)
    assert float(solution.variable(x)[0, 0]) == pytest.approx(2.0, abs=1e-5)
    # Without an upper end of demand no capacity is enough.
    free, z = dro.Uncertain(1, dro.support.Nonnegative()), cp.Variable(1)
    cost = 3 * z[0] + dro.recourse([1.0, 0.0], [[1.0, 0.0], [1.0, 1.0]], cp.hstack([free, z]), method)
    lost = dro.DecisionProblem(cost, [], dro.Wasserstein(free, 2) if ball else dro.MomentSet(free, [m.SquaredNorm()]))
    (status,) = lost.solve(theta, nominal).statuses
    value = lost.worst_case_cost({z: torch.tensor([[100.0]])}, theta, nominal)
    assert not bool(value.isfinite().any())
    if method == "vertices":
        assert status == Status.INFINITE_WORST_CASE
        assert value.tolist() == [np.inf]
    else:
        # A rule may miss infeasibility by ever less without reaching it, so that there is no certificate.
        assert status in (Status.INFINITE_WORST_CASE, Status.FAILED)


# --- CVaR -----------------------------------------------------------------------------------------------------------


def test_cvar_of_a_recourse_cost() -> None:
    """The same as CVaR of the maxima; above the mean, and above CVaR of any distribution in the set."""
    theta = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    found = {}
    for method in (None, "vertices"):
        y, x = dro.Uncertain(2), cp.Variable(2)
        cost = dro.cvar(newsvendor(y, x, method), 0.8)
        problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.SquaredNorm()]))
        solution = problem.solve(theta)
        (tau,) = [v for v in problem.variables if v is not x]
        found[method] = float(solution.objective), problem, x, tau, problem.decision(solution.primal.detach())
    assert found["vertices"][0] == pytest.approx(found[None][0], rel=1e-6)
    value, problem, x, tau, decision = found["vertices"]
    assert float(problem.worst_case_cost(decision, theta)) == pytest.approx(value, rel=1e-6)
    y, z = dro.Uncertain(2), cp.Variable(2)
    mean = dro.DecisionProblem(newsvendor(y, z, None), [], dro.MomentSet(y, [m.SquaredNorm()]))
    assert value > float(mean.worst_case_cost({z: decision[x]}, theta)) + 0.1
    outcome = torch.tensor([[1.5, 1.0]], dtype=torch.float64)
    second = float(mean.loss({z: decision[x]}, outcome))
    level = float(decision[tau][0])
    assert float(problem.loss(decision, outcome)) == pytest.approx(level + max(second - level, 0.0) / 0.2, rel=1e-7)


def test_cvar_of_a_rule_is_a_bound() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    ambiguity = dro.MomentSet(y, [m.SquaredNorm()])
    theta = torch.tensor([[1.0, 2.0, 0.7]], dtype=torch.float64)
    exact, rule = (
        float(dro.DecisionProblem(dro.cvar(newsvendor(y, x, method), 0.8), [], ambiguity).solve(theta).objective)
        for method in ("vertices", "decision_rule")
    )
    assert exact - 1e-7 <= rule <= 1.5 * exact


# --- Facility location ----------------------------------------------------------------------------------------------

OPENING, CAPACITY = np.array([2.0, 2.5]), np.array([2.0, 2.5])
TRANSPORT, OUTSIDE = np.array([[1.0, 2.0], [2.5, 1.0]]), 6.0


def facility_location(
    method: str, ambiguity: Callable[[dro.Uncertain], AmbiguitySet]
) -> tuple[dro.DecisionProblem, cp.Variable]:
    """Two sites, two customers with demand y; what is not shipped is bought outside; unused capacity is free."""
    y, opened = dro.Uncertain(2, dro.support.Box(0.0, 3.0)), cp.Variable(2, boolean=True)
    # Columns: shipments site × customer, outside purchases, unused capacity. Rows: customers, sites.
    W = np.block(
        [
            [np.tile(np.eye(2), (1, 2)), np.eye(2), np.zeros((2, 2))],
            [np.kron(np.eye(2), np.ones((1, 2))), np.zeros((2, 2)), np.eye(2)],
        ]
    )
    q = np.concatenate([TRANSPORT.ravel(), np.full(2, OUTSIDE), np.zeros(2)])
    second = dro.recourse(q, W, cp.hstack([y, cp.multiply(CAPACITY, opened)]), method)
    return dro.DecisionProblem(OPENING @ opened + second, [], ambiguity(y)), opened


def transport_cost(opened: np.ndarray, demand: np.ndarray) -> float:
    """The second stage with inequalities, as anybody would write it."""
    costs = np.concatenate([TRANSPORT.ravel(), np.full(2, OUTSIDE)])
    served = np.hstack([np.tile(np.eye(2), (1, 2)), np.eye(2)])
    used = np.hstack([np.kron(np.eye(2), np.ones((1, 2))), np.zeros((2, 2))])
    return float(linprog(costs, used, CAPACITY * opened, served, demand).fun)


@pytest.mark.parametrize("kind", ["moments", "wasserstein"])
def test_facility_location(kind: str) -> None:
    plans = torch.tensor(list(product([0.0, 1.0], repeat=2)), dtype=torch.float64)
    nominal = None
    if kind == "moments":
        make: Callable[[dro.Uncertain], AmbiguitySet] = lambda y: dro.MomentSet(y, [m.SquaredNorm()])  # noqa: E731
        theta = torch.tensor([[1.0, 1.5, 0.3]], dtype=torch.float64)
    else:
        make = lambda y: dro.Wasserstein(y, 3, 1, 1)  # noqa: E731
        theta = torch.tensor([[0.3]], dtype=torch.float64)
        nominal = torch.tensor([[[0.5, 1.0], [1.0, 2.0], [1.5, 1.5]]]).double(), torch.full((1, 3), 1 / 3).double()
    found = {}
    for method in ("vertices", "decision_rule"):
        problem, opened = facility_location(method, make)
        given = None if nominal is None else tuple(t.expand(4, *t.shape[1:]) for t in nominal)
        found[method] = problem.worst_case_cost({opened: plans}, theta.expand(4, -1), given)
        solution = problem.solve(theta.expand(4, -1), given, fixed=plans)
        torch.testing.assert_close(solution.objective, found[method], rtol=1e-6, atol=1e-6)
        assert problem.conservative == (method == "decision_rule")
        for plan, demand in product(plans, ([0.5, 2.0], [2.5, 3.0])):
            expected = float(OPENING @ plan.numpy()) + transport_cost(plan.numpy(), np.array(demand))
            assert float(problem.loss({opened: plan[None]}, torch.tensor([demand]))) == pytest.approx(
                expected, rel=1e-6
            )
    exact, rule = found["vertices"], found["decision_rule"]
    assert bool((rule >= exact - 1e-6).all())
    assert bool((rule <= 1.5 * exact).all())
    # Nothing open: all demand is bought outside, and the worst mean demand is known.
    worst = (
        theta[0, :2].sum() + (2 * theta[0, 2]).sqrt() if kind == "moments" else nominal[0].mean(1).sum() + theta[0, 0]
    )
    assert float(exact[0]) == pytest.approx(float(OUTSIDE * worst), rel=1e-6)
    assert float(rule[0]) == pytest.approx(float(exact[0]), rel=1e-6)
    # A grid of distributions in the set costs no more, and comes close, at every plan.
    below = lower_bound(plans, theta, nominal)
    assert bool((below <= exact + 1e-6).all())
    torch.testing.assert_close(below, exact, rtol=2e-2, atol=0.0)


def lower_bound(plans: Tensor, theta: Tensor, nominal: tuple[Tensor, Tensor] | None) -> Tensor:
    """The worst case over distributions on a grid: a linear program in the probabilities."""
    axis = np.linspace(0.0, 3.0, 13)
    points = np.array(list(product(axis, axis)))
    costs = []
    for plan in plans.numpy():
        cost = np.array([transport_cost(plan, point) for point in points])
        if nominal is None:
            distance = ((points - theta[0, :2].numpy()) ** 2).sum(1)
            found = linprog(-cost, distance[None], [float(theta[0, 2])], np.ones((1, len(points))), [1.0])
        else:
            centres = nominal[0][0].numpy()
            moved = np.abs(centres[:, None] - points[None]).sum(2).ravel()
            each = np.kron(np.eye(3), np.ones(len(points)))
            found = linprog(-np.tile(cost, 3), moved[None], [float(theta[0, 0])], each, np.full(3, 1 / 3))
        costs.append(float(OPENING @ plan) - found.fun)
    return torch.tensor(costs, dtype=torch.float64)
