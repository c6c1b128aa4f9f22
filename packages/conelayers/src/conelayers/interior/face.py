"""The face of the cones on which a solution lies, and the solution map's linear equations there.

With v = z - s the optimality conditions read  Px + q + AᵀΠ(v) = 0,  Ax + Π(v) - v = b,  where Π projects onto the dual
cone; z = Π(v) and s = Π(v) - v. Where Π has a derivative D at v, the solution has one too, and solves linear equations
in D. On the range of D they take the form of an interior-point step at its very end,

    P g + Aᵀh = r,   E A g - H h = t,   h = E h,       E the projector onto that range, H = D⁻¹ - I on it:

* orthant: E = 1 where z > s (the row is active), 0 where s > z (it is not); H = 0;
* second-order cone, v = (t, w), u = w/‖w‖: E = I inside the cone (s = 0), E = 0 inside its polar (z = 0), both with
  H = 0. Between them z ∝ ẑ = (1, u)/√2 and s ∝ ŝ = (1, -u)/√2, E = I - ŝŝᵀ and H = κ(I - ŝŝᵀ - ẑẑᵀ), κ = s₀/z₀.

An interior-point method knows s and z to about the root of its tolerance, and the minimiser of a curved program no
better. Newton's method on the optimality conditions with the face, whose system is all but that of an interior-point
step and is factored by the same algebra, takes both to machine precision (``polish``). A point whose slacks and
multipliers confirm the face is a solution, since the program is convex; if they do not, the next face is theirs.

Written with operators that numpy arrays and tensors share, batch last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from conelayers.interior.method import MOVED, SHIFT, Algebra
from conelayers.program.program import Cones
from conelayers.status import Derivative

Array = Any

ROUNDS = 6
"""Faces that are tried for an item."""

NEWTON = 4
"""Newton steps on a face: linear rows need one or two, curved ones another two."""

SOFT = 1e-6
"""How far the factored system is from the face's. Where there are more active rows than unknowns, what curved ones
leave inconsistent moves multipliers by that much divided by this."""

STILL = 1e-11
"""Length of the next Newton step, as the last two predict it, relative to the point: below it, another start ends at
the same point, and above it a round more is worth its time."""

POLISHED = 1e-9
"""What may be left of the optimality conditions, in equilibrated units, where numbers are about one."""

MARGIN = 1e-9
"""How far from another face a solution must be to be differentiated on its own alone, in the same units."""

REFINE = 6
"""Refinements of the adjoint system."""

SETTLED = 1e-7
"""By how much the last refinement may have moved the adjoint solution, relative to its size."""

GONE = 1e-9
"""By how much a refinement moves what is left of noise, in the end."""

ROUNDING = 1e-12
"""What counts as rounding, relative to the larger of g and h."""


class ConeRows(NamedTuple):
    """Where the rows of the cones stand; second-order cones of one dimension are handled together."""

    zero: int
    linear: int
    groups: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Edge:
    """Second-order cones of one dimension: ``full`` and ``curved`` tell E = I and E = I - ŝŝᵀ apart from E = 0."""

    rows: Array
    full: Array
    curved: Array
    unit: Array
    kappa: Array


@dataclass(frozen=True, eq=False)
class Face:
    """The face at v = z - s, for a batch; ``margin`` is how far v is from another one, item by item."""

    xp: Any
    rows: ConeRows
    active: Array
    edges: tuple[Edge, ...]
    margin: Array

    @classmethod
    def at(cls, xp: Any, rows: ConeRows, v: Array) -> Face:
        """The face."""
        orthant = v[rows.zero : rows.linear]
        margin = xp.full_like(v[:1].sum(0), xp.inf)
        if len(orthant):
            margin = xp.amin(abs(orthant), 0)
        edges = []
        for group in rows.groups:
            t, w = v[group][:, 0], v[group][:, 1:]
            length = xp.sqrt((w * w).sum(1))
            unit = w / xp.where(length > 0, length, xp.ones_like(length))[:, None]
            full, off = length <= t, length <= -t
            curved = ~full & ~off
            kappa = (length - t) / xp.where(curved, length + t, xp.ones_like(length))
            edges.append(Edge(group, full, curved, unit, xp.where(curved, kappa, xp.ones_like(kappa))))
            margin = xp.minimum(margin, xp.amin(xp.minimum(abs(length - t), abs(length + t)), 0))
        return cls(xp, rows, orthant > 0, tuple(edges), margin)

    def same(self, other: Face) -> Array:
        """For which items both are the same face."""
        alike = (self.active == other.active).all(0)
        for one, two in zip(self.edges, other.edges, strict=True):
            alike = alike & (one.full == two.full).all(0) & (one.curved == two.curved).all(0)
        return alike

    def project(self, v: Array) -> Array:
        """E v."""
        out, xp = v + 0.0, self.xp
        out[self.rows.zero : self.rows.linear] *= self.active
        for edge in self.edges:
            cone = v[edge.rows]
            along = 0.5 * (cone[:, 0] - (edge.unit * cone[:, 1:]).sum(1)) * edge.curved
            kept = xp.concatenate([(cone[:, 0] - along)[:, None], cone[:, 1:] + along[:, None] * edge.unit], 1)
            out[edge.rows] = kept * (edge.full | edge.curved)[:, None]
        return out

    def curve(self, h: Array) -> Array:
        """H h."""
        out = 0.0 * h
        for edge in self.edges:
            tail = h[edge.rows][:, 1:]
            across = tail - (edge.unit * tail).sum(1)[:, None] * edge.unit
            out[edge.rows[:, 1:]] = (edge.kappa * edge.curved)[:, None] * across
        return out

    def split(self, v: Array) -> tuple[Array, Array]:
        """Z = Π(v) and s = Π(v) - v, as if v still lay on this face."""
        z, xp = v + 0.0, self.xp
        z[self.rows.zero : self.rows.linear] *= self.active
        for edge in self.edges:
            cone = v[edge.rows]
            length = xp.sqrt((cone[:, 1:] * cone[:, 1:]).sum(1))
            unit = cone[:, 1:] / xp.where(length > 0, length, xp.ones_like(length))[:, None]
            half = (0.5 * (cone[:, 0] + length))[:, None]
            z[edge.rows] = xp.where(
                edge.curved[:, None], xp.concatenate([half, half * unit], 1), cone * edge.full[:, None]
            )
        return z, z - v

    def point(self, like: Array, soft: float) -> tuple[Array, Array]:
        """Slacks and multipliers of an interior-point system that all but is the face's.

        The Nesterov-Todd scaling of (s, z) is H on the face, at most ``soft`` where H is zero, and at least 1/soft off
        the face: on curved cones η² = κ, and w is turned towards ŝ by an angle φ with e^2φ = max(κ, 1/κ)/soft.
        """
        xp, zero, linear = self.xp, self.rows.zero, self.rows.linear
        s, z = 0.0 * like, 0.0 * like
        s[zero:linear] = xp.where(self.active, soft + 0.0 * s[zero:linear], 1.0 + 0.0 * s[zero:linear])
        z[zero:linear] = 1.0 + soft - s[zero:linear]
        for edge in self.edges:
            one, steep = xp.ones_like(edge.kappa), xp.maximum(edge.kappa, 1.0 / edge.kappa)
            phi = 0.5 * xp.log(steep / soft)
            root, flat = xp.sqrt(edge.kappa), xp.where(edge.full, soft * one, one)
            heads = xp.cosh(phi) * root, xp.cosh(phi) / root
            tails = -xp.sinh(phi) * root, xp.sinh(phi) / root
            for target, head, tail, rest in zip((s, z), heads, tails, (flat, 1.0 + soft - flat), strict=True):
                top = xp.where(edge.curved, head, rest)[:, None]
                target[edge.rows] = xp.concatenate([top, (tail * edge.curved)[:, None] * edge.unit], 1)
        return s, z


def cone_rows(cones: Cones, device: torch.device | None) -> ConeRows:
    """Where cones stand, as numpy arrays or as tensors on a device."""
    linear = cones.zero + cones.nonneg
    starts = linear + np.cumsum([0, *cones.soc])[:-1]
    groups = []
    for dimension in sorted(set(cones.soc)):
        mine = np.array([k for k, d in zip(starts, cones.soc, strict=True) if d == dimension])
        group = mine[:, None] + np.arange(dimension)
        groups.append(group if device is None else torch.as_tensor(group, device=device))
    return ConeRows(cones.zero, linear, tuple(groups))


class Polish(NamedTuple):
    """A point after Newton's steps on a face, and where to begin if that was not the face (``done`` is false).

    ``still`` says whether the last step moved nothing: a later round changes no digit.
    """

    x: Array
    v: Array
    z: Array
    s: Array
    done: Array
    still: Array
    next_x: Array
    next_v: Array
    face: Face
    system: Any


def polish(on: Algebra, rows: ConeRows, x: Array, v: Array) -> Polish:
    """Newton's method on the face of v = z - s."""
    xp = on.xp
    first = face = Face.at(xp, rows, v)
    # Factored once: on a curved cone the face turns a little from step to step, which costs only digits of each step.
    system = on.factor(on.scale(*first.point(v, SOFT)), SHIFT)
    next_x, next_v, last = x, v, None
    for k in range(NEWTON):
        z, s = face.split(v)
        missing = -(on.form(x) + on.columns(z) + on.q)
        beside = on.rows(x) + s - on.b
        step, turn = on.solve(system, missing, -face.project(beside), 0)
        x = x + step
        v = v + face.project(turn) + on.rows(step) + beside
        face = Face.at(xp, rows, v)
        if k == 0:
            next_x, next_v = x, v
        length = xp.maximum(on.sizes(step), on.sizes(turn))
        # One factorisation for all steps: each is shorter by the same factor, or by more.
        ahead = length if last is None else length * xp.minimum(length / (last + MOVED), 1.0 + 0.0 * length)
        last = length
        if not on.recorded and bool((ahead <= MOVED).all()):
            break
    size = 1.0 + xp.maximum(on.sizes(x), on.sizes(v))
    still = ahead <= STILL * size
    z, s = face.split(v)
    left = xp.maximum(on.sizes(on.form(x) + on.columns(z) + on.q), on.sizes(on.rows(x) + s - on.b))
    done = first.same(face) & (left <= POLISHED * size)
    return Polish(x, v, z, s, done, still, next_x, next_v, face, system)


