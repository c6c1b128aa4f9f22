"""Multipliers of second-order cones that hold integers, enlarged: affine bounds that no longer depend on a centre.

Where integers and continuous columns share a cone that a solution leaves at zero, its multipliers are not unique, and
an interior-point method returns those in the middle. Any others that satisfy the same equations bound the optimum as
well, and these are better at every integer point:

* a row of one continuous column gives what it can to the bound of that column: aᵣzᵣ + aₖzₖ stays what it was;
* what that leaves free in the cone, ``‖z₁‖ ≤ z₀``, goes to the rows of integers alone. Such a row with slack sᵢ(p)
  adds ``-zᵢsᵢ(p)`` to the bound. Where the slack has one sign in the whole box, a larger zᵢ of the other is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.program.program import ConeProgram, Values, once

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Which multipliers of a batch of programs may be moved.

    Args:
        head: the first row of every cone that has rows of integers alone.
        tail: its other rows, padded with the number of rows.
        sign: that of their slacks in the box of each item; 0 where it has none, or other columns stand there.
        row: rows of such cones that hold one continuous column.
        bound: an inequality on that column alone, for each of them.
        entry: the stored entries of both.
    """

    head: Int[Tensor, "cone"]
    tail: Int[Tensor, "cone place"]
    sign: Float[Tensor, "batch cone place"]
    row: Int[Tensor, "pair"]
    bound: Int[Tensor, "pair"]
    entry: tuple[Int[Tensor, "pair"], Int[Tensor, "pair"]]

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Multipliers:
        """Look at the pattern of a program, once, and at the slacks of its rows of integers."""
        device = values.q.device
        head, tail, row, bound, row_entry, bound_entry, at, own, integer, listed = once(
            program, ("multipliers", device), lambda: _pattern(program, device)
        )
        below, above = program.on(device).lower, program.on(device).upper
        # The sign of the slack of rows of integers in the box of every item, where it has one.
        lower, upper = -values.b[:, below[integer]], values.b[:, above[integer]]
        ends = values.A[:, at] * lower, values.A[:, at] * upper
        least = values.b.index_add(1, own, -torch.maximum(*ends))
        most = values.b.index_add(1, own, -torch.minimum(*ends))
        sign = torch.nn.functional.pad(((least >= 0).to(least.dtype) - (most <= 0).to(least.dtype)) * listed, (0, 1))
        return cls(head, tail, sign[:, tail], row, bound, (row_entry, bound_entry))

    def enlarged(
        self, values: Values, item: Int[Tensor, "box"], z: Float[Tensor, "box row"]
    ) -> Float[Tensor, "box row"]:
        """Multipliers of solves of some items, moved; they satisfy the same equations."""
        if not len(self.head):
            return z
        z = torch.nn.functional.pad(z, (0, 1))
        own, at = z[:, self.row], z[:, self.bound]
        gain = values.A[:, self.entry[0]] * own / values.A[:, self.entry[1]]
        part = torch.where(at + gain >= 0, 1.0, (at / -gain).clamp(0.0, 1.0))
        # Not at the cost of the constant, and not where an entry vanishes.
        loss = gain * values.b[:, self.bound] > own * values.b[:, self.row]
        part = torch.where(loss | ~part.isfinite() | ~gain.isfinite(), 0.0, part)
        z[:, self.row] = own * (1.0 - part)
        z[:, self.bound] = torch.where(part > 0, at + part * gain, at)
        sign, tail = self.sign[item], z[:, self.tail]
        moved = sign != 0
        room = (z[:, self.head] ** 2 - (tail.masked_fill(moved, 0.0) ** 2).sum(2)).clamp(min=0.0).sqrt()[:, :, None]
        along = torch.where(moved & (sign * tail < 0), tail, 0.0)
        size = along.norm(dim=2, keepdim=True)
        along = torch.where(size > 1e-6 * room, along / size, -sign / sign.abs().sum(2, keepdim=True).sqrt())
        z[:, self.tail.reshape(-1)] = torch.where(moved, room * along, tail).flatten(1)
        return z[:, :-1]


def _pattern(program: ConeProgram, device: torch.device) -> tuple[Tensor, ...]:
    """What the pattern tells: the arguments of ``Multipliers`` but signs, and entries of the rows that may have one."""
    cones, rows = program.cones, program.rows
    indptr, column = program.A_indptr.numpy(), program.A_indices.numpy()
    entry_row, entries = np.repeat(np.arange(rows), np.diff(indptr)), np.diff(indptr)
    place = np.full(program.columns, -1)
    place[program.integers.numpy()] = np.arange(program.integers.numel())
    continuous = np.bincount(entry_row[place[column] < 0], minlength=rows)
    linear, sizes = cones.zero + cones.nonneg, np.array(cones.soc, dtype=np.int64)
    first = linear + np.cumsum(sizes) - sizes
    table = first[:, None] + 1 + np.arange(sizes.max(initial=1) - 1)
    table = np.where(table < (first + sizes)[:, None], table, rows)
    whole = np.append((entries > 0) & (continuous == 0), False)
    kept = whole[table].any(1)
    table = table[kept]
    # The one entry of rows that have one, in a continuous column; each column gives to one bound only.
    alone = np.flatnonzero((entries == 1) & (continuous == 1))
    tails, bounds = alone[np.isin(alone, table)], alone[(alone >= cones.zero) & (alone < linear)]
    _, one, other = np.intersect1d(column[indptr[tails]], column[indptr[bounds]], return_indices=True)
    row, bound = tails[one], bounds[other]
    listed = whole[:-1] & np.isin(np.arange(rows), table)
    entry = np.flatnonzero(listed[entry_row])
    arrays = (first[kept], table, row, bound, indptr[row], indptr[bound], entry, entry_row[entry], place[column[entry]])
    return tuple(torch.from_numpy(a).to(device) for a in (*arrays, listed))
