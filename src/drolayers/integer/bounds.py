"""Affine lower bounds on the optimal value as a function of the integer point, collected while the search goes on.

Each solved box leaves ``f(p) ≥ intercept + slopeᵀp`` for all integer points p of its program (``boxes.py``), not only
for those of its own box. So every solve bounds every open box, and fixes variables in it, by arithmetic.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_WORK = 4_000_000
"""Numbers in the largest temporary array."""


class AffineBounds:
    """The most recent ``capacity`` affine bounds of every item."""

    def __init__(self, batch: int, integers: int, capacity: int = 48) -> None:
        self.capacity = capacity
        self.intercept = np.full((batch, capacity), -np.inf)
        self.slope = np.zeros((batch, capacity, integers))
        self.count = np.zeros(batch, dtype=np.int64)

    def add(self, item: Array, intercept: Array, slope: Array) -> None:
        """Take in one bound a row; the oldest of an item make room, except its first, that of the whole box."""
        order = np.argsort(item, kind="stable")
        ordered = item[order]
        nth = self.count[ordered] + np.arange(order.size) - np.searchsorted(ordered, ordered)
        slot = np.where(nth < self.capacity, nth, 1 + (nth - 1) % (self.capacity - 1))
        self.intercept[ordered, slot] = intercept[order]
        self.slope[ordered, slot] = slope[order]
        np.add.at(self.count, item, 1)

    def of(self, item: Array, lower: Array, upper: Array) -> Array:
        """The best bound on each box."""
        best = np.full(item.size, -np.inf)
        for cut in self._pieces(item.size):
            best[cut] = self._each(item[cut], lower[cut], upper[cut])[0].max(1)
        return best

    def tighten(self, item: Array, lower: Array, upper: Array, threshold: Array) -> tuple[Array, Array, Array]:
        """Boxes without the values that some bound excludes (reduced-cost fixing), and the bounds on what remains.

        Along slope r a variable may leave the end that its bound is attained at by (threshold - bound) / |r| at most.
        """
        lower, upper, best = lower.copy(), upper.copy(), np.full(item.size, -np.inf)
        for cut in self._pieces(item.size):
            low, high = lower[cut], upper[cut]
            bound, slope = self._each(item[cut], low, high)
            room = threshold[cut, None] - bound
            with np.errstate(divide="ignore", invalid="ignore"):
                reach = np.floor(np.maximum(room, 0.0)[:, :, None] / np.abs(slope) + 1e-9)
            reach[~np.isfinite(reach)] = np.inf
            width = (high - low).astype(float)
            from_low = np.where(slope > 0, reach, np.inf).min(1)
            from_high = np.where(slope < 0, reach, np.inf).min(1)
            upper[cut] = low + np.minimum(width, from_low).astype(low.dtype)
            lower[cut] = high - np.minimum(width, from_high).astype(low.dtype)
            best[cut] = self._each(item[cut], lower[cut], upper[cut])[0].max(1)
            best[cut][(lower[cut] > upper[cut]).any(1)] = np.inf
        return lower, upper, best

    def steepest(self, item: Array, lower: Array, upper: Array) -> Array:
        """The slope of the bound that is the best on each box."""
        bound, slope = self._each(item, lower, upper)
        return slope[np.arange(item.size), bound.argmax(1)]

    def _each(self, item: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Every bound of the item on each box, and their slopes."""
        used = max(1, min(self.capacity, int(self.count.max(initial=0))))
        slope = self.slope[item, :used]
        low, high = lower.astype(float)[:, :, None], upper.astype(float)[:, :, None]
        least = np.maximum(slope, 0.0) @ low + np.minimum(slope, 0.0) @ high
        return self.intercept[item, :used] + least[:, :, 0], slope

    def _pieces(self, size: int) -> list[slice]:
        """Cut a number of boxes so that no temporary array grows large."""
        step = max(1, _WORK // max(1, self.slope.shape[1] * self.slope.shape[2]))
        return [slice(at, min(at + step, size)) for at in range(0, size, step)]
