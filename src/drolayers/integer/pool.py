"""The best points seen so far, a fixed number for every program of a batch."""

from __future__ import annotations

import time

import numpy as np
import torch

from drolayers.conic import ConeProgram, Values
from drolayers.errors import ModelError
from drolayers.integer.boxes import Solved
from drolayers.integer.oracle import Candidates, check_box, usable_items
from drolayers.status import Status, usable

Array = np.ndarray

TIE = 1e-8
"""Objectives that differ by less than this, relative to their terms, are equal: the accuracy of a conic solve."""


class Pool:
    """The ``count`` best points of every item, best first, with their solutions.

    It is what every oracle of ours begins with and ends in: ``values`` are programs without NaN, ``good`` says which of
    them are the caller's own.
    """

    def __init__(self, program: ConeProgram, values: Values, count: int) -> None:
        if count < 1:
            raise ModelError(f"At least one candidate must be asked for, not {count}.")
        check_box(program)
        self.start, self.count, batch = time.perf_counter(), int(count), len(values)
        self.values, good = usable_items(values)
        self.good = good.cpu().numpy()
        lower = program.integer_bounds[0].numpy()
        self.value = np.full((batch, count), np.inf)
        self.mass = np.zeros((batch, count))
        self.status = np.zeros((batch, count), dtype=np.int64)
        self.point = np.broadcast_to(lower, (batch, count, lower.size)).astype(np.int64)
        self.primal = np.zeros((batch, count, program.columns))
        self.dual = np.zeros((batch, count, program.rows))

    @property
    def found(self) -> Array:
        """How many points each item has."""
        return np.isfinite(self.value).sum(1)

    @property
    def threshold(self) -> Array:
        """The value that a new point has to beat; +inf while there are empty slots."""
        return self.value[:, -1]

    @property
    def slack(self) -> Array:
        """How close to the threshold a bound counts as equal to it."""
        full = np.isfinite(self.threshold)
        return np.where(full, TIE * (np.abs(np.where(full, self.threshold, 0.0)) + self.mass[:, -1]), 0.0)

    def offer(self, item: Array, point: Array, solved: Solved) -> Array:
        """Take in solved points, distinct from those that are here; which of them entered."""
        hopeful = np.flatnonzero(solved.ok & (solved.objective <= self.threshold[item] + self.slack[item]))
        touched = np.unique(item[hopeful])
        slot, column = np.nonzero(np.isfinite(self.value[touched]))
        old = (touched[slot], column)
        kept = (self.value, self.mass, self.status, self.point, self.primal, self.dual)
        new = (solved.objective, solved.mass, solved.status, point, solved.primal, solved.dual)
        merged = [np.concatenate([k[old], n[hopeful]]) for k, n in zip(kept, new, strict=True)]
        owner = np.concatenate([old[0], item[hopeful]])
        order, rank = ranking(owner, merged[0], merged[1], merged[3])
        best = rank < self.count
        order, rank = order[best], rank[best]
        for k, m in zip(kept, merged, strict=True):
            k[owner[order], rank] = m[order]
        entered = np.zeros(item.size, dtype=bool)
        entered[hopeful[order[order >= slot.size] - slot.size]] = True
        return entered

    def candidates(
        self, oracle: str, status: Array, gap: Array, nodes: Array, rounds: int, relaxations: int
    ) -> Candidates:
        """The pool as an oracle returns it."""
        valid = np.isfinite(self.value) & usable(status)[:, None]
        rough = (status == int(Status.OPTIMAL)) & ((self.status > 0) & valid).any(1)
        status = np.where(rough, int(Status.INACCURATE), status)
        masked = valid[:, :, None]
        device = self.values.q.device

        def tensor(array: Array) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return Candidates(
            points=tensor(self.point.astype(np.float64)),
            objective=tensor(np.where(valid, self.value, np.inf)),
            valid=tensor(valid),
            status=tensor(status.astype(np.int64)),
            gap=tensor(gap.astype(np.float64)),
            nodes=tensor(nodes.astype(np.int64)),
            primal=tensor(np.where(masked, self.primal, 0.0)),
            dual=tensor(np.where(masked, self.dual, 0.0)),
            rounds=rounds,
            relaxations=relaxations,
            time=time.perf_counter() - self.start,
            oracle=oracle,
        )


def ranking(item: Array, value: Array, mass: Array, point: Array) -> tuple[Array, Array]:
    """An order by item, objective and, among objectives that are equal but for rounding, point; and ranks in items."""
    order = np.lexsort((value, item))
    sorted_item, sorted_value = item[order], value[order]
    slack = TIE * (np.abs(value) + mass)[order]
    step = np.ones(order.size, dtype=bool)
    step[1:] = (np.diff(sorted_item) != 0) | (np.diff(sorted_value) > slack[1:])
    level = np.empty(order.size, dtype=np.int64)
    level[order] = np.cumsum(step)
    # Levels grow with items, so they are the first key.
    order = np.lexsort((*point.T[::-1], level))
    ordered = item[order]
    first = np.searchsorted(ordered, ordered, side="left")
    return order, np.arange(order.size) - first
