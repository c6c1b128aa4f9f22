"""The first of several adjoints whose answer is verified, item by item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from drolayers.conic.adjoints.theorem import Adjoint, Found, Pulled
from drolayers.conic.program import ConeProgram, Values


@final
@dataclass(frozen=True)
class FirstOf:
    """Adjoints in order; each is asked for the items that those before it could not verify."""

    adjoints: tuple[Adjoint, ...]

    def __call__(self, program: ConeProgram, values: Values, found: Found, dx: Tensor) -> Pulled:
        """Pull gradients back."""
        pulled, items = Pulled.none(values), torch.arange(len(values), device=dx.device)
        for adjoint in self.adjoints:
            pulled = pulled.put(items, adjoint(program, values[items], found[items], dx[items]))
            items = (~pulled.ok).nonzero()[:, 0]
            if not items.numel():
                break
        return pulled
