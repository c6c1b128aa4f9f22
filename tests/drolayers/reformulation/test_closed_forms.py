"""Worst cases that are known in closed form."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m

RNG = np.random.default_rng(5)
DUAL = {1: np.inf, 2: 2, np.inf: 1}


def row(*values: float | np.ndarray) -> Tensor:
    """One item of θ."""
    return torch.as_tensor(np.concatenate([np.ravel(v) for v in values])[None])


def close(found: Tensor, expected: float) -> None:
    assert float(found) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("mean", [0.4, 3.0])
@pytest.mark.parametrize("variance", [0.01, 1.7, 40.0])
@pytest.mark.parametrize("stock", [-1.0, 0.5, 3.1])
def test_scarf(mean: float, variance: float, stock: float) -> None:
    """Scarf (1958): sup E(y - x)⁺ = ½(√(σ² + (x - μ)²) - (x - μ)) over mean μ and variance at most σ²."""
    y, x = dro.Uncertain(1), cp.Variable()
    sets = [m.Linear(mu=[1.0], sigma=mean), m.Linear(mu=[-1.0], sigma=-mean), m.SquaredNorm(mu=[mean])]
    problem = dro.DecisionProblem(cp.pos(y[0] - x), [], dro.MomentSet(y, sets))
    f = problem.worst_case_cost({x: torch.tensor([stock], dtype=torch.float64)}, row(variance))
    close(f, 0.5 * (np.sqrt(variance + (stock - mean) ** 2) - (stock - mean)))


@pytest.mark.parametrize("price", [1.5, 4.0])
def test_scarf_order(price: float) -> None:
    """Scarf's rule for the order: x = μ + ½σ(√(b/h) - √(h/b)) for shortage b and holding h; the cost is σ√(bh)."""
    y, x = dro.Uncertain(1), cp.Variable()
    sets = [m.Linear(mu=[1.0], sigma=3.0), m.Linear(mu=[-1.0], sigma=-3.0), m.SquaredNorm(mu=[3.0])]
    problem = dro.DecisionProblem(cp.maximum(price * (y[0] - x), 0.7 * (x - y[0])), [], dro.MomentSet(y, sets))
    solution = problem.solve(row(1.44))
    close(solution.objective, 1.2 * np.sqrt(price * 0.7))
    order = 3.0 + 0.6 * (np.sqrt(price / 0.7) - np.sqrt(0.7 / price))
    # The cost is flat around the order: it is as accurate as the root of what the cost is.
    assert float(solution.variable(x)) == pytest.approx(order, abs=1e-4)


@pytest.mark.parametrize("stock", [0.2, 0.5, 0.9])
def test_mean_absolute_deviation(stock: float) -> None:
    """Ben-Tal and Hochman (1972): on [0, 1] with mean μ and E|y - μ| = d the worst case of a convex cost has its mass
    at 0, μ and 1, with probabilities d/2μ, 1 - d/2μ - d/2(1-μ), d/2(1-μ)."""
    mean, deviation = 0.45, 0.3
    y, x = dro.Uncertain(1, support=dro.support.Box(0.0, 1.0)), cp.Variable()
    sets = [m.Linear(mu=[1.0], sigma=mean), m.Linear(mu=[-1.0], sigma=-mean), m.Absolute(mu=[1.0], h=mean)]
    cost = cp.maximum(3 * (y[0] - x), x - y[0])
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, sets))
    points = np.array([0.0, mean, 1.0])
    low, high = deviation / (2 * mean), deviation / (2 * (1 - mean))
    expected = np.array([low, 1 - low - high, high]) @ np.maximum(3 * (points - stock), stock - points)
    close(problem.worst_case_cost({x: torch.tensor([stock], dtype=torch.float64)}, row(deviation)), expected)


@pytest.mark.parametrize("signed", [False, True], ids=["long only", "long and short"])
def test_portfolio_under_coordinate_variances(signed: bool) -> None:
    """sup E[-yᵀx] = -μᵀx + Σ √σ_i |x_i|."""
    n = 5
    y, x = dro.Uncertain(n), cp.Variable(n, nonneg=not signed)
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    mu, sigma, point = RNG.normal(size=n), RNG.uniform(0.01, 2, n), RNG.normal(size=n)
    point = point if signed else abs(point)
    f = problem.worst_case_cost({x: torch.as_tensor(point[None])}, row(mu, sigma))
    close(f, -mu @ point + np.sqrt(sigma) @ abs(point))


def test_portfolio_under_grouped_variances() -> None:
    """One bound a group: the 2-norm within, the sum across."""
    y, x = dro.Uncertain(5), cp.Variable(5)
    problem = dro.DecisionProblem(-y @ x, [cp.norm(x) <= 1], dro.MomentSet.grouped(y, 2))
    mu, sigma, point = RNG.normal(size=5), RNG.uniform(0.01, 2, 3), RNG.normal(size=5)
    spread = sum(np.sqrt(v) * np.linalg.norm(point[k]) for v, k in zip(sigma, ([0, 1], [2, 3], [4]), strict=True))
    close(problem.worst_case_cost({x: torch.as_tensor(point[None])}, row(mu, sigma)), -mu @ point + spread)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, np.inf])
