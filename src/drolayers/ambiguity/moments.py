"""Moment functions g(y, α): what an ambiguity set bounds the expectation of.

A moment is an outer function of an affine image of ``y``, or is built from others by sums, nonnegative multiples and
maxima. It knows three things, each once: its dual term (for the worst case), its value in torch (for pre-training and
certificates), and its value as a convex CVXPY expression, in ``y`` for fixed parameters or in the parameters for fixed
``y`` (for emptiness and projection).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from drolayers.ambiguity.outer import Constraints, Identity, Labels, Outer, PNorm, PositiveSquared, Power, Square
from drolayers.ambiguity.terms import ConicTerm, MatrixTerm, Multiplier, Parts, RidgeTerm, SeparateTerm, Term
from drolayers.errors import ModelError
from drolayers.support import Layout, in_cone

Leaves = Mapping[str, Any]
"""Parameters of a moment by name: CVXPY leaves, arrays or tensors, as the caller needs them."""


@dataclass(frozen=True)
class Learn:
    """A matrix to be learnt, by its shape: ``Norm(2, A=dro.Learn(3, 5))``."""

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", tuple(int(s) for s in shape))


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
            rho: the scale σ^(1/p), one a bound; None where the multiplier is not scaled.
            split: whether an additive function gets a part of its own for every coordinate.
        """

    @abstractmethod
    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """G at points ``(..., dim)`` with parameters ``(..., *shape)``: ``(..., bounds)``."""

    @abstractmethod
    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Lim g(s y)/s as s grows: what mass that escapes along ``y`` uses up of the bound."""

    @abstractmethod
    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """G at the rows of ``y`` (points, dim): an upper bound (points, bounds) that is tight when minimised."""

    def eliminable(self) -> bool:
        """Whether the best multiplier is known in closed form when a single part sees it."""
        return False

    def components(self, dim: int) -> int:
        """Number of additive components that a decision rule can respond to: one a coordinate, or the whole."""
        return 1

    def __add__(self, other: Moment) -> Moment:
        return Sum((self, other))

    def __rmul__(self, factor: float) -> Moment:
        return Scaled(self, float(factor))


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
        if any(not 0 <= i < dim for i in self.index):
            raise ModelError(f"A moment's index {list(self.index)} leaves the {dim} coordinates of y.")
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
        return {} if self.mu is None else {"mu": np.broadcast_to(self.mu, self.coordinates(dim).size)}

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
            _scale(self, rho, parts),
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

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """φ by label."""
        dim, points = y.shape[1], y.shape[0]
        mu = cp.vstack([leaves["mu"]] * points)
        u = y[:, self.coordinates(dim)] - mu
        return self.outer.expression(u, self._labels(dim), self.bounds), []


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
        touched = np.ones(layout.row.size, dtype=bool) if self.mu is None else self.mu[layout.coordinate] != 0
        entry = np.flatnonzero(touched)
        rows, part = np.unique(layout.row[entry], return_inverse=True)
        parts = Parts(rows, np.zeros_like(rows), np.zeros_like(rows))
        term = RidgeTerm(
            self.outer,
            entry,
            part.ravel(),
            parts,
            leaves["mu"][layout.coordinate[entry]],
            0.0 if self.h == 0.0 else leaves["h"],
            None if multiplier is None else multiplier(parts.row, parts.bound, parts.coordinate),
            _scale(self, rho, parts),
        )
        return [term], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """φ of the projection."""
        u = (y * leaves["mu"]).sum(-1) - leaves["h"]
        return self.outer.value(u[..., None], np.zeros(1, dtype=np.int64), 1)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """That of φ."""
        return self.outer.recession((y * leaves["mu"]).sum(-1)[..., None], np.zeros(1, dtype=np.int64), 1)

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """φ of the projection."""
        u = cp.reshape(y @ leaves["mu"] - leaves["h"], (y.shape[0], 1), order="F")
        return self.outer.expression(u, np.zeros(1, dtype=np.int64), 1), []


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
        return found if self.mu is None else {**found, "mu": np.broadcast_to(self.mu, self.A.shape[0])}

    def _check(self, dim: int) -> None:
        """One column a coordinate."""
        if len(self.A.shape) != 2 or self.A.shape[1] != dim:
            raise ModelError(f"Norm's matrix A must have {dim} columns, not shape {tuple(self.A.shape)}.")

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
        rows, coordinates, entry = _rectangle(layout, None if isinstance(self.A, Learn) else np.abs(self.A).sum(0) > 0)
        parts = Parts(rows, np.zeros_like(rows), np.zeros_like(rows))
        term = MatrixTerm(
            self.outer,
            rows,
            coordinates,
            entry,
            leaves["A"],
            leaves["mu"],
            None if multiplier is None else multiplier(parts.row, parts.bound, parts.coordinate),
            _scale(self, rho, parts),
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

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """φ of the image."""
        u = (leaves["A"] @ y.T).T - cp.vstack([leaves["mu"]] * y.shape[0])
        return self.outer.expression(u, np.zeros(u.shape[1], dtype=np.int64), 1), []


@final
@dataclass(frozen=True, eq=False)
class Conic(Moment):
    """A moment by the second-order cones of its epigraph (definition 4.1 of the paper, as it stands).

    ``u ≥ g(y)`` if and only if some lifted ``v`` has ``A_j [y; u; v] - b_j`` in the second-order cone for every j, where
    the last entry of a cone bounds the norm of the others. ``A_j`` and ``b_j`` are arrays, or ``dro.Learn(shape)``.
    """

    A: tuple[NDArray[np.float64] | Learn, ...]
    b: tuple[NDArray[np.float64] | Learn, ...]
    lifted: int = 0
    sigma: NDArray[np.float64] | None = None

    def __init__(self, A: list[Any], b: list[Any], lifted: int = 0, sigma: ArrayLike | None = None) -> None:
        def given(items: list[Any], ndim: int) -> tuple[Any, ...]:
            return tuple(i if isinstance(i, Learn) else np.array(i, dtype=float, ndmin=ndim) for i in items)

        object.__setattr__(self, "A", given(A, 2))
        object.__setattr__(self, "b", given(b, 1))
        object.__setattr__(self, "lifted", int(lifted))
        object.__setattr__(self, "sigma", _bound(sigma))
        if len(self.A) != len(self.b) or any(M.shape[0] != v.shape[0] for M, v in zip(self.A, self.b, strict=False)):
            raise ModelError("moments.Conic needs as many b_j as A_j, each with one entry a row.")

    @property
    def degree(self) -> float:
        """Unknown, so that the bound is not scaled."""
        return 1.0

    @property
    def signed(self) -> bool:
        """Unknown, so that a negative bound is left to the emptiness check."""
        return True

    def parts(self, dim: int) -> dict[str, NDArray[np.float64] | Learn]:
        """Every parameter by name."""
        width = dim + 1 + self.lifted
        for M in self.A:
            if M.shape[1] != width:
                raise ModelError(f"moments.Conic needs {dim} + 1 + {self.lifted} columns (y, u, v), not {M.shape[1]}.")
        return {
            f"{n}{j}": v
            for j, pair in enumerate(zip(self.A, self.b, strict=True))
            for n, v in zip("Ab", pair, strict=True)
        }

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those to be learnt."""
        return {name: v.shape for name, v in self.parts(dim).items() if isinstance(v, Learn)}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those given."""
        return {name: v for name, v in self.parts(dim).items() if not isinstance(v, Learn)}

    def links(self, dim: int) -> list[Labels]:
        """All coordinates."""
        return [np.arange(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part a row."""
        rows, coordinates, entry = _rectangle(layout, None)
        zeros = np.zeros_like(rows)
        assert multiplier is not None
        matrices, vectors = ([leaves[f"{n}{j}"] for j in range(len(self.A))] for n in "Ab")
        return [ConicTerm(rows, entry, coordinates.size, matrices, vectors, multiplier(rows, zeros, zeros))], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The smallest u, by a small program a point; differentiable in the parameters by the envelope theorem."""
        from drolayers.ambiguity.conic_value import epigraph_value

        return epigraph_value(self, y, leaves)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The epigraph with b_j = 0."""
        zero = {name: leaves[name] * 0.0 if name.startswith("b") else leaves[name] for name in leaves}
        return self.value(y, zero)

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """Lifted variables u and v for every point."""
        points = y.shape[0]
        u = cp.Variable((points, 1))
        parts = [y, u, cp.Variable((points, self.lifted))] if self.lifted else [y, u]
        columns = cp.hstack(parts).T
        return u, [
            in_cone(leaves[f"A{j}"] @ columns - cp.vstack([leaves[f"b{j}"]] * points).T) for j in range(len(self.A))
        ]


