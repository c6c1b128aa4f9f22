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
    matrix: Array, least: Array, most: Array, lower: Array, upper: Array, integer: Array, passes: int = 4
) -> tuple[Array, Array, Array]:
    """Boxes without what rows exclude, and which of them may hold a point at all.

    Args:
        matrix: ``(1, row, column)`` for all boxes or ``(box, row, column)`` for each.
        least: least activities ``(box, row)``, with any tolerance taken off; -inf for none.
        most: largest ones.
        lower: ends of the boxes ``(box, column)``; -inf for none.
        upper: the others.
        integer: which columns are integral.
        passes: how often the rows are gone through at most.
    """
    lower, upper = lower.astype(np.float64), upper.astype(np.float64)
    alive: Array = np.all(lower <= upper, 1)
    if not matrix.shape[1]:
        return lower, upper, alive
    todo = np.flatnonzero(alive)
    for _ in range(passes):
        changed = []
        step = max(1, _WORK // max(1, matrix.shape[1] * matrix.shape[2]))
        for at in range(0, todo.size, step):
            box = todo[at : at + step]
            rows = matrix if matrix.shape[0] == 1 else matrix[box]
            low, high = _once(rows, least[box], most[box], lower[box], upper[box])
            low = np.where(integer, np.ceil(low - WHOLE * (1.0 + np.abs(low))), low)
            high = np.where(integer, np.floor(high + WHOLE * (1.0 + np.abs(high))), high)
            low, high = np.maximum(low, lower[box]), np.minimum(high, upper[box])
            # A continuous end may creep for ever: what moves by little is not gone through again.
            moved = np.where(integer, 0.5, 1e-3 * (1.0 + np.minimum(np.abs(low), np.abs(high))))
            with np.errstate(invalid="ignore"):
                news = ((low - lower[box] > moved) | (upper[box] - high > moved)).any(1)
            dead = np.where(integer, low > high, low > high + 1e-7 * (1.0 + np.abs(high))).any(1)
            alive[box[dead]] = False
            kept = ~dead
            lower[box[kept]], upper[box[kept]] = low[kept], np.maximum(low, high)[kept]
            changed.append(box[kept & news])
        todo = np.concatenate([np.zeros(0, dtype=np.int64), *changed])
        if not todo.size:
            break
    return lower, upper, alive


def _once(matrix: Array, least: Array, most: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """One pass: the ends that every row implies, from the box as it is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        one, other = matrix * lower[:, None, :], matrix * upper[:, None, :]
        zero = matrix == 0
        small = np.where(zero, 0.0, np.minimum(one, other))
        large = np.where(zero, 0.0, np.maximum(one, other))
        # The others' least activity leaves this much for a column's own term, and their largest asks this much of it.
        room = most[:, :, None] - _without(small)
        need = least[:, :, None] - _without(large)
        positive = matrix > 0
        top = np.where(zero, np.inf, np.where(positive, room, need) / matrix)
        bottom = np.where(zero, -np.inf, np.where(positive, need, room) / matrix)
    return np.fmax.reduce(bottom, axis=1), np.fmin.reduce(top, axis=1)


def _without(term: Array) -> Array:
    """The sum of a row's terms but for each in turn; infinite where another is."""
    infinite = np.isinf(term)
    if not infinite.any():
        return term.sum(2, keepdims=True) - term
    finite, sign = np.where(infinite, 0.0, term), np.where(infinite, term, 0.0).sum(2, keepdims=True)
    others = infinite.sum(2, keepdims=True) - infinite
    return np.where(others > 0, sign, finite.sum(2, keepdims=True) - finite)
