"""What became of every item of a projection."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from drolayers.status import Status
from drolayers.statuses import Statuses


@dataclass(eq=False, repr=False)
class Report(Statuses):
    """One status an item, and a sentence for each that is not optimal.

    Attributes:
        status: ``(batch,)``. OPTIMAL: the projected set contains the nominal distribution. INACCURATE: it does, but θ
            is not the closest (the solver failed and the bound was raised instead). INFEASIBLE: no value of the free
            parameters makes the set contain the nominal distribution. FAILED: the solver broke down under a fixed
            bound. In the last two cases the parameters concerned are returned as they came.
    """

    status: Int[Tensor, "batch"]
    _remarks: list[tuple[Bool[Tensor, "batch"], str]] = field(default_factory=list)

    @classmethod
    def fresh(cls, batch: int, device: torch.device) -> Report:
        """All optimal."""
        return cls(torch.full((batch,), int(Status.OPTIMAL), device=device))

    def note(self, where: Bool[Tensor, "batch"], status: Status, sentence: str) -> None:
        """Record what happened to some items; the worst status stands."""
        if bool(where.any()):
            self.status = torch.where(where, self.status.clamp(min=int(status)), self.status)
            self._remarks.append((where, sentence))

    @property
    def sentences(self) -> dict[int, str]:
        """What is wrong with an item, and what to do; only items about which there is something to say."""
        said: dict[int, str] = {}
        for where, sentence in self._remarks:
            for item in where.nonzero()[:, 0].tolist():
                said[item] = f"{said[item]} {sentence}" if item in said else sentence
        return said
