"""Affine images u(y) of ``y``, of which moments are outer functions: coordinates, directions, or a matrix.

``y`` has a fixed number of coordinates once an image has gone through ``over``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.outer import Labels
from drolayers.ambiguity.parameters import FLOOR, Learn, Leaves, Parameters, Typical, deviation
from drolayers.ambiguity.terms import Parts
from drolayers.ambiguity.theta import columns
from drolayers.errors import ModelError
from drolayers.products import times
from drolayers.support import Layout

RIDGE = 1e-4
"""Least variance of a direction, beside that of coordinates: fewer points than coordinates leave some without any."""


class Laid(NamedTuple):
    """An image over some rows: the entries that it touches, the part and the shift of every component.

    ``transpose`` leads from one number a component to one an entry; None where components are entries themselves.
    """

    entry: Labels
    part: Labels
    parts: Parts
    shift: cp.Expression | NDArray[np.float64] | None
    transpose: Callable[[cp.Expression], cp.Expression] | None


class Image(ABC):
    """u = My - h, where M is given, learnt or made of coordinates."""

    shift: str
    """The name of h among the parameters."""

    label: Labels
    """The bound of every component."""

    bounds: int
    """Number of bounds."""

    @abstractmethod
    def over(self, dim: int) -> Image:
        """The same for a ``y`` of so many coordinates, checked."""

    @abstractmethod
    def parameters(self, dim: int) -> Parameters:
        """M and h, given or to be learnt."""

    @abstractmethod
    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Sensible values of what is to be learnt."""

    @abstractmethod
    def extent(self, leaves: Leaves) -> Tensor:
        """The distance of the centre from the origin, ``(batch, 1)``."""

    @abstractmethod
    def links(self, dim: int) -> list[Labels]:
        """The coordinates of every bound."""

    @abstractmethod
    def laid(self, layout: Layout, leaves: Leaves, split: bool) -> Laid:
        """The image over some rows: a part a row and bound that meet; a part a coordinate too if they are split."""

    @abstractmethod
    def at(self, y: Tensor, leaves: Leaves, shifted: bool = True) -> Tensor:
        """U at points ``(..., dim)``: ``(..., component)``."""

    @abstractmethod
    def expression(self, y: cp.Expression, leaves: Leaves) -> cp.Expression:
        """U at the rows of ``y``: (points, component)."""


