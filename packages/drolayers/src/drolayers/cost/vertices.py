"""Vertices and extreme rays of the dual ``{p : W'p <= q}`` of a two-stage cost, where they are not too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from drolayers.errors import ModelError

VERTEX_LIMIT = 512
"""Vertices, and likewise rays, that are taken unless more are asked for; twice as many may be met on the way."""

CHUNK = 512
"""Pairs of rays that are looked at together."""

BALANCING = 20
"""Rounds of geometric means over rows and columns."""

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


def dual_vertices(q: np.ndarray, W: np.ndarray, limit: int = VERTEX_LIMIT) -> DualVertices | None:
    """Enumerates the vertices and extreme rays of ``{p : W'p <= q}``; None when an independent system has too many.

    Where ``W`` has dependent rows, the right-hand side must satisfy the same dependences: these come out as pairs of
    forbidden rows, and the vertices are those of the independent rows.
    """
    rows = W.shape[0]
    # In units in which tolerances mean something: p is counted in those of the rows.
    by_row, by_column = balanced(W)
    q, W = q * by_column, by_row[:, None] * W * by_column
    points: list[sp.csr_array] = []
    forbidden: list[sp.csr_array] = []
    block: list[np.ndarray] = []
    for number, (members, columns) in enumerate(_systems(W)):
        inside = W[np.ix_(members, columns)]
        independent, dependent, relation = _independent_rows(inside)
        reduced = inside[independent]
        found = _enumerate(q[columns], reduced, limit)
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
    back = sp.diags_array(by_row)
    return DualVertices(
        sp.csr_array(sp.vstack(points) @ back),
        np.concatenate(block).astype(int),
        sp.csr_array(sp.vstack(forbidden) @ back),
    )


def largest(numbers: np.ndarray) -> float:
    """The largest size of some numbers, one where all vanish."""
    return float(np.abs(numbers).max(initial=0.0)) or 1.0


def balanced(W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of rows and columns, powers of two, after which the entries of a matrix are about one."""
    there = W != 0
    logs = np.log2(np.abs(np.where(there, W, 1.0)))
    row, column = np.zeros(W.shape[0]), np.zeros(W.shape[1])
    for _ in range(BALANCING):
        row = -np.where(there, logs + column, 0.0).sum(1) / np.maximum(there.sum(1), 1)
        column = -np.where(there, logs + row[:, None], 0.0).sum(0) / np.maximum(there.sum(0), 1)
    return 2.0 ** np.rint(row), 2.0 ** np.rint(column)


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


def _enumerate(q: np.ndarray, W: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices and rays of a system with independent rows, by the double description method.

    They are the extreme rays (p, t) of the cone ``t >= 0, W'p <= t q``, with t > 0 or t = 0. Its rows are added one
    by one: rays beyond the new row give way to those between them and their neighbours on this side. Two rays are
    neighbours where no third is tight in all rows in which both are, also where vertices are degenerate: so time grows
    with the number of rays, not with that of bases.

    Reference:
        Fukuda and Prodon, Double description method revisited, LNCS 1120 (1996).
    """
    dim = len(W) + 1
    if dim == 1:
        return np.zeros((1, 0)), np.zeros((0, 0))
    length = np.linalg.norm(W, axis=0)
    W, q = W[:, length > 0] / length[length > 0], q[length > 0] / length[length > 0]
    # Costs may be far apart, as a penalty beside a price: neither the largest nor the smallest is the unit of all.
    costs = np.abs(q[q != 0])
    size, least = (float(np.exp(np.log(costs).mean())), float(costs.min())) if len(costs) else (1.0, 1.0)
    cone = _unit(np.vstack([np.eye(dim)[-1:], np.column_stack([-W.T, q / size])]))
    first = scipy.linalg.qr(cone.T, mode="r", pivoting=True)[1][:dim]
    rays, tight = _unit(np.linalg.inv(cone[first]).T), np.zeros((dim, len(cone)), dtype=bool)
    tight[:, first] = ~np.eye(dim, dtype=bool)
    for row in np.setdiff1d(np.arange(len(cone)), first):
        side = rays @ cone[row]
        side[np.abs(side) <= TOLERANCE] = 0.0
        inner, outer = _neighbours(tight, side, dim)
        between = _unit(side[inner, None] * rays[outer] - side[outer, None] * rays[inner])
        kept = side >= 0
        rays = np.vstack([rays[kept], between])
        tight = np.vstack([tight[kept], tight[inner] & tight[outer]])
        tight[:, row] = np.concatenate([side[kept] == 0, np.ones(len(between), dtype=bool)])
        if len(rays) > 2 * limit:
            return None
    far = tight[:, 0]
    if max(far.sum(), (~far).sum()) > limit:
        return None
    # From their tight columns once more, without the errors of the way.
    vertices = np.array([np.linalg.lstsq(W[:, on].T, q[on], rcond=None)[0] for on in tight[~far, 1:]])
    excess = vertices @ W - q
    if np.any(excess > 1e3 * TOLERANCE * np.maximum(size, np.abs(vertices).max(axis=1, initial=0.0))[:, None]):
        raise ModelError("The vertices of the second stage's dual cannot be told apart: rescale q and W.")
    return _distinct(vertices, least), _distinct(_unit(rays[far, :-1]), 1.0)


def _unit(rays: np.ndarray) -> np.ndarray:
    """Rays of length one."""
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


def _neighbours(tight: np.ndarray, side: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours on both sides of a row, pair by pair."""
    number, loose = tight.astype(np.float32), (~tight).astype(np.float32)
    inner, outer = np.flatnonzero(side > 0), np.flatnonzero(side < 0)
    # The plane of two neighbours is where at least dim - 2 rows are tight.
    i, j = np.nonzero(number[inner] @ number[outer].T >= dim - 2)
    inner, outer = inner[i], outer[j]
    alone = [
        (number[a] * number[b] @ loose.T == 0).sum(axis=1) == 2
        for a, b in ((inner[k : k + CHUNK], outer[k : k + CHUNK]) for k in range(0, len(inner), CHUNK))
    ]
    kept = np.concatenate([np.zeros(0, dtype=bool), *alone])
    return inner[kept], outer[kept]


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