def test_portfolio_under_norms(p: float) -> None:
    """sup E[-yᵀx] = -μᵀx + σ‖x‖_q, and through a matrix σ·min{‖τ‖_q : Aᵀτ = -x}."""
    q = {1.0: np.inf, np.inf: 1.0}.get(p) or p / (p - 1)
    y, x = dro.Uncertain(3), cp.Variable(3)
    mu, point = RNG.normal(size=3), RNG.normal(size=3)
    given = {x: torch.as_tensor(point[None])}
    problem = dro.DecisionProblem(-y @ x, [], dro.MomentSet(y, [m.Norm(p)]))
    close(problem.worst_case_cost(given, row(mu, 0.7)), -mu @ point + 0.7 * np.linalg.norm(point, q))
    A = RNG.normal(size=(3, 3))
    problem = dro.DecisionProblem(-y @ x, [], dro.MomentSet(y, [m.Norm(p, A=A)]))
    tau = np.linalg.solve(A.T, -point)
    close(problem.worst_case_cost(given, row(mu, 0.7)), tau @ mu + 0.7 * np.linalg.norm(tau, q))


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_power_of_one_coordinate(p: float) -> None:
    """sup E y over E|y - h|ᵖ ≤ σ is h + σ^(1/p); below, the positive part bounds only one side."""
    y, x = dro.Uncertain(1), cp.Variable(nonneg=True)
    problem = dro.DecisionProblem(x * y[0], [], dro.MomentSet(y, [m.AbsolutePower(p, mu=[1.0])]))
    close(problem.worst_case_cost({x: torch.tensor([1.5])}, row(0.8, 0.3)), 1.5 * (0.8 + 0.3 ** (1 / p)))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_wasserstein_portfolio(norm: float, order: int) -> None:
    """Regularisation by the dual norm: -ȳᵀx + ε‖x‖_*, for either order."""
    y, x = dro.Uncertain(4), cp.Variable(4)
    problem = dro.DecisionProblem(-y @ x, [cp.norm(x) <= 2], dro.Wasserstein(y, 6, norm=norm, order=order))
    atoms, weights, point = RNG.normal(size=(1, 6, 4)), RNG.dirichlet(np.ones(6))[None], RNG.normal(size=4)
    nominal = torch.as_tensor(atoms), torch.as_tensor(weights)
    f = problem.worst_case_cost({x: torch.as_tensor(point[None])}, row(0.35), nominal)
    close(f, -(weights[0] @ atoms[0]) @ point + 0.35 * np.linalg.norm(point, DUAL[norm]))


@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_wasserstein_of_maxima(norm: float) -> None:
    """Order 1 and a cost of maxima on all of space: the expected cost plus ε times its Lipschitz constant."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    slopes, offsets = RNG.normal(size=(3, 2)), RNG.normal(size=3)
    problem = dro.DecisionProblem(cp.max(slopes @ (y - x) + offsets), [], dro.Wasserstein(y, 5, norm=norm))
    atoms, weights, point = RNG.normal(size=(1, 5, 2)), RNG.dirichlet(np.ones(5))[None], RNG.normal(size=2)
    f = problem.worst_case_cost(
        {x: torch.as_tensor(point[None])}, row(0.2), (torch.as_tensor(atoms), torch.as_tensor(weights))
    )
    cost = ((atoms[0] - point) @ slopes.T + offsets).max(1)
    close(f, weights[0] @ cost + 0.2 * np.linalg.norm(slopes, DUAL[norm], axis=1).max())


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_cvar_under_mean_and_variance(level: float) -> None:
    """Sup CVaR of -yᵀx is -μᵀx + √(level/(1-level))·√(xᵀΣx), here along one direction x."""
    point, mean, variance = np.array([0.6, -1.1]), 0.4, 0.9
    y, x = dro.Uncertain(2), cp.Variable(2)
    bounds = [
        m.Linear(mu=point, sigma=mean),
        m.Linear(mu=-point, sigma=-mean),
        m.AbsolutePower(2, mu=point, h=mean, sigma=variance),
        m.SquaredNorm(mu=[0.0, 0.0]),
    ]
    # The last bound is slack and only keeps the other directions finite.
    problem = dro.DecisionProblem(dro.cvar(-y @ x, level), [x == point], dro.MomentSet(y, bounds))
    solution = problem.solve(row(1e3))
    close(solution.objective, -mean + np.sqrt(level / (1 - level) * variance))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_wasserstein_cvar(norm: float, order: int) -> None:
    """Sup CVaR of -yᵀx over a ball is that of the nominal distribution plus ε‖x‖_*/(1-level)^(1/order)."""
    level, atoms = 0.75, RNG.normal(size=(1, 8, 2))
    point, loss = np.array([0.7, -0.4]), -atoms[0] @ np.array([0.7, -0.4])
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(dro.cvar(-y @ x, level), [x == point], dro.Wasserstein(y, 8, norm, order))
    nominal = torch.as_tensor(atoms), torch.full((1, 8), 1 / 8, dtype=torch.float64)
    solution = problem.solve(row(0.1), nominal)
    tail = np.sort(loss)[-2:].mean()
    close(solution.objective, tail + 0.1 * np.linalg.norm(point, DUAL[norm]) / (1 - level) ** (1 / order))
