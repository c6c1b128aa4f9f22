"""Worst-case costs at bounds from 1e-12 to 1e+6 and data from 1e-4 to 1e+4, against closed forms; sizes of programs.

Decisions lie away from the centre, so that the cost is of the size of the data: where a cost of 1e-6 is the difference
of numbers of size 1e+4, no solver that sees those numbers can give six digits of it.
"""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import ConeProgram, Solution
from drolayers import Status

m = dro.moments
SIGMA = torch.logspace(-12, 6, 10, dtype=torch.float64)
SIZES = [1e-4, 1e-2, 1.0, 1e2, 1e4]


def assert_six_digits(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


def columns(*parts: Tensor | float) -> Tensor:
    """A theta of one row a bound in SIGMA."""
    return torch.stack([torch.as_tensor(p, dtype=torch.float64).expand(len(SIGMA)) for p in parts], 1)


# --- One piece: multipliers are eliminated --------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_portfolio_under_variance_bounds(size: float) -> None:
    """-μ'x + Σ √σ_i |x_i|; over the simplex the best asset has the least √σ_i - μ_i."""
    mu = size * torch.tensor([0.7, 1.3, 1.0], dtype=torch.float64)
    theta = torch.cat([mu.expand(len(SIGMA), 3), SIGMA[:, None] * torch.tensor([1.0, 4.0, 0.25])], 1)
    y, x = dro.Uncertain(3), cp.Variable(3)
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1, x >= 0], dro.MomentSet.grouped(y, 1))
    at = torch.tensor([0.9, 0.4, -0.3], dtype=torch.float64).expand(len(SIGMA), 3)
    root = theta[:, 3:].sqrt()
    assert_six_digits(problem.worst_case_cost({x: at}, theta), -(at @ mu) + (root * at.abs()).sum(1))
    solution = problem.solve(theta)
    assert bool(solution.ok.all())
    assert_six_digits(solution.objective, (root - mu).amin(1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("moment", "bound"),
    [
        (m.SquaredNorm(), lambda x, s: s.sqrt() * x.norm()),
        (m.Norm(1), lambda x, s: s * x.abs().max()),
        (m.Norm(2), lambda x, s: s * x.norm()),
        (m.Norm(np.inf), lambda x, s: s * x.abs().sum()),
        (m.Norm(3), lambda x, s: s * x.norm(p=1.5)),
        (m.Norm(2, A=2 * np.eye(3)), lambda x, s: s * x.norm() / 2),
    ],
    ids=["square", "l1", "l2", "linf", "l3", "A"],
)
def test_one_piece(moment: m.Moment, bound: Callable[[Tensor, Tensor], Tensor], size: float) -> None:
    y, x = dro.Uncertain(3), cp.Variable(3)
    problem = dro.DecisionProblem(-y @ x, [], dro.MomentSet(y, [moment]))
    at = torch.tensor([0.9, 0.4, -0.3], dtype=torch.float64)
    centre = size * torch.tensor([0.7, 1.3, 1.0], dtype=torch.float64)
    mu = 2 * centre if "A" in moment.over(3).constants else centre
    found = problem.worst_case_cost({x: at.expand(len(SIGMA), 3)}, columns(*mu, SIGMA))
    assert_six_digits(found, -(at @ centre) + bound(at, SIGMA))


# --- Two pieces: multipliers stay -----------------------------------------------------------------------------------


def asymmetric(distance: Tensor, sigma: Tensor) -> Tensor:
    """sup E max(3u, -u) where u = y - x, distance = μ - x and E(y - μ)² ≤ σ.

    The mean is free: with t = Ey - μ the best variance gives t + d + 2√(d² + 2td + σ), concave in |t| ≤ √σ.
    """
    gap, root = distance.abs(), sigma.sqrt()
    short = torch.where(
        root < gap, gap + root, torch.where(root > 3 * gap, 3 * (root - gap), sigma / (2 * gap) + 1.5 * gap)
    )
    return torch.where(distance >= 0, 3 * (distance + root), short)


CASES: dict[
    str, tuple[Callable[[], list[m.Moment]], Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor], bool]
] = {
    # Moments, theta of (centre, bound), closed form of (distance, bound), and whether it also holds for x > μ.
    "square": (lambda: [m.SquaredNorm()], columns, asymmetric, True),
    "twice a square": (lambda: [2.0 * m.SquaredNorm()], lambda c, s: columns(c, 2 * s), asymmetric, True),
    "power 2": (lambda: [m.AbsolutePower(2, mu=[1.0])], columns, asymmetric, True),
    "l1": (lambda: [m.Norm(1)], columns, lambda d, s: torch.maximum(3 * d, -d) + 3 * s, True),
    "absolute": (lambda: [m.Absolute(mu=[1.0])], columns, lambda d, s: torch.maximum(3 * d, -d) + 3 * s, True),
    "scarf": (
        lambda: [m.Linear(mu=[1.0]), m.Linear(mu=[-1.0]), m.SquaredNorm()],
        lambda c, s: columns(c, -c, c, s),
        lambda d, s: d + 2 * torch.sqrt(d**2 + s),
        True,
    ),
    # Where x < μ all the mass moves up by the p-th root of the bound.
    "power 3": (lambda: [m.AbsolutePower(3, mu=[1.0])], columns, lambda d, s: 3 * (d + s ** (1 / 3)), False),
    "power 1.5": (lambda: [m.AbsolutePower(1.5, mu=[1.0])], columns, lambda d, s: 3 * (d + s ** (1 / 1.5)), False),
    "l1 plus square": (
        lambda: [m.Norm(1) + m.SquaredNorm()],
        lambda c, s: columns(c, c, s),
        lambda d, s: 3 * (d + 2 * s / (1 + torch.sqrt(1 + 4 * s))),
        False,
    ),
    "larger of l1 and square": (
        lambda: [m.maximum(m.Norm(1), m.SquaredNorm())],
        lambda c, s: columns(c, c, s),
        lambda d, s: 3 * (d + torch.minimum(s, s.sqrt())),
        False,
    ),
}