@dataclass(frozen=True, eq=False)
class _Composite(Moment):
    """What sums and maxima share: members, whose parameters carry their position as a prefix."""

    members: tuple[Moment, ...]
    sigma: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for member in self.members:
            if member.bounds != 1:
                raise ModelError("Grouped squares have several bounds and cannot be part of a sum or maximum.")
            if member.sigma is not None:
                raise ModelError(
                    "In a sum or maximum of moments only the whole has a bound: leave out the members' sigma."
                )

    @property
    def degree(self) -> float:
        """The members' common degree, or one, unscaled, where they differ."""
        degrees = {member.degree for member in self.members}
        return degrees.pop() if len(degrees) == 1 else 1.0

    @property
    def signed(self) -> bool:
        """When a member is."""
        return any(member.signed for member in self.members)

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the members."""
        return {f"{j}.{n}": s for j, member in enumerate(self.members) for n, s in member.shapes(dim).items()}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those of the members."""
        return {f"{j}.{n}": v for j, member in enumerate(self.members) for n, v in member.constants(dim).items()}

    def leaves_of(self, position: int, leaves: Leaves) -> dict[str, Any]:
        """A member's own parameters."""
        prefix = f"{position}."
        return {name[len(prefix) :]: value for name, value in leaves.items() if name.startswith(prefix)}

    def values(self, y: Tensor, leaves: Leaves, recession: bool = False) -> Tensor:
        """The members' values, stacked last."""
        kind = "recession" if recession else "value"
        found = [getattr(m, kind)(y, self.leaves_of(j, leaves))[..., 0] for j, m in enumerate(self.members)]
        return torch.stack(torch.broadcast_tensors(*found), -1)

    def expressions(self, y: cp.Expression, leaves: Leaves) -> tuple[list[cp.Expression], Constraints]:
        """The members' expressions."""
        found = [m.expression(y, self.leaves_of(j, leaves)) for j, m in enumerate(self.members)]
        return [expression for expression, _ in found], [c for _, constraints in found for c in constraints]


