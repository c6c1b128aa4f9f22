"""A worst case as it stands in a program: pieces, blocks, decision rules and what is forbidden, put together.

A decision rule γ = γ₀ + Γ_y y + Γ_u u makes rows affine in y and in lifted components u_c ≥ g_c(y) of the moments.
For a row that adds e_c for a unit of u_c, the supremum over u is finite where β_c ≥ e_c, and then

    sup {aᵀy + eᵀu - βᵀu : y ∈ Ξ, u ≥ g(y)} = sup_{y ∈ Ξ} {aᵀy - Σ_c (β_c - e_c) g_c(y)},

the supremum of the worst case with other multipliers; without β it is that over all outcomes.
"""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.ambiguity.base import AmbiguitySet, Rows, laid_out
from drolayers.ambiguity.outer import Constraints
from drolayers.cost.affine_rows import laid
from drolayers.cost.parse import PiecewiseCost
from drolayers.errors import ModelError
from drolayers.reformulation.separability import block_rows, lifted_part
from drolayers.reformulation.worst_case import WorstCase, supremum, worst_case
from drolayers.support import Layout


def formulate(
    parsed: PiecewiseCost, ambiguity: AmbiguitySet, everywhere: bool = False, probe: bool = False, named: bool = False
) -> WorstCase:
    """c₀(x) + sup E[…] and what comes with it.

    Args:
        parsed: the pieces.
        ambiguity: the set.
        everywhere: whether the supremum is over the outcomes that the set allows, not over its distributions.
        probe: whether slopes and offsets can be perturbed.
        named: whether products with known data are variables, for sets that multiply rows by parameters once more.
    """
    if parsed.components and parsed.owner is not ambiguity:
        raise ModelError("A decision rule responds to the moments of one set, and cannot stand under another one.")
    stack, ties = parsed.named() if named else (parsed.stack, [])
    reach, free = ambiguity.reach, everywhere and not parsed.components
    blocks = block_rows(parsed, [*([] if free else ambiguity.links()), *reach.links(ambiguity.y.dim)])
    rows = blocks.rows(parsed, stack)
    constraints = [*parsed.constraints, *ties, *_vanishing(parsed, stack)]
    fixed = parsed.deterministic + blocks.remainder(parsed, stack)
    if len(parsed.forbidden):
        never = ambiguity.outcomes(_forbidden_rows(parsed, stack))
        bound, more = supremum(never.rows, reach, never.terms)
        constraints += [*never.constraints, *more, never.rows.offset + bound <= 0]
    if everywhere and not len(parsed.pieces):
        return WorstCase(fixed, constraints, None)
    dual = ambiguity.outcomes(rows) if everywhere else ambiguity.dual(rows, share=not probe)
    worst = worst_case(dual, reach, probe)
    return replace(worst, value=fixed + worst.value, constraints=[*constraints, *worst.constraints])


def _forbidden_rows(parsed: PiecewiseCost, stack: cp.Expression) -> Rows:
    """Rows that must not be positive for any y of the support, each over all coordinates, for every atom's rules."""
    count, dim = len(parsed.forbidden), parsed.y.dim
    forbidden = parsed.forbidden.laid(parsed.own)
    layout = Layout(np.repeat(np.arange(count), dim), np.tile(np.arange(dim), count), count)
    layout, block = laid_out(layout, np.arange(count), parsed.atoms)
    slope = cp.vec(forbidden.slope(stack)[:, :dim], order="C")
    lifted = None
    if parsed.components:
        lifted = lifted_part(parsed.forbidden, sp.eye_array(count, format="csr"), parsed, stack)
    return Rows(slope, forbidden.offset(stack), layout, block, None, lifted, parsed.atoms)


def _vanishing(parsed: PiecewiseCost, stack: cp.Expression) -> Constraints:
    """What must vanish for every y: all coefficients do."""
    rows = parsed.equations
    linear = sp.vstack([rows.slope_linear, rows.offset_linear], format="csr")
    constant = np.append(rows.slope_constant.ravel(), rows.offset_constant)
    said = np.flatnonzero((np.diff(linear.indptr) > 0) | (constant != 0))
    if not said.size:
        return []
    every = laid(linear[said], parsed.own)
    return [cp.Constant(every) @ stack + np.tile(constant[said], parsed.atoms) == 0]
