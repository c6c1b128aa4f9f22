"""Where the dual variables of a problem's constraints stand among the multipliers of its cone program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpy.constraints import PSD, ExpCone, PowCone3D
from jaxtyping import Float
from torch import Tensor

from conelayers.program.semidefinite import triangle


@dataclass(frozen=True, eq=False)
class DualSlot:
    """The rows of one dual variable.

    Args:
        rows: the row of the cone program for every entry of the variable, in C order.
        factor: by which the multiplier of that row is divided; √2 off the diagonal of a semidefinite constraint.
        shape: of the dual variable.
    """

    rows: np.ndarray
    factor: np.ndarray
    shape: tuple[int, ...]

    def read(self, multipliers: Float[Tensor, "batch row"]) -> Float[Tensor, "batch ..."]:
        """Return the dual variable of every item, ``(batch, *shape)``, with CVXPY's sign."""
        rows = torch.as_tensor(self.rows, device=multipliers.device)
        factor = torch.as_tensor(self.factor, device=multipliers.device).to(multipliers)
        return (multipliers[:, rows] / factor).reshape(len(multipliers), *self.shape)


def locate_duals(
    constraints: Sequence[cp.Constraint], canonical: Any, ids: Mapping[int, int], extra: int
) -> tuple[tuple[DualSlot, ...] | None, ...]:
    """Locate the dual variables of every constraint.

    Args:
        constraints: as given to CVXPY.
        canonical: CVXPY's parametrised cone program, whose constraints stand in the order of the rows.
        ids: CVXPY's number of a constraint in the cone program, by the number that the user's has.
        extra: rows for the bounds of variables, which close the block of nonnegative rows.

    Returns:
        One slot for each of ``constraint.dual_variables``; None for a constraint without rows, such as one that holds
        for constants alone.
    """
    start, starts = 0, {}
    for constraint in canonical.constraints:
        starts[constraint.id] = start
        start += constraint.size
    dims = canonical.cone_dims
    linear = dims.zero + dims.nonneg

    def slots(constraint: cp.Constraint) -> tuple[DualSlot, ...] | None:
        first = starts.get(ids.get(constraint.id, constraint.id))
        if first is None:
            return None
        first += extra * (first >= linear)
        return tuple(
            DualSlot(first + rows, factor, tuple(variable.shape))
            for variable, (rows, factor) in zip(constraint.dual_variables, _layout(constraint), strict=True)
        )

    return tuple(slots(constraint) for constraint in constraints)


def _layout(constraint: cp.Constraint) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows, counted from the constraint's first, and factors of each of its dual variables, entries in C order."""
    if isinstance(constraint, PSD):
        order = constraint.args[0].shape[0]
        row, column, factor = triangle(order)
        place, factors = np.zeros((order, order), dtype=np.int64), np.ones((order, order))
        place[row, column] = place[column, row] = np.arange(row.size)
        factors[row, column] = factors[column, row] = factor
        return [(place.ravel(), factors.ravel())]
    if isinstance(constraint, cp.SOC):
        heads, tails = constraint.args
        count = heads.size
        size = tails.size // count + 1
        rows = np.arange(count * size).reshape(count, size)
        # One cone a column for axis 0, a row for axis 1; a lone cone is a vector or a matrix in Fortran order.
        inner = rows[:, 1:]
        if tails.ndim > 1 and count > 1:
            inner = inner.T if constraint.axis == 0 else inner
        else:
            inner = inner.reshape(tails.shape, order="F")
        return [(rows[:, 0], np.ones(count)), (inner.ravel(), np.ones(inner.size))]
    if isinstance(constraint, ExpCone | PowCone3D):
        each = np.arange(constraint.args[0].size).reshape(constraint.args[0].shape, order="F").ravel()
        return [(3 * each + k, np.ones(each.size)) for k in range(3)]
    shape = constraint.args[0].shape if len(constraint.args) == 1 else constraint.shape
    entries = np.arange(constraint.size).reshape(shape, order="F").ravel()
    return [(entries, np.ones(entries.size))]
