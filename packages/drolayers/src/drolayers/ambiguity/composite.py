"""Sums and maxima of moments: lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, final

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from drolayers.ambiguity.moment import Ingredient, Moment, rooted
from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.parameters import FLOOR, Leaves, Parameters, Typical
from drolayers.ambiguity.terms import Charge, Multiplier, Term
from drolayers.errors import ModelError
from drolayers.support import Layout


@dataclass(frozen=True, eq=False, repr=False)
class Composite(Moment):
    """What sums and maxima share: members, whose parameters carry their position as a prefix."""

    members: tuple[Moment, ...]

    @classmethod
    def of(cls, *members: Moment) -> Self:
        """A flat list: sums in sums and maxima in maxima give their members."""
        if not members:
            raise ModelError("A maximum of moments needs at least one of them: write maximum(first, second).")
        flat: list[Moment] = []
        for member in members:
            if not isinstance(member, Moment):
                raise ModelError(
                    f"Only moments can be added up or compared, one by one, not {member!r}: a number belongs to sigma, "
                    "and a list is written sum(list) or maximum(*list)."
                )
            if member.vector:
                raise ModelError(
                    "Mean, Variance and groups have a bound for every coordinate and cannot be part of a sum or "
                    "maximum: list them beside it in the set, or write Linear and SquaredNorm."
                )
            if member.sigma is not None:
                raise ModelError(
                    "In a sum or maximum of moments only the whole has a bound: leave out the members' sigma, and "
                    "write bounded(whole, sigma)."
                )
            flat += [member.factor * own for own in member.members] if isinstance(member, cls) else [member]
        return cls(tuple(flat))

    def over(self, dim: int) -> Moment:
        """Of the members over ``y``."""
        return replace(self, members=tuple(member.over(dim) for member in self.members), dim=dim)

    def _traits(self) -> dict[str, Any]:
        """Where degrees are mixed there are ρ and a coefficient an ingredient beside the price."""
        degrees, count = {member.degree for member in self.members}, sum(member.count for member in self.members)
        mixed = len(degrees) > 1 or any(member.mixed for member in self.members)
        return {
            "count": count,
            "degree": 1.0 if len(degrees) > 1 else degrees.pop(),
            "mixed": mixed,
            "width": 2 + count if mixed else 1,
            "signed": any(member.signed for member in self.members),
            "affine": isinstance(self, Sum) and all(member.affine for member in self.members),
        }

    def parameters(self, dim: int) -> Parameters:
        """Those of the members."""
        return {f"{j}.{n}": v for j, member in enumerate(self.members) for n, v in member.parameters(dim).items()}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the members."""
        return {f"{j}.{n}": t for j, member in enumerate(self.members) for n, t in member.typical(y).items()}

    def each(self, leaves: Leaves) -> Iterator[tuple[Moment, dict[str, Any]]]:
        """The members with their own parameters."""
        for j, member in enumerate(self.members):
            prefix = f"{j}."
            yield member, {name[len(prefix) :]: v for name, v in leaves.items() if name.startswith(prefix)}

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """Those of the members."""
        return [found for member, own in self.each(leaves) for found in member.offsets(own)]

    def _ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """Those of the members."""
        return [part for member, own in self.each(leaves) for part in member.ingredients(own)]

    def _scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """Of mixed degrees: with β = τb the price is στ, and an ingredient of degree q sees the multiplier τρ^(q-1)b.

        Nonnegative ingredients wφ bound deviations by ρ = min (σ/w)^(1/q), and τ = 1/max wρ^(q-1) keeps all
        multipliers at b or below. Beside a linear ingredient σ says less: then the centres of the others count too,
        and where they grow as fast as what is linear.
        """
        if not self.mixed:
            return rooted(sigma, self.degree)
        parts = self._ingredients(leaves)
        firm, linear = ([p for p in parts if p.signed is kind] for kind in (False, True))
        sigma = sigma if self.signed else sigma.clamp(min=FLOOR)
        size = sigma.abs().clamp(min=FLOOR)
        rho = torch.cat([(size / p.weight) ** (1.0 / p.degree) for p in firm], 1).amin(1, keepdim=True)
        for p in firm if linear else []:
            rho = torch.maximum(rho, p.extent.to(rho))
            for slope in linear if p.degree > 1 else []:
                even = (slope.weight * slope.extent / p.weight).to(rho) ** (1.0 / (p.degree - 1.0))
                rho = torch.maximum(rho, even)
        steepest = torch.cat([p.weight * rho ** (p.degree - 1.0) for p in firm], 1).amax(1, keepdim=True)
        seen = [rho ** (p.degree - 1.0) / steepest for p in parts]
        return torch.cat([sigma / steepest, rho, *seen], 1)

    def component_units(self, scales: Tensor, leaves: Leaves) -> Tensor:
        """Where degrees are mixed, the largest of the ingredients' wρ^(p-1)."""
        if not self.mixed:
            return super().component_units(scales, leaves)
        return scales[:, 1:2] ** (self._ingredients(leaves)[0].degree - 1.0) / scales[:, 2:3]

    def member_terms(
        self, layout: Layout, leaves: Leaves, multipliers: list[Multiplier], rho: cp.Expression | None
    ) -> tuple[list[Term], Constraints]:
        """The members' terms, each under its factor, its multiplier and, where degrees are mixed, its coefficient."""
        terms: list[Term] = []
        constraints: Constraints = []
        first = 1
        for (member, own), multiplier in zip(self.each(leaves), multipliers, strict=True):
            weight: cp.Expression | float = member.factor
            scale, last = rho, first + member.count
            if self.mixed and rho is not None:
                scale = cp.hstack([rho[:1], rho[first:last]]) if member.mixed else rho[:1]
                weight = weight if member.mixed else weight * rho[first]
            more, others = member.terms(layout, own, Charge(_weighted(multiplier, weight), scale))
            terms, constraints, first = terms + more, constraints + others, last
        return terms, constraints

    def values(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """The members' values, stacked last."""
        found = [member.value(y, own, recession)[..., 0] for member, own in self.each(leaves)]
        return torch.stack(torch.broadcast_tensors(*found), -1)

    def expressions(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[list[cp.Expression], Constraints]:
        """The members' expressions."""
        found = [member.expression(y, own, root and self.degree != 1) for member, own in self.each(leaves)]
        return [expression for expression, _ in found], [c for _, constraints in found for c in constraints]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sum(Composite):
    """g₁ + g₂: the members share one multiplier."""

    def _links(self) -> list[Labels]:
        """Those of the members."""
        return [link for member in self.members for link in member.links]

    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """Those of the members."""
        assert charge.multiplier is not None
        return self.member_terms(layout, leaves, [charge.multiplier for _ in self.members], charge.rho)

    def _value(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """The sum."""
        return self.values(y, leaves, recession).sum(-1, keepdim=True)

    def _expression(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[cp.Expression, Constraints]:
        """The sum; (Σ g)^(1/p) is the p-norm of the members' roots."""
        found, constraints = self.expressions(y, leaves, root)
        if not root or self.degree == 1:
            return sum(found[1:], found[0]), constraints
        roots, points = cp.hstack(found), y.shape[0]
        norms = [cp.pnorm(roots[i], self.degree, approx=False) for i in range(points)]
        return cp.reshape(cp.hstack(norms), (points, 1), order="F"), constraints

    def _called(self) -> str:
        """In brackets."""
        return f"({' + '.join(map(repr, self.members))})"

    def _negated(self) -> Moment:
        """Of the members negated."""
        return replace(self, members=tuple(-member for member in self.members))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Maximum(Composite):
    """max(g₁, g₂): the multiplier is shared out between the members, row by row."""

    def _links(self) -> list[Labels]:
        """All coordinates."""
        return [np.arange(self.dim)]

    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """Σ_l π_l = β with π ≥ 0, since a maximum is the largest convex combination."""
        assert charge.multiplier is not None
        rows, zeros = np.arange(layout.rows), np.zeros(layout.rows, dtype=np.int64)
        shares = [cp.Variable(layout.rows, nonneg=True) for _ in self.members]
        terms, constraints = self.member_terms(layout, leaves, [_row_by_row(share) for share in shares], charge.rho)
        return terms, [sum(shares) == charge.multiplier(rows, zeros, zeros), *constraints]

    def _value(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """The largest."""
        return self.values(y, leaves, recession).amax(-1, keepdim=True)

    def _expression(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[cp.Expression, Constraints]:
        """The largest."""
        found, constraints = self.expressions(y, leaves, root)
        return cp.maximum(*found) if len(found) > 1 else found[0], constraints

    def _called(self) -> str:
        """By the function that makes it."""
        return f"maximum({', '.join(map(repr, self.members))})"


def _weighted(multiplier: Multiplier, weight: cp.Expression | float) -> Multiplier:
    """A multiplier times a weight: (βwg)* = ((βw)g)*."""
    if isinstance(weight, float) and weight == 1.0:
        return multiplier

    def weighted(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        return weight * multiplier(row, bound, coordinate)

    return weighted


def _row_by_row(share: cp.Variable) -> Multiplier:
    """A multiplier for every row."""

    def multiplier(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        return share[row]

    return multiplier