# The member of a maximum that is far from binding leaves one digit less at the smallest data.
@pytest.mark.parametrize(
    ("name", "size"), [(n, s) for n in CASES for s in SIZES if not (n.startswith("larger") and s < 1e-2)]
)
def test_two_pieces(name: str, size: float) -> None:
    moments, theta, closed_form, both_sides = CASES[name]
    y, x = dro.Uncertain(1), cp.Variable(1)
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], dro.MomentSet(y, moments()))
    for factor in (0.6, 1.4) if both_sides else (0.6,):
        at = torch.full((len(SIGMA), 1), factor * size, dtype=torch.float64)
        expected = closed_form(size - at[:, 0], SIGMA)
        assert_six_digits(problem.worst_case_cost({x: at}, theta(torch.tensor(size).double(), SIGMA)), expected)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_optima_scale_with_the_data(scale: float) -> None:
    """√3·√σ at the best order; μ and √σ of one size, as in data."""
    y, x = dro.Uncertain(1), cp.Variable(1)
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], dro.MomentSet(y, [m.SquaredNorm()]))
    solution = problem.solve(torch.tensor([[2 * scale, scale**2]], dtype=torch.float64))
    assert_six_digits(solution.objective, torch.tensor([np.sqrt(3) * scale]).double())


@pytest.mark.parametrize("big", [1e3, 1e6, 1e9, 1e12, 1e16])
def test_bounds_that_never_bind(big: float) -> None:
    """2√3 for two products, whatever stands on the other side of a bound far away."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    cost = cp.sum(cp.maximum(3 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [x <= big], dro.MomentSet.grouped(y, 1))
    solution = problem.solve(torch.tensor([[6.0, 5.0, 1.0, 1.0]], dtype=torch.float64))
    assert bool(solution.ok.all())
    assert_six_digits(solution.objective, torch.tensor([2 * np.sqrt(3)]).double())


@pytest.mark.parametrize("big", [1e8, 1e9, 1e11, 1e12, 1e14, 1e16, 1e20])
@pytest.mark.parametrize("moment", [dro.moments.SquaredNorm(), dro.moments.Norm(1)], ids=["squares", "norm"])
def test_bounds_that_never_bind_and_are_most_of_the_numbers(moment: dro.moments.Moment, big: float) -> None:
    """A median of the right-hand side is such a bound here: 1e11 was called optimal with half of the value."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    theta = torch.tensor([[3.0, 4.0, 1.0]], dtype=torch.float64)

    def solved(constraints: list[cp.Constraint]) -> Solution:
        cost = cp.sum(x) + 4 * cp.pos(cp.sum(y) - cp.sum(x)) + 0.1 * cp.abs(x[0] - x[1])
        return dro.DecisionProblem(cost, constraints, dro.MomentSet(y, [moment])).solve(theta)

    solution, right = solved([x <= big]), solved([]).objective
    assert bool(solution.ok.all()) or (solution.status == int(dro.Status.FAILED)).all()
    if bool(solution.ok.all()):
        assert_six_digits(solution.objective, right)