@final
@dataclass(frozen=True, eq=False)
class Sum(_Composite):
    """g₁ + g₂: the members share one multiplier."""

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
        """Those of the members."""
        found = [
            m.terms(layout, self.leaves_of(j, leaves), multiplier, _shared(self, rho))
            for j, m in enumerate(self.members)
        ]
        return [term for terms, _ in found for term in terms], [c for _, constraints in found for c in constraints]

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The sum."""
        return self.values(y, leaves).sum(-1, keepdim=True)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The sum."""
        return self.values(y, leaves, recession=True).sum(-1, keepdim=True)

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """The sum."""
        found, constraints = self.expressions(y, leaves)
        return sum(found[1:], found[0]), constraints

    def __add__(self, other: Moment) -> Moment:
        return Sum((*self.members, other))


@final
@dataclass(frozen=True, eq=False)
class Maximum(_Composite):
    """max(g₁, g₂): the multiplier is shared out between the members, row by row."""

    def links(self, dim: int) -> list[Labels]:
        """All coordinates."""
        return [np.arange(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """Σ_l π_l = β with π ≥ 0, since a maximum is the largest convex combination."""
        assert multiplier is not None
        rows, zeros = np.arange(layout.rows), np.zeros(layout.rows, dtype=np.int64)
        shares = [cp.Variable(layout.rows, nonneg=True) for _ in self.members]
        constraints: Constraints = [sum(shares) == multiplier(rows, zeros, zeros)]
        terms: list[Term] = []
        for j, (member, share) in enumerate(zip(self.members, shares, strict=True)):

            def own(row: Labels, bound: Labels, coordinate: Labels, share: cp.Variable = share) -> cp.Expression:
                return share[row]

            more, others = member.terms(layout, self.leaves_of(j, leaves), own, _shared(self, rho))
            terms, constraints = terms + more, constraints + others
        return terms, constraints

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The largest."""
        return self.values(y, leaves).amax(-1, keepdim=True)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The largest."""
        return self.values(y, leaves, recession=True).amax(-1, keepdim=True)

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """The largest."""
        found, constraints = self.expressions(y, leaves)
        return cp.maximum(*found), constraints


@final
@dataclass(frozen=True, eq=False)
class Scaled(Moment):
    """c·g for a constant c ≥ 0: the multiplier is scaled."""

    member: Moment
    factor: float
    sigma: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not (self.factor >= 0 and np.isfinite(self.factor)):
            raise ModelError(f"A moment can only be multiplied by a nonnegative number, not by {self.factor}.")

    @property
    def degree(self) -> float:
        """That of the member."""
        return self.member.degree

    @property
    def bounds(self) -> int:
        """Those of the member."""
        return self.member.bounds

    def components(self, dim: int) -> int:
        """Those of the member."""
        return self.member.components(dim)

    @property
    def signed(self) -> bool:
        """As the member."""
        return self.member.signed

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those of the member."""
        return self.member.shapes(dim)

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those of the member."""
        return self.member.constants(dim)

    def links(self, dim: int) -> list[Labels]:
        """Those of the member."""
        return self.member.links(dim)

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """(βcg)* = ((cβ)g)*."""
        assert multiplier is not None

        def scaled(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
            return self.factor * multiplier(row, bound, coordinate)

        return self.member.terms(layout, leaves, scaled, rho, split)

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Scaled."""
        return self.factor * self.member.value(y, leaves)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """Scaled."""
        return self.factor * self.member.recession(y, leaves)

    def expression(self, y: cp.Expression, leaves: Leaves) -> tuple[cp.Expression, Constraints]:
        """Scaled."""
        found, constraints = self.member.expression(y, leaves)
        return self.factor * found, constraints


def Linear(mu: ArrayLike | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """μᵀy; the bound may have either sign, and two of them make a mean equality."""
    return Ridge(Identity(), _array(mu), 0.0, _bound(sigma))


def Absolute(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """|μᵀy - h|."""
    return Ridge(PNorm(1), _array(mu), _scalar(h), _bound(sigma))


def AbsolutePower(  # noqa: N802
    p: float, mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """|μᵀy - h|ᵖ for p ≥ 1."""
    return Ridge(PNorm(1) if p == 1 else Power(float(p)), _array(mu), _scalar(h), _bound(sigma))


def PositiveSquare(mu: ArrayLike | None = None, h: float | None = None, sigma: ArrayLike | None = None) -> Moment:  # noqa: N802
    """((μᵀy - h)⁺)²."""
    return Ridge(PositiveSquared(), _array(mu), _scalar(h), _bound(sigma))


def Norm(  # noqa: N802
    p: float, A: ArrayLike | Learn | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖Ay - μ‖ₚ for p ≥ 1; A is the identity unless given, and learnt if ``A=dro.Learn(m, n)``."""
    if A is None:
        return Separate(PNorm(float(p)), mu=_array(mu), sigma=_bound(sigma))
    return Image(PNorm(float(p)), A if isinstance(A, Learn) else np.array(A, dtype=float), _array(mu), _bound(sigma))


def SquaredNorm(  # noqa: N802
    index: ArrayLike | None = None, mu: ArrayLike | None = None, sigma: ArrayLike | None = None
) -> Moment:
    """‖y_I - μ_I‖² for the coordinates I in ``index`` (all, unless given)."""
    chosen = None if index is None else tuple(int(i) for i in np.atleast_1d(index))
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise ModelError(f"SquaredNorm's index {list(chosen)} names a coordinate twice.")
    return Separate(Square(), chosen, None, _array(mu), _bound(sigma))


def maximum(*moments: Moment) -> Moment:
    """The largest of several moments."""
    return Maximum(tuple(moments))


def bounded(moment: Moment, sigma: ArrayLike) -> Moment:
    """The same moment with a fixed bound."""
    return replace(moment, sigma=_bound(sigma))  # type: ignore[type-var]


def grouped_squares(dim: int, size: int) -> Moment:
    """One squared deviation bound for every ``size`` coordinates in turn."""
    return Separate(Square(), None, tuple(i // size for i in range(dim)))


def _rectangle(layout: Layout, touched: NDArray[np.bool_] | None) -> tuple[Labels, Labels, NDArray[np.int64]]:
    """Rows, coordinates and entries of the block that a matrix touches; its rows all have the same coordinates."""
    seen = np.ones(layout.row.size, dtype=bool) if touched is None else touched[layout.coordinate]
    rows = np.unique(layout.row[seen])
    inside = np.flatnonzero(np.isin(layout.row, rows))
    order = inside[np.lexsort((layout.coordinate[inside], layout.row[inside]))]
    entry = order.reshape(rows.size, -1)
    return rows, layout.coordinate[entry[0]], entry


def _scale(moment: Moment, rho: cp.Expression | None, parts: Parts) -> cp.Expression | None:
    """The scale of every part, where there is one."""
    if rho is None:
        return None
    return rho[parts.bound] if moment.bounds > 1 or rho.size > 1 else cp.promote(rho[0], (parts.count,))


def _shared(composite: _Composite, rho: cp.Expression | None) -> cp.Expression | None:
    """Members are scaled together only where their degrees agree."""
    return rho if len({member.degree for member in composite.members}) == 1 else None


def _array(value: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given parameter as an array."""
    return None if value is None else np.array(value, dtype=float)


def _scalar(value: float | None) -> float | None:
    """A given scalar."""
    return None if value is None else float(value)


def _bound(sigma: ArrayLike | None) -> NDArray[np.float64] | None:
    """A given bound as a vector."""
    return None if sigma is None else np.atleast_1d(np.asarray(sigma, dtype=float))
