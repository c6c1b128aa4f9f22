"""Points of a batch taken to machine precision on their faces, round by round.

A round is Newton's method on one face (``face.py``). An item whose point confirms the face is done. Any other item goes
on from the face that its first step points to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.interior.batch import SHARED, Batch
from conelayers.interior.face import ROUNDS, polish
from conelayers.interior.method import Algebra


class FacePoints(NamedTuple):
    """Where Newton's method on the face ended, batch last.

    ``done`` items satisfy the optimality conditions there, with v = z - s. For all others (x, v) is the start of the
    next round.
    """

    x: Float[Tensor, "column batch"]
    v: Float[Tensor, "row batch"]
    done: Bool[Tensor, "batch"]

    def pick(self, items: Any) -> FacePoints:
        """Select some items."""
        return FacePoints(self.x[:, items], self.v[:, items], self.done[items])


def polish_points(
    batch: Batch, x: Tensor, z: Tensor, s: Tensor, items: Int[Tensor, "some"], rounds: int = ROUNDS
) -> FacePoints:
    """Polish some points in place, batch last, in equilibrated units; the others stay as they are, and are not done.

    Args:
        batch: the programs.
        x: primal points, ``(column, batch)``.
        z: multipliers, ``(row, batch)``.
        s: slacks, ``(row, batch)``.
        items: numbers of those to polish.
        rounds: faces that are tried at most.
    """
    rows = batch.cone_rows
    end = FacePoints(x.clone(), z - s, torch.zeros(len(batch), dtype=torch.bool, device=x.device))

    def work(on: Algebra, x: Any, v: Any) -> tuple[Any, ...]:
        at = polish(on, rows, x, v)
        next_x, next_v = (on.xp.where(at.done, one, other) for one, other in ((at.x, at.next_x), (at.v, at.next_v)))
        return at.x, at.z, at.s, next_x, next_v, at.done[None] + 0.0, at.still[None] + 0.0

    least = min(len(items), SHARED)
    for _ in range(rounds):
        # Later rounds are of few items, and of every size: they share the recording of the first.
        fill = batch.filled(items, least)
        whole = len(items) == len(fill) == len(batch)
        part, start = (batch, (end.x, end.v)) if whole else (batch[fill], (end.x[:, fill], end.v[:, fill]))
        *points, next_x, next_v, done, still = (
            t[:, : len(items)] for t in part.each(work, *(t.contiguous() for t in start), name="polish")
        )
        met = done[0] > 0
        if whole and bool((met & (still[0] > 0)).all()):
            # Usually all items end here, and nothing needs to be picked out.
            for target, value in zip((x, z, s), points, strict=True):
                target.copy_(value)
            return FacePoints(next_x, next_v, met)
        # An item that was done and went on for its last digits stays where it was if it leaves its face.
        before = end.done[items]
        # As numbers, once for all: on a GPU the host waits to hear how many there are.
        new, onward = (met | ~before).nonzero()[:, 0], ((met & (still[0] <= 0)) | ~(met | before)).nonzero()[:, 0]
        met = met.nonzero()[:, 0]
        for target, value in zip((x, z, s), points, strict=True):
            target[:, items[met]] = value[:, met]
        end.x[:, items[new]], end.v[:, items[new]] = next_x[:, new], next_v[:, new]
        end.done.index_fill_(0, items[met], True)
        items = items[onward]
        if not items.numel():
            break
    return end
