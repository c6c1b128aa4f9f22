"""The best integer points of programs that are linear: a simplex method on every box, one program after the other.

Rows first narrow the box (``propagation.py``) and those that it satisfies anyway are dropped. What remains is small and
dense, and ``partition.py`` searches it. Its vertices are integral where the rows are totally unimodular, so that such
programs have no tree; the next best points come from a partition around the best. All points found are certified by the
engine, which checks their vertices or solves them (``certificate.py``); an item that the arithmetic cannot settle is
handed to branch and bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Timer
from typing import Any

import numpy as np
import torch

from conelayers.checks import whole
from conelayers.engine.engine import Engine
from conelayers.engine.registry import default_engine
from conelayers.integer.boxes import Boxes
from conelayers.integer.oracle import Candidates, check_cones, check_positive
from conelayers.integer.pool import TIE, Pool
from conelayers.integer.propagation import WHOLE, narrowed
from conelayers.integer.simplex.certificate import certified
from conelayers.integer.simplex.partition import DOUBTFUL, LIMIT, PROVEN, search_each
from conelayers.integer.tree.branch_and_bound import BranchAndBound
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status

Array = np.ndarray

LINEAR = frozenset({"zero", "nonneg"})

DENSE = 2_500_000
"""Numbers of a tableau up to which it is worth a dense one: 20 MB, and a grid of 30x30."""

_TOLERANCE = 1e-7
"""Violation up to which a row holds, relative to its right-hand side, as in ``feasibility.py``."""


@dataclass(frozen=True, eq=False)
class Simplex:
    """Best-bound search with a dual simplex method, for linear rows and a linear objective.

    Args:
        engine: certifies points.
        node_limit: boxes of one item before its search ends with a gap.
        time_limit: seconds for the whole batch before the search ends with gaps; None for no limit.
    """

    engine: Engine = field(default_factory=default_engine)
    node_limit: int = 100_000
    time_limit: float | None = None
    name: str = "simplex"

    def __post_init__(self) -> None:
        whole("node_limit", self.node_limit, 1)
        check_positive("time_limit", self.time_limit)

    @staticmethod
    def suits(program: ConeProgram) -> bool:
        """Whether a program is linear, and small enough for a dense tableau."""
        # The two bounds of an integer are no rows of the tableau.
        rows = program.rows - 2 * program.integers.numel()
        return rows * (rows + program.columns) <= DENSE and not program.quadratic and program.cones.kinds <= LINEAR

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        check_cones(self.name, program, LINEAR, quadratic=False)
        pool = Pool(program, values, count)
        batch, threads = len(values.q), max(1, torch.get_num_threads())
        with _alarm(self._left(pool)) as over, ThreadPoolExecutor(threads) as workers:
            work = partial(_searched, program, count=count, limit=self.node_limit, over=over)
            # More parts than threads, since some programs take longer than others.
            host, cuts = _host(pool.values), torch.arange(batch).split(max(4, -(-batch // (4 * threads))))
            answers = workers.map(lambda cut: work(host[cut], pool.good[cut.numpy()]), cuts)
            found = [np.concatenate(a) for a in zip(*answers, strict=True)]
        points, worth, x, z, told, left = found
        nodes, ended = told.T
        item, slot = np.nonzero(np.isfinite(worth) & (ended != DOUBTFUL)[:, None])
        points = points[item, slot].astype(np.int64)
        given = (torch.from_numpy(a).to(values.q.device) for a in (item, points, x[item, slot], z[item, slot]))
        solved = certified(Boxes(self.engine, program, pool.values), *given).each(lambda part: part.cpu().numpy())
        pool.offer(item, points, solved)
        # What the engine does not confirm, and what the arithmetic left open, is branch and bound's.
        again = pool.good & (ended == DOUBTFUL)
        again[item[~solved.ok]] = True
        some, limited = pool.found > 0, ended == LIMIT
        status = np.where(some, int(Status.OPTIMAL), int(Status.INFEASIBLE))
        status = np.where(limited, np.where(some, int(Status.INACCURATE), int(Status.FAILED)), status)
        status = np.where(pool.good, status, int(Status.FAILED))
        short = np.maximum(pool.threshold - np.where(limited, left, 0.0), 0.0)
        gap = np.where(status == int(Status.OPTIMAL), 0.0, np.where(limited, short, np.inf))
        answer = pool.candidates(self.name, status, gap, nodes, 1, item.size)
        if not again.any():
            return answer
        where = torch.from_numpy(np.flatnonzero(again)).to(answer.status.device)
        tree = BranchAndBound(self.engine, self.node_limit, self._left(pool))
        return answer.where(where, tree.best(program, values[where.to(values.q.device)], count))

    def _left(self, pool: Pool) -> float | None:
        """Seconds that are left, if they are counted."""
        return None if self.time_limit is None else max(1e-3, self.time_limit - time.perf_counter() + pool.start)


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear programs of a batch, their boxes narrowed by their rows.

    Args:
        row: rows of the coefficients, in order.
        column: their columns.
        entry: coefficients ``(1 or batch, entry)``, the largest of each row one.
        b: right-hand sides ``(batch, row)``.
        c: costs ``(batch, column)``, the largest one.
        size: what the rows were divided by ``(1 or batch, row)``.
        kept: which rows of the program these are.
        zero: how many of the rows are equations; they come first.
        lower: ends of all columns ``(batch, column)``.
        upper: the others.
        possible: which programs the rows have not excluded.
        needed: which rows ``(batch, row)`` the box does not imply.
        integers: columns that are integral.
        grain: what all values of the objective are multiples of, in units of ``c``; zero where there is no such number.
        unit: what costs were divided by.
        constant: what the objective adds.
    """

    row: Array
    column: Array
    entry: Array
    b: Array
    c: Array
    size: Array
    kept: Array
    zero: int
    lower: Array
    upper: Array
    possible: Array
    needed: Array
    integers: Array
    grain: Array
    unit: Array
    constant: Array

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Rows:
        """Cut arrays out of a batch; matrices that all items share are looked at once for all."""
        entry, q, b, constant = (t.cpu().numpy() for t in (values.A, values.q, values.b, values.constant))
        entry = entry[:1] if values.A.stride(0) == 0 else entry
        integers, integral = program.integers.numpy(), np.zeros(q.shape[1], dtype=bool)
        integral[integers] = True
        lower, upper = np.full(q.shape, -np.inf), np.full(q.shape, np.inf)
        lower[:, integers] = np.ceil(-b[:, program.lower_rows.numpy()] - WHOLE)
        upper[:, integers] = np.floor(b[:, program.upper_rows.numpy()] + WHOLE)
        # The two bounds of an integer are ends, and no rows.
        kept = np.ones(program.rows, dtype=bool)
        kept[program.lower_rows.numpy()] = kept[program.upper_rows.numpy()] = False
        row = np.repeat(np.arange(program.rows), np.diff(program.A_indptr.numpy()))
        inside = kept[row]
        row, column, entry = (np.cumsum(kept) - 1)[row[inside]], program.A_indices.numpy()[inside], entry[:, inside]
        b, zero = b[:, kept], program.cones.zero
        there, start = np.unique(row, return_index=True)

        def over(each: np.ufunc, terms: Array) -> Array:
            """The sum, or the largest, of what the entries of every row hold."""
            total = np.zeros((len(terms), b.shape[1]))
            if row.size:
                total[:, there] = each.reduceat(terms, start, axis=1)
            return total

        size = over(np.maximum, np.abs(entry))
        size = np.where(size > 0, size, 1.0)
        entry, b = entry / size[:, row], b / size
        # A row of one continuous column is its bound, to the letter; the others hold up to a tolerance.
        bounds = (over(np.add, entry != 0) == 1) & (over(np.add, (entry != 0) & integral[column]) == 0)
        slack = np.where(bounds, 0.0, _TOLERANCE * (1.0 + np.abs(b)))
        equal = np.arange(b.shape[1]) < zero
        least = np.where(equal, b - slack, -np.inf)
        lower, upper, possible = narrowed(
            entry, row, column, np.arange(len(b)), least, b + slack, lower, upper, integral
        )
        with np.errstate(invalid="ignore"):
            ends = entry * lower[:, column], entry * upper[:, column]
            small, large = (over(np.add, np.where(entry == 0, 0.0, f(*ends))) for f in (np.minimum, np.maximum))
        room = 1e-12 * (1.0 + np.abs(b))
        needed = (large > b + room) | (equal & (small < b - room)) | np.isnan(large) | np.isnan(small)
        unit = np.abs(q).max(1, initial=0.0)
        unit = np.where(unit > 0, unit, 1.0)
        # Whole costs have whole values, so that what is better is better by their common divisor.
        common = ((q == np.round(q)) & (integral | (q == 0))).all(1) & (unit < 1e5)
        grain = np.gcd.reduce(np.where(common[:, None], q, 0.0).astype(np.int64), axis=1) / unit
        return cls(
            row,
            column,
            entry,
            b,
            q / unit[:, None],
            size,
            kept,
            zero,
            lower,
            upper,
            possible,
            needed,
            integers,
            grain,
            unit,
            constant,
        )

    def search(self, good: Array, count: int, limit: int, stop: Array) -> tuple[Array, ...]:
        """The best integer points of every program as ``partition.search`` returns them.

        Points, values, all columns, multipliers of all rows, boxes and how it ended, and the bound that was left.
        """
        (batch, n), m = self.c.shape, self.b.shape[1]
        points, worth = np.zeros((batch, count, self.integers.size)), np.full((batch, count), np.inf)
        x, prices, z = (np.zeros((batch, count, size)) for size in (n, m, self.kept.size))
        told, left = np.zeros((batch, 2), dtype=np.int64), np.full(batch, np.inf)
        told[:, 1] = PROVEN
        entry, b, c, lower, upper, needed = (
            np.ascontiguousarray(a) for a in (self.entry, self.b, self.c, self.lower, self.upper, self.needed)
        )
        rows, boxes = (self.row, self.column, entry, b, c, self.zero), (lower, upper, needed, self.integers)
        settings, items = (count, limit, TIE, self.grain, stop), np.flatnonzero(good & self.possible)
        search_each(items, *rows, *boxes, *settings, points, worth, x, prices, told, left)
        z[:, :, self.kept] = prices * self.unit[:, None, None] / self.size[:, None]
        # Rounding may leave a multiplier of an inequality below zero.
        z[:, :, self.zero :] = np.maximum(z[:, :, self.zero :], 0.0)
        return points, worth, x, z, told, left * self.unit + self.constant


