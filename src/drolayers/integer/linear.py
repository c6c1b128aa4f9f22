"""The best integer points of programs that are linear: a simplex method on every box, one program after the other.

Rows first narrow the box (``propagation.py``) and those that it satisfies anyway are dropped. What remains is small and
dense, and ``partition.py`` searches it. Its vertices are integral where the rows are totally unimodular, so that such
programs have no tree; the next best points come from a partition around the best. All points found are certified by one
call of the engine; an item that the arithmetic cannot settle is handed to branch and bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from drolayers.checks import whole
from drolayers.conic import ConeProgram, Engine, Values, default_engine
from drolayers.integer.boxes import Boxes
from drolayers.integer.branch_and_bound import BranchAndBound
from drolayers.integer.oracle import Candidates, check_cones
from drolayers.integer.partition import DOUBTFUL, LIMIT, PROVEN, search
from drolayers.integer.pool import TIE, Pool
from drolayers.integer.propagation import implied
from drolayers.status import Status

Array = np.ndarray

LINEAR = frozenset({"zero", "nonneg"})

DENSE = 250_000
"""Numbers of a tableau up to which it is worth a dense one."""

_TOLERANCE = 1e-7
"""Violation up to which a row holds, relative to its right-hand side, as in ``feasibility.py``."""


@dataclass(frozen=True, eq=False)
class Simplex:
    """Best-bound search with a dual simplex method, for linear rows and a linear objective.

    Args:
        engine: certifies points.
        node_limit: boxes of one item before its search ends with a gap.
    """

    engine: Engine = field(default_factory=default_engine)
    node_limit: int = 100_000
    name: str = "simplex"

    def __post_init__(self) -> None:
        whole("node_limit", self.node_limit, 1)

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
        found: list[tuple[Array, Array]] = []
        for i in np.flatnonzero(pool.good).tolist():
            best, worth, nodes[i], ended[i], left[i] = instances.search(i, count, self.node_limit)
            best = best[np.isfinite(worth)].astype(np.int64)
            found.append((np.full(len(best), i), best))
        item = np.concatenate([np.zeros(0, dtype=np.int64), *(f[0] for f in found)])
        points = np.concatenate([np.zeros((0, program.integers.numel()), dtype=np.int64), *(f[1] for f in found)])
        kept = ended[item] != DOUBTFUL
        item, points = item[kept], points[kept]
        solved = Boxes(self.engine, program, pool.values).solve(item, points, points)
        pool.offer(item, points, solved)
        # What the engine does not confirm, and what the arithmetic left open, is branch and bound's.
        rest = pool.good & (ended == DOUBTFUL)
        rest[item[~solved.ok]] = True
        some, limited = pool.found > 0, ended == LIMIT
        status = np.where(some, int(Status.OPTIMAL), int(Status.INFEASIBLE))
        status = np.where(limited, np.where(some, int(Status.INACCURATE), int(Status.FAILED)), status)
        status = np.where(pool.good, status, int(Status.FAILED))
        left = np.where(limited, left * instances.unit + instances.constant, 0.0)
        short = np.maximum(pool.threshold - left, 0.0)
        gap = np.where(status == int(Status.OPTIMAL), 0.0, np.where(limited, short, np.inf))
        answer = pool.candidates(self.name, status, gap, nodes, 1, item.size)
        if not rest.any():
            return answer
        again = torch.from_numpy(np.flatnonzero(rest)).to(answer.status.device)
        tree = BranchAndBound(self.engine, self.node_limit)
        return answer.where(again, tree.best(program, values[again.to(values.q.device)], count))


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear programs of a batch, their boxes narrowed by their rows.

    Args:
        A: coefficients ``(1 or batch, row, column)``, the largest of each row one.
        b: right-hand sides ``(batch, row)``.
        c: costs ``(batch, column)``, the largest one.
        zero: how many of the rows are equations; they come first.
        lower: ends of all columns ``(batch, column)``.
        upper: the others.
        possible: which programs the rows have not excluded.
        needed: which rows ``(batch, row)`` the box does not imply.
        integers: columns that are integral.
        unit: what costs were divided by.
        constant: what the objective adds.
    """

    A: Array
    b: Array
    c: Array
    zero: int
    lower: Array
    upper: Array
    possible: Array
    needed: Array
    integers: Array
    unit: Array
    constant: Array

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Rows:
        """Cut dense arrays out of a batch; matrices that all items share are looked at once for all."""
        data, q, b, constant = (t.cpu().numpy() for t in (values.A, values.q, values.b, values.constant))
        data = data[:1] if values.A.stride(0) == 0 else data
        row = np.repeat(np.arange(program.rows), np.diff(program.A_indptr.numpy()))
        A = np.zeros((data.shape[0], program.rows, program.columns))
        A[:, row, program.A_indices.numpy()] = data
        integers = program.integers.numpy()
        lower, upper = np.full(q.shape, -np.inf), np.full(q.shape, np.inf)
        lower[:, integers], upper[:, integers] = -b[:, program.lower_rows.numpy()], b[:, program.upper_rows.numpy()]
        own = np.concatenate([program.lower_rows.numpy(), program.upper_rows.numpy()])
        A, b, zero = np.delete(A, own, 1), np.delete(b, own, 1), program.cones.zero
        size = np.abs(A).max(2, initial=0.0)
        size = np.where(size > 0, size, 1.0)
        A, b = A / size[:, :, None], b / size
        integral = np.zeros(q.shape[1], dtype=bool)
        integral[integers] = True
        # A row of one continuous column is its bound, to the letter; the others hold up to a tolerance.
        bounds = ((A != 0).sum(2) == 1) & ~(A[:, :, integers] != 0).any(2)
        slack = np.where(bounds, 0.0, _TOLERANCE * (1.0 + np.abs(b)))
        least = np.where(np.arange(b.shape[1]) < zero, b - slack, -np.inf)
        lower, upper, possible = implied(A, np.arange(len(b)), least, b + slack, lower, upper, integral)
        with np.errstate(invalid="ignore"):
            ends = A * lower[:, None, :], A * upper[:, None, :]
            small, large = (np.where(A == 0, 0.0, f(*ends)).sum(2) for f in (np.minimum, np.maximum))
        room = 1e-12 * (1.0 + np.abs(b))
        needed = (large > b + room) | ((np.arange(b.shape[1]) < zero) & (small < b - room))
        needed |= np.isnan(large) | np.isnan(small)
        unit = np.abs(q).max(1, initial=0.0)
        unit = np.where(unit > 0, unit, 1.0)
        return cls(A, b, q / unit[:, None], zero, lower, upper, possible, needed, integers, unit, constant)

    def search(self, item: int, count: int, limit: int) -> tuple[Array, Array, int, int, float]:
        """The best integer points of one program, as ``partition.search`` returns them."""
        if not self.possible[item]:
            return np.zeros((0, self.integers.size)), np.zeros(0), 0, PROVEN, np.inf
        rows = np.flatnonzero(self.needed[item])
        A = self.A[item if self.A.shape[0] > 1 else 0][rows]
        row, column = np.nonzero(A)
        answer: tuple[Array, Array, int, int, float] = search(
            np.searchsorted(row, np.arange(rows.size + 1)),
            column,
            A[row, column],
            self.b[item, rows],
            self.c[item],
            int((rows < self.zero).sum()),
            self.lower[item],
            self.upper[item],
            self.integers,
            count,
            limit,
            TIE,
            np.zeros(1, dtype=bool),
        )
        return answer
