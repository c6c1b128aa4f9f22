"""Best-bound search on the simplex method, compiled: the best integer points of one linear program.

A box whose optimum is integral is divided at that point (Lawler, Murty), any other in its most fractional column.
Reduced costs bound the children before they are solved, and fix columns whose change would cost too much.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from drolayers.conic.interior.kernels import OPTIONS, Floats, Ints
from drolayers.integer.simplex import DUAL, SOLVED, STUCK, refresh, solve

PROVEN, LIMIT, DOUBTFUL = 0, 1, 2
"""How a search ends: with a proof, at its limit, or where the arithmetic does not settle a box."""

_INTEGRAL = 1e-6
"""Distance from an integer up to which a vertex counts as integral; its point is solved for anyway."""


@njit(**OPTIONS)
def store(boxes: Floats, spare: list[int], used: int, box: Floats) -> tuple[int, int, Floats]:
    """Keep a box where there is room, and make room where there is none."""
    if spare:
        where = spare.pop()
    else:
        if used == boxes.shape[0]:
            larger = np.zeros((2 * used, boxes.shape[1], boxes.shape[2]))
            larger[:used] = boxes
            boxes = larger
        where, used = used, used + 1
    boxes[where] = box
    return where, used, boxes


@njit(**OPTIONS)
def narrow(box: Floats, slope: Floats, room: float) -> None:
    """Take off a box what costs more than there is room for, along the slope of its bound."""
    for i in range(slope.size):
        if abs(slope[i]) > DUAL:
            reach = np.floor(room / abs(slope[i]) + 1e-9)
            if reach < box[1, i] - box[0, i]:
                if slope[i] > 0.0:
                    box[1, i] = box[0, i] + reach
                else:
                    box[0, i] = box[1, i] - reach


@njit(**OPTIONS)
def keep(points: Floats, values: Floats, point: Floats, value: float) -> None:
    """Put a point among the best, if it is one of them."""
    at = values.size - 1
    if value < values[at]:
        while at > 0 and values[at - 1] > value:
            values[at], points[at] = values[at - 1], points[at - 1]
            at -= 1
        values[at], points[at] = value, point


@njit(**OPTIONS)
def search(
    A: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    low: Floats,
    high: Floats,
    integers: Ints,
    count: int,
    limit: int,
    tie: float,
) -> tuple[Floats, Floats, int, int, float]:
    """The ``count`` best integer points of one program, as ``simplex.py`` states it.

    Returns:
        Points, their values (+inf where there is none), boxes solved, how the search ended, and the bound that it left.
    """
    m, n = A.shape
    k = integers.size
    price = c[integers]
    T, d, x, reduced = np.zeros((m, n + m)), np.zeros(n + m), np.zeros(n + m), np.zeros(n)
    basis, age = np.arange(n, n + m), np.zeros(1, dtype=np.int64)
    refresh(A, c, T, d, basis)
    first, last = np.zeros(n + m), np.full(n + m, np.inf)
    first[:n], last[:n] = low, high
    last[n : n + zero] = 0.0
    points, values = np.zeros((count, k)), np.full(count, np.inf)
    boxes = np.zeros((64, 2, k))
    boxes[0, 0], boxes[0, 1] = low[integers], high[integers]
    # Boxes that wait: a bound, their number, so that no two are equal, and where they are stored.
    heap, spare, used, total, solved = [(-np.inf, 0, 0)], [0 for _ in range(0)], 1, 1, 0
    cutoff = np.inf
    while heap and heap[0][0] < cutoff and solved < limit:
        least, _, at = heapq.heappop(heap)
        box = boxes[at].copy()
        spare.append(at)
        # One box after the other down to a leaf, then the most promising of those that were left behind.
        while True:
            first[integers], last[integers] = box[0], box[1]
            solved += 1
            status, value = solve(A, b, c, zero, first, last, cutoff, T, d, basis, x, reduced, age)
            if status == STUCK:
                return points, values, solved, DOUBTFUL, least
            least = max(least, value)
            if status != SOLVED or least >= cutoff:
                break
            vertex, slope = x[integers], reduced[integers]
            if np.isfinite(cutoff):
                narrow(box, slope, cutoff - value)
            point = np.minimum(np.maximum(np.round(vertex), box[0]), box[1])
            away = np.where(box[0] < box[1], np.abs(vertex - point), 0.0)
            column = np.argmax(away) if k > 0 else 0
            if k > 0 and away[column] > _INTEGRAL:
                floor = min(max(np.floor(vertex[column]), box[0, column]), box[1, column] - 1.0)
                other = box.copy()
                if vertex[column] - floor > 0.5:
                    other[1, column], box[0, column] = floor, floor + 1.0
                else:
                    other[0, column], box[1, column] = floor + 1.0, floor
                where, used, boxes = store(boxes, spare, used, other)
                heapq.heappush(heap, (least, total, where))
                total += 1
                if solved < limit:
                    continue
                where, used, boxes = store(boxes, spare, used, box)
                heapq.heappush(heap, (least, total, where))
                break
            # The point itself, with the continuous columns at their best.
            first[integers], last[integers] = point, point
            status, worth = solve(A, b, c, zero, first, last, np.inf, T, d, basis, x, reduced, age)
            if status == STUCK:
                return points, values, solved, DOUBTFUL, least
            if status == SOLVED:
                keep(points, values, point, worth)
                if np.isfinite(values[-1]):
                    cutoff = values[-1] - tie * (abs(values[-1]) + np.abs(price * points[-1]).sum())
            # The rest: columns whose change costs most come first, so that their children are dropped at once.
            for i in np.argsort(-np.abs(slope), kind="mergesort"):
                for side in range(2):
                    step = 2.0 * side - 1.0
                    bound = max(least, value + step * slope[i])
                    if box[0, i] <= point[i] + step <= box[1, i] and bound < cutoff:
                        child = box.copy()
                        child[1 - side, i] = point[i] + step
                        where, used, boxes = store(boxes, spare, used, child)
                        heapq.heappush(heap, (bound, total, where))
                        total += 1
                box[0, i], box[1, i] = point[i], point[i]
            break
    left = heap[0][0] if heap else np.inf
    return points, values, solved, PROVEN if left >= cutoff else LIMIT, left
