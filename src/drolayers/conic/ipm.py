"""A batched primal-dual interior-point method on the homogeneous embedding, in torch.

The embedding of Goulart and Chen (Clarabel, 2024) for  min ½xᵀPx + qᵀx, Ax + s = b, s ∈ K  looks for

    Px + Aᵀz + qτ = 0,   Ax + s = bτ,   κ + xᵀPx/τ + qᵀx + bᵀz = 0,   s ∈ K, z ∈ K*, τ, κ ≥ 0, sᵀz = 0, τκ = 0.

τ > 0 at the end gives a solution (x, z, s)/τ, κ > 0 a certificate that there is none. All items step together; those
that have finished are dropped from the batch from time to time, which is the only point where the host waits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from drolayers.conic.interior.scaling import ConeShape, Scaling
from drolayers.conic.interior.system import Data, System
from drolayers.status import Status

CHECK_EVERY = 2
"""Steps between two looks at which items have finished; each look makes the host wait."""

FIRST_CHECK = 6
"""Steps before the first look, since no program of ours has finished sooner."""

ROUGH_STEPS = 4
"""Steps whose systems need no refinement; with six, one curved program in a hundred does not recover."""

PATIENCE = 4
"""Steps without progress after which an item that is close is left where it was best."""

CLOSE = 1e-6
"""What counts as close."""

SPOILT = 10.0
"""How much worse than the best an iterate may be to serve the derivative."""

CENTRING = 6
"""Newton steps towards a point of the central path."""


@dataclass(eq=False)
class Iterate:
    """A point of the embedding, batch last."""

    x: Tensor
    z: Tensor
    s: Tensor
    tau: Tensor
    kappa: Tensor

    def pick(self, items: Tensor) -> Iterate:
        """Some items."""
        return Iterate(*(getattr(self, f.name)[..., items] for f in fields(self)))

    def inward(self, shape: ConeShape, distance: float) -> Iterate:
        """Both slacks moved into their cones; Newton's steps take the residual back."""
        move = distance * shape.identity(1, self.x) * self.tau
        return Iterate(self.x, self.z + move, self.s + move, self.tau, self.kappa)

    def put(self, items: Tensor, other: Iterate) -> None:
        """Write items back."""
        for f in fields(self):
            getattr(self, f.name)[..., items] = getattr(other, f.name)

    def copy(self, other: Iterate) -> None:
        """Take over another point, in place."""
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(other, f.name))

    def moved(self, step: Tensor, direction: Iterate) -> Iterate:
        """A step along a direction."""
        return Iterate(*(getattr(self, f.name) + step * getattr(direction, f.name) for f in fields(self)))

    def where(self, mask: Tensor, other: Iterate) -> Iterate:
        """These items where the mask holds, the others elsewhere."""
        return Iterate(*(torch.where(mask, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def gap(self, shape: ConeShape) -> Tensor:
        """μ of the embedding."""
        return ((self.s * self.z).sum(0) + self.tau * self.kappa) / (shape.degree + 1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Final iterates, those from which the central path is met at a level, verdicts and numbers of steps."""

    iterate: Iterate
    anchor: Iterate
    verdict: Tensor
    steps: Tensor


@dataclass(eq=False)
class Progress:
    """The best point so far of every running item, and for how long it has not got better."""

    best: Iterate
    anchor: Iterate
    score: Tensor
    idle: Tensor
    verdict: Tensor

    @classmethod
    def fresh(cls, at: Iterate) -> Progress:
        """Before the first step."""
        every = torch.arange(at.tau.numel(), device=at.tau.device)
        idle = torch.zeros_like(every)
        return cls(
            at.pick(every),
            at.pick(every),
            torch.full_like(at.tau, torch.inf),
            idle,
            torch.full_like(idle, int(Status.FAILED)),
        )

    def restart(self, at: Iterate) -> None:
        """Forget what was before, in place."""
        self.best.copy(at)
        self.anchor.copy(at)
        self.score.fill_(torch.inf)
        self.idle.zero_()
        self.verdict.fill_(int(Status.FAILED))

    def update(self, data: Data, at: Iterate, tolerance: float, level: float) -> None:
        """Take in a new iterate; ``anchor`` stays behind as the last one above a level of the barrier."""
        score, found = _verdict(data, at, tolerance)
        # Not where arithmetic broke down after the best point was met.
        above = (at.gap(data.plan.shape) >= level * at.tau**2) & (score <= SPOILT * self.score)
        self.anchor.copy(at.where(above, self.anchor))
        better = score < 0.9 * self.score
        certified = (found == int(Status.INFEASIBLE)) | (found == int(Status.NO_MINIMUM))
        open_ = self.running
        self.best.copy(at.where(open_ & (better | certified), self.best))
        self.idle.copy_(torch.where(better, torch.zeros_like(self.idle), self.idle + 1))
        self.score.copy_(torch.where(better, score, self.score))
        # Close to the goal and no longer getting closer: arithmetic has no more to give.
        stalled = (self.idle >= PATIENCE) & (self.score <= CLOSE)
        found = torch.where((found == int(Status.FAILED)) & stalled, int(Status.OPTIMAL), found)
        self.verdict.copy_(torch.where(open_, found, self.verdict))

    @property
    def running(self) -> Tensor:
        """Which items go on."""
        return self.verdict == int(Status.FAILED)

    def pick(self, items: Tensor) -> Progress:
        """Some items."""
        return Progress(
            self.best.pick(items), self.anchor.pick(items), self.score[items], self.idle[items], self.verdict[items]
        )


def solve(data: Data, tolerance: float, max_iter: int, level: float = 0.0) -> Outcome:
    """Solve a batch of programs, and remember where each passed a level of the barrier."""
    batch, device = data.q.shape[1], data.q.device
    current = start(data)
    items = torch.arange(batch, device=device)
    final, anchor = current.pick(items), current.pick(items)
    verdict = torch.full((batch,), int(Status.FAILED), device=device)
    steps = torch.zeros(batch, dtype=torch.int64, device=device)
    progress = Progress.fresh(current)
    for k in range(max_iter):
        progress.update(data, current, tolerance, level)
        if k % CHECK_EVERY == 0 and k >= FIRST_CHECK:
            left = progress.running.nonzero()[:, 0]
            if left.numel() < items.numel():
                final.put(items, progress.best)
                anchor.put(items, progress.anchor)
                verdict[items] = progress.verdict
                if not left.numel():
                    return Outcome(final, anchor, verdict, steps)
                items, data, current, progress = (
                    items[left],
                    data.of_items(left),
                    current.pick(left),
                    progress.pick(left),
                )
        current = advanced(data, current, progress, refine=int(k >= ROUGH_STEPS))
        steps[items] += progress.running
    progress.update(data, current, tolerance, level)
    final.put(items, progress.best)
    anchor.put(items, progress.anchor)
    verdict[items] = progress.verdict
    return Outcome(final, anchor, verdict, steps)


def advanced(data: Data, current: Iterate, progress: Progress, refine: int) -> Iterate:
    """The next iterate; items that have finished, or whose step is no number, stay where they are."""
    ahead = _advance(data, current, refine)
    healthy = torch.stack([t.isfinite().all(0) for t in (ahead.x, ahead.z, ahead.s)]).all(0)
    return ahead.where(healthy & progress.running, current)


def start(data: Data) -> Iterate:
    """Least-squares points, shifted into the cones."""
    shape, batch = data.plan.shape, data.q.shape[1]
    unit = shape.identity(batch, data.q)
    system = data.factor(Scaling.at(shape, unit, unit))
    zero_x, zero_z = torch.zeros_like(data.q), torch.zeros_like(data.b)
    if data.P.shape[0]:
        x, z = system.solve(-data.q, data.b)
        s = -z
    else:
        x, s = system.solve(zero_x, data.b)
        s = -s
        _, z = system.solve(-data.q, zero_z)

    def inside(v: Tensor) -> Tensor:
        margin = shape.margin(v)
        shift = torch.where(margin < 1e-8, 1.0 - margin, torch.zeros_like(margin))
        return v + torch.where(shift.isfinite(), shift, torch.zeros_like(shift)) * unit

    s = inside(s)
    s[: shape.zero] = 0.0
    one = data.q.new_ones(batch)
    return Iterate(x, inside(z), s, one, one.clone())


def _residuals(data: Data, at: Iterate) -> tuple[Tensor, Tensor, Tensor]:
    """How far the embedding's equations are from holding."""
    Px = data.form(at.x)
    rx = -(Px + data.columns(at.z) + data.q * at.tau)
    rz = data.rows(at.x) + at.s - data.b * at.tau
    rt = (data.q * at.x).sum(0) + (data.b * at.z).sum(0) + at.kappa + (at.x * Px).sum(0) / at.tau
    return rx, rz, rt


def _verdict(data: Data, at: Iterate, tolerance: float) -> tuple[Tensor, Tensor]:
    """How far each item is from optimality, and which have arrived where; FAILED means not yet."""
    tau = at.tau
    Px, Az, Ax_s = data.form(at.x), data.columns(at.z), data.rows(at.x) + at.s
    xPx, qx, bz = (at.x * Px).sum(0), (data.q * at.x).sum(0), (data.b * at.z).sum(0)
    Az_size = _size(Az)
    primal = _size(Ax_s - data.b * tau) / (tau + torch.maximum(tau * _size(data.b), _size(at.s)))
    dual = _size(Px + Az + data.q * tau) / (tau + torch.maximum(tau * _size(data.q), Az_size))
    a, b, c = xPx / tau**2, qx / tau, bz / tau
    gap = (a + b + c).abs() / (1.0 + torch.minimum((0.5 * a + b).abs(), (0.5 * a + c).abs()))
    score = torch.stack([primal, dual, gap]).amax(0)
    infeasible = (bz < 0) & (Az_size <= -tolerance * bz)
    unbounded = (qx < 0) & (torch.maximum(_size(Px), _size(Ax_s)) <= -tolerance * qx)
    verdict = torch.full_like(score, int(Status.FAILED), dtype=torch.int64)
    verdict = torch.where(unbounded, int(Status.NO_MINIMUM), verdict)
    verdict = torch.where(infeasible, int(Status.INFEASIBLE), verdict)
    return score, torch.where(score <= tolerance, int(Status.OPTIMAL), verdict)


def _advance(data: Data, at: Iterate, refine: int) -> Iterate:
    """One predictor-corrector step, whose systems are refined so often."""
    shape = data.plan.shape
    scaling = Scaling.at(shape, at.s, at.z)
    system = data.factor(scaling)
    residuals = _residuals(data, at)
    constant = system.solve(-data.q, data.b, refine)
    lam = scaling.apply(at.z)
    mu = at.gap(shape)
    # The predictor only tells how far one can go: it needs no refinement.
    affine = _direction(data, at, system, constant, residuals, at.s, at.kappa * at.tau, refine=0)
    reach = _step(shape, at, affine)
    sigma = (1.0 - reach) ** 3
    # Mehrotra: the second-order term of the complementarity, and a target on the central path.
    product = shape.circle(scaling.apply(affine.s, inverse=True), scaling.apply(affine.z))
    unit = shape.identity(1, data.q)
    offset = scaling.apply(shape.divide(lam, shape.circle(lam, lam) + product - sigma * mu * unit))
    rest = tuple((1.0 - sigma) * r for r in residuals)
    ds_kappa = at.kappa * at.tau + affine.kappa * affine.tau - sigma * mu
    combined = _direction(data, at, system, constant, rest, offset, ds_kappa, refine)
    return at.moved(0.99 * _step(shape, at, combined), combined)


def _direction(
    data: Data,
    at: Iterate,
    system: System,
    constant: tuple[Tensor, Tensor],
    residuals: tuple[Tensor, ...],
    offset: Tensor,
    d_kappa: Tensor,
    refine: int,
) -> Iterate:
    """The step for given residuals; ``offset`` is Wᵀ applied to the solution of λ∘u = d_s."""
    rx, rz, rt = residuals
    x1, z1 = system.solve(rx, offset - rz, refine)
    x2, z2 = constant
    xi = at.x / at.tau
    P1, away = data.form(x1), x2 - xi
    numerator = rt - d_kappa / at.tau + (data.q * x1).sum(0) + (data.b * z1).sum(0) + 2.0 * (xi * P1).sum(0)
    denominator = (
        at.kappa / at.tau
        - (data.q * x2).sum(0)
        - (data.b * z2).sum(0)
        + (away * data.form(away)).sum(0)
        - (x2 * data.form(x2)).sum(0)
    )
    tau = numerator / denominator
    x, z = x1 + tau * x2, z1 + tau * z2
    s = -(system.scaling.square(z) + offset)
    s[: data.plan.shape.zero] = 0.0
    return Iterate(x, z, s, tau, -(d_kappa + at.kappa * tau) / at.tau)


def _step(shape: ConeShape, at: Iterate, direction: Iterate) -> Tensor:
    """The largest step up to one that stays in the cones."""
    steps = [shape.step(at.s, direction.s), shape.step(at.z, direction.z)]
    for value, move in ((at.tau, direction.tau), (at.kappa, direction.kappa)):
        steps.append(torch.where(move < 0, -value / move, torch.full_like(move, torch.inf)))
    return torch.stack(steps).amin(0).clamp(max=1.0)


def _size(values: Tensor) -> Tensor:
    """The largest absolute entry of each item."""
    return values.abs().amax(0) if values.shape[0] else values.new_zeros(values.shape[1])


def central(data: Data, level: float, anchor: Iterate) -> tuple[Tensor, Tensor, Tensor, System]:
    """The point x, z, s of the central path with s∘z = level·e, and the system factored there.

    Newton steps from a point above that level. The path is where the implicit function theorem holds without case
    distinctions: its derivative at a tiny level is that of the solution (wherever this has one), at a larger level the
    smoothed one.
    """
    shape = data.plan.shape
    x, z, s = anchor.x / anchor.tau, anchor.z / anchor.tau, anchor.s / anchor.tau
    unit = shape.identity(1, data.q)
    for _ in range(CENTRING):
        scaling = Scaling.at(shape, s, z)
        system = data.factor(scaling)
        lam = scaling.apply(z)
        target = (0.1 * (s * z).sum(0) / max(shape.degree, 1)).clamp(min=level)
        offset = scaling.apply(shape.divide(lam, shape.circle(lam, lam) - target * unit))
        rx = -(data.form(x) + data.columns(z) + data.q)
        rz = data.rows(x) + s - data.b
        dx, dz = system.solve(rx, offset - rz)
        ds = -(scaling.square(dz) + offset)
        ds[: shape.zero] = 0.0
        step = (0.99 * torch.minimum(shape.step(s, ds), shape.step(z, dz))).clamp(max=1.0)
        usable = torch.stack([t.isfinite().all(0) for t in (dx, dz, ds)]).all(0)
        step = torch.where(usable, step, torch.zeros_like(step))
        x, z, s = (v + step * torch.where(usable, d, torch.zeros_like(d)) for v, d in ((x, dx), (z, dz), (s, ds)))
    return x, z, s, data.factor(Scaling.at(shape, s, z))


def pull(data: Data, level: float, anchor: Iterate, dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The point x, z of the central path at a level, and g, h with K (g, h) = (dx, 0) there."""
    x, z, _, system = central(data, level, anchor)
    g, h = system.solve(dx, torch.zeros_like(data.b), refine=4)
    return x, z, g, h
