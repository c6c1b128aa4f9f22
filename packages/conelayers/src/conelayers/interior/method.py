"""A primal-dual interior-point method on the homogeneous embedding: the loop, once, over any algebra.

The embedding of Goulart and Chen (Clarabel, 2024) for  min ½xᵀPx + qᵀx, Ax + s = b, s ∈ K  looks for

    Px + Aᵀz + qτ = 0,   Ax + s = bτ,   κ + xᵀPx/τ + qᵀx + bᵀz = 0,   s ∈ K, z ∈ K*, τ, κ ≥ 0, sᵀz = 0, τκ = 0.

τ > 0 at the end gives a solution (x, z, s)/τ, κ > 0 a certificate that there is none. All items step together; an item
that has finished stands still, and never feels those beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, final

from conelayers.program.residuals import value_error
from conelayers.status import Status

Array = Any
"""A numpy array or a tensor, ``(entries, batch)`` or ``(batch,)``: what is written here with operators, both have."""

CHECK_EVERY = 2
"""Steps between two looks at which items have finished; on a GPU each look makes the host wait."""

FIRST_CHECK = 6
"""Steps before the first look, since hardly a program finishes sooner."""

ROUGH_STEPS = 4
"""Steps whose systems need no refinement; with six, one curved program in a hundred does not recover."""

PATIENCE = 4
"""Steps without progress after which an item that is close is left where it was best."""

CLOSE = 1e-6
"""What counts as close."""

NEAR = 1e-3
"""What counts as near: an item that is no closer and has not got better for twice as long is left to another solver."""

SPOILT = 10.0
"""How much worse than the best an iterate may be to be remembered for the path."""

SHIFT = 1e-7
"""By which the diagonal of a step's system is moved away from zero; iterative refinement takes its effect back. With
less, the last steps of programs with many dependent rows break down."""

PATH_SHIFT = 1e-10
"""The same on the central path, where systems are better conditioned, and columns that the barrier alone holds far away
must not be held by this."""

CENTRING = 6
"""Newton steps towards a point of the central path, at most: four or five take nearly all items there."""

NEXT = 1e-6
"""Relative length of a whole Newton step on the path after which the next one, about its square, would be rounding."""

MOVED = 1e-12
"""Length of a Newton step after which the next one would be lost to rounding."""

OPTIMAL, FAILED = int(Status.OPTIMAL), int(Status.FAILED)
INFEASIBLE, UNBOUNDED = int(Status.INFEASIBLE), int(Status.UNBOUNDED)


class Algebra(Protocol):
    """A batch of programs, scaled, and what a step asks of its numbers; vectors are ``(entries, batch)``.

    ``xp`` is numpy or torch, ``unit`` the identity e of the cones, ``degree`` its inner product with itself, ``zero``
    the number of rows of the zero cone, which stand first, ``linear`` that of rows before the second-order cones.
    Where work may be recorded (``recorded``), it never looks whether it may end early.
    """

    xp: Any
    unit: Array
    degree: int
    zero: int
    linear: int
    quadratic: bool
    recorded: bool

    @property
    def q(self) -> Array:
        """The linear objective."""

    @property
    def b(self) -> Array:
        """The right-hand side."""

    def rows(self, x: Array) -> Array:
        """A x."""

    def columns(self, z: Array) -> Array:
        """Aᵀz."""

    def form(self, x: Array) -> Array:
        """P x."""

    def dots(self, u: Array, v: Array) -> Array:
        """Inner products, ``(batch,)``."""

    def masses(self, u: Array, v: Array) -> Array:
        """Sums of absolute products, ``(batch,)``."""

    def sizes(self, v: Array) -> Array:
        """Largest absolute entries, ``(batch,)``; infinite where one is no number."""

    def combine(self, a: Array, u: Array, b: Array, v: Array) -> Array:
        """a·u + b·v, where a and b are one number an item."""

    def move(self, v: Array, d: Array, length: Array) -> None:
        """V += length·d, in place, for the items whose length is positive."""

    def keep(self, target: Array, source: Array, chosen: Array) -> None:
        """Copy some items, in place."""

    def margin(self, v: Array) -> Array:
        """The smallest eigenvalue over all cones, ``(batch,)``: positive inside."""

    def reach(self, v: Array, d: Array, w: Array, e: Array) -> Array:
        """The largest t with v + t·d and w + t·e in the cones, ``(batch,)``."""

    def scale(self, s: Array, z: Array) -> Any:
        """The Nesterov-Todd scaling W with Wz = W⁻¹s = λ; H = W²."""

    def factor(self, scaling: Any, shift: float) -> Any:
        """The system [P, Aᵀ; A, -H], its diagonal moved away from zero, factored; the next one may take its place."""

    def solve(self, system: Any, rx: Array, rz: Array, refine: int) -> tuple[Array, Array]:
        """The x and z with Px + Aᵀz = rx and Ax - Hz = rz, refined so often."""

    def renewed(self, system: Any, scaling: Any) -> Any:
        """The system at a scaling close to that which was factored last: refinement makes up for the difference."""

    def slack(self, scaling: Any, dz: Array, offset: Array) -> Array:
        """-(H dz + offset); zero on the rows of the zero cone."""

    def correct(self, scaling: Any, z: Array, ds: Array, dz: Array, target: Array) -> Array:
        """W u with λ∘u = λ∘λ + (W⁻¹ds)∘(W dz) - target·e; zero on the rows of the zero cone."""


@dataclass(eq=False)
class Iterate:
    """A point of the embedding."""

    x: Array
    z: Array
    s: Array
    tau: Array
    kappa: Array

    @property
    def parts(self) -> tuple[Array, Array, Array, Array, Array]:
        """Vectors, then τ and κ as vectors of one entry."""
        return self.x, self.z, self.s, self.tau[None], self.kappa[None]

    def copy(self) -> Iterate:
        """The same numbers elsewhere."""
        return Iterate(*(getattr(self, f.name) + 0.0 for f in fields(self)))

    def pick(self, items: Any) -> Iterate:
        """Some items."""
        return Iterate(*(getattr(self, f.name)[..., items] for f in fields(self)))


class Residuals(NamedTuple):
    """What is left of the embedding's equations at an iterate: Px + Aᵀz + qτ, Ax + s - bτ, and the scalar one."""

    dual: Array
    primal: Array
    gap: Array


