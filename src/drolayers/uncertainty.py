"""The uncertain vector, written into a cost as if it were an ordinary CVXPY parameter."""

from __future__ import annotations

import cvxpy as cp

from drolayers.checks import whole
from drolayers.errors import ModelError
from drolayers.support import Reals, Support


class Uncertain(cp.Parameter):
    """The uncertain vector ``y`` of a decision problem.

    It is a CVXPY parameter, so that costs are ordinary CVXPY expressions in the decision and in ``y``.

    Args:
        dim: number of coordinates.
        support: where ``y`` can lie; all of space unless said otherwise.
        name: name shown in messages.
    """

    def __init__(self, dim: int, support: Support | None = None, name: str | None = None) -> None:
        dim = whole("The number of coordinates of Uncertain", dim)
        self.support = Reals() if support is None else support
        if not isinstance(self.support, Support):
            raise ModelError(
                f"Uncertain(support=...) needs a drolayers support such as Nonnegative(), not {support!r}."
            )
        self.support.check(dim)
        super().__init__(dim, name=name or "y", nonneg=self.support.nonnegative(dim))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.shape[0])
