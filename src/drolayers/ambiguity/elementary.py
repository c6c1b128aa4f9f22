"""Moments that are an outer function of an affine image of ``y``."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import final

import cvxpy as cp
import numpy as np
from torch import Tensor

from drolayers.ambiguity.image import Coordinates, Directions, Image
from drolayers.ambiguity.moment import Ingredient, Leaves, Moment, Parameters, Typical, columns, rooted
from drolayers.ambiguity.outer import Affine, Constraints, Labels, Outer
from drolayers.ambiguity.terms import Charge, Multiplier, OuterTerm, Parts, Term
from drolayers.support import Layout


@final
@dataclass(frozen=True, eq=False)
class Elementary(Moment):
    """φ(My - h), with one bound, or one for every label of the image and side of φ."""

    outer: Outer
    image: Image

    @property
    def degree(self) -> float:
        """That of φ."""
        return self.outer.degree

    @property
    def bounds(self) -> int:
        """One a label and side."""
        return self.image.bounds * self.sides

    @property
    def sides(self) -> int:
        """Those of φ."""
        return len(self.outer.signs) if isinstance(self.outer, Affine) else 1

    @property
    def vector(self) -> bool:
        """Where coordinates have bounds of their own."""
        return isinstance(self.image, Coordinates) and self.image.size is not None

    @property
    def signed(self) -> bool:
        """Only where φ is linear and bounded from one side."""
        return self.affine and self.sides == 1

    @property
    def affine(self) -> bool:
        """Where φ is linear."""
        return isinstance(self.outer, Affine)

    @property
    def eliminable(self) -> bool:
        """Except for the linear φ, whose share of the slope is the multiplier itself."""
        return not self.affine

    def over(self, dim: int) -> Moment:
        """Of the image over ``y``."""
        return replace(self, image=self.image.over(dim))

    def parameters(self, dim: int) -> Parameters:
        """Those of the image."""
        return self.image.parameters(dim)

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the image."""
        return self.image.typical(y)

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The shift of the image."""
        return [leaves[self.image.shift]]

    def links(self, dim: int) -> list[Labels]:
        """Those of the image, unless φ is additive over coordinates or linear."""
        separate = isinstance(self.image, Coordinates) and self.outer.additive
        return [] if separate or self.affine else self.image.links(dim)

    def components(self, dim: int) -> Labels:
        """One a coordinate where φ is additive, else one a bound."""
        if self.affine or not (isinstance(self.image, Coordinates) and self.outer.additive):
            return np.arange(self.bounds)
        found = np.zeros(dim, dtype=np.int64)
        found[self.image.coordinates] = self.image.label
        return found

    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """One term: the outer function over the parts of the image."""
        laid = self.image.laid(layout, leaves, charge.split and self.outer.additive and not self.affine)
        found = None if charge.multiplier is None else self._multiplier(laid.parts, charge.multiplier)
        scale = None if charge.rho is None or self.affine else self._scale(laid.parts, charge.rho)
        return [OuterTerm(self.outer, *laid, found, scale)], []

    def _multiplier(self, parts: Parts, multiplier: Multiplier) -> cp.Expression:
        """That of every part; of a linear φ, the slope that its bounds make together."""
        if not isinstance(self.outer, Affine):
            return multiplier(parts.row, parts.bound, parts.coordinate)
        bounds = [parts.bound + side * self.image.bounds for side in range(self.sides)]
        return self.outer.slope([multiplier(parts.row, bound, bound) for bound in bounds])

    def _scale(self, parts: Parts, rho: cp.Expression) -> cp.Expression:
        """That of every part."""
        return rho[parts.bound] if rho.size > 1 else cp.promote(rho[0], (parts.row.size,))

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
        return replace(self, outer=self.outer.negated())


def kind(moment: Moment) -> Hashable | None:
    """What moments along one direction must have in common to be taken together."""
    if not (isinstance(moment, Elementary) and isinstance(moment.image, Directions)):
        return None
    return moment.outer, moment.factor, moment.image.kind, moment.sigma is None


def stacked(moments: Sequence[Moment]) -> Moment:
    """Moments of one kind as one, each with its own direction and bound."""
    members = [moment for moment in moments if isinstance(moment, Elementary)]
    sigma = [moment.sigma for moment in members if moment.sigma is not None]
    images = [moment.image for moment in members if isinstance(moment.image, Directions)]
    return replace(members[0], image=Directions.stacked(images), sigma=np.concatenate(sigma) if sigma else None)
