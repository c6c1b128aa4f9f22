"""The uncertain quantities, written into a cost as if they were an ordinary CVXPY parameter."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from conelayers.internals import Numbered, real, whole
from drolayers.errors import ModelError
from drolayers.support import Reals, Support


class Uncertain(Numbered, cp.Parameter):
    """The uncertain vector or matrix ``y`` of a decision problem.

    It is a CVXPY parameter, so that costs are ordinary CVXPY expressions in the decision and in ``y``. The coordinates
    of a matrix are numbered row by row, as NumPy and PyTorch flatten; outcomes may be given in its shape or flat.

    Args:
        shape: number of coordinates, or rows and columns.
        support: where ``y`` can lie; all of space unless said otherwise.
        name: name shown in messages.
    """

    def __init__(self, shape: int | tuple[int, ...], support: Support | None = None, name: str | None = None) -> None:
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if not 1 <= len(sizes) <= 2:
            raise ModelError(f"Uncertain needs a number of coordinates or a pair of rows and columns, not {shape!r}.")
        sizes = tuple(whole("The number of coordinates of Uncertain", size) for size in sizes)
        dim = int(np.prod(sizes))
        if not isinstance(support, Support | None):
            raise ModelError(
                f"Uncertain(support=...) needs a drolayers support such as Nonnegative(), not {support!r}."
            )
        self.support = Reals() if support is None else support.over(sizes)
        self.support.check(dim)
        if others := [p.name() for p in self.support.parameters if isinstance(p, Uncertain)]:
            raise ModelError(f"The support of {name or 'y'} holds {others[0]}, which is not known: use a cp.Parameter.")
        super().__init__(sizes, name=name or "y", nonneg=self.support.nonnegative(dim))
        self.dim = dim
        """Number of coordinates."""
        self.flat = Uncertain(dim, self.support, name) if len(sizes) > 1 else self
        """The vector of all coordinates; ``y`` itself where it is one."""
        self.entries: cp.Expression = cp.reshape(self.flat, self.shape, order="C") if len(sizes) > 1 else self
        """``y`` written in terms of ``flat``."""
        self._whole: Uncertain | None = None

    def __repr__(self) -> str:
        shape = self.shape[0] if self.ndim == 1 else self.shape
        return f"Uncertain({shape}, support={self.support!r}, name={self.name()!r})"

    def within(self, support: Support) -> Uncertain:
        """``y`` in an event that leaves it no more than a part of its support: what the event's set is made of.

        Args:
            support: what the event allows; its intersection with the support of ``y`` is meant.
        """
        if not isinstance(support, Support):
            raise ModelError(f"within needs a drolayers support such as Box(hi=3), not {support!r}.")
        part = Uncertain(self.shape, self.support & support.over(self.shape), self.name())
        part._whole = self.whole
        return part

    @property
    def whole(self) -> Uncertain:
        """``y`` itself, where this is ``y`` within an event."""
        return self if self._whole is None else self._whole

    def rows(self, outcomes: Any, lead: int = 1) -> Any:
        """Outcomes ``(..., *shape)`` with ``lead`` dimensions in front as ``(..., dim)``; others stay as they are."""
        if self.flat is self:
            return outcomes
        try:
            shape = tuple(np.shape(outcomes))
        except ValueError:
            # Rows of unequal lengths are told by whoever reads them.
            return outcomes
        if shape[lead:] != self.shape:
            return outcomes
        real(self.name(), outcomes)
        given = outcomes if hasattr(outcomes, "reshape") else np.asarray(outcomes)
        return given.reshape(*shape[:lead], self.dim)