@dataclass(eq=False)
class Progress:
    """Where a batch is: its current points, the best ones, and what became of each item.

    ``passed`` holds the last points above a level of the barrier, where they are asked for: from there the central path
    is met at that level.
    """

    current: Iterate
    best: Iterate
    passed: Iterate | None
    score: Array
    idle: Array
    verdict: Array
    steps: Array

    @property
    def running(self) -> Array:
        """Which items go on."""
        return (self.verdict == FAILED) & ((self.idle < 2 * PATIENCE) | (self.score > NEAR))


@dataclass(frozen=True)
class Goal:
    """What is asked of a solve.

    Args:
        tolerance: for feasibility and gap.
        max_iter: steps at most.
        level: of the barrier, above which iterates are remembered; None remembers none.
        stop: whether an item has finished once it is below that level.
    """

    tolerance: float = 1e-9
    max_iter: int = 60
    level: float | None = None
    stop: bool = False


class Steps(Protocol):
    """A batch under way: done directly, or recorded and replayed."""

    def begin(self) -> Progress:
        """The start; what follows changes it in place."""

    def look(self) -> None:
        """Judge the current iterates."""

    def step(self, refine: int) -> None:
        """Take a step."""


@final
class DirectSteps:
    """The functions of this file, one after another."""

    def __init__(self, on: Algebra, goal: Goal) -> None:
        self.on, self.goal = on, goal

    def begin(self) -> Progress:
        """The start."""
        self._state = begin(self.on, self.goal)
        return self._state

    def look(self) -> None:
        """Judge the current iterates."""
        self._residuals = look(self.on, self._state, self.goal)

    def step(self, refine: int) -> None:
        """Take a step."""
        step(self.on, self._state, self._residuals, refine)


