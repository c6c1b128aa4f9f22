"""Columns that leave a decision rule a choice without changing what a second stage costs.

A rule must obey an equation for every y, often in one way alone: demand y is then served by what is affine in y, or
not at all. A column w at a price of at least w'p for every vertex p of the dual {p : W'p ≤ q} cuts off no vertex, so
that no finite value changes; but a rule may now have too much or too little of a row. Rays r with w'r > 0 are cut off:
what they forbid is said apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from drolayers.cost.vertices import TOLERANCE, DualVertices, balanced, dual_vertices, largest


@dataclass(frozen=True, eq=False)
class Room:
    """More columns, their costs, and what they would hide: ``forbidden @ rhs <= 0``."""

    q: np.ndarray
    W: np.ndarray
    forbidden: sp.csr_array


def room_for(q: np.ndarray, W: np.ndarray) -> Room:
    """Columns ±e_r, wherever there is none as cheap and the price is finite."""
    rows = len(W)
    columns = np.hstack([np.eye(rows), -np.eye(rows)])
    found = dual_vertices(q, W)
    prices = _prices(found) if found is not None else np.array([_largest(w, q, W) for w in columns.T])
    single = np.count_nonzero(W, axis=0) == 1
    same = columns.T @ np.where(single, W, 0.0)
    cheapest = np.where(same > 0, q / np.where(same > 0, same, 1.0), np.inf).min(axis=1, initial=np.inf)
    # A price is one of its row, in whatever unit that is counted.
    near = TOLERANCE * np.where(np.isfinite(cheapest), np.abs(cheapest), 0.0)
    wanted = np.isfinite(prices) & (prices < cheapest - near)
    columns, prices = columns[:, wanted], prices[wanted]
    if found is None:
        return Room(prices, columns, sp.csr_array((0, rows)))
    # One too many does no harm: it holds in any case.
    hidden = np.flatnonzero((found.forbidden @ columns > 0.0).any(axis=1))
    return Room(prices, columns, sp.csr_array(found.forbidden[hidden]))


def _prices(found: DualVertices) -> np.ndarray:
    """The largest ±p_r over the vertices of the independent system that row r belongs to."""
    points = found.points.toarray()
    mine = np.zeros((found.blocks, points.shape[1]), dtype=bool)
    np.logical_or.at(mine, found.block, points != 0)
    inside = mine[found.block]
    highest, lowest = np.where(inside, points, -np.inf).max(axis=0), np.where(inside, points, np.inf).min(axis=0)
    return np.concatenate([np.where(mine.any(axis=0), highest, 0.0), -np.where(mine.any(axis=0), lowest, 0.0)])


def _largest(w: np.ndarray, q: np.ndarray, W: np.ndarray) -> float:
    """The largest w'p over the dual, where it may have too many vertices."""
    by_row, by_column = balanced(W)
    size, price = largest(by_row * w), largest(by_column * q)
    found = linprog(
        -by_row * w / size,
        A_ub=(by_row[:, None] * W * by_column).T,
        b_ub=by_column * q / price,
        bounds=(None, None),
        method="highs",
    )
    return -float(found.fun) * size * price if found.status == 0 else np.inf