def polished_at(on: Algebra, rows: ConeRows, x: Array, v: Array) -> Polish:
    """Factor the face's system at points that are polished already."""
    face = Face.at(on.xp, rows, v)
    system = on.factor(on.scale(*face.point(v, SOFT)), SHIFT)
    z, s = face.split(v)
    done = face.margin == face.margin
    return Polish(x, v, z, s, done, done, x, v, face, system)


def adjoint(
    on: Algebra,
    x: Array,
    v: Array,
    seed: Array,
    dual_seed: Array,
    noise_x: Array,
    noise_v: Array,
    rows: ConeRows,
    polished: bool,
) -> tuple[Array, ...]:
    """One round: where the next begins, then x, z, g, h, what the equations leave of noise, and a code.

    That is UNASKED where the face has changed. Points that are ``polished`` are taken as they are. The seeds are the
    gradients of a loss with respect to x and to z.
    """
    xp, at = on.xp, (polished_at if polished else polish)(on, rows, x, v)
    along = at.face.project(dual_seed)
    g, h, dg, dh = _solved(on, at.system, at.face, seed, along, 0.0 * seed, 0.0 * v)
    noise = noise_x, at.face.project(noise_v)
    rest_g, rest_h, *_ = _solved(on, at.system, at.face, 0.0 * seed, 0.0 * along, *noise, GONE)
    size_g, size_h = on.sizes(g), on.sizes(h)
    floor = ROUNDING * (size_g + size_h)
    settled = (on.sizes(dg) <= SETTLED * size_g + floor) & (on.sizes(dh) <= SETTLED * size_h + floor)
    missing, beside = seed - on.form(g) - on.columns(h), along + at.face.curve(h) - at.face.project(on.rows(g))
    left = xp.maximum(on.sizes(missing), on.sizes(beside))
    settled = settled & (left <= SETTLED * (on.sizes(seed) + on.sizes(along)) + floor)
    clear = at.face.margin > MARGIN * (1.0 + on.sizes(at.v))
    code = xp.where(at.done, xp.full_like(left, float(Derivative.UNVERIFIED)), 0.0 * left)
    code = xp.where(at.done & clear & settled, xp.full_like(left, float(Derivative.FACE)), code)
    return at.next_x, at.next_v, at.x, at.z, g, h, rest_g, rest_h, code[None]


