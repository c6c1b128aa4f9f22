"""Which integer points admit a feasible continuous part: by arithmetic where that is a proof, by a solve elsewhere.

A continuous column that only ever enlarges slacks (an epigraph variable, say) can be raised until all its rows hold, so
those rows say nothing about integer points; dropping them may free further columns. Of what remains,

* rows of integer columns alone are evaluated;
* a linear row whose continuous columns occur in no other row but their bounds is an interval check;
* anything else is left to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.conic import ConeProgram, Engine, Values
from drolayers.errors import ShapeError
from drolayers.integer.boxes import Boxes
from drolayers.integer.oracle import usable_items
from drolayers.integer.propagation import implied
from drolayers.status import Status, usable

Array = np.ndarray

TOLERANCE = 1e-7
"""Violation up to which a row holds, relative to the size of its terms; that of the engine's own classification."""


@dataclass(frozen=True, eq=False)
class Screen:
    """What arithmetic can tell about the integer points of a batch of programs.

    Args:
        complete: points that pass are feasible.
        common: whether points that pass are feasible depends on the item only, not on the point.
    """

    complete: bool
    common: bool
    _columns: Array
    _lower: Array
    _upper: Array
    _matrix: Array
    _least: Array
    _most: Array
    _scale: Array
    _cones: tuple[tuple[Array, Array], ...]
    _consistent: Array

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Screen:
        """Look at the rows once; matrices that all items share are looked at once for all."""
        A = values.A.detach().cpu().numpy()
        A = A[:1] if values.A.stride(0) == 0 else A
        b = values.b.detach().cpu().numpy()
        cones, rows = program.cones, program.rows
        entry_row = np.repeat(np.arange(rows), np.diff(program.A_indptr.numpy()))
        entry_column = program.A_indices.numpy()
        present = (A != 0).any(0)
        integer = np.zeros(program.columns, dtype=bool)
        integer[program.integers.numpy()] = True
        linear = cones.zero + cones.nonneg
        block = _blocks(program)
        alive = _essential(program, A, present, entry_row, entry_column, integer, block)

        ours = np.concatenate([program.lower_rows.numpy(), program.upper_rows.numpy()])
        own_bound = np.zeros(rows, dtype=bool)
        own_bound[ours] = True
        kept = present & alive[entry_row]
        has_integer = _any(entry_row[kept & integer[entry_column]], rows)
        continuous = kept & ~integer[entry_column]
        count = np.bincount(entry_row[continuous], minlength=rows)
        is_bound = alive & (count == 1) & ~has_integer & (np.arange(rows) >= cones.zero) & (np.arange(rows) < linear)
        low, high = _column_bounds(program.columns, A, b, entry_row, entry_column, continuous & is_bound[entry_row])
        uses = np.bincount(entry_column[continuous & ~is_bound[entry_row]], minlength=program.columns)
        shared_row = _any(entry_row[continuous & (uses[entry_column] > 1)], rows)
        checked = alive & (np.arange(rows) < linear) & ~shared_row & ~is_bound & ~own_bound
        # Cones of integer columns alone are evaluated, the others are the engine's.
        pure = ~np.isin(block, block[count > 0]) & alive & (np.arange(rows) >= linear)
        second_order = np.arange(rows) < linear + sum(cones.soc)
        cone_rows = pure & second_order
        open_rows = alive & ~checked & ~is_bound & ~own_bound & ~cone_rows
        mixed = has_integer & open_rows
        if mixed.any():
            mixed = np.isin(block, block[mixed]) & open_rows

        index = np.flatnonzero(checked)
        least, most = _ranges(rows, A, entry_row, entry_column, continuous, low, high)
        matrix, position = _dense(program, A, entry_row, entry_column, integer, checked | cone_rows)
        least, most = least[:, index], most[:, index]
        rhs = b[:, index]
        upper = rhs - least
        lower = np.where(index < cones.zero, rhs - most, -np.inf)
        scale = 1.0 + np.abs(rhs)
        # Each cone with the rows of its matrix and of its right-hand side.
        heads = [np.flatnonzero(cone_rows & (block == k)) for k in np.unique(block[cone_rows])]
        parts = tuple((matrix[:, position[h]], b[:, h]) for h in heads)
        empty = (low > high + TOLERANCE * (1.0 + np.abs(high))).any(1)
        return cls(
            complete=not open_rows.any(),
            common=not mixed.any(),
            _columns=program.integers.numpy(),
            _lower=-b[:, program.lower_rows.numpy()],
            _upper=b[:, program.upper_rows.numpy()],
            _matrix=matrix[:, position[index]],
            _least=lower,
            _most=upper,
            _scale=scale,
            _cones=parts,
            _consistent=~np.broadcast_to(empty, b.shape[:1]),
        )

    def passes(self, item: Array, points: Array) -> Array:
        """Which points (one a row) of which items no arithmetic excludes."""
        inside = ((points >= self._lower[item]) & (points <= self._upper[item])).all(1)
        inside &= (points == np.round(points)).all(1) & self._consistent[item]
        activity = self._apply(self._matrix, item, points)
        slack = TOLERANCE * (self._scale[item] + np.abs(activity))
        inside &= ((activity <= self._most[item] + slack) & (activity >= self._least[item] - slack)).all(1)
        for matrix, rhs in self._cones:
            s = rhs[item] - self._apply(matrix, item, points)
            slack = TOLERANCE * (1.0 + np.abs(s[:, 0]))
            inside &= np.linalg.norm(s[:, 1:], axis=1) <= s[:, 0] + slack
        return inside

    def tighten(self, item: Array, lower: Array, upper: Array) -> tuple[Array, Array, Array]:
        """Boxes without the values that rows exclude, and which may hold a point; no point that passes is lost."""
        rows = self._cutting
        if not rows.size:
            return lower, upper, self._consistent[item]
        matrix, at = self._matrix[:, rows], (item[:, None], rows)
        furthest = np.maximum(np.abs(lower.astype(np.float64)), np.abs(upper.astype(np.float64)))
        slack = TOLERANCE * (self._scale[at] + self._apply(np.abs(matrix), item, furthest))
        ends = (self._least[at] - slack, self._most[at] + slack, lower, upper)
        low, high, alive = implied(matrix, item, *ends, np.ones(lower.shape[1], dtype=bool))
        return low.astype(lower.dtype), high.astype(upper.dtype), alive & self._consistent[item]

    @cached_property
    def _cutting(self) -> Array:
        """The rows that some point within the bounds violates: the others narrow no box."""
        every = np.arange(self._lower.shape[0])
        plus, minus = np.maximum(self._matrix, 0.0), np.minimum(self._matrix, 0.0)
        large = self._apply(plus, every, self._upper) + self._apply(minus, every, self._lower)
        small = self._apply(plus, every, self._lower) + self._apply(minus, every, self._upper)
        return np.flatnonzero(((large > self._most) | (small < self._least)).any(0))

    @staticmethod
    def _apply(matrix: Array, item: Array, points: Array) -> Array:
        """Matrix times point, for one matrix or one an item."""
        if matrix.shape[0] == 1:
            return points @ matrix[0].T
        return np.einsum("pri,pi->pr", matrix[item], points)


