"""A table of ambiguity sets in two dimensions, each with its moments written once more, plainly, in NumPy.

All sets have room around the point (1, 1.2), which lies inside every support of the table of problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet

Parameters = dict[str, np.ndarray]

POWERS = (1.0, 1.5, 2.0, 3.0)
NORMS = (1.0, 1.5, 2.0, 3.0, np.inf)
IMAGE = np.array([[1.0, 0.4], [-0.3, 1.0], [0.5, 0.5]])
E1, E2 = np.eye(2)
CENTRE = np.array([1.0, 1.2])
ATOMS = np.array([[0.6, 1.0], [1.4, 1.1], [0.9, 1.7]])
WEIGHTS = np.array([0.3, 0.45, 0.25])


@dataclass(frozen=True, eq=False)
class Events:
    """What is mixed: sets, given probabilities or None, the divergence that they are within, and supports as boxes."""

    sets: tuple[SetCase, ...]
    weights: np.ndarray | None
    kind: str | None
    boxes: tuple[tuple[np.ndarray, np.ndarray] | None, ...]

    @property
    def starts(self) -> np.ndarray:
        """The first scenario of every event."""
        return np.cumsum([0, *(3 if part.around else 1 for part in self.sets)])[:-1]

    def probabilities(self, t: Parameters) -> np.ndarray:
        """Those around which, or at which, they are."""
        return t["weights"] / t["weights"].sum() if self.weights is None else self.weights

    def parameters(self, t: Parameters, event: int) -> Parameters:
        """Those of one set."""
        return {n.removeprefix(f"{event}."): v for n, v in t.items() if n.startswith(f"{event}.")}

    def excess(self, event: int, y: np.ndarray) -> np.ndarray:
        """By how much points leave the support of an event."""
        if (box := self.boxes[event]) is None:
            return np.zeros(len(y))
        return np.maximum(np.maximum(box[0] - y, y - box[1]), 0).max(1)

    def make(self, parts: Callable[[SetCase, dro.Uncertain], AmbiguitySet], y: dro.Uncertain, u: float) -> dro.Mixture:
        """The mixture over outcomes u times as large."""
        boxes = [None if box is None else dro.support.Box(u * box[0], u * box[1]) for box in self.boxes]
        over = [y if box is None else y.within(box) for box in boxes]
        sets = [parts(part, event) for part, event in zip(self.sets, over, strict=True)]
        return dro.Mixture(sets, self.weights, self.kind)


@dataclass(frozen=True, eq=False)
class SetCase:
    """A set, parameters at which it has room, and what it bounds.

    Args:
        name: what test ids call it.
        make: the set over a given ``y``.
        base: parameters by their public names.
        moments: values ``(point, bound)`` at points ``(point, 2)``; None for a ball.
        sigma: the bounds.
        ball: norm and order of a Wasserstein ball.
        metric: the matrix by which its ways are measured, as it is used.
        fixed: coordinates that may not move in it.
        divergence: the kind of a ball of reweightings.
        gauge: of robust outcomes, the smallest multiple of the shape that holds points ``(point, 2)``.
        covariance: whether mean and second moment are bounded, in units of a factor.
        events: of a mixture.
        brief: whether certificates for all pairs with supports and costs do, in place of all triples.
    """

    name: str
    make: Callable[[dro.Uncertain], Any]
    base: Parameters
    moments: Callable[[Parameters, np.ndarray], np.ndarray] | None = None
    sigma: Callable[[Parameters], np.ndarray] | None = None
    ball: tuple[float, float] | None = None
    divergence: str | None = None
    gauge: Callable[[Parameters, np.ndarray], np.ndarray] | None = None
    covariance: bool = False
    metric: Callable[[Parameters], np.ndarray] | None = None
    fixed: tuple[int, ...] = ()
    events: Events | None = None
    brief: bool = False

    @property
    def around(self) -> bool:
        """Whether the set is a ball around a nominal distribution."""
        inner = self.events is not None and any(part.around for part in self.events.sets)
        return self.ball is not None or self.divergence is not None or inner

    def used(self, probabilities: np.ndarray, weights: np.ndarray) -> float:
        """What a reweighting uses of its radius."""
        assert self.divergence is not None
        return float(weights @ PHI[self.divergence](cp.Constant(probabilities / weights)).value)

    def lengths(self, t: Parameters, ways: np.ndarray) -> np.ndarray:
        """How long ways ``(way, 2)`` are; infinite where a coordinate moves that may not."""
        assert self.ball is not None
        moved, still = np.delete(ways, self.fixed, axis=1), ways[:, list(self.fixed)]
        moved = moved if self.metric is None else moved @ self.metric(t).T
        stuck = np.abs(still).max(1, initial=0.0) > 1e-6 * (1.0 + np.abs(ways).max(1))
        return np.where(stuck, np.inf, _norm(moved, self.ball[0]))

    def spent(self, t: Parameters, probabilities: np.ndarray, ways: np.ndarray) -> tuple[float, float]:
        """What is used of the radius, to the power of the order, and the radius; under order ∞ the longest way."""
        assert self.ball is not None
        lengths, order = self.lengths(t, ways), self.ball[1]
        if np.isinf(order):
            return float(lengths[probabilities > 0].max()), float(t["radius"])
        return float(probabilities @ lengths**order), float(t["radius"] ** order)

    def parameters(self, batch: int, seed: int = 0, spread: float = 0.04) -> list[Parameters]:
        """Parameters of a batch: the base ones, moved a little."""
        rng = np.random.default_rng(seed)
        return [
            {n: np.asarray(v) * (1 + spread * rng.uniform(-1, 1, np.shape(v))) for n, v in self.base.items()}
            for _ in range(batch)
        ]

    def nominal(self, batch: int, seed: int = 1) -> dro.Nominal | None:
        """Atoms and weights where the set needs them."""
        if not self.around:
            return None
        rng = np.random.default_rng(seed)
        weights = WEIGHTS + 0.05 * rng.uniform(-1, 1, (batch, 3))
        atoms = ATOMS + 0.1 * rng.uniform(-1, 1, (batch, 3, 2))
        return dro.Nominal(torch.as_tensor(atoms), torch.as_tensor(weights / weights.sum(1, keepdims=True)))

    def recession(self, parameters: Parameters, directions: np.ndarray) -> np.ndarray:
        """Lim g(sd)/s, taken far out."""
        assert self.moments is not None
        far = 1e9
        return self.moments(parameters, far * directions) / far


def stacked(parameters: list[Parameters]) -> dict[str, Tensor]:
    """θ by name for a batch."""
    return {n: torch.as_tensor(np.stack([p[n] for p in parameters])) for n in parameters[0]}


def _norm(u: np.ndarray, p: float) -> np.ndarray:
    return np.linalg.norm(u, p, axis=-1)


def _columns(*values: np.ndarray) -> np.ndarray:
    return np.stack(values, -1)


def _learnt(*positions: int) -> Callable[[Parameters], np.ndarray]:
    """The bounds of some moments, learnt."""
    return lambda t: np.array([t[f"{i}.sigma"] for i in positions])


def _plain(
    name: str,
    moments: Callable[[], list[m.Moment]],
    base: Parameters,
    values: Callable[[Parameters, np.ndarray], np.ndarray],
    sigma: Callable[[Parameters], np.ndarray] | None = None,
) -> SetCase:
    count = len(moments())
    return SetCase(name, lambda y: dro.MomentSet(y, moments()), base, values, sigma or _learnt(*range(count)))


def _equality() -> SetCase:
    """The mean of the first coordinate, by two Linear bounds that meet."""

    def moments() -> list[m.Moment]:
        return [m.Linear(mu=E1, sigma=1.1), m.Linear(mu=-E1, sigma=-1.1), m.Linear(), m.SquaredNorm(mu=CENTRE)]

    return _plain(
        "mean equality",
        moments,
        {"2.mu": np.array([0.3, 1.0]), "2.sigma": 1.7, "3.sigma": 0.8},
        lambda t, y: _columns(y[:, 0], -y[:, 0], y @ t["2.mu"], ((y - CENTRE) ** 2).sum(1)),
        lambda t: np.array([1.1, -1.1, t["2.sigma"], t["3.sigma"]]),
    )


def _linear() -> SetCase:
    """A box for the mean and a first absolute moment."""

    def moments() -> list[m.Moment]:
        return [m.Linear(mu=E1), m.Linear(mu=-E1), m.Linear(), m.Norm(1)]

    return _plain(
        "linear",
        moments,
        {
            "0.sigma": 1.2,
            "1.sigma": -0.8,
            "2.mu": np.array([0.3, 1.0]),
            "2.sigma": 1.7,
            "3.mu": np.array([0.9, 1.0]),
            "3.sigma": 1.1,
        },
        lambda t, y: _columns(y[:, 0], -y[:, 0], y @ t["2.mu"], _norm(y - t["3.mu"], 1)),
    )


def _absolute() -> SetCase:
    def moments() -> list[m.Moment]:
        return [m.Absolute(mu=E1), m.Absolute(), m.Absolute(mu=E2, h=1.3)]

    return _plain(
        "absolute",
        moments,
        {
            "0.h": 1.05,
            "0.sigma": 0.6,
            "1.mu": np.array([0.5, 1.0]),
            "1.h": 1.6,
            "1.sigma": 0.7,
            "2.sigma": 0.8,
        },
        lambda t, y: _columns(abs(y[:, 0] - t["0.h"]), abs(y @ t["1.mu"] - t["1.h"]), abs(y[:, 1] - 1.3)),
    )


def _power(p: float) -> SetCase:
    def moments() -> list[m.Moment]:
        return [m.AbsolutePower(p), m.AbsolutePower(p, mu=[1.0, -0.4])]

    return _plain(
        f"power {p:g}",
        moments,
        {"0.mu": np.array([0.4, 1.1]), "0.h": 1.7, "0.sigma": 0.6, "1.h": 0.5, "1.sigma": 0.7},
        lambda t, y: _columns(abs(y @ t["0.mu"] - t["0.h"]) ** p, abs(y @ np.array([1.0, -0.4]) - t["1.h"]) ** p),
    )


def _positive_square() -> SetCase:
    """Three directions that span the plane positively."""
    fixed = np.array([-0.5, -0.9])

    def moments() -> list[m.Moment]:
        return [m.PositiveSquare(), m.PositiveSquare(mu=fixed), m.PositiveSquare(h=0.5)]

    return _plain(
        "positive square",
        moments,
        {
            "0.mu": np.array([1.0, 0.1]),
            "0.h": 0.8,
            "0.sigma": 0.5,
            "1.h": -1.9,
            "1.sigma": 0.7,
            "2.mu": np.array([-0.6, 0.9]),
            "2.sigma": 0.4,
        },
        lambda t, y: _columns(
            np.maximum(y @ t["0.mu"] - t["0.h"], 0) ** 2,
            np.maximum(y @ fixed - t["1.h"], 0) ** 2,
            np.maximum(y @ t["2.mu"] - 0.5, 0) ** 2,
        ),
    )


def _norms(p: float) -> list[SetCase]:
    plain = _plain(
        f"norm {p:g}",
        lambda: [m.Norm(p)],
        {"0.mu": np.array([0.9, 1.1]), "0.sigma": 0.6},
        lambda t, y: _columns(_norm(y - t["0.mu"], p)),
    )
    image = _plain(
        f"image norm {p:g}",
        lambda: [m.Norm(p, A=IMAGE)],
        {"0.mu": IMAGE @ CENTRE + np.array([0.05, -0.05, 0.1]), "0.sigma": 0.7},
        lambda t, y: _columns(_norm(y @ IMAGE.T - t["0.mu"], p)),
    )
    learnt = _plain(
        f"learnt norm {p:g}",
        lambda: [m.Norm(p, A=dro.Learn(3, 2))],
        {"0.A": IMAGE, "0.mu": IMAGE @ CENTRE + np.array([0.05, -0.05, 0.1]), "0.sigma": 0.8},
        lambda t, y: _columns(_norm(y @ t["0.A"].T - t["0.mu"], p)),
    )
    return [plain, image, learnt]


def _squares() -> list[SetCase]:
    whole = _plain(
        "squared norm",
        lambda: [m.SquaredNorm()],
        {"0.mu": np.array([0.9, 1.1]), "0.sigma": 0.7},
        lambda t, y: _columns(((y - t["0.mu"]) ** 2).sum(1)),
    )
    parts = _plain(
        "squared norm by index",
        lambda: [m.SquaredNorm(1), m.SquaredNorm([0]), m.SquaredNorm(mu=CENTRE)],
        {"0.mu": np.array([1.1]), "0.sigma": 0.5, "1.mu": np.array([0.9]), "1.sigma": 0.6, "2.sigma": 0.9},
        lambda t, y: _columns((y[:, 1] - t["0.mu"]) ** 2, (y[:, 0] - t["1.mu"]) ** 2, ((y - CENTRE) ** 2).sum(1)),
    )
    grouped = SetCase(
        "grouped",
        lambda y: dro.MomentSet.grouped(y, 1),
        {"mu": np.array([0.9, 1.1]), "sigma": np.array([0.5, 0.3])},
        lambda t, y: (y - t["mu"]) ** 2,
        lambda t: np.asarray(t["sigma"]),
    )
    both = _plain(
        "first and second",
        lambda: [m.Norm(1), m.SquaredNorm()],
        {"0.mu": np.array([0.9, 1.1]), "0.sigma": 0.7, "1.mu": np.array([1.1, 1.2]), "1.sigma": 0.6},
        lambda t, y: _columns(_norm(y - t["0.mu"], 1), ((y - t["1.mu"]) ** 2).sum(1)),
    )
    return [whole, parts, grouped, both]


def _combinations() -> list[SetCase]:
    means = {"0.0.mu": np.array([0.9, 1.1]), "0.1.mu": np.array([1.1, 1.2])}
    mixed = _plain(
        "sum of degrees 2 and 1",
        lambda: [m.SquaredNorm() + 0.5 * m.Norm(1)],
        {**means, "0.sigma": 1.0},
        lambda t, y: _columns(((y - t["0.0.mu"]) ** 2).sum(1) + 0.5 * _norm(y - t["0.1.mu"], 1)),
    )
    squares = _plain(
        "sum of squares",
        lambda: [m.SquaredNorm(0) + 3.0 * m.SquaredNorm([1])],
        {"0.0.mu": np.array([0.9]), "0.1.mu": np.array([1.1]), "0.sigma": 0.9},
        lambda t, y: _columns((y[:, 0] - t["0.0.mu"][0]) ** 2 + 3 * (y[:, 1] - t["0.1.mu"][0]) ** 2),
    )
    tilted = _plain(
        "sum with a linear part",
        lambda: [m.Linear() + m.Norm(2) + m.Absolute(mu=[0.2, -1.0])],
        {
            "0.0.mu": np.array([0.2, -0.3]),
            "0.1.mu": np.array([0.9, 1.1]),
            "0.2.h": -1.0,
            "0.sigma": 0.9,
        },
        lambda t, y: _columns(
            y @ t["0.0.mu"] + _norm(y - t["0.1.mu"], 2) + abs(y @ np.array([0.2, -1.0]) - t["0.2.h"])
        ),
    )
    multiple = _plain(
        "multiple",
        lambda: [2.0 * m.Norm(2), 0.5 * m.SquaredNorm()],
        {"0.mu": np.array([0.9, 1.1]), "0.sigma": 1.2, "1.mu": np.array([1.1, 1.2]), "1.sigma": 0.4},
        lambda t, y: _columns(2 * _norm(y - t["0.mu"], 2), 0.5 * ((y - t["1.mu"]) ** 2).sum(1)),
    )
    largest = _plain(
        "maximum of norms",
        lambda: [m.maximum(m.Norm(1), 2.0 * m.Norm(np.inf))],
        {**means, "0.sigma": 0.9},
        lambda t, y: _columns(np.maximum(_norm(y - t["0.0.mu"], 1), 2 * _norm(y - t["0.1.mu"], np.inf))),
    )
    steepest = _plain(
        "maximum of degrees 2 and 1",
        lambda: [m.maximum(m.SquaredNorm(), m.Norm(1), m.Linear(mu=[1.0, 1.0]))],
        {**means, "0.sigma": 2.6},
        lambda t, y: _columns(
            np.maximum(np.maximum(((y - t["0.0.mu"]) ** 2).sum(1), _norm(y - t["0.1.mu"], 1)), y.sum(1))
        ),
    )
    powers = _plain(
        "maximum of powers",
        lambda: [m.maximum(m.AbsolutePower(3.0, mu=E1), m.AbsolutePower(3.0, mu=[0.3, 1.0]))],
        {"0.0.h": 1.0, "0.1.h": 1.4, "0.sigma": 0.5},
        lambda t, y: _columns(
            np.maximum(abs(y[:, 0] - t["0.0.h"]) ** 3, abs(y @ np.array([0.3, 1.0]) - t["0.1.h"]) ** 3)
        ),
    )
    return [mixed, squares, tilted, multiple, largest, steepest, powers]


def _tilted() -> list[SetCase]:
    """Learnt directions beside other degrees: a sum, a maximum, a multiple with a bound below zero, a difference."""
    direction, centre = np.array([0.3, -0.2]), np.array([0.9, 1.1])
    tilt = {"0.0.mu": direction, "0.1.mu": centre}
    added = _plain(
        "tilted sum",
        lambda: [m.Linear() + m.SquaredNorm()],
        {**tilt, "0.sigma": 0.8},
        lambda t, y: _columns(y @ t["0.0.mu"] + ((y - t["0.1.mu"]) ** 2).sum(1)),
    )
    largest = _plain(
        "tilted maximum",
        lambda: [m.maximum(m.Linear(), m.SquaredNorm())],
        {**tilt, "0.sigma": 0.9},
        lambda t, y: _columns(np.maximum(y @ t["0.0.mu"], ((y - t["0.1.mu"]) ** 2).sum(1))),
    )
    multiple = _plain(
        "tilted multiple",
        lambda: [0.8 * (m.PositiveSquare() + m.Linear()), m.SquaredNorm()],
        {
            **{"0.0.mu": np.array([1.0, 0.1]), "0.0.h": 0.8, "0.1.mu": np.array([-0.4, -0.3]), "0.sigma": -0.25},
            **{"1.mu": centre, "1.sigma": 0.7},
        },
        lambda t, y: _columns(
            0.8 * (np.maximum(y @ t["0.0.mu"] - t["0.0.h"], 0) ** 2 + y @ t["0.1.mu"]), ((y - t["1.mu"]) ** 2).sum(1)
        ),
    )
    nested = _plain(
        "tilted maximum of a square and a difference",
        lambda: [m.maximum(m.AbsolutePower(2, mu=E1), m.Norm(1) - 0.5 * m.Linear()), m.SquaredNorm(mu=CENTRE)],
        {"0.0.h": 1.0, "0.1.0.mu": centre, "0.1.1.mu": direction, "0.sigma": 0.8, "1.sigma": 0.7},
        lambda t, y: _columns(
            np.maximum(abs(y[:, 0] - t["0.0.h"]) ** 2, _norm(y - t["0.1.0.mu"], 1) - 0.5 * y @ t["0.1.1.mu"]),
            ((y - CENTRE) ** 2).sum(1),
        ),
    )
    return [added, largest, multiple, nested]


def _vectors() -> list[SetCase]:
    """Means from both sides and variances, each for all coordinates at once."""

    def sides(mu: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.concatenate([y - mu, mu - y], 1)

    learnt = {"1.mu": np.array([1.1, 1.2]), "1.sigma": np.array([0.5, 0.4])}
    equation = _plain(
        "mean and variance",
        lambda: [m.Mean(), m.Variance()],
        {"0.mu": np.array([1.0, 1.1]), **learnt},
        lambda t, y: np.concatenate([sides(t["0.mu"], y), (y - t["1.mu"]) ** 2], 1),
        lambda t: np.array([0, 0, 0, 0, *t["1.sigma"]]),
    )
    interval = _plain(
        "mean within, and variance",
        lambda: [m.Mean(sigma=None), m.Variance()],
        {"0.mu": np.array([0.9, 1.1]), "0.sigma": np.array([0.2, 0.15]), **learnt},
        lambda t, y: np.concatenate([sides(t["0.mu"], y), (y - t["1.mu"]) ** 2], 1),
        lambda t: np.array([*t["0.sigma"], *t["0.sigma"], *t["1.sigma"]]),
    )
    given = _plain(
        "mean given, multiples",
        lambda: [m.bounded(2.0 * m.Mean(mu=CENTRE), [0.2, 0.3]), 3.0 * m.Variance(mu=1.0), 0.5 * m.Variance(size=2)],
        {"1.sigma": np.array([1.5, 1.2]), "2.mu": np.array([1.1, 1.2]), "2.sigma": np.array([0.5])},
        lambda t, y: np.concatenate(
            [2 * sides(CENTRE, y), 3 * (y - 1.0) ** 2, 0.5 * ((y - t["2.mu"]) ** 2).sum(1, keepdims=True)], 1
        ),
        lambda t: np.array([0.2, 0.3, 0.2, 0.3, *t["1.sigma"], *t["2.sigma"]]),
    )
    return [equation, interval, given]


def _differences() -> list[SetCase]:
    """Minus what is affine, and factors of all kinds."""
    minus = _plain(
        "minus linear",
        lambda: [-m.Linear(), m.Norm(2) - 0.5 * m.Linear(mu=[0.4, -0.2]) / 2],
        {"0.mu": np.array([0.3, 1.0]), "0.sigma": -1.2, "1.0.mu": np.array([0.9, 1.1]), "1.sigma": 0.7},
        lambda t, y: _columns(-y @ t["0.mu"], _norm(y - t["1.0.mu"], 2) - 0.25 * y @ np.array([0.4, -0.2])),
    )
    factors = _plain(
        "multiples of sums and maxima",
        lambda: [
            2.0 * (m.SquaredNorm() + 0.5 * m.Norm(1)),
            3.0 * m.maximum(m.Norm(1), 2.0 * m.Norm(np.inf)),
            0.5 * m.AbsolutePower(3.0, mu=E1),
        ],
        {
            **{"0.0.mu": np.array([0.9, 1.1]), "0.1.mu": np.array([1.1, 1.2]), "0.sigma": 2.0},
            **{"1.0.mu": np.array([0.9, 1.1]), "1.1.mu": np.array([1.1, 1.2]), "1.sigma": 2.7},
            **{"2.h": 1.0, "2.sigma": 0.3},
        },
        lambda t, y: _columns(
            2 * (((y - t["0.0.mu"]) ** 2).sum(1) + 0.5 * _norm(y - t["0.1.mu"], 1)),
            3 * np.maximum(_norm(y - t["1.0.mu"], 1), 2 * _norm(y - t["1.1.mu"], np.inf)),
            0.5 * abs(y[:, 0] - t["2.h"]) ** 3,
        ),
    )
    return [minus, factors]


def _conics() -> list[SetCase]:
    # ‖y - μ‖² ≤ u as [2(y - μ); u - 1; u + 1] in the cone.
    square = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 1]])
    shift = np.array([2 * CENTRE[0], 2 * CENTRE[1], 1.0, -1.0])
    fixed = _plain(
        "conic",
        lambda: [m.Conic([square], [shift])],
        {"0.sigma": 0.7},
        lambda t, y: _columns(((y - CENTRE) ** 2).sum(1)),
    )
    # Some v has ‖M y - b‖ ≤ v, and |aᵀy - h| ≤ u - v: the sum of both.
    image = np.array([[1.0, 0.3, 0, 0], [-0.2, 1, 0, 0], [0, 0, 0, 1]])
    ridge = np.array([[1.0, 0.5, 0, 0], [0, 0, 1, -1]])

    def lifted(t: Parameters, y: np.ndarray) -> np.ndarray:
        A0, b0 = t.get("0.A0", image), t["0.b0"]
        first = _norm(y @ A0[:2, :2].T - b0[:2], 2)
        return _columns(first + abs(y @ ridge[0, :2] - t.get("0.b1", np.array([1.6, 0.0]))[0]))

    middle = np.array([*image[:2, :2] @ CENTRE, 0.0])
    vector = _plain(
        "conic, lifted, vectors learnt",
        lambda: [m.Conic([image, ridge], [dro.Learn(3), [1.6, 0.0]], lifted=1)],
        {"0.b0": middle, "0.sigma": 0.8},
        lifted,
    )
    return [fixed, vector, _conic_matrix(middle)]


def _conic_matrix(middle: np.ndarray) -> SetCase:
    """All entries learnt: ‖v(y) + wu‖ ≤ s(y) + ru, whose smallest u is the larger root of a quadratic."""
    image = np.array([[1.0, 0.3, 0.1], [-0.2, 1, 0], [0.1, 0, 1]])
    vector = np.array([*middle[:2], -0.2])

    def values(t: Parameters, y: np.ndarray) -> np.ndarray:
        (w, r), rest = (t["0.A0"][:2, 2], t["0.A0"][2, 2]), y @ t["0.A0"][:, :2].T - t["0.b0"]
        v, s = rest[:, :2], rest[:, 2]
        a, b, c = r**2 - w @ w, r * s - v @ w, s**2 - (v**2).sum(1)
        return _columns((np.sqrt(np.maximum(b**2 - a * c, 0)) - b) / a)

    return _plain(
        "conic, learnt",
        lambda: [m.Conic([dro.Learn(3, 3)], [dro.Learn(3)])],
        {"0.A0": image, "0.b0": vector, "0.sigma": 0.5},
        values,
    )


def _ball(norm: float, order: float) -> SetCase:
    return SetCase(
        f"ball {norm:g}, order {order:g}",
        lambda y: dro.Wasserstein(y, 3, norm=norm, order=order),
        {"radius": np.array(0.3)},
        ball=(norm, order),
    )


def _balls() -> list[SetCase]:
    """Balls in which every way is bounded, by metrics, and around what may not move."""
    square = np.array([[1.0, 0.4], [-0.3, 0.7]])

    def scaled(t: Parameters) -> np.ndarray:
        return t["metric"] / np.sqrt((t["metric"] ** 2).sum() / t["metric"].shape[1])

    def case(name: str, norm: float, order: float, matrix: np.ndarray | None = None, **more: Any) -> SetCase:
        fixed = more.get("fixed", ())
        return SetCase(
            name,
            lambda y: dro.Wasserstein(y, 3, norm=norm, order=order, metric=matrix, fixed=fixed),
            {"radius": np.array(0.3)},
            ball=(norm, order),
            metric=None if matrix is None else lambda t: matrix,
            fixed=fixed,
            brief=True,
        )

    def learnt(name: str, norm: float, order: float, matrix: np.ndarray) -> SetCase:
        return SetCase(
            name,
            lambda y: dro.Wasserstein(y, 3, norm=norm, order=order, metric=dro.Learn(*matrix.shape)),
            {"radius": np.array(0.3), "metric": matrix},
            ball=(norm, order),
            metric=scaled,
            brief=True,
        )

    return [
        *[case(f"ball {norm:g}, order inf", norm, np.inf) for norm in (2, np.inf)],
        case("ball by a matrix", 2, 1, IMAGE),
        case("ball by a diagonal, order inf", np.inf, np.inf, np.diag([2.0, 0.5])),
        learnt("learnt ball, order 2", 2, 2, square),
        learnt("learnt ball, order inf", 1, np.inf, IMAGE),
        case("ball along an axis", 1, 1, fixed=(1,)),
        case("ball along an axis, order inf", 2, np.inf, np.array([[0.8]]), fixed=(0,)),
    ]


PHI: dict[str, Callable[[cp.Expression], cp.Expression]] = {
    "kl": lambda t: cp.kl_div(t, np.ones(t.shape)),
    "burg": lambda t: -cp.log(t) + t - 1,
    "chi2": lambda t: cp.square(t - 1),
    "tv": lambda t: cp.abs(t - 1),
    "hellinger": lambda t: t - 2 * cp.sqrt(t) + 1,
}
"""The divergences as CVXPY writes them."""


def _reweighted(kind: str) -> SetCase:
    return SetCase(kind, lambda y: dro.Divergence(y, 3, kind), {"radius": np.array(0.1)}, divergence=kind)


ROOT = np.array([[0.5, 0.0], [0.15, 0.4]])


def _shapes() -> list[SetCase]:
    """Robust outcomes."""
    wide = {"centre": np.array([0.9, 1.1]), "radius": np.array([0.5, 0.4])}

    def box(t: Parameters, y: np.ndarray) -> np.ndarray:
        return (abs(y - t["centre"]) / t["radius"]).max(1)

    def ellipsoid(t: Parameters, y: np.ndarray) -> np.ndarray:
        return _norm((y - t["centre"]) @ np.linalg.inv(t["factor"]).T, 2)

    def budget(t: Parameters, y: np.ndarray) -> np.ndarray:
        return np.maximum(box(t, y), (abs(y - t["centre"]) / t["radius"]).sum(1) / 1.3)

    return [
        SetCase("box of outcomes", lambda y: dro.Outcomes(y, "box"), wide, gauge=box, brief=True),
        SetCase(
            "ellipsoid of outcomes",
            lambda y: dro.Outcomes(y, "ellipsoid"),
            {"centre": wide["centre"], "factor": ROOT},
            gauge=ellipsoid,
            brief=True,
        ),
        SetCase("budget of outcomes", lambda y: dro.Outcomes(y, "budget", 1.3), wide, gauge=budget, brief=True),
    ]


def _covariance() -> SetCase:
    """Delage and Ye, everything learnt."""
    return SetCase(
        "mean and covariance",
        lambda y: dro.MeanCovariance(y, gamma2=None),
        {"mu": np.array([0.9, 1.1]), "factor": ROOT, "gamma1": np.array(0.15), "gamma2": np.array(1.2)},
        covariance=True,
        brief=True,
    )


def _mixtures() -> list[SetCase]:
    """Learnt probabilities of two moment sets, and given ones within a ball, of balls among others."""
    squares, sums = _squares()[0], _norms(1.0)[0]
    box = np.array([0.2, 0.3]), np.array([2.2, 2.5])

    def mixture(name: str, own: Parameters, events: Events) -> SetCase:
        inner = {f"{i}.{n}": v for i, part in enumerate(events.sets) for n, v in part.base.items()}
        return SetCase(
            name,
            lambda y: events.make(lambda part, own: part.make(own), y, 1.0),
            own | inner,
            events=events,
            brief=True,
        )

    given = np.array([0.4, 0.35, 0.25])
    balls = _ball(1, 1), _reweighted("chi2"), squares
    return [
        mixture("mixture", {"weights": np.array([0.6, 0.4])}, Events((squares, sums), None, None, (None, box))),
        mixture("mixture in a ball", {"radius": np.array(0.1)}, Events(balls, given, "chi2", (None, None, box))),
    ]


SETS: list[SetCase] = [
    _equality(),
    _linear(),
    _absolute(),
    *[_power(p) for p in POWERS],
    _positive_square(),
    *[case for p in NORMS for case in _norms(p)],
    *_squares(),
    *_combinations(),
    *_conics(),
    *[_ball(norm, order) for norm in (1, 2, np.inf) for order in (1, 2)],
    *[_reweighted(kind) for kind in PHI],
    *_mixtures(),
    *_vectors(),
    *_balls(),
    *_differences(),
    *_shapes(),
    *_tilted(),
    _covariance(),
]
