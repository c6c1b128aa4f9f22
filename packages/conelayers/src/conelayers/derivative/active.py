"""Exact derivatives in the batch: on the active face, which is identified and polished to machine precision.

Where slack and multiplier of a row are both small, a point near the end of the central path is no proof of anything: so
the end itself is met (``interior/face.py``), and its system serves the adjoint equations there too; refinement takes
back what the system is off by. The forward pass has polished most items already. Their system is factored anew:
that is half a percent of a training step, and keeping the factor would take more memory than the batch. An item whose
face is confirmed by the polished point, with room to spare, and whose adjoint equations are solved to the last digits,
is verified. An item that was not polished is tried here, from face to face.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from conelayers.derivative.theorem import Found, Pulled
from conelayers.interior.batch import SHARED, AlgebraName, Batch
from conelayers.interior.face import ROUNDS, adjoint
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Derivative


@final
@dataclass(frozen=True)
class Active:
    """The derivative on the active face, over zero, nonnegative and second-order cones.

    Args:
        algebra: as for ``Interior``.
    """

    algebra: AlgebraName | None = None

    def __call__(
        self, program: ConeProgram, values: Values, found: Found, dx: Tensor, dz: Tensor | None = None
    ) -> Pulled:
        """Pull gradients back."""
        batch = Batch.of(program, values, self.algebra)
        points = [found.x.T.clone(), (found.z - found.s).T.clone()]
        pulled, every = Pulled.none(values), torch.arange(len(values.q), device=dx.device)
        polished = torch.zeros_like(every) > 0 if found.polished is None else found.polished
        seeds = dx.T, (torch.zeros_like(found.z) if dz is None else dz).T
        if bool(polished.all()):
            pulled = self._round(batch, points, seeds, every, pulled, polished=True)
        else:
            pulled = self._round(batch, points, seeds, polished.nonzero()[:, 0], pulled, polished=True)
            items = (~polished).nonzero()[:, 0]
            for _ in range(ROUNDS):
                pulled = self._round(batch, points, seeds, items, pulled, polished=False)
                items = items[pulled.code[items] == int(Derivative.UNASKED)]
                if not items.numel():
                    break
        lost = pulled.code == int(Derivative.UNASKED)
        return replace(pulled, code=torch.where(lost, int(Derivative.UNVERIFIED), pulled.code))

    def _round(
        self,
        batch: Batch,
        points: list[Tensor],
        seeds: tuple[Tensor, Tensor],
        items: Int[Tensor, "some"],
        pulled: Pulled,
        polished: bool,
    ) -> Pulled:
        """Solve the adjoint equations of some items on their faces; ``points`` (x and v, batch last) move in place."""
        if not items.numel():
            return pulled
        # Rounds are of few items, and of every size: they share a recording.
        fill = batch.filled(items, min(len(batch), SHARED))
        part = batch[fill]
        inputs = [t[:, fill].contiguous() for t in (*points, *seeds)]
        inputs += [t.expand(-1, inputs[0].shape[1]).contiguous() for t in noise(points)]
        work, name = partial(adjoint, rows=part.cone_rows, polished=polished), ("active", polished)
        next_x, next_v, *parts, code = (t[:, : len(items)] for t in part.each(work, *inputs, name=name))
        points[0][:, items], points[1][:, items] = next_x, next_v
        x, z, g, h, rest_g, rest_h = (t.T for t in parts)
        return pulled.put(items, Pulled(x, z, g, h, code[0].long(), (rest_g, rest_h)))


def noise(points: list[Tensor]) -> list[Tensor]:
    """Draw a random start for the homogeneous equations, one column for all items: the same in every call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(len(t), 1, generator=generator, dtype=torch.float64).to(t) for t in points]
