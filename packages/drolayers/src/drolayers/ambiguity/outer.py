"""Scalar convex functions φ of a vector u, from which every moment g(y) = φ(My - h) is made.

Most are a power φ(u) = r(u)ᵖ of a norm or of a positive part, so that φ(ρu) = ρᵖφ(u). Their conjugate under a
multiplier is sup_u {τᵀu - βφ(u)}, their gauge sup {τᵀu : φ(u) ≤ 1}. With ρ = σ^(1/p), β = b/ρ^(p-1) and (βφ)*(τ) = ρt
the dual term σβ + (βφ)*(τ) becomes ρ(b + t), with a conjugate in (τ, b, t) that is free of σ. Minimised over b it is
ρ·gauge(τ).

Vectors come flat and in parts: ``part[k]`` says to which vector component k belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

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


@final
@dataclass(frozen=True)
class Affine:
    """φ(u) = ±u, with bounds of their own where there are both signs; the conjugate is finite only at τ = ±β."""

    signs: tuple[float, ...] = (1.0,)
    degree: ClassVar[float] = 1.0
    additive: ClassVar[bool] = True

    def negated(self) -> Affine:
        """-φ."""
        return Affine(tuple(-sign for sign in self.signs))

    def slope(self, multipliers: list[cp.Expression]) -> cp.Expression:
        """τ, by the multiplier of every sign."""
        signed = [beta if sign > 0 else -beta for sign, beta in zip(self.signs, multipliers, strict=True)]
        return sum(signed[1:], signed[0])

    def value(self, u: Tensor, label: Labels, bounds: int, recession: bool = False) -> Tensor:
        """All of u with every sign, which is its own recession function."""
        return torch.cat([sign * u for sign in self.signs], -1)

    def expression(self, u: cp.Expression, label: Labels, bounds: int, root: bool = False) -> cp.Expression:
        """All of u with every sign."""
        return cp.hstack([sign * u for sign in self.signs])


@final
@dataclass(frozen=True)
class NormPower:
    """φ(u) = ‖u‖ₚ^degree, or (u⁺)^degree of one component.

    The conjugate of a norm is the indicator of ‖τ‖_q ≤ β; that of a square ‖τ‖_q²/(4β); that of a power d with
    1/d + 1/e = 1 is (d-1)d^(-e)‖τ‖_q^e β^(1-e).
    """

    p: float = 2.0
    degree: float = 1.0
    positive: bool = False
    additive: bool = field(init=False, repr=False)
    """Whether φ(u) is the sum of φ over the components of u."""
    dual: float = field(init=False, repr=False)
    """The exponent q of the dual norm."""

    def __post_init__(self) -> None:
        if not self.p >= 1:
            raise ModelError(f"A norm needs p >= 1, not p={self.p}.")
        if not (self.degree >= 1 and np.isfinite(self.degree)):
            raise ModelError(f"A power needs a finite p >= 1, not p={self.degree}.")
        dual = np.inf if self.p == 1 else 1.0 if np.isinf(self.p) else self.p / (self.p - 1.0)
        vars(self).update(additive=self.p == self.degree, dual=dual)

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """An upper bound t on sup_u {τᵀu - βφ(u)}, one a part; None where it is zero on the domain."""
        parts = multiplier.shape[0]
        constraints: Constraints = [tau >= 0] if self.positive else []
        if self.degree == 1:
            return None, constraints + norm_below(tau, part, multiplier, self.dual)
        if not (single(part, parts) or (self.p == 2 and self.degree == 2)):
            length = cp.Variable(parts, nonneg=True)
            constraints += norm_below(tau, part, length, self.dual)
            tau, part = length, np.arange(parts)
        t = cp.Variable(parts)
        if self.degree != 2:
            # (t/c)^(1/e) β^(1/d) ≥ |τ| with c = (d-1)d^(-e).
            e = self.degree / (self.degree - 1.0)
            constraints.append(cp.PowCone3D(t, multiplier, _by_part(tau, part), 1.0 / e))
            return (self.degree - 1.0) * self.degree**-e * t, constraints
        for chosen, components in _by_size(part, parts):
            # ‖τ‖² ≤ 4βt as a second-order cone.
            b, s = multiplier[chosen], t[chosen]
            vectors = cp.reshape(tau[components.ravel()], components.shape[::-1], order="F")
            tail = cp.vstack([cp.reshape(b - s, (1, chosen.size), order="F"), vectors])
            constraints.append(cp.SOC(b + s, tail, axis=0))
        return t, constraints

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression, Constraints]:
        """Sup {τᵀu : φ(u) ≤ 1} = ‖τ‖_q, one a part; known signs save epigraph variables."""
        if self.positive:
            return _by_part(tau, part), [tau >= 0]
        if single(part, parts):
            return _by_part(magnitude(tau, sign), part), []
        bound = cp.Variable(parts)
        return bound, norm_below(tau, part, bound, self.dual)

    def value(self, u: Tensor, label: Labels, bounds: int, recession: bool = False) -> Tensor:
        """φ of torch vectors ``(..., component)``, one value a label: ``(..., bounds)``; or lim φ(su)/s as s grows."""
        if self.p == 2 and self.degree == 2 and not (self.positive or recession):
            index = torch.as_tensor(label, device=u.device)
            return u.new_zeros(*u.shape[:-1], bounds).index_add(-1, index, u**2)
        if np.array_equal(label, np.arange(bounds)):
            r = u.clamp(min=0.0) if self.positive else u.abs()
        else:
            r = torch.stack([u[..., label == b].norm(p=self.p, dim=-1) for b in range(bounds)], -1)
        if self.degree == 1 or not recession:
            return r**self.degree
        return torch.where(r > 0, torch.full_like(r, torch.inf), torch.zeros_like(r))

    def expression(self, u: cp.Expression, label: Labels, bounds: int, root: bool = False) -> cp.Expression:
        """φ of the rows of ``u`` (points, component) as a convex expression (points, bounds).

        With ``root`` its p-th root, which is convex as well and scales with ``u``.
        """
        if self.p == 2 and self.degree == 2 and not (self.positive or root):
            return cp.square(u) @ (label[:, None] == np.arange(bounds)).astype(float)
        if np.array_equal(label, np.arange(bounds)):
            r = cp.pos(u) if self.positive else cp.abs(u)
        else:
            r = cp.hstack([_columns(_row_norm(u[:, np.flatnonzero(label == b)], self.p)) for b in range(bounds)])
        if root or self.degree == 1:
            return r
        # By the power cone rather than by many second-order cones.
        return cp.square(r) if self.degree == 2 else cp.power(r, self.degree, approx=False)


@final
@dataclass(frozen=True)
class Still:
    """φ(u) = 0 at u = 0, infinite elsewhere: what may not move. Its conjugate is zero, whatever the multiplier."""

    def gauge(
        self, tau: cp.Expression, part: Labels, parts: int, sign: Sign = None
    ) -> tuple[cp.Expression | None, Constraints]:
        """Nothing, and nothing to be said."""
        return None, []

    def conjugate(
        self, tau: cp.Expression, part: Labels, multiplier: cp.Expression
    ) -> tuple[cp.Expression | None, Constraints]:
        """The same."""
        return None, []


Outer = Affine | NormPower


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