def null_direction(
    on: Algebra, x: Array, v: Array, noise_x: Array, noise_v: Array, rows: ConeRows
) -> tuple[Array, ...]:
    """Project noise on the null space of the face's system, at polished points; and whether no other face is near.

    The system is symmetric: its null space is also the tangent space of the optimal points and multipliers.
    """
    at = polished_at(on, rows, x, v)
    g, h, *_ = _solved(on, at.system, at.face, 0.0 * x, 0.0 * v, noise_x, at.face.project(noise_v), GONE)
    clear = at.face.margin > MARGIN * (1.0 + on.sizes(at.v))
    return at.x, at.z, g, h, clear[None] + 0.0


def _solved(
    on: Algebra, system: Any, face: Face, seed: Array, along: Array, g: Array, h: Array, least: float = 0.0
) -> tuple[Array, Array, Array, Array]:
    """The g and h with Pg + Aᵀh = seed, E A g - H h = along, h = E h, and by how much the last refinement moved them.

    Where they are not unique, they are those next to where we begin.
    """
    dg, dh = g, h
    for _ in range(1 + REFINE):
        missing = seed - on.form(g) - on.columns(h)
        beside = along + face.curve(h) - face.project(on.rows(g))
        dg, dh = on.solve(system, missing, beside, 0)
        dh = face.project(dh)
        g, h = g + dg, h + dh
        still = on.sizes(dg) <= ROUNDING * on.sizes(g) + least
        still = still & (on.sizes(dh) <= ROUNDING * on.sizes(h) + least)
        if not on.recorded and bool(still.all()):
            break
    return g, h, dg, dh
