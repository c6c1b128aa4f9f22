"""The moment functions by the names that users know: ``dro.moments.SquaredNorm()`` and so on.

Every parameter is learnable unless a value is given: ``Absolute(mu=e1)`` learns ``h`` and ``sigma`` only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drolayers.ambiguity.composite import Maximum
from drolayers.ambiguity.conic_moment import Conic
from drolayers.ambiguity.elementary import Image, Ridge, Separate
from drolayers.ambiguity.moment import Learn, Moment, as_bound, as_given
from drolayers.ambiguity.outer import Identity, PNorm, PositiveSquared, Power, Square
from drolayers.checks import number, whole
from drolayers.errors import ModelError

__all__ = [
    "Absolute",
    "AbsolutePower",
    "Conic",
    "Learn",
    "Linear",
    "Moment",
    "Norm",
    "PositiveSquare",
    "SquaredNorm",
    "bounded",
    "maximum",
]


def Linear(mu: ArrayLike | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """μᵀy; the bound may have either sign, and two of them make a mean equality."""
    return Ridge(Identity(), _array("mu", mu), 0.0, as_bound(sigma))


def Absolute(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """|μᵀy - h|."""
    return Ridge(PNorm(1), _array("mu", mu), _scalar(h), as_bound(sigma))


def AbsolutePower(  # noqa: N802
    p: float, mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """|μᵀy - h|ᵖ for p ≥ 1."""
    return Ridge(PNorm(1) if p == 1 else Power(number("p", p)), _array("mu", mu), _scalar(h), as_bound(sigma))


def PositiveSquare(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """((μᵀy - h)⁺)²."""
    return Ridge(PositiveSquared(), _array("mu", mu), _scalar(h), as_bound(sigma))


def Norm(  # noqa: N802
    p: float, A: ArrayLike | Learn | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖Ay - μ‖ₚ for p ≥ 1; A is the identity unless given, and learnt if ``A=dro.Learn(m, n)``."""
    if A is None:
        return Separate(PNorm(number("p", p)), mu=_array("mu", mu), sigma=as_bound(sigma))
    return Image(
        PNorm(number("p", p)), A if isinstance(A, Learn) else as_given("A", A), _array("mu", mu), as_bound(sigma)
    )


def SquaredNorm(  # noqa: N802
    index: ArrayLike | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖y_I - μ_I‖² for the coordinates I in ``index`` (all, unless given)."""
    listed = [] if index is None else np.atleast_1d(np.asarray(index)).tolist()
    chosen = None if index is None else tuple(whole("Every coordinate in SquaredNorm's index", i, 0) for i in listed)
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise ModelError(f"SquaredNorm's index {list(chosen)} names a coordinate twice.")
    return Separate(Square(), chosen, None, _array("mu", mu), as_bound(sigma))


def maximum(*moments: Moment) -> Moment:
    """The largest of several moments."""
    return Maximum(tuple(moments))


def bounded(moment: Moment, sigma: ArrayLike) -> Moment:
    """The same moment with a fixed bound."""
    if not isinstance(moment, Moment):
        raise ModelError(f"bounded needs a moment, not {moment!r}.")
    return replace(moment, sigma=as_bound(sigma))  # type: ignore[type-var]


def grouped_squares(dim: int, size: int) -> Moment:
    """One squared deviation bound for every ``size`` coordinates in turn."""
    return Separate(Square(), None, tuple(i // size for i in range(dim)))


def _array(name: str, value: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given parameter as an array."""
    return None if value is None else as_given(name, value)


def _scalar(value: float | None) -> float | None:
    """A given scalar."""
    return None if value is None else number("A moment's h", as_given("h", value))
