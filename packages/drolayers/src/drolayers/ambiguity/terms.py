"""Terms of the inner supremum: one moment, laid over many rows, ready to be dualised.

For a row with slope a, sup_y {aᵀy - Σ_i β_i g_i(y)} is the minimum of δ*(w₀) + Σ_i (β_i g_i)*(w_i) over all splits
w₀ + Σ_i w_i = a. A term contributes its w_i and an upper bound on its conjugate. Where ``y`` itself is the argument of
the outer function (no matrix in between), w_i can be whatever the others leave: such a term can own its entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from drolayers.ambiguity.outer import Affine, Constraints, Labels, Outer, Sign, Still
from drolayers.products import times
from drolayers.support import Layout, in_cone

Multiplier = Callable[[Labels, Labels, Labels], cp.Expression]
"""From (row, bound, coordinate) of each part to its multiplier; the coordinate matters only where parts are split."""


class Charge(NamedTuple):
    """What a moment is charged in a dual.

    Args:
        multiplier: how to find the multiplier of a part; None where the best one is to be eliminated.
        rho: the size of deviations, one a bound; where degrees are mixed, behind it a coefficient an ingredient.
        split: whether an additive function gets a part of its own for every coordinate.
    """

    multiplier: Multiplier | None
    rho: cp.Expression | None
    split: bool = False


@dataclass(frozen=True)
class Contribution:
    """What a term adds to the rows: an upper bound on its conjugate, and its share of the slope."""

    value: cp.Expression
    share: cp.Expression | None
    constraints: Constraints


@dataclass(frozen=True)
class Parts:
    """The vectors to which the outer function is applied: one for every row and bound that meet."""

    row: Labels
    bound: Labels
    coordinate: Labels

    @property
    def count(self) -> int:
        """Number of parts."""
        return self.row.size


class Term(ABC):
    """One moment over many rows."""

    owned: Labels | None
    """Entries that this term can own, or None."""

    @abstractmethod
    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """The term's dual; with a remainder it owns its entries and takes what is left of the slope there.

        ``sign`` tells the known signs of the remainder.
        """


@final
@dataclass(frozen=True, eq=False)
class OuterTerm(Term):
    """φ(My - h): with one τ a component, the share of the slope is Mᵀτ.

    Args:
        outer: φ.
        entry: the entries that M touches.
        part: the part of every component.
        parts: the vectors of which φ is taken.
        shift: h, component by component; one for all, or None where it is zero.
        transpose: from τ to Mᵀτ at these entries; None where components are the entries themselves.
        multiplier: one a part; None where the best one is to be eliminated. A linear φ has τ = multiplier.
        rho: the size of deviations, one a part.
    """

    outer: Outer | Still
    entry: Labels
    part: Labels
    parts: Parts
    shift: cp.Expression | NDArray[np.float64] | None
    transpose: Callable[[cp.Expression], cp.Expression] | None
    multiplier: cp.Expression | None
    rho: cp.Expression | None

    @property
    def owned(self) -> Labels | None:  # type: ignore[override]
        """All its entries, where they are components that are free."""
        return self.entry if self.transpose is None and not isinstance(self.outer, Affine) else None

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """Variables of its own, or what is left."""
        entries = layout.row.size
        whole = np.array_equal(self.entry, np.arange(entries))
        share: cp.Expression | None = None
        ties: Constraints = []
        if remainder is not None:
            tau = remainder if whole else remainder[self.entry]
        else:
            tau = self._slope if isinstance(self.outer, Affine) else cp.Variable(self.part.size)
            share = tau if self.transpose is None else self.transpose(tau)
            if tau.parameters() and not share.is_dpp():
                # The coefficient of a member of a sum and a learnt direction would be a product of parameters.
                slope, tau = tau, cp.Variable(self.part.size)
                ties = [tau == slope]
                assert self.transpose is not None
                share = self.transpose(tau)
            share = share if whole and self.transpose is None else _spread(self.entry, entries) @ share
        known = None if sign is None or remainder is None else sign[self.entry]
        bound, constraints = self._conjugate(tau, known)
        value = to_rows(bound, self.parts.row, layout)
        if self.shift is not None:
            value = value + to_rows(times(self.shift, tau), self.parts.row[self.part], layout)
        return Contribution(value, share, [*ties, *constraints])

    @property
    def _slope(self) -> cp.Expression:
        """τ of a linear φ."""
        assert self.multiplier is not None
        return self.multiplier if np.array_equal(self.part, np.arange(self.parts.count)) else self.multiplier[self.part]

    def _conjugate(self, tau: cp.Expression, sign: Sign) -> tuple[cp.Expression | None, Constraints]:
        """The scaled conjugate ρt̃, one a part; without a multiplier, ρ·gauge(τ), which is what the best one gives."""
        if isinstance(self.outer, Affine):
            return None, []
        bound, constraints = (
            self.outer.gauge(tau, self.part, self.parts.count, sign)
            if self.multiplier is None
            else self.outer.conjugate(tau, self.part, self.multiplier)
        )
        return bound if self.rho is None or bound is None else times(self.rho, bound), constraints


@final
@dataclass(frozen=True, eq=False)
class ConicTerm(Term):
    """A moment given by the cones of its epigraph, A_j [y; u; v] - b_j ∈ L: conic duality as it stands."""

    rows: Labels
    entry: NDArray[np.int64]
    dim: int
    matrices: list[cp.Expression | NDArray[np.float64]]
    vectors: list[cp.Expression | NDArray[np.float64]]
    multiplier: cp.Expression
    owned: Labels | None = None

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """Min -Σ bᵀη with w = -Σ A_yᵀη, Σ A_uᵀη = β, Σ A_vᵀη = 0 and η in the cones."""
        count = self.rows.size
        etas = [cp.Variable((M.shape[0], count)) for M in self.matrices]

        def total(first: int, last: int) -> cp.Expression:
            return sum(M[:, first:last].T @ eta for M, eta in zip(self.matrices, etas, strict=True))

        width = self.matrices[0].shape[1]
        constraints: Constraints = [in_cone(eta) for eta in etas]
        constraints.append(total(self.dim, self.dim + 1)[0] == self.multiplier)
        if width > self.dim + 1:
            constraints.append(total(self.dim + 1, width) == 0)
        value = -sum(eta.T @ b for eta, b in zip(etas, self.vectors, strict=True))
        share = _spread(self.entry.ravel(), layout.row.size) @ -cp.vec(total(0, self.dim), order="F")
        return Contribution(to_rows(value, self.rows, layout), share, constraints)


def _spread(entry: Labels, entries: int) -> sp.csr_array:
    """The matrix that puts values at some entries of a flat slope."""
    return sp.csr_array((np.ones(entry.size), (entry, np.arange(entry.size))), shape=(entries, entry.size))


def to_rows(value: cp.Expression | None, row: Labels, layout: Layout) -> cp.Expression:
    """Add up values by row."""
    if value is None:
        return cp.Constant(np.zeros(layout.rows))
    if row.size == layout.rows and np.array_equal(row, np.arange(layout.rows)):
        return value
    return sp.csr_array((np.ones(row.size), (row, np.arange(row.size))), shape=(layout.rows, row.size)) @ value
