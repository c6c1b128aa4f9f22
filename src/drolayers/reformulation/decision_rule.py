"""Two-stage costs bounded by recourse that is affine in ``y`` and in lifted moments.

For ``min {qᵀγ : Wγ = rhs(x, y), γ ≥ 0}`` take γ = γ₀ + Γ_y y + Γ_u u, where u_c ≥ g_c(y) lifts every additive component
of every moment. The equations must hold for every (y, u), so Wγ₀ and WΓ_y match rhs and WΓ_u = 0; and γ_l ≥ 0 says

    0 ≥ -γ₀_l + sup_{y ∈ Ξ} { -Γ_y,l y - Σ_c Γ_u,lc g_c(y) },     Γ_u ≥ 0,

the supremum of the worst case once more. The rule's cost adds qᵀΓ_y to every slope and takes qᵀΓ_u off the multipliers.
The result is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np

from drolayers.ambiguity.base import AmbiguitySet, Rows
from drolayers.ambiguity.outer import Constraints
from drolayers.cost.parse import RuleRecourse
from drolayers.reformulation.worst_case import supremum
from drolayers.support import Layout


@dataclass(frozen=True)
class RuleCost:
    """What decision rules add to the cost: an affine function of y, and what they take off the multipliers."""

    slope: cp.Expression
    offset: cp.Expression
    lifts: list[cp.Expression]
    constraints: Constraints

    def added_to(self, rows: Rows) -> Rows:
        """Rows with the rules' slopes; their offset belongs to no row."""
        return replace(rows, slope=rows.slope + self.slope[rows.layout.coordinate], sign=None)


def decision_rules(recourses: tuple[RuleRecourse, ...], ambiguity: AmbiguitySet, stack: cp.Expression) -> RuleCost:
    """Affine rules for every two-stage cost."""
    dim = ambiguity.y.dim
    components = ambiguity.lifted_components()
    slope: cp.Expression = cp.Constant(np.zeros(dim))
    offset: cp.Expression = cp.Constant(0.0)
    lifts: list[cp.Expression] = [cp.Constant(np.zeros(count)) for count in components]
    constraints: Constraints = []
    for recourse in recourses:
        size = recourse.q.size
        fixed, by_y = cp.Variable(size), cp.Variable((size, dim))
        by_u = [cp.Variable((size, count), nonneg=True) for count in components]
        constraints += [
            recourse.W @ fixed == recourse.rhs.offset(stack),
            recourse.W @ by_y == recourse.rhs.slope(stack),
        ]
        constraints += [recourse.W @ gamma == 0 for gamma in by_u]
        layout = Layout(np.repeat(np.arange(size), dim), np.tile(np.arange(dim), size), size)
        rows = Rows(-cp.vec(by_y, order="C"), -fixed, layout, np.arange(size))
        terms, more = ambiguity.lifted_terms(rows, by_u)
        pinned = ambiguity.outcomes(rows)
        rows = pinned.rows
        bound, others = supremum(rows, ambiguity.reach, [*terms, *pinned.terms])
        constraints += [*more, *others, rows.offset + bound <= 0]
        price = recourse.weight * recourse.q
        slope, offset = slope + price @ by_y, offset + price @ fixed
        lifts = [lift + price @ gamma for lift, gamma in zip(lifts, by_u, strict=True)]
    if slope.parameters():
        # The set multiplies slopes and lifts by parameters of its own: products with known costs are named.
        written, names = [slope, *lifts], [cp.Variable(part.shape) for part in (slope, *lifts)]
        constraints += [name == part for name, part in zip(names, written, strict=True)]
        slope, *lifts = names
    return RuleCost(slope, offset, lifts, constraints)
