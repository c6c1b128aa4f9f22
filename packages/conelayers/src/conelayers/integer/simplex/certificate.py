"""What a vertex of the simplex method proves: its columns and multipliers as a solution of the whole program.

The tableau has multipliers of its own rows alone. The others follow from the reduced costs: of a continuous column, by
the row that bounds it where it is; of an integer, which is fixed, by its two bounds, which share any further amount. A
vertex with a row on the verge, whose slack and multiplier both vanish, is one of many solutions, or has many
multipliers: it is left to the engine, whose solution is in their middle, and so is what the engine does not confirm.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.integer.boxes import Boxes, Solved
from conelayers.program.program import ConeProgram, once
from conelayers.program.residuals import products
from conelayers.status import Status

VERGE = 1e-7
"""Up to which a slack and a multiplier vanish, relative to the right-hand side and to the costs."""


@torch.no_grad()
def certified(
    boxes: Boxes,
    item: Int[Tensor, "point"],
    point: Int[Tensor, "point integer"],
    x: Float[Tensor, "point column"],
    z: Float[Tensor, "point row"],
) -> Solved:
    """Solutions at integer points: vertices that the engine confirms, and its own solves for all others.

    Multipliers are those of rows that the tableau holds, and zero elsewhere.
    """
    cuts = [*boxes.chunks(len(item))] or [slice(0)]
    found = Solved.cat([_adopted(boxes, item[c], point[c], x[c], z[c]) for c in cuts])
    left = (~found.ok).nonzero()[:, 0]
    if not len(left):
        return found
    again = boxes.solve(item[left], point[left], point[left])
    parts = ("status", "objective", "mass", "primal", "dual")
    return replace(found, **{n: getattr(found, n).index_copy(0, left, getattr(again, n)) for n in parts})


def _adopted(boxes: Boxes, item: Tensor, point: Tensor, x: Tensor, z: Tensor) -> Solved:
    """Vertices as the engine sees them; FAILED where it does not confirm them, and on the verge."""
    program, own, none = boxes.program, boxes.program.on(x.device), x.new_zeros(len(x), 0)
    values = program.within(boxes.values[item], point, point)
    x = x.index_copy(1, own.integers, point.to(x))
    _, Ax, Az = products(program, values, x, z)
    slack, price = values.b - Ax, values.q + Az
    # Matrices that all items share are looked at once.
    A = values.A[:1] if values.A.stride(0) == 0 else values.A
    entry, row, column = once(program, ("alone", x.device), lambda: _alone(program, x.device))
    a = A[:, entry]
    share = -price[:, column] / a
    # The nearest of the bounds that can hold a column holds it.
    far = torch.where((a != 0) & (share > 0), slack[:, row].abs() / a.abs(), torch.inf)
    nearest = torch.full_like(x, torch.inf).scatter_reduce(1, column.expand_as(far), far, "amin")
    z = z.index_add(1, row, torch.where(far.isfinite() & (far == nearest[:, column]), share, 0.0))
    price, size = price[:, own.integers], values.q.abs().amax(1, keepdim=True)
    z[:, own.lower], z[:, own.upper] = price.clamp(min=0.0) + size, (-price).clamp(min=0.0) + size
    largest = A.new_zeros(len(A), program.rows).scatter_reduce(1, own.row.expand_as(A), A.abs(), "amax")
    verge = (slack <= VERGE * (1.0 + values.b.abs())) & (z * largest <= VERGE * size)
    found = boxes.adopt(item, point, Solved(none, none, none, x, z, none, none))
    clear = ~verge[:, program.cones.zero :].any(1)
    return replace(found, status=torch.where(clear, found.status, int(Status.FAILED)))


def _alone(program: ConeProgram, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Entries that stand alone in an inequality and in a continuous column, with both."""
    indptr, index = program.A_indptr.numpy(), program.A_indices.numpy()
    row = np.flatnonzero((np.diff(indptr) == 1) & (np.arange(program.rows) >= program.cones.zero))
    entry = indptr[row]
    free = ~np.isin(index[entry], program.integers.numpy())
    return tuple(torch.from_numpy(a[free]).to(device) for a in (entry, row, index[entry]))  # type: ignore[return-value]
