"""The worst case over a Hellinger ball as a smooth function of few variables: its solution and its derivative.

With d_j = r_j² - ξ and q_j = d_j²/u_j, u_j = λ - ρ d_j, at their bounds, the program of ``hellinger.py`` is

    min  G(w) = ρλ + mean r² + ρ mean d²/u - gᵀx   over  w = (x, c, ξ, λ),  x ∈ Δ,   r_j = ε_jᵀx - c:

assets + 3 variables, smooth and convex where u > 0, with x ≥ 0 as the only inequality. All items share the scenarios,
so that the Hessians of a whole batch are one product of matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

TOLERANCE = 1e-9
"""Relative residual and gap at which an item is solved."""


class Point(NamedTuple):
    """A portfolio and the multipliers that belong to it."""

    x: Float[Tensor, "batch asset"]
    c: Float[Tensor, "batch"]
    xi: Float[Tensor, "batch"]
    lam: Float[Tensor, "batch"]

    def take(self, items: Tensor) -> Point:
        """The points of some items."""
        return Point(*(part[items] for part in self))

    def put(self, items: Tensor, other: Point) -> Point:
        """These points with some items replaced."""
        return Point(*(part.index_copy(0, items, new) for part, new in zip(self, other, strict=True)))


class Data(NamedTuple):
    """Scenarios, which all items share, rewards, and ρ = √δ."""

    scenarios: Float[Tensor, "scenario asset"]
    reward: Float[Tensor, "batch asset"]
    rho: Float[Tensor, ""]


@torch.no_grad()
def interior_point(data: Data, iterations: int = 40) -> tuple[Point, Bool[Tensor, "batch"]]:
    """Solve a batch by a primal-dual method in (x, c); ξ and λ follow in closed form.

    Args:
        data: scenarios with entries of size one, rewards, ρ.
        iterations: at most so many.

    Returns:
        The last points, and which of them satisfy the optimality conditions.
    """
    batch, n = data.reward.shape
    x = torch.full_like(data.reward, 1.0 / n)
    point = completed(x, (x @ data.scenarios.T).mean(1), data)
    everything, solved = point, torch.zeros(batch, dtype=torch.bool)
    items, reward = torch.arange(batch), data.reward
    z = 1.0 + reward.amax(1, keepdim=True) - reward
    for _ in range(iterations):
        here = Data(data.scenarios, reward, data.rho)
        value, gradient = objective(point, here)
        mu = (point.x * z).mean(1)
        done = _residual(gradient, z) <= TOLERANCE
        done &= mu * n <= TOLERANCE * (1.0 + value.abs())
        if bool(done.any()):
            everything = everything.put(items[done], point.take(done))
            solved[items[done]] = True
            left = ~done
            items, point, z, reward = items[left], point.take(left), z[left], reward[left]
            gradient, mu = gradient[left], mu[left]
            if not items.numel():
                break
            here = Data(data.scenarios, reward, data.rho)
        point, z = _advance(point, z, mu, gradient, here)
    return everything.put(items, point), solved


def completed(x: Float[Tensor, "batch asset"], c: Float[Tensor, "batch"], data: Data) -> Point:
    """The point with the best multipliers ξ and λ for a portfolio and a centre.

    With τ = λ/ρ + ξ and s_j = 1/(τ - z_j), ∂G/∂λ = 0 says λ² mean s² = ρ² and ∂G/∂ξ = 0 then says
    mean s = (1 - δ/2) √(mean s²). The left side over the root grows with τ from 1/√T at max z to 1 at infinity, so τ is
    the root of one increasing function, found by Newton's method on logarithms within a bracket.
    """
    z = (x @ data.scenarios.T - c[:, None]).square()
    top = z.amax(1, keepdim=True)
    below, spread = top - z, (z.std(1, unbiased=False, keepdim=True) + 1e-300)
    # 1 - a²  for the ratio a, which is known without cancellation as a variance.
    goal = (1.0 - (1.0 - 0.5 * data.rho.square()).square()).log()
    low, high = (torch.full_like(top, end) for end in (-40.0, 40.0))
    log = (spread / (data.rho * spread + 1e-300)).log()
    for _ in range(60):
        s = spread / (spread * log.exp() + below)
        mean, square = s.mean(1, keepdim=True), s.square().mean(1, keepdim=True)
        variance = (s - mean).square().mean(1, keepdim=True)
        gap = (variance / square).clamp(min=1e-300).log() - goal
        low, high = torch.where(gap > 0, log, low), torch.where(gap > 0, high, log)
        # d log(var s / mean s²) / d log t, since ds/dt = -s².
        cube = s * s * s
        bend = (cube - mean * s * s).mean(1, keepdim=True) / variance.clamp(min=1e-300)
        bend = -2.0 * log.exp() * (bend - cube.mean(1, keepdim=True) / square)
        newton = log - gap / bend
        inside = (newton > low) & (newton < high)
        moved = torch.where(inside, newton, 0.5 * (low + high))
        # What rounding leaves of the variance sets the accuracy for a small ball.
        left = gap.abs() > 1e-13 + 1e-14 * mean / variance.clamp(min=1e-300).sqrt()
        if not bool(left.any()):
            break
        log = torch.where(left, moved, log)
    over = spread * log.exp()
    root = (1.0 / (over + below)).square().mean(1).sqrt()
    lam = data.rho / root
    return Point(x, c, (top + over)[:, 0] - 1.0 / root, lam)


def _residual(gradient: Tensor, z: Tensor) -> Float[Tensor, "batch"]:
    """The largest component of ∇G - ν - z, relative to ∇G, for the best ν."""
    n = z.shape[1]
    slack = gradient[:, :n] - z
    middle = 0.5 * (slack.amax(1) + slack.amin(1))
    worst = torch.maximum((slack - middle[:, None]).abs().amax(1), gradient[:, n:].abs().amax(1))
    return worst / (1.0 + gradient.abs().amax(1))


def _advance(point: Point, z: Tensor, mu: Tensor, gradient: Tensor, data: Data) -> tuple[Point, Tensor]:
    """A Newton step towards a point of the central path, whose place a first step without centring tells."""
    x, n = point.x, point.x.shape[1]
    H = hessian(point, data)
    index = torch.arange(n)
    H[:, index, index] += z / x
    factor = torch.linalg.cholesky_ex(H).L
    border = torch.zeros_like(gradient)
    border[:, :n] = 1.0
    across = torch.cholesky_solve(border[..., None], factor)[..., 0]

    def newton(target: Tensor) -> tuple[Tensor, Tensor]:
        """The step towards x z = target, with Σx = 1 kept by the multiplier ν."""
        right = -gradient
        right[:, :n] += target / x
        free = torch.cholesky_solve(right[..., None], factor)[..., 0]
        step = free - across * (free[:, :n].sum(1) / across[:, :n].sum(1))[:, None]
        return step, target / x - z - z / x * step[:, :n]

    step, dz = newton(torch.zeros_like(x))
    length = torch.minimum(_ratio(x, step[:, :n]), _ratio(z, dz))[:, None]
    after = ((x + length * step[:, :n]) * (z + length * dz)).mean(1)
    # No faster than the gradient follows: where the last step left a residual, the target waits for it.
    pace = _residual(gradient, z).clamp(max=0.5)
    target = (torch.maximum((after / mu).clamp(0.0, 1.0) ** 3, pace) * mu)[:, None]
    step, dz = newton(target.expand_as(x))
    length = _descent(point, step, 0.995 * _ratio(x, step[:, :n]), gradient, target[:, 0], data)
    moved = completed(x + length[:, None] * step[:, :n], point.c + length * step[:, n], data)
    return moved, z + 0.995 * _ratio(z, dz)[:, None] * dz


def _descent(
    point: Point, step: Tensor, length: Tensor, gradient: Tensor, target: Tensor, data: Data
) -> Float[Tensor, "batch"]:
    """Lengths at which the barrier function G - target Σ log x falls, by halving: Newton alone may go to and fro."""
    n = point.x.shape[1]

    def barrier(at: Point, items: Tensor) -> Tensor:
        here = Data(data.scenarios, data.reward[items], data.rho)
        return objective(at, here)[0] - target[items] * at.x.log().sum(1)

    items = torch.arange(len(length))
    start = barrier(point, items)
    slope = (gradient[:, : n + 1] * step[:, : n + 1]).sum(1) - target * (step[:, :n] / point.x).sum(1)
    for _ in range(12):
        a = length[items]
        trial = completed(point.x[items] + a[:, None] * step[items, :n], point.c[items] + a * step[items, n], data)
        enough = start[items] + 1e-4 * a * slope[items] + 1e-13 * (1.0 + start[items].abs())
        items = items[~(barrier(trial, items) <= enough)]
        if not items.numel():
            break
        length = length.index_copy(0, items, 0.5 * length[items])
    return length


def _ratio(value: Tensor, step: Tensor) -> Float[Tensor, "batch"]:
    """How far a positive vector can go along a step, a little more than one at most."""
    return torch.where(step < 0, -value / step, torch.inf).amin(1).clamp(max=1.0 / 0.995)


def differentiable(point: Point, data: Data) -> tuple[Float[Tensor, "batch asset"], Float[Tensor, "batch"]]:
    """The portfolios and values of known points as functions of the data.

    At a solution w* the Newton step s(θ) = -K⁻¹ ∇G(w*, θ) over the free coordinates, K held fixed, is zero, and its
    derivative is that of the solution: dw*/dθ = -K⁻¹ ∂θ∇G. The value's is that of the Lagrangian, by the envelope
    theorem.
    """
    value, gradient = objective(point, data)
    with torch.no_grad():
        free = _free(point.x, gradient[:, : point.x.shape[1]])
        system = _system(point, data, free)
    held = torch.cat([free.double(), torch.ones_like(gradient[:, :3])], 1)
    right = torch.cat([gradient * held, torch.zeros_like(gradient[:, :1])], 1)
    step = -torch.linalg.solve(system, right)[:, : point.x.shape[1]]
    return point.x + step - step.detach(), value


def terms(point: Point, data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """r_j = ε_jᵀx - c, d_j = r_j² - ξ, and u_j = λ - ρ d_j, which is positive at a solution."""
    r = point.x @ data.scenarios.T - point.c[:, None]
    d = r.square() - point.xi[:, None]
    return r, d, (point.lam[:, None] - data.rho * d).clamp(min=1e-12)


def objective(point: Point, data: Data) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch w"]]:
    """G(w) = ρλ + mean r² + ρ mean d²/u - gᵀx, and its gradient in w = (x, c, ξ, λ)."""
    r, d, u = terms(point, data)
    rho, T = data.rho, r.shape[1]
    ratio = d / u
    slope = ratio * (2.0 + rho * ratio)
    value = rho * point.lam + r.square().mean(1) + rho * (d * ratio).mean(1) - (data.reward * point.x).sum(1)
    by_r = 2.0 * r * (1.0 + rho * slope) / T
    return value, torch.cat(
        [
            by_r @ data.scenarios - data.reward,
            -by_r.sum(1, keepdim=True),
            -rho * slope.mean(1, keepdim=True),
            rho * (1.0 - ratio.square().mean(1, keepdim=True)),
        ],
        1,
    )


def _free(x: Float[Tensor, "batch asset"], gradient: Float[Tensor, "batch asset"]) -> Tensor:
    """Which assets are held: x outweighs its multiplier ∇G - ν, where ν = xᵀ∇G by complementarity."""
    multiplier = gradient - (x * gradient).sum(1, keepdim=True)
    size = 1.0 + gradient.abs().amax(1, keepdim=True)
    free = x > multiplier / size
    # The largest is held in any case: the weights add up to one.
    return free | (x == x.amax(1, keepdim=True))


def hessian(point: Point, data: Data) -> Float[Tensor, "batch w w"]:
    """The second derivatives of G."""
    r, d, u = terms(point, data)
    rho, (batch, T), n = data.rho, r.shape, point.x.shape[1]
    ratio, lam = d / u, point.lam[:, None]
    # Of d²/u in d and λ.
    dd, dl, ll = 2 * lam**2 / u**3, -2 * ratio * lam / u**2, 2 * ratio.square() / u
    rr = (2.0 * (1.0 + rho * ratio * (2.0 + rho * ratio)) + 4.0 * rho * r.square() * dd) / T
    r_xi, r_lam = -2.0 * rho * r * dd / T, 2.0 * rho * r * dl / T
    outer = (data.scenarios[:, :, None] * data.scenarios[:, None, :]).reshape(T, n * n)
    H = r.new_zeros(batch, n + 3, n + 3)
    H[:, :n, :n] = (rr @ outer).reshape(batch, n, n)
    H[:, :n, n] = H[:, n, :n] = -(rr @ data.scenarios)
    H[:, n, n] = rr.sum(1)
    for at, column in ((n + 1, r_xi), (n + 2, r_lam)):
        H[:, :n, at] = H[:, at, :n] = column @ data.scenarios
        H[:, n, at] = H[:, at, n] = -column.sum(1)
    H[:, n + 1, n + 1], H[:, n + 2, n + 2] = rho * dd.mean(1), rho * ll.mean(1)
    H[:, n + 1, n + 2] = H[:, n + 2, n + 1] = -rho * dl.mean(1)
    return H


def _system(point: Point, data: Data, free: Tensor) -> Float[Tensor, "batch equation equation"]:
    """The Hessian over free coordinates, bordered by Σx = 1; identity rows for the others."""
    H, n = hessian(point, data), point.x.shape[1]
    index = torch.arange(n + 3)
    # Fewer scenarios than assets leave directions without curvature.
    H[:, index, index] += 1e-10 * H[:, index, index].amax(1, keepdim=True)
    K = H.new_zeros(len(H), n + 4, n + 4)
    K[:, : n + 3, : n + 3] = H
    K[:, :n, n + 3] = K[:, n + 3, :n] = 1.0
    kept = torch.cat([free, torch.ones_like(free[:, :1]).expand(-1, 4)], 1)
    K = K * (kept[:, :, None] & kept[:, None, :])
    return K + torch.diag_embed((~kept).to(K))
