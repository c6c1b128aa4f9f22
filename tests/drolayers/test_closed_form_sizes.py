"""Closed forms at sizes from 1e-6 to 1e+6, with coefficients that have a unit and coefficients that have none.

Outcomes, decisions and deviations are of the size; fixed coefficients are not: at size 1e+6 a square beside an absolute
value is everything, at 1e-6 it is nothing. An answer is right to six digits, or the item says that it failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import drolayers as dro
from drolayers import Status
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.nominal import Pair

m = dro.moments
SIZES = [10.0**k for k in range(-6, 7)]
REACH, STOCK = 0.7, 0.6
"""By how much, in units of the size, all the mass can move up, and the decision; outcomes are centred at one."""
GAP = 1.0 - STOCK


@dataclass(frozen=True)
class Form:
    """A set over one outcome whose worst case is known.

    Args:
        moments: at a size.
        theta: the free parameters, so that all the mass can be moved up by 0.7 sizes.
        value: the worst case of max(3(y - x), x - y) at x = 0.6 sizes; 3(0.4 + 0.7) sizes unless given.
        natural: whether its coefficients are of the unit of the outcomes, so that one size is like another.
    """

    moments: Callable[[float], list[m.Moment]]
    theta: Callable[[float], list[float]]
    value: Callable[[float], float] = lambda s: 3 * (GAP + REACH) * s
    natural: bool = True


def shifted(mean: float) -> float:
    """sup E max(3z, -z) over E z = d + e and E (z - d)² ≤ r²."""
    return GAP + mean + 2 * float(np.sqrt(REACH**2 + GAP**2 + 2 * GAP * mean))


def tilted(linear: float, size: float) -> float:
    """sup E max(3(d + e), -(d + e)) over E[e² + ae] ≤ r² + ar, by its dual in one multiplier.

    A piece αe + β against λ(e² + ae) has the supremum β + (α - λa)²/4λ.
    """
    r, d, a = REACH, GAP, linear / size

    def dual(log: float) -> float:
        price = np.exp(log)
        up, down = 3 * d + (3 - price * a) ** 2 / (4 * price), -d + (1 + price * a) ** 2 / (4 * price)
        return price * (r**2 + a * r) + max(up, down)

    # The multiplier is of the order of 1/(1 + a); the best of several starts, since the scale is not known beforehand.
    starts = np.linspace(-40.0, 10.0, 26)
    best = min(starts, key=dual)
    found = minimize_scalar(dual, bounds=(best - 2.0, best + 2.0), method="bounded", options={"xatol": 1e-13})
    return size * float(found.fun)


def cone(unit: float, size: float) -> m.Moment:
    """(y - μ)² ≤ u as [2t(y - μ); u - t²; u + t²] in the cone, for any t > 0."""
    return m.Conic([[[2.0 * unit, 0], [0, 1], [0, 1]]], [[2.0 * unit * size, unit**2, -(unit**2)]])


FORMS: dict[str, Form] = {
    # All the mass moves up as far as the bound allows: any symmetric moment costs 3(d + r), where it is σ at r.
    "square": Form(lambda s: [m.SquaredNorm()], lambda s: [s, (REACH * s) ** 2]),
    **{
        f"power {p:g}": Form(lambda s, p=p: [m.AbsolutePower(p, mu=[1.0])], lambda s, p=p: [s, (REACH * s) ** p])
        for p in (1.5, 3.0, 4.0)
    },
    "multiple of a square": Form(lambda s: [1e3 * m.SquaredNorm()], lambda s: [s, 1e3 * (REACH * s) ** 2]),
    "multiple of a power": Form(lambda s: [m.AbsolutePower(3, mu=[1.0]) / 1e3], lambda s: [s, (REACH * s) ** 3 / 1e3]),
    "one linear": Form(lambda s: [1.0 * m.Linear(mu=[1.0]), m.SquaredNorm()], lambda s: [2.0 * s, s, (REACH * s) ** 2]),
    # Scarf: max(3z, -z) = z + 2|z|, and E|z| ≤ √(E z²), which two points attain.
    "mean and variance": Form(
        lambda s: [m.Mean(), m.Variance()], lambda s: [s, s, (REACH * s) ** 2], lambda s: shifted(0.0) * s
    ),
    "mean within, and variance": Form(
        lambda s: [m.Mean(sigma=None), m.Variance()],
        lambda s: [s, 0.2 * s, s, (REACH * s) ** 2],
        lambda s: shifted(0.2) * s,
    ),
    "conic square": Form(lambda s: [cone(1.0, s)], lambda s: [(REACH * s) ** 2], natural=False),
    "conic square, own units": Form(lambda s: [cone(s, s)], lambda s: [(REACH * s) ** 2]),
    "square plus linear": Form(
        lambda s: [m.SquaredNorm() + m.Linear(mu=[1.0])],
        lambda s: [s, (REACH * s) ** 2 + (1 + REACH) * s],
        lambda s: tilted(1.0, s),
        natural=False,
    ),
    "square plus linear, own units": Form(
        lambda s: [m.SquaredNorm() + s * m.Linear(mu=[1.0])],
        lambda s: [s, (REACH**2 + 1 + REACH) * s**2],
        lambda s: tilted(s, s),
    ),
    "square plus absolute": Form(
        lambda s: [m.SquaredNorm() + m.Absolute(mu=[1.0])],
        lambda s: [s, s, (REACH * s) ** 2 + REACH * s],
        natural=False,
    ),
    "square plus absolute, own units": Form(
        lambda s: [m.SquaredNorm() + s * m.Absolute(mu=[1.0])],
        lambda s: [s, s, (REACH**2 + REACH) * s**2],
    ),
    "fourth power plus square": Form(
        lambda s: [m.AbsolutePower(4, mu=[1.0]) + m.SquaredNorm()],
        lambda s: [s, s, (REACH * s) ** 4 + (REACH * s) ** 2],
        natural=False,
    ),
    "larger of square and absolute": Form(
        lambda s: [m.maximum(m.SquaredNorm(), m.Absolute(mu=[1.0]))],
        lambda s: [s, s, max((REACH * s) ** 2, REACH * s)],
        natural=False,
    ),
    "larger of square and absolute, own units": Form(
        lambda s: [m.maximum(m.SquaredNorm(), s * m.Absolute(mu=[1.0]))],
        lambda s: [s, s, REACH * s**2],
    ),
}


def assert_right_or_failed(status: Status, found: float, expected: float) -> None:
    """Six digits, or four where the item says that it is inaccurate, or a failure that is told."""
    assert status.ok or status == Status.FAILED, status
    if status.ok:
        assert found == pytest.approx(expected, rel=1e-6 if status == Status.OPTIMAL else 1e-4, abs=0.0), status


def newsvendor(
    ambiguity: Callable[[dro.Uncertain], AmbiguitySet],
    size: float,
    dim: int = 1,
    support: dro.support.Support | None = None,
) -> tuple[dro.DecisionProblem, cp.Variable]:
    """The first outcome, with the stock given."""
    y, x = dro.Uncertain(dim, support), cp.Variable()
    cost = cp.maximum(3 * (y[0] - x), x - y[0])
    return dro.DecisionProblem(cost, [x == STOCK * size], ambiguity(y)), x


def check(
    problem: dro.DecisionProblem,
    x: cp.Variable,
    size: float,
    theta: list[float],
    nominal: Pair | None,
    expected: float,
    natural: bool,
) -> None:
    """Solved with the decision given, and evaluated at it."""
    row = torch.tensor([theta], dtype=torch.float64)
    solution = problem.solve(row, nominal)
    status = solution.statuses[0]
    assert_right_or_failed(status, float(solution.objective), expected)
    value = float(problem.worst_case_cost({x: torch.tensor([STOCK * size], dtype=torch.float64)}, row, nominal))
    # An evaluation has no status of its own: NaN is its failure.
    digits = 1e-6 if status == Status.OPTIMAL else 1e-4
    assert np.isnan(value) or value == pytest.approx(expected, rel=digits, abs=0.0)
    if natural:
        assert status == Status.OPTIMAL
        assert not np.isnan(value)


@pytest.mark.parametrize("size", SIZES[::2])
@pytest.mark.parametrize("name", list(FORMS))
def test_moments(name: str, size: float) -> None:
    form = FORMS[name]
    problem, x = newsvendor(lambda y: dro.MomentSet(y, form.moments(size)), size)
    check(problem, x, size, form.theta(size), None, form.value(size), form.natural)


@pytest.mark.parametrize("size", SIZES[1::2])
@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if not form.natural or "power" in name])
def test_moments_between(name: str, size: float) -> None:
    """The odd powers of ten, where it matters most."""
    test_moments(name, size)


@pytest.mark.parametrize("size", SIZES[::2])
def test_the_larger_of_square_and_linear(size: float) -> None:
    """sup E y over E max((y - μ)², y) ≤ σ: the largest point at which neither is above the bound."""
    y, x = dro.Uncertain(1), cp.Variable()
    ambiguity = dro.MomentSet(y, [m.maximum(m.SquaredNorm(), m.Linear(mu=[1.0]))])
    problem = dro.DecisionProblem(3 * (y[0] - x), [x == STOCK * size], ambiguity)
    bound = max((REACH * size) ** 2, (1 + REACH) * size)
    check(problem, x, size, [size, bound], None, 3 * (GAP + REACH) * size, natural=False)


def disc(size: float) -> dro.support.Support:
    """Within two sizes of (1, 1), by a cone of its own."""
    return dro.support.Conic([np.eye(3, 2)], [[size, size, -2.0 * size]])


def lifted_disc(size: float) -> dro.support.Support:
    """The same with a lifted bound on the distance."""
    return dro.support.Conic([np.eye(3), [[0.0, 0.0, -1.0]]], [[size, size, 0.0], [-2.0 * size]], lifted=1)


def squared_disc(size: float) -> dro.support.Support:
    """The same as a square below a constant, [2(y - c); r² - 1; r² + 1], with coefficients that have no unit."""
    square = 4.0 * size**2
    return dro.support.Conic([2.0 * np.eye(4, 2)], [[2.0 * size, 2.0 * size, 1.0 - square, -1.0 - square]])


@pytest.mark.parametrize("size", [*SIZES[::2], 1e-5, 1e5])
@pytest.mark.parametrize("support", [disc, lifted_disc, squared_disc])
@pytest.mark.parametrize("order", [1, 2])
def test_balls_on_conic_supports(support: Callable[[float], dro.support.Support], size: float, order: int) -> None:
    """All atoms are short, and all move up by the radius, well within the support."""
    problem, x = newsvendor(lambda y: dro.Wasserstein(y, 3, 2, order), size, 2, support(size))
    atoms = size * torch.tensor([[[0.9, 1.0], [1.2, 1.1], [1.0, 0.8]]], dtype=torch.float64)
    weights = torch.tensor([[0.3, 0.45, 0.25]], dtype=torch.float64)
    expected = 3 * (0.3 * 0.9 + 0.45 * 1.2 + 0.25 - STOCK + 0.3) * size
    check(problem, x, size, [0.3 * size], (atoms, weights), expected, natural=support is not squared_disc)


@pytest.mark.parametrize("support", [dro.support.Reals(), dro.support.Nonnegative()], ids=["reals", "nonnegative"])
@pytest.mark.parametrize("size", [1e-8, 1e-5, 1e-2, 1e2, 1e5, 1e8])
def test_scarf_orders(size: float, support: dro.support.Support) -> None:
    """Scarf's rule: x = μ + ½σ(√(b/h) - √(h/b)) at the cost σ√(bh); the worst points are positive."""
    short, hold, mean, deviation = 4.0, 0.7, 3.0, 1.2
    y, x = dro.Uncertain(1, support), cp.Variable()
    sets = [m.Linear(mu=[1.0]), m.Linear(mu=[-1.0]), m.SquaredNorm()]
    problem = dro.DecisionProblem(cp.maximum(short * (y[0] - x), hold * (x - y[0])), [x >= 0], dro.MomentSet(y, sets))
    theta = [mean * size, -mean * size, mean * size, (deviation * size) ** 2]
    solution = problem.solve(torch.tensor([theta], dtype=torch.float64))
    assert solution.statuses == [Status.OPTIMAL]
    assert float(solution.objective) / size == pytest.approx(deviation * np.sqrt(short * hold), rel=1e-6)
    order = mean + 0.5 * deviation * (np.sqrt(short / hold) - np.sqrt(hold / short))
    # The cost is flat around the order: it is as accurate as the root of what the cost is.
    assert float(solution.variable(x)) / size == pytest.approx(order, rel=1e-3)


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1e4, 1e8])
def test_a_newsvendor_of_several_products(size: float) -> None:
    """Both moments of the paper: orders grow as demand does."""
    y, x = dro.Uncertain(3, dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
    cost = 0.2 * cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]))
    theta = torch.tensor([[5.0, 6.0, 7.0, 2.0, 5.5, 6.0, 6.5, 3.0]], dtype=torch.float64)
    units = torch.tensor([size] * 7 + [size**2], dtype=torch.float64)
    one, other = problem.solve(theta), problem.solve(theta * units)
    assert other.statuses == [Status.OPTIMAL]
    torch.testing.assert_close(other.objective / size, one.objective, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(other.variable(x) / size, one.variable(x), rtol=1e-3, atol=0.0)


def test_the_dual_of_tilted_squares() -> None:
    """Against distributions of two atoms on a grid; and in closed form, where the lower piece does not matter."""
    assert tilted(1.0, 1e3) == pytest.approx(3 * (GAP + REACH) * 1e3, rel=1e-9)
    a, tau = 5.0, REACH**2 + 5.0 * REACH
    e = np.linspace(-8.0, 4.0, 1201)
    cost, use = np.maximum(3 * (GAP + e), -(GAP + e)), e**2 + a * e
    low, high = use <= tau, use > tau
    # Two atoms that together use up the bound.
    share = (use[high][None] - tau) / (use[high][None] - use[low][:, None])
    best = (share * cost[low][:, None] + (1 - share) * cost[high][None]).max()
    assert tilted(5.0, 1.0) == pytest.approx(max(best, cost[low].max()), rel=1e-4)
    assert tilted(5.0, 1.0) > 3 * (GAP + REACH) * (1 + 1e-3)
