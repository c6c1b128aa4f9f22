"""Nested maxima multiplied out into pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from drolayers.errors import ModelError

PIECE_LIMIT = 4096


@dataclass(frozen=True)
class MaxSystem:
    """Scalar maxima ``v_f = max {row_r : owner[r] = f}`` whose rows may use earlier maxima.

    Attributes:
        weight: ``(rows, maxima)``; row ``r`` is its affine part plus ``weight[r] @ v``.
        owner: ``(rows,)``; the maximum that a row belongs to, or -1.
        describe: the text of maximum ``f`` for messages.
    """

    weight: sp.csr_array
    owner: np.ndarray
    describe: Callable[[int], str]

    @property
    def size(self) -> int:
        """Number of scalar maxima."""
        return int(self.weight.shape[1])

    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows sorted by the maximum that they belong to, and where each maximum starts."""
        order = np.argsort(self.owner, kind="stable")
        return order, np.searchsorted(self.owner[order], np.arange(self.size + 1))

    def flatten(self, row: int) -> tuple[sp.csr_array, np.ndarray]:
        """One row as a combination of rows, and the weights of the maxima with at least two rows left in it.

        A maximum of a single row is that row: taking it as such keeps a sum of maxima a sum.
        """
        order, start = self.members()
        single = np.diff(start) == 1
        chosen = np.zeros(self.weight.shape[0])
        chosen[row] = 1.0
        left = self.weight[[row]].toarray().ravel()
        while np.any(passing := np.where(single, left, 0.0)):
            through = np.flatnonzero(passing)
            rows = order[start[through]]
            np.add.at(chosen, rows, passing[through])
            left = left - passing + self.weight[rows].T @ passing[through]
        return sp.csr_array(chosen[None, :]), left

    def multiplied_out(self, count: int) -> tuple[sp.csr_array, np.ndarray, sp.csr_array, np.ndarray]:
        """The first rows as combinations of rows and sums of maxima, and the pieces of the maxima.

        Returns:
            The combinations, one a row; the row that every maximum belongs to; the pieces as combinations of rows; and
            for each the maximum that it belongs to.
        """
        flat = [self.flatten(k) for k in range(count)]
        left = np.stack([weights for _, weights in flat])
        row, maxima = np.nonzero(left)
        self._check_size(maxima)
        weights = sp.csr_array((left[row, maxima], (np.arange(len(row)), maxima)), shape=(len(row), self.size))
        selection, term = self.expand(sp.csr_array((len(row), len(self.owner))), weights)
        return sp.csr_array(sp.vstack([one for one, _ in flat], format="csr")), row, selection, term

    def _check_size(self, maxima: np.ndarray) -> None:
        """Refuses maxima with too many pieces, before any is built."""
        count = self._count()
        for f in maxima:
            if count[f] > PIECE_LIMIT:
                raise ModelError(
                    f"The maximum {self.describe(int(f))} multiplies out into {_number(count[f])} pieces, "
                    f"more than {PIECE_LIMIT}: take sums out of the maximum (or the CVaR) or put fewer maxima into it."
                )

    def expand(self, chosen: sp.csr_array, left: sp.csr_array) -> tuple[sp.csr_array, np.ndarray]:
        """Multiplies out ``chosen @ rows + left @ v`` until no maximum is left.

        Args:
            chosen: ``(inputs, rows)`` combinations of rows.
            left: ``(inputs, maxima)`` weights of the maxima still inside.

        Returns:
            The pieces as combinations of rows, and for each the input that it belongs to.
        """
        order, start = self.members()
        origin = np.arange(chosen.shape[0])
        left = left.copy()
        left.eliminate_zeros()
        while left.nnz:
            # The last maximum of a piece is never inside another one of the same piece, so each is met once.
            left.sort_indices()
            filled = np.flatnonzero(np.diff(left.indptr))
            last = left.indptr[filled + 1] - 1
            f, scale = left.indices[last], left.data[last]
            copies = np.ones(left.shape[0], dtype=int)
            copies[filled] = start[f + 1] - start[f]
            self._check_sign(f[(scale < 0) & (copies[filled] > 1)])
            left.data[last] = 0.0

            parent = np.repeat(np.arange(left.shape[0]), copies)
            pieces = len(parent)
            within = np.arange(pieces) - np.repeat(np.cumsum(copies) - copies, copies)
            first, factor = np.zeros(left.shape[0], dtype=int), np.zeros(left.shape[0])
            first[filled], factor[filled] = start[f], scale
            at = np.flatnonzero(factor[parent])
            row, value = order[first[parent[at]] + within[at]], factor[parent[at]]
            step = sp.csr_array((value, (at, row)), shape=(pieces, chosen.shape[1]))
            chosen = sp.csr_array(chosen[parent] + step)
            left = sp.csr_array(left[parent] + step @ self.weight)
            left.eliminate_zeros()
            origin = origin[parent]
        return chosen, origin

    def _check_sign(self, wrong: np.ndarray) -> None:
        """A maximum may only be added, never subtracted."""
        if wrong.size:
            raise ModelError(
                f"The cost is not convex in the uncertain vector because {self.describe(int(wrong[0]))} "
                "enters with a negative weight (or a minimum with a positive one): "
                "only nonnegative multiples of maxima can be used."
            )

    def _count(self) -> np.ndarray:
        """Number of pieces of each maximum when multiplied out, as floats that may overflow to infinity."""
        order, start = self.members()
        count = np.diff(start).astype(float)
        if self.weight[order[start[0] :]].nnz == 0:
            return count
        indptr, indices = self.weight.indptr, self.weight.indices
        with np.errstate(over="ignore"):
            for f in range(self.size):
                rows = order[start[f] : start[f + 1]]
                count[f] = sum(np.prod(count[indices[indptr[r] : indptr[r + 1]]]) for r in rows)
        return count


def _number(count: float) -> str:
    """A whole number, abbreviated where nobody would read it."""
    return f"{count:.0f}" if count < 1e7 else f"{count:.3g}"