def solve(steps: Steps, max_iter: int) -> Progress:
    """Solve a batch of programs: the loop."""
    state = steps.begin()
    for k in range(max_iter + 1):
        steps.look()
        if k == max_iter or (k >= FIRST_CHECK and k % CHECK_EVERY == 0 and not bool(state.running.any())):
            break
        steps.step(refine=int(k >= ROUGH_STEPS))
    return state


def directly(on: Algebra, goal: Goal) -> tuple[Array, ...]:
    """Solve, and tell in arrays, batch last: best iterates, verdicts, numbers of steps, distances, those remembered."""
    state = solve(DirectSteps(on, goal), goal.max_iter)
    passed = () if state.passed is None else state.passed.parts
    return *state.best.parts, state.verdict[None], state.steps[None], state.score[None], *passed


def begin(on: Algebra, goal: Goal) -> Progress:
    """Least-squares points, shifted into the cones."""
    xp, one = on.xp, _ones(on)
    unit = on.unit + 0.0 * on.b
    system = on.factor(on.scale(unit, unit), SHIFT)
    if on.quadratic:
        x, z = on.solve(system, -on.q, on.b, 1)
        s = -z
    else:
        x, s = on.solve(system, 0.0 * on.q, on.b, 1)
        s = -s
        _, z = on.solve(system, -on.q, 0.0 * on.b, 1)
    shifts = [xp.where(margin < 1e-8, 1.0 - margin, 0.0 * one) for margin in (on.margin(s), on.margin(z))]
    s, z = (
        v + xp.where(xp.isfinite(shift), shift, 0.0 * one) * on.unit for v, shift in zip((s, z), shifts, strict=True)
    )
    s[: on.zero] = 0.0
    current = Iterate(x, z, s, one, one + 0.0)
    nothing = xp.zeros_like(one, dtype=xp.int64)
    passed = None if goal.level is None else current.copy()
    return Progress(current, current.copy(), passed, one + xp.inf, nothing, nothing + FAILED, nothing + 0)


def look(on: Algebra, state: Progress, goal: Goal) -> Residuals:
    """Judge the current iterates, in place: who has arrived, and which points are kept."""
    xp, at = on.xp, state.current
    score, found, residuals = judge(on, at, goal.tolerance)
    if state.passed is not None and goal.level is not None:
        above = gap(on, at) >= goal.level * at.tau * at.tau
        # Not where arithmetic broke down after the best point was met.
        _keep(on, state.passed, at, above & (score <= SPOILT * state.score))
        if goal.stop:
            found = xp.where(above | (found != FAILED), found, 0 * found + OPTIMAL)
    better = score < 0.9 * state.score
    certified = (found == INFEASIBLE) | (found == UNBOUNDED)
    _keep(on, state.best, at, state.running & (better | certified))
    state.idle[...] = xp.where(better, 0 * state.idle, state.idle + 1)
    state.score[...] = xp.where(better, score, state.score)
    # Close to the goal and no longer getting closer: arithmetic has no more to give.
    stalled = (state.idle >= PATIENCE) & (state.score <= CLOSE)
    found = xp.where((found == FAILED) & stalled, 0 * found + OPTIMAL, found)
    state.verdict[...] = xp.where(state.running, found, state.verdict)
    return residuals


