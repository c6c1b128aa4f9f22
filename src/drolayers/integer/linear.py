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
from threading import Timer

import numpy as np
import torch

from drolayers.checks import whole
from drolayers.conic import ConeProgram, Engine, Values, default_engine
from drolayers.integer.boxes import Boxes
from drolayers.integer.branch_and_bound import BranchAndBound
from drolayers.integer.certificate import certified
from drolayers.integer.oracle import Candidates, check_cones, check_positive
from drolayers.integer.partition import DOUBTFUL, LIMIT, PROVEN, search
from drolayers.integer.pool import TIE, Pool
from drolayers.integer.propagation import WHOLE, narrowed
from drolayers.status import Status

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
        batch, instances = len(values), Rows.of(program, pool.values)
        nodes, ended, left = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.int64), np.full(batch, np.inf)
        found: list[tuple[Array, ...]] = []
        good, threads = np.flatnonzero(pool.good).tolist(), torch.get_num_threads()
        with _alarm(self._left(pool)) as over, ThreadPoolExecutor(threads) as workers:
            answers = workers.map(lambda i: instances.search(i, count, self.node_limit, over), good)
            for i, (best, worth, x, z, *rest) in zip(good, answers, strict=True):
                nodes[i], ended[i], left[i] = rest
                there = np.isfinite(worth) & (ended[i] != DOUBTFUL)
                found.append((np.full(there.sum(), i), best[there].astype(np.int64), x[there], z[there]))
        none = np.zeros(0, dtype=np.int64)
        empty = (none, *(np.zeros((0, size)) for size in (program.integers.numel(), program.columns, program.rows)))
        item, points, x, z = (np.concatenate(parts) for parts in zip(*found or [empty], strict=True))
        given = (torch.from_numpy(a).to(values.q.device) for a in (item, points.astype(np.int64), x, z))
        solved = certified(Boxes(self.engine, program, pool.values), *given).each(lambda part: part.cpu().numpy())
        pool.offer(item, points, solved)
        # What the engine does not confirm, and what the arithmetic left open, is branch and bound's.
        again = pool.good & (ended == DOUBTFUL)
        again[item[~solved.ok]] = True
        some, limited = pool.found > 0, ended == LIMIT
        status = np.where(some, int(Status.OPTIMAL), int(Status.INFEASIBLE))
        status = np.where(limited, np.where(some, int(Status.INACCURATE), int(Status.FAILED)), status)
        status = np.where(pool.good, status, int(Status.FAILED))
        left = np.where(limited, left * instances.unit + instances.constant, 0.0)
        short = np.maximum(pool.threshold - left, 0.0)
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

    def search(
        self, item: int, count: int, limit: int, stop: Array
    ) -> tuple[Array, Array, Array, Array, int, int, float]:
        """The best integer points of one program as ``partition.search`` returns them, with all columns and rows."""
        n, x, z = self.c.shape[1], np.zeros((count, self.c.shape[1])), np.zeros((count, self.kept.size))
        if not self.possible[item]:
            return np.zeros((count, self.integers.size)), np.full(count, np.inf), x, z, 0, PROVEN, np.inf
        needed, own = self.needed[item], item if len(self.entry) > 1 else 0
        inside = needed[self.row]
        per_row = np.bincount(self.row[inside], minlength=needed.size)[needed]
        points, worth, answers, *told = search(
            np.concatenate([[0], np.cumsum(per_row)]),
            self.column[inside],
            self.entry[own, inside],
            self.b[item, needed],
            self.c[item],
            int(needed[: self.zero].sum()),
            self.lower[item],
            self.upper[item],
            self.integers,
            count,
            limit,
            TIE,
            float(self.grain[item]),
            stop,
        )
        # Rounding may leave a multiplier of an inequality below zero.
        where = np.flatnonzero(self.kept)[needed]
        z[:, where] = answers[:, n:] * self.unit[item] / self.size[own, needed]
        z[:, self.zero :] = np.maximum(z[:, self.zero :], 0.0)
        return points, worth, answers[:, :n], z, *told


@contextmanager
def _alarm(seconds: float | None) -> Iterator[Array]:
    """A flag that is set when the time is over: what is compiled cannot look at the clock, and lets others run."""
    over = np.zeros(1, dtype=bool)
    if seconds is None:
        yield over
        return
    # A first use compiles, which is not counted.
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    search(
        np.zeros(1, dtype=np.int64), none, nothing, nothing, nothing, 0, nothing, nothing, none, 1, 1, TIE, 0.0, over
    )
    timer = Timer(seconds, over.fill, (True,))
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()
