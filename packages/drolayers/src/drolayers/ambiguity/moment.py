"""What a moment function g(y, α) must know, each thing once.

Its dual term (for the worst case), its value in torch (for pre-training and certificates), and its value as a convex
CVXPY expression, in ``y`` for fixed parameters or in the parameters for fixed ``y`` (for emptiness and projection).
A factor is data of every moment: kinds of moments describe g without it, and it is applied here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.image import Coordinates, Image
from drolayers.ambiguity.outer import Affine, Constraints, Labels, Outer
from drolayers.ambiguity.parameters import FLOOR, Learn, Leaves, Parameters, Typical
from drolayers.ambiguity.terms import Charge, OuterTerm, Term
from drolayers.ambiguity.theta import columns
from drolayers.errors import ModelError
from drolayers.support import Layout


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

    dim: int = field(default=0, repr=False)
    """The number of coordinates of ``y``, once the moment has gone through ``over``."""

    # What follows is settled as soon as the moment is made, the last four once it has gone through ``over``.
    degree: float = field(default=1.0, init=False, repr=False)
    """P when g(y) grows like the p-th power; the bound is scaled by its p-th root."""
    sides: int = field(default=1, init=False, repr=False)
    """How many bounds share one sigma: two where expectations are bounded from both sides."""
    bounds: int = field(default=1, init=False, repr=False)
    """Number of bounds: one, except for vectors of moments."""
    vector: bool = field(default=False, init=False, repr=False)
    """Whether sigma is a vector."""
    signed: bool = field(default=False, init=False, repr=False)
    """Whether the function can be negative, so that a negative bound makes sense."""
    affine: bool = field(default=False, init=False, repr=False)
    """Whether the function is affine, so that its bound may be tight everywhere."""
    mixed: bool = field(default=False, init=False, repr=False)
    """Whether parts of different degrees meet in it."""
    eliminable: bool = field(default=False, init=False, repr=False)
    """Whether the best multiplier is known in closed form when a single part sees it."""
    separate: bool = field(default=False, init=False, repr=False)
    """Whether its components are those of coordinates rather than of bounds."""
    count: int = field(default=1, init=False, repr=False)
    """Number of its ingredients."""
    width: int = field(default=1, init=False, repr=False)
    """Number of ``scales``: prices, and what stands behind them."""
    shapes: dict[str, tuple[int, ...]] = field(init=False, repr=False)
    """The learnable parameters, apart from the bound, by name."""
    constants: dict[str, NDArray[np.float64]] = field(init=False, repr=False)
    """The parameters whose values were given."""
    links: list[Labels] = field(init=False, repr=False)
    """Groups of coordinates over which the function is not additive."""
    components: list[Labels] = field(init=False, repr=False)
    """The coordinates of the components that a decision rule can respond to: one a coordinate, or one a bound.

    None where the function is affine, as the rule is anyhow.
    """

    def __post_init__(self) -> None:
        vars(self).update(self._traits())
        if self.dim:
            vars(self).update(links=self._links(), components=self._components())
            found = self.parameters(self.dim).items()
            shapes = {name: value.shape for name, value in found if isinstance(value, Learn)}
            constants = {name: value for name, value in found if not isinstance(value, Learn)}
            vars(self).update(shapes=shapes, constants=constants)

    @abstractmethod
    def _traits(self) -> dict[str, Any]:
        """What differs from the defaults above."""

    @property
    def size(self) -> int:
        """Length of sigma."""
        return self.bounds // self.sides

    @property
    def limits(self) -> NDArray[np.float64] | None:
        """The given sigma, once for every bound."""
        return None if self.sigma is None else np.tile(np.broadcast_to(self.sigma, self.size), self.sides)

    def given(self, like: Tensor) -> dict[str, Tensor]:
        """The parameters whose values were given, in the type and on the device of another tensor."""
        return {name: torch.as_tensor(np.array(value)).to(like) for name, value in self.constants.items()}

    @abstractmethod
    def parameters(self, dim: int) -> Parameters:
        """All parameters apart from the bound."""

    @abstractmethod
    def over(self, dim: int) -> Moment:
        """The same for a ``y`` of so many coordinates."""

    @abstractmethod
    def _links(self) -> list[Labels]:
        """As ``links``."""

    def _components(self) -> list[Labels]:
        """As ``components``."""
        return [] if self.affine else [np.arange(self.dim)] * self.bounds

    def component_values(self, y: Tensor, leaves: Leaves) -> Tensor:
        """These components at points ``(..., dim)``, without the factor."""
        return self._value(y, leaves, False) if self.components else y[..., :0]

    def component_units(self, scales: Tensor, leaves: Leaves) -> Tensor:
        """By what the components are divided where their multipliers are scaled: ρ^(p-1)."""
        return scales[:, : len(self.components)] ** (self.degree - 1.0)

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

    def _called(self) -> str:
        """How users write it, without factor and bound."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self._called() if self.factor == 1.0 else f"{self.factor:g} * {self._called()}"

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

    def __pos__(self) -> Moment:
        return self

    def __add__(self, other: Moment) -> Moment:
        from drolayers.ambiguity.composite import Sum

        # The builtin sum begins with a zero.
        return self if isinstance(other, int) and other == 0 else Sum.of(self, other)

    __radd__ = __add__

    def __sub__(self, other: Moment) -> Moment:
        return self + (-other if isinstance(other, Moment) else other)

    def __rsub__(self, other: Moment) -> Moment:
        return -self + other

    def _ordered(self, other: object) -> bool:
        raise ModelError(
            "Moments have no order: write dro.moments.maximum(first, second) for the largest, and "
            "dro.moments.bounded(moment, sigma) for a bound."
        )

    __lt__ = __le__ = __gt__ = __ge__ = _ordered

    def __abs__(self) -> Moment:
        raise ModelError("Absolute values of moments are moments of their own: write Absolute(mu) or Norm(1).")

    def __float__(self) -> float:
        # Asked for by CVXPY, NumPy and others that take a moment for a number.
        raise ModelError(
            f"The moment {self} is no number or CVXPY expression: multiply it by a number, as in 2 * {self}."
        )

    def __pow__(self, other: object) -> Moment:
        raise ModelError("Powers of moments are moments of their own: write SquaredNorm() or AbsolutePower(p).")

    def __rtruediv__(self, other: object) -> Moment:
        raise ModelError("Nothing can be divided by a moment, since that is not convex: multiply or divide it.")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Elementary(Moment):
    """φ(My - h), with one bound, or one for every label of the image and side of φ."""

    outer: Outer
    image: Image
    name: str = "Elementary"
    """How users write it."""

    def _traits(self) -> dict[str, Any]:
        """A linear φ is bounded from its sides; its share of the slope is the multiplier itself."""
        sides = len(self.outer.signs) if isinstance(self.outer, Affine) else 1
        affine, bounds = isinstance(self.outer, Affine), self.image.bounds * sides
        apart = isinstance(self.image, Coordinates) and self.outer.additive and not affine
        return {
            "degree": self.outer.degree,
            "sides": sides,
            "bounds": bounds,
            "width": bounds,
            "vector": isinstance(self.image, Coordinates) and self.image.size is not None,
            "signed": affine and sides == 1,
            "affine": affine,
            "eliminable": not affine,
            "separate": apart,
        }

    def over(self, dim: int) -> Moment:
        """Of the image over ``y``."""
        return replace(self, image=self.image.over(dim), dim=dim)

    def parameters(self, dim: int) -> Parameters:
        """Those of the image."""
        return self.image.parameters(dim)

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the image."""
        return self.image.typical(y)

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The shift of the image."""
        return [leaves[self.image.shift]]

    def _links(self) -> list[Labels]:
        """Those of the image, unless φ is additive over coordinates or linear."""
        return [] if self.separate or self.affine else self.image.links(self.dim)

    def _components(self) -> list[Labels]:
        """One a coordinate where φ is additive, else one a bound."""
        if self.separate:
            return list(self.image.coordinates[:, None])  # type: ignore[attr-defined]
        return [] if self.affine else self.image.links(self.dim)

    def component_values(self, y: Tensor, leaves: Leaves) -> Tensor:
        """By coordinate where φ is additive."""
        if not self.separate:
            return super().component_values(y, leaves)
        u = self.image.at(y, leaves)
        return self.outer.value(u, np.arange(u.shape[-1]), u.shape[-1])

    def component_units(self, scales: Tensor, leaves: Leaves) -> Tensor:
        """By coordinate where φ is additive."""
        found = scales ** (self.degree - 1.0)
        return found[:, self.image.label] if self.separate else found[:, : len(self.components)]

    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """One term: the outer function over the parts of the image."""
        laid = self.image.laid(layout, leaves, charge.split and self.separate)
        row, bound, coordinate = laid.parts.row, laid.parts.bound, laid.parts.coordinate
        rho, multiplier = charge.rho, charge.multiplier
        scale = found = None
        if rho is not None and not self.affine:
            scale = rho[bound] if rho.size > 1 else cp.promote(rho[0], (row.size,))
        if multiplier is not None and isinstance(self.outer, Affine):
            # The slope that the bounds of all sides make together.
            sides = [bound + side * self.image.bounds for side in range(self.sides)]
            found = self.outer.slope([multiplier(row, side, side) for side in sides])
        elif multiplier is not None:
            found = multiplier(row, bound, coordinate)
        return [OuterTerm(self.outer, *laid, found, scale)], []

    def _value(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """φ of the image, by label."""
        return self.outer.value(self.image.at(y, leaves, not recession), self.image.label, self.image.bounds, recession)

    def _expression(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[cp.Expression, Constraints]:
        """φ of the image, by label."""
        return self.outer.expression(self.image.expression(y, leaves), self.image.label, self.image.bounds, root), []

    def _scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """ρ = σ^(1/p)."""
        return rooted(sigma, self.degree)

    def _ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """Itself; of a linear φ it matters how steep it is."""
        steep = columns(leaves["mu"]).norm(dim=1, keepdim=True) if self.affine else None
        return [Ingredient(1.0, self.degree, self.signed, self.image.extent(leaves) if steep is None else steep)]

    def _negated(self) -> Moment:
        """With φ negated."""
        if not isinstance(self.outer, Affine):
            return super()._negated()
        return replace(self, outer=self.outer.negated(), name=f"-{self.name}".removeprefix("--"))

    def _called(self) -> str:
        """By its name."""
        return self.name


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