def step(on: Algebra, state: Progress, residuals: Residuals, refine: int) -> None:
    """One predictor-corrector step, in place, whose systems are refined so often.

    Items that have finished, or whose step is no number, stay where they are.
    """
    xp, at = on.xp, state.current
    scaling = on.scale(at.s, at.z)
    system = on.factor(scaling, SHIFT)
    constant = on.solve(system, -on.q, on.b, refine)
    mu = gap(on, at)
    # The predictor only tells how far one can go: it needs no refinement.
    affine, reach = _direction(on, at, scaling, system, constant, residuals, _ones(on), at.s, at.kappa * at.tau, 0)
    sigma = (1.0 - reach) ** 3
    # Mehrotra: the second-order term of the complementarity, and a target on the central path.
    offset = on.correct(scaling, at.z, affine.s, affine.z, sigma * mu)
    d_kappa = at.kappa * at.tau + affine.kappa * affine.tau - sigma * mu
    ahead, reach = _direction(on, at, scaling, system, constant, residuals, 1.0 - sigma, offset, d_kappa, refine)
    size = on.sizes(ahead.x) + on.sizes(ahead.z) + on.sizes(ahead.s) + ahead.tau + ahead.kappa
    length = xp.where(xp.isfinite(size) & state.running, 0.99 * reach, 0.0 * reach)
    state.steps += state.running
    for value, direction in zip(at.parts, ahead.parts, strict=True):
        on.move(value, direction, length)


def judge(on: Algebra, at: Iterate, tolerance: float) -> tuple[Array, Array, Residuals]:
    """How far each item is from optimality, which have arrived where (FAILED means not yet), and what is left."""
    xp, tau, one = on.xp, at.tau, _ones(on)
    Az, Ax_s = on.columns(at.z), on.rows(at.x) + at.s
    qx, bz = on.dots(on.q, at.x), on.dots(on.b, at.z)
    Az_size, ray = on.sizes(Az), on.sizes(Ax_s)
    dual, primal = on.combine(one, Az, tau, on.q), on.combine(one, Ax_s, -tau, on.b)
    xPx = Px_size = 0.0 * tau
    if on.quadratic:
        Px = on.form(at.x)
        xPx, Px_size, dual = on.dots(at.x, Px), on.sizes(Px), dual + Px
    outside = on.sizes(primal) / (tau + xp.maximum(tau * on.sizes(on.b), on.sizes(at.s)))
    aslant = on.sizes(dual) / (tau + xp.maximum(tau * on.sizes(on.q), Az_size))
    missed, aslope = primal * at.z, dual * at.x
    slip = on.dots(missed, missed) ** 0.5 + on.dots(aslope, aslope) ** 0.5
    slip = slip + abs(on.dots(primal, at.z)) + abs(on.dots(dual, at.x))
    mass = on.masses(on.q, at.x) + on.masses(on.b, at.z)
    apart = value_error(xPx / (tau * tau), qx / tau, bz / tau, slip / (tau * tau), mass / tau, tolerance)
    score = xp.maximum(xp.maximum(outside, aslant), apart)
    score = xp.where(xp.isfinite(score), score, 0.0 * tau + xp.inf)
    infeasible = (bz < 0) & (Az_size <= -tolerance * bz)
    unbounded = (qx < 0) & (xp.maximum(Px_size, ray) <= -tolerance * qx)
    verdict = xp.full_like(score, FAILED, dtype=xp.int64)
    verdict = xp.where(unbounded, 0 * verdict + UNBOUNDED, verdict)
    verdict = xp.where(infeasible, 0 * verdict + INFEASIBLE, verdict)
    verdict = xp.where(score <= tolerance, 0 * verdict + OPTIMAL, verdict)
    return score, verdict, Residuals(dual, primal, qx + bz + at.kappa + xPx / tau)


def gap(on: Algebra, at: Iterate) -> Array:
    """μ of the embedding."""
    return (on.dots(at.s, at.z) + at.tau * at.kappa) / (on.degree + 1)


