"""The primal form of a worst case: probabilities and probabilities times means, by scenario and piece.

Let a cost be the maximum of K pieces a_kᵀy + b_k. Let a distribution put the mass p_k on the outcomes at which piece k
is used, with mean m_k / p_k there. The expected cost is Σ_k a_kᵀm_k + b_k p_k. Every convex condition on the
distribution becomes a condition on the *perspectives* of its parts. A support asks m_k / p_k ∈ Ξ, a moment asks
Σ_k p_k g(m_k / p_k) ≤ σ. By Jensen's inequality nothing is lost where g and Ξ are convex.

Nothing here uses the library: these few lines are the definition that the library is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

Array = Any
Constraints = list[cp.Constraint]
Values = dict[str, Array]
"""Numbers of one item by the name of the parameter."""


@dataclass(frozen=True)
class Masses:
    """The masses of one worst case.

    Attributes:
        p: probabilities, ``(scenario * piece,)``, scenario by scenario.
        m: probabilities times means, ``(scenario * piece, dim)``.
        pieces: number of pieces.
        total: the mass of all scenarios, a number or a variable.
        budget: what a Wasserstein set bounds the total distance by, instead of its radius.
    """

    p: cp.Expression
    m: cp.Expression
    pieces: int
    total: cp.Expression | float
    budget: float | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates of y."""
        return int(self.m.shape[1])

    @property
    def scenarios(self) -> int:
        """Number of scenarios."""
        return int(self.p.shape[0]) // self.pieces

    @property
    def mean(self) -> cp.Expression:
        """The total mass times the mean of y."""
        return cp.sum(self.m, axis=0)

    def by_scenario(self, values: cp.Expression) -> cp.Expression:
        """The sums of ``values``, one a row, over the pieces of every scenario."""
        return cp.sum(cp.reshape(values, (self.scenarios, self.pieces), order="C"), axis=1)

    def part(self, first: int, count: int, total: cp.Expression | float) -> Masses:
        """The masses of ``count`` scenarios from the ``first`` on."""
        rows = slice(first * self.pieces, (first + count) * self.pieces)
        return Masses(self.p[rows], self.m[rows], self.pieces, total)

    def about(self, points: Array) -> cp.Expression:
        """Subtract p·y from m, for one point ``(dim,)``, or for one point a scenario ``(scenario, dim)``."""
        rows = np.broadcast_to(np.atleast_2d(points), (self.scenarios, self.dim))
        return self.m - cp.multiply(
            cp.reshape(self.p, (self.p.shape[0], 1), order="C"), np.repeat(rows, self.pieces, 0)
        )


# --- Moments ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gauge:
    """φ(By - c) for an outer function φ; B and c are read from an item's numbers.

    Attributes:
        outer: "affine", "norm", "square", "positive" (the square of the positive part) or "cube" (of a single entry's
            absolute value).
        image: B ``(row, dim)`` and c ``(row,)``.
        p: of the norm.
    """

    outer: str
    image: Callable[[Values], tuple[Array, Array]]
    p: float = 2.0

    @property
    def degree(self) -> int:
        """The power of the unit of y in which the moment is measured."""
        return {"affine": 1, "norm": 1, "square": 2, "positive": 2, "cube": 3}[self.outer]

    def at(self, values: Values, y: Array) -> Array:
        """The moment at points ``(point, dim)``."""
        B, c = self.image(values)
        u = y @ np.atleast_2d(B).T - c
        if self.outer == "affine":
            return u[:, 0]
        if self.outer == "norm":
            return np.linalg.norm(u, self.p, axis=1)
        if self.outer == "square":
            return (u**2).sum(1)
        return np.maximum(u[:, 0], 0) ** 2 if self.outer == "positive" else np.abs(u[:, 0]) ** 3

    def perspective(self, values: Values, masses: Masses) -> tuple[cp.Expression, Constraints]:
        """p·g(m/p) or a bound from above, one a row, with the constraints that define it."""
        B, c = self.image(values)
        B = np.atleast_2d(B)
        u = masses.m @ B.T - cp.multiply(cp.reshape(masses.p, (-1, 1), order="C"), np.atleast_2d(c))
        rows = int(masses.p.shape[0])
        if self.outer == "affine":
            return u[:, 0], []
        if self.outer == "norm":
            return (cp.abs(u[:, 0]), []) if B.shape[0] == 1 else (_norms(u, self.p), [])
        t = cp.Variable(rows)
        if self.outer == "cube":
            # |u|³ ≤ t p² is the power cone t^(1/3) p^(2/3) ≥ |u|.
            return t, [cp.PowCone3D(t, masses.p, u[:, 0], np.full(rows, 1 / 3))]
        if self.outer == "positive":
            v = cp.Variable(rows, nonneg=True)
            return t, [v >= u[:, 0], squares_below(cp.reshape(v, (rows, 1), order="C"), t, masses.p)]
        return t, [squares_below(u, t, masses.p)]


