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
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.engine.engine import Engine
from conelayers.errors import ShapeError
from conelayers.integer.boxes import Boxes
from conelayers.integer.oracle import usable_items
from conelayers.integer.propagation import WHOLE
from conelayers.program.program import ConeProgram, Values, once
from conelayers.status import Status, usable

Array = np.ndarray

TOLERANCE = 1e-7
"""Violation up to which a row holds, relative to the size of its terms; that of the engine's own classification."""

_WORK = 4_000_000
"""Numbers in the largest temporary tensor."""

_PATTERNS = 16
"""Patterns of signs of one program that are remembered."""


@dataclass(frozen=True, eq=False)
class Screen:
    """What arithmetic can tell about the integer points of a batch of programs.

    Args:
        complete: points that pass are feasible.
        common: whether points that pass are feasible depends on the item only, not on the point.
    """

    complete: bool
    common: bool
    _lower: Float[Tensor, "batch integer"]
    _upper: Float[Tensor, "batch integer"]
    _matrix: Float[Tensor, "once_or_batch row integer"]
    _least: Float[Tensor, "batch row"]
    _most: Float[Tensor, "batch row"]
    _scale: Float[Tensor, "batch row"]
    _cones: tuple[tuple[Tensor, Tensor], ...]
    _consistent: Bool[Tensor, "batch"]

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Screen:
        """Evaluate the rows; matrices that all items share are looked at once for all."""
        A, b = values.A.detach(), values.b.detach()
        A = A[:1] if A.stride(0) == 0 else A
        # What rows are for depends on the signs of the numbers alone.
        signs = torch.stack([(A != 0).any(0), (A < 0).all(0), (A > 0).all(0)]).cpu().numpy()
        known: dict[bytes, _Roles] = once(program, ("roles", b.device), dict)
        if len(known) > _PATTERNS:
            known.clear()
        key = signs.tobytes()
        roles = known[key] = known.get(key) or _Roles.of(program, signs, b.device)
        low, high = roles.column_bounds(program.columns, A, b)
        least, most = roles.ranges(A, low, high)
        matrix = A.new_zeros(len(A), roles.wanted, program.integers.numel())
        matrix[:, roles.dense[1], roles.dense[2]] = A[:, roles.dense[0]]
        rhs = b[:, roles.checked]
        empty = (low > high + TOLERANCE * (1.0 + high.abs())).any(1)
        below, above = program.on(b.device).lower, program.on(b.device).upper
        return cls(
            complete=roles.complete,
            common=roles.common,
            _lower=-b[:, below],
            _upper=b[:, above],
            _matrix=matrix[:, roles.position],
            _least=torch.where(roles.equal, rhs - most, -torch.inf),
            _most=rhs - least,
            _scale=1.0 + rhs.abs(),
            _cones=tuple((matrix[:, position], b[:, rows]) for position, rows in roles.cones),
            _consistent=~empty,
        )

    def passes(self, item: Int[Tensor, "point"], points: Tensor) -> Bool[Tensor, "point"]:
        """Which points (one a row) of which items no arithmetic excludes."""
        inside = ((points >= self._lower[item]) & (points <= self._upper[item])).all(1) & self._consistent[item]
        points = points.to(self._lower.dtype)
        inside &= (points == points.round()).all(1)
        if self._least.shape[1]:
            activity = self._apply(self._matrix, item, points)
            slack = TOLERANCE * (self._scale[item] + activity.abs())
            inside &= ((activity <= self._most[item] + slack) & (activity >= self._least[item] - slack)).all(1)
        for matrix, rhs in self._cones:
            s = rhs[item] - self._apply(matrix, item, points)
            inside &= s[:, 1:].norm(dim=1) <= s[:, 0] + TOLERANCE * (1.0 + s[:, 0].abs())
        return inside

    def tighten(
        self, item: Int[Tensor, "box"], lower: Tensor, upper: Tensor, passes: int = 4
    ) -> tuple[Tensor, Tensor, Bool[Tensor, "box"]]:
        """Boxes without the values that rows exclude, and which may hold a point; no point that passes is lost.

        Of ``least ≤ Mx ≤ most`` over a box, the smallest activity of all columns but one bounds that one; so does the
        largest (``propagation.py`` says the same of columns that are not integral, or have no bounds, on the host).
        """
        rows, row, column = self._cutting
        if not len(rows) or not len(item):
            return lower, upper, self._consistent[item]
        step = max(1, _WORK // len(row))
        if len(item) > step:
            cuts = [slice(k, k + step) for k in range(0, len(item), step)]
            parts = zip(*(self.tighten(item[c], lower[c], upper[c], passes) for c in cuts), strict=True)
            low, high, alive = map(torch.cat, parts)
            return low, high, alive
        matrix, at, kind = self._matrix[:, rows], (item[:, None], rows), lower.dtype
        low, high = lower.to(matrix.dtype), upper.to(matrix.dtype)
        slack = TOLERANCE * (self._scale[at] + self._apply(matrix.abs(), item, torch.maximum(low.abs(), high.abs())))
        least, most, entry = self._least[at] - slack, self._most[at] + slack, matrix[:, row, column]
        entry = entry if len(entry) == 1 else entry[item]
        none, alive = low.new_zeros(len(item), len(rows)), self._consistent[item]
        for _ in range(passes):
            ends = entry * low[:, column], entry * high[:, column]
            small, large = torch.minimum(*ends), torch.maximum(*ends)
            # The others' least activity leaves this much for a column's own term, and their largest asks this much.
            room = (most - none.index_add(1, row, small))[:, row] + small
            need = (least - none.index_add(1, row, large))[:, row] + large
            up, nothing = entry > 0, entry == 0
            top = (torch.where(up, room, need) / entry).masked_fill(nothing, torch.inf)
            bottom = (torch.where(up, need, room) / entry).masked_fill(nothing, -torch.inf)
            top, bottom = (
                torch.floor(top + WHOLE * (1.0 + top.abs())),
                torch.ceil(bottom - WHOLE * (1.0 + bottom.abs())),
            )
            new_high = high.scatter_reduce(1, column.expand_as(top), top, "amin")
            new_low = low.scatter_reduce(1, column.expand_as(bottom), bottom, "amax")
            moved = bool(((new_low > low) | (new_high < high)).any())
            dead = (new_low > new_high).any(1)
            alive &= ~dead
            low, high = torch.where(dead[:, None], low, new_low), torch.where(dead[:, None], high, new_high)
            if not moved:
                break
        return low.to(kind), high.to(kind), alive

    @cached_property
    def _cutting(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows that some point within the bounds violates, and where they have entries: others narrow no box."""
        every = torch.arange(len(self._lower), device=self._lower.device)
        plus, minus = self._matrix.clamp(min=0.0), self._matrix.clamp(max=0.0)
        large = self._apply(plus, every, self._upper) + self._apply(minus, every, self._lower)
        small = self._apply(plus, every, self._lower) + self._apply(minus, every, self._upper)
        rows = ((large > self._most) | (small < self._least)).any(0).nonzero()[:, 0]
        row, column = (self._matrix[:, rows] != 0).any(0).nonzero(as_tuple=True)
        return rows, row, column

    @staticmethod
    def _apply(matrix: Tensor, item: Tensor, points: Tensor) -> Float[Tensor, "point row"]:
        """Matrix times point, for one matrix or one an item."""
        return points @ matrix[0].T if len(matrix) == 1 else torch.einsum("pri,pi->pr", matrix[item], points)


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
    batch, integers = len(values.q), program.integers.numel()
    if points.dim() != 3 or points.shape[0] != batch or points.shape[2] != integers:
        raise ShapeError(f"points must have shape ({batch}, candidate, {integers}), not {tuple(points.shape)}.")
    count = points.shape[1]
    values, good = usable_items(values)
    flat = points.detach().to(values.q).reshape(batch * count, -1)
    item = torch.arange(batch, device=flat.device).repeat_interleave(count)
    screen = Screen.of(program, values)
    answer = screen.passes(item, flat) & good[item]
    if not screen.complete:
        undecided = answer.nonzero()[:, 0]
        # Where the point does not matter, one solve speaks for all points of an item.
        key = item[undecided] if screen.common else torch.arange(len(undecided), device=item.device)
        known, inverse = key.unique(return_inverse=True)
        first = torch.full_like(known, len(key)).scatter_reduce(
            0, inverse, torch.arange(len(key), device=item.device), "amin"
        )
        asked = undecided[first]
        answer[undecided] = admits(Boxes(engine, program, values), item[asked], flat[asked])[inverse]
    return answer.reshape(batch, count).to(points.device)


def admits(boxes: Boxes, item: Int[Tensor, "point"], points: Float[Tensor, "point integer"]) -> Bool[Tensor, "point"]:
    """Decide points by solves: first with the objective, then, where that broke down, without."""
    status = boxes.solve(item, points, points).status
    feasible = usable(status) | (status == int(Status.UNBOUNDED))
    failed = (status == int(Status.FAILED)).nonzero()[:, 0]
    if len(failed):
        plain = replace(boxes.values, P=torch.zeros_like(boxes.values.P), q=torch.zeros_like(boxes.values.q))
        again = replace(boxes, values=plain).solve(item[failed], points[failed], points[failed])
        feasible[failed] = again.ok
    return feasible


@dataclass(frozen=True, eq=False)
class _Roles:
    """What the rows of a program are for, where its numbers have certain signs.

    Args:
        complete: as of ``Screen``.
        common: as of ``Screen``.
        bounds: entries that bound a continuous column, with their rows and columns.
        checked: linear rows that are evaluated.
        equal: which of them hold with equality.
        ranged: their entries in continuous columns, which of them those stand in, and the columns.
        wanted: number of rows that are evaluated, those of cones included.
        dense: their entries in integer columns, with the number of the row among them and of the integer.
        position: the numbers of those that are checked.
        cones: for each cone the numbers of its rows, and the rows.
    """

    complete: bool
    common: bool
    bounds: tuple[Tensor, Tensor, Tensor]
    checked: Int[Tensor, "row"]
    equal: Bool[Tensor, "row"]
    ranged: tuple[Tensor, Tensor, Tensor]
    wanted: int
    dense: tuple[Tensor, Tensor, Tensor]
    position: Int[Tensor, "row"]
    cones: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, program: ConeProgram, signs: Array, device: torch.device) -> _Roles:
        """Look at the pattern, given where numbers are not zero in some item, and negative or positive in all."""
        present, negative, positive = signs
        cones, rows = program.cones, program.rows
        number, entry_column = np.arange(rows), program.A_indices.numpy()
        entry_row = np.repeat(number, np.diff(program.A_indptr.numpy()))
        integer = np.zeros(program.columns, dtype=bool)
        integer[program.integers.numpy()] = True
        linear = cones.zero + cones.nonneg
        block = _blocks(program)
        alive = _essential(program, present, negative, positive, entry_row, entry_column, integer, block)

        own_bound = _any(np.concatenate([program.lower_rows.numpy(), program.upper_rows.numpy()]), rows)
        kept = present & alive[entry_row]
        has_integer = _any(entry_row[kept & integer[entry_column]], rows)
        continuous = kept & ~integer[entry_column]
        count = np.bincount(entry_row[continuous], minlength=rows)
        is_bound = alive & (count == 1) & ~has_integer & (number >= cones.zero) & (number < linear)
        uses = np.bincount(entry_column[continuous & ~is_bound[entry_row]], minlength=program.columns)
        shared_row = _any(entry_row[continuous & (uses[entry_column] > 1)], rows)
        checked = alive & (number < linear) & ~shared_row & ~is_bound & ~own_bound
        # Cones of integer columns alone are evaluated, the others are the engine's.
        pure = ~np.isin(block, block[count > 0]) & alive & (number >= linear)
        cone_rows = pure & (number < linear + sum(cones.soc))
        open_rows = alive & ~checked & ~is_bound & ~own_bound & ~cone_rows
        mixed = has_integer & open_rows
        if mixed.any():
            mixed = np.isin(block, block[mixed]) & open_rows

        index, wanted = np.flatnonzero(checked), checked | cone_rows
        nth, position, place = (np.cumsum(chosen) - 1 for chosen in (checked, wanted, integer))
        bounds = np.flatnonzero(continuous & is_bound[entry_row])
        ranged = np.flatnonzero(continuous & checked[entry_row])
        dense = np.flatnonzero(wanted[entry_row] & integer[entry_column])
        heads = [np.flatnonzero(cone_rows & (block == k)) for k in np.unique(block[cone_rows])]

        def tensors(*arrays: Array) -> Any:
            return tuple(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays)

        return cls(
            complete=not open_rows.any(),
            common=not mixed.any(),
            bounds=tensors(bounds, entry_row[bounds], entry_column[bounds]),
            checked=tensors(index)[0],
            equal=tensors(index < cones.zero)[0],
            ranged=tensors(ranged, nth[entry_row[ranged]], entry_column[ranged]),
            wanted=int(wanted.sum()),
            dense=tensors(dense, position[entry_row[dense]], place[entry_column[dense]]),
            position=tensors(position[index])[0],
            cones=tuple(tensors(position[h], h) for h in heads),
        )

    def column_bounds(self, columns: int, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of every continuous column from rows that hold it alone."""
        entry, row, column = self.bounds
        a, far = A[:, entry], b.new_full((len(b), columns), torch.inf)
        end = b[:, row] / a
        at = column.expand_as(end)
        high = far.scatter_reduce(1, at, torch.where(a > 0, end, torch.inf), "amin")
        return (-far).scatter_reduce(1, at, torch.where(a < 0, end, -torch.inf), "amax"), high

    def ranges(self, A: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and largest value of the continuous part of every row that is checked."""
        entry, row, column = self.ranged
        a, none = A[:, entry], low.new_zeros(len(low), len(self.checked))
        ends = [(a * end[:, column]).masked_fill(a == 0, 0.0) for end in (low, high)]
        return none.index_add(1, row, torch.minimum(*ends)), none.index_add(1, row, torch.maximum(*ends))


def _blocks(program: ConeProgram) -> Array:
    """The cone that each row belongs to; linear rows are cones of their own."""
    cones = program.cones
    linear = cones.zero + cones.nonneg
    sizes = np.array(cones.blocks, dtype=np.int64)
    return np.concatenate([np.arange(linear), linear + np.repeat(np.arange(sizes.size), sizes)])


def _essential(
    program: ConeProgram,
    present: Array,
    negative: Array,
    positive: Array,
    row: Array,
    column: Array,
    integer: Array,
    block: Array,
) -> Array:
    """Rows that remain when columns which can be raised (or lowered) for ever have satisfied all of theirs."""
    cones, rows = program.cones, program.rows
    linear = cones.zero + cones.nonneg
    raisable = np.zeros(rows, dtype=bool)
    raisable[cones.zero : linear] = True
    if cones.soc:
        raisable[linear + np.cumsum((0, *cones.soc[:-1]))] = True
    up, down = (raisable[row] & side for side in (negative, positive))
    alive = np.ones(rows, dtype=bool)
    while True:
        live = present & alive[row] & ~integer[column]
        total, ups, downs = (np.bincount(column[live & w], minlength=program.columns) for w in (present, up, down))
        lifting = (total > 0) & ((ups == total) | (downs == total))
        if not lifting.any():
            return alive
        alive &= ~np.isin(block, block[row[live & lifting[column]]])


def _any(rows: Array, size: int) -> Array:
    """Mark the rows that occur in a list."""
    marked = np.zeros(size, dtype=bool)
    marked[rows] = True
    return marked
