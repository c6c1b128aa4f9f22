"""Best-bound search on the simplex method, compiled: the best integer points of one linear program.

A box whose optimum is integral is divided at that point (Lawler, Murty), any other in the column whose two sides
promise most. Children are bounded before they are solved: by reduced costs or, where a column is in the basis, by the
first pivot that they would take. Reduced costs also fix columns whose change would cost too much. Where all rows are
equations and all columns integral, fixing those outside the basis fixes the others, which then have no children.

Integers that are worth nearly the same leave little to prune by: a knapsack that holds 13.7 of them on average and 13
at most has a relaxation that is worth half an item too much in every box. A search that goes on for long begins anew
with what it lacked, a row for how many can be had at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from conelayers.integer.simplex.simplex import DUAL, REFRESH, SOLVED, STUCK, ahead, entering, solve
from conelayers.interior.kernels import OPTIONS, Flags, Floats, Ints

PROVEN, LIMIT, DOUBTFUL = 0, 1, 2
"""How a search ends: with a proof, at its limit, or where the arithmetic does not settle a box."""

FIRST = 100
"""Boxes after which it is asked how many integers can be had; most searches end before (``benchmarks/README.md``)."""

_COUNT = 100
"""Boxes within which that is answered."""

_UNSURE = 1e-6
"""Error that a count may have, relative to the integers that are counted: it is rounded up from so much below."""

_INTEGRAL = 1e-6
"""Distance from an integer up to which a vertex counts as integral; its point is solved for anyway."""


class Waiting(NamedTuple):
    """Boxes that wait: a heap of their places by bounds, behind it the places that are free, and how many wait."""

    heap: Ints
    bound: Floats
    boxes: Floats
    size: Ints


@njit(**OPTIONS)
def rise(heap: Ints, key: Floats, at: int) -> None:
    """Let the last of a heap rise to its place."""
    while at > 0 and key[heap[at]] < key[heap[(at - 1) // 2]]:
        up = (at - 1) // 2
        heap[at], heap[up] = heap[up], heap[at]
        at = up


@njit(**OPTIONS)
def take(heap: Ints, key: Floats, size: int) -> int:
    """Take the least out of a heap, and put it behind the others."""
    size, at = size - 1, 0
    heap[0], heap[size] = heap[size], heap[0]
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and key[heap[down + 1]] < key[heap[down]]:
            down += 1
        if key[heap[at]] <= key[heap[down]]:
            break
        heap[at], heap[down] = heap[down], heap[at]
        at = down
    return heap[size]


@njit(**OPTIONS)
def room(places: int, k: int) -> Waiting:
    """Places for boxes of k columns; integers of single precision are exact beyond the largest that are allowed."""
    heap, size = np.zeros(places, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for i in range(places):
        heap[i] = i
    return Waiting(heap, np.zeros(places), np.zeros((places, 2, k), dtype=np.float32), size)


@njit(**OPTIONS)
def store(waiting: Waiting, box: Floats, bound: float) -> Waiting:
    """Keep a box, in twice the room where there is none left."""
    size, k = waiting.size[0], box.shape[1]
    if size == waiting.heap.size:
        larger = room(2 * size, k)
        for i in range(size):
            larger.heap[i], larger.bound[i] = waiting.heap[i], waiting.bound[i]
            copy(waiting.boxes[i], larger.boxes[i])
        waiting = larger
    where = waiting.heap[size]
    waiting.bound[where] = bound
    copy(box, waiting.boxes[where])
    rise(waiting.heap, waiting.bound, size)
    waiting.size[0] = size + 1
    return waiting


@njit(**OPTIONS)
def copy(box: Floats, to: Floats) -> None:
    """Copy a box."""
    for end in range(2):
        for i in range(box.shape[1]):
            to[end, i] = box[end, i]


@njit(**OPTIONS)
def narrow(box: Floats, slope: Floats, integers: Ints, room: float) -> None:
    """Take off a box what costs more than there is room for, along the slope of its bound."""
    for i in range(integers.size):
        steep = slope[integers[i]]
        if abs(steep) > DUAL:
            reach = np.floor(room / abs(steep) + 1e-9)
            if reach < box[1, i] - box[0, i]:
                if steep > 0.0:
                    box[1, i] = box[0, i] + reach
                else:
                    box[0, i] = box[1, i] - reach


@njit(**OPTIONS)
def keep(
    points: Floats, values: Floats, answers: Floats, point: Floats, value: float, x: Floats, prices: Floats
) -> None:
    """Put a point among the best, if it is one of them, with the solution and the multipliers that belong to it."""
    at, n = values.size - 1, x.size - prices.size
    if value >= values[at]:
        return
    while at > 0 and values[at - 1] > value:
        values[at] = values[at - 1]
        for i in range(point.size):
            points[at, i] = points[at - 1, i]
        for j in range(x.size):
            answers[at, j] = answers[at - 1, j]
        at -= 1
    values[at] = value
    for i in range(point.size):
        points[at, i] = point[i]
    for j in range(x.size):
        answers[at, j] = x[j] if j < n else prices[j - n]


@njit(**OPTIONS)
def search(
    start: Ints,
    column: Ints,
    entry: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    low: Floats,
    high: Floats,
    integers: Ints,
    count: int,
    limit: int,
    tie: float,
    grain: float,
    stop: Flags,
) -> tuple[Floats, Floats, Floats, int, int, float]:
    """The ``count`` best integer points of one program, as ``simplex.py`` states it, unless ``stop`` is set meanwhile.

    A point is better if its value is smaller by more than ``tie``, relative to its terms, and by ``grain``.

    Returns:
        Points, their values (+inf where there is none), all columns and multipliers of all rows there, boxes solved,
        how the search ended, and the bound that it left.
    """
    m, n, k = b.size, c.size, integers.size
    T, x, slope, ends = np.zeros((m + 1, n + m)), np.zeros(n + m), np.zeros(n), np.zeros((2, n + m))
    basis, row, work = np.zeros(m, dtype=np.int64), np.zeros(n + m, dtype=np.int64), np.zeros(n + m + 1, dtype=np.int64)
    for j in range(n + m):
        row[j] = j - n if j >= n else -1
        ends[0, j] = low[j] if j < n else 0.0
        ends[1, j] = high[j] if j < n else 0.0 if j < n + zero else np.inf
    work[n + m] = REFRESH + m + 1
    points, values, answers = np.zeros((count, k)), np.zeros(count), np.zeros((count, n + m))
    for i in range(count):
        values[i] = np.inf
    waiting = room(64, k)
    box, point, steep, key = room(1, k).boxes[0], np.zeros(k), np.zeros(k), np.zeros(k)
    order = np.zeros(k, dtype=np.int64)
    for i in range(k):
        box[0, i], box[1, i] = low[integers[i]], high[integers[i]]
    waiting = store(waiting, box, -np.inf)
    solved, cutoff, diving, least = 0, np.inf, False, -np.inf
    while diving or (waiting.size[0] > 0 and waiting.bound[waiting.heap[0]] < cutoff):
        if solved >= limit or stop[0]:
            break
        # One box after the other down to a leaf, then the most promising of those that were left behind.
        if not diving:
            where = take(waiting.heap, waiting.bound, waiting.size[0])
            waiting.size[0] -= 1
            least = waiting.bound[where]
            copy(waiting.boxes[where], box)
        diving = False
        for i in range(k):
            ends[0, integers[i]], ends[1, integers[i]] = box[0, i], box[1, i]
        solved += 1
        status, value = solve(start, column, entry, b, c, zero, ends, cutoff, T, x, basis, row, slope, work)
        if status == STUCK:
            return points, values, answers, solved, DOUBTFUL, least
        least = max(least, value)
        if status != SOLVED or least >= cutoff:
            continue
        if np.isfinite(cutoff):
            narrow(box, slope, integers, cutoff - value)
        # Divide in the column whose sides, after a pivot each, gain most together.
        chosen, most, floor = -1, -1.0, 0.0
        for i in range(k):
            j = integers[i]
            ends[0, j], ends[1, j] = box[0, i], box[1, i]
            point[i] = min(max(np.floor(x[j] + 0.5), box[0, i]), box[1, i])
        for i in range(k):
            j = integers[i]
            if abs(x[j] - point[i]) <= _INTEGRAL or box[0, i] == box[1, i]:
                continue
            below = min(max(np.floor(x[j]), box[0, i]), box[1, i] - 1.0)
            gain = 0.0
            if row[j] >= 0:
                gain = 1.0
                for side in range(2):
                    sign = 1.0 - 2.0 * side
                    enters = entering(ends, T, x, row, row[j], sign, False)
                    rate = abs(T[m, enters] / T[row[j], enters]) if enters >= 0 else 1e3
                    gain *= rate * (x[j] - below if side == 0 else below + 1.0 - x[j]) + DUAL
            if gain > most:
                chosen, most, floor = i, gain, below
        if chosen >= 0:
            j = integers[chosen]
            under, over = least, least
            if row[j] >= 0:
                ends[1, j] = floor
                under = max(least, ahead(start, column, entry, b, c, zero, ends, T, x, row, slope, row[j], 1.0))
                ends[0, j], ends[1, j] = floor + 1.0, box[1, chosen]
                over = max(least, ahead(start, column, entry, b, c, zero, ends, T, x, row, slope, row[j], -1.0))
            # The better side is next, the other waits.
            side = 0 if under <= over else 1
            if max(under, over) < cutoff:
                kept = box[side, chosen]
                box[side, chosen] = floor + 1.0 - side
                waiting = store(waiting, box, max(under, over))
                box[side, chosen] = kept
            box[1 - side, chosen] = floor + side
            least, diving = min(under, over), min(under, over) < cutoff
            continue
        # The point itself, with the continuous columns at their best.
        for i in range(k):
            steep[i] = slope[integers[i]]
            ends[0, integers[i]] = ends[1, integers[i]] = point[i]
        status, worth = solve(start, column, entry, b, c, zero, ends, np.inf, T, x, basis, row, slope, work)
        if status == STUCK:
            return points, values, answers, solved, DOUBTFUL, least
        if status == SOLVED:
            keep(points, values, answers, point, worth, x, T[m, n:])
            if np.isfinite(values[count - 1]):
                size = abs(values[count - 1])
                for i in range(k):
                    size += abs(c[integers[i]] * points[count - 1, i])
                cutoff = values[count - 1] - max(tie * size, 0.99 * grain)
        # The rest: columns whose change costs most come first, so that their children are dropped at once; the basis
        # comes last, when the others hold it.
        for i in range(k):
            ends[0, integers[i]], ends[1, integers[i]] = box[0, i], box[1, i]
            order[i], key[i] = i, -abs(steep[i]) - (1.0 if row[integers[i]] < 0 else 0.0)
            rise(order, key, i)
        for rest in range(k, 0, -1):
            i = take(order, key, rest)
            j = integers[i]
            for side in range(2):
                step = 2.0 * side - 1.0
                bound = max(least, value + step * steep[i])
                if not (box[0, i] <= point[i] + step <= box[1, i] and bound < cutoff):
                    continue
                kept = box[1 - side, i]
                box[1 - side, i] = point[i] + step
                if row[j] >= 0:
                    ends[0, j], ends[1, j] = box[0, i], box[1, i]
                    bound = max(bound, ahead(start, column, entry, b, c, zero, ends, T, x, row, slope, row[j], -step))
                if bound < cutoff:
                    waiting = store(waiting, box, bound)
                box[1 - side, i] = kept
            box[0, i] = box[1, i] = ends[0, j] = ends[1, j] = point[i]
    if diving:
        waiting = store(waiting, box, least)
    left = waiting.bound[waiting.heap[0]] if waiting.size[0] > 0 else np.inf
    return points, values, answers, solved, PROVEN if left >= cutoff else LIMIT, left


@njit(**OPTIONS)
def counted(
    start: Ints, column: Ints, entry: Floats, b: Floats, rows: int, size: int, c: Floats, zero: int, low: Floats,
    high: Floats, integers: Ints, tie: float, stop: Flags,
) -> int:  # fmt: skip
    """Add a row that says how many integers can be had, or must be; entries after it, as before where it says nothing.

    The same program with costs of one, by their signs, has whole values: its bound is rounded up. That is a cut of
    Chvátal and Gomory, or a stronger one where a few boxes prove more.
    """
    sign = np.zeros(c.size)
    for j in integers:
        sign[j] = np.sign(c[j])
    points, least, _, _, ended, bound = search(
        start[: rows + 1], column[:size], entry[:size], b[:rows], sign, zero, low, high, integers, 1, _COUNT, tie, 1.0,
        stop,
    )  # fmt: skip
    if ended == DOUBTFUL or not np.isfinite(least[0]):
        return size
    # Multipliers enlarge the rounding of right-hand sides: the count of many integers is as many times less sure.
    error = _UNSURE * max(1.0, np.abs(points[0]).sum())
    bound = np.ceil((bound if ended == LIMIT else least[0]) - error)
    for j in integers:
        if sign[j] != 0.0:
            column[size], entry[size] = j, -sign[j]
            size += 1
    start[rows + 1], b[rows] = size, -bound
    return size


@njit(**OPTIONS)
def search_each(
    items: Ints, row: Ints, column: Ints, entry: Floats, b: Floats, c: Floats, zero: int, low: Floats, high: Floats,
    needed: Flags, integers: Ints, count: int, limit: int, tie: float, grain: Floats, stop: Flags, points: Floats,
    values: Floats, x: Floats, prices: Floats, told: Ints, left: Floats,
) -> None:  # fmt: skip
    """``search`` for some items of a batch, on the rows that each of them needs: what it returns, by items.

    A call for each would wait for the interpreter as long as for the search.
    """
    m, n = b.shape[1], c.shape[1]
    # There is room for one more row.
    start, place, rhs = np.zeros(m + 2, dtype=np.int64), np.zeros(m, dtype=np.int64), np.zeros(m + 1)
    columns, entries = np.zeros(column.size + n, dtype=np.int64), np.zeros(column.size + n)
    for item in items:
        rows, equal, size, own = 0, 0, 0, entry[item if entry.shape[0] > 1 else 0]
        for i in range(m):
            place[i] = -1
            if needed[item, i]:
                place[i], rhs[rows] = rows, b[item, i]
                rows += 1
                equal += 1 if i < zero else 0
        start[: rows + 1] = 0
        for e in range(column.size):
            at = place[row[e]]
            if at >= 0:
                columns[size], entries[size] = column[e], own[e]
                size += 1
                start[at + 1] = size
        for i in range(rows):
            start[i + 1] = max(start[i + 1], start[i])
        best, worth, answers, told[item, 0], told[item, 1], left[item] = search(
            start[: rows + 1], columns[:size], entries[:size], rhs[:rows], c[item], equal, low[item], high[item],
            integers, count, min(limit, FIRST), tie, grain[item], stop,
        )  # fmt: skip
        if told[item, 1] == LIMIT and limit > FIRST:
            more = counted(
                start, columns, entries, rhs, rows, size, c[item], equal, low[item], high[item], integers, tie, stop
            )
            taken, size = rows + (1 if more > size else 0), more
            again = search(
                start[: taken + 1], columns[:size], entries[:size], rhs[:taken], c[item], equal, low[item],
                high[item], integers, count, limit - FIRST, tie, grain[item], stop,
            )  # fmt: skip
            told[item, 0] += again[3]
            told[item, 1], left[item] = again[4], max(left[item], again[5])
            # A limit may come before the second search has found what the first one had.
            if told[item, 1] != LIMIT or again[1][count - 1] <= worth[count - 1]:
                best, worth, answers = again[0], again[1], again[2]
        for k in range(count):
            values[item, k] = worth[k]
            for i in range(integers.size):
                points[item, k, i] = best[k, i]
            for j in range(n):
                x[item, k, j] = answers[k, j]
            for i in range(m):
                prices[item, k, i] = answers[k, n + place[i]] if place[i] >= 0 else 0.0