def feasible_points(
    engine: Engine,
    program: ConeProgram,
    values: Values,
    points: Float[Tensor, "batch candidate integer"],
) -> Bool[Tensor, "batch candidate"]:
    """Whether integer points admit a feasible continuous part; items with NaN have none.

    Args:
        engine: solves where arithmetic does not decide.
        program: the structure that all items share.
        values: their numbers, ``program.values(features)``.
        points: values of ``program.integers``; what is not integral, or outside the box, is not feasible.
    """
    batch, integers = len(values), program.integers.numel()
    if points.dim() != 3 or points.shape[0] != batch or points.shape[2] != integers:
        raise ShapeError(f"points must have shape ({batch}, candidate, {integers}), not {tuple(points.shape)}.")
    count = points.shape[1]
    values, good = usable_items(values)
    finite = good.cpu().numpy()
    flat = points.detach().cpu().double().reshape(batch * count, -1).numpy()
    item = np.arange(batch).repeat(count)
    screen = Screen.of(program, values)
    answer = np.zeros(item.size, dtype=bool)
    answer[finite[item]] = screen.passes(item[finite[item]], flat[finite[item]])
    if not screen.complete:
        undecided = np.flatnonzero(answer)
        # Where the point does not matter, one solve speaks for all points of an item.
        key = item[undecided] if screen.common else np.arange(undecided.size)
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        asked = undecided[first]
        answer[undecided] = admits(Boxes(engine, program, values), item[asked], flat[asked])[inverse]
    return torch.from_numpy(answer.reshape(batch, count)).to(points.device)


