"""The algebra of ambiguity sets: larger sets cost more, units and names of coordinates do not matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import drolayers as dro
from drolayers.ambiguity.base import AmbiguitySet

m = dro.moments
SLACK = 1e-6
DIM = 2

numbers = st.floats(-2.0, 2.0).map(lambda v: round(v, 3))
positives = st.floats(0.05, 3.0).map(lambda v: round(v, 3))
vectors = st.tuples(numbers, numbers)
few = settings(derandomize=True, deadline=None, max_examples=10)


class Worst:
    """f(x, θ) of a fixed cost of two coordinates: tilted maxima and a bilinear term."""

    def __init__(self, ambiguity: Callable[[dro.Uncertain], AmbiguitySet]) -> None:
        y, self.x = dro.Uncertain(DIM), cp.Variable(DIM)
        cost = cp.sum(cp.maximum(3 * (y - self.x), self.x - y)) + 0.5 * y @ self.x
        self.problem = dro.DecisionProblem(cost, [], ambiguity(y))

    def __call__(self, x: Sequence[float], *theta: Sequence[float]) -> list[float]:
        rows = torch.tensor(theta, dtype=torch.float64)
        at = torch.tensor(x, dtype=torch.float64).expand(len(rows), DIM)
        return self.problem.worst_case_cost({self.x: at}, rows).tolist()


def moment_set(*moments: m.Moment) -> Worst:
    return Worst(lambda y: dro.MomentSet(y, moments))


KINDS: dict[str, tuple[Callable[[], m.Moment], int]] = {
    # A moment and the length of its centre.
    "l1": (lambda: m.Norm(1), 2),
    "l2": (lambda: m.Norm(2), 2),
    "linf": (lambda: m.Norm(np.inf), 2),
    "l3": (lambda: m.Norm(3), 2),
    "square": (m.SquaredNorm, 2),
    "sum": (lambda: m.Norm(1) + m.SquaredNorm(), 4),
    "maximum": (lambda: m.maximum(m.Norm(1), m.SquaredNorm()), 4),
    "multiple": (lambda: 2.0 * m.SquaredNorm(), 2),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_monotone_in_sigma(kind: str) -> None:
    make, length = KINDS[kind]
    worst = moment_set(make())

    @few
    @given(vectors, vectors, positives, positives)
    def check(x: tuple[float, float], centre: tuple[float, float], sigma: float, more: float) -> None:
        middle = list(centre) * (length // 2)
        low, high = worst(x, [*middle, sigma], [*middle, sigma + more])
        assert np.isfinite(low)
        assert low <= high + SLACK

    check()


@pytest.mark.parametrize(("norm", "order"), [(1, 1), (2, 1), (np.inf, 1), (1, 2), (2, 2), (np.inf, 2)])
def test_monotone_in_the_radius(norm: float, order: int) -> None:
    y, x = dro.Uncertain(DIM), cp.Variable(DIM)
    cost = cp.sum(cp.maximum(3 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 3, norm, order))

    @few
    @given(vectors, st.tuples(vectors, vectors, vectors), positives, positives)
    def check(at: tuple[float, float], atoms: tuple[tuple[float, float], ...], radius: float, more: float) -> None:
        nominal = torch.tensor(atoms).double().expand(3, 3, 2), torch.tensor([0.2, 0.5, 0.3]).double().expand(3, 3)
        radii = torch.tensor([[1e-9], [radius], [radius + more]], dtype=torch.float64)
        decision = {x: torch.tensor(at).double().expand(3, 2)}
        none, low, high = problem.worst_case_cost(decision, radii, nominal).tolist()
        sample = sum(
            w * float(problem.loss({x: torch.tensor([at])}, torch.tensor([a])))
            for w, a in zip([0.2, 0.5, 0.3], atoms, strict=True)
        )
        assert none == pytest.approx(sample, abs=1e-5)
        assert none - SLACK <= low <= high + SLACK

    check()


def test_fewer_moments_never_cost_less() -> None:
    both, l1, square = moment_set(m.Norm(1), m.SquaredNorm()), moment_set(m.Norm(1)), moment_set(m.SquaredNorm())

    @few
    @given(vectors, vectors, positives, positives)
    def check(x: tuple[float, float], centre: tuple[float, float], first: float, second: float) -> None:
        (small,) = both(x, [*centre, first, *centre, second])
        (by_l1,), (by_square,) = l1(x, [*centre, first]), square(x, [*centre, second])
        assert small <= min(by_l1, by_square) + SLACK

    check()


def test_a_smaller_support_never_costs_more() -> None:
    y = [dro.Uncertain(DIM, s) for s in (None, dro.support.Box(-3.0, 3.0), dro.support.Box(-2.5, 2.5))]
    x = [cp.Variable(DIM) for _ in y]
    problems = [
        dro.DecisionProblem(cp.sum(cp.maximum(3 * (b - a), a - b)), [], dro.MomentSet(b, [m.SquaredNorm()]))
        for a, b in zip(x, y, strict=True)
    ]

    @few
    @given(vectors, vectors, positives)
    def check(at: tuple[float, float], centre: tuple[float, float], sigma: float) -> None:
        theta = torch.tensor([[*centre, sigma]], dtype=torch.float64)
        f = [float(p.worst_case_cost({v: torch.tensor([at])}, theta)) for p, v in zip(problems, x, strict=True)]
        assert f[2] - SLACK <= f[1] <= f[0] + SLACK

    check()


def test_sums_multiples_and_maxima() -> None:
    """Bounding g₁ and g₂ bounds their sum and maximum, and a common bound of the maximum bounds both."""
    each, total = moment_set(m.Norm(1), m.SquaredNorm()), moment_set(m.Norm(1) + m.SquaredNorm())
    largest, twice, once = (
        moment_set(m.maximum(m.Norm(1), m.SquaredNorm())),
        moment_set(2.0 * m.SquaredNorm()),
        moment_set(m.SquaredNorm()),
    )
    nested = moment_set(1.0 * (m.Norm(1) + (0.5 * m.SquaredNorm() + 0.5 * m.SquaredNorm())))

    @few
    @given(vectors, vectors, vectors, positives, positives)
    def check(x: tuple[float, float], a: tuple[float, float], b: tuple[float, float], s: float, t: float) -> None:
        # Half a unit of room, so that the two balls meet.
        s, t = s + sum(abs(u - v) for u, v in zip(a, b, strict=True)), t + 0.5
        (apart,), (together,) = each(x, [*a, s, *b, t]), total(x, [*a, *b, s + t])
        assert apart <= together + SLACK
        (common,), (wide,) = each(x, [*a, s, *b, s]), largest(x, [*a, *b, s])
        # E max(g₁, g₂) ≤ s is the stronger statement.
        assert wide <= common + SLACK
        assert wide <= total(x, [*a, *b, 2 * s])[0] + SLACK
        np.testing.assert_allclose(twice(x, [*a, 2 * t]), once(x, [*a, t]), rtol=1e-6, atol=SLACK)
        np.testing.assert_allclose(nested(x, [*a, *b, *b, s + t]), [together], rtol=1e-5, atol=SLACK)

    check()


@pytest.mark.parametrize(("kind", "degree"), [("l1", 1), ("l2", 1), ("linf", 1), ("square", 2)])
def test_scaling_and_shifting_y(kind: str, degree: int) -> None:
    """y → cy + v with x → cx + v: the newsvendor's cost is multiplied by c."""
    y, x = dro.Uncertain(DIM), cp.Variable(DIM)
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], dro.MomentSet(y, [KINDS[kind][0]()]))

    @few
    @given(vectors, vectors, positives, positives, vectors)
    def check(
        at: tuple[float, float], centre: tuple[float, float], sigma: float, c: float, v: tuple[float, float]
    ) -> None:
        u, mu, shift = (torch.tensor(t, dtype=torch.float64) for t in (at, centre, v))
        theta = torch.stack(
            [torch.cat([mu, torch.tensor([sigma])]), torch.cat([c * mu + shift, torch.tensor([sigma * c**degree])])]
        )
        plain, moved = problem.worst_case_cost({x: torch.stack([u, c * u + shift])}, theta)
        assert float(moved) == pytest.approx(c * float(plain), rel=1e-6, abs=SLACK)

    check()


