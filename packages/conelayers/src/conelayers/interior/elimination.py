"""In which order the unknowns of an interior-point step are eliminated, and what fills in: made once a program.

Every step solves  [P, Aᵀ; A, -H]  for columns and rows. Of H the orthant needs the diagonal, a small second-order cone
its square block, and a large one two nodes of its own (``numba_algebra.assemble``), so that no cone makes the system
dense. The matrix is quasi-definite, so that K = LDLᵀ exists in every order; a fill-reducing one is taken, and the place
of every entry is known before any number is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numpy.typing import NDArray

from conelayers.program.program import ConeProgram, copy_array, row_index

Ints = NDArray[np.int64]

DENSE = 10.0
"""A node of more neighbours than so many roots of all nodes' number is eliminated after all others."""

SQUARE = 5
"""Dimension of second-order cones up to which their block of H is written out."""


@dataclass(frozen=True, eq=False)
class Elimination:
    """Places of all entries. A place below ``nodes`` is a pivot; ``nodes + p`` is entry ``p`` of L, stored by columns.

    Args:
        nodes: columns, then rows, then two for every large cone.
        position: where each node stands in the order of elimination.
        start: where the columns of L begin.
        below: the position of every entry of L, within its column.
        row_start: where the rows of L begin in ``row_entry``.
        row_entry: the entries of L by rows, as places within L.
        row_column: the column of each of them.
        sign: of every pivot, by position: the matrix is quasi-definite.
        soft: the same for columns and rows, zero for the nodes of large cones: what may be moved away from zero.
        A: places of the entries of A.
        P: places of the entries of P; -1 for the mirror image of an entry that has one.
        diagonal: places of H's diagonal, one a row that is scaled.
        square: places of the lower triangles of small cones' blocks, cone by cone, row by row.
        cone_start: first row of every second-order cone.
        cone_size: its dimension.
        extra: for a large cone where its two nodes' entries begin in ``edge``, -1 for a small one.
        edge: places of (pivot, entries) of both nodes of every large cone: v, then u.
    """

    nodes: int
    position: Ints
    start: Ints
    below: Ints
    row_start: Ints
    row_entry: Ints
    row_column: Ints
    sign: NDArray[np.float64]
    soft: NDArray[np.float64]
    A: Ints
    P: Ints
    diagonal: Ints
    square: Ints
    cone_start: Ints
    cone_size: Ints
    extra: Ints
    edge: Ints

    @classmethod
    def of(cls, program: ConeProgram) -> Elimination:
        """Order a program's system and lay it out."""
        n, m, cones = program.columns, program.rows, program.cones
        sizes = np.array(cones.soc, dtype=np.int64)
        starts = cones.zero + cones.nonneg + np.cumsum(sizes) - sizes
        large = np.flatnonzero(sizes > SQUARE)
        nodes = n + m + 2 * large.size
        A_row, A_column = row_index(program.A_indptr).numpy(), program.A_indices.numpy()
        P_row, P_column = row_index(program.P_indptr).numpy(), program.P_indices.numpy()
        # Lower triangles of small cones, and the two stars of large ones.
        square = [
            (start + np.array(pair)).T for start, size in zip(starts, sizes, strict=True) if size <= SQUARE
            for pair in [[(i, j) for i in range(size) for j in range(i + 1)]]
        ]  # fmt: skip
        blocks = np.concatenate([np.zeros((2, 0), dtype=np.int64), *square], 1)
        edges: list[np.ndarray] = [np.zeros((2, 0), dtype=np.int64)]
        for k, cone in enumerate(large):
            for node in (n + m + 2 * k, n + m + 2 * k + 1):
                rows = n + starts[cone] + np.arange(sizes[cone])
                edges.append(np.stack([np.full(sizes[cone] + 1, node), np.concatenate([[node], rows])]))
        edge = np.concatenate(edges, 1)
        pairs = [(n + A_row, A_column), (P_row, P_column), (n + blocks[0], n + blocks[1]), (edge[0], edge[1])]
        first, second = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
        position, L = _order(nodes, first, second)
        columns = np.repeat(np.arange(nodes), np.diff(L.indptr))
        keys = columns * nodes + L.indices

        def place(i: np.ndarray, j: np.ndarray) -> np.ndarray:
            low, high = np.minimum(position[i], position[j]), np.maximum(position[i], position[j])
            return np.where(low == high, low, nodes + np.searchsorted(keys, low * nodes + high))

        mirrored = position[P_row] < position[P_column]
        rows = n + np.arange(cones.zero, m)
        by_row = np.argsort(L.indices, kind="stable")
        sign = np.ones(nodes)
        sign[position[n : n + m]] = -1.0
        sign[position[n + m :: 2]] = -1.0
        soft = sign.copy()
        soft[position[n + m :]] = 0.0
        extra = np.full(sizes.size, -1, dtype=np.int64)
        lengths = 2 * (sizes[large] + 1)
        extra[large] = np.cumsum(lengths) - lengths
        return cls(
            nodes=nodes,
            position=position,
            start=L.indptr.astype(np.int64),
            below=L.indices.astype(np.int64),
            row_start=np.concatenate([[0], np.cumsum(np.bincount(L.indices, minlength=nodes))]),
            row_entry=by_row,
            row_column=columns[by_row],
            sign=sign,
            soft=soft,
            A=place(n + A_row, A_column),
            P=np.where(mirrored, -1, place(P_row, P_column)),
            diagonal=place(rows, rows),
            square=place(n + blocks[0], n + blocks[1]),
            cone_start=starts,
            cone_size=sizes,
            extra=extra,
            edge=place(edge[0], edge[1]),
        )

    @property
    def length(self) -> int:
        """Pivots and entries of L together."""
        return self.nodes + self.below.size


