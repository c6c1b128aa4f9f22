"""Lower bounds on the optimal value as a function of the integer point, collected while the search goes on.

Each solved box leaves, for every component C of the program, an affine bound ``f_C(p) ≥ share + weightᵀp`` that holds
for all integer points p, not only for those of its own box (``boxes.py``). Components are independent
(``components.py``), so for each the best of all solves may be taken, and those with a table (``tables.py``) are exact:

    f(p) ≥ constant + qᵀp + Σ_tables value(p) + Σ_C max_k (share_kC + weight_kCᵀp).

Over a box any choice of one k for every C leaves a sum over tables and single integers that is minimised term by term;
the choice is improved by looking at that minimiser. So every solve bounds every open box, and fixes variables in it, by
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drolayers.integer.components import Components
from drolayers.integer.tables import Tables

Array = np.ndarray

_WORK = 2_000_000
"""Numbers in the largest temporary array."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """The minimum of an affine choice over boxes: its value, where it is attained, its slope and its tables' costs."""

    value: Array
    point: Array
    slope: Array
    costs: Array


class Bounds:
    """The most recent ``capacity`` affine bounds of every item.

    Args:
        components: of the program, those without a table.
        tables: the others.
        constant: what the objective adds, one an item.
        linear: objective coefficients of the integers.
        capacity: solves of an item that are remembered.
        corrections: how often the choice of a solve for every component is improved.
    """

    def __init__(
        self,
        components: Components,
        tables: Tables,
        constant: Array,
        linear: Array,
        capacity: int = 32,
        corrections: int = 3,
    ) -> None:
        batch, integers = linear.shape
        self.components, self.tables, self.constant, self.linear = components, tables, constant, linear
        self.capacity, self.corrections = capacity, corrections if components.count > 2 else 0
        self.share = np.full((batch, capacity, components.count), -np.inf)
        # One weight more than there are pairs, always zero, to pad with.
        self.weight = np.zeros((batch, capacity, components.pair[0].size + 1))
        self.slope = np.zeros((batch, capacity, integers))
        self.count = np.zeros(batch, dtype=np.int64)

    def add(self, item: Array, share: Array, weight: Array) -> None:
        """Take in one solve a row; the oldest of an item make room, except its first, that of the whole box."""
        order = np.argsort(item, kind="stable")
        item, share, weight = item[order], share[order], weight[order]
        nth = self.count[item] + np.arange(item.size) - np.searchsorted(item, item)
        slot = np.where(nth < self.capacity, nth, 1 + (nth - 1) % (self.capacity - 1))
        self.share[item, slot] = share
        self.weight[item, slot, :-1] = weight
        self.slope[item, slot] = self._slope(item, self.weight[item, slot])
        np.add.at(self.count, item, 1)

    def slopes(self, item: Array, weight: Array) -> Array:
        """The slopes over all integers of solves, one a row."""
        return self._slope(item, np.concatenate([weight, np.zeros((item.size, 1))], 1))

    def of(self, item: Array, lower: Array, upper: Array) -> Array:
        """A lower bound for each box."""
        pieces = [self._best(item[cut], lower[cut], upper[cut]).value for cut in self._pieces(item.size)]
        return np.concatenate([np.zeros(0), *pieces])

    def minimiser(self, item: Array, lower: Array, upper: Array) -> tuple[Array, Array, Array]:
        """A lower bound for each box, a point that attains it, and bounds on all that differs from it in an integer."""
        value, point, other = np.zeros(item.size), np.zeros_like(lower), np.zeros(lower.shape)
        for cut in self._pieces(item.size):
            best = self._best(item[cut], lower[cut], upper[cut])
            value[cut], point[cut], regret = best.value, best.point, np.abs(best.slope)
            if len(self.tables):
                two = np.partition(best.costs, 1, 2)[:, :, :2] if best.costs.shape[2] > 1 else best.costs
                with np.errstate(invalid="ignore"):
                    second = np.nan_to_num(two[:, :, -1] - two[:, :, 0], nan=np.inf)
                wide = np.broadcast_to(second[:, :, None], (*second.shape, self.tables.column.shape[1]))
                self.tables.write(regret, wide)
            other[cut] = best.value[:, None] + regret
        return value, point, other

    def tighten(self, item: Array, lower: Array, upper: Array, threshold: Array) -> tuple[Array, Array, Array]:
        """Boxes without the values that a bound excludes (reduced-cost fixing), and the bounds on what remains.

        Along slope r a variable may leave the end that the bound is attained at by (threshold - bound) / |r| at most; a
        state of a table may cost so much more than the best.
        """
        lower, upper, value = lower.copy(), upper.copy(), np.zeros(item.size)
        for cut in self._pieces(item.size):
            low, high = lower[cut], upper[cut]
            best = self._best(item[cut], low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.maximum(threshold[cut] - best.value, 0.0)
                reach = np.floor(room[:, None] / np.abs(best.slope) + 1e-9)
            reach = np.where(np.isfinite(reach), reach, np.inf)
            step = np.minimum((high - low).astype(float), reach).astype(low.dtype)
            new_high = np.where(best.slope > 0, low + step, high)
            new_low = np.where(best.slope < 0, high - step, low)
            if len(self.tables):
                with np.errstate(invalid="ignore"):
                    extra = best.costs - best.costs.min(2, keepdims=True)
                fits = (extra <= room[:, None, None])[:, :, :, None] & np.isfinite(best.costs)[:, :, :, None]
                state = self.tables.state
                # A box that holds no state of some table is dropped by its bound: its ends stay.
                dead = ~fits.any((2, 3))
                self.tables.write(new_low, np.where(dead[:, :, None], 0.0, np.where(fits, state, np.inf).min(2)))
                self.tables.write(new_high, np.where(dead[:, :, None], 0.0, np.where(fits, state, -np.inf).max(2)))
                gone = dead.any(1)
                new_low[gone], new_high[gone] = low[gone], high[gone]
            lower[cut], upper[cut], value[cut] = new_low, new_high, best.value
        return lower, upper, value

    def _best(self, item: Array, lower: Array, upper: Array) -> Minimum:
        """The best bound on each box that was found."""
        used = max(1, min(self.capacity, int(self.count[item].max(initial=0))))
        low, high = lower.astype(float), upper.astype(float)
        allowed = self.tables.allowed(low, high)
        share = self.share[item, :used]
        best = self._minimum(item, low, high, allowed, share[:, 0].sum(1), self.slope[item, 0])
        for k in range(1, used):
            other = self._minimum(item, low, high, allowed, share[:, k].sum(1), self.slope[item, k])
            best = _better(best, other)
        last, weight, (owner, column) = best, self.weight[item, :used], self.components.pair
        rows = np.arange(item.size)
        for _ in range(self.corrections):
            value = share.copy()
            value[:, :, :-1] += np.add.reduceat(
                weight[:, :, :-1] * last.point[:, None, column], self.components.start, 2
            )
            choice = value.argmax(1)
            mixed = np.zeros((item.size, weight.shape[2]))
            mixed[:, :-1] = weight[rows[:, None], choice[:, owner], np.arange(owner.size)]
            shares = np.take_along_axis(share, choice[:, None, :], 1)[:, 0].sum(1)
            last = self._minimum(item, low, high, allowed, shares, self._slope(item, mixed))
            best = _better(best, last)
        return best

    def _minimum(self, item: Array, low: Array, high: Array, allowed: Array, share: Array, slope: Array) -> Minimum:
        """Minimise one affine choice over boxes, term by term."""
        free = self.tables.free
        point = np.where(slope > 0, low, high)
        value = self.constant[item] + share + (slope[:, free] * point[:, free]).sum(1)
        costs = np.zeros((item.size, 0, 0))
        if len(self.tables):
            costs = np.where(allowed, self.tables.costs(item, slope), np.inf)
            at = costs.argmin(2)
            least = np.take_along_axis(costs, at[:, :, None], 2)[:, :, 0].sum(1)
            # A table without a state in the box settles it, whatever the other terms.
            value = np.where(np.isfinite(least), value + np.where(np.isfinite(least), least, 0.0), np.inf)
            self.tables.write(point, self.tables.state[np.arange(len(self.tables)), at])
        return Minimum(value, point, slope, costs)

    def _slope(self, item: Array, weight: Array) -> Array:
        """Slopes over all integers: the objective's and those of all components."""
        return self.linear[item] + weight[:, self.components.pairs_of].sum(2)

    def _pieces(self, size: int) -> list[slice]:
        """Cut a number of boxes so that no temporary array grows large."""
        numbers = self.capacity * (self.weight.shape[2] + self.share.shape[2]) + 4 * self.tables.state.size
        step = max(1, _WORK // numbers)
        return [slice(at, min(at + step, size)) for at in range(0, size, step)]


def _better(one: Minimum, other: Minimum) -> Minimum:
    """The larger of two minima, box by box."""
    chosen = other.value > one.value

    def pick(a: Array, b: Array) -> Array:
        return np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), b, a)

    return Minimum(
        pick(one.value, other.value),
        pick(one.point, other.point),
        pick(one.slope, other.slope),
        pick(one.costs, other.costs),
    )
