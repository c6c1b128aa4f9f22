"""A worst case as it stands in a program: pieces, blocks, decision rules and what is forbidden, put together.

A decision rule γ = γ₀ + Γ_y y + Γ_u u makes rows affine in y and in lifted components u_c ≥ g_c(y) of the moments.
For a row that adds e_c for a unit of u_c, the supremum over u is finite where β_c ≥ e_c, and then

    sup {aᵀy + eᵀu - βᵀu : y ∈ Ξ, u ≥ g(y)} = sup_{y ∈ Ξ} {aᵀy - Σ_c (β_c - e_c) g_c(y)},

the supremum of the worst case with other multipliers; without β it is that over all outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.ambiguity.base import AmbiguitySet, Rows, laid_out
from drolayers.ambiguity.outer import Constraints
from drolayers.cost.affine_rows import laid
from drolayers.cost.parse import PiecewiseCost
from drolayers.errors import ModelError
from drolayers.reformulation.curved import at_scenarios, one_curve
from drolayers.reformulation.separability import block_rows, lifted_part, offsets_of, rows_of
from drolayers.reformulation.worst_case import WorstCase, supremum, worst_case
from drolayers.support import Layout


def formulate(
    costs: Sequence[PiecewiseCost],
    ambiguity: AmbiguitySet,
    everywhere: bool = False,
    probe: bool = False,
    named: bool = False,
    apart: bool = False,
    possible: cp.Expression | None = None,
) -> WorstCase:
    """c₀(x) + sup E[…] and what comes with it.

    Args:
        costs: the pieces; of several over one stack, for a set that bundles, a vector of worst cases is returned.
        ambiguity: the set.
        everywhere: whether the supremum is over the outcomes that the set allows, not over its distributions.
        probe: whether slopes and offsets can be perturbed.
        named: whether products with known data are variables, for sets that multiply rows by parameters once more.
        apart: whether the price of the multipliers is no part of the value.
        possible: zero where the set is that of an event that cannot happen, which forbids nothing.
    """
    parsed = costs[0]
    if (parsed.components or parsed.atoms > 1) and parsed.owner is not ambiguity:
        raise ModelError("A decision rule responds to the moments of one set, and cannot stand under another one.")
    stack, ties = parsed.named() if named else (parsed.stack, [])
    constraints, reach = [*parsed.constraints, *ties, *vanishing(parsed, stack)], ambiguity.reach
    if parsed.curves and not ambiguity.pinned:
        worst = one_curve(parsed, ambiguity, stack, everywhere, probe)
        return replace(worst, constraints=[*constraints, *worst.constraints])
    free = everywhere and not parsed.components
    links = [*(ambiguity.outcome_links() if free else ambiguity.links()), *reach.links(ambiguity.y.dim)]
    blocks = [block_rows(cost, links) for cost in costs]
    rows = rows_of(costs, blocks, stack)
    fixed = offsets_of(costs, blocks, stack)
    if len(parsed.forbidden):
        never = ambiguity.outcomes(_forbidden_rows(parsed, stack))
        bound, more = supremum(never.rows, reach, never.terms)
        largest = never.rows.offset + bound
        constraints += [*never.constraints, *more]
        if possible is not None:
            # By name, since it holds parameters of the set.
            named_largest = cp.Variable(largest.shape)
            constraints.append(named_largest >= largest)
            largest = possible * named_largest
        constraints.append(largest <= 0)
    if everywhere and not len(parsed.pieces) and not parsed.curves and not probe and len(costs) == 1:
        return WorstCase(fixed, constraints, None)
    shared = not probe
    dual = ambiguity.outcomes(rows, shared) if everywhere else ambiguity.dual(rows, shared)
    curved, more = at_scenarios(parsed, ambiguity, stack)
    constraints += more
    price = dual.price if apart else None
    worst = worst_case(replace(dual, price=cp.Constant(0.0)) if apart else dual, reach, probe, curved)
    return replace(worst, value=fixed + worst.value, constraints=[*constraints, *worst.constraints], price=price)


def _forbidden_rows(parsed: PiecewiseCost, stack: cp.Expression) -> Rows:
    """Rows that must not be positive for any outcome, each over all coordinates, for every atom's rules."""
    count, dim = len(parsed.forbidden), parsed.y.dim
    forbidden = parsed.forbidden.laid(parsed.own)
    layout = Layout(np.repeat(np.arange(count), dim), np.tile(np.arange(dim), count), count)
    layout, block = laid_out(layout, np.arange(count), parsed.atoms)
    slope = cp.vec(forbidden.slope(stack)[:, :dim], order="C") if parsed.components else forbidden.flat_slope(stack)
    lifted = None
    if parsed.components:
        lifted = lifted_part(parsed.forbidden, sp.eye_array(count, format="csr"), parsed, stack)
    return Rows(slope, forbidden.offset(stack), layout, block, lifted=lifted, scenarios=parsed.atoms)


def vanishing(parsed: PiecewiseCost, stack: cp.Expression) -> Constraints:
    """What must vanish for every y: all coefficients do."""
    rows = parsed.equations
    linear = sp.vstack([rows.slope_linear, rows.offset_linear], format="csr")
    constant = np.append(rows.slope_constant.ravel(), rows.offset_constant)
    said = np.flatnonzero((np.diff(linear.indptr) > 0) | (constant != 0))
    if not said.size:
        return []
    every = laid(linear[said], parsed.own)
    return [cp.Constant(every) @ stack + np.tile(constant[said], parsed.atoms) == 0]
