"""What linear rows imply about the ends of boxes: values of a column that no choice of the others can make up for.

Of ``least ≤ Mx ≤ most`` over a box, the smallest activity of all columns but one bounds that one; so does the largest.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_WORK = 2_000_000
"""Numbers in the largest temporary array."""

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
    todo = np.flatnonzero(alive)
    for _ in range(passes if row.size else 0):
        changed, step = [], max(1, _WORK // row.size)
        for at in range(0, todo.size, step):
            box = todo[at : at + step]
            own = entries if entries.shape[0] == 1 else entries[item[box]]
            ends = lower[box], upper[box]
            low, high = _once(own, row, column, least[box], most[box], *ends)
            low = np.where(integer, np.ceil(low - WHOLE * (1.0 + np.abs(low))), low)
            high = np.where(integer, np.floor(high + WHOLE * (1.0 + np.abs(high))), high)
            low, high = np.maximum(low, ends[0]), np.minimum(high, ends[1])
            # A continuous end may creep for ever: what moves by little is not gone through again.
            moved = np.where(integer, 0.5, 1e-3 * (1.0 + np.minimum(np.abs(low), np.abs(high))))
            with np.errstate(invalid="ignore"):
                news = ((low - ends[0] > moved) | (ends[1] - high > moved)).any(1)
            dead = np.where(integer, low > high, low > high + 1e-7 * (1.0 + np.abs(high))).any(1)
            alive[box[dead]] = False
            kept = ~dead
            lower[box[kept]], upper[box[kept]] = low[kept], np.maximum(low, high)[kept]
            changed.append(box[kept & news])
        todo = np.concatenate([np.zeros(0, dtype=np.int64), *changed])
        if not todo.size:
            break
    return lower, upper, alive


def _once(
    entry: Array, row: Array, column: Array, least: Array, most: Array, lower: Array, upper: Array
) -> tuple[Array, Array]:
    """One pass over the non-zero entries, by rows: the ends that they imply, from the box as it is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        one, other, zero = entry * lower[:, column], entry * upper[:, column], entry == 0
        small, large = (np.where(zero, 0.0, f(one, other)) for f in (np.minimum, np.maximum))
        # The others' least activity leaves this much for a column's own term, and their largest asks this much of it.
        room, need = most[:, row] - _without(small, row), least[:, row] - _without(large, row)
        top = np.where(zero, np.inf, np.where(entry > 0, room, need) / entry)
        bottom = np.where(zero, -np.inf, np.where(entry > 0, need, room) / entry)
    order = np.argsort(column, kind="stable")
    there, start = np.unique(column[order], return_index=True)
    low, high = np.full(lower.shape, -np.inf), np.full(upper.shape, np.inf)
    low[:, there] = np.fmax.reduceat(bottom[:, order], start, axis=1)
    high[:, there] = np.fmin.reduceat(top[:, order], start, axis=1)
    return low, high


def _without(term: Array, row: Array) -> Array:
    """The sum of a row's terms but for each in turn; infinite where another is."""
    start, nth = np.unique(row, return_index=True, return_inverse=True)[1:]
    infinite = np.isinf(term)
    if not infinite.any():
        return np.add.reduceat(term, start, axis=1)[:, nth] - term
    finite, sign = np.where(infinite, 0.0, term), np.where(infinite, term, 0.0)
    others = np.add.reduceat(infinite.astype(np.int64), start, axis=1)[:, nth] - infinite
    rest = np.add.reduceat(finite, start, axis=1)[:, nth] - finite
    return np.where(others > 0, np.add.reduceat(sign, start, axis=1)[:, nth], rest)
