"""The search itself: one tree for all items of a batch.

Every round takes the most promising boxes of every item that is not finished, and the points that look best, and solves
them all in one call of the engine. An item keeps its T best points; a box is dropped when its bound reaches the T-th.
What is proven about one box (``bounds.py``) is used on all boxes of that item.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from drolayers.conic import ConeProgram, Values
from drolayers.integer.bounds import Bounds
from drolayers.integer.boxes import Boxes, Solved
from drolayers.integer.components import Components
from drolayers.integer.feasibility import Screen
from drolayers.integer.oracle import Candidates
from drolayers.integer.pool import Pool
from drolayers.integer.tables import Tables
from drolayers.integer.tree import Nodes, exclude, halve
from drolayers.status import Status

if TYPE_CHECKING:
    from drolayers.integer.branch_and_bound import BranchAndBound

Array = np.ndarray

INTEGRAL = 1e-5
"""Distance from an integer up to which a relaxation counts as integral; its point is solved for anyway."""

SMALL = 50
"""Size of integers up to which they, and differences of them, fit into a byte."""

NEIGHBOURS = 4
"""Neighbours of a point that are looked at, for every point that is asked for."""

_DIVISIONS = 20
"""How often in a round boxes are divided at points that are known already."""


class Search:
    """The state of one search."""

    def __init__(self, settings: BranchAndBound, program: ConeProgram, values: Values, count: int) -> None:
        self.settings, self.program, self.pool = settings, program, Pool(program, values, count)
        values, good, batch = self.pool.values, self.pool.good, len(values)
        components = Components.of(program)
        tables = Tables.of(program, values, components)
        components = components.without(tables.component)
        self.boxes = Boxes(settings.engine, program, values, settings.memory, components)
        self.screen = Screen.of(program, values)
        linear = values.q[:, program.integers.to(values.q.device)].cpu().numpy()
        self.bounds = Bounds(components, tables, values.constant.cpu().numpy(), linear)
        # Where tables hold all integers, bounds are trusted to say where to look, for so many solves of an item.
        self.modelled, self.trust = not tables.free.size, 16 + 8 * count
        self.unbounded = np.zeros(batch, dtype=bool)
        self.explored = np.zeros(batch, dtype=np.int64)
        # Items whose pool has been full before: their boxes have been bounded by all that is known.
        self.full = np.zeros(batch, dtype=bool)
        self.rounds = self.relaxations = 0
        # Points that were solved or wait for it, and the best bound among those that no solve could settle.
        self.seen: set[tuple[int, bytes]] = set()
        self.unsettled = np.full(batch, np.inf)
        rows = (program.lower_rows, program.upper_rows)
        low, high = (values.b[:, r.to(values.b.device)].cpu().numpy() for r in rows)
        low, high = np.ceil(-low - 1e-9), np.floor(high + 1e-9)
        # Boxes are copied often, and most integers are binary: a quarter of the bytes is a quarter of the time.
        largest = np.abs(np.concatenate([low[good], high[good]])).max(initial=0.0)
        kind = np.int8 if largest <= SMALL else np.int32
        self.lower: Array = np.where(good[:, None], low, 0.0).astype(kind)
        self.upper: Array = np.where(good[:, None], high, 0.0).astype(kind)
        items = np.flatnonzero(good & (self.lower <= self.upper).all(1))
        whole = Nodes(items, self.lower[items], self.upper[items], np.full(items.size, -np.inf))
        self.open, self.proposed = self._fresh(self._propagated(whole)), Nodes.none(program.integers.numel())

    def run(self) -> Candidates:
        """Rounds until nothing is open, or a limit is met."""
        limit = self.settings.time_limit
        while limit is None or time.perf_counter() - self.pool.start < limit:
            chosen = self._select()
            if not len(chosen):
                break
            self._round(chosen)
        return self._finish()

    @property
    def _target(self) -> Array:
        """A box whose bound reaches this holds none of the best points of its item."""
        return np.where(self.unbounded, -np.inf, self.pool.threshold - self.pool.slack)

    @property
    def _trusted(self) -> Array:
        """Items whose bounds are so good that they say where to look."""
        return self.modelled & (self.bounds.count > 0) & (self.bounds.count <= self.trust)

    @property
    def _searching(self) -> Array:
        """Items that may explore another box."""
        limit = self.settings.node_limit
        return self.explored < (np.inf if limit is None else limit)

    def _select(self) -> Nodes:
        """What to solve next: boxes and points of every item that is not finished."""
        filled = np.isfinite(self.pool.threshold) & ~self.full
        self.full |= filled
        late = filled[self.open.item]
        self.open = self.open[~late] + self._bounded(self._hopeful(self.open[late]))
        chosen = self._hopeful(self.proposed)
        # A box that is divided at a point known already has nothing to solve: its item goes on to the next.
        items = np.unique(self.open.item)
        for division in count():
            taken = self._take(items)
            if not len(taken) or (len(chosen) and division > _DIVISIONS):
                self.open += taken
                break
            single = taken.single
            taken, boxes = taken[single], self._tightened(taken[~single])
            exact = self._trusted
            chosen += taken + boxes[~exact[boxes.item]] + self._divide_at_minimiser(boxes[exact[boxes.item]])
            items = np.setdiff1d(self.open.item, chosen.item)
        return chosen

    def _take(self, items: Array) -> Nodes:
        """Remove the best boxes of some items from the tree; what cannot matter is dropped."""
        self.open = self._hopeful(self.open)
        eligible = np.isin(self.open.item, items)
        if self.settings.node_limit is not None:
            # Points cost no node, nor do boxes that are divided without a solve.
            eligible &= (self._searching | self._trusted)[self.open.item] | self.open.single
        at = np.flatnonzero(eligible)
        nodes = self.open[at]
        share = max(1, self.settings.fill // max(1, items.size))
        missing = self.pool.count - self.pool.found
        width = np.where(self._trusted, np.maximum(share, missing), share)
        # Bounds that were left to wait are made up for where they decide what comes next.
        front = (nodes.rank(nodes.bound, nodes.size) < 4 * width[nodes.item]) & ~self.full[nodes.item]
        nodes.bound[front] = self._bounded(nodes[front]).bound
        take = nodes.rank(nodes.bound, nodes.size) < width[nodes.item]
        # While an item has no point at all, its smallest box goes along: a dive.
        take |= (self.pool.found == 0)[nodes.item] & (nodes.rank(nodes.size, nodes.bound) == 0)
        rest = np.ones(len(self.open), dtype=bool)
        rest[at[take]] = False
        self.open.bound[at] = nodes.bound
        self.open = self.open[rest]
        return nodes[take]

    def _divide_at_minimiser(self, nodes: Nodes) -> Nodes:
        """Where bounds are nearly exact, divide boxes at the points that they favour; those not known yet."""
        single = nodes.single
        points, nodes = nodes[single], nodes[~single]
        bound, point, other = self.bounds.minimiser(nodes.item, nodes.lower, nodes.upper)
        nodes = Nodes(nodes.item, nodes.lower, nodes.upper, np.maximum(nodes.bound, bound))
        rest = self._propagated(self._hopeful(exclude(nodes, point, other, proven=True)))
        # Without a threshold there is nothing to prune yet, and better bounds can wait.
        full = self.full[rest.item]
        self.open += self._fresh(rest[~full] + self._hopeful(self._bounded(rest[full])))
        return points + self._fresh(Nodes(nodes.item, point, point, nodes.bound))

    def _tightened(self, nodes: Nodes) -> Nodes:
        """Boxes reduced by all that is known by now."""
        lower, upper, bound = self.bounds.tighten(nodes.item, nodes.lower, nodes.upper, self._target[nodes.item])
        nodes = self._hopeful(Nodes(nodes.item, lower, upper, np.maximum(bound, nodes.bound)))
        return self._fresh(self._propagated(nodes))

    def _propagated(self, nodes: Nodes) -> Nodes:
        """Boxes without what the rows exclude, and without those that this leaves empty."""
        lower, upper, alive = self.screen.tighten(nodes.item, nodes.lower, nodes.upper)
        return Nodes(nodes.item, lower, upper, nodes.bound)[alive]

    def _round(self, nodes: Nodes) -> None:
        """Solve boxes and points in one call; keep the points, divide the boxes, propose other points."""
        solved = self.boxes.solve(nodes.item, nodes.lower, nodes.upper)
        single, ok = nodes.single, solved.ok
        self.rounds, self.relaxations = self.rounds + 1, self.relaxations + len(nodes)
        np.add.at(self.explored, nodes.item[~single], 1)
        self.bounds.add(nodes.item[ok], solved.share[ok], solved.weight[ok])
        neighbours = self._keep(nodes[single], solved[single])
        children, rounded = self._divide(nodes[~single], solved[~single])
        self.open += self._fresh(self._hopeful(self._bounded(self._propagated(children))))
        self.proposed = self._promising(neighbours + rounded)

    def _keep(self, points: Nodes, solved: Solved) -> Nodes:
        """Take solved points into the pool; the neighbours of those that entered."""
        self.unbounded[points.item[solved.status == int(Status.NO_MINIMUM)]] = True
        failed = solved.status == int(Status.FAILED)
        np.minimum.at(self.unsettled, points.item[failed], points.bound[failed])
        chosen = self.pool.offer(points.item, points.lower, solved) & ~self._trusted[points.item]
        entered = points[chosen]
        return self._neighbours(entered.item, entered.lower, self.bounds.slopes(entered.item, solved.weight[chosen]))

    def _neighbours(self, item: Array, point: Array, slope: Array) -> Nodes:
        """The few points one step away that look best from here, by the slope of the bound."""
        integers, rows = point.shape[1], np.arange(item.size)[:, None]
        change = np.concatenate([-slope, slope], 1)
        change[:, :integers][point <= self.lower[item]] = np.inf
        change[:, integers:][point >= self.upper[item]] = np.inf
        few = min(NEIGHBOURS * (self.pool.count + 1), change.shape[1])
        move = np.argpartition(change, few - 1, 1)[:, :few]
        row, at = np.nonzero(np.isfinite(change[rows, move]))
        move = move[row, at]
        moved = point[row]
        moved[np.arange(row.size), move % integers] += np.where(move < integers, -1, 1).astype(point.dtype)
        return Nodes(item[row], moved, moved, np.full(row.size, -np.inf))

    def _divide(self, nodes: Nodes, solved: Solved) -> tuple[Nodes, Nodes]:
        """Children of solved boxes, and their relaxations rounded."""
        ok = solved.ok
        # A box without an answer is cut in the middle and keeps the bound that it had; only a proof drops it.
        blind = nodes[~ok & (solved.status != int(Status.INFEASIBLE))]
        widest = (blind.upper - blind.lower).argmax(1)
        middle = (blind.lower + blind.upper) // 2
        children = halve(blind, widest, middle[np.arange(len(blind)), widest])
        proposals = Nodes(blind.item, middle, middle, blind.bound)

        nodes, solved = nodes[ok], solved[ok]
        nodes = self._bounded(nodes)
        hopeful = nodes.bound < self._target[nodes.item]
        nodes, solved = nodes[hopeful], solved[hopeful]
        x = np.clip(solved.primal[:, self.program.integers.numpy()], nodes.lower, nodes.upper)
        point = np.round(x).astype(nodes.lower.dtype)
        away = np.abs(x - point)
        integral = away.max(1, initial=0.0) <= INTEGRAL
        at = Nodes(nodes.item, point, point, nodes.bound)
        cut, fractional = nodes[integral], nodes[~integral]
        column = away[~integral].argmax(1)
        children += halve(fractional, column, x[~integral][np.arange(len(fractional)), column])
        # The point of an integral box is a box of its own beside those that cover the rest.
        children += at[integral]
        children += exclude(cut, point[integral], self._steps(cut, point[integral]))
        return children, proposals + at[~integral]

    def _steps(self, nodes: Nodes, point: Array) -> Array:
        """What is known about the value one step away from a point of each box, integer by integer."""
        value, integers = np.full(point.shape, np.inf), point.shape[1]
        for step in (-1, 1):
            moved = point[:, None, :] + step * np.eye(integers, dtype=point.dtype)
            moved = moved.reshape(-1, integers)
            bound = self.bounds.of(nodes.item.repeat(integers), moved, moved).reshape(point.shape)
            inside = (point + step >= nodes.lower) & (point + step <= nodes.upper)
            value = np.minimum(value, np.where(inside, bound, np.inf))
        return value

    def _bounded(self, nodes: Nodes) -> Nodes:
        """Boxes with the best bound that is known by now."""
        bound = self.bounds.of(nodes.item, nodes.lower, nodes.upper)
        return Nodes(nodes.item, nodes.lower, nodes.upper, np.maximum(nodes.bound, bound))

    def _hopeful(self, nodes: Nodes) -> Nodes:
        """The boxes that may still hold one of the best points."""
        return nodes[nodes.bound < self._target[nodes.item]]

    def _fresh(self, nodes: Nodes) -> Nodes:
        """Boxes without those that are a single point known or seen to be infeasible; what passes counts as known."""
        single = np.flatnonzero(nodes.single)
        fits = self.screen.passes(nodes.item[single], nodes.lower[single])
        keep = np.ones(len(nodes), dtype=bool)
        for row, fit in zip(single.tolist(), fits.tolist(), strict=True):
            key = (int(nodes.item[row]), nodes.lower[row].tobytes())
            keep[row] = fit and key not in self.seen
            self.seen.add(key)
        return nodes[keep]

    def _promising(self, points: Nodes) -> Nodes:
        """The points worth a solve in the next round: as many as the pool has empty slots, and one more."""
        useful = ~self._trusted & (self._searching | (self.pool.found < self.pool.count))
        points = self._hopeful(self._bounded(points[useful[points.item]]))
        fits = self.screen.passes(points.item, points.lower)
        keys = zip(points.item.tolist(), points.lower, strict=True)
        fits &= np.array([(item, point.tobytes()) not in self.seen for item, point in keys], dtype=bool)
        points = points[fits]
        wanted = self.pool.count - self.pool.found + 1
        return self._fresh(points[points.rank(points.bound) < wanted[points.item]])

    def _finish(self) -> Candidates:
        """Statuses and gaps from what is left open."""
        left = self.unsettled.copy()
        rest = self._hopeful(self.open)
        np.minimum.at(left, rest.item, rest.bound)
        threshold, found = self.pool.threshold, self.pool.found > 0
        proven = left >= self._target
        with np.errstate(invalid="ignore"):
            gap = np.where(proven, 0.0, np.maximum(threshold - left, 0.0))
        status = np.select(
            [~self.pool.good, self.unbounded, proven & found, proven, found],
            [int(s) for s in (Status.FAILED, Status.NO_MINIMUM, Status.OPTIMAL, Status.INFEASIBLE, Status.INACCURATE)],
            int(Status.FAILED),
        )
        gap = np.where(status == int(Status.OPTIMAL), 0.0, np.where(status == int(Status.INACCURATE), gap, np.inf))
        return self.pool.candidates(self.settings.name, status, gap, self.explored, self.rounds, self.relaxations)
