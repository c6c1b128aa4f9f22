"""What a moment function g(y, α) must know, each thing once.

Its dual term (for the worst case), its value in torch (for pre-training and certificates), and its value as a convex
CVXPY expression, in ``y`` for fixed parameters or in the parameters for fixed ``y`` (for emptiness and projection).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.terms import Multiplier, Parts, Term
from drolayers.checks import numbers, whole
from drolayers.errors import ModelError
from drolayers.support import Layout

FLOOR = 1e-100
"""Bounds of powers are raised to this before their root is taken, whose derivative diverges at zero. Small enough for
any unit: the bound of a fourth power is the fourth power of an outcome."""

Leaves = Mapping[str, Any]
"""Parameters of a moment by name: CVXPY leaves, arrays or tensors, as the caller needs them."""


@dataclass(frozen=True)
class Learn:
    """A matrix to be learnt, by its shape: ``Norm(2, A=dro.Learn(3, 5))``."""

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", tuple(whole("Every size in dro.Learn", s) for s in shape))


@dataclass(frozen=True, eq=False)
class Typical:
    """Where a model should begin with a parameter, and how far it should expect to move.

    Args:
        centre: a sensible value.
        scale: a sensible step, of the same shape.
        positive: whether the parameter must stay positive.
        meaningful: whether fitting the moment to data determines it; the smallest expectation of ``‖Ay - μ‖`` over a
            learnable ``A``, say, is zero at ``A = 0`` and tells nothing.
    """

    centre: Tensor
    scale: Tensor
    positive: bool = False
    meaningful: bool = True


class Ingredient(NamedTuple):
    """A function of one degree in a sum or maximum: its weight, whether it is linear (``signed``), and its extent."""

    weight: float
    degree: float
    signed: bool
    extent: Tensor


class Moment(ABC):
    """A convex function of ``y`` whose expectation is bounded by ``sigma``."""

    sigma: NDArray[np.float64] | None
    """The bound, when it is given; learnt otherwise."""

    @property
    @abstractmethod
    def degree(self) -> float:
        """P when g(y) grows like the p-th power; the bound is scaled by its p-th root."""

    @property
    def bounds(self) -> int:
        """Number of bounds: one, except for grouped squares."""
        return 1

    @property
    def signed(self) -> bool:
        """Whether the function can be negative, so that a negative bound makes sense."""
        return False

    @property
    def count(self) -> int:
        """Number of its ingredients."""
        return 1

    @property
    def width(self) -> int:
        """Number of ``scales``: prices, and what stands behind them."""
        return self.bounds

    @property
    def mixed(self) -> bool:
        """Whether parts of different degrees meet in it."""
        return False

    def scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """The price of a multiplier in units of ρ, one a bound ``(batch, bounds)``.

        For a function of one degree p that is ρ = σ^(1/p), the size of deviations, itself. Where degrees are mixed ρ
        and the members' coefficients stand behind it.
        """
        return sigma if self.degree == 1 else sigma.clamp(min=FLOOR) ** (1.0 / self.degree)

    def ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """What it is made of, in the order of its parameters: itself, unless it is a sum, a maximum or a multiple."""
        return [Ingredient(1.0, self.degree, self.signed, self.extent(leaves))]

    def extent(self, leaves: Leaves) -> Tensor:
        """The distance of its centre from the origin, or the steepness of what is linear, ``(batch, 1)``."""
        return torch.zeros(1, 1, dtype=torch.float64)

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The parameters that are measured in the same unit as the p-th root of the bound."""
        return []

    @property
    def affine(self) -> bool:
        """Whether the function is affine, so that its bound may be tight everywhere."""
        return False

    @abstractmethod
    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """The learnable parameters, apart from the bound, by name."""

    @abstractmethod
    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """The parameters whose values were given."""

    @abstractmethod
    def links(self, dim: int) -> list[Labels]:
        """Groups of coordinates over which the function is not additive."""

    @abstractmethod
    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """The dual terms over some rows.

        Args:
            layout: the rows.
            leaves: CVXPY expressions of all parameters.
            multiplier: how to find the multiplier of a part; None where the best one is to be eliminated.
            rho: the size of deviations, one a bound; where degrees are mixed, behind it a coefficient an ingredient.
            split: whether an additive function gets a part of its own for every coordinate.
        """

    @abstractmethod
    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """G at points ``(..., dim)`` with parameters ``(..., *shape)``: ``(..., bounds)``."""

    @abstractmethod
    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Lim g(s y)/s as s grows: what mass that escapes along ``y`` uses up of the bound."""

    @abstractmethod
    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """G at the rows of ``y`` (points, dim): an upper bound (points, bounds) that is tight when minimised.

        With ``root`` its p-th root for the degree p, which scales with the data.
        """

    @abstractmethod
    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Sensible values of the learnable parameters, apart from the bound, for outcomes ``(point, dim)``."""

    def eliminable(self) -> bool:
        """Whether the best multiplier is known in closed form when a single part sees it."""
        return False

    def components(self, dim: int) -> int:
        """Number of additive components that a decision rule can respond to: one a coordinate, or the whole."""
        return 1

    def __add__(self, other: Moment) -> Moment:
        from drolayers.ambiguity.composite import Sum

        return Sum((self, other))

    def __rmul__(self, factor: float) -> Moment:
        from drolayers.ambiguity.composite import Scaled

        return Scaled(self, float(factor))


def rectangle(layout: Layout, touched: NDArray[np.bool_] | None) -> tuple[Labels, Labels, NDArray[np.int64]]:
    """Rows, coordinates and entries of the block that a matrix touches; its rows all have the same coordinates."""
    seen = np.ones(layout.row.size, dtype=bool) if touched is None else touched[layout.coordinate]
    rows = np.unique(layout.row[seen])
    inside = np.flatnonzero(np.isin(layout.row, rows))
    order = inside[np.lexsort((layout.coordinate[inside], layout.row[inside]))]
    entry = order.reshape(rows.size, -1)
    return rows, layout.coordinate[entry[0]], entry


def part_scale(moment: Moment, rho: cp.Expression | None, parts: Parts) -> cp.Expression | None:
    """The scale of every part, where there is one."""
    if rho is None:
        return None
    return rho[parts.bound] if moment.bounds > 1 or rho.size > 1 else cp.promote(rho[0], (parts.count,))


def deviation(y: Tensor) -> Tensor:
    """Standard deviations of columns; those of constants are replaced by their size, by one where all vanish."""
    spread, size = y.std(0, unbiased=False), y.abs().amax(0)
    varies = spread > 1e-12 * size
    size = torch.where(size > 0, size, size.max())
    return torch.where(varies, spread, torch.where(size > 0, size, torch.ones_like(size)))


def centre(mu: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """A given centre, one number or one for every component."""
    if mu.shape not in ((), (size,)):
        raise ModelError(f"A moment's mu must be a number or have shape ({size},), not {mu.shape}.")
    return np.broadcast_to(mu, size)


def as_given(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """A value that was given for a parameter, as an array of finite numbers."""
    array = numbers(f"A moment's {name}", value)
    if not np.isfinite(array).all():
        raise ModelError(f"A moment's {name} must be finite, not {array.tolist()}.")
    return array


def as_bound(sigma: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given bound as a vector."""
    return None if sigma is None else as_given("sigma", sigma).reshape(-1)


def columns(values: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch column"]:
    """Everything but the batch flattened; a batch of nothing too."""
    return values.reshape(values.shape[0], values.shape[1:].numel())
