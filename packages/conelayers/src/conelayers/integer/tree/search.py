"""The search itself: one tree for all items of a batch, on the device where the programs are.

Every round takes the most promising boxes of every item that is not finished, and the points that look best, and solves
them all in one call of the engine. An item keeps its T best points; a box is dropped when its bound reaches the T-th.
What is proven about one box (``bounds.py``) is used on all boxes of that item. A box whose relaxation is integral has
solved its point as well; it waits until its item has points enough to bound it by, and is then divided at that point.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.integer.boxes import Boxes, Solved
from conelayers.integer.components import Components
from conelayers.integer.feasibility import Screen
from conelayers.integer.nodes import Nodes, exclude, halve
from conelayers.integer.oracle import Candidates
from conelayers.integer.pool import Slots
from conelayers.integer.tree.bounds import Bounds
from conelayers.integer.tree.tables import Tables
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status

if TYPE_CHECKING:
    from conelayers.integer.tree.branch_and_bound import BranchAndBound

INTEGRAL = 1e-5
"""Distance from an integer up to which a relaxation counts as integral."""

SMALL = 50
"""Size of integers up to which they, and differences of them, fit into a byte."""

NEIGHBOURS = 4
"""Neighbours of a point that are looked at, for every point that is asked for."""

_DIVISIONS = 20
"""How often in a round boxes are divided at points that are known already."""


class Search:
    """The state of one search."""

    def __init__(self, settings: BranchAndBound, program: ConeProgram, values: Values, count: int) -> None:
        self.settings, self.program, self.pool = settings, program, Slots(program, values, count)
        values, good, device = self.pool.values, self.pool.good, values.q.device
        components = Components.of(program)
        tables = Tables.of(program, values, components)
        components = components.without(tables.component)
        self.boxes = Boxes(settings.engine, program, values, settings.memory, components)
        self.screen, self.integers = Screen.of(program, values), program.on(device).integers
        self.bounds = Bounds(components, tables, values.constant, values.q[:, self.integers])
        # Where tables hold all integers, bounds are trusted to say where to look, for so many solves of an item.
        self.modelled, self.trust = not bool(tables.free.any()), 16 + 8 * count
        self.unbounded = torch.zeros_like(good)
        self.explored = torch.zeros_like(good, dtype=torch.int64)
        # Items whose pool has been full before: their boxes have been bounded by all that is known.
        self.full = torch.zeros_like(good)
        # Bounds of linear programs are exact nearby, and what looks best is; others are wrong now and then.
        self.spare = int(program.quadratic or len(program.cones.blocks) > 0)
        self.rounds = self.relaxations = 0
        # Keys of points that were solved or wait for it, and the best bound among those that no solve could settle.
        self.seen = self.explored[:0]
        random = torch.Generator().manual_seed(0)
        self.key = torch.randint(-(2**62), 2**62, (1 + self.integers.shape[0],), generator=random).to(device)
        self.unsettled = torch.full_like(values.constant, torch.inf)
        low, high = (values.b[:, rows] for rows in (program.on(device).lower, program.on(device).upper))
        low, high = torch.ceil(-low - 1e-9), torch.floor(high + 1e-9)
        # Boxes are copied often, and most integers are binary: a quarter of the bytes is a quarter of the time.
        low, high = (torch.where(good[:, None], end, 0.0) for end in (low, high))
        largest = float(torch.cat([low, high]).abs().max()) if low.numel() else 0.0
        kind = torch.int8 if largest <= SMALL else torch.int32
        self.lower, self.upper = low.to(kind), high.to(kind)
        items = (good & (low <= high).all(1)).nonzero()[:, 0]
        whole = Nodes(items, self.lower[items], self.upper[items], torch.full_like(self.unsettled[items], -torch.inf))
        self.open, self.settled, self.proposed = whole[:0], whole[:0], self._fresh(self._propagated(whole))

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
    def _target(self) -> Float[Tensor, "batch"]:
        """A box whose bound reaches this holds none of the best points of its item."""
        return torch.where(self.unbounded, -torch.inf, self.pool.threshold - self.pool.slack)

    @property
    def _trusted(self) -> Bool[Tensor, "batch"]:
        """Items whose bounds are so good that they say where to look."""
        return self.modelled & (self.bounds.count > 0) & (self.bounds.count <= self.trust)

    @property
    def _searching(self) -> Bool[Tensor, "batch"]:
        """Items that may explore another box."""
        limit = self.settings.node_limit
        return self.explored < (torch.inf if limit is None else limit)

    def _of(self, nodes: Nodes) -> Bool[Tensor, "batch"]:
        """The items that some boxes belong to."""
        return torch.zeros_like(self.full).index_fill(0, nodes.item, True)

    def _select(self) -> Nodes:
        """What to solve next: boxes and points of every item that is not finished."""
        filled = self.pool.threshold.isfinite() & ~self.full
        self.full = self.full | filled
        if len(self.open):
            late = filled[self.open.item]
            self.open = self.open[~late] + self._bounded(self._hopeful(self.open[late]))
        chosen = self._hopeful(self.proposed)
        if len(self.settled):
            waiting = self._hopeful(self.settled)
            busy = self._of(chosen)[waiting.item]
            self.settled = waiting[busy]
            chosen += self._divide_at_minimiser(self._tightened(waiting[~busy]))
        # A box that is divided at a point known already has nothing to solve: its item goes on to the next.
        items = self._of(self.open)
        for division in count():
            taken = self._take(items)
            if not len(taken) or (len(chosen) and division > _DIVISIONS):
                self.open += taken
                break
            single = taken.single
            taken, boxes = taken[single], self._tightened(taken[~single])
            exact = self._trusted[boxes.item]
            chosen += taken + boxes[~exact] + self._divide_at_minimiser(boxes[exact])
            items = self._of(self.open) & ~self._of(chosen)
        return chosen

    def _take(self, items: Bool[Tensor, "batch"]) -> Nodes:
        """Remove the best boxes of some items from the tree; what cannot matter is dropped."""
        self.open = self._hopeful(self.open)
        if not len(self.open):
            return self.open
        eligible = items[self.open.item]
        if self.settings.node_limit is not None:
            # Points cost no node, nor do boxes that are divided without a solve.
            eligible &= (self._searching | self._trusted)[self.open.item] | self.open.single
        at = eligible.nonzero()[:, 0]
        nodes = self.open[at]
        if not len(nodes):
            return nodes
        share = (self.settings.fill // items.sum().clamp(min=1)).clamp(min=1)
        # Where an integral relaxation has given a point away, another is looked at beside those that are missing.
        missing = self.pool.count - self.pool.found + (self.spare * (self.pool.found > 0))
        width = torch.where(self._trusted, torch.maximum(share, missing), share)[nodes.item]
        # Bounds that were left to wait are made up for where they decide what comes next.
        size = nodes.size
        front = ((nodes.rank(nodes.bound, size) < 4 * width) & ~self.full[nodes.item]).nonzero()[:, 0]
        nodes.bound[front] = self._bounded(nodes[front]).bound
        take = nodes.rank(nodes.bound, size) < width
        # While an item has no point at all, its smallest box goes along: a dive.
        take |= (self.pool.found == 0)[nodes.item] & (nodes.rank(size, nodes.bound) == 0)
        self.open.bound[at] = nodes.bound
        self.open = self.open[torch.ones_like(eligible).index_fill(0, at[take], False)]
        return nodes[take]

    def _divide_at_minimiser(self, nodes: Nodes) -> Nodes:
        """Where bounds are nearly exact, divide boxes at the points that they favour; those not known yet."""
        if not len(nodes):
            return nodes
        single = nodes.single
        points, nodes = nodes[single], nodes[~single]
        if not len(nodes):
            return points
        bound, point, other = self.bounds.minimiser(nodes.item, nodes.lower, nodes.upper)
        nodes = Nodes(nodes.item, nodes.lower, nodes.upper, torch.maximum(nodes.bound, bound))
        rest = self._propagated(exclude(nodes, point, other, self._target[nodes.item]))
        # Without a threshold there is nothing to prune yet, and better bounds can wait.
        full = self.full[rest.item]
        self.open += self._fresh(rest[~full] + self._hopeful(self._bounded(rest[full])))
        return points + self._fresh(Nodes(nodes.item, point, point, nodes.bound))

    def _tightened(self, nodes: Nodes) -> Nodes:
        """Boxes reduced by all that is known by now."""
        if not len(nodes):
            return nodes
        lower, upper, bound = self.bounds.tighten(nodes.item, nodes.lower, nodes.upper, self._target[nodes.item])
        nodes = self._hopeful(Nodes(nodes.item, lower, upper, torch.maximum(bound, nodes.bound)))
        return self._fresh(self._propagated(nodes))

    def _propagated(self, nodes: Nodes) -> Nodes:
        """Boxes without what the rows exclude, and without those that this leaves empty."""
        if not len(nodes):
            return nodes
        lower, upper, alive = self.screen.tighten(nodes.item, nodes.lower, nodes.upper)
        return Nodes(nodes.item, lower, upper, nodes.bound)[alive]

    def _round(self, nodes: Nodes) -> None:
        """Solve boxes and points in one call; keep the points, divide the boxes, propose other points."""
        solved = self.boxes.solve(nodes.item, nodes.lower, nodes.upper)
        ok = solved.ok.nonzero()[:, 0]
        self.bounds.add(nodes.item[ok], solved.share[ok], solved.weight[ok])
        self.rounds, self.relaxations = self.rounds + 1, self.relaxations + len(nodes)
        point, box = (kind.nonzero()[:, 0] for kind in (nodes.single, ~nodes.single))
        self.explored += torch.bincount(nodes.item[box], minlength=len(self.explored))
        proposals = self._keep(nodes[point], solved[point])
        if len(box):
            children, others = self._divide(nodes[box], solved[box])
            self.open += self._fresh(self._hopeful(self._bounded(self._propagated(children))))
            proposals += others
        self.proposed = self._promising(proposals)

    def _keep(self, points: Nodes, solved: Solved) -> Nodes:
        """Take solved points into the pool; the neighbours of those that entered."""
        if not len(points):
            return points
        self.unbounded[points.item[solved.status == int(Status.UNBOUNDED)]] = True
        failed = (solved.status == int(Status.FAILED)).nonzero()[:, 0]
        self.unsettled.scatter_reduce_(0, points.item[failed], points.bound[failed], "amin")
        entered = self.pool.offer(points.item, points.lower, solved) & ~self._trusted[points.item]
        return self._neighbours(points[entered], solved[entered])

    def _neighbours(self, points: Nodes, solved: Solved) -> Nodes:
        """The few points one step away that look best from here, by the slope of the bound."""
        if not len(points):
            return points
        item, point = points.item, points.lower
        integers, slope = point.shape[1], self.bounds.slopes(item, solved.weight)
        change = torch.cat(
            [
                (-slope).masked_fill(point <= self.lower[item], torch.inf),
                slope.masked_fill(point >= self.upper[item], torch.inf),
            ],
            1,
        )
        few = min(NEIGHBOURS * (self.pool.count + 1), 2 * integers)
        least, move = change.topk(few, 1, largest=False)
        row, at = least.isfinite().nonzero(as_tuple=True)
        move = move[row, at]
        column, step = (move % integers)[:, None], torch.where(move < integers, -1, 1)[:, None].to(point.dtype)
        moved = point[row]
        moved = moved.scatter(1, column, moved.gather(1, column) + step)
        return Nodes(item[row], moved, moved, torch.full_like(least[row, at], -torch.inf))

    def _divide(self, nodes: Nodes, solved: Solved) -> tuple[Nodes, Nodes]:
        """Children of solved boxes, and points near their relaxations."""
        # A box without an answer is cut in the middle and keeps the bound that it had; only a proof drops it.
        blind = nodes[~solved.ok & (solved.status != int(Status.INFEASIBLE))]
        children = proposals = blind
        if len(blind):
            widest = (blind.upper - blind.lower).argmax(1)
            middle = torch.div(blind.lower + blind.upper, 2, rounding_mode="floor")
            children = halve(blind, widest, middle.gather(1, widest[:, None])[:, 0])
            proposals = Nodes(blind.item, middle, middle, blind.bound)

        ok = solved.ok.nonzero()[:, 0]
        bounded = self._bounded(nodes[ok])
        hopeful = (bounded.bound < self._target[bounded.item]).nonzero()[:, 0]
        nodes, solved = bounded[hopeful], solved[ok[hopeful]]
        x = solved.primal[:, self.integers]
        x = torch.clamp(x, nodes.lower.to(x.dtype), nodes.upper.to(x.dtype))
        point = x.round().to(nodes.lower.dtype)
        away = (x - point).abs()
        at = Nodes(nodes.item, point, point, nodes.bound)
        integral = (away <= INTEGRAL).all(1)
        fractional, integral = (~integral).nonzero()[:, 0], integral.nonzero()[:, 0]
        if len(fractional):
            column = away[fractional].argmax(1)
            children += halve(nodes[fractional], column, x[fractional, column])
        self.settled += nodes[integral]
        return children, proposals + at[fractional] + self._adopted(at[integral], solved[integral])

    def _adopted(self, points: Nodes, solved: Solved) -> Nodes:
        """Take integral relaxations into the pool as points; points near them, and those that were not accurate."""
        if not len(points):
            return points
        neighbours, new = self._neighbours(points, solved), self._unseen(points).nonzero()[:, 0]
        points, found = points[new], self.boxes.adopt(points.item[new], points.lower[new], solved[new])
        self._fresh(points[found.ok])
        self.pool.offer(points.item, points.lower, found)
        return points[~found.ok] + neighbours

    def _bounded(self, nodes: Nodes) -> Nodes:
        """Boxes with the best bound that is known by now."""
        if not len(nodes):
            return nodes
        bound = self.bounds.of(nodes.item, nodes.lower, nodes.upper)
        return Nodes(nodes.item, nodes.lower, nodes.upper, torch.maximum(nodes.bound, bound))

    def _hopeful(self, nodes: Nodes) -> Nodes:
        """The boxes that may still hold one of the best points."""
        return nodes[nodes.bound < self._target[nodes.item]] if len(nodes) else nodes

    def _keys(self, points: Nodes) -> Int[Tensor, "point"]:
        """A number for every point of every item: random sums, of 64 bits."""
        return (points.lower * self.key[1:]).sum(1) + points.item * self.key[0]

    def _fresh(self, nodes: Nodes) -> Nodes:
        """Boxes without those that are a single point known or seen to be infeasible; what passes counts as known."""
        single = nodes.single.nonzero()[:, 0] if len(nodes) else nodes.item
        if not len(single):
            return nodes
        points = nodes[single]
        keys = self._keys(points)
        order = torch.argsort(keys, stable=True)
        twice = torch.zeros_like(single, dtype=torch.bool).index_copy(0, order[1:], keys[order].diff() == 0)
        fits = self._unseen(points) & ~twice
        self.seen = torch.cat([self.seen, keys[fits]])
        return nodes[torch.ones_like(nodes.item, dtype=torch.bool).index_copy(0, single, fits)]

    def _unseen(self, points: Nodes) -> Bool[Tensor, "point"]:
        """Which points are neither known nor seen to be infeasible."""
        return self.screen.passes(points.item, points.lower) & ~torch.isin(self._keys(points), self.seen)

    def _promising(self, points: Nodes) -> Nodes:
        """The points worth a solve in the next round: as many as the pool has empty slots, and a spare one."""
        if not len(points):
            return points
        useful = ~self._trusted & (self._searching | (self.pool.found < self.pool.count))
        points = self._hopeful(self._bounded(points[useful[points.item]]))
        points = points[self._unseen(points)]
        wanted = (self.pool.count - self.pool.found + self.spare).clamp(min=1)
        return self._fresh(points[points.rank(points.bound) < wanted[points.item]])

    def _finish(self) -> Candidates:
        """Statuses and gaps from what is left open."""
        rest = self._hopeful(self.open + self.settled + self.proposed)
        left = self.unsettled.scatter_reduce(0, rest.item, rest.bound, "amin")
        threshold, found = self.pool.threshold, self.pool.found > 0
        proven = left >= self._target
        gap = torch.where(proven, 0.0, (threshold - left).clamp(min=0.0))
        status = torch.full_like(self.explored, int(Status.FAILED))
        for case, said in (
            (found, Status.INACCURATE),
            (proven, Status.INFEASIBLE),
            (proven & found, Status.OPTIMAL),
            (self.unbounded, Status.UNBOUNDED),
            (~self.pool.good, Status.FAILED),
        ):
            status = torch.where(case, int(said), status)
        gap = torch.where(
            status == int(Status.INACCURATE), gap, torch.where(status == int(Status.OPTIMAL), 0.0, torch.inf)
        )
        return self.pool.candidates(self.settings.name, status, gap, self.explored, self.rounds, self.relaxations)