CURVES: dict[str, Callable[[cp.Variable, float], list[cp.Constraint]]] = {
    "squares": lambda x, r: [cp.sum_squares(x) <= r**2],
    "form": lambda x, r: [cp.quad_form(x, np.array([[2.0, 0.5], [0.5, 1.0]])) <= r**2],
    "over a number": lambda x, r: [cp.quad_over_lin(x, r) <= r],
    "each square": lambda x, r: [cp.square(x) <= r**2],
    "norm and squares": lambda x, r: [cp.norm(x) <= r, cp.sum_squares(x) <= 4 * r**2],
    "squares and a line": lambda x, r: [cp.sum_squares(x) + r * cp.sum(x) <= r**2],
    "three halves": lambda x, r: [cp.sum(cp.power(cp.abs(x), 1.5)) <= r**1.5],
    "fourth powers": lambda x, r: [cp.sum(cp.power(x, 4)) <= r**4],
    "geometric mean": lambda x, r: [cp.geo_mean(x) >= r, x <= 3 * r],
    "roots": lambda x, r: [cp.sum(cp.sqrt(x)) >= r**0.5, x <= 3 * r],
    "third norm": lambda x, r: [cp.pnorm(x, 3) <= r],
    "inverses": lambda x, r: [cp.inv_pos(x) <= 1 / r, x <= 3 * r],
    "Huber": lambda x, r: [cp.sum(cp.huber(x, r)) <= r**2],
}
"""Constraints of a user's own on a decision of size r: CVXPY writes each as cones, most of them with a one in it."""


@pytest.mark.parametrize("curve", CURVES)
def test_constraints_of_one_s_own_follow_their_size(curve: str) -> None:
    """The decision is of size r, and so is its cost -(y @ x): value and gradient follow from 1e-8 to 1e8."""

    def found(radius: float) -> tuple[Tensor, Tensor]:
        y, x = dro.Uncertain(2), cp.Variable(2)
        problem = dro.DecisionProblem(-(y @ x), CURVES[curve](x, radius), dro.MomentSet(y, [m.SquaredNorm()]))
        theta = torch.tensor([[3.0, 4.0, 1.0]], dtype=torch.float64, requires_grad=True)
        solution = problem.solve(theta)
        assert solution.statuses[0] == Status.OPTIMAL
        (gradient,) = torch.autograd.grad(solution.objective.sum(), theta)
        return solution.objective.detach() / radius, gradient / radius

    value, gradient = found(1.0)
    if curve == "squares":
        # -(‖μ‖ - √σ) r in closed form.
        assert_six_digits(value, torch.tensor([-4.0]).double())
    for radius in (1e-8, 1e-6, 1e-5, 1e-3, 1e3, 1e5, 1e8):
        scaled, slope = found(radius)
        assert_six_digits(scaled, value)
        torch.testing.assert_close(slope, gradient, rtol=1e-4, atol=1e-6)


