"""Blocks of coordinates across which the worst case is a sum, and the rows of every block.

Two coordinates are linked when they share a maximum of at least two pieces, a non-additive part of a moment, or a
non-product part of the support. A block's rows are all combinations of the pieces of its maxima, so an n-item
newsvendor has 2n rows where its moments are additive and 2ⁿ where they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from drolayers.ambiguity.base import Rows, laid_out
from drolayers.ambiguity.outer import Labels
from drolayers.cost.affine_rows import AffineRows, affine, laid
from drolayers.cost.parse import PiecewiseCost
from drolayers.errors import ModelError
from drolayers.support import Layout

LIMIT = 4096
"""The most rows that one block may have."""


@dataclass(frozen=True)
class BlockRows:
    """The rows of all blocks as a linear map of the pieces' coefficients.

    Args:
        layout: row and coordinate of every entry.
        block: block of every row.
        pick_slope: ``(entries, pieces·dim)``, picks and adds up the slopes of pieces.
        pick_offset: ``(rows, pieces)``.
        affine: pieces that are alone in their term: their offsets belong to no row, unless atoms have their own rules.
    """

    layout: Layout
    block: NDArray[np.int64]
    pick_slope: sp.csr_array
    pick_offset: sp.csr_array
    affine: NDArray[np.int64]

    def coefficients(self, cost: PiecewiseCost) -> tuple[sp.csr_array, NDArray, sp.csr_array, NDArray]:
        """Of the slopes of all rows, and of their offsets: linear in the stack, and constant; atom by atom."""
        pieces, own, count = cost.pieces, cost.own, cost.atoms
        picked = self.pick_offset
        if count > 1:
            # A block's rows have the offsets of all that is affine: whichever is the largest, it counts once.
            picked = picked + sp.csr_array(np.outer(self.block == 0, np.isin(np.arange(len(pieces)), self.affine)))
        return (
            laid(sp.csr_array(self.pick_slope @ pieces.slope_linear), own),
            np.tile(self.pick_slope @ pieces.slope_constant.ravel(), count),
            laid(sp.csr_array(picked @ pieces.offset_linear), own),
            np.tile(picked @ pieces.offset_constant, count),
        )

    def lifted(self, cost: PiecewiseCost, stack: cp.Expression) -> Callable[[Labels, Labels], cp.Expression]:
        """What rows add for lifted components: the pieces that they are made of, and all that are affine."""
        pieces = cost.pieces
        chosen = np.zeros(len(pieces))
        chosen[self.affine] = 1.0
        picked = sp.csr_array(self.pick_offset + np.outer(np.ones(self.layout.rows), chosen))
        return lifted_part(pieces, picked, cost, stack)

    def remainder(self, cost: PiecewiseCost) -> tuple[sp.csr_array, float]:
        """The offsets of terms of one piece, which the worst case leaves alone: linear in the stack, and constant."""
        pieces = cost.pieces
        if cost.atoms > 1:
            return sp.csr_array((1, pieces.width)), 0.0
        linear = sp.csr_array(pieces.offset_linear[self.affine].sum(0).reshape(1, -1))
        return linear, float(pieces.offset_constant[self.affine].sum())


def rows_of(costs: Sequence[PiecewiseCost], blocks: Sequence[BlockRows], stack: cp.Expression) -> Rows:
    """The rows of a cost as expressions of the decision; of several over one stack, one after another, with owners.

    Where a decision rule stands in it, a cost is alone.
    """
    parts = [block.coefficients(cost) for cost, block in zip(costs, blocks, strict=True)]
    linear, offset_linear = (sp.csr_array(sp.vstack([part[k] for part in parts], format="csr")) for k in (0, 2))
    constant, offset_constant = (np.concatenate([part[k] for part in parts]) for k in (1, 3))
    slope, offset = affine(linear, constant, stack), affine(offset_linear, offset_constant, stack)
    signs = _sign(linear, constant, costs[0])
    if len(costs) == 1:
        (cost,), (block,) = costs, blocks
        return Rows(
            slope,
            offset,
            *laid_out(block.layout, block.block, cost.atoms),
            signs,
            lifted=block.lifted(cost, stack) if cost.components else None,
            scenarios=cost.atoms,
        )
    assert not any(cost.components or cost.atoms > 1 for cost in costs)
    counts = np.array([block.layout.rows for block in blocks])
    starts = np.cumsum(counts) - counts
    firsts = np.cumsum([0, *(int(block.block.max(initial=-1)) + 1 for block in blocks[:-1])])
    layout = Layout(
        np.concatenate([block.layout.row + start for block, start in zip(blocks, starts, strict=True)]),
        np.concatenate([block.layout.coordinate for block in blocks]),
        int(counts.sum()),
    )
    return Rows(
        slope,
        offset,
        layout,
        np.concatenate([block.block + first for block, first in zip(blocks, firsts, strict=True)]),
        signs,
        np.repeat(np.arange(len(costs)), counts),
    )


def offsets_of(costs: Sequence[PiecewiseCost], blocks: Sequence[BlockRows], stack: cp.Expression) -> cp.Expression:
    """What does not depend on ``y``: a number, or one for each of several costs."""
    left = [block.remainder(cost) for cost, block in zip(costs, blocks, strict=True)]
    if len(costs) == 1:
        return costs[0].deterministic + cp.sum(affine(left[0][0], np.array([left[0][1]]), stack))
    own = [cost.constant for cost in costs]
    linear = sp.csr_array(sp.vstack([o.offset_linear + one for o, (one, _) in zip(own, left, strict=True)]))
    constant = np.array([o.offset_constant[0] + one for o, (_, one) in zip(own, left, strict=True)])
    found = affine(linear, constant, stack)
    if any(cost.certain for cost in costs):
        found = found + cp.hstack([sum(cost.certain, start=cp.Constant(0.0)) for cost in costs])
    return found


def lifted_part(
    pieces: AffineRows, picked: sp.csr_array, cost: PiecewiseCost, stack: cp.Expression
) -> Callable[[Labels, Labels], cp.Expression]:
    """What combinations of pieces, atom by atom, add for a unit of lifted components, by (row, component)."""
    dim, base = cost.y.dim, picked.shape[0]

    def part(row: Labels, component: Labels) -> cp.Expression:
        atom, within = np.divmod(row, base)
        some = picked[within].tocoo()
        place = some.col * pieces.dim + dim + component[some.row]
        shape = (row.size, len(pieces) * pieces.dim)
        pick = sp.csr_array((some.data, (some.row, place)), shape=shape)
        linear = (pick @ pieces.slope_linear).tocoo()
        column = cost.own[atom[linear.row], linear.col]
        moved = sp.csr_array((linear.data, (linear.row, column)), shape=linear.shape)
        return affine(moved, pick @ pieces.slope_constant.ravel(), stack)

    return part


def block_rows(cost: PiecewiseCost, links: Sequence[NDArray[np.int64]]) -> BlockRows:
    """Split the coordinates into blocks and list the rows of each.

    Args:
        cost: the pieces.
        links: groups of coordinates tied together by the ambiguity set and the support.

    Raises:
        ModelError: a block would have too many rows.
    """
    dim, term = cost.y.dim, cost.term
    pieces_of = np.bincount(term, minlength=cost.terms)
    affine = np.flatnonzero(pieces_of[term] == 1) if term.size else np.zeros(0, dtype=np.int64)
    seen = _seen_by_term(cost)
    multi = np.flatnonzero(pieces_of > 1)
    label = _components(dim, [*[np.flatnonzero(seen[j]) for j in multi], *links])
    block_of_term = {int(j): int(label[np.flatnonzero(seen[j])[0]]) for j in multi}
    terms_of: dict[int, list[int]] = {}
    for j, block in block_of_term.items():
        terms_of.setdefault(block, []).append(j)

    # Coordinates without a maximum have one row a block: together they are one block of one row.
    quiet = np.flatnonzero(~np.isin(label, list(terms_of)))
    members = {block: np.flatnonzero(label == block) for block in terms_of}
    choices: list[NDArray[np.int64]] = []
    blocks: list[NDArray[np.int64]] = []
    pieces_by_term = {int(j): np.flatnonzero(term == j) for j in multi}
    for block, terms in terms_of.items():
        with np.errstate(over="ignore"):
            count = np.prod([pieces_of[j] for j in terms], dtype=float)
        if count > LIMIT:
            raise ModelError(
                f"The worst case needs {count:.6g} combinations of pieces in one block of {members[block].size} "
                f"coordinates (the limit is {LIMIT:,}), since the ambiguity set, the support or a maximum ties them "
                "together: use additive moments (Norm(1), SquaredNorm), a Wasserstein ball of (norm 1, order 1) or "
                "(norm 2, order 2), or fewer pieces."
            )
        grid = np.meshgrid(*[pieces_by_term[j] for j in terms], indexing="ij")
        choices.append(np.stack([g.ravel() for g in grid], 1))
        blocks.append(members[block])
    return _assemble(cost, choices, blocks, quiet, affine)


def _assemble(
    cost: PiecewiseCost,
    choices: list[NDArray[np.int64]],
    blocks: list[NDArray[np.int64]],
    quiet: NDArray[np.int64],
    affine: NDArray[np.int64],
) -> BlockRows:
    """Lay out rows and entries, and the matrices that fill them."""
    pieces = len(cost.pieces)
    if quiet.size:
        choices, blocks = [*choices, np.zeros((1, 0), dtype=np.int64)], [*blocks, quiet]
    counts = [len(choice) for choice in choices]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    row, coordinate, entry_piece, entry_index, offset_row, offset_piece = ([] for _ in range(6))
    entries = 0
    for k, (choice, members) in enumerate(zip(choices, blocks, strict=True)):
        rows = starts[k] + np.arange(counts[k])
        row.append(np.repeat(rows, members.size))
        coordinate.append(np.tile(members, counts[k]))
        index = entries + np.arange(counts[k] * members.size)
        # Chosen pieces of the block's maxima, and every affine piece on the block's coordinates.
        picked = np.concatenate([choice, np.tile(affine, (counts[k], 1))], 1)
        flat = picked[:, None, :] * cost.pieces.dim + members[None, :, None]
        entry_index.append(np.repeat(index, picked.shape[1]))
        entry_piece.append(flat.ravel())
        offset_row.append(np.repeat(rows, choice.shape[1]))
        offset_piece.append(choice.ravel())
        entries += index.size
    total = int(starts[-1])
    where, what = np.concatenate(entry_index), np.concatenate(entry_piece)
    rows_of, pieces_of = np.concatenate(offset_row), np.concatenate(offset_piece)
    return BlockRows(
        Layout(np.concatenate(row), np.concatenate(coordinate), total),
        np.repeat(np.arange(len(counts)), counts),
        sp.csr_array((np.ones(where.size), (where, what)), shape=(entries, pieces * cost.pieces.dim)),
        sp.csr_array((np.ones(rows_of.size), (rows_of, pieces_of)), shape=(total, pieces)),
        affine,
    )


def _seen_by_term(cost: PiecewiseCost) -> NDArray[np.bool_]:
    """Which coordinates each maximum sees, also through what is lifted."""
    seen = np.zeros((cost.terms, cost.pieces.dim), dtype=bool)
    np.logical_or.at(seen, cost.term, cost.pieces.coordinates())
    for c, part in enumerate(cost.components):
        seen[:, part] |= seen[:, [cost.y.dim + c]]
    return seen[:, : cost.y.dim]


def _components(dim: int, groups: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The connected component of every coordinate."""
    pairs = [(group[0], other) for group in groups if group.size for other in group[1:]]
    heads, tails = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = sp.coo_array((np.ones(heads.size), (heads, tails)), shape=(dim, dim))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _sign(linear: sp.csr_array, constant: NDArray[np.float64], cost: PiecewiseCost) -> NDArray[np.float64]:
    """The sign of every entry where the signs of the stack settle it; of the stack it is NaN where nothing does."""
    signs = [np.full(v.size, 1.0 if v.is_nonneg() else -1.0 if v.is_nonpos() else np.nan) for v in cost.variables]
    known = np.concatenate([np.zeros(0), *signs])
    known = np.append(known, cost.products.signs(known) if len(cost.products.column) else [])
    effects = sp.coo_array(linear)
    pull = np.sign(effects.data) * known[effects.col]
    low, high = np.sign(constant), np.sign(constant)
    np.minimum.at(low, effects.row, np.where(np.isnan(pull), -1.0, pull))
    np.maximum.at(high, effects.row, np.where(np.isnan(pull), 1.0, pull))
    return np.where(low >= 0, 1.0, np.where(high <= 0, -1.0, 0.0))
