"""Where the uncertain vector can lie, each set with its support function δ*(w) = sup {wᵀy : y ∈ Ξ}.

Support functions are asked for many vectors at once, laid out flat: ``w`` holds the entries of all of them one after
another, ``row[e]`` says to which vector an entry belongs and ``coordinate[e]`` to which coordinate of ``y``. A vector
may cover only the coordinates of one block, provided that the set is a product across blocks (``links``).

The ends of a box and the right-hand side of a polyhedron may be known data, different from item to item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from torch import Tensor

from conelayers import compile_program
from conelayers.internals import default_engine, numbers
from drolayers.amounts import Amount, Told, shown, told
from drolayers.errors import ModelError
from drolayers.products import times
from drolayers.status import Status

__all__ = ["Box", "Conic", "Ellipsoid", "Nonnegative", "Polyhedron", "Reals", "Support"]


def __dir__() -> list[str]:
    return sorted(__all__)


Constraints = list[cp.Constraint]

ROUNDING = 1e-12
"""Relative distance from the range of a matrix that is put down to rounding."""


@dataclass(frozen=True)
class Layout:
    """Which vector and which coordinate each entry of a flat expression belongs to."""

    row: NDArray[np.int64]
    coordinate: NDArray[np.int64]
    rows: int

    def sums(self) -> sp.csr_array:
        """The matrix that adds up entries by row."""
        entries = self.row.size
        return sp.csr_array((np.ones(entries), (self.row, np.arange(entries))), shape=(self.rows, entries))


class Support(ABC):
    """A closed convex set Ξ."""

    parameters: tuple[cp.Parameter, ...] = ()
    """The known data that it depends on."""

    def data(self, known: Told | None, theta: Tensor) -> Float[Tensor, "batch entry"]:
        """The values of its known data side by side, beside θ and without gradients."""
        if not self.parameters:
            return theta.new_zeros(len(theta), 0)
        return told(self.parameters, known).detach().to(theta)

    def doubtful(self, known: Told | None) -> Bool[Tensor, "batch"] | None:
        """Items whose set may be empty without a trace in the worst case; None where the constructor saw to it."""
        if not self.parameters:
            return None
        return torch.ones(len(data := told(self.parameters, known)), dtype=torch.bool, device=data.device)

    @abstractmethod
    def check(self, dim: int) -> None:
        """Raise ModelError unless the set lies in a space of this dimension."""

    def over(self, shape: tuple[int, ...]) -> Support:
        """The same set for a ``y`` of this shape, whose coordinates are numbered row by row."""
        return self

    @abstractmethod
    def nonnegative(self, dim: int) -> bool:
        """Whether every point is known to be nonnegative."""

    @abstractmethod
    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """Groups of coordinates that the set ties together; it is a product across unlinked coordinates."""

    @abstractmethod
    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """An upper bound on δ*(w), one a row, tight when minimised subject to the constraints."""

    @abstractmethod
    def members(self, y: cp.Expression) -> Constraints:
        """Constraints that say that every row of ``y`` (points, dim) lies in the set."""

    @abstractmethod
    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """How far points ``(..., dim)``, with known data ``(batch, ..., dim)``, lie outside, in units of y."""

    def __and__(self, other: Support) -> Support:
        """The intersection; the relative interiors must meet for its support function to be an inf-convolution."""
        if not isinstance(other, Support):
            raise ModelError(f"Only supports can be intersected with &, not {other!r}.")
        return intersection(self, other)


@final
@dataclass(frozen=True)
class Reals(Support):
    """All of space; known data that is named here is asked for all the same, as where it stands for a smaller set."""

    parameters: tuple[cp.Parameter, ...] = field(default=(), repr=False)

    def check(self, dim: int) -> None:
        """Every dimension will do."""

    def nonnegative(self, dim: int) -> bool:
        """No."""
        return False

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """None."""
        return []

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """Finite only at zero."""
        return cp.Constant(np.zeros(layout.rows)), [w == 0]

    def doubtful(self, known: Told | None) -> Bool[Tensor, "batch"] | None:
        """Never empty."""
        return None

    def members(self, y: cp.Expression) -> Constraints:
        """Nothing to say."""
        return []

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """Zero."""
        return y.new_zeros(y.shape[:-1])


@final
class Box(Support):
    """``lo ≤ y ≤ hi``, coordinate by coordinate; infinite ends are allowed.

    Args:
        lo: lower ends, a number or one a coordinate; or known data: a CVXPY parameter, or an expression affine in some.
        hi: upper ends, likewise.
    """

    def __init__(self, lo: ArrayLike | cp.Expression = -np.inf, hi: ArrayLike | cp.Expression = np.inf) -> None:
        self.lower, self.upper = lower, upper = Amount("Box's lo", lo), Amount("Box's hi", hi)
        self.lo, self.hi = lower.written, upper.written
        self.parameters = tuple({p.id: p for p in (*lower.parameters, *upper.parameters)}.values())
        if lower.shape and upper.shape and lower.shape != upper.shape:
            raise ModelError(f"Box ends must have one shape, not {lower.shape} and {upper.shape}.")
        # NaN fails every comparison; ends that are known data are compared item by item.
        low, high = (end.written if not end.parameters else 0.0 for end in (lower, upper))
        if not (np.all(low < np.inf) and np.all(high > -np.inf) and (self.parameters or np.all(low <= high))):
            raise ModelError(f"Box needs lo <= hi in every coordinate, not lo={self.lo}, hi={self.hi}.")

    def over(self, shape: tuple[int, ...]) -> Box:
        """Ends that are given in the shape of a matrix, or for one row of it, laid out flat."""
        flat = (int(np.prod(shape)),)
        if len(shape) == 1 or all(end.shape in ((), flat) for end in (self.lower, self.upper)):
            return self
        try:
            return Box(*(_flat(end, shape) for end in (self.lower, self.upper)))
        except ValueError:
            shapes = f"{self.lower.shape} and {self.upper.shape}"
            raise ModelError(f"Box ends must be scalars or fit a y of shape {shape}, not {shapes}.") from None

    def ends(self, dim: int, known: Told | None = None) -> tuple[Tensor, Tensor]:
        """Both ends for every coordinate, ``(dim,)``; with known data ``(batch, dim)``, differentiable."""
        found = []
        for end in (self.lower, self.upper):
            value = end.at(known) if end.shape else end.at(known)[..., None]
            found.append(value.expand(*value.shape[:-1], dim))
        return found[0], found[1]

    def __repr__(self) -> str:
        if not self.parameters and np.all(self.lo == 0) and np.all(self.hi == np.inf):
            return "Nonnegative()"
        return f"Box({self.lower}, {self.upper})"

    def check(self, dim: int) -> None:
        """Scalars or one number a coordinate."""
        for end in (self.lower, self.upper):
            if end.shape not in ((), (dim,)):
                raise ModelError(f"Box ends must be scalars or of shape ({dim},), not {end.shape}.")

    def nonnegative(self, dim: int) -> bool:
        """When no lower end is negative; of known data, as it is declared."""
        return bool(self.lo.is_nonneg()) if self.lower.parameters else bool(np.all(self.lo >= 0))

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """None."""
        return []

    def doubtful(self, known: Told | None) -> Bool[Tensor, "batch"] | None:
        """Where known ends cross: the worst case is then that between the ends, whichever is which."""
        if not self.parameters:
            return None
        size = max([1, *(int(np.prod(end.shape)) for end in (self.lower, self.upper))])
        low, high = self.ends(size, known)
        return (low > high).any(-1)

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """The better corner of every coordinate; an infinite end forbids the sign that would run to it."""
        constraints: Constraints = []
        if self.parameters and w.parameters():
            # Products of parameters are not DPP, so that what is multiplied by the ends is named.
            named = cp.Variable(w.shape[0])
            w, constraints = named, [named == w]
        low, high = (
            np.broadcast_to(end.finite, end.shape or layout.row.size)[layout.coordinate if end.shape else ...]
            for end in (self.lower, self.upper)
        )
        pieces: list[tuple[NDArray[np.int64], cp.Expression]] = []
        both, only_low, only_high, neither = (
            np.flatnonzero(m) for m in (low & high, low & ~high, ~low & high, ~low & ~high)
        )
        if both.size:
            corner = cp.Variable(both.size)
            where = layout.coordinate[both]
            constraints += [corner >= times(end.entries(where), w[both]) for end in (self.lower, self.upper)]
            pieces.append((both, corner))
        for entries, end, sign in ((only_low, self.lower, -1.0), (only_high, self.upper, 1.0)):
            if entries.size:
                constraints.append(w[entries] >= 0 if sign > 0 else w[entries] <= 0)
                factors = end.entries(layout.coordinate[entries])
                if end.parameters or np.any(factors != 0):
                    pieces.append((entries, times(factors, w[entries])))
        if neither.size:
            constraints.append(w[neither] == 0)
        value: cp.Expression = cp.Constant(np.zeros(layout.rows))
        for entries, part in pieces:
            value = value + layout.sums()[:, entries] @ part
        return value, constraints

    def members(self, y: cp.Expression) -> Constraints:
        """Between the ends, where they are finite."""
        constraints: Constraints = []
        for end, sign in ((self.lower, 1.0), (self.upper, -1.0)):
            where = np.flatnonzero(np.broadcast_to(end.finite, y.shape[1]))
            if where.size:
                constraints.append(sign * y[:, where] >= sign * end.rows(where, y.shape[0]))
        return constraints

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """The largest distance beyond an end."""
        lo, hi = (_beside(end, y) for end in self.ends(y.shape[-1], known))
        return torch.maximum(lo - y, y - hi).clamp(min=0.0).amax(-1)


def Nonnegative() -> Box:  # noqa: N802 (reads as the set that it makes)
    """``y ≥ 0``."""
    return Box(0.0, np.inf)


@final
class Polyhedron(Support):
    """``C y ≤ d``.

    Args:
        C: ``(k, dim)``.
        d: ``(k,)``, numbers or known data: a CVXPY parameter, or an expression affine in some.
    """

    def __init__(self, C: ArrayLike, d: ArrayLike | cp.Expression) -> None:
        self.C = np.atleast_2d(_numbers("Polyhedron's C", C))
        self.d = Amount("Polyhedron's d", d, vector=True)
        self.parameters = self.d.parameters
        if self.C.ndim != 2 or self.d.shape != (self.C.shape[0],):
            raise ModelError(
                f"Polyhedron needs C of shape (k, dim) and d of shape (k,), not {self.C.shape} and {self.d.shape}."
            )
        if not (np.isfinite(self.C).all() and self.d.finite.all()):
            raise ModelError("Polyhedron needs finite C and d: leave out rows that say nothing.")
        if not self.parameters and not _inhabited(self, self.C.shape[1]):
            raise ModelError("Polyhedron is empty: no y satisfies C y <= d.")

    def __repr__(self) -> str:
        return f"Polyhedron({self.C.shape[0]} rows in {self.C.shape[1]} coordinates)"

    def check(self, dim: int) -> None:
        """One column a coordinate."""
        if self.C.shape[1] != dim:
            raise ModelError(f"Polyhedron has {self.C.shape[1]} columns, but y has {dim} coordinates.")

    def nonnegative(self, dim: int) -> bool:
        """When the smallest value of every coordinate is nonnegative, whatever the known data."""
        certain = self.d.constant
        limits = self.d.base[certain]
        for axis in np.eye(dim):
            found = linprog(axis, self.C[certain], limits, bounds=(None, None))
            if found.status != 0 or found.fun < 0:
                return False
        return True

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """The coordinates of every row."""
        return [np.flatnonzero(row) for row in self.C]

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """``min dᵀλ : Cᵀλ = w, λ ≥ 0``, with the inequalities that touch the row's block."""
        C = sp.csc_array(self.C)
        touched = (
            sp.csr_array(
                (np.ones(layout.row.size), (layout.row, layout.coordinate)), shape=(layout.rows, self.C.shape[1])
            )
            @ abs(C).T
        )
        pairs = sp.coo_array(touched)
        row, inequality = pairs.row, pairs.col
        multiplier = cp.Variable(row.size, nonneg=True)
        # The coefficient of multiplier (row, inequality) in entry (row, coordinate).
        position = sp.csr_array((np.arange(1, row.size + 1), (row, inequality)), shape=touched.shape)
        entries, inequalities = sp.coo_array(C[:, layout.coordinate].T).coords
        values = self.C[inequalities, layout.coordinate[entries]]
        at = np.asarray(position[layout.row[entries], inequalities]).ravel().astype(np.int64) - 1
        spread = sp.csr_array((values, (entries, at)), shape=(layout.row.size, row.size))
        sums = sp.csr_array((np.ones(row.size), (row, np.arange(row.size))), shape=(layout.rows, row.size))
        return sums @ times(self.d.entries(inequality), multiplier), [spread @ multiplier == w]

    def members(self, y: cp.Expression) -> Constraints:
        """All inequalities."""
        return [y @ self.C.T <= self.d.rows(np.arange(len(self.C)), y.shape[0])]

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """The largest distance to a half-space."""
        length = np.linalg.norm(self.C, axis=1)
        length = np.where(length > 0, length, 1.0)
        C, lengths = torch.as_tensor(self.C / length[:, None]).to(y), torch.as_tensor(length).to(y)
        return (y @ C.T - _beside(self.d.at(known), y) / lengths).clamp(min=0.0).amax(-1)


