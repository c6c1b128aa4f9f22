"""The best points seen so far, a fixed number for every program of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drolayers.conic import ConeProgram, Values
from drolayers.integer.oracle import Candidates
from drolayers.status import Status

Array = np.ndarray

TIE = 1e-8
"""Objectives that differ by less than this, relative to their terms, are equal: the accuracy of a conic solve."""


class Pool:
    """The ``count`` best points of every item, best first, with their solutions."""

    def __init__(self, program: ConeProgram, batch: int, count: int) -> None:
        self.program, self.batch, self.count = program, batch, count
        lower = program.integer_bounds[0].numpy()
        self.value = np.full((batch, count), np.inf)
        self.mass = np.zeros((batch, count))
        self.point = np.broadcast_to(lower, (batch, count, lower.size)).astype(np.int64)
        self.primal = np.zeros((batch, count, program.columns))
        self.dual = np.zeros((batch, count, program.rows))

    @property
    def threshold(self) -> Array:
        """The value that a new point has to beat; +inf while there are empty slots."""
        return self.value[:, -1]

    @property
    def slack(self) -> Array:
        """How close to the threshold a bound counts as equal to it."""
        with np.errstate(invalid="ignore"):
            slack = TIE * (np.abs(self.threshold) + self.mass[:, -1])
        return np.where(np.isfinite(slack), slack, 0.0)

    def offer(self, item: Array, value: Array, mass: Array, point: Array, primal: Array, dual: Array) -> None:
        """Take in new points (distinct from those that are here)."""
        hopeful = value <= self.threshold[item] + self.slack[item]
        item, value, mass, point, primal, dual = (a[hopeful] for a in (item, value, mass, point, primal, dual))
        touched = np.unique(item)
        if not touched.size:
            return
        slot = np.isfinite(self.value[touched])
        old = (touched.repeat(slot.sum(1)), *np.nonzero(slot)[1:])
        merged = [
            np.concatenate([kept[old], new])
            for kept, new in (
                (self.value, value),
                (self.mass, mass),
                (self.point, point),
                (self.primal, primal),
                (self.dual, dual),
            )
        ]
        owner = np.concatenate([old[0], item])
        order, rank = ranking(owner, merged[0], merged[1], merged[2])
        keep = rank < self.count
        order, rank = order[keep], rank[keep]
        self.value[touched] = np.inf
        for kept, new in zip((self.value, self.mass, self.point, self.primal, self.dual), merged, strict=True):
            kept[owner[order], rank] = new[order]

    def candidates(self, values: Values, status: Array, gap: Array, nodes: Array, **counts: Any) -> Candidates:
        """The pool as an oracle returns it."""
        usable = (status <= int(Status.INACCURATE))[:, None]
        valid = np.isfinite(self.value) & usable
        masked = valid[:, :, None]
        device = values.q.device

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
            **counts,
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
