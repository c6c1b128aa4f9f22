"""One program of a batch as the solvers of others take it, and the rows that exclude a point of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from conelayers.program.program import ConeProgram, Cones, Values

Array = np.ndarray

Row = tuple[Array, Array, float]
"""Columns, their coefficients, and what their sum is at most."""


@dataclass(frozen=True, eq=False)
class Instance:
    """One program as plain arrays, its objective divided by its largest coefficient.

    ``minimise ½xᵀPx + qᵀx, Ax + s = b, s ∈ K`` with ``lower ≤ x ≤ upper`` and some columns integer; rows that hold one
    column are bounds, not rows.
    """

    P: sp.csr_array
    q: Array
    A: sp.csr_array
    b: Array
    cones: Cones
    integers: Array
    lower: Array
    upper: Array

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.q.size

    @classmethod
    def of(cls, program: ConeProgram, values: Values, item: int) -> Instance:
        """Cut one item out of a batch."""
        P_data, A_data, q, b = (t[item].cpu().numpy() for t in (values.P, values.A, values.q, values.b))
        P = sp.csr_array((P_data, program.P_indices.numpy(), program.P_indptr.numpy()), shape=(q.size, q.size))
        A = sp.csr_array((A_data, program.A_indices.numpy(), program.A_indptr.numpy()), shape=(b.size, q.size))
        scale = np.abs(q).max(initial=0.0) or 1.0
        cones, linear = program.cones, program.cones.zero + program.cones.nonneg
        lower, upper = np.full(q.size, -np.inf), np.full(q.size, np.inf)
        index = np.arange(b.size)
        alone = (np.diff(A.indptr) == 1) & (index >= cones.zero) & (index < linear)
        for row in index[alone]:
            column, a = A.indices[A.indptr[row]], A.data[A.indptr[row]]
            if a > 0:
                upper[column] = min(upper[column], b[row] / a)
            elif a < 0:
                lower[column] = max(lower[column], b[row] / a)
        # A structural zero on its own says 0 ≤ b.
        alone &= np.array([bool(A.data[A.indptr[r]]) if alone[r] else False for r in index], dtype=bool)
        kept = replace(cones, nonneg=cones.nonneg - int(alone.sum()))
        size = _cone_scale(A, cones)[~alone]
        A, b = sp.csr_array(sp.diags_array(size) @ A[~alone]), size * b[~alone]
        return cls(P / scale, q / scale, A, b, kept, program.integers.numpy(), lower, upper)


def _cone_scale(A: sp.csr_array, cones: Cones) -> Array:
    """A factor for every row that brings the smallest coefficient of each second-order cone to one.

    Solvers test ``‖s‖² ≤ t²`` against absolute numbers: with lots of 1/60 a tolerance of 1e-7 is 4e-4 of the square.
    """
    scale, at = np.ones(A.shape[0]), cones.zero + cones.nonneg
    for dimension in cones.soc:
        entries = np.abs(A.data[A.indptr[at] : A.indptr[at + dimension]])
        smallest = entries[entries > 0].min(initial=1.0)
        scale[at : at + dimension] = 1.0 / max(smallest, 1e-4)
        at += dimension
    return scale


def exclusion(instance: Instance, point: Array, fresh: int) -> tuple[int, list[Row]]:
    """Rows ``coefficientsᵀx ≤ rhs`` that exclude one integer point, and how many new binaries they need.

    A boolean differs from p where ``p(1-x) + (1-p)x ≥ 1``. A general integer needs two binaries that say on which side
    of p it is. New binaries are columns ``fresh``, ``fresh + 1`` and so on.
    """
    lower, upper = instance.lower[instance.integers], instance.upper[instance.integers]
    rows: list[Row] = []
    columns, coefficients, rhs, added = [], [], -1.0, 0
    for column, p, low, high in zip(instance.integers, point, lower, upper, strict=True):
        if low == high:
            continue
        if high - low == 1:
            sign = 1.0 if p == high else -1.0
            columns.append(column)
            coefficients.append(sign)
            rhs += high if p == high else -low
            continue
        above, below = fresh + added, fresh + added + 1
        added += 2
        # above = 1 implies x ≥ p + 1; below = 1 implies x ≤ p - 1.
        rows.append((np.array([column, above]), np.array([-1.0, p + 1.0 - low]), -low))
        rows.append((np.array([column, below]), np.array([1.0, high - p + 1.0]), high))
        columns += [above, below]
        coefficients += [-1.0, -1.0]
    rows.append((np.array(columns, dtype=np.int64), np.array(coefficients), rhs))
    return added, rows