# --- Wasserstein balls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("norm", "dual"), [(1, np.inf), (2, 2), (np.inf, 1)])
def test_wasserstein_radii(norm: float, dual: float, order: int, size: float) -> None:
    """One piece: the sample mean plus the radius times the dual norm of the decision, for both orders."""
    radius = torch.logspace(-12, 3, 6, dtype=torch.float64)[:, None]
    centres = size * torch.tensor([[0.5, 1.5], [2.0, 1.0], [1.0, 0.2]], dtype=torch.float64)
    nominal = centres.expand(6, 3, 2), torch.tensor([0.5, 0.3, 0.2]).double().expand(6, 3)
    at = torch.tensor([0.8, -0.3], dtype=torch.float64)
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(-y @ x, [], dro.Wasserstein(y, 3, norm, order))
    expected = -(nominal[1][0] @ centres) @ at + radius[:, 0] * at.norm(p=dual)
    assert_six_digits(problem.worst_case_cost({x: at.expand(6, 2)}, radius, nominal), expected)
    # Two pieces, order 1: the cost is Lipschitz, and some distant mass moves along its steepest slope.
    if order == 1:
        z = cp.Variable(1)
        steep = dro.DecisionProblem(cp.maximum(3 * (y[0] - z[0]), z[0] - y[0]), [], dro.Wasserstein(y, 3, norm, 1))
        level = torch.full((6, 1), 0.8 * size, dtype=torch.float64)
        mean = (nominal[1][0] * torch.maximum(3 * (centres[:, 0] - 0.8 * size), 0.8 * size - centres[:, 0])).sum()
        assert_six_digits(steep.worst_case_cost({z: level}, radius, nominal), mean + 3 * radius[:, 0])


# --- Small numbers beside large ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("decision", "money"), [(1e6, 1e-6), (1e7, 1e-7), (1e9, 1e-9), (1e-8, 1e8), (1e12, 1.0)])
def test_a_cost_in_millions_of_decisions_in_millionths(decision: float, money: float) -> None:
    """Prices of 1e-14 are no rounding: 0.3x + sup E(1.2 - xy)⁺ with |y - 1| ≤ 0.1 in the mean is 0.48 at x = 1.2."""
    y, x = dro.Uncertain(1, dro.support.Box(0.5, 1.5)), cp.Variable(1, nonneg=True)
    short = cp.pos(1.2 - cp.sum(cp.multiply(y, x)) / decision)
    problem = dro.DecisionProblem(
        money * (0.3 * cp.sum(x) / decision + short), [x <= 100 * decision], dro.MomentSet(y, [m.Norm(1)])
    )
    theta = torch.tensor([[1.0, 0.1]], dtype=torch.float64, requires_grad=True)
    solution = problem.solve(theta)
    assert solution.statuses == [Status.OPTIMAL]
    assert_six_digits(solution.objective / money, torch.tensor([0.48], dtype=torch.float64))
    assert_six_digits(solution.variable(x) / decision, torch.tensor([[1.2]], dtype=torch.float64))
    (slope,) = torch.autograd.grad(solution.objective.sum() / money, theta)
    assert_six_digits(slope[0, 1:], torch.tensor([1.2], dtype=torch.float64))


# --- Sizes of programs ----------------------------------------------------------------------------------------------


def soc_three(dim: int) -> ConeProgram:
    """A newsvendor under both moments of the paper."""
    y, x = dro.Uncertain(dim, dro.support.Nonnegative()), cp.Variable(dim, nonneg=True)
    ambiguity = dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])
    return dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], ambiguity).program


def test_newsvendor_grows_linearly() -> None:
    small, middle, large = (soc_three(dim) for dim in (10, 20, 40))
    for size in ("rows", "columns", "nonzeros"):
        a, b, c = (getattr(program, size) for program in (small, middle, large))
        assert c - b == 2 * (b - a)
        assert c <= 80 * 40


def test_portfolio_has_no_multipliers_left() -> None:
    """One piece on all of space: a program in x alone, with one cone where the bound is joint."""
    y, x = dro.Uncertain(30), cp.Variable(30, nonneg=True)
    constraints = [cp.sum(x) == 1]
    grouped = dro.DecisionProblem(-y @ x, constraints, dro.MomentSet.grouped(y, 1)).program
    assert (grouped.columns, grouped.rows) == (30, 31)
    assert grouped.cones.polyhedral
    joint = dro.DecisionProblem(-y @ x, constraints, dro.MomentSet(y, [m.SquaredNorm()])).program
    assert joint.cones.soc == (31,)
    assert (joint.columns, joint.rows) == (31, 62)
