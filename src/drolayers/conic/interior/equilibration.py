"""A batch of programs with rows and columns scaled to similar size, batch last."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch import Tensor

from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.residuals import row_index

ROUNDS = 3
"""Of Ruiz's iteration."""


@final
@dataclass(frozen=True, eq=False)
class Scaled:
    """The numbers of a batch, ``(entries, batch)``; matrices that all items share have batch one.

    ``D`` and ``E`` scale columns and rows: x = D x̂, s = ŝ/E, z = E ẑ.
    """

    A: Tensor
    P: Tensor
    q: Tensor
    b: Tensor
    D: Tensor
    E: Tensor

    @classmethod
    def of(cls, program: ConeProgram, values: Values) -> Scaled:
        """Transpose and equilibrate."""
        device, cones = values.q.device, program.cones
        row, column = row_index(program.A_indptr).to(device), program.A_indices.to(device)
        shared = values.A.stride(0) == 0 and len(values) > 1
        A = (values.A[:1] if shared else values.A).T.contiguous()
        D = A.new_ones(program.columns, A.shape[1])
        E = A.new_ones(program.rows, A.shape[1])
        dimensions = cones.blocks
        sizes = torch.tensor(dimensions, dtype=torch.int64, device=device)
        cone = torch.repeat_interleave(torch.arange(len(dimensions), device=device), sizes)
        first = cones.zero + cones.nonneg
        for _ in range(ROUNDS):
            size = (A * E[row] * D[column]).abs()
            E = E / _root(_largest(size, row, E.shape[0]))
            if dimensions:
                # One factor a cone, or it would be another cone.
                total = E.new_zeros(len(dimensions), E.shape[1]).index_add(0, cone, E[first:])
                E = torch.cat([E[:first], (total / sizes[:, None])[cone]])
            size = (A * E[row] * D[column]).abs()
            D = D / _root(_largest(size, column, D.shape[0]))
        P_row, P_column = row_index(program.P_indptr).to(device), program.P_indices.to(device)
        P = values.P.T.contiguous() * D[P_row] * D[P_column]
        return cls(A * E[row] * D[column], P, values.q.T * D, values.b.T * E, D, E)

    def __len__(self) -> int:
        return self.q.shape[1]

    def __getitem__(self, items: Any) -> Scaled:
        """Some items."""
        return Scaled(*(t if t.shape[1] == 1 < len(self) else t[:, items] for t in self.parts))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All numbers."""
        return tuple(getattr(self, f.name) for f in fields(self))


def _largest(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The largest value at every index; one where there is none."""
    out = values.new_zeros(count, values.shape[1])
    out = out.scatter_reduce(0, index[:, None].expand_as(values), values, "amax")
    return torch.where(out > 0, out, torch.ones_like(out))


def _root(values: Tensor) -> Tensor:
    """Square roots, kept within sane bounds."""
    return values.clamp(1e-8, 1e8).sqrt()