@final
@dataclass(frozen=True, eq=False)
class Coordinates(Image):
    """y_I - μ, with one bound for all of I, or one for every ``size`` coordinates in turn."""

    mu: NDArray[np.float64] | None = None
    index: tuple[int, ...] | None = None
    size: int | None = None
    shift = "mu"
    coordinates: Labels = field(init=False, repr=False)
    """I, once the image has gone through ``over``."""

    def __post_init__(self) -> None:
        chosen = np.array(self.index or (), dtype=np.int64)
        label = np.arange(chosen.size) // (self.size or max(chosen.size, 1))
        bounds = 1 if self.size is None else -(-chosen.size // self.size)
        vars(self).update(coordinates=chosen, label=label, bounds=bounds)

    def over(self, dim: int) -> Image:
        """All coordinates, unless some were chosen."""
        if self.index is not None and (not self.index or max(self.index) >= dim):
            raise ModelError(f"A moment's index {list(self.index)} must name some of the {dim} coordinates of y.")
        return self if self.index is not None else replace(self, index=tuple(range(dim)))

    def parameters(self, dim: int) -> Parameters:
        """μ."""
        return {"mu": _centre(self.mu, dim if self.index is None else len(self.index))}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The mean and the standard deviation."""
        chosen = y[:, self.coordinates]
        return {} if self.mu is not None else {"mu": Typical(chosen.mean(0), deviation(chosen))}

    def extent(self, leaves: Leaves) -> Tensor:
        """The largest coordinate of the centre."""
        return columns(leaves["mu"]).abs().amax(1, keepdim=True)

    def links(self, dim: int) -> list[Labels]:
        """Those of every group."""
        return [self.coordinates[self.label == b] for b in range(self.bounds)]

    def laid(self, layout: Layout, leaves: Leaves, split: bool) -> Laid:
        """Components are entries."""
        position = np.full(1 + max(layout.coordinate.max(initial=0), self.coordinates.max()), -1)
        position[self.coordinates] = np.arange(self.coordinates.size)
        entry = np.flatnonzero(position[layout.coordinate] >= 0)
        where = position[layout.coordinate[entry]]
        bound = self.label[where]
        finest = layout.coordinate[entry] if split else bound
        keys, part = np.unique(np.stack([layout.row[entry], bound, finest]), axis=1, return_inverse=True)
        mu = leaves["mu"]
        shift = mu if np.array_equal(where, np.arange(self.coordinates.size)) else mu[where]
        return Laid(entry, part.ravel(), Parts(*keys), shift, None)

    def at(self, y: Tensor, leaves: Leaves, shifted: bool = True) -> Tensor:
        """The coordinates."""
        chosen = y[..., self.coordinates]
        return chosen - leaves["mu"] if shifted else chosen

    def expression(self, y: cp.Expression, leaves: Leaves) -> cp.Expression:
        """The coordinates."""
        return y[:, self.coordinates] - cp.vstack([leaves["mu"]] * y.shape[0])


@final
@dataclass(frozen=True, eq=False)
class Directions(Image):
    """μᵀy - h along one direction, or along ``count`` of them (rows of μ), each with a bound of its own."""

    mu: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    count: int | None = None
    shift = "h"

    @staticmethod
    def stacked(images: Sequence[Directions]) -> Directions:
        """Several, each of one direction, as one; all of the same ``kind``."""
        mu, h = ([getattr(image, name) for image in images] for name in ("mu", "h"))
        return Directions(None if mu[0] is None else np.stack(mu), None if h[0] is None else np.stack(h), len(images))

    @property
    def kind(self) -> tuple[bool, ...]:
        """Which parameters are given, and whether there is nothing to be taken off."""
        return self.mu is None, self.h is None, self._centred

    @property
    def _centred(self) -> bool:
        """Whether h is zero."""
        return self.h is not None and not self.h.any()

    def __post_init__(self) -> None:
        vars(self).update(label=np.arange(self.count or 1), bounds=self.count or 1)

    def over(self, dim: int) -> Image:
        """As they are."""
        if self.mu is not None and self.mu.shape[-1:] != (dim,):
            raise ModelError(f"A moment's mu must have shape ({dim},), not {self.mu.shape}.")
        return self

    def parameters(self, dim: int) -> Parameters:
        """μ and h."""
        many = () if self.count is None else (self.count,)
        return {
            "mu": Learn(*many, dim) if self.mu is None else self.mu,
            "h": Learn(*many) if self.h is None else self.h,
        }

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The mean of the coordinates as direction, the mean and deviation along it as threshold."""
        dim = y.shape[1]
        direction = y.new_full((dim,), 1.0 / dim) if self.mu is None else torch.as_tensor(self.mu).to(y)
        along = (y @ direction)[:, None]
        found = {"mu": Typical(direction, direction.abs(), meaningful=False)} if self.mu is None else {}
        if self.h is None:
            found["h"] = Typical(along.mean(0)[0], deviation(along)[0], meaningful=self.mu is not None)
        return found

    def extent(self, leaves: Leaves) -> Tensor:
        """How far the threshold lies out."""
        return columns(leaves["h"]).abs() / columns(leaves["mu"]).norm(dim=1, keepdim=True).clamp(min=FLOOR)

    def links(self, dim: int) -> list[Labels]:
        """All that a direction touches."""
        if self.mu is None:
            return [np.arange(dim) for _ in self.label]
        return [np.flatnonzero(direction) for direction in np.atleast_2d(self.mu)]

    def laid(self, layout: Layout, leaves: Leaves, split: bool) -> Laid:
        """One component a part, bound by bound."""
        touched = np.ones((self.bounds, layout.row.size), dtype=bool)
        if self.mu is not None:
            touched = np.atleast_2d(self.mu)[:, layout.coordinate] != 0
        bound, entry = np.nonzero(touched)
        keys, part = np.unique(bound * layout.rows + layout.row[entry], return_inverse=True)
        bounds, rows = np.divmod(keys, layout.rows)
        mu, h = leaves["mu"], leaves["h"]
        flat = mu if mu.ndim == 1 else cp.vec(mu, order="C")
        direction = flat[bound * mu.shape[-1] + layout.coordinate[entry]]
        # To a decision rule every bound is a component.
        return Laid(
            entry,
            np.arange(rows.size),
            Parts(rows, bounds, bounds),
            None if self._centred else h if h.size == 1 else h[bounds],
            lambda tau: times(direction, tau[part.ravel()]),
        )

    def at(self, y: Tensor, leaves: Leaves, shifted: bool = True) -> Tensor:
        """The projections."""
        mu, h = leaves["mu"], leaves["h"]
        if self.count is None:
            mu, h = mu[..., None, :], h[..., None]
        u = (y[..., None, :] * mu).sum(-1)
        return u - h if shifted else u

    def expression(self, y: cp.Expression, leaves: Leaves) -> cp.Expression:
        """The projections."""
        points, count = y.shape[0], self.bounds
        mu, h = (cp.reshape(leaves[name], shape, order="C") for name, shape in (("mu", (count, -1)), ("h", (1, count))))
        return y @ mu.T - np.ones((points, 1)) @ h


@final
@dataclass(frozen=True, eq=False)
class Matrix(Image):
    """Ay - μ for a matrix, fixed or learnt, under one bound."""

    A: NDArray[np.float64] | Learn
    mu: NDArray[np.float64] | None = None
    shift = "mu"

    def __post_init__(self) -> None:
        vars(self).update(label=np.zeros(self.A.shape[:1], dtype=np.int64), bounds=1)

    def over(self, dim: int) -> Image:
        """One column a coordinate."""
        if len(self.A.shape) != 2 or self.A.shape[1] != dim:
            raise ModelError(f"Norm's matrix A must have {dim} columns, not shape {tuple(self.A.shape)}.")
        return self

    def parameters(self, dim: int) -> Parameters:
        """A and μ."""
        return {"A": self.A, "mu": _centre(self.mu, self.A.shape[0])}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The matrix that whitens y, the mean and deviation of the image as centre."""
        learnt = isinstance(self.A, Learn)
        matrix = whitening(y, *self.A.shape) if isinstance(self.A, Learn) else torch.as_tensor(self.A).to(y)
        image = y @ matrix.T
        unit = (1.0 / deviation(y)).expand_as(matrix) / y.shape[1]
        found = {"A": Typical(matrix, unit, meaningful=False)} if learnt else {}
        if self.mu is None:
            found["mu"] = Typical(image.mean(0), deviation(image), meaningful=not learnt)
        return found

    def extent(self, leaves: Leaves) -> Tensor:
        """The centre's size, seen through the matrix."""
        size = columns(leaves["A"]).norm(dim=1, keepdim=True).clamp(min=FLOOR)
        return columns(leaves["mu"]).norm(dim=1, keepdim=True) / size

    def _touched(self, dim: int) -> Labels:
        """The coordinates that the matrix touches."""
        return np.arange(dim) if isinstance(self.A, Learn) else np.flatnonzero(np.abs(self.A).sum(0))

    def links(self, dim: int) -> list[Labels]:
        """All that the matrix touches."""
        return [self._touched(dim)]

    def laid(self, layout: Layout, leaves: Leaves, split: bool) -> Laid:
        """A vector of components a row of the block that the matrix touches."""
        rows, coordinates, entry = rectangle(layout, self._touched(self.A.shape[1]))
        size, count = self.A.shape[0], rows.size
        parts = Parts(rows, np.zeros_like(rows), np.zeros_like(rows))
        shift = leaves["mu"] if count == 1 else leaves["mu"][np.tile(np.arange(size), count)]
        transpose = transposed(leaves["A"][:, coordinates], count)
        return Laid(entry.ravel(), np.repeat(np.arange(count), size), parts, shift, transpose)

    def at(self, y: Tensor, leaves: Leaves, shifted: bool = True) -> Tensor:
        """The image."""
        u = (leaves["A"] @ y[..., None])[..., 0]
        return u - leaves["mu"] if shifted else u

    def expression(self, y: cp.Expression, leaves: Leaves) -> cp.Expression:
        """The image."""
        return (leaves["A"] @ y.T).T - cp.vstack([leaves["mu"]] * y.shape[0])


def whitening(y: Tensor, rows: int, dim: int) -> Tensor:
    """The first rows of C^(-1/2), C the covariance of points; of directions without variance their sizes count."""
    unit = deviation(y)
    covariance = torch.cov(((y - y.mean(0)) / unit).T.reshape(dim, -1), correction=0).reshape(dim, dim)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors @ torch.diag(values.clamp(min=RIDGE) ** -0.5) @ vectors.T / unit
    return torch.cat([root, root.new_zeros(max(rows - dim, 0), dim)])[:rows]


def transposed(matrix: cp.Expression, count: int) -> Callable[[cp.Expression], cp.Expression]:
    """From vectors τ, one a row of so many, to all Aᵀτ."""
    shape = (count, matrix.shape[0])
    return lambda tau: cp.vec(cp.reshape(tau, shape, order="C") @ matrix, order="C")


def rectangle(layout: Layout, touched: Labels) -> tuple[Labels, Labels, NDArray[np.int64]]:
    """Rows, coordinates and entries of the block that some coordinates are in; its rows all have the same ones."""
    rows = np.unique(layout.row[np.isin(layout.coordinate, touched)])
    inside = np.flatnonzero(np.isin(layout.row, rows))
    order = inside[np.lexsort((layout.coordinate[inside], layout.row[inside]))]
    entry = order.reshape(rows.size, -1)
    return rows, layout.coordinate[entry[0]], entry


def _centre(mu: NDArray[np.float64] | None, size: int) -> NDArray[np.float64] | Learn:
    """A given centre, one number or one for every component; or to be learnt."""
    if mu is None:
        return Learn(size)
    if mu.shape not in ((), (size,)):
        raise ModelError(f"A moment's mu must be a number or have shape ({size},), not {mu.shape}.")
    return np.broadcast_to(mu, size)
