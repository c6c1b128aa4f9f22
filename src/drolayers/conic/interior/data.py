"""The numbers of a batch of programs as the method takes them: batch last."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

from torch import Tensor

from drolayers.conic.program import Values


@final
@dataclass(frozen=True, eq=False)
class Data:
    """The numbers of a batch, ``(entries, batch)``; an A that all items share has batch one."""

    A: Tensor
    P: Tensor
    q: Tensor
    b: Tensor

    @classmethod
    def of(cls, values: Values) -> Data:
        """Transpose."""
        shared = values.A.stride(0) == 0 and len(values) > 1
        A = values.A[:1] if shared else values.A
        return cls(*(t.T.contiguous() for t in (A, values.P, values.q, values.b)))

    def __len__(self) -> int:
        return self.q.shape[1]

    def __getitem__(self, items: Any) -> Data:
        """Some items."""
        return Data(*(t if t.shape[1] == 1 < len(self) else t[:, items] for t in self.parts))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All numbers."""
        return tuple(getattr(self, f.name) for f in fields(self))