def _direction(
    on: Algebra,
    at: Iterate,
    scaling: Any,
    system: Any,
    constant: tuple[Array, Array],
    residuals: Residuals,
    share: Array,
    offset: Array,
    d_kappa: Array,
    refine: int,
) -> tuple[Iterate, Array]:
    """The step that takes a share of the residuals away, and how far it stays in the cones, at most one.

    ``offset`` is W applied to the solution of λ∘u = d_s.
    """
    x1, z1 = on.solve(system, -share * residuals.dual, on.combine(_ones(on), offset, -share, residuals.primal), refine)
    x2, z2 = constant
    numerator = share * residuals.gap - d_kappa / at.tau + on.dots(on.q, x1) + on.dots(on.b, z1)
    denominator = at.kappa / at.tau - on.dots(on.q, x2) - on.dots(on.b, z2)
    if on.quadratic:
        xi = at.x / at.tau
        away = x2 - xi
        numerator = numerator + 2.0 * on.dots(xi, on.form(x1))
        denominator = denominator + on.dots(away, on.form(away)) - on.dots(x2, on.form(x2))
    tau = numerator / denominator
    xp, one = on.xp, _ones(on)
    x, z, kappa = on.combine(one, x1, tau, x2), on.combine(one, z1, tau, z2), -(d_kappa + at.kappa * tau) / at.tau
    s = on.slack(scaling, z, offset)
    length = xp.minimum(one, on.reach(at.s, s, at.z, z))
    for value, move in ((at.tau, tau), (at.kappa, kappa)):
        length = xp.minimum(length, xp.where(move < 0, -value / move, length))
    return Iterate(x, z, s, tau, kappa), length


def _keep(on: Algebra, target: Iterate, source: Iterate, chosen: Array) -> None:
    """Copy some items, in place."""
    for old, new in zip(target.parts, source.parts, strict=True):
        on.keep(old, new, chosen)


def _ones(on: Algebra) -> Array:
    """One an item."""
    return on.xp.ones_like(on.q[0])


class Centre(NamedTuple):
    """A point of the central path, by how much it is missed, and the system there, factored a step before."""

    x: Array
    z: Array
    s: Array
    missed: Array
    system: Any


def central(on: Algebra, level: float, x: Array, z: Array, s: Array) -> Centre:
    """The point of the central path with s∘z = level·e, from one above it.

    The path is where the implicit function theorem holds without case distinctions: its derivative at a level is the
    smoothed one. Newton's method, which converges quadratically once the steps are whole ones; so the system of the
    last step is that of the point but for a share of it that is as small as the step, and refinement takes that back.
    """
    xp, degree = on.xp, max(on.degree, 1)
    x, z, s, nothing = x + 0.0, z + 0.0, s + 0.0, 0.0 * s
    system, moved = None, 0.0 * _ones(on)
    for _ in range(CENTRING):
        scaling = on.scale(s, z)
        system = on.factor(scaling, PATH_SHIFT)
        target = xp.maximum(0.1 * on.dots(s, z) / degree, level + 0.0 * _ones(on))
        offset = on.correct(scaling, z, nothing, nothing, target)
        rx = -(on.form(x) + on.columns(z) + on.q)
        rz = on.rows(x) + s - on.b
        dx, dz = on.solve(system, rx, offset - rz, 1)
        ds = on.slack(scaling, dz, offset)
        length = xp.minimum(0.99 * on.reach(s, ds, z, dz), _ones(on))
        length = xp.where(xp.isfinite(on.sizes(dx) + on.sizes(dz) + on.sizes(ds)), length, 0.0 * length)
        for value, direction in ((x, dx), (z, dz), (s, ds)):
            on.move(value, direction, length)
        moved = sum(on.sizes(d) / (1.0 + on.sizes(v)) for v, d in ((x, dx), (z, dz), (s, ds)))
        if not on.recorded and bool(((target <= level) & (length >= 1.0) & (moved <= NEXT)).all()):
            break
    primal, dual = on.sizes(on.rows(x) + s - on.b), on.sizes(on.form(x) + on.columns(z) + on.q)
    orthant, cones = slice(on.zero, on.linear), slice(on.linear, None)
    missed = on.sizes(s[orthant] * z[orthant] - level) / level
    # Of second-order cones, the sum: their parts are as large as one, and cancel to what is as small as the level.
    apart = abs(on.dots(s[cones], z[cones]) - level * (on.degree - (on.linear - on.zero))) / level
    worst = xp.maximum(xp.maximum(primal, dual), xp.maximum(xp.maximum(missed, apart), moved))
    return Centre(x, z, s, worst, on.renewed(system, on.scale(s, z)))
