"""Scalar convex functions φ of a vector u, from which every moment g(y) = φ(My - h) is made.

Each knows its conjugate under a multiplier, sup_u {τᵀu - βφ(u)}, and its gauge, sup {τᵀu : φ(u) ≤ 1}. A function of
degree p satisfies φ(ρu) = ρᵖφ(u); with ρ = σ^(1/p), β = b/ρ^(p-1) and (βφ)*(τ) = ρt the dual term σβ + (βφ)*(τ) becomes
ρ(b + t), with a conjugate in (τ, b, t) that is free of σ. Minimised over b it is ρ·gauge(τ).

Vectors come flat and in parts: ``part[k]`` says to which vector component k belongs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drolayers.errors import ModelError

Constraints = list[cp.Constraint]
Labels = NDArray[np.int64]
Sign = NDArray[np.float64] | None
"""The sign of every component where it is known, zero where it is not."""


class Outer(ABC):
    """A convex function φ ≥ 0 (or, for ``Affine``, linear) of degree ``degree``."""

    degree: float
    additive: bool
    """Whether φ(u) is the sum of φ over the components of u."""

    @abstractmethod
    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """An upper bound t on sup_u {τᵀu - βφ(u)}, one a part; None where it is zero on the domain."""

    @abstractmethod
    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """Sup {τᵀu : φ(u) ≤ 1}, one a part; known signs save epigraph variables."""

    @abstractmethod
    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """φ of torch vectors ``(..., component)``, one value a label: ``(..., bounds)``."""

    @abstractmethod
    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """Lim φ(su)/s as s grows."""

    @abstractmethod
    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """φ of the rows of ``u`` (points, component) as a convex expression (points, bounds)."""

    @abstractmethod
    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """The p-th root of φ, which is convex as well and scales with ``u``."""


@final
@dataclass(frozen=True)
class Affine(Outer):
    """φ(u) = ±u, with bounds of their own where there are both signs; the conjugate is finite only at τ = ±β."""

    signs: tuple[float, ...] = (1.0,)
    degree: float = 1.0
    additive: bool = True

    def negated(self) -> Affine:
        """-φ."""
        return Affine(tuple(-sign for sign in self.signs))

    def slope(self, multipliers: list[cp.Expression]) -> cp.Expression:
        """τ, by the multiplier of every sign."""
        signed = [beta if sign > 0 else -beta for sign, beta in zip(self.signs, multipliers, strict=True)]
        return sum(signed[1:], signed[0])

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """Callers put τ at its place."""
        return None, []

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """None: the best multiplier is not known."""
        raise NotImplementedError

    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """All of u with every sign."""
        return torch.cat([sign * u for sign in self.signs], -1)

    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """φ itself."""
        return self.value(u, label, bounds)

    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """All of u with every sign."""
        return cp.hstack([sign * u for sign in self.signs])

    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """φ itself."""
        return self.expression(u, label, bounds)


@final
@dataclass(frozen=True)
class PNorm(Outer):
    """φ(u) = ‖u‖ₚ; its conjugate is the indicator of ‖τ‖_q ≤ β."""

    p: float
    degree: float = 1.0

    def __post_init__(self) -> None:
        if not self.p >= 1:
            raise ModelError(f"A norm needs p >= 1, not p={self.p}.")

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Only the 1-norm."""
        return self.p == 1

    @property
    def dual(self) -> float:
        """The exponent q of the dual norm."""
        return np.inf if self.p == 1 else 1.0 if np.isinf(self.p) else self.p / (self.p - 1.0)

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """‖τ‖_q ≤ β."""
        return None, norm_below(tau, part, multiplier, self.dual)

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """‖τ‖_q."""
        if single(part, parts):
            return _by_part(magnitude(tau, sign), part), []
        bound = cp.Variable(parts)
        return bound, norm_below(tau, part, bound, self.dual)

    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """‖u‖ₚ of each label's components."""
        if np.array_equal(label, np.arange(bounds)):
            return u.abs()
        return torch.stack([u[..., label == b].norm(p=self.p, dim=-1) for b in range(bounds)], -1)

    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """The norm itself."""
        return self.value(u, label, bounds)

    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """‖u‖ₚ of each label's components."""
        if np.array_equal(label, np.arange(bounds)):
            return cp.abs(u)
        return cp.hstack([_columns(_row_norm(u[:, np.flatnonzero(label == b)], self.p)) for b in range(bounds)])

    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """The norm itself."""
        return self.expression(u, label, bounds)