@final
class Ellipsoid(Support):
    """``{centre + L u : ‖u‖₂ ≤ 1}``."""

    def __init__(self, centre: ArrayLike, L: ArrayLike) -> None:
        self.centre, self.L = np.atleast_1d(_numbers("centre", centre)), np.atleast_2d(_numbers("L", L))
        if self.centre.ndim != 1 or self.L.ndim != 2 or self.L.shape[0] != self.centre.size:
            raise ModelError(f"Ellipsoid needs L with {self.centre.size} rows, not shape {self.L.shape}.")
        if not (np.isfinite(self.centre).all() and np.isfinite(self.L).all()):
            raise ModelError("Ellipsoid needs a finite centre and a finite L.")

    def __repr__(self) -> str:
        return f"Ellipsoid({shown(self.centre)}, L of shape {self.L.shape})"

    def check(self, dim: int) -> None:
        """One row a coordinate."""
        if self.centre.size != dim:
            raise ModelError(f"Ellipsoid lies in dimension {self.centre.size}, but y has {dim} coordinates.")

    def nonnegative(self, dim: int) -> bool:
        """When the smallest value of every coordinate is nonnegative."""
        return bool(np.all(self.centre - np.linalg.norm(self.L, axis=1) >= 0))

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """All coordinates."""
        return [np.arange(dim)]

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """``wᵀc + ‖Lᵀw‖``."""
        return ellipsoid_conjugate(cp.Constant(self.centre), cp.Constant(self.L), w, layout)

    def members(self, y: cp.Expression) -> Constraints:
        """Through the preimage in the ball."""
        u = cp.Variable((y.shape[0], self.L.shape[1]))
        middle = np.tile(self.centre, (y.shape[0], 1))
        return [y == middle + u @ self.L.T, cp.SOC(cp.Constant(np.ones(y.shape[0])), u.T, axis=0)]

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """The distance to the ellipsoid in the direction of its centre, plus that from the range of L."""
        offset = y - torch.as_tensor(self.centre).to(y)
        L = torch.as_tensor(self.L).to(y)
        u = offset @ torch.linalg.pinv(L).T
        image, length = u @ L.T, u.norm(dim=-1)
        beside = (image - offset).norm(dim=-1)
        beside = beside * (beside > ROUNDING * (y.abs().amax(-1) + offset.norm(dim=-1)))
        return image.norm(dim=-1) * (1.0 - 1.0 / length.clamp(min=1.0)) + beside