def _norms(u: cp.Expression, p: float) -> cp.Expression:
    """‖u_r‖_p of every row."""
    if p in (1, 2, np.inf):
        return cp.norm(u, p, axis=1)
    return cp.hstack([cp.pnorm(u[r], p, approx=False) for r in range(u.shape[0])])


def squares_below(u: cp.Expression, t: cp.Expression, p: cp.Expression) -> cp.Constraint:
    """‖u_r‖² ≤ t_r p_r for every row, as second-order cones ‖(2u, t - p)‖ ≤ t + p."""
    rows = u.shape[0]
    return cp.SOC(t + p, cp.vstack([2 * u.T, cp.reshape(t - p, (1, rows), order="C")]), axis=0)


@dataclass(frozen=True)
class Moment:
    """Σ_j w_j g_j(y) ≤ σ, or max_j w_j g_j(y) ≤ σ, with the source text of the library's moment.

    Attributes:
        code: source text.
        gauges: pairs of weight and gauge at size one.
        largest: whether the gauges are maximised rather than summed.
        draw: the learnt parameters without the bound, by the library's name.
        degrees: the power of the unit of y of every learnt parameter.
        sigma: a given bound; learnt if None.
        shared: the bounds of a vector moment: one gauge each, instead of a sum.
    """

    code: str
    gauges: tuple[tuple[float, Gauge], ...]
    draw: Callable[[Any], Values]
    degrees: dict[str, int]
    largest: bool = False
    sigma: Array | None = None
    vector: bool = False

    @property
    def degree(self) -> int:
        """Of the bound: the largest of its members'."""
        return max(gauge.degree for _, gauge in self.gauges)

    def at(self, values: Values, y: Array) -> Array:
        """The moment at points ``(point, dim)``: ``(point,)``, or ``(point, bound)`` of a vector moment."""
        parts = np.stack([weight * gauge.at(values, y) for weight, gauge in self.gauges], -1)
        if self.vector:
            return parts
        return parts.max(-1) if self.largest else parts.sum(-1)

    def constrain(self, values: Values, sigma: Array, masses: Masses) -> Constraints:
        """Σ p·g(m/p) ≤ σ · total."""
        parts, constraints = [], Constraints()
        for weight, gauge in self.gauges:
            part, auxiliary = gauge.perspective(values, masses)
            parts.append(weight * part)
            constraints += auxiliary
        if self.vector:
            bounds = np.broadcast_to(sigma, len(parts))
            return constraints + [cp.sum(part) <= b * masses.total for part, b in zip(parts, bounds, strict=True)]
        if not self.largest:
            return [*constraints, cp.sum(sum(parts)) <= float(sigma) * masses.total]
        largest = cp.Variable(masses.p.shape[0])
        return [
            *constraints,
            *(largest >= part for part in parts),
            cp.sum(largest) <= float(sigma) * masses.total,
        ]


# --- Supports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """{y : Cy ≤ d, ‖E(y - e)‖ ≤ 1 for every ellipsoid}.

    Attributes:
        C: ``(row, dim)``.
        d: ``(row,)``.
        ellipsoids: pairs of e ``(dim,)`` and E ``(dim, dim)``.
    """

    C: Array
    d: Array
    ellipsoids: tuple[tuple[Array, Array], ...] = ()

    def both(self, other: Region) -> Region:
        """The intersection."""
        return Region(
            np.vstack([self.C, other.C]), np.concatenate([self.d, other.d]), (*self.ellipsoids, *other.ellipsoids)
        )

    def constrain(self, masses: Masses) -> Constraints:
        """M / p lies in the region, row by row; along its directions for rows without mass."""
        constraints: Constraints = []
        if len(self.d):
            constraints.append(masses.m @ self.C.T <= cp.reshape(masses.p, (-1, 1), order="C") @ self.d[None])
        for centre, E in self.ellipsoids:
            constraints.append(cp.SOC(masses.p, E @ masses.about(centre).T, axis=0))
        return constraints

    def excess(self, y: Array) -> Array:
        """By how much points ``(point, dim)`` lie outside."""
        excess = [np.full(len(y), -np.inf), *((y @ self.C.T - self.d).T)]
        excess += [np.linalg.norm((y - e) @ E.T, axis=1) - 1.0 for e, E in self.ellipsoids]
        return np.max(excess, axis=0)


def everywhere(dim: int) -> Region:
    """All of space."""
    return Region(np.zeros((0, dim)), np.zeros(0))


def box(low: Array, high: Array) -> Region:
    """Between two ends, which may be infinite."""
    dim = len(low)
    C, d = np.vstack([np.eye(dim), -np.eye(dim)]), np.concatenate([high, -np.asarray(low)])
    return Region(C[np.isfinite(d)], d[np.isfinite(d)])