def admits(boxes: Boxes, item: Array, points: Array) -> Array:
    """Decide points by solves: first with the objective, then, where that broke down, without."""
    status = boxes.solve(item, points, points).status
    feasible = usable(status) | (status == int(Status.NO_MINIMUM))
    failed = np.flatnonzero(status == int(Status.FAILED))
    if failed.size:
        plain = replace(boxes.values, P=torch.zeros_like(boxes.values.P), q=torch.zeros_like(boxes.values.q))
        again = replace(boxes, values=plain).solve(item[failed], points[failed], points[failed])
        feasible[failed] = again.ok
    return feasible


def _blocks(program: ConeProgram) -> Array:
    """The cone that each row belongs to; linear rows are cones of their own."""
    cones = program.cones
    linear = cones.zero + cones.nonneg
    sizes = np.array(cones.blocks, dtype=np.int64)
    return np.concatenate([np.arange(linear), linear + np.repeat(np.arange(sizes.size), sizes)])


def _essential(
    program: ConeProgram, A: Array, present: Array, row: Array, column: Array, integer: Array, block: Array
) -> Array:
    """Rows that remain when columns which can be raised (or lowered) for ever have satisfied all of theirs."""
    cones, rows = program.cones, program.rows
    linear = cones.zero + cones.nonneg
    raisable = np.zeros(rows, dtype=bool)
    raisable[cones.zero : linear] = True
    if cones.soc:
        raisable[linear + np.cumsum((0, *cones.soc[:-1]))] = True
    up, down = (raisable[row] & side.all(0) for side in (A < 0, A > 0))
    alive = np.ones(rows, dtype=bool)
    while True:
        live = present & alive[row] & ~integer[column]
        total, ups, downs = (np.bincount(column[live & w], minlength=program.columns) for w in (present, up, down))
        lifting = (total > 0) & ((ups == total) | (downs == total))
        if not lifting.any():
            return alive
        alive &= ~np.isin(block, block[row[live & lifting[column]]])


def _column_bounds(columns: int, A: Array, b: Array, row: Array, column: Array, chosen: Array) -> tuple[Array, Array]:
    """The interval of every continuous column from rows that hold it alone."""
    low, high = np.full((b.shape[0], columns), -np.inf), np.full((b.shape[0], columns), np.inf)
    a, j = A[:, chosen], column[chosen]
    with np.errstate(divide="ignore", invalid="ignore"):
        end = b[:, row[chosen]] / a
    np.minimum.at(high.T, j, np.where(a > 0, end, np.inf).T)
    np.maximum.at(low.T, j, np.where(a < 0, end, -np.inf).T)
    return low, high


def _ranges(
    rows: int, A: Array, row: Array, column: Array, continuous: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """The smallest and largest value of the continuous part of every row."""
    a, j = A[:, continuous], column[continuous]
    with np.errstate(invalid="ignore"):
        ends = np.stack([a * low[:, j], a * high[:, j]])
    ends = np.where(np.broadcast_to(a == 0, ends.shape), 0.0, ends)
    least, most = (np.zeros((ends.shape[1], rows)) for _ in range(2))
    for total, part in ((least, ends.min(0)), (most, ends.max(0))):
        np.add.at(total.T, row[continuous], part.T)
    return least, most


def _dense(
    program: ConeProgram, A: Array, row: Array, column: Array, integer: Array, wanted: Array
) -> tuple[Array, Array]:
    """The integer columns of some rows, dense (one matrix, or one an item), and where each row stands in it."""
    place, position = np.cumsum(integer) - 1, np.cumsum(wanted) - 1
    chosen = wanted[row] & integer[column]
    dense = np.zeros((A.shape[0], int(wanted.sum()), program.integers.numel()))
    dense[:, position[row[chosen]], place[column[chosen]]] = A[:, chosen]
    return dense, position


def _any(rows: Array, size: int) -> Array:
    """Mark the rows that occur in a list."""
    marked = np.zeros(size, dtype=bool)
    marked[rows] = True
    return marked