@final
class Conic(Support):
    """``{y : some v has A_j [y; v] - b_j in the second-order cone L for every j}`` (definition 4.1 of the paper).

    As there, the last entry of a cone bounds the norm of the others.

    Args:
        A: matrices of shape ``(m_j, dim + lifted)``.
        b: vectors of shape ``(m_j,)``.
        lifted: number of lifted variables v.
    """

    def __init__(self, A: list[ArrayLike], b: list[ArrayLike], lifted: int = 0) -> None:
        self.A = [np.atleast_2d(_numbers("A_j", M)) for M in A]
        self.b = [np.atleast_1d(_numbers("b_j", v)) for v in b]
        self.lifted = lifted
        if len(self.A) != len(self.b) or any(M.shape[0] != v.size for M, v in zip(self.A, self.b, strict=False)):
            raise ModelError("Conic support needs as many b_j as A_j, each with one entry a row.")
        if not all(np.isfinite(part).all() for part in (*self.A, *self.b)):
            raise ModelError("Conic support needs finite A_j and b_j.")

    def __repr__(self) -> str:
        return f"Conic({len(self.A)} cones)"

    def check(self, dim: int) -> None:
        """Columns for y and v."""
        for M in self.A:
            if M.shape[1] != dim + self.lifted:
                raise ModelError(f"Conic support needs {dim} + {self.lifted} columns, not {M.shape[1]}.")
        _check_inhabited(self, dim)

    def nonnegative(self, dim: int) -> bool:
        """Not known."""
        return False

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """All coordinates."""
        return [np.arange(dim)]

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """Conic duality: ``min -Σ bᵀη : Σ A_yᵀη = -w, Σ A_vᵀη = 0, η in the cones``."""
        dim = self.A[0].shape[1] - self.lifted
        stacked = by_column(w, layout)
        etas = [cp.Variable((M.shape[0], layout.rows)) for M in self.A]
        slope = sum(M[:, :dim].T @ eta for M, eta in zip(self.A, etas, strict=True))
        value = -sum(v @ eta for v, eta in zip(self.b, etas, strict=True))
        constraints: Constraints = [slope == -stacked]
        if self.lifted:
            constraints.append(sum(M[:, dim:].T @ eta for M, eta in zip(self.A, etas, strict=True)) == 0)
        return value, constraints + [in_cone(eta) for eta in etas]

    def members(self, y: cp.Expression) -> Constraints:
        """With one v a point."""
        v = cp.Variable((y.shape[0], self.lifted)) if self.lifted else None
        full = y if v is None else cp.hstack([y, v])
        return [in_cone(M @ full.T - np.tile(b[:, None], (1, y.shape[0]))) for M, b in zip(self.A, self.b, strict=True)]

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """Compute the smallest uniform relaxation of the cones that admits each point; NaN where no solver finds it."""
        points = y.reshape(-1, y.shape[-1]).detach().cpu().double()
        dim = points.shape[1]
        point, unit = cp.Parameter(dim), cp.Parameter(nonneg=True)
        slack, v = cp.Variable(nonneg=True), cp.Variable(max(self.lifted, 1))
        # A row grows by its length where y moves by one.
        lengths = [np.linalg.norm(M[:, :dim], axis=1).max() for M in self.A]
        lengths = [length if length > 0 else 1.0 for length in lengths]
        offset = max(np.abs(b).max() / length for b, length in zip(self.b, lengths, strict=True))
        lifted = [M[:, dim:] @ v[: self.lifted] if self.lifted else 0.0 for M in self.A]
        cones = [
            in_cone(cp.reshape(p + slack * np.eye(p.size)[-1], (p.size, 1), order="F"))
            for p in (
                (M[:, :dim] @ point - b * unit + q) / length
                for M, b, q, length in zip(self.A, self.b, lifted, lengths, strict=True)
            )
        ]
        cones += [] if self.lifted else [v == 0]  # v is in no cone then
        program = compile_program(cp.Problem(cp.Minimize(slack), cones), [point, unit])
        size = points.abs().amax(1, keepdim=True).clamp(min=offset)
        size = torch.where(size > 0, size, 1.0)
        objective = default_engine().solve(program, torch.cat([points / size, 1.0 / size], 1)).objective
        return (size[:, 0] * objective.clamp(min=0.0)).to(y).reshape(y.shape[:-1])


