"""Vertices and extreme rays of the dual ``{p : W'p <= q}`` of a two-stage cost, where they are not too many."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.sparse.csgraph import connected_components

from drolayers.errors import ModelError

BASIS_LIMIT = 20_000
"""Bases visited; only where many of them share a vertex are there more bases than vertices."""

VERTEX_LIMIT = 512
"""Vertices, and likewise rays, that are taken unless more are asked for."""

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


def _enumerate(q: np.ndarray, W: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices and rays of a system with independent rows, by pivots from basis to basis.

    A basis is as many independent tight columns as there are rows. Leaving one of them runs along an edge, which ends
    in a neighbour or is a ray. Ties are broken as if q_j were raised by ε_j with ε₁ ≫ ε₂ ≫ …: the raised polyhedron is
    simple and has the same rays, so that nothing is missed, and few bases are visited at a degenerate vertex.
    """
    rows = W.shape[0]
    if rows == 0:
        return np.zeros((1, 0)), np.zeros((0, 0))
    length = np.linalg.norm(W, axis=0)
    W, q = W[:, length > 0] / length[length > 0], q[length > 0] / length[length > 0]
    size = float(np.abs(q).max(initial=0.0)) or 1.0
    first = _first_basis(q, W, size)
    # The columns of the first basis are raised least, so that it is a basis of the raised polyhedron too.
    rank = np.argsort(np.concatenate([np.setdiff1d(np.arange(len(q)), first), first]))
    seen, queue = {first.tobytes()}, deque([first])
    vertices, rays = _Points(size), _Points(1.0)
    while queue:
        basis = queue.popleft()
        inverse = np.linalg.inv(W[:, basis])
        point, table = q[basis] @ inverse, inverse @ W
        vertices.add(point)
        scale = max(size, float(np.abs(point).max()))
        slack = q - point @ W
        if slack.min() < -1e3 * TOLERANCE * scale:
            raise ModelError("The vertices of the second stage's dual cannot be told apart: rescale q and W.")
        slack[slack <= TOLERANCE * scale] = 0.0
        table[:, basis] = 0.0
        # A step t along edge i lengthens slack j by t·table_ij.
        blocking = table < -TOLERANCE
        steps = np.where(blocking, slack / np.where(blocking, -table, 1.0), np.inf)
        for i in range(rows):
            if not blocking[i].any():
                rays.add(-inverse[i] / np.linalg.norm(inverse[i]))
                continue
            entering = _entering(steps[i], table, i, basis, rank)
            neighbour = np.sort(np.append(np.delete(basis, i), entering))
            if neighbour.tobytes() not in seen:
                seen.add(neighbour.tobytes())
                queue.append(neighbour)
        if len(vertices) > limit or len(rays) > limit or len(seen) > BASIS_LIMIT:
            return None
    return vertices.distinct(rows), rays.distinct(rows)


def _entering(steps: np.ndarray, table: np.ndarray, i: int, basis: np.ndarray, rank: np.ndarray) -> int:
    """The column that ends edge i first; among ties, the first in the raised polyhedron."""
    shortest = float(steps.min())
    tied = np.flatnonzero(steps <= shortest + TOLERANCE * (1.0 + shortest))
    if len(tied) > 1:
        # Slack j is raised by ε_j - Σ_k table_kj ε_basis(k); compared by the largest ε first.
        raised = np.zeros((len(tied), len(rank)))
        raised[:, rank[basis]] = -table[:, tied].T
        raised[np.arange(len(tied)), rank[tied]] = 1.0
        raised /= -table[i, tied][:, None]
        for column in range(len(rank)):
            kept = raised[:, column] <= raised[:, column].min() + TOLERANCE
            tied, raised = tied[kept], raised[kept]
    return int(tied[0])


def _first_basis(q: np.ndarray, W: np.ndarray, size: float) -> np.ndarray:
    """Tight columns of a vertex, found by walking from any point of the dual until nothing is left to move along."""
    rows = W.shape[0]
    found = linprog(-W.sum(axis=1), A_ub=W.T, b_ub=q / size, bounds=(None, None), method="highs-ds")
    point = size * found.x
    basis: list[int] = []
    while len(basis) < rows:
        # Directions that keep the tight columns tight.
        span = scipy.linalg.null_space(W[:, basis].T, rcond=TOLERANCE) if basis else np.eye(rows)
        speed = W.T @ span
        slack = np.maximum(q - W.T @ point, 0.0)
        tight = (slack <= TOLERANCE * size) & (np.linalg.norm(speed, axis=1) > 1e-6)
        if tight.any():
            basis.append(int(np.argmax(np.where(tight, np.linalg.norm(speed, axis=1), 0.0))))
            continue
        moving = speed[:, 0]
        direction, moving = (span[:, 0], moving) if moving.max() > 1e-9 else (-span[:, 0], -moving)
        rising = moving > TOLERANCE
        step = np.where(rising, slack / np.where(rising, moving, 1.0), np.inf)
        basis.append(int(step.argmin()))
        point = point + step.min() * direction
    return np.sort(np.array(basis))


class _Points:
    """Points that are met more than once; equal up to rounding counts as equal."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.found: dict[bytes, np.ndarray] = {}

    def add(self, point: np.ndarray) -> None:
        """Another one, or one that is known."""
        unit = 1e3 * TOLERANCE * max(self.scale, float(np.abs(point).max()))
        self.found.setdefault(np.rint(point / unit).astype(np.int64).tobytes(), point)

    def __len__(self) -> int:
        return len(self.found)

    def distinct(self, dim: int) -> np.ndarray:
        """All of them; two that were rounded apart are one here."""
        return _distinct(np.array(list(self.found.values())).reshape(-1, dim), self.scale)


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
