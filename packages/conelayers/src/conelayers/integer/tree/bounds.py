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

import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.integer.components import Components
from conelayers.integer.nodes import ranks
from conelayers.integer.tree.tables import Tables
from conelayers.program.program import once

_WORK = {"cpu": 1_000_000}
"""Numbers in the largest temporary tensor, by device: on a CPU they should stay near the cache."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """The minimum of an affine choice over boxes: its value, where it is attained, its slope and its tables' costs."""

    value: Float[Tensor, "box"]
    point: Float[Tensor, "box integer"]
    slope: Float[Tensor, "box integer"]
    costs: Float[Tensor, "box table state"]


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
        constant: Float[Tensor, "batch"],
        linear: Float[Tensor, "batch integer"],
        capacity: int = 32,
        corrections: int = 3,
    ) -> None:
        batch, device = len(linear), linear.device
        self.tables, self.constant, self.linear = tables, constant, linear
        self.capacity, self.corrections = capacity, corrections if components.count > 2 else 0
        self.owner, self.column, self.pairs_of = once(
            components,
            ("pairs", device),
            lambda: [torch.from_numpy(a).to(device) for a in (*components.pair, components.pairs_of)],
        )
        self.components, self.work = components.count, _WORK.get(device.type, 200_000_000)
        self.count = torch.zeros(batch, dtype=torch.int64, device=device)
        self.share, self.weight, self.slope = (linear.new_zeros(batch, 0, s) for s in self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Numbers that one solve leaves: shares, weights and slopes."""
        # One weight more than there are pairs, always zero, to pad with.
        return self.components, self.owner.shape[0] + 1, self.linear.shape[1]

    def _grow(self, used: int) -> None:
        """Make room for so many solves of every item."""
        room = min(self.capacity, max(4, 1 << max(0, used - 1).bit_length())) - self.share.shape[1]
        if room > 0:
            fresh = [self.linear.new_zeros(len(self.count), room, s) for s in self._sizes]
            fresh[0].fill_(-torch.inf)
            old = (self.share, self.weight, self.slope)
            self.share, self.weight, self.slope = (torch.cat(pair, 1) for pair in zip(old, fresh, strict=True))

    def add(self, item: Int[Tensor, "solve"], share: Tensor, weight: Tensor) -> None:
        """Take in one solve a row; the oldest of an item make room, except its first, that of the whole box."""
        total = self.count + torch.bincount(item, minlength=len(self.count))
        nth = self.count[item] + ranks(item, torch.argsort(item, stable=True))
        self._grow(int(total.max()) if len(total) else 0)
        slot = torch.where(nth < self.capacity, nth, 1 + (nth - 1) % (self.capacity - 1))
        # Of several for one place the last stays: on a GPU nobody knows which is written last.
        kept = ((nth == 0) | (nth + self.capacity > total[item])).nonzero()[:, 0]
        item, slot, share, weight = (t[kept] for t in (item, slot, share, torch.nn.functional.pad(weight, (0, 1))))
        self.share[item, slot], self.weight[item, slot], self.count = share, weight, total
        self.slope[item, slot] = self._slope(item, weight)

    def slopes(self, item: Int[Tensor, "solve"], weight: Tensor) -> Float[Tensor, "solve integer"]:
        """The slopes over all integers of solves, one a row."""
        return self._slope(item, torch.nn.functional.pad(weight, (0, 1)))

    def of(self, item: Int[Tensor, "box"], lower: Tensor, upper: Tensor) -> Float[Tensor, "box"]:
        """A lower bound for each box."""
        used = self._used(item)
        pieces = [self._best(item[cut], lower[cut], upper[cut], used).value for cut in self._pieces(len(item), used)]
        return torch.cat([self.constant[:0], *pieces])

    def minimiser(self, item: Int[Tensor, "box"], lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A lower bound for each box, a point that attains it, and bounds on all that differs from it in an integer."""
        value, used = self.constant.new_zeros(len(item)), self._used(item)
        point, other = torch.zeros_like(lower), self.linear.new_zeros(lower.shape)
        for cut in self._pieces(len(item), used):
            best = self._best(item[cut], lower[cut], upper[cut], used)
            value[cut], point[cut], regret = best.value, best.point.to(lower.dtype), best.slope.abs()
            if len(self.tables):
                two = best.costs.topk(min(2, best.costs.shape[2]), 2, largest=False).values
                second = (two[:, :, -1] - two[:, :, 0]).nan_to_num(torch.inf, torch.inf)
                regret = self.tables.write(regret, second[:, :, None].expand(-1, -1, self.tables.column.shape[1]))
            other[cut] = best.value[:, None] + regret
        return value, point, other

    def tighten(
        self, item: Int[Tensor, "box"], lower: Tensor, upper: Tensor, threshold: Float[Tensor, "box"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "box"]]:
        """Boxes without the values that a bound excludes (reduced-cost fixing), and the bounds on what remains.

        Along slope r a variable may leave the end that the bound is attained at by (threshold - bound) / |r| at most; a
        state of a table may cost so much more than the best.
        """
        lower, upper, value = lower.clone(), upper.clone(), self.constant.new_zeros(len(item))
        used = self._used(item)
        for cut in self._pieces(len(item), used):
            low, high = lower[cut], upper[cut]
            best = self._best(item[cut], low, high, used)
            room = (threshold[cut] - best.value).clamp(min=0.0).nan_to_num(torch.inf, torch.inf)
            reach = torch.floor(room[:, None] / best.slope.abs() + 1e-9).nan_to_num(torch.inf, torch.inf)
            step = torch.minimum(high - low, reach).to(low.dtype)
            new_high = torch.where(best.slope > 0, low + step, high)
            new_low = torch.where(best.slope < 0, high - step, low)
            if len(self.tables):
                extra = best.costs - best.costs.amin(2, keepdim=True)
                fits = ((extra <= room[:, None, None]) & best.costs.isfinite())[:, :, :, None]
                # A box that holds no state of some table is dropped by its bound: its ends stay.
                dead = ~fits.any(2)
                ends = ((new_low, torch.inf, torch.amin), (new_high, -torch.inf, torch.amax))
                new_low, new_high = (
                    self.tables.write(end, extreme(torch.where(fits, self.tables.state, far), 2).masked_fill(dead, 0.0))
                    for end, far, extreme in ends
                )
                gone = dead.any(1)
                new_low, new_high = torch.where(gone, low, new_low), torch.where(gone, high, new_high)
            lower[cut], upper[cut], value[cut] = new_low, new_high, best.value
        return lower, upper, value

    def _best(self, item: Tensor, lower: Tensor, upper: Tensor, used: int) -> Minimum:
        """The best bound on each box that was found."""
        low, high = lower.to(self.linear.dtype), upper.to(self.linear.dtype)
        allowed = self.tables.allowed(low, high)
        # Σ min(r·low, r·high) over all solves at once; tables one solve after the other.
        share, slope, free = self.share[item, :used], self.slope[item, :used], self.tables.free
        centre, radius = 0.5 * (low + high) * free, 0.5 * (high - low) * free
        value = share.sum(2) + (slope @ centre[:, :, None] - slope.abs() @ radius[:, :, None])[:, :, 0]
        if len(self.tables):
            for k in range(used):
                costs = self.tables.costs(item, slope[:, k]).masked_fill(~allowed, torch.inf)
                value[:, k] += costs.amin(2).sum(1)
            # A table without a state in the box settles it, whatever the other terms.
            value = value.nan_to_num(torch.inf, torch.inf, -torch.inf)
        chosen = value.argmax(1)
        rows = torch.arange(len(item), device=item.device)
        best = last = self._minimum(item, low, high, allowed, share[rows, chosen].sum(1), slope[rows, chosen])
        if not self.corrections:
            return best
        weight = self.weight[item, :used]
        for _ in range(self.corrections):
            term = weight[:, :, :-1] * last.point[:, None, self.column]
            choice = share.index_add(2, self.owner, term).argmax(1)
            mixed = weight[rows[:, None], choice[:, self.owner], torch.arange(len(self.owner), device=item.device)]
            shares = share.gather(1, choice[:, None, :])[:, 0].sum(1)
            mixed_slope = self._slope(item, torch.nn.functional.pad(mixed, (0, 1)))
            last = self._minimum(item, low, high, allowed, shares, mixed_slope)
            best = _better(best, last)
        return best

    def _minimum(
        self, item: Tensor, low: Tensor, high: Tensor, allowed: Tensor, share: Tensor, slope: Tensor
    ) -> Minimum:
        """Minimise one affine choice over boxes, term by term."""
        point = torch.where(slope > 0, low, high)
        value = self.constant[item] + share + (slope * point * self.tables.free).sum(1)
        costs = slope.new_zeros(len(item), 0, 0)
        if len(self.tables):
            costs = self.tables.costs(item, slope).masked_fill(~allowed, torch.inf)
            least, at = costs.min(2)
            value = value + least.sum(1)
            # A table without a state in the box settles it, whatever the other terms.
            value = torch.where(least.isposinf().any(1), torch.inf, value)
            table = torch.arange(len(self.tables), device=item.device)
            point = self.tables.write(point, self.tables.state[table, at])
        return Minimum(value, point, slope, costs)

    def _slope(self, item: Tensor, weight: Tensor) -> Float[Tensor, "box integer"]:
        """Slopes over all integers: the objective's and those of all components."""
        return self.linear[item] + weight[:, self.pairs_of].sum(2)

    def _used(self, item: Tensor) -> int:
        """How many solves some of the items have."""
        used = min(self.capacity, max(1, int(self.count[item].max()) if len(item) else 1))
        self._grow(used)
        return used

    def _pieces(self, size: int, used: int) -> list[slice]:
        """Cut a number of boxes so that no temporary tensor grows large."""
        numbers = used * sum(self._sizes) + 4 * self.tables.state.numel()
        step = max(1, self.work // numbers)
        return [slice(at, min(at + step, size)) for at in range(0, size, step)]


def _better(one: Minimum, other: Minimum) -> Minimum:
    """The larger of two minima, box by box."""
    chosen = other.value > one.value

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(chosen.reshape(-1, *[1] * (a.dim() - 1)), b, a)

    return Minimum(
        pick(one.value, other.value),
        pick(one.point, other.point),
        pick(one.slope, other.slope),
        pick(one.costs, other.costs),
    )
