"""Moments that are an outer function of an affine image of ``y``: coordinates, one direction, or a matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.moment import (
    FLOOR,
    Learn,
    Leaves,
    Moment,
    Typical,
    centre,
    columns,
    deviation,
    part_scale,
    rectangle,
)
from drolayers.ambiguity.outer import Constraints, Identity, Labels, Outer
from drolayers.ambiguity.terms import MatrixTerm, Multiplier, Parts, RidgeTerm, SeparateTerm, Term
from drolayers.errors import ModelError
from drolayers.support import Layout


@final
@dataclass(frozen=True, eq=False)
class Separate(Moment):
    """φ(y_I - μ), with one bound for every label (``SquaredNorm``, ``Norm`` without a matrix, grouped squares)."""

    outer: Outer
    index: tuple[int, ...] | None = None
    label: tuple[int, ...] | None = None
    mu: NDArray[np.float64] | None = None
    sigma: NDArray[np.float64] | None = None

    @property
    def degree(self) -> float:
        """That of φ."""
        return self.outer.degree

    @property
    def bounds(self) -> int:
        """One a label."""
        return 1 if self.label is None else max(self.label) + 1

    def eliminable(self) -> bool:
        """Always."""
        return True

    def components(self, dim: int) -> int:
        """One a coordinate where φ is additive."""
        return dim if self.outer.additive else 1

    def coordinates(self, dim: int) -> Labels:
        """The coordinates it sees."""
        if self.index is None:
            return np.arange(dim)
        if not self.index or any(not 0 <= i < dim for i in self.index):
            raise ModelError(f"A moment's index {list(self.index)} must name some of the {dim} coordinates of y.")
        return np.array(self.index, dtype=np.int64)

    def _labels(self, dim: int) -> Labels:
        """The bound of every coordinate that it sees."""
        count = self.coordinates(dim).size
        return np.zeros(count, dtype=np.int64) if self.label is None else np.array(self.label, dtype=np.int64)

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """μ, unless given."""
        return {} if self.mu is not None else {"mu": (self.coordinates(dim).size,)}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """μ, when given."""
        return {} if self.mu is None else {"mu": centre(self.mu, self.coordinates(dim).size)}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The mean and the standard deviation."""
        chosen = y[:, self.coordinates(y.shape[1])]
        return {} if self.mu is not None else {"mu": Typical(chosen.mean(0), deviation(chosen))}

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The centre."""
        return [leaves["mu"]]

    def extent(self, leaves: Leaves) -> Tensor:
        """The largest coordinate of the centre."""
        return columns(leaves["mu"]).abs().amax(1, keepdim=True)

    def links(self, dim: int) -> list[Labels]:
        """None where φ is additive; else the coordinates of every label."""
        if self.outer.additive:
            return []
        return [self.coordinates(dim)[self._labels(dim) == b] for b in range(self.bounds)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part for every row and bound that meet."""
        dim = max(int(layout.coordinate.max(initial=0)), max(self.index or (0,))) + 1
        position = np.full(dim, -1)
        coordinates = self.coordinates(dim)
        position[coordinates] = np.arange(coordinates.size)
        entry = np.flatnonzero(position[layout.coordinate] >= 0)
        where = position[layout.coordinate[entry]]
        bound = self._labels(dim)[where] if self.label is not None else np.zeros_like(where)
        finest = layout.coordinate[entry] if split and self.outer.additive else np.zeros_like(where)
        keys, part = np.unique(np.stack([layout.row[entry], bound, finest]), axis=1, return_inverse=True)
        parts = Parts(*keys)
        mu = leaves["mu"]
        shift = mu if np.array_equal(where, np.arange(coordinates.size)) else mu[where]
        term = SeparateTerm(
            self.outer,
            entry,
            part.ravel(),
            parts,
            shift,
            None if multiplier is None else multiplier(parts.row, parts.bound, parts.coordinate),
            part_scale(self, rho, parts),
        )
        return [term], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """φ by label."""
        dim = y.shape[-1]
        return self.outer.value(y[..., self.coordinates(dim)] - leaves["mu"], self._labels(dim), self.bounds)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """That of φ."""
        dim = y.shape[-1]
        return self.outer.recession(y[..., self.coordinates(dim)], self._labels(dim), self.bounds)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """φ by label."""
        dim, points = y.shape[1], y.shape[0]
        mu = cp.vstack([leaves["mu"]] * points)
        u = y[:, self.coordinates(dim)] - mu
        phi = self.outer.root if root else self.outer.expression
        return phi(u, self._labels(dim), self.bounds), []