@final
class Intersection(Support):
    """Points that lie in all members; made with ``&``."""

    def __init__(self, members: tuple[Support, ...]) -> None:
        self.parts = members
        self.parameters = tuple({p.id: p for part in members for p in part.parameters}.values())

    def __repr__(self) -> str:
        return " & ".join(repr(part) for part in self.parts)

    def over(self, shape: tuple[int, ...]) -> Intersection:
        """Every member."""
        return Intersection(tuple(part.over(shape) for part in self.parts))

    def check(self, dim: int) -> None:
        """Every member, and that they have a point in common."""
        for part in self.parts:
            part.check(dim)
        _check_inhabited(self, dim)

    def nonnegative(self, dim: int) -> bool:
        """When one member is."""
        return any(part.nonnegative(dim) for part in self.parts)

    def links(self, dim: int) -> list[NDArray[np.int64]]:
        """Those of all members."""
        return [link for part in self.parts for link in part.links(dim)]

    def conjugate(self, w: cp.Expression, layout: Layout) -> tuple[cp.Expression, Constraints]:
        """The inf-convolution: ``w`` is split between the members; the first takes what the others leave."""
        shares = [cp.Variable(w.shape[0]) for _ in self.parts[1:]]
        first = w - sum(shares)
        value, constraints = self.parts[0].conjugate(first, layout)
        for part, share in zip(self.parts[1:], shares, strict=True):
            other, more = part.conjugate(share, layout)
            value, constraints = value + other, constraints + more
        return value, constraints

    def members(self, y: cp.Expression) -> Constraints:
        """All of them."""
        return [constraint for part in self.parts for constraint in part.members(y)]

    def violation(self, y: Tensor, known: Told | None = None) -> Tensor:
        """The worst of them."""
        return torch.stack([part.violation(y, known) for part in self.parts]).amax(0)


