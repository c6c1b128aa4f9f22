"""What linear rows imply about the ends of boxes: values of a column that no choice of the others can make up for.

Of ``least ≤ Mx ≤ most`` over a box, the smallest activity of all columns but one bounds that one; so does the largest.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from conelayers.interior.kernels import OPTIONS, Flags, Floats, Ints

Array = np.ndarray

WHOLE = 1e-9
"""How far beyond an integer an end may lie, relative to its size, and still be that integer."""


def implied(
    matrix: Array, item: Array, least: Array, most: Array, lower: Array, upper: Array, integer: Array, passes: int = 4
) -> tuple[Array, Array, Array]:
    """``narrowed`` for dense rows, ``(1, row, column)`` for all items or ``(item, row, column)`` for each."""
    row, column = np.nonzero((matrix != 0).any(0))
    return narrowed(matrix[:, row, column], row, column, item, least, most, lower, upper, integer, passes)


def narrowed(
    entries: Array,
    row: Array,
    column: Array,
    item: Array,
    least: Array,
    most: Array,
    lower: Array,
    upper: Array,
    integer: Array,
    passes: int = 4,
) -> tuple[Array, Array, Array]:
    """Boxes without what rows exclude, and which of them may hold a point at all.

    Args:
        entries: coefficients ``(1, entry)`` for all items or ``(item, entry)`` for each, by rows.
        row: where they are.
        column: likewise.
        item: whose the boxes are.
        least: least activities ``(box, row)``, with any tolerance taken off; -inf for none.
        most: largest ones.
        lower: ends of the boxes ``(box, column)``; -inf for none.
        upper: the others.
        integer: which columns are integral.
        passes: how often the rows are gone through at most.
    """
    lower, upper = lower.astype(np.float64), upper.astype(np.float64)
    alive: Array = np.all(lower <= upper, 1)
    start, owner = (
        np.searchsorted(row, np.arange(least.shape[1] + 1)),
        item if len(entries) > 1 else np.zeros_like(item),
    )
    entries, least, most, lower, upper = map(np.ascontiguousarray, (entries, least, most, lower, upper))
    arrays = (entries, owner, start, column, least, most, lower, upper, integer, alive)
    todo, news = np.flatnonzero(alive), np.zeros(len(lower), dtype=bool)
    for _ in range(passes if row.size else 0):
        go_through(*arrays, todo, news)
        todo = np.flatnonzero(news)
        if not todo.size:
            break
    return lower, upper, alive


@njit(**OPTIONS)
def go_through(
    entries: Floats, owner: Ints, start: Ints, column: Ints, least: Floats, most: Floats, lower: Floats, upper: Floats,
    integer: Flags, alive: Flags, todo: Ints, news: Flags,
) -> None:  # fmt: skip
    """One pass over the rows of some boxes, in place: whose ends have moved, and which hold no point."""
    n = lower.shape[1]
    low, high = np.zeros(n), np.zeros(n)
    news[:] = False
    for box in todo:
        for j in range(n):
            low[j], high[j] = -np.inf, np.inf
        implied_ends(entries[owner[box]], start, column, least[box], most[box], lower[box], upper[box], low, high)
        moves, dead = False, False
        for j in range(n):
            bottom, top, slip = low[j], high[j], 1e-7
            if integer[j]:
                bottom, top = np.ceil(bottom - WHOLE * (1.0 + abs(bottom))), np.floor(top + WHOLE * (1.0 + abs(top)))
                slip = 0.0
            bottom, top = max(lower[box, j], bottom), min(upper[box, j], top)
            # A continuous end may creep for ever: what moves by little is not gone through again.
            far = 0.5 if integer[j] else 1e-3 * (1.0 + min(abs(bottom), abs(top)))
            moves = moves or bottom - lower[box, j] > far or upper[box, j] - top > far
            dead = dead or bottom > top + (slip * (1.0 + abs(top)) if slip > 0.0 else 0.0)
            low[j], high[j] = bottom, max(bottom, top)
        if dead:
            alive[box] = False
            continue
        news[box] = moves
        for j in range(n):
            lower[box, j], upper[box, j] = low[j], high[j]


@njit(**OPTIONS)
def implied_ends(
    entry: Floats, start: Ints, column: Ints, least: Floats, most: Floats, lower: Floats, upper: Floats, low: Floats,
    high: Floats,
) -> None:  # fmt: skip
    """The ends that the rows of one box imply, from the box as it is, into low and high.

    The others' least activity leaves a column so much room for its own term, and their largest needs so much of it;
    nothing is implied where another one's is infinite.
    """
    for r in range(start.size - 1):
        small, large, below, above = 0.0, 0.0, 0, 0
        for e in range(start[r], start[r + 1]):
            if entry[e] != 0.0:
                one, other = entry[e] * lower[column[e]], entry[e] * upper[column[e]]
                if np.isinf(min(one, other)):
                    below += 1
                else:
                    small += min(one, other)
                if np.isinf(max(one, other)):
                    above += 1
                else:
                    large += max(one, other)
        for e in range(start[r], start[r + 1]):
            if entry[e] == 0.0:
                continue
            j = column[e]
            one, other = entry[e] * lower[j], entry[e] * upper[j]
            room, need = np.inf, -np.inf
            if below == 0:
                room = most[r] - (small - min(one, other))
            elif below == 1 and np.isinf(min(one, other)):
                room = most[r] - small
            if above == 0:
                need = least[r] - (large - max(one, other))
            elif above == 1 and np.isinf(max(one, other)):
                need = least[r] - large
            top, bottom = (room, need) if entry[e] > 0.0 else (need, room)
            high[j] = min(high[j], top / entry[e])
            low[j] = max(low[j], bottom / entry[e])
