"""Rows that are affine in ``y``, with coefficients that are affine in the stacked decision."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class AffineRows:
    """Rows ``a_r(x)'y + b_r(x)``, where ``a_r(x) = A_r x + c_r`` and ``b_r(x) = d_r'x + e_r``.

    ``x`` is the *stack*: all variables one after the other, each in Fortran order.

    Attributes:
        slope_linear: ``(rows * dim, stack)``; row ``r * dim + i`` holds the coefficients of ``x`` in ``a_ri(x)``.
        slope_constant: ``(rows, dim)``.
        offset_linear: ``(rows, stack)``.
        offset_constant: ``(rows,)``.
    """

    slope_linear: sp.csr_array
    slope_constant: np.ndarray
    offset_linear: sp.csr_array
    offset_constant: np.ndarray

    def __len__(self) -> int:
        return int(self.offset_constant.shape[0])

    @property
    def dim(self) -> int:
        """Number of coordinates of ``y``."""
        return int(self.slope_constant.shape[1])

    @property
    def width(self) -> int:
        """Length of the stack."""
        return int(self.offset_linear.shape[1])

    @staticmethod
    def empty(dim: int, width: int) -> AffineRows:
        """No rows at all."""
        return AffineRows(sp.csr_array((0, width)), np.zeros((0, dim)), sp.csr_array((0, width)), np.zeros(0))

    def slope(self, stack: cp.Expression) -> cp.Expression:
        """The slopes ``a_r(x)`` as an expression of shape ``(rows, dim)``."""
        return cp.reshape(self.flat_slope(stack), self.slope_constant.shape, order="C")

    def flat_slope(self, stack: cp.Expression) -> cp.Expression:
        """The slopes row by row, ``(rows * dim,)``."""
        return affine(self.slope_linear, self.slope_constant.ravel(), stack)

    def offset(self, stack: cp.Expression) -> cp.Expression:
        """The offsets ``b_r(x)`` as an expression of shape ``(rows,)``."""
        return affine(self.offset_linear, self.offset_constant, stack)

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers ``a`` of shape ``(rows, dim)`` and ``b`` of shape ``(rows,)`` at the stack ``x``."""
        slope = self.slope_constant + (self.slope_linear @ x).reshape(self.slope_constant.shape)
        return slope, self.offset_constant + self.offset_linear @ x

    def coordinates(self) -> np.ndarray:
        """Boolean ``(rows, dim)``: which coordinates of ``y`` a row sees for at least one ``x``."""
        linear = (np.diff(self.slope_linear.indptr) > 0).reshape(self.slope_constant.shape)
        return linear | (self.slope_constant != 0)

    def combine(self, selection: sp.csr_array) -> AffineRows:
        """The rows ``selection @ rows``: nonnegative combinations, or a choice, of these."""
        rows, dim, width = len(self), self.dim, self.width
        folded = _fold(self.slope_linear, (rows, dim * width))
        return AffineRows(
            _fold(_clean(selection @ folded), (selection.shape[0] * dim, width)),
            selection @ self.slope_constant,
            _clean(selection @ self.offset_linear),
            selection @ self.offset_constant,
        )

    def take(self, rows: np.ndarray) -> AffineRows:
        """The rows with these numbers, in this order."""
        count = len(rows)
        selection = sp.csr_array((np.ones(count), (np.arange(count), rows)), shape=(count, len(self)))
        return self.combine(selection)

    def distinct(self, group: np.ndarray) -> np.ndarray:
        """Numbers of the rows that are not exact copies of an earlier row of the same group."""
        table = _clean(
            sp.hstack(
                [
                    _fold(self.slope_linear, (len(self), self.dim * self.width)),
                    sp.csr_array(self.slope_constant),
                    self.offset_linear,
                    sp.csr_array(self.offset_constant[:, None]),
                ],
                format="csr",
            )
        )
        table.sort_indices()
        first: dict[tuple[int, bytes, bytes], int] = {}
        for r, (start, stop) in enumerate(zip(table.indptr[:-1], table.indptr[1:], strict=True)):
            key = (int(group[r]), table.indices[start:stop].tobytes(), table.data[start:stop].tobytes())
            first.setdefault(key, r)
        return np.fromiter(first.values(), dtype=int, count=len(first))

    def nonzero(self) -> AffineRows:
        """Without rows that are zero whatever ``x`` and ``y`` are."""
        size = np.abs(self.slope_constant).max(axis=1, initial=0.0) + np.abs(self.offset_constant)
        size += abs(self.offset_linear).max(axis=1).toarray().ravel() if self.width and len(self) else 0.0
        if self.slope_linear.nnz:
            size += abs(self.slope_linear).max(axis=1).toarray().ravel().reshape(self.slope_constant.shape).max(axis=1)
        return self.take(np.flatnonzero(size > 0))

    def keep_columns(self, columns: np.ndarray, width: int | None = None) -> AffineRows:
        """The same rows over a shorter stack, with room behind; what the other columns held is dropped."""

        def kept(matrix: sp.csr_array) -> sp.csr_array:
            found = sp.csr_array(matrix[:, columns])
            found.resize(found.shape[0], found.shape[1] if width is None else width)
            return found

        return replace(self, slope_linear=kept(self.slope_linear), offset_linear=kept(self.offset_linear))

    def parted(self, columns: np.ndarray) -> tuple[AffineRows, AffineRows]:
        """Offsets without some columns, and the rest."""
        inside = np.zeros(self.width)
        inside[columns] = 1.0
        own = _clean(self.offset_linear @ sp.diags_array(inside, format="csr"))
        rest = replace(self, offset_linear=own, offset_constant=np.zeros(len(self)))
        return replace(self, offset_linear=_clean(self.offset_linear - own)), rest

    def laid(self, own: np.ndarray) -> AffineRows:
        """The rows once for every atom, atom by atom, where their columns are others: ``own`` is (atoms, columns)."""
        if len(own) == 1:
            return self
        count = len(own)
        return AffineRows(
            laid(self.slope_linear, own),
            np.tile(self.slope_constant, (count, 1)),
            laid(self.offset_linear, own),
            np.tile(self.offset_constant, count),
        )


