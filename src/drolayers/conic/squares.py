"""Squares as second-order cones: uv ≥ w² as (u + v, u - v, w), whose u and v are counted in units of their own.

CVXPY's u is one in most of them, ``cp.sum_squares(x) <= t`` for instance, and stays a one whatever x is counted in.
A boost, u times λ and v over λ, maps the cone onto itself; ``units.py`` finds the λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from drolayers.conic.program import ConeProgram, row_index


@final
@dataclass(frozen=True, eq=False)
class Boost:
    """Rows that hold u + v and u - v of a product uv, and the λ of every pair."""

    rows: Int[Tensor, "2 pair"]
    size: Float[Tensor, "batch pair"]

    def __call__(self, vector: Float[Tensor, "batch row"], power: int = 1) -> Float[Tensor, "batch row"]:
        """A symmetric matrix times a vector of rows, or its inverse (power -1)."""
        if not self.size.shape[1]:
            return vector
        one, other = vector[:, self.rows[0]], vector[:, self.rows[1]]
        u, v = 0.5 * (one + other) * self.size**power, 0.5 * (one - other) / self.size**power
        rows = self.rows.reshape(1, -1).expand(len(u), -1)
        return vector.scatter(1, rows, torch.cat([u + v, u - v], 1))


NO_BOOST = Boost(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.float64))


def products(program: ConeProgram) -> tuple[Int[Tensor, "2 pair"], Int[Tensor, "entry"], Tensor, Tensor]:
    """Cones of (u + v, u - v, w) with a number in one of the three, and those that share columns with them.

    The pairs of rows; entries of A in them, the pair of each, and 1.0 where it belongs to u or -1.0 to v. No column may
    stand in both. Where no number stands in any of them, columns have all the freedom that is needed and a boost is one
    too many: newsvendors under squared moments took 24 steps instead of 12.
    """
    cones, start = program.cones, program.A_indptr.numpy()
    size = np.array(cones.soc, dtype=np.int64)
    head = cones.zero + cones.nonneg + np.cumsum(size) - size
    width = np.diff(start)
    fits = size > 1
    fits[fits] = (width[head[fits]] == width[head[fits] + 1]) & (width[head[fits]] > 0)
    head, size = head[fits], size[fits]
    pair = np.repeat(np.arange(len(head)), width[head])
    within = np.arange(len(pair)) - np.repeat(np.cumsum(width[head]) - width[head], width[head])
    row, column = row_index(program.A_indptr).numpy(), program.A_indices.numpy()
    # Entries by row and column, so that those of one column have one place in both rows.
    order = np.lexsort((column, row))
    one, other = order[start[head][pair] + within], order[start[head + 1][pair] + within]
    A = program.A_map
    terms = sp.csr_array(
        (A.coefficient.numpy(), (A.entry.numpy(), A.column.numpy())), shape=(len(row), program.feature_size)
    )
    numbers = sp.hstack([sp.csr_array(A.constant.numpy()[:, None]), terms], format="csr")
    same, opposite = (abs(numbers[one] + sign * numbers[other]).sum(axis=1) == 0.0 for sign in (-1.0, 1.0))
    good = np.ones(len(head), dtype=bool)
    np.logical_and.at(good, pair, (column[one] == column[other]) & (same | opposite))
    good[good] = _numbered(program, head[good], size[good])
    kept = good[pair]
    which, side = (np.cumsum(good) - 1)[pair[kept]], np.where(same[kept], 1.0, -1.0)
    entries = np.concatenate([one[kept], other[kept]])
    pairs = np.stack([head[good], head[good] + 1])
    return (
        torch.as_tensor(pairs),
        torch.as_tensor(entries),
        torch.as_tensor(np.tile(which, 2)),
        torch.as_tensor(np.tile(side, 2)),
    )


def _numbered(program: ConeProgram, head: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Which of some cones hold a number, or hang on one that does by their columns."""
    number = program.b_map.constant.numpy() != 0.0
    number[program.b_map.entry.numpy()] = True
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    rows = np.repeat(head, size) + inside
    pattern = sp.csr_array(
        (np.ones(program.nonzeros), program.A_indices.numpy(), program.A_indptr.numpy()),
        shape=(program.rows, program.columns),
    )
    cone = np.repeat(np.arange(len(head)), size)
    member = sp.csr_array((np.ones(len(rows)), (cone, rows)), shape=(len(head), program.rows))
    reach = member @ pattern
    _, label = connected_components(sp.block_array([[None, reach], [reach.T, None]]), directed=False)
    label = label[: len(head)]
    return np.isin(label, label[member @ number > 0])
