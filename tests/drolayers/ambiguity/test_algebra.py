"""Factors are data: ``1.0 * m`` is m, ``c * m`` under cσ says what m says under σ; and what cannot be written."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers.errors import ModelError

m = dro.moments
E1, E2 = np.eye(2)
CONE = [[[2.0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 1]]], [[2.0, 2.4, 1.0, -1.0]]

# A moment and parameters, the bounds last; outcomes of size one around (1, 1.2).
MOMENTS: dict[str, tuple[Callable[[], m.Moment], list[float]]] = {
    "linear": (m.Linear, [0.3, 1.0, 1.9]),
    "minus linear": (lambda: -m.Linear(), [0.3, 1.0, -1.2]),
    "absolute": (m.Absolute, [0.5, 1.0, 1.6, 0.7]),
    "absolute, centred": (lambda: m.Absolute(h=0.0), [0.5, 1.0, 1.9]),
    "power 1.5": (lambda: m.AbsolutePower(1.5), [0.5, 1.0, 1.6, 0.7]),
    "power 3": (lambda: m.AbsolutePower(3, mu=E2), [1.1, 0.5]),
    "positive square": (m.PositiveSquare, [1.0, 0.1, 0.8, 0.5]),
    "norm 1": (lambda: m.Norm(1), [0.9, 1.1, 0.6]),
    "norm 2": (lambda: m.Norm(2), [0.9, 1.1, 0.6]),
    "norm 3": (lambda: m.Norm(3), [0.9, 1.1, 0.6]),
    "image": (lambda: m.Norm(2, A=[[1.0, 0.4], [-0.3, 1.0]]), [1.5, 0.9, 0.6]),
    "learnt image": (lambda: m.Norm(np.inf, A=dro.Learn(2, 2)), [1.0, 0.4, -0.3, 1.0, 1.5, 0.9, 0.6]),
    "squared norm": (m.SquaredNorm, [0.9, 1.1, 0.6]),
    "squared norm by index": (lambda: m.SquaredNorm([1]), [1.1, 0.6]),
    "mean": (lambda: m.Mean(sigma=None), [0.9, 1.1, 0.2, 0.3]),
    "variance": (m.Variance, [0.9, 1.1, 0.6, 0.4]),
    "pairs": (lambda: m.Variance(size=2), [0.9, 1.1, 0.6]),
    "conic": (lambda: m.Conic(*CONE), [0.7]),
    "sum": (lambda: m.Norm(1) + m.Norm(2), [0.9, 1.1, 1.0, 1.2, 1.3]),
    "sum of squares": (lambda: m.SquaredNorm([0]) + 3 * m.SquaredNorm([1]), [0.9, 1.1, 1.3]),
    "sum of degrees": (lambda: m.SquaredNorm() + 0.5 * m.Norm(1), [0.9, 1.1, 1.0, 1.2, 1.3]),
    "sum with linear": (lambda: m.SquaredNorm() - m.Linear(mu=E1), [0.9, 1.1, 0.2]),
    "sum of linear": (lambda: m.Linear(mu=E1) + m.Linear(mu=E2), [2.4]),
    "maximum": (lambda: m.maximum(m.Norm(1), 2.0 * m.Norm(np.inf)), [0.9, 1.1, 1.0, 1.2, 1.3]),
    "maximum of degrees": (lambda: m.maximum(m.SquaredNorm(), m.Norm(1)), [0.9, 1.1, 1.0, 1.2, 1.3]),
    "nested": (lambda: m.maximum(m.Norm(1) + m.Norm(2), m.SquaredNorm()), [0.9, 1.1, 1.0, 1.2, 0.9, 1.1, 1.9]),
}


class Worst:
    """A newsvendor, and a portfolio of one piece, under a moment beside a square."""

    def __init__(self, moment: m.Moment, kind: str, beside: bool = True) -> None:
        y, self.x = dro.Uncertain(2), cp.Variable(2)
        cost = -y @ self.x if kind == "portfolio" else cp.sum(cp.maximum(3 * (y - self.x), self.x - y))
        rules = [cp.sum(self.x) == 1, self.x >= 0] if kind == "portfolio" else []
        self.beside = [1.0, 1.2, 0.8] if beside else []
        self.ambiguity = dro.MomentSet(y, [moment, m.SquaredNorm()] if beside else [moment])
        self.problem = dro.DecisionProblem(cost, rules, self.ambiguity)

    @property
    def size(self) -> tuple[int, int, int]:
        program = self.problem.program
        return program.rows, program.columns, program.nonzeros

    def __call__(self, theta: list[float], bounds: int = 0, factor: float = 1.0) -> tuple[list[str], Tensor]:
        """Statuses and values of an optimum and of a decision, the last bounds multiplied."""
        own = [*theta[: len(theta) - bounds], *[factor * t for t in theta[len(theta) - bounds :]]]
        at = torch.tensor([[*own, *self.beside]], dtype=torch.float64)
        found = self.problem.solve(at)
        cost = self.problem.worst_case_cost({self.x: torch.tensor([[0.4, 0.6]]).double()}, at)
        return [status.name for status in found.statuses], torch.cat([found.objective, cost])


@pytest.mark.parametrize("kind", ["newsvendor", "portfolio"])
@pytest.mark.parametrize("name", list(MOMENTS))
def test_one_times_a_moment_is_the_moment(name: str, kind: str) -> None:
    make, theta = MOMENTS[name]
    plain, once = Worst(make(), kind), Worst(1.0 * make() / 1, kind)
    assert plain.size == once.size
    (status, value), (other, same) = plain(theta), once(theta)
    assert status == other
    torch.testing.assert_close(same, value, rtol=0, atol=0)
    moment = make()
    assert 1 * moment is moment


@pytest.mark.parametrize("kind", ["newsvendor", "portfolio"])
@pytest.mark.parametrize("name", list(MOMENTS))
def test_a_factor_belongs_to_the_bound(name: str, kind: str) -> None:
    make, theta = MOMENTS[name]
    plain = Worst(make(), kind)
    bounds = plain.ambiguity.moments[0].size
    status, value = plain(theta)
    assert status == ["OPTIMAL"]
    for factor, moment in ((2.0, 2 * make()), (1e3, make() * 1e3), (0.25, make() / 4)):
        times = Worst(moment, kind)
        assert times.size == plain.size
        other, found = times(theta, bounds, factor)
        assert other == status
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["linear", "minus linear", "sum of linear", "mean"])
def test_minus_what_is_affine(name: str) -> None:
    """-m ≤ -σ is the other side of m ≤ σ; both sides make an equation."""
    make, _ = MOMENTS[name]
    minus = -make()
    points = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sets = [dro.MomentSet(dro.Uncertain(2), [moment]) for moment in (make(), minus, -2 * make(), -minus)]
    theta = torch.randn(1, sets[0].size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, minus, double, same = (found.values(theta, points[None]) for found in sets)
    torch.testing.assert_close(minus, -first)
    torch.testing.assert_close(double, -2 * first)
    torch.testing.assert_close(same, first)


def test_sums_are_flat_lists() -> None:
    parts = [m.Norm(1), m.SquaredNorm(), m.Norm(2)]
    y = dro.Uncertain(2)
    expected = {"0.0.mu": (2,), "0.1.mu": (2,), "0.2.mu": (2,), "0.sigma": ()}
    for whole in (sum(parts), parts[0] + (parts[1] + parts[2]), parts[0] + parts[1] + parts[2], m.maximum(*parts)):
        assert dro.MomentSet(y, [whole]).parameters == expected
    assert dro.MomentSet(y, [m.maximum(m.maximum(*parts[:2]), parts[2])]).parameters == expected
    assert 0 + parts[0] is parts[0]
    points = torch.randn(1, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = torch.rand(1, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nested = dro.MomentSet(y, [parts[0] + 2 * (3 * parts[1] + parts[2])]).values(theta, points)
    each = dro.MomentSet(y, parts)
    values = each.values(each.flat({f"{i}.mu": theta[:, 2 * i : 2 * i + 2] for i in range(3)} | ones(3)), points)
    torch.testing.assert_close(nested[..., 0], values @ torch.tensor([1.0, 6.0, 2.0]).double())


def ones(count: int) -> dict[str, Tensor]:
    """Bounds of one."""
    return {f"{i}.sigma": torch.ones(1).double() for i in range(count)}


def test_numbers_of_all_kinds() -> None:
    for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2), Fraction(2)):
        for moment in (two * m.Norm(1), m.Norm(1) * two, m.Norm(1) / (1 / two)):
            assert moment.factor == 2.0
    assert (2 * (3 * m.Norm(1))).factor == 6.0
    # An equation is one with any factor.
    assert (2 * m.Mean()).factor == 2.0


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "minus a norm": (lambda: -m.Norm(2), "write a positive factor"),
    "minus a maximum": (lambda: -m.maximum(m.Linear(), m.Linear()), "write a positive factor"),
    "minus a convex sum": (lambda: -(m.Linear() + m.Norm(1)), "write a positive factor"),
    "minus cones": (lambda: m.Linear() - m.Conic(*CONE), "write a positive factor"),
    "convex difference": (lambda: m.SquaredNorm() - m.Norm(1), "write a positive factor"),
    "negative factor": (lambda: -0.5 * m.SquaredNorm(), "write a positive factor"),
    "zero": (lambda: 0 * m.Norm(1), "not zero, not 0: leave the moment out"),
    "nan": (lambda: float("nan") * m.Norm(1), "must be finite"),
    "infinity": (lambda: m.Norm(1) * np.inf, "must be finite"),
    "divided by zero": (lambda: m.Norm(1) / 0, "not zero"),
    "product underflows": (lambda: 1e-200 * (1e-200 * m.Norm(1)), "not zero"),
    "truth": (lambda: True * m.Norm(1), "one number only"),
    "text": (lambda: "2" * m.Norm(1), "one number only"),
    "list": (lambda: [1.0, 2.0] * m.Norm(1), "one number only"),
    "array": (lambda: np.ones(2) * m.Norm(1), "one number only"),
    "tensor": (lambda: torch.tensor(2.0) * m.Norm(1), "one number only"),
    "product": (lambda: m.Norm(1) * m.Norm(1), "one number only"),
    "quotient": (lambda: m.Norm(1) / m.Norm(1), "one number only"),
    "reciprocal": (lambda: 1 / m.Norm(1), "not convex"),
    "builtin maximum": (lambda: max([m.Norm(1), m.Norm(2)]), "maximum(first, second)"),
    "comparison": (lambda: m.Norm(1) <= 3.0, "bounded(moment, sigma)"),
    "comparison from the right": (lambda: np.float64(3.0) >= m.Norm(1), "bounded(moment, sigma)"),
    "absolute value": (lambda: abs(m.Linear()), "write Absolute(mu)"),
    "constant of CVXPY": (lambda: cp.Constant(2) * m.Norm(1), "as in 2 * Norm(1)"),
    "atom of CVXPY": (lambda: cp.abs(m.Norm(1)), "no number or CVXPY expression"),
    "power": (lambda: m.Norm(2) ** 2, "write SquaredNorm"),
    "factor of a bounded": (lambda: 2 * m.Norm(1, sigma=1.0), "write bounded(2 * moment, sigma)"),
    "minus a bounded": (lambda: -m.Linear(sigma=1.0), "write bounded(-1 * moment, sigma)"),
    "sum with a number": (lambda: m.Norm(1) + 3.0, "a number belongs to sigma"),
    "sum with an array": (lambda: np.ones(2) + m.Norm(1), "a number belongs to sigma"),
    "less a number": (lambda: m.Norm(1) - 3.0, "a number belongs to sigma"),
    "sum of bounded": (lambda: m.Norm(1, sigma=1.0) + m.Norm(2), "write bounded(whole, sigma)"),
    "sum of vectors": (lambda: m.Variance() + m.Norm(2), "list them beside it"),
    "maximum of vectors": (lambda: m.maximum(m.Mean(), m.Norm(2)), "list them beside it"),
    "maximum of nothing": (m.maximum, "needs at least one"),
    "maximum of a list": (lambda: m.maximum([m.Norm(1), m.Norm(2)]), "maximum(*list)"),
    "maximum with a number": (lambda: m.maximum(m.Linear(), 0.0), "a number belongs to sigma"),
    "negative mean bound": (lambda: dro.MomentSet(dro.Uncertain(2), [m.Mean(sigma=-1.0)]), "cannot be [-1.0]"),
    "bounds of another length": (
        lambda: dro.MomentSet(dro.Uncertain(2), [m.Mean(sigma=[1.0, 2, 3])]),
        "Moment 0 has 2 bounds, but sigma has 3 values",
    ),
    "centre of another length": (lambda: dro.MomentSet(dro.Uncertain(2), [m.Variance(mu=[1.0, 2, 3])]), "shape (2,)"),
    "groups of none": (lambda: m.Variance(size=0), "positive whole number"),
}


def test_moments_print_what_users_write() -> None:
    """Code that makes them again, but for what was given."""
    made = [
        *("Linear()", "-Linear()", "Absolute()", "AbsolutePower(3)", "AbsolutePower(1.5)", "PositiveSquare()"),
        *("Norm(1)", "Norm(inf)", "2 * Norm(2)", "SquaredNorm()", "SquaredNorm([0, 2])", "Mean()", "Variance()"),
        *("Variance(size=2)", "(Norm(1) + 0.5 * SquaredNorm())", "maximum(Absolute(), 2 * Norm(2))"),
    ]
    for text in made:
        found = eval(text, {**vars(m), "inf": np.inf})
        assert repr(found) == text
        assert repr(found.over(3)) == text
    assert repr(+m.Linear()) == repr(-1 * -m.Linear()) == "Linear()"
    assert repr(m.Norm(2, A=np.eye(2))) == "Norm(2, A)"
    assert repr(m.Conic([np.eye(3)], [np.zeros(3)])) == "Conic(1 cones)"


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_in_one_sentence(name: str) -> None:
    build, sentence = REFUSED[name]
    with pytest.raises(ModelError, match=re.escape(sentence)) as caught:
        build()
    assert str(caught.value).count(". ") == 0
