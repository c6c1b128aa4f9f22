"""Vertices and extreme rays of the dual ``{p : W'p <= q}`` of a two-stage cost, for small systems."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

BASIS_LIMIT = 20_000
VERTEX_LIMIT = 512
# Relative to columns of W of length one; what is closer than this is taken for a tie.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class DualVertices:
    """The dual of a two-stage cost: ``sum_b max {points[v]'rhs : block[v] = b}`` where ``forbidden @ rhs <= 0``.

    The second stage often falls apart into independent systems; each is a block with vertices of its own.
    """

    points: sp.csr_array
    block: np.ndarray
    forbidden: sp.csr_array

    @property
    def blocks(self) -> int:
        """Number of independent systems."""
        return int(self.block.max()) + 1 if len(self.block) else 0


def dual_vertices(q: np.ndarray, W: np.ndarray) -> DualVertices | None:
    """Enumerates the vertices and extreme rays of ``{p : W'p <= q}``; None when there are too many candidates.

    Where ``W`` has dependent rows, the right-hand side must satisfy the same dependences: these come out as pairs of
    forbidden rows, and the vertices are those of the independent rows.
    """
    rows = W.shape[0]
    points: list[sp.csr_array] = []
    forbidden: list[sp.csr_array] = []
    block: list[np.ndarray] = []
    for number, (members, columns) in enumerate(_systems(W)):
        inside = W[np.ix_(members, columns)]
        independent, dependent, relation = _independent_rows(inside)
        reduced = inside[independent]
        found = _enumerate(q[columns], reduced)
        if found is None:
            return None
        vertices, rays = found
        points.append(_scatter(vertices, members[independent], rows))
        forbidden.append(_scatter(rays, members[independent], rows))
        block.append(np.full(len(vertices), number))
        if len(dependent):
            null = np.zeros((len(dependent), len(members)))
            null[:, dependent] = np.eye(len(dependent))
            null[:, independent] = -relation
            forbidden += [_scatter(null, members, rows), _scatter(-null, members, rows)]
    return DualVertices(
        sp.csr_array(sp.vstack(points)), np.concatenate(block).astype(int), sp.csr_array(sp.vstack(forbidden))
    )


def _systems(W: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and columns of the independent systems: the connected components of the pattern of ``W``."""
    rows = W.shape[0]
    _, label = connected_components(sp.bmat([[None, W != 0], [(W != 0).T, None]]), directed=False)
    return [
        (np.flatnonzero(label[:rows] == name), np.flatnonzero(label[rows:] == name)) for name in np.unique(label[:rows])
    ]


def _independent_rows(W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Independent rows, the others, and the matrix that makes the others of the independent ones."""
    if W.shape[1] == 0:
        return np.zeros(0, dtype=int), np.arange(W.shape[0]), np.zeros((W.shape[0], 0))
    _, R, order = scipy.linalg.qr(W.T, mode="economic", pivoting=True)
    size = np.abs(np.diag(R))
    rank = int(np.sum(size > TOLERANCE * size[0]))
    independent, dependent = np.sort(order[:rank]), np.sort(order[rank:])
    relation = np.linalg.lstsq(W[independent].T, W[dependent].T, rcond=None)[0].T
    relation[np.abs(relation) < TOLERANCE] = 0.0
    return independent, dependent, relation


def _enumerate(q: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices and rays of a system with independent rows."""
    rows, columns = W.shape
    if rows == 0:
        return np.zeros((1, 0)), np.zeros((0, 0))
    if max(comb(columns, rows), comb(columns, rows - 1)) > BASIS_LIMIT:
        return None
    length = np.linalg.norm(W, axis=0)
    W, q = W[:, length > 0] / length[length > 0], q[length > 0] / length[length > 0]
    vertices = _vertices(q, W)
    return None if len(vertices) > VERTEX_LIMIT else (vertices, _rays(W))


def _vertices(q: np.ndarray, W: np.ndarray) -> np.ndarray:
    """All ``p`` with ``W'p <= q`` where as many independent columns as rows are tight."""
    rows, columns = W.shape
    basis = np.array(list(combinations(range(columns), rows)))
    square = W.T[basis]
    regular = np.linalg.svd(square, compute_uv=False)[:, -1] > TOLERANCE
    p = np.linalg.solve(square[regular], q[basis[regular]][..., None])[..., 0]
    scale = np.maximum(np.abs(q).max(initial=0.0), np.abs(p).max(axis=1, initial=0.0))[:, None]
    feasible = np.all(p @ W <= q + TOLERANCE * scale, axis=1)
    return _distinct(p[feasible], np.abs(q).max(initial=0.0))


def _rays(W: np.ndarray) -> np.ndarray:
    """All directions with ``W'r <= 0`` where one column less than the rows is tight, of length one."""
    rows, columns = W.shape
    edge = np.array(list(combinations(range(columns), rows - 1)), dtype=int).reshape(comb(columns, rows - 1), rows - 1)
    # A zero row makes the systems square, so that their last right singular vector spans the null space.
    square = np.concatenate([W.T[edge], np.zeros((len(edge), 1, rows))], axis=1)
    _, size, right = np.linalg.svd(square)
    line = right[:, -1]
    if rows > 1:
        line = line[size[:, -2] > TOLERANCE]
    both = np.concatenate([line, -line])
    return _distinct(both[np.all(both @ W <= TOLERANCE, axis=1)], 1.0)


def _distinct(points: np.ndarray, scale: float) -> np.ndarray:
    """One of each group of equal points, with rounding errors of zero set to zero."""
    kept = np.zeros((0, points.shape[1]))
    for point in points:
        size = max(scale, float(np.abs(point).max(initial=0.0)))
        if not np.any(np.abs(kept - point).max(axis=1, initial=0.0) <= 1e3 * TOLERANCE * size):
            kept = np.vstack([kept, np.where(np.abs(point) <= 1e-3 * TOLERANCE * size, 0.0, point)])
    return kept


def _scatter(local: np.ndarray, members: np.ndarray, rows: int) -> sp.csr_array:
    """Vectors of one system written into the space of all rows."""
    wide = np.zeros((len(local), rows))
    wide[:, members] = local
    return sp.csr_array(wide)
