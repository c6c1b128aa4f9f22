"""What it takes to move mass from an atom: the length ‖A(y - y_n)‖ of the way, where some coordinates may not move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from conelayers.internals import numbers
from drolayers.ambiguity.image import rectangle, transposed
from drolayers.ambiguity.outer import Labels, NormPower
from drolayers.ambiguity.parameters import Learn
from drolayers.ambiguity.terms import Parts
from drolayers.errors import ModelError
from drolayers.support import Layout

Transpose = Callable[[cp.Expression], cp.Expression]


class Ways(NamedTuple):
    """A(y - y_n) over some rows: the entries that move, and the part and the number of every component.

    ``number`` says which coordinate a component is, or which row of A; ``transpose`` is τ ↦ Aᵀτ at the entries, None
    where components are the entries themselves.
    """

    entry: Labels
    part: Labels
    number: Labels
    parts: Parts
    transpose: Transpose | None

    @property
    def row(self) -> Labels:
        """The row of every component."""
        return self.parts.row[self.part]


@final
@dataclass(frozen=True, eq=False)
class Transport:
    """Lengths of ways, and the coordinates that they tie together.

    Args:
        dim: number of coordinates of ``y``.
        norm: 1, 2 or inf.
        order: 1, 2 or inf.
        metric: A, given or to be learnt, with a column for every coordinate that may move; None for the identity.
        fixed: the coordinates that may not move.
    """

    dim: int
    norm: float
    order: float
    metric: NDArray[np.float64] | Learn | None
    fixed: Labels

    @classmethod
    def of(
        cls, dim: int, norm: float, order: float, metric: ArrayLike | Learn | None, fixed: Sequence[int]
    ) -> Transport:
        """What a user wrote, checked."""
        if norm not in (1, 2, np.inf) or order not in (1, 2, np.inf):
            raise ModelError(
                f"Wasserstein needs norm 1, 2 or inf and order 1, 2 or inf, not norm={norm}, order={order}."
            )
        still = np.asarray(fixed)
        whole = still.size == 0 or np.issubdtype(still.dtype, np.integer)
        if still.ndim != 1 or not whole or np.any((still < 0) | (still >= dim)) or still.size != np.unique(still).size:
            raise ModelError(f"fixed must name some of the {dim} coordinates of y, each once, not {fixed!r}.")
        if still.size == dim:
            raise ModelError("A ball in which no coordinate may move is the nominal distribution: use dro.Empirical.")
        if metric is not None and not isinstance(metric, Learn):
            metric = numbers("Wasserstein's metric", metric)
            if not np.isfinite(metric).all():
                raise ModelError("Wasserstein's metric must hold finite numbers.")
        if metric is not None and (len(metric.shape) != 2 or metric.shape[1] != dim - still.size):
            raise ModelError(
                f"Wasserstein's metric must have a column for each of the {dim - still.size} coordinates that may "
                f"move, not shape {tuple(metric.shape)}."
            )
        return cls(dim, float(norm), float(order), metric, np.sort(still).astype(np.int64))

    @property
    def outer(self) -> NormPower:
        """The penalty of a way; under order ∞ its length, which is bounded."""
        return NormPower(self.norm, self.order if np.isfinite(self.order) else 1.0)

    @cached_property
    def moving(self) -> Labels:
        """The coordinates that may move."""
        return np.setdiff1d(np.arange(self.dim), self.fixed)

    @property
    def components(self) -> int:
        """The length of A(y - y_n); of all of y where there is no A."""
        return self.dim if self.metric is None else self.metric.shape[0]

    @property
    def diagonal(self) -> bool:
        """Whether every component is a multiple of one coordinate, so that nothing but its distance counts."""
        given = self.metric
        return given is None or (not isinstance(given, Learn) and bool((np.count_nonzero(given, 1) <= 1).all()))

    def links(self) -> list[Labels]:
        """Coordinates in one component; all that move, unless a way's penalty, or the ball, is that of its parts.

        Penalties add up where norm and order are 1, or 2; a ball of order ∞ is a product where the norm is ∞.
        """
        given = self.metric
        if isinstance(given, Learn):
            return [self.moving]
        if self.norm != self.order:
            return [self.moving if given is None else self.moving[np.abs(given).sum(0) > 0]]
        return [] if given is None else [self.moving[row != 0] for row in given]

    def ways(self, layout: Layout, matrix: cp.Expression | None) -> Ways:
        """Over some rows; a row without a coordinate that moves has none.

        Args:
            layout: of the rows.
            matrix: A where it is learnt.
        """
        if matrix is not None:
            rows, coordinates, entry = rectangle(layout, self.moving)
            moves = np.isin(coordinates, self.moving)
            part, number = np.divmod(np.arange(rows.size * matrix.shape[0]), matrix.shape[0])
            return Ways(entry[:, moves].ravel(), part, number, _of_rows(rows), transposed(matrix, rows.size))
        position = np.full(self.dim, -1)
        position[self.moving] = np.arange(self.moving.size)
        entry = np.flatnonzero(position[layout.coordinate] >= 0)
        if self.metric is None:
            rows, part = np.unique(layout.row[entry], return_inverse=True)
            return Ways(entry, part.ravel(), layout.coordinate[entry], _of_rows(rows), None)
        assert not isinstance(self.metric, Learn)
        # Every component of A that touches a row's coordinates, and Aᵀ from them to the entries.
        touched = sp.coo_array(sp.csr_array(self.metric.T)[position[layout.coordinate[entry]]])
        size = self.metric.shape[0]
        keys, where = np.unique(layout.row[entry[touched.row]] * size + touched.col, return_inverse=True)
        spread = sp.csr_array((touched.data, (touched.row, where.ravel())), shape=(entry.size, keys.size))
        component_row, number = np.divmod(keys, size)
        rows, part = np.unique(component_row, return_inverse=True)
        return Ways(entry, part.ravel(), number, _of_rows(rows), lambda tau: spread @ tau)

    def matrix(self, learnt: Float[Tensor, "batch row column"] | None) -> Float[Tensor, "batch row column"] | None:
        """A as it is used: a learnt one in units in which the mean square of its columns' lengths is one."""
        if self.metric is None:
            return None
        if not isinstance(self.metric, Learn):
            return torch.as_tensor(self.metric)[None]
        assert learnt is not None
        size = learnt.double().square().sum((1, 2), keepdim=True) / self.moving.size
        # A matrix of zeros stays one: no way is long, and nothing is divided by nothing.
        return learnt.double() / torch.where(size > 0, size, torch.ones_like(size)).sqrt()

    def image(self, y: Tensor, matrix: Tensor | None) -> Float[Tensor, "batch point component"]:
        """Ay at points ``(batch, point, dim)``; all coordinates where there is no A."""
        return y if matrix is None else y[..., self.moving] @ matrix.to(y).mT

    def length(self, ways: Float[Tensor, "batch way dim"], matrix: Tensor | None) -> Float[Tensor, "batch way"]:
        """How long ways are; coordinates that may not move do not count."""
        moved = ways[..., self.moving] if matrix is None else self.image(ways, matrix)
        return torch.linalg.vector_norm(moved, self.norm, dim=-1)


def _of_rows(rows: Labels) -> Parts:
    """One part a row."""
    return Parts(rows, np.zeros_like(rows), np.zeros_like(rows))