@final
@dataclass(frozen=True, eq=False)
class Structure:
    """What all programs of one structure share, as arrays; ``numbers`` is how many a step touches, about."""

    plan: Elimination
    numbers: int
    rows: int
    row: Ints
    column: Ints
    P_row: Ints
    P_column: Ints
    cones: tuple[Any, ...]

    @classmethod
    def of(cls, program: ConeProgram) -> Structure:
        """From a program."""
        plan, cones = Elimination.of(program), program.cones
        return cls(
            plan,
            plan.length + 12 * program.rows + plan.A.size,
            program.rows,
            row_index(program.A_indptr).numpy(),
            copy_array(program.A_indices),
            row_index(program.P_indptr).numpy(),
            copy_array(program.P_indices),
            (cones.zero, cones.zero + cones.nonneg, plan.cone_start, plan.cone_size),
        )


def _order(nodes: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, sp.csc_array]:
    """Positions of the nodes by minimum degree, and the pattern of L below its diagonal, in that order.

    SuperLU has both; it is given a matrix of the same pattern that is dominated by its diagonal and so needs no pivots.
    Nodes that nearly all others touch, as the multiplier of a ball's radius is, come last by themselves, as in AMD:
    minimum degree takes time that grows with their square.
    """
    i, j = np.concatenate([first, second]), np.concatenate([second, first])
    noise = np.random.default_rng(0).uniform(0.5, 1.0, i.size)
    matrix = sp.csc_array((noise, (i, j)), shape=(nodes, nodes))
    matrix.sum_duplicates()
    size = np.asarray(np.abs(matrix).sum(0)).ravel() + np.asarray(np.abs(matrix).sum(1)).ravel()
    matrix = sp.csc_array(matrix + sp.diags_array(4.0 * size + 1.0))
    dense = np.diff(matrix.indptr) > max(DENSE * np.sqrt(nodes), 16)
    order, rest = np.flatnonzero(dense), np.flatnonzero(~dense)
    if rest.size:
        inner = _factors(matrix[rest][:, rest], "MMD_AT_PLUS_A")
        order = np.concatenate([rest[np.argsort(inner.perm_c)], order])
    position = np.empty(nodes, dtype=np.int64)
    position[order] = np.arange(nodes)
    L = sp.csc_array(sp.tril(_factors(matrix[order][:, order], "NATURAL").L, -1))
    L.sort_indices()
    return position, L


def _factors(matrix: sp.csc_array, order: str) -> Any:
    """SuperLU's factors, without pivoting."""
    options = {"SymmetricMode": True, "Equil": False}
    found = spla.splu(sp.csc_array(matrix), permc_spec=order, diag_pivot_thresh=0.0, options=options)
    assert np.array_equal(found.perm_r, found.perm_c)
    return found
