"""The worst-case expectation as a minimum: the one formula from which every program of the library is made.

    f(x, θ) = c₀(x) + min_{β ≥ 0}  price(θ)ᵀβ + Σ_n ω_n Σ_B max_k { b_k(x) + sup_{y ∈ Ξ} [ a_k(x)ᵀy - Σ_i β_i g_i(y) ] }

for blocks B, pieces k of a block and scenarios n (the atoms of a Wasserstein ball; one for a moment set). The inner
supremum is dualised by Fenchel's theorem,

    sup_{y ∈ Ξ} { aᵀy - Σ β_i g_i(y) } = min { δ*(w₀) + Σ_i (β_i g_i)*(w_i) : w₀ + Σ_i w_i = a }.

w₀ is eliminated (the support function is asked at what the others leave), and on all of space, where w₀ = 0, so is the
share of every term that can take what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.ambiguity.base import Rows, SetDual
from drolayers.ambiguity.outer import Constraints
from drolayers.ambiguity.terms import Contribution, Term
from drolayers.support import Reals, Support


def supremum(rows: Rows, support: Support, terms: list[Term]) -> tuple[cp.Expression, Constraints]:
    """An upper bound on sup_{y ∈ Ξ} {aᵀy - Σ_i β_i g_i(y)}, one a row, tight when minimised."""
    layout = rows.layout
    owners = _owners(terms, layout.row.size) if isinstance(support, Reals) else []
    found: list[Contribution] = [t.contribute(layout, None) for t in terms if t not in owners]
    left = rows.slope
    for contribution in found:
        if contribution.share is not None:
            left = left - contribution.share
    sign = rows.sign if not found else None
    ties: Constraints = []
    if owners and found and left.parameters():
        # What is left is multiplied by parameters once more: products of parameters are not DPP, so it is named.
        named = cp.Variable(layout.row.size)
        left, ties = named, [named == left]
    found += [owner.contribute(layout, left, sign) for owner in owners]
    value: cp.Expression = sum((c.value for c in found), start=cp.Constant(np.zeros(layout.rows)))
    constraints = ties + [constraint for contribution in found for constraint in contribution.constraints]
    taken = np.zeros(layout.row.size, dtype=bool)
    for owner in owners:
        taken[owner.owned] = True
    if not owners:
        rest, more = support.conjugate(left, layout)
        return value + rest, constraints + more
    if not taken.all():
        constraints.append(left[np.flatnonzero(~taken)] == 0)
    return value, constraints


@dataclass(frozen=True)
class Probe:
    """Rows of an evaluation whose slopes and offsets can be perturbed: f's derivatives are the worst distribution.

    Args:
        rows: the rows of all scenarios.
        slope: perturbation of the slopes, ``(entries,)``.
        offset: perturbation of the offsets, ``(rows,)``.
        values: the slopes themselves, as a variable of the program.
        unit: by which the sum over blocks is multiplied, and so are these slopes; perturbations are of the product.
    """

    rows: Rows
    slope: cp.Parameter
    offset: cp.Parameter
    values: cp.Variable
    unit: float


@dataclass(frozen=True)
class WorstCase:
    """sup_{P ∈ U(θ)} E_P[…] as an expression to be minimised subject to constraints.

    What the multipliers cost is a part of it, unless it stands apart as their price.
    """

    value: cp.Expression
    constraints: Constraints
    probe: Probe | None
    price: cp.Expression | None = None


def worst_case(dual: SetDual, support: Support, probe: bool = False, curved: cp.Expression | None = None) -> WorstCase:
    """sup_{P ∈ U(θ)} E_P Σ_B max_k {a_k(x)ᵀy + b_k(x)}; a vector of them where rows have owners.

    Args:
        dual: of the set U(θ) over the pieces of all blocks.
        support: of y.
        probe: whether slopes and offsets become variables that can be perturbed.
        curved: what is to be added to the sum of every scenario, of a single worst case.
    """
    expanded, constraints = dual.rows, list(dual.constraints)
    probed = None
    if probe:
        probed, ties = _probed(expanded, dual.unit)
        expanded, constraints = probed.rows, [*constraints, *ties]
    bound, more = supremum(expanded, support, dual.terms)
    value = expanded.offset + bound
    constraints += more
    lone = expanded.lone
    # What is summed, and to which block it belongs.
    parts, blocks = [], []
    if lone.any():
        parts.append(value if lone.all() else value[np.flatnonzero(lone)])
        blocks.append(expanded.block[lone])
    if not lone.all():
        largest, constraint = _block_maxima(value, expanded, np.flatnonzero(~lone))
        parts.append(largest)
        blocks.append(np.unique(expanded.block[~lone]))
        constraints.append(constraint)
    if dual.combined is None and expanded.owner is None:
        added = [] if curved is None else [curved]
        return WorstCase(dual.price + dual.unit * sum(cp.sum(part) for part in [*parts, *added]), constraints, probed)
    # Sums of every scenario, where they are combined, and in each of every worst case.
    scenario = np.zeros(sum(part.size for part in parts), dtype=np.int64)
    if dual.combined is not None:
        each = max(1, (int(expanded.block.max(initial=-1)) + 1) // dual.scenarios)
        scenario = np.concatenate(blocks) // each
    whose = scenario * expanded.owners + _owner_of_block(expanded)[np.concatenate(blocks)]
    shape = ((1 if dual.combined is None else dual.scenarios) * expanded.owners, whose.size)
    # The unit is in the matrix, since CVXPY's fast way stumbles over its products with vectors that hold parameters.
    unit = dual.unit if dual.combined is None else 1.0
    total = sp.csr_array((np.full(whose.size, unit), (whose, np.arange(whose.size))), shape=shape) @ cp.hstack(parts)
    if dual.combined is None:
        return WorstCase(dual.price + total, constraints, probed)
    total, more = dual.combined(total if curved is None else total + curved)
    return WorstCase(dual.price + dual.unit * total, [*constraints, *more], probed)


def _probed(rows: Rows, unit: float) -> tuple[Probe, Constraints]:
    """Slopes as variables, since parameters multiply them once more, and offsets as they are, plus perturbations."""
    slope = cp.Variable(rows.slope.shape[0], name="slope")
    da, db = cp.Parameter(slope.shape, name="slope probe"), cp.Parameter(rows.offset.shape[0], name="offset probe")
    probed = Rows(slope, rows.offset + db / unit, rows.layout, rows.block)
    return Probe(probed, da, db, slope, unit), [slope == rows.slope + da / unit]


def _block_maxima(value: cp.Expression, rows: Rows, crowded: np.ndarray) -> tuple[cp.Variable, cp.Constraint]:
    """One epigraph variable for every block of several rows."""
    blocks, position = np.unique(rows.block[crowded], return_inverse=True)
    largest = cp.Variable(blocks.size, name="s")
    pick = sp.csr_array((np.ones(crowded.size), (np.arange(crowded.size), position)), shape=(crowded.size, blocks.size))
    return largest, pick @ largest >= value[crowded]


def _owner_of_block(rows: Rows) -> np.ndarray:
    """To which worst case every block belongs."""
    found = np.zeros(int(rows.block.max(initial=-1)) + 1, dtype=np.int64)
    if rows.owner is not None:
        found[rows.block] = rows.owner
    return found


def _owners(terms: list[Term], entries: int) -> list[Term]:
    """Terms that take what the others leave, no entry twice."""
    free = np.ones(entries, dtype=bool)
    owners = []
    for term in terms:
        if term.owned is not None and term.owned.size and free[term.owned].all():
            free[term.owned] = False
            owners.append(term)
    return owners
