"""The moment functions by the names that users know: ``dro.moments.SquaredNorm()`` and so on.

Every parameter is learnable unless a value is given: ``Absolute(mu=e1)`` learns ``h`` and ``sigma`` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conelayers.internals import number, numbers, whole
from drolayers.ambiguity.composite import Maximum
from drolayers.ambiguity.conic_moment import Epigraph
from drolayers.ambiguity.image import Coordinates, Directions, Matrix
from drolayers.ambiguity.moment import Elementary, Moment
from drolayers.ambiguity.outer import Affine, NormPower, Outer
from drolayers.ambiguity.parameters import Learn
from drolayers.errors import ModelError

__all__ = [
    "Absolute",
    "AbsolutePower",
    "Conic",
    "Learn",
    "Linear",
    "Mean",
    "Moment",
    "Norm",
    "PositiveSquare",
    "SquaredNorm",
    "Variance",
    "bounded",
    "maximum",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def Linear(mu: ArrayLike | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """μᵀy; the bound may have either sign, and two of them make a mean equality."""
    return _along("Linear()", Affine(), mu, 0.0, sigma)


def Absolute(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """|μᵀy - h|."""
    return _along("Absolute()", NormPower(), mu, h, sigma)


def AbsolutePower(  # noqa: N802
    p: float, mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """|μᵀy - h|ᵖ for p ≥ 1."""
    p = number("p", p)
    return _along(f"AbsolutePower({p:g})", NormPower(degree=p), mu, h, sigma)


def PositiveSquare(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """((μᵀy - h)⁺)²."""
    return _along("PositiveSquare()", NormPower(degree=2, positive=True), mu, h, sigma)


def Norm(  # noqa: N802
    p: float, A: ArrayLike | Learn | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖Ay - μ‖ₚ for p ≥ 1; A is the identity unless given, and learnt if ``A=dro.Learn(m, n)``."""
    outer = NormPower(number("p", p))
    if A is None:
        return _around(f"Norm({outer.p:g})", outer, mu, sigma)
    matrix = A if isinstance(A, Learn) else _given("A", A)
    return Elementary(outer, Matrix(matrix, _array("mu", mu)), f"Norm({outer.p:g}, A)", sigma=_bound(sigma))


def SquaredNorm(  # noqa: N802
    index: ArrayLike | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖y_I - μ_I‖² for the coordinates I in ``index`` (all, unless given)."""
    listed = [] if index is None else np.atleast_1d(np.asarray(index)).tolist()
    chosen = None if index is None else tuple(whole("Every coordinate in SquaredNorm's index", i, 0) for i in listed)
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise ModelError(f"SquaredNorm's index {list(chosen)} names a coordinate twice.")
    name = f"SquaredNorm({'' if chosen is None else list(chosen)})"
    return _around(name, NormPower(degree=2), mu, sigma, chosen)


def Mean(mu: ArrayLike | None = None, sigma: ArrayLike | None = 0.0) -> Moment:  # noqa: N802
    """The mean of every coordinate, from both sides: |E y_i - μ_i| ≤ σ_i, one moment for all coordinates.

    Args:
        mu: μ, a number or one a coordinate; learnt unless given. A mean between ``lower`` and ``upper`` has their
            middle as μ and half their distance as σ.
        sigma: σ, a number or one a coordinate; zero, the equation E y = μ, unless given, and learnt if None.
    """
    return _around("Mean()", Affine((1.0, -1.0)), mu, sigma, size=1)


def Variance(mu: ArrayLike | None = None, sigma: ArrayLike | None = None, size: int = 1) -> Moment:  # noqa: N802
    """(y_i - μ_i)² of every coordinate, each with a bound of its own: one moment for all coordinates.

    Args:
        mu: μ, a number or one a coordinate; learnt unless given.
        sigma: the bounds, one number or as many as there are; learnt unless given.
        size: how many coordinates in turn share one bound, on the sum of their squares.
    """
    name = f"Variance({'' if size == 1 else f'size={size}'})"
    return _around(name, NormPower(degree=2), mu, sigma, size=whole("Variance's size", size))


def Conic(  # noqa: N802
    A: Sequence[ArrayLike | Learn], b: Sequence[ArrayLike | Learn], lifted: int = 0, sigma: ArrayLike | None = None
) -> Moment:
    """A moment by the second-order cones of its epigraph (definition 4.1 of the paper, as it stands).

    ``u ≥ g(y)`` if and only if some lifted ``v`` has ``A_j [y; u; v] - b_j`` in the second-order cone for every j. The
    last entry of a cone bounds the norm of the others. ``A_j`` and ``b_j`` are arrays, or ``dro.Learn(shape)``.
    """

    def given(items: Sequence[ArrayLike | Learn], ndim: int) -> tuple[NDArray[np.float64] | Learn, ...]:
        return tuple(i if isinstance(i, Learn) else np.array(i, dtype=float, ndmin=ndim) for i in items)

    matrices, vectors = given(A, 2), given(b, 1)
    pairs = zip(matrices, vectors, strict=False)
    if len(matrices) != len(vectors) or any(M.shape[0] != v.shape[0] for M, v in pairs):
        raise ModelError("moments.Conic needs as many b_j as A_j, each with one entry a row.")
    if not all(isinstance(i, Learn) or np.isfinite(i).all() for i in (*matrices, *vectors)):
        raise ModelError("moments.Conic needs finite A_j and b_j.")
    return Epigraph(matrices, vectors, int(lifted), sigma=_bound(sigma))


def maximum(*moments: Moment) -> Moment:
    """The largest of several moments."""
    return Maximum.of(*moments)


def bounded(moment: Moment, sigma: ArrayLike) -> Moment:
    """The same moment with a fixed bound."""
    if not isinstance(moment, Moment):
        raise ModelError(f"bounded needs a moment, not {moment!r}.")
    return replace(moment, sigma=_bound(sigma))


def _along(name: str, outer: Outer, mu: ArrayLike | None, h: float | None, sigma: ArrayLike | None) -> Moment:
    """φ(μᵀy - h)."""
    threshold = None if h is None else np.asarray(number("A moment's h", _given("h", h)))
    return Elementary(outer, Directions(_array("mu", mu), threshold), name, sigma=_bound(sigma))


def _around(
    name: str,
    outer: Outer,
    mu: ArrayLike | None,
    sigma: ArrayLike | None,
    index: tuple[int, ...] | None = None,
    size: int | None = None,
) -> Moment:
    """φ(y_I - μ)."""
    centre, bound = _array("mu", mu), _bound(sigma)
    return Elementary(outer, Coordinates(centre, index, size), name, sigma=bound)


def _array(name: str, value: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given parameter as an array."""
    return None if value is None else _given(name, value)


def _given(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """A value that was given for a parameter, as an array of finite numbers."""
    array = numbers(f"A moment's {name}", value)
    if not np.isfinite(array).all():
        raise ModelError(f"A moment's {name} must be finite, not {array.tolist()}.")
    return array


def _bound(sigma: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given bound as a vector."""
    return None if sigma is None else _given("sigma", sigma).reshape(-1)