@final
@dataclass(frozen=True, eq=False)
class Ridge(Moment):
    """φ(μᵀy - h) for one direction (``Linear``, ``Absolute``, ``AbsolutePower``, ``PositiveSquare``)."""

    outer: Outer
    mu: NDArray[np.float64] | None = None
    h: float | None = None
    sigma: NDArray[np.float64] | None = None

    @property
    def degree(self) -> float:
        """That of φ."""
        return self.outer.degree

    @property
    def signed(self) -> bool:
        """Only where φ is linear."""
        return isinstance(self.outer, Identity)

    @property
    def affine(self) -> bool:
        """Where φ is linear."""
        return isinstance(self.outer, Identity)

    def eliminable(self) -> bool:
        """Except for the linear φ, whose share of the slope is the multiplier itself."""
        return not self.signed

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """μ and h, unless given."""
        found: dict[str, tuple[int, ...]] = {} if self.mu is not None else {"mu": (dim,)}
        return found if self.h is not None else {**found, "h": ()}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """μ and h, when given."""
        found: dict[str, NDArray[np.float64]] = {}
        if self.mu is not None:
            if self.mu.shape != (dim,):
                raise ModelError(f"A moment's mu must have shape ({dim},), not {self.mu.shape}.")
            found["mu"] = self.mu
        return found if self.h is None else {**found, "h": np.asarray(self.h)}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The mean of the coordinates as direction, the mean and deviation along it as threshold."""
        dim = y.shape[1]
        direction = y.new_full((dim,), 1.0 / dim) if self.mu is None else torch.as_tensor(self.mu).to(y)
        along = (y @ direction)[:, None]
        found = {"mu": Typical(direction, direction.abs(), meaningful=False)} if self.mu is None else {}
        if self.h is None:
            found["h"] = Typical(along.mean(0)[0], deviation(along)[0], meaningful=self.mu is not None)
        return found

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The threshold."""
        return [leaves["h"]]

    def extent(self, leaves: Leaves) -> Tensor:
        """How steep it is where φ is linear; else how far its threshold lies out."""
        steep = columns(leaves["mu"]).norm(dim=1, keepdim=True)
        return steep if self.signed else columns(leaves["h"]).abs() / steep.clamp(min=FLOOR)

    def links(self, dim: int) -> list[Labels]:
        """All coordinates of the direction, unless φ is linear."""
        if isinstance(self.outer, Identity):
            return []
        return [np.arange(dim) if self.mu is None else np.flatnonzero(self.mu)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part for every row that the direction touches."""
        given = None if self.mu is None else self.mu[None]
        h = None if self.h == 0.0 else leaves["h"]
        return [_ridge_term(self, self.outer, given, layout, leaves["mu"], h, multiplier, rho)], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """φ of the projection."""
        u = (y * leaves["mu"]).sum(-1) - leaves["h"]
        return self.outer.value(u[..., None], np.zeros(1, dtype=np.int64), 1)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """That of φ."""
        return self.outer.recession((y * leaves["mu"]).sum(-1)[..., None], np.zeros(1, dtype=np.int64), 1)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """φ of the projection."""
        u = cp.reshape(y @ leaves["mu"] - leaves["h"], (y.shape[0], 1), order="F")
        phi = self.outer.root if root else self.outer.expression
        return phi(u, np.zeros(1, dtype=np.int64), 1), []


@final
@dataclass(frozen=True, eq=False)
class Ridges(Moment):
    """Several directions under one φ, each with a bound of its own: what a set makes of many ``Ridge`` of one kind.

    Args:
        members: at least one, all of the same ``kind``.
    """

    members: tuple[Ridge, ...]

    @classmethod
    def of(cls, moments: Iterable[Moment]) -> Ridges:
        """Of moments that are of one kind."""
        return cls(tuple(moment for moment in moments if isinstance(moment, Ridge)))

    @staticmethod
    def kind(moment: Moment) -> tuple[Outer, bool, bool, bool, bool] | None:
        """What moments must have in common to be taken together: φ, and which of their parameters are given."""
        if not isinstance(moment, Ridge):
            return None
        return moment.outer, moment.mu is None, moment.h is None, moment.h == 0.0, moment.sigma is None

    @property
    def sigma(self) -> NDArray[np.float64] | None:  # type: ignore[override]
        """Those of the members."""
        given = [m.sigma for m in self.members if m.sigma is not None]
        return np.concatenate(given) if given else None

    @property
    def outer(self) -> Outer:
        """φ."""
        return self.members[0].outer

    @property
    def degree(self) -> float:
        """That of φ."""
        return self.outer.degree

    @property
    def bounds(self) -> int:
        """One a member."""
        return len(self.members)

    @property
    def signed(self) -> bool:
        """As the members."""
        return self.members[0].signed

    @property
    def affine(self) -> bool:
        """As the members."""
        return self.members[0].affine

    def eliminable(self) -> bool:
        """As the members."""
        return self.members[0].eliminable()

    def components(self, dim: int) -> int:
        """One a member."""
        return self.bounds

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the members, stacked."""
        return {name: (self.bounds, *shape) for name, shape in self.members[0].shapes(dim).items()}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those of the members, stacked."""
        found = [member.constants(dim) for member in self.members]
        return {name: np.stack([constants[name] for constants in found]) for name in found[0]}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Those of the members, stacked."""
        found = [member.typical(y) for member in self.members]

        def stacked(name: str) -> Typical:
            each = [typical[name] for typical in found]
            return replace(
                each[0], centre=torch.stack([t.centre for t in each]), scale=torch.stack([t.scale for t in each])
            )

        return {name: stacked(name) for name in found[0]}

    def links(self, dim: int) -> list[Labels]:
        """Those of the members."""
        return [link for member in self.members for link in member.links(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part for every row and member that touch."""
        directions = [member.mu for member in self.members if member.mu is not None]
        given = np.stack(directions) if directions else None
        h = None if self.members[0].h == 0.0 else leaves["h"]
        mu = cp.vec(leaves["mu"], order="C")
        return [_ridge_term(self, self.outer, given, layout, mu, h, multiplier, rho)], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """φ of all projections."""
        u = (y[..., None, :] * leaves["mu"]).sum(-1) - leaves["h"]
        return self.outer.value(u[..., None], np.zeros(1, dtype=np.int64), 1)[..., 0]

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """That of φ."""
        u = (y[..., None, :] * leaves["mu"]).sum(-1)
        return self.outer.recession(u[..., None], np.zeros(1, dtype=np.int64), 1)[..., 0]

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """φ of all projections, each of them a row."""
        points = y.shape[0]
        h = cp.reshape(leaves["h"], (1, self.bounds), order="F")
        u = y @ leaves["mu"].T - np.ones((points, 1)) @ h
        phi = self.outer.root if root else self.outer.expression
        found = phi(cp.reshape(u, (points * self.bounds, 1), order="F"), np.zeros(1, dtype=np.int64), 1)
        return cp.reshape(found, (points, self.bounds), order="F"), []


@final
@dataclass(frozen=True, eq=False)
class Image(Moment):
    """φ(Ay - μ) for a matrix A, fixed or learnt (``Norm`` with a matrix)."""

    outer: Outer
    A: NDArray[np.float64] | Learn
    mu: NDArray[np.float64] | None = None
    sigma: NDArray[np.float64] | None = None

    @property
    def degree(self) -> float:
        """That of φ."""
        return self.outer.degree

    def eliminable(self) -> bool:
        """Always."""
        return True

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """A and μ, unless given."""
        self._check(dim)
        found: dict[str, tuple[int, ...]] = {"A": self.A.shape} if isinstance(self.A, Learn) else {}
        return found if self.mu is not None else {**found, "mu": (self.A.shape[0],)}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """A and μ, when given."""
        self._check(dim)
        found = {} if isinstance(self.A, Learn) else {"A": self.A}
        return found if self.mu is None else {**found, "mu": centre(self.mu, self.A.shape[0])}

    def _check(self, dim: int) -> None:
        """One column a coordinate."""
        if len(self.A.shape) != 2 or self.A.shape[1] != dim:
            raise ModelError(f"Norm's matrix A must have {dim} columns, not shape {tuple(self.A.shape)}.")

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """The identity as matrix, the mean and deviation of the image as centre."""
        learnt = isinstance(self.A, Learn)
        matrix = torch.eye(*self.A.shape).to(y) if learnt else torch.as_tensor(self.A).to(y)
        image = y @ matrix.T
        found = {"A": Typical(matrix, torch.ones_like(matrix) / y.shape[1], meaningful=False)} if learnt else {}
        if self.mu is None:
            found["mu"] = Typical(image.mean(0), deviation(image), meaningful=not learnt)
        return found

    def offsets(self, leaves: Leaves) -> list[Tensor]:
        """The centre."""
        return [leaves["mu"]]

    def extent(self, leaves: Leaves) -> Tensor:
        """The centre's size, seen through the matrix."""
        size = columns(leaves["A"]).norm(dim=1, keepdim=True).clamp(min=FLOOR)
        return columns(leaves["mu"]).norm(dim=1, keepdim=True) / size

    def links(self, dim: int) -> list[Labels]:
        """All coordinates that the matrix touches."""
        return [np.arange(dim) if isinstance(self.A, Learn) else np.flatnonzero(np.abs(self.A).sum(0))]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part for every row of the block that the matrix touches."""
        rows, coordinates, entry = rectangle(layout, None if isinstance(self.A, Learn) else np.abs(self.A).sum(0) > 0)
        parts = Parts(rows, np.zeros_like(rows), np.zeros_like(rows))
        term = MatrixTerm(
            self.outer,
            rows,
            coordinates,
            entry,
            leaves["A"],
            leaves["mu"],
            None if multiplier is None else multiplier(parts.row, parts.bound, parts.coordinate),
            part_scale(self, rho, parts),
        )
        return [term], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """φ of the image."""
        u = (leaves["A"] @ y[..., None])[..., 0] - leaves["mu"]
        return self.outer.value(u, np.zeros(u.shape[-1], dtype=np.int64), 1)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """That of φ."""
        u = (leaves["A"] @ y[..., None])[..., 0]
        return self.outer.recession(u, np.zeros(u.shape[-1], dtype=np.int64), 1)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """φ of the image."""
        u = (leaves["A"] @ y.T).T - cp.vstack([leaves["mu"]] * y.shape[0])
        phi = self.outer.root if root else self.outer.expression
        return phi(u, np.zeros(u.shape[1], dtype=np.int64), 1), []


def _ridge_term(
    moment: Moment,
    outer: Outer,
    given: NDArray[np.float64] | None,
    layout: Layout,
    mu: cp.Expression,
    h: cp.Expression | None,
    multiplier: Multiplier | None,
    rho: cp.Expression | None,
) -> RidgeTerm:
    """One part for every bound and row that touch, bound by bound; ``mu`` holds all directions, one after another."""
    shape = moment.bounds, layout.row.size
    touched = np.ones(shape, dtype=bool) if given is None else given[:, layout.coordinate] != 0
    bound, entry = np.nonzero(touched)
    keys, part = np.unique(bound * layout.rows + layout.row[entry], return_inverse=True)
    bounds, rows = np.divmod(keys, layout.rows)
    # To a decision rule every bound is a component.
    parts = Parts(rows, bounds, bounds)
    shift = h if h is None or h.size == 1 else h[parts.bound]
    return RidgeTerm(
        outer,
        entry,
        part.ravel(),
        parts,
        mu[bound * (mu.size // moment.bounds) + layout.coordinate[entry]],
        0.0 if shift is None else shift,
        None if multiplier is None else multiplier(parts.row, parts.bound, parts.coordinate),
        part_scale(moment, rho, parts),
    )