def ellipsoid_conjugate(
    centre: cp.Expression, L: cp.Expression, w: cp.Expression, layout: Layout, size: cp.Expression | float = 1.0
) -> tuple[cp.Expression, Constraints]:
    """``wᵀc + size·‖Lᵀw‖``, one a row."""
    radius, stacked = cp.Variable(layout.rows), by_column(w, layout)
    return centre @ stacked + size * radius, [cp.SOC(radius, L.T @ stacked, axis=0)]


def by_column(w: cp.Expression, layout: Layout) -> cp.Expression:
    """One column a row of the layout; every row covers all coordinates."""
    order = np.lexsort((layout.coordinate, layout.row))
    return cp.reshape(w[order], (layout.row.size // layout.rows, layout.rows), order="F")


def intersection(first: Support, second: Support) -> Support:
    """The intersection in its simplest form: boxes merge, all of space drops out."""
    parts: list[Support] = []
    for part in (first, second):
        parts += part.parts if isinstance(part, Intersection) else [part]
    boxes: list[Box] = []
    others: list[Support] = []
    for part in parts:
        if not isinstance(part, Box):
            others += [] if isinstance(part, Reals) else [part]
            continue
        merged = [(i, both) for i, box in enumerate(boxes) if (both := _merged(box, part)) is not None]
        boxes = [*boxes, part] if not merged else [dict(merged[:1]).get(i, box) for i, box in enumerate(boxes)]
    kept = (*boxes, *others)
    if not kept:
        return Reals()
    return kept[0] if len(kept) == 1 else Intersection(kept)


def _merged(one: Box, other: Box) -> Box | None:
    """Two boxes as one; None where ends would have to be compared that are known data."""
    ends = []
    for a, b, tighter in ((one.lower, other.lower, np.maximum), (one.upper, other.upper, np.minimum)):
        if a.finite.any() and b.finite.any() and (a.parameters or b.parameters):
            return None
        ends.append(a.written if a.parameters else b.written if b.parameters else tighter(a.written, b.written))
    return Box(*ends)


def _flat(end: Amount, shape: tuple[int, ...]) -> Any:
    """An end that fits a matrix, row by row; what serves all coordinates, or is flat already, as it is."""
    if end.shape in ((), (int(np.prod(shape)),)):
        return end.written
    places = np.broadcast_to(np.arange(int(np.prod(end.shape))).reshape(end.shape), shape).ravel()
    return (cp.vec(end.written, order="C") if end.parameters else end.written.ravel())[places]


def _beside(end: Tensor, y: Tensor) -> Tensor:
    """Numbers for every coordinate, ``(dim,)`` or ``(batch, dim)``, ready to be compared with points."""
    return end.to(y) if end.dim() == 1 else end.to(y).reshape(len(end), *[1] * (y.dim() - 2), end.shape[-1])


def _numbers(name: str, value: Any) -> NDArray[np.float64]:
    """Numbers, where known data is not understood."""
    if isinstance(value, cp.Expression) and value.parameters():
        raise ModelError(
            f"{name} cannot be known data ({value}): of supports, only the ends of a Box and the d of a Polyhedron can."
        )
    return numbers(name, value)


def _check_inhabited(support: Support, dim: int) -> None:
    """Raise where the set has no point; with known data that is seen item by item."""
    if not support.parameters and not _inhabited(support, dim):
        raise ModelError(f"The support {support} is empty: no y satisfies all of its conditions.")


def _inhabited(support: Support, dim: int) -> bool:
    """Whether the set has a point, in whatever units."""
    program = compile_program(cp.Problem(cp.Minimize(0.0), support.members(cp.Variable((1, dim)))), [])
    found = default_engine().solve(program, torch.zeros(1, 0, dtype=torch.float64))
    return found.statuses != [Status.INFEASIBLE]


def in_cone(columns: Any) -> cp.Constraint:
    """Every column lies in the second-order cone whose last entry bounds the norm of the others."""
    size = columns.shape[0]
    if size == 1:
        return columns[0] >= 0
    return cp.SOC(columns[size - 1], columns[: size - 1], axis=0)
