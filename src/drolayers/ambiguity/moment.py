"""What a moment function g(y, α) must know, each thing once.

Its dual term (for the worst case), its value in torch (for pre-training and certificates), and its value as a convex
CVXPY expression, in ``y`` for fixed parameters or in the parameters for fixed ``y`` (for emptiness and projection).
A factor is data of every moment: kinds of moments describe g without it, and it is applied here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.terms import Charge, Term
from drolayers.checks import numbers, whole
from drolayers.errors import ModelError
from drolayers.support import Layout

FLOOR = 1e-100
"""Bounds of powers are raised to this before their root is taken, whose derivative diverges at zero. Small enough for
any unit: the bound of a fourth power is the fourth power of an outcome."""

Leaves = Mapping[str, Any]
"""Parameters of a moment by name: CVXPY leaves, arrays or tensors, as the caller needs them."""


@dataclass(frozen=True)
class Learn:
    """A matrix to be learnt, by its shape: ``Norm(2, A=dro.Learn(3, 5))``."""

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", tuple(whole("Every size in dro.Learn", s) for s in shape))


Parameters = dict[str, NDArray[np.float64] | Learn]
"""All parameters of a moment apart from its bound, by name, given or to be learnt."""


@dataclass(frozen=True, eq=False)
class Typical:
    """Where a model should begin with a parameter, and how far it should expect to move.

    Args:
        centre: a sensible value.
        scale: a sensible step, of the same shape.
        positive: whether the parameter must stay positive.
        meaningful: whether fitting the moment to data determines it; the smallest expectation of ``‖Ay - μ‖`` over a
            learnable ``A``, say, is zero at ``A = 0`` and tells nothing.
    """

    centre: Tensor
    scale: Tensor
    positive: bool = False
    meaningful: bool = True


class Ingredient(NamedTuple):
    """A function of one degree in a sum or maximum: its weight, whether it is linear (``signed``), and its extent."""

    weight: float
    degree: float
    signed: bool
    extent: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Moment(ABC):
    """A convex function of ``y`` whose expectation is bounded by ``sigma``.

    Moments can be added up, multiplied and divided by positive numbers (affine ones by negative ones too), and compared
    by ``maximum``.
    """

    factor: float = 1.0
    """By which the function is multiplied."""
    sigma: NDArray[np.float64] | None = None
    """The bound of the whole, factor included, when it is given; learnt otherwise."""

    __array_ufunc__ = None  # NumPy's numbers and arrays leave products to the moment.

    @property
    def degree(self) -> float:
        """P when g(y) grows like the p-th power; the bound is scaled by its p-th root."""
        return 1.0

    @property
    def bounds(self) -> int:
        """Number of bounds: one, except for vectors of moments."""
        return 1

    @property
    def sides(self) -> int:
        """How many bounds share one sigma: two where expectations are bounded from both sides."""
        return 1

    @property
    def size(self) -> int:
        """Length of sigma."""
        return self.bounds // self.sides

    @property
    def limits(self) -> NDArray[np.float64] | None:
        """The given sigma, once for every bound."""
        return None if self.sigma is None else np.tile(np.broadcast_to(self.sigma, self.size), self.sides)

    @property
    def vector(self) -> bool:
        """Whether sigma is a vector."""
        return False

    @property
    def signed(self) -> bool:
        """Whether the function can be negative, so that a negative bound makes sense."""
        return False

    @property
    def affine(self) -> bool:
        """Whether the function is affine, so that its bound may be tight everywhere."""
        return False

    @property
    def mixed(self) -> bool:
        """Whether parts of different degrees meet in it."""
        return False

    @property
    def eliminable(self) -> bool:
        """Whether the best multiplier is known in closed form when a single part sees it."""
        return False

    @property
    def count(self) -> int:
        """Number of its ingredients."""
        return 1

    @property
    def width(self) -> int:
        """Number of ``scales``: prices, and what stands behind them."""
        return self.bounds

    @abstractmethod
    def parameters(self, dim: int) -> Parameters:
        """All parameters apart from the bound."""

    @final
    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """The learnable parameters, apart from the bound, by name."""
        return {name: v.shape for name, v in self.parameters(dim).items() if isinstance(v, Learn)}

    @final
    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """The parameters whose values were given."""
        return {name: v for name, v in self.parameters(dim).items() if not isinstance(v, Learn)}

    @abstractmethod
    def over(self, dim: int) -> Moment:
        """The same for a ``y`` of so many coordinates."""

    @abstractmethod
    def links(self, dim: int) -> list[Labels]:
        """Groups of coordinates over which the function is not additive."""

    def components(self, dim: int) -> Labels:
        """The bounds of the additive components that a decision rule can respond to: one a coordinate, or the whole."""
        return np.zeros(1, dtype=np.int64)

    @abstractmethod
    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """The dual terms over some rows, without the factor: it is in the scale, or in a member's multiplier.

        Args:
            layout: the rows.
            leaves: CVXPY expressions of all parameters.
            charge: the multipliers and what they are scaled by.
        """

    @abstractmethod
    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Sensible values of the learnable parameters, apart from the bound, for outcomes ``(point, dim)``."""

    @final
    def value(self, y: Tensor, leaves: Leaves, recession: bool = False) -> Tensor:
        """G at points ``(..., dim)`` with parameters ``(..., *shape)``: ``(..., bounds)``.

        As ``recession`` lim g(s y)/s as s grows: what mass that escapes along ``y`` uses up of the bound.
        """
        return self.factor * self._value(y, leaves, recession)

    @final
    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """G at the rows of ``y`` (points, dim): an upper bound (points, bounds) that is tight when minimised.

        With ``root`` its p-th root for the degree p, which scales with the data.
        """
        found, constraints = self._expression(y, leaves, root)
        return (self.factor ** (1.0 / self.degree) if root else self.factor) * found, constraints

    @final
    def scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """The price of a multiplier in units of ρ, one a bound ``(batch, bounds)``, for sigma ``(batch, bounds)``.

        E cg ≤ σ says E g ≤ σ/c. For a function of one degree p the price is ρ = (σ/c)^(1/p), the size of deviations,
        itself. Where degrees are mixed ρ and the members' coefficients stand behind it.
        """
        return self._scales(sigma / self.factor, leaves)

    @final
    def ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """What it is made of, in the order of its parameters: itself, unless it is a sum or a maximum."""
        return [part._replace(weight=self.factor * part.weight) for part in self._ingredients(leaves)]

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The parameters that are measured in the same unit as the p-th root of the bound."""
        return []

    @final
    def spread(self, sigma: Float[Tensor, "batch sigma"]) -> Float[Tensor, "batch bound"]:
        """The bounds that share each sigma."""
        return sigma if self.sides == 1 else torch.cat([sigma] * self.sides, 1)

    @abstractmethod
    def _value(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """``value`` without the factor."""

    @abstractmethod
    def _expression(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[cp.Expression, Constraints]:
        """``expression`` without the factor."""

    @abstractmethod
    def _scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """``scales`` without the factor."""

    @abstractmethod
    def _ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """``ingredients`` without the factor."""

    def _negated(self) -> Moment:
        """Minus an affine moment."""
        raise ModelError(
            "Minus a convex moment is not convex, and only Linear, Mean and sums of them can be multiplied by a "
            "negative number: write a positive factor."
        )

    def __mul__(self, factor: float) -> Moment:
        number = _factor(factor)
        if number == 1.0:
            return self
        # A bound of zero is one with any factor.
        if self.sigma is not None and self.sigma.any():
            raise ModelError(
                f"sigma is the bound of the whole, factor included: write bounded({number:g} * moment, sigma) "
                "around a moment without a sigma."
            )
        if number < 0:
            return self._negated() * -number
        return replace(self, factor=_factor(number * self.factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Moment:
        return self * (1.0 / _factor(divisor))

    def __neg__(self) -> Moment:
        return self * -1.0

    def __add__(self, other: Moment) -> Moment:
        from drolayers.ambiguity.composite import Sum

        # The builtin sum begins with a zero.
        return self if isinstance(other, int) and other == 0 else Sum.of(self, other)

    __radd__ = __add__

    def __sub__(self, other: Moment) -> Moment:
        return self + (-other if isinstance(other, Moment) else other)

    def __rsub__(self, other: Moment) -> Moment:
        return -self + other

    def __pow__(self, other: object) -> Moment:
        raise ModelError("Powers of moments are moments of their own: write SquaredNorm() or AbsolutePower(p).")

    def __rtruediv__(self, other: object) -> Moment:
        raise ModelError("Nothing can be divided by a moment, since that is not convex: multiply or divide it.")


def _factor(factor: float) -> float:
    """A factor that leaves something of a moment."""
    if isinstance(factor, bool) or not isinstance(factor, Real):
        raise ModelError(f"A moment can be multiplied or divided by one number only, not by {factor!r}.")
    number = float(factor)
    if not np.isfinite(number) or number == 0:
        raise ModelError(f"A moment's factor must be finite and not zero, not {number:g}: leave the moment out.")
    return number


def rooted(sigma: Tensor, degree: float) -> Tensor:
    """ρ = σ^(1/p)."""
    return sigma if degree == 1 else sigma.clamp(min=FLOOR) ** (1.0 / degree)


def deviation(y: Tensor) -> Tensor:
    """Standard deviations of columns; those of constants are replaced by their size, by one where all vanish."""
    spread, size = y.std(0, unbiased=False), y.abs().amax(0)
    varies = spread > 1e-12 * size
    size = torch.where(size > 0, size, size.max())
    return torch.where(varies, spread, torch.where(size > 0, size, torch.ones_like(size)))


def as_given(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """A value that was given for a parameter, as an array of finite numbers."""
    array = numbers(f"A moment's {name}", value)
    if not np.isfinite(array).all():
        raise ModelError(f"A moment's {name} must be finite, not {array.tolist()}.")
    return array


def as_bound(sigma: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given bound as a vector."""
    return None if sigma is None else as_given("sigma", sigma).reshape(-1)


def columns(values: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch column"]:
    """Everything but the batch flattened; a batch of nothing too."""
    return values.reshape(values.shape[0], values.shape[1:].numel())