def with_remainder(pieces: AffineRows, term: np.ndarray, remainder: AffineRows) -> tuple[AffineRows, np.ndarray]:
    """The pieces with terms numbered from 0, and the affine remainder, whose offset is none but rules', as one more."""
    names, term = np.unique(term, return_inverse=True)
    if not remainder.coordinates().any():
        return pieces, term
    return AffineRows(
        sp.vstack([pieces.slope_linear, remainder.slope_linear], format="csr"),
        np.vstack([pieces.slope_constant, remainder.slope_constant]),
        sp.vstack([pieces.offset_linear, remainder.offset_linear], format="csr"),
        np.append(pieces.offset_constant, 0.0),
    ), np.append(term, len(names))


def laid(matrix: sp.csr_array, own: np.ndarray) -> sp.csr_array:
    """A matrix once for every atom, over the columns of each."""
    coo, count = matrix.tocoo(), len(own)
    row = (np.arange(count)[:, None] * matrix.shape[0] + coo.row).ravel()
    shape = (count * matrix.shape[0], matrix.shape[1])
    return sp.csr_array((np.tile(coo.data, count), (row, own[:, coo.col].ravel())), shape=shape)


def _clean(matrix: sp.csr_array) -> sp.csr_array:
    """Without stored zeros, so that the sparsity pattern is the structure."""
    matrix = sp.csr_array(matrix)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _fold(matrix: sp.csr_array, shape: tuple[int, int]) -> sp.csr_array:
    """The same numbers in the same (C) order in a matrix of another shape."""
    coo = matrix.tocoo()
    flat = coo.row.astype(np.int64) * matrix.shape[1] + coo.col
    row, col = np.divmod(flat, max(shape[1], 1))
    return sp.csr_array((coo.data, (row, col)), shape=shape)


def affine(linear: sp.csr_array, constant: np.ndarray, stack: cp.Expression) -> cp.Expression:
    """``linear @ stack + constant``; a plain constant where the decision does not enter."""
    if linear.nnz == 0:
        return cp.Constant(constant)
    return cp.Constant(linear) @ stack + constant
