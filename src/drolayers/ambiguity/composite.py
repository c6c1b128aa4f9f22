"""Sums, nonnegative multiples and maxima of moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.moment import FLOOR, Ingredient, Leaves, Moment, Typical
from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.terms import Multiplier, Term
from drolayers.errors import ModelError
from drolayers.support import Layout


@dataclass(frozen=True, eq=False)
class _Composite(Moment):
    """What sums and maxima share: members, whose parameters carry their position as a prefix."""

    members: tuple[Moment, ...]
    sigma: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise ModelError("A sum or maximum of moments needs at least one of them.")
        for member in self.members:
            if not isinstance(member, Moment):
                raise ModelError(f"Only moments can be added up or compared, not {member!r}.")
            if member.bounds != 1:
                raise ModelError("Grouped squares have several bounds and cannot be part of a sum or maximum.")
            if member.sigma is not None:
                raise ModelError(
                    "In a sum or maximum of moments only the whole has a bound: leave out the members' sigma."
                )

    @property
    def count(self) -> int:
        """Those of the members."""
        return sum(member.count for member in self.members)

    @property
    def degree(self) -> float:
        """The members' common degree, or one where they differ."""
        degrees = {member.degree for member in self.members}
        return degrees.pop() if len(degrees) == 1 else 1.0

    @property
    def width(self) -> int:
        """Where degrees are mixed, ρ and a coefficient an ingredient beside the price."""
        return 2 + self.count if self.mixed else 1

    @property
    def signed(self) -> bool:
        """When a member is."""
        return any(member.signed for member in self.members)

    @property
    def mixed(self) -> bool:
        """When the members' degrees differ, or one is mixed itself."""
        return len({member.degree for member in self.members}) > 1 or any(member.mixed for member in self.members)

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """Those of the members."""
        return [found for j, m in enumerate(self.members) for found in m.offsets(self.leaves_of(j, leaves))]

    def ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """Those of the members."""
        return [part for j, m in enumerate(self.members) for part in m.ingredients(self.leaves_of(j, leaves))]

    def scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """Of mixed degrees: with β = τb the price is στ, and an ingredient of degree q sees the multiplier τρ^(q-1)b.

        Nonnegative ingredients wφ bound deviations by ρ = min (σ/w)^(1/q), and τ = 1/max wρ^(q-1) keeps all
        multipliers at b or below. Beside a linear ingredient σ says less: then the centres of the others count too,
        and where they grow as fast as what is linear.
        """
        if not self.mixed:
            return super().scales(sigma, leaves)
        parts = self.ingredients(leaves)
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

    def member_scale(
        self, position: int, multiplier: Multiplier, rho: cp.Expression | None
    ) -> tuple[Multiplier, cp.Expression | None]:
        """A member's multiplier and scale."""
        if not self.mixed or rho is None:
            return multiplier, rho
        counts = [member.count for member in self.members]
        first = 1 + sum(counts[:position])
        if self.members[position].mixed:
            return multiplier, cp.hstack([rho[:1], rho[first : first + counts[position]]])

        def scaled(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
            return rho[first] * multiplier(row, bound, coordinate)

        return scaled, rho[:1]

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the members."""
        return {f"{j}.{n}": s for j, member in enumerate(self.members) for n, s in member.shapes(dim).items()}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those of the members."""
        return {f"{j}.{n}": v for j, member in enumerate(self.members) for n, v in member.constants(dim).items()}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the members."""
        return {f"{j}.{n}": t for j, member in enumerate(self.members) for n, t in member.typical(y).items()}

    def leaves_of(self, position: int, leaves: Leaves) -> dict[str, Any]:
        """A member's own parameters."""
        prefix = f"{position}."
        return {name[len(prefix) :]: value for name, value in leaves.items() if name.startswith(prefix)}

    def values(self, y: Tensor, leaves: Leaves, recession: bool = False) -> Tensor:
        """The members' values, stacked last."""
        kind = "recession" if recession else "value"
        found = [getattr(m, kind)(y, self.leaves_of(j, leaves))[..., 0] for j, m in enumerate(self.members)]
        return torch.stack(torch.broadcast_tensors(*found), -1)

    def expressions(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[list[cp.Expression], Constraints]:
        """The members' expressions."""
        root = root and self.degree != 1
        found = [m.expression(y, self.leaves_of(j, leaves), root) for j, m in enumerate(self.members)]
        return [expression for expression, _ in found], [c for _, constraints in found for c in constraints]


@final
@dataclass(frozen=True, eq=False)
class Sum(_Composite):
    """g₁ + g₂: the members share one multiplier."""

    def links(self, dim: int) -> list[Labels]:
        """Those of the members."""
        return [link for member in self.members for link in member.links(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """Those of the members."""
        assert multiplier is not None
        found = [
            m.terms(layout, self.leaves_of(j, leaves), *self.member_scale(j, multiplier, rho))
            for j, m in enumerate(self.members)
        ]
        return [term for terms, _ in found for term in terms], [c for _, constraints in found for c in constraints]

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The sum."""
        return self.values(y, leaves).sum(-1, keepdim=True)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The sum."""
        return self.values(y, leaves, recession=True).sum(-1, keepdim=True)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """The sum."""
        found, constraints = self.expressions(y, leaves, root)
        if root and self.degree != 1:
            # (Σ g)^(1/p) is the p-norm of the members' roots.
            return self._norms(cp.hstack(found)), constraints
        return sum(found[1:], found[0]), constraints

    def _norms(self, roots: cp.Expression) -> cp.Expression:
        """The p-norm of every row, as a column."""
        one = [cp.pnorm(roots[i], self.degree, approx=False) for i in range(roots.shape[0])]
        return cp.reshape(cp.hstack(one), (roots.shape[0], 1), order="F")

    def __add__(self, other: Moment) -> Moment:
        return Sum((*self.members, other))


@final
@dataclass(frozen=True, eq=False)
class Maximum(_Composite):
    """max(g₁, g₂): the multiplier is shared out between the members, row by row."""

    def links(self, dim: int) -> list[Labels]:
        """All coordinates."""
        return [np.arange(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """Σ_l π_l = β with π ≥ 0, since a maximum is the largest convex combination."""
        assert multiplier is not None
        rows, zeros = np.arange(layout.rows), np.zeros(layout.rows, dtype=np.int64)
        shares = [cp.Variable(layout.rows, nonneg=True) for _ in self.members]
        constraints: Constraints = [sum(shares) == multiplier(rows, zeros, zeros)]
        terms: list[Term] = []
        for j, (member, share) in enumerate(zip(self.members, shares, strict=True)):

            def own(row: Labels, bound: Labels, coordinate: Labels, share: cp.Variable = share) -> cp.Expression:
                return share[row]

            more, others = member.terms(layout, self.leaves_of(j, leaves), *self.member_scale(j, own, rho))
            terms, constraints = terms + more, constraints + others
        return terms, constraints

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The largest."""
        return self.values(y, leaves).amax(-1, keepdim=True)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The largest."""
        return self.values(y, leaves, recession=True).amax(-1, keepdim=True)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """The largest."""
        found, constraints = self.expressions(y, leaves, root)
        return cp.maximum(*found) if len(found) > 1 else found[0], constraints


@final
@dataclass(frozen=True, eq=False)
class Scaled(Moment):
    """c·g for a constant c ≥ 0: the multiplier is scaled."""

    member: Moment
    factor: float
    sigma: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not (self.factor >= 0 and np.isfinite(self.factor)):
            raise ModelError(f"A moment can only be multiplied by a nonnegative number, not by {self.factor}.")
        if self.member.sigma is not None:
            raise ModelError("Only the multiple of a moment has a bound: leave out sigma, and use moments.bounded.")

    @property
    def degree(self) -> float:
        """That of the member."""
        return self.member.degree

    @property
    def bounds(self) -> int:
        """Those of the member."""
        return self.member.bounds

    @property
    def mixed(self) -> bool:
        """As the member."""
        return self.member.mixed

    @property
    def count(self) -> int:
        """That of the member."""
        return self.member.count

    @property
    def width(self) -> int:
        """That of the member."""
        return self.member.width

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """Those of the member."""
        return self.member.offsets(leaves)

    def ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """Those of the member, times the factor."""
        return [p._replace(weight=self.factor * p.weight) for p in self.member.ingredients(leaves)]

    def scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """Those of the member."""
        return self.member.scales(sigma, leaves)

    def components(self, dim: int) -> int:
        """Those of the member."""
        return self.member.components(dim)

    @property
    def signed(self) -> bool:
        """As the member."""
        return self.member.signed

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the member."""
        return self.member.shapes(dim)

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those of the member."""
        return self.member.constants(dim)

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the member."""
        return self.member.typical(y)

    def links(self, dim: int) -> list[Labels]:
        """Those of the member."""
        return self.member.links(dim)

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """(βcg)* = ((cβ)g)*."""
        assert multiplier is not None

        def scaled(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
            return self.factor * multiplier(row, bound, coordinate)

        return self.member.terms(layout, leaves, scaled, rho, split)

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Scaled."""
        return self.factor * self.member.value(y, leaves)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Scaled."""
        return self.factor * self.member.recession(y, leaves)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """Scaled."""
        found, constraints = self.member.expression(y, leaves, root)
        return (self.factor ** (1.0 / self.degree) if root else self.factor) * found, constraints
