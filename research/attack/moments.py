"""The moments of the attack: source text, and the gauges that define them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from research.attack.drawn import Draw, text
from research.attack.masses import Gauge, Moment, Values

Array = Any


def _shifted(name: str, matrix: Array) -> Callable[[Values], tuple[Array, Array]]:
    """By - c with a given B and a c that is learnt under a name."""
    return lambda values: (matrix, values[name])


def _entry(row: Array) -> Callable[[Values], tuple[Array, Array]]:
    """One row of y - μ."""
    return lambda values: (row[None], np.atleast_1d(row @ values["mu"]))


def _around(draw: Draw, code: str, gauge: Gauge, **settings: Any) -> Moment:
    """A moment around a learnt location ``mu``."""
    return Moment(code, ((1.0, gauge),), lambda d: {"mu": d.near()}, {"mu": 1}, **settings)


def squared_norm(draw: Draw) -> Moment:
    """E‖y - μ‖²."""
    return _around(draw, "m.SquaredNorm()", Gauge("square", _shifted("mu", np.eye(draw.dim))))


def squared_coordinate(draw: Draw) -> Moment:
    """E(y_i - μ)² of one coordinate."""
    i = int(draw.rng.integers(draw.dim))
    gauge = Gauge("square", _shifted("mu", np.eye(draw.dim)[i : i + 1]))
    return Moment(f"m.SquaredNorm({i})", ((1.0, gauge),), lambda d: {"mu": d.near()[i : i + 1]}, {"mu": 1})


def _norm(p: float) -> Callable[[Draw], Moment]:
    written = "np.inf" if np.isinf(p) else f"{p:g}"
    return lambda draw: _around(draw, f"m.Norm({written})", Gauge("norm", _shifted("mu", np.eye(draw.dim)), p))


def image_norm(draw: Draw) -> Moment:
    """A norm of a given image."""
    A, p = np.eye(draw.dim) + 0.4 * draw.normal((draw.dim, draw.dim)), draw.choose((1, 2))
    code = f"m.Norm({p}, A={text(A)})"
    return Moment(code, ((1.0, Gauge("norm", _shifted("mu", A), p)),), lambda d: {"mu": A @ d.near()}, {"mu": 1})


def learnt_norm(draw: Draw) -> Moment:
    """A norm of a learnt image."""
    n, p = draw.dim, draw.choose((1, 2, np.inf))
    gauge = Gauge("norm", lambda values: (values["A"], values["mu"]), p)

    def draw_values(d: Draw) -> Values:
        A = np.eye(n) + 0.4 * d.normal((n, n))
        return {"A": A, "mu": A @ d.near()}

    written = "np.inf" if np.isinf(p) else f"{p}"
    return Moment(f"m.Norm({written}, A=dro.Learn({n}, {n}))", ((1.0, gauge),), draw_values, {"A": 0, "mu": 1})


def linear(draw: Draw) -> Moment:
    """E μᵀy with a learnt direction."""
    gauge = Gauge("affine", lambda values: (values["mu"][None], np.zeros(1)))
    return Moment("m.Linear()", ((1.0, gauge),), lambda d: {"mu": d.direction()}, {"mu": 0})


def given_linear(draw: Draw) -> Moment:
    """E μᵀy with a given direction."""
    mu = draw.direction()
    gauge = Gauge("affine", lambda values: (mu[None], np.zeros(1)))
    return Moment(f"m.Linear(mu={text(mu)})", ((1.0, gauge),), lambda d: {}, {})


def absolute(draw: Draw) -> Moment:
    """E|μᵀy - h|, both learnt."""
    gauge = Gauge("norm", lambda values: (values["mu"][None], np.atleast_1d(values["h"])), 2)

    def draw_values(d: Draw) -> Values:
        mu = d.direction()
        return {"mu": mu, "h": np.asarray(mu @ d.near())}

    return Moment("m.Absolute()", ((1.0, gauge),), draw_values, {"mu": 0, "h": 1})


def _power(outer: str, function: str) -> Callable[[Draw], Moment]:
    def moment(draw: Draw) -> Moment:
        mu = draw.direction()
        gauge = Gauge(outer, lambda values: (mu[None], np.atleast_1d(values["h"])))
        code = f"m.{function}mu={text(mu)})"
        return Moment(code, ((1.0, gauge),), lambda d: {"h": np.asarray(mu @ d.near())}, {"h": 1})

    return moment


def mean(draw: Draw) -> Moment:
    """|E y_i - μ_i| ≤ σ_i; an equation where σ is zero."""
    n = draw.dim
    gauges = tuple((1.0, Gauge("affine", _entry(row))) for row in (*np.eye(n), *-np.eye(n)))
    exact = draw.chance(0.6)
    sigma = np.zeros(2 * n) if exact else np.full(2 * n, draw.uniform(0.05, 0.3))
    code = "m.Mean()" if exact else f"m.Mean(sigma={text(draw.unit * sigma[0])})"
    # The mean of the sample: an equation must be possible inside the support.
    return Moment(code, gauges, lambda d: {"mu": d.sample.mean(0)}, {"mu": 1}, sigma=sigma, vector=True)


def variance(draw: Draw) -> Moment:
    """E(y_i - μ_i)² ≤ σ_i for every coordinate."""
    gauges = tuple((1.0, Gauge("square", _entry(row))) for row in np.eye(draw.dim))
    return Moment("m.Variance()", gauges, lambda d: {"mu": d.near()}, {"mu": 1}, vector=True)


def _joined(largest: bool) -> Callable[[Draw], Moment]:
    def moment(draw: Draw) -> Moment:
        weight, eye = draw.uniform(0.3, 0.8), np.eye(draw.dim)
        members = (
            (1.0, Gauge("square", _shifted("0.mu", eye))),
            (float(weight), Gauge("norm", _shifted("1.mu", eye), 1)),
        )
        second = f"{text(weight * draw.unit)} * m.Norm(1)"
        code = f"m.maximum(m.SquaredNorm(), {second})" if largest else f"m.SquaredNorm() + {second}"
        return Moment(
            code, members, lambda d: {"0.mu": d.near(), "1.mu": d.near()}, {"0.mu": 1, "1.mu": 1}, largest=largest
        )

    return moment


def linear_sum(draw: Draw) -> Moment:
    """A sum with a member of either sign."""
    eye = np.eye(draw.dim)
    members = (
        (1.0, Gauge("square", _shifted("0.mu", eye))),
        (1.0, Gauge("affine", lambda values: (values["1.mu"][None], np.zeros(1)))),
    )

    def draw_values(d: Draw) -> Values:
        return {"0.mu": d.near(), "1.mu": 0.3 * d.direction()}

    # The direction carries the unit of y, so that both members are squares of it.
    return Moment("m.SquaredNorm() + m.Linear()", members, draw_values, {"0.mu": 1, "1.mu": 1})


def epigraph(draw: Draw) -> Moment:
    """E‖y - c‖ by the cone of its epigraph."""
    centre = draw.near()
    code = f"m.Conic([np.eye({draw.dim + 1})], [{text(draw.unit * np.append(centre, 0.0))}])"
    gauge = Gauge("norm", lambda values: (np.eye(draw.dim), centre), 2)
    return Moment(code, ((1.0, gauge),), lambda d: {}, {})


MOMENTS: dict[str, Callable[[Draw], Moment]] = {
    "squared norm": squared_norm,
    "squared coordinate": squared_coordinate,
    "norm 1": _norm(1),
    "norm 2": _norm(2),
    "norm inf": _norm(np.inf),
    "norm 1.5": _norm(1.5),
    "image norm": image_norm,
    "learnt norm": learnt_norm,
    "linear": linear,
    "given linear": given_linear,
    "absolute": absolute,
    "square along a direction": _power("square", "AbsolutePower(2, "),
    "power 3": _power("cube", "AbsolutePower(3, "),
    "positive square": _power("positive", "PositiveSquare("),
    "mean": mean,
    "variance": variance,
    "sum": _joined(False),
    "maximum": _joined(True),
    "sum with linear": linear_sum,
    "conic": epigraph,
}
