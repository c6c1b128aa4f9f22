"""Tails of samples: thresholds and means of the worst share, and worst reweightings; whatever the unit."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def threshold(
    values: Float[Tensor, "point"], weights: Float[Tensor, "point"] | None, level: float
) -> Float[Tensor, ""]:
    """The smallest of the values with a mass of at least ``level`` at or below it; zero where there are none.

    It moves with its point, which then has the right share of a CVaR's derivative: what the points above leave.
    """
    if not values.numel():
        return values.new_zeros(())
    mass = torch.ones_like(values) if weights is None else weights.detach().to(values)
    ordered, order = values.sort()
    below = mass[order].cumsum(0)
    # What rounding leaves of a sum must not move the threshold to the next point.
    found = torch.searchsorted(below, below[-1] * level * (1.0 - 1e-12))
    return ordered[found.clamp(max=len(ordered) - 1)]


def excess(values: Tensor, tau: Tensor, level: float) -> Tensor:
    """τ + (value - τ)⁺ / (1 - level), of which the CVaR is the least mean over τ (Rockafellar and Uryasev)."""
    # Infinity is not beyond itself.
    beyond = torch.where(tau.isinf() & (values == tau), 0.0, values - tau)
    return tau + beyond.clamp(min=0.0) / (1.0 - level)


def cvar(
    values: Float[Tensor, "point"], level: float, weights: Float[Tensor, "point"] | None = None
) -> Float[Tensor, ""]:
    """The mean of the worst 1 - ``level`` of some points; differentiable in values and weights alike."""
    share = torch.full_like(values, 1.0 / max(len(values), 1)) if weights is None else weights / weights.sum()
    return (share * excess(values, threshold(values, share, level), level)).sum()


def quantile(
    values: Float[Tensor, "point"], level: float, width: float, weights: Float[Tensor, "point"] | None = None
) -> Float[Tensor, ""]:
    """The mean of the points between the quantiles ``level - width`` and ``level + width``, differentiable.

    That of several points is smoother than a single one, and in a tail that thins out a little larger.
    """
    low, high = max(level - width, 0.0), min(level + width, 1.0)
    infinite = values.isposinf()
    if bool(infinite.any()):
        share = torch.full_like(values, 1.0 / len(values)) if weights is None else weights / weights.sum()
        if float(share[infinite].sum()) > 1.0 - high + 1e-12:
            return values.new_full((), torch.inf)
        # Beyond these points it does not matter how far.
        values = torch.where(infinite, values[~infinite].detach().amax(), values)
    above = (1.0 - low) * cvar(values, low, weights)
    beyond = (1.0 - high) * cvar(values, high, weights) if high < 1.0 else 0.0
    return (above - beyond) / (high - low)


@torch.no_grad()
def worst_weights(
    values: Float[Tensor, "point"], radius: float, weights: Float[Tensor, "point"] | None = None
) -> Float[Tensor, "point"]:
    """The probabilities q of largest mean among those with Σ p_i (q_i / p_i - 1)² ≤ radius.

    p is 1/n unless positive ``weights`` are given, to which it is proportional. The q_i are proportional to
    p_i (v_i - η)⁺ (Namkoong and Duchi, 2017). Their divergence grows with η, and is explicit between two points: with
    mass M, mean m and variance s² of the points above η it is radius where (m - η)² ((1 + radius) M - 1) = s². Where
    some are infinite, p itself has an infinite mean already.
    """
    count = len(values)
    share = torch.full_like(values, 1.0 / max(count, 1)) if weights is None else weights / weights.sum()
    if not count or radius == 0.0 or bool(values.isposinf().any()):
        return share
    below, order = (values.max() - values).sort()
    size = float(below[-1])
    if size == 0.0:
        return share
    # Distances from the largest, in units of the longest: nothing is lost beside a large mean.
    gap = below / size
    ordered = share[order]
    # Counted where all are alike, so that no rounding adds up.
    mass = torch.arange(1, count + 1).to(gap) / count if weights is None else ordered.cumsum(0)
    mean = (ordered * gap).cumsum(0) / mass
    spread = ((ordered * gap**2).cumsum(0) / mass - mean**2).clamp(min=0.0)
    # With η at the next point, the k before it are there: how far their weights are from equal ones.
    reach = gap[1:] - mean[:-1]
    ratio = 1.0 / mass[:-1] * (spread[:-1] + reach**2) / reach.clamp(min=1e-300) ** 2
    enough = torch.nonzero(ratio <= 1.0 + radius)
    top = int(enough[0]) + 1 if len(enough) else count
    room = (1.0 + radius) * float(mass[top - 1]) - 1.0
    here = torch.zeros_like(gap)
    if room <= 0.0 or float(gap[top - 1]) == 0.0:
        # All mass on the largest, which several may share.
        here[gap == 0.0] = ordered[gap == 0.0]
    else:
        eta = mean[top - 1] + (spread[top - 1] / room).sqrt()
        here[:top] = ordered[:top] * (eta - gap[:top]).clamp(min=0.0)
    found = torch.empty_like(here)
    found[order] = here / here.sum()
    return found