@pytest.mark.parametrize("kind", ["l1", "l2", "l3", "square", "sum", "maximum"])
def test_coordinates_have_no_order(kind: str) -> None:
    make, length = KINDS[kind]
    worst = moment_set(make())

    @few
    @given(vectors, st.tuples(vectors, vectors), positives)
    def check(x: tuple[float, float], centres: tuple[tuple[float, float], ...], sigma: float) -> None:
        # The first centre must be admitted by a member around the second.
        sigma += sum((a - b) ** 2 for a, b in zip(*centres, strict=True))
        middle = centres[: length // 2]
        (straight,) = worst(x, [*(v for c in middle for v in c), sigma])
        (turned,) = worst(x[::-1], [*(v for c in middle for v in c[::-1]), sigma])
        assert turned == pytest.approx(straight, rel=1e-6, abs=SLACK)

    check()


def test_index_and_groups_agree() -> None:
    """One bound a coordinate: as groups of one, as two squares, and as two powers."""
    e = np.eye(DIM)
    forms = {
        "groups": (Worst(lambda y: dro.MomentSet.grouped(y, 1)), lambda c, s: [*c, *s]),
        "squares": (moment_set(m.SquaredNorm([0]), m.SquaredNorm([1])), lambda c, s: [c[0], s[0], c[1], s[1]]),
        "variances": (moment_set(m.Variance()), lambda c, s: [*c, *s]),
        "powers": (
            moment_set(m.AbsolutePower(2, mu=e[0]), m.AbsolutePower(2, mu=e[1])),
            lambda c, s: [c[0], s[0], c[1], s[1]],
        ),
        "norms": (
            moment_set(m.Norm(2, A=e[:1]), m.SquaredNorm([0]), m.SquaredNorm([1])),
            # A bound on E|y₀ - c₀| that says nothing new, since √ is concave.
            lambda c, s: [c[0], np.sqrt(s[0]) + 0.01, c[0], s[0], c[1], s[1]],
        ),
    }

    @few
    @given(vectors, vectors, st.tuples(positives, positives))
    def check(x: tuple[float, float], centre: tuple[float, float], sigma: tuple[float, float]) -> None:
        found = [worst(x, theta(centre, sigma))[0] for worst, theta in forms.values()]
        np.testing.assert_allclose(found[1:], found[0], rtol=1e-6, atol=SLACK)

    check()


# --- Names, shapes, packing -----------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[Callable[[dro.Uncertain], AmbiguitySet], dict[str, tuple[int, ...]]]] = {
    "both": (
        lambda y: dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]),
        {"0.mu": (4,), "0.sigma": (), "1.mu": (4,), "1.sigma": ()},
    ),
    "directions": (
        lambda y: dro.MomentSet(y, [m.Linear(), m.Absolute(), m.AbsolutePower(3), m.PositiveSquare()]),
        {
            **{"0.mu": (4,), "0.sigma": ()},
            **{"1.mu": (4,), "1.h": (), "1.sigma": ()},
            **{"2.mu": (4,), "2.h": (), "2.sigma": ()},
            **{"3.mu": (4,), "3.h": (), "3.sigma": ()},
        },
    ),
    "given": (
        lambda y: dro.MomentSet(y, [m.Absolute(mu=np.eye(4)[0]), m.SquaredNorm(sigma=1.0), m.Norm(2, mu=0.0)]),
        {"0.h": (), "0.sigma": (), "1.mu": (4,), "2.sigma": ()},
    ),
    "matrices": (
        lambda y: dro.MomentSet(y, [m.Norm(2, A=dro.Learn(3, 4)), m.Norm(1, A=np.ones((2, 4))), m.SquaredNorm([1, 3])]),
        {"0.A": (3, 4), "0.mu": (3,), "0.sigma": (), "1.mu": (2,), "1.sigma": (), "2.mu": (2,), "2.sigma": ()},
    ),
    "groups": (lambda y: dro.MomentSet.grouped(y, 3), {"mu": (4,), "sigma": (2,)}),
    "vectors": (
        lambda y: dro.MomentSet(y, [m.Mean(), m.Mean(sigma=None), m.Variance(size=3), m.Variance(mu=0.0)]),
        {"0.mu": (4,), "1.mu": (4,), "1.sigma": (4,), "2.mu": (4,), "2.sigma": (2,), "3.sigma": (4,)},
    ),
    "sums": (
        lambda y: dro.MomentSet(y, [m.Norm(1) + (m.Linear(mu=np.ones(4)) + 2 * (m.Norm(2) + m.Norm(2)))]),
        {"0.0.mu": (4,), "0.2.mu": (4,), "0.3.mu": (4,), "0.sigma": ()},
    ),
    "ball": (lambda y: dro.Wasserstein(y, 5), {"radius": ()}),
}


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_parameters_pack_and_unpack(name: str) -> None:
    make, expected = LAYOUTS[name]
    ambiguity = make(dro.Uncertain(4))
    assert ambiguity.parameters == expected
    assert list(ambiguity.parameters) == list(expected)
    assert ambiguity.size == sum(int(np.prod(shape)) for shape in expected.values())
    theta = torch.arange(3.0 * ambiguity.size).reshape(3, -1)
    parts = ambiguity.unpack(theta)
    assert {k: tuple(v.shape) for k, v in parts.items()} == {k: (3, *shape) for k, shape in expected.items()}
    shuffled = dict(reversed(list(parts.items())))
    assert torch.equal(ambiguity.pack(shuffled), theta)
    grown: Tensor = ambiguity.flat({k: v.requires_grad_() for k, v in parts.items()})
    grown.sum().backward()
    assert all(bool((v.grad == 1.0).all()) for v in parts.values())