@final
@dataclass(frozen=True)
class Square(Outer):
    """φ(u) = ‖u‖ₚ² (p = 2 unless said); its conjugate is ‖τ‖_q²/(4β)."""

    p: float = 2.0
    degree: float = 2.0

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Only in the 2-norm."""
        return self.p == 2

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """‖τ‖² ≤ 4βt as a second-order cone."""
        t = cp.Variable(multiplier.shape[0])
        constraints: Constraints = []
        if self.p == 2 or single(part, multiplier.shape[0]):
            for chosen, components in _by_size(part, multiplier.shape[0]):
                b, s = multiplier[chosen], t[chosen]
                vectors = cp.reshape(tau[components.ravel()], components.shape[::-1], order="F")
                tail = cp.vstack([cp.reshape(b - s, (1, chosen.size), order="F"), vectors])
                constraints.append(cp.SOC(b + s, tail, axis=0))
            return t, constraints
        length = cp.Variable(multiplier.shape[0], nonneg=True)
        constraints = norm_below(tau, part, length, PNorm(self.p).dual)
        squared, more = Square().conjugate(length, np.arange(length.size), multiplier)
        return squared, constraints + more

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """‖τ‖_q."""
        return PNorm(self.p).gauge(tau, part, parts, sign)

    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """Sums of squares by label."""
        if self.p == 2:
            index = torch.as_tensor(label, device=u.device)
            return u.new_zeros(*u.shape[:-1], bounds).index_add(-1, index, u**2)
        return PNorm(self.p).value(u, label, bounds) ** 2

    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """Infinite off zero."""
        return _infinite(self.value(u, label, bounds) > 0, u)

    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """Sums of squares by label."""
        if self.p == 2:
            adds = (label[:, None] == np.arange(bounds)).astype(float)
            return cp.square(u) @ adds
        return cp.square(PNorm(self.p).expression(u, label, bounds))

    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """The norm."""
        return PNorm(self.p).expression(u, label, bounds)


@final
@dataclass(frozen=True)
class Power(Outer):
    """φ(u) = |u|ᵖ of one component, p > 1; its conjugate is (p-1)p^(-q)|τ|^q β^(1-q)."""

    p: float
    additive: bool = False

    def __post_init__(self) -> None:
        if not (self.p > 1 and np.isfinite(self.p)):
            raise ModelError(f"A power needs a finite p > 1, not p={self.p}.")

    @property
    def degree(self) -> float:  # type: ignore[override]
        """P."""
        return self.p

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """A power cone (a second-order cone for p = 2): (t/c)^(1/q) β^(1/p) ≥ |τ| with c = (p-1)p^(-q)."""
        if self.p == 2:
            return Square().conjugate(tau, part, multiplier)
        q = self.p / (self.p - 1.0)
        scaled = cp.Variable(multiplier.shape[0])
        cone = cp.PowCone3D(scaled, multiplier, _by_part(tau, part), 1.0 / q)
        return (self.p - 1.0) * self.p**-q * scaled, [cone]

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """|τ|."""
        return _by_part(magnitude(tau, sign), part), []

    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """|u|ᵖ."""
        return u.abs() ** self.p

    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """Infinite off zero."""
        return _infinite(u.abs() > 0, u)

    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """|u|ᵖ, by the power cone rather than by many second-order cones."""
        return cp.square(u) if self.p == 2 else cp.power(cp.abs(u), self.p, approx=False)

    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """|u|."""
        return cp.abs(u)


@final
@dataclass(frozen=True)
class PositiveSquared(Outer):
    """φ(u) = (u⁺)² of one component; its conjugate is τ²/(4β) for τ ≥ 0."""

    degree: float = 2.0
    additive: bool = False

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """As for the square, on τ ≥ 0."""
        t, constraints = Square().conjugate(tau, part, multiplier)
        return t, [tau >= 0, *constraints]

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """τ, on τ ≥ 0."""
        return _by_part(tau, part), [tau >= 0]

    def value(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """(u⁺)²."""
        return u.clamp(min=0.0) ** 2

    def recession(self, u: Tensor, label: Labels, bounds: int) -> Tensor:
        """Infinite where positive."""
        return _infinite(u > 0, u)

    def expression(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """(u⁺)²."""
        return cp.square(cp.pos(u))

    def root(self, u: cp.Expression, label: Labels, bounds: int) -> cp.Expression:
        """u⁺."""
        return cp.pos(u)


def norm_below(tau: cp.Expression, part: Labels, bound: cp.Expression, q: float) -> Constraints:
    """‖τ‖_q ≤ bound, part by part."""
    if np.isinf(q) or single(part, bound.shape[0]):
        limit = bound if np.array_equal(part, np.arange(bound.shape[0])) else bound[part]
        if tau.is_nonneg():
            return [tau <= limit]
        return [-tau <= limit] if tau.is_nonpos() else [tau <= limit, -tau <= limit]
    constraints: Constraints = []
    for chosen, components in _by_size(part, bound.shape[0]):
        vectors = cp.reshape(tau[components.ravel()], components.shape[::-1], order="F")
        if q == 2:
            constraints.append(cp.SOC(bound[chosen], vectors, axis=0))
        elif q == 1:
            size = cp.Variable(vectors.shape, nonneg=True)
            constraints += [vectors <= size, -vectors <= size, cp.sum(size, axis=0) <= bound[chosen]]
        else:
            share = cp.Variable(vectors.shape)
            limit = cp.vstack([bound[chosen]] * vectors.shape[0])
            flat = [cp.vec(v, order="F") for v in (share, limit, vectors)]
            constraints += [cp.PowCone3D(*flat, 1.0 / q), cp.sum(share, axis=0) <= bound[chosen]]
    return constraints


def magnitude(tau: cp.Expression, sign: Sign = None) -> cp.Expression:
    """|τ|, without epigraph variables where all signs are known."""
    if tau.is_nonneg():
        return tau
    if tau.is_nonpos():
        return -tau
    return cp.abs(tau) if sign is None or not sign.all() else cp.multiply(sign, tau)


def single(part: Labels, parts: int) -> bool:
    """Whether every part has exactly one component."""
    return part.size == parts and np.unique(part).size == parts


def _by_part(tau: cp.Expression, part: Labels) -> cp.Expression:
    """Components in the order of their parts, one each."""
    return tau if np.array_equal(part, np.arange(part.size)) else tau[np.argsort(part)]


def _by_size(part: Labels, parts: int) -> Iterator[tuple[Labels, NDArray[np.int64]]]:
    """Parts of equal size together: their labels and, a row each, their components."""
    sizes = np.bincount(part, minlength=parts)
    order = np.argsort(part, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for size in np.unique(sizes[sizes > 0]):
        chosen = np.flatnonzero(sizes == size)
        yield chosen, order[starts[chosen][:, None] + np.arange(size)]


def _row_norm(u: cp.Expression, p: float) -> cp.Expression:
    """The p-norm of every row."""
    if u.shape[1] == 1:
        return cp.abs(u[:, 0])
    if p in (1, 2) or np.isinf(p):
        return cp.norm(u, p, axis=1)
    return cp.hstack([cp.pnorm(u[i], p, approx=False) for i in range(u.shape[0])])


def _columns(vector: cp.Expression) -> cp.Expression:
    """A vector as a matrix of one column."""
    return cp.reshape(vector, (vector.size, 1), order="F")


def _infinite(where: Tensor, like: Tensor) -> Tensor:
    """Infinity where a condition holds, zero elsewhere."""
    return torch.where(
        where, torch.full_like(where, torch.inf, dtype=like.dtype), torch.zeros_like(where, dtype=like.dtype)
    )
