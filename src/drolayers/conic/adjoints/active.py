"""Exact derivatives in the batch: on the active face, which is identified and polished to machine precision.

Where slack and multiplier of a row are both small, a point near the end of the central path is no proof of anything: so
the end itself is met (``interior/face.py``), and its system, already factored, serves the adjoint equations there too;
iterative refinement takes the difference back. An item whose face is confirmed by the polished point, with room to
spare, and whose adjoint equations are solved to the last digits, is verified. One whose face changed is tried once more
from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from drolayers.conic.adjoints.theorem import Found, Pulled
from drolayers.conic.interior.batch import SHARED, AlgebraName, Batch
from drolayers.conic.interior.face import ROUNDS, adjoint
from drolayers.conic.program import ConeProgram, Values
from drolayers.status import Derivative


@final
@dataclass(frozen=True)
class Active:
    """The derivative on the active face, over zero, nonnegative and second-order cones.

    Args:
        algebra: as for ``Interior``.
    """

    algebra: AlgebraName | None = None

    def __call__(self, program: ConeProgram, values: Values, found: Found, dx: Tensor) -> Pulled:
        """Pull gradients back."""
        batch = Batch.of(program, values, self.algebra)
        x, v, seed = found.x.T.clone(), (found.z - found.s).T.clone(), dx.T
        pulled, items = Pulled.none(values), torch.arange(len(values.q), device=dx.device)
        generator = torch.Generator().manual_seed(0)
        noise = [torch.randn(len(t), 1, generator=generator, dtype=torch.float64).to(t) for t in (x, v)]
        least = min(len(items), SHARED)
        for _ in range(ROUNDS):
            # Later rounds are of few items, and of every size: they share a recording.
            fill = batch.filled(items, least)
            part = batch[fill]
            given = [t[:, fill].contiguous() for t in (x, v, seed)]
            given += [t.expand(-1, given[0].shape[1]).contiguous() for t in noise]
            answer = part.each(partial(adjoint, rows=part.cone_rows), *given, name="active")
            next_x, next_v, *parts, code = (t[:, : len(items)] for t in answer)
            at_x, at_z, g, h, rest_g, rest_h = (t.T for t in parts)
            pulled = pulled.put(items, Pulled(at_x, at_z, g, h, code[0].long(), (rest_g, rest_h)))
            x[:, items], v[:, items] = next_x, next_v
            items = items[code[0] == int(Derivative.UNASKED)]
            if not items.numel():
                break
        lost = pulled.code == int(Derivative.UNASKED)
        return replace(pulled, code=torch.where(lost, int(Derivative.UNVERIFIED), pulled.code))
