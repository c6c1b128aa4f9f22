"""The best points seen so far, a fixed number for every program of a batch."""

from __future__ import annotations

import time
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.errors import ModelError
from conelayers.integer.boxes import Solved
from conelayers.integer.nodes import lexsort, ranks
from conelayers.integer.oracle import Candidates, check_box, usable_items
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status, usable

Array = np.ndarray

TIE = 1e-8
"""Objectives that differ by less than this, relative to their terms, are equal: the accuracy of a conic solve."""


class Slots:
    """The ``count`` best points of every item, best first, with their solutions; tensors on the programs' device.

    It is what every oracle of ours begins with and ends in: ``values`` are programs without NaN, ``good`` says which of
    them are the caller's own.
    """

    def __init__(self, program: ConeProgram, values: Values, count: int) -> None:
        if count < 1:
            raise ModelError(f"At least one candidate must be asked for, not {count}.")
        check_box(program)
        self.start, self.count, batch = time.perf_counter(), int(count), len(values.q)
        self.values, self.good = usable_items(values)
        zeros = self.values.q.new_zeros
        lower = program.integer_bounds[0].to(zeros(0).device, torch.int64)
        self.value = zeros(batch, count).fill_(torch.inf)
        self.mass = zeros(batch, count)
        self.status = torch.zeros_like(self.mass, dtype=torch.int64)
        self.point = lower.expand(batch, count, -1).clone()
        self.primal, self.dual = zeros(batch, count, program.columns), zeros(batch, count, program.rows)

    @property
    def found(self) -> Int[Tensor, "batch"]:
        """How many points each item has."""
        return self.value.isfinite().sum(1)

    @property
    def threshold(self) -> Float[Tensor, "batch"]:
        """The value that a new point has to beat; +inf while there are empty slots."""
        return self.value[:, -1]

    @property
    def slack(self) -> Float[Tensor, "batch"]:
        """How close to the threshold a bound counts as equal to it."""
        full = self.threshold.isfinite()
        return torch.where(full, TIE * (self.threshold.abs() + self.mass[:, -1]), 0.0)

    def offer(self, item: Int[Tensor, "point"], point: Tensor, solved: Solved) -> Bool[Tensor, "point"]:
        """Take in solved points, distinct from those that are here; which of them entered."""
        entered = torch.zeros_like(item, dtype=torch.bool)
        hopeful = (usable(solved.status) & (solved.objective <= (self.threshold + self.slack)[item])).nonzero()[:, 0]
        touched = torch.zeros_like(self.good).index_fill(0, item[hopeful], True)
        old = (touched[:, None] & self.value.isfinite()).nonzero(as_tuple=True)
        kept = (self.value, self.mass, self.status, self.point, self.primal, self.dual)
        new = (solved.objective, solved.mass, solved.status, point, solved.primal, solved.dual)
        merged = [torch.cat([k[old], n[hopeful].to(k.dtype)]) for k, n in zip(kept, new, strict=True)]
        owner = torch.cat([old[0], item[hopeful]])
        order, rank = ranking(owner, merged[0], merged[1], merged[3])
        best = (rank < self.count).nonzero()[:, 0]
        order, rank = order[best], rank[best]
        for k, m in zip(kept, merged, strict=True):
            k[owner[order], rank] = m[order]
        fresh = order[order >= len(old[0])] - len(old[0])
        return entered.index_fill(0, hopeful[fresh], True)

    def candidates(
        self, oracle: str, status: Tensor, gap: Tensor, nodes: Tensor, rounds: int, relaxations: int
    ) -> Candidates:
        """The slots as an oracle returns them."""
        valid = self.value.isfinite() & usable(status)[:, None]
        rough = (status == int(Status.OPTIMAL)) & ((self.status > 0) & valid).any(1)
        masked = valid[:, :, None]
        return Candidates(
            points=self.point.to(torch.float64),
            objective=torch.where(valid, self.value, torch.inf),
            valid=valid,
            status=torch.where(rough, int(Status.INACCURATE), status),
            gap=gap,
            nodes=nodes,
            primal=torch.where(masked, self.primal, 0.0),
            dual=torch.where(masked, self.dual, 0.0),
            rounds=rounds,
            relaxations=relaxations,
            time=time.perf_counter() - self.start,
            oracle=oracle,
        )


class Pool:
    """Slots for oracles that work on the host, in numpy."""

    def __init__(self, program: ConeProgram, values: Values, count: int) -> None:
        self._slots = Slots(program, values, count)
        self.values, self.start = self._slots.values, self._slots.start

    @cached_property
    def good(self) -> Array:
        """Which programs are the caller's own."""
        return _array(self._slots.good)

    @property
    def found(self) -> Array:
        """How many points each item has."""
        return _array(self._slots.found)

    @property
    def threshold(self) -> Array:
        """The value that a new point has to beat; +inf while there are empty slots."""
        return _array(self._slots.threshold)

    def offer(self, item: Array, point: Array, solved: Solved) -> Array:
        """Take in solved points, distinct from those that are here; which of them entered."""
        return _array(self._slots.offer(self._tensor(item), self._tensor(point), solved.each(self._tensor)))

    def candidates(
        self, oracle: str, status: Array, gap: Array, nodes: Array, rounds: int, relaxations: int
    ) -> Candidates:
        """The slots as an oracle returns them."""
        told = self._tensor(status.astype(np.int64)), self._tensor(gap.astype(np.float64))
        return self._slots.candidates(oracle, *told, self._tensor(nodes.astype(np.int64)), rounds, relaxations)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.values.q.device)


def _array(tensor: Tensor) -> Array:
    return tensor.cpu().numpy()


def ranking(item: Tensor, value: Tensor, mass: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """An order by item, objective and, among objectives that are equal but for rounding, point; and ranks in items."""
    order = lexsort(item, value)
    sorted_item, sorted_value = item[order], value[order]
    slack = TIE * (value.abs() + mass)[order]
    step = (sorted_item.diff() != 0) | (sorted_value.diff() > slack[1:])
    level = torch.zeros_like(order).index_copy(0, order[1:], step.cumsum(0))
    if not bool(step.all()):
        # Levels grow with items, so they are the first key; rows that are unique come in lexicographic order.
        order = lexsort(level, torch.unique(point, dim=0, return_inverse=True)[1])
    return order, ranks(item, order)[order]
