"""Costs as maxima of pieces that are affine in y and in the decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Pieces:
    """max_k (F_k x + f_k)ᵀy + g_kᵀx + h_k.

    Attributes:
        F: ``(piece, dim, column)``.
        f: ``(piece, dim)``.
        g: ``(piece, column)``.
        h: ``(piece,)``.
    """

    F: Array
    f: Array
    g: Array
    h: Array

    @property
    def count(self) -> int:
        """Number of pieces."""
        return len(self.h)

    @classmethod
    def of(cls, dim: int, columns: int, f: Array = 0.0, g: Array = 0.0, h: float = 0.0, F: Array = 0.0) -> Pieces:
        """A single piece."""
        return cls(np.zeros((1, dim, columns)) + F, np.zeros((1, dim)) + f, np.zeros((1, columns)) + g, np.zeros(1) + h)

    @classmethod
    def largest(cls, parts: Sequence[Pieces]) -> Pieces:
        """The maximum of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("F", "f", "g", "h")))

    @classmethod
    def total(cls, parts: Sequence[Pieces]) -> Pieces:
        """The sum of several maxima: one piece for every choice of their pieces."""
        rows = [
            tuple(
                sum(getattr(part, name)[k] for part, k in zip(parts, choice, strict=True))
                for name in ("F", "f", "g", "h")
            )
            for choice in product(*(range(part.count) for part in parts))
        ]
        return cls(*(np.stack(column) for column in zip(*rows, strict=True)))

    def times(self, factor: float) -> Pieces:
        """A nonnegative multiple."""
        return Pieces(factor * self.F, factor * self.f, factor * self.g, factor * self.h)

    def wide(self, columns: int) -> Pieces:
        """The same with further columns that it does not use."""
        added = columns - self.g.shape[1]
        return Pieces(
            np.pad(self.F, ((0, 0), (0, 0), (0, added))), self.f, np.pad(self.g, ((0, 0), (0, added))), self.h
        )

    def tail(self, level: float, column: int) -> Pieces:
        """τ + (cost - τ)⁺ / (1 - level), where τ is a column."""
        columns = max(self.g.shape[1], column + 1)
        wide, tau = self.wide(columns), np.eye(columns)[column]
        dim = self.f.shape[1]
        excess = wide.times(1 / (1 - level))
        excess = Pieces(excess.F, excess.f, excess.g + tau - tau / (1 - level), excess.h)
        return Pieces.largest([Pieces.of(dim, columns, g=tau), excess])

    def at(self, x: Array, y: Array) -> Array:
        """The cost of a decision ``(column,)`` at outcomes ``(point, dim)``."""
        return (y @ (self.F @ x + self.f).T + self.g @ x + self.h).max(1)