def _host(values: Values) -> Values:
    """A batch on the host; matrices that all programs share stay shared."""
    P, A = (M[:1].cpu().expand(len(M), -1) if M.stride(0) == 0 else M.cpu() for M in (values.P, values.A))
    return Values(P, A, values.q.cpu(), values.b.cpu(), values.constant.cpu())


def _searched(program: ConeProgram, values: Values, good: Array, count: int, limit: int, over: Array) -> Any:
    """The best points of some programs."""
    return Rows.of(program, values).search(good, count, limit, over)


@contextmanager
def _alarm(seconds: float | None) -> Iterator[Array]:
    """A flag that is set when the time is over: what is compiled cannot look at the clock, and lets others run."""
    over = np.zeros(1, dtype=bool)
    if seconds is None:
        yield over
        return
    # A first use compiles, which is not counted.
    none, flat, cube = np.zeros(0, dtype=np.int64), np.zeros((0, 0)), np.zeros((0, 0, 0))
    rows, boxes = (none, none, flat, flat, flat, 0), (flat, flat, np.zeros((0, 0), dtype=bool), none)
    told = (np.zeros((0, 2), dtype=np.int64), np.zeros(0))
    search_each(none, *rows, *boxes, 1, 1, TIE, np.zeros(0), over, cube, flat, cube, cube, *told)
    timer = Timer(seconds, over.fill, (True,))
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()
