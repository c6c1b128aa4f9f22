"""Mean absolute deviations, ‖y - μ‖₁: separable in the coordinates once the multiplier is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from drolayers.ambiguity.nominal import Nominal
from drolayers.projection.closed_form import Coordinates
from drolayers.projection.root import decreasing_root, implicit
from drolayers.projection.rule import Move, Task, ValueRule, Values


class Steps(NamedTuple):
    """The functions h_i(u) = Σ_n ω_n|y_ni - u| of a batch, by their kinks in ascending order.

    Between two kinks h_i(u) = slope·u + offset; there is one more piece than kinks, and the last has no kink ahead.
    """

    centre: Float[Tensor, "batch coordinate"]
    kink: Float[Tensor, "batch coordinate piece"]
    slope: Float[Tensor, "batch coordinate piece"]
    offset: Float[Tensor, "batch coordinate piece"]

    @classmethod
    def of(cls, points: Float[Tensor, "batch atom coordinate"], nominal: Nominal) -> Steps:
        """Sorted, with cumulative weights; relative to the mean, so that large offsets cost no digits."""
        centre = nominal.mean(points)
        kink, order = (points - centre[:, None]).transpose(1, 2).contiguous().sort(dim=2)
        weight = nominal.weights[:, None].expand_as(kink).gather(2, order)
        left = pad(weight.cumsum(2), (1, 0))
        moment = pad((weight * kink).cumsum(2), (1, 0))
        slope = 2.0 * left - left[..., -1:]
        return cls(centre, pad(kink, (0, 1), value=torch.inf), slope, moment[..., -1:] - 2.0 * moment)

    def prox(self, u: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The minimiser of (v - u)²/2 + step·h(v), h there, and h's slope where the minimiser moves (0 at a kink).

        v + step·∂h(v) is increasing: on piece j it is v + step·slope_j, so the piece is found by counting the kinks
        whose image lies below u, and v is the solution on that piece, or the kink ahead where it would pass it.
        """
        with torch.no_grad():
            behind = self.kink[..., :-1] + step[..., None] * self.slope[..., 1:] < u[..., None]
            piece = behind.sum(2, keepdim=True)
        slope, offset, kink = (t.gather(2, piece)[..., 0] for t in (self.slope, self.offset, self.kink))
        free = u - step * slope
        sticks = free >= kink
        v = torch.where(sticks, kink, free)
        return v, slope * v + offset, torch.where(sticks, torch.zeros_like(slope), slope)


@final
@dataclass(frozen=True, eq=False)
class AbsoluteDeviation(ValueRule):
    """Σ_i |y_i - μ_i|, with a free bound.

    Given the multiplier λ, every μ_i minimises w_i(μ_i - μ⁰_i)² + λc h_i(μ_i): a proximal step of a weighted sum of
    absolute values, exact by sorting. λ is the root of  c Σ h_i(μ_i(λ)) + m - σ⁰ - λ/2w_σ,  which is decreasing and
    piecewise linear, so that Newton's method ends on the exact piece.
    """

    task: Task
    factor: float
    coordinates: Coordinates

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Nominal
    ) -> Move:
        """One multiplier an item."""
        name = self.coordinates.name
        steps = Steps.of(self.coordinates.of(summary), summary)
        start = alpha[name].reshape(steps.centre.shape) - steps.centre
        c = self.factor * (1.0 + self.task.relative)
        rate = 0.5 * c / self.task.weight(name, start).reshape(-1)
        rise = 0.5 / self.task.weight("sigma", start).reshape(-1)

        def excess(multiplier: Tensor) -> tuple[Tensor, Tensor]:
            _, value, slope = steps.prox(start, rate * multiplier)
            total = c * value.sum(1, keepdim=True) + self.task.margin
            return total - sigma - rise * multiplier, -c * (rate * slope**2).sum(1, keepdim=True) - rise

        with torch.no_grad():
            zero = torch.zeros_like(sigma)
            # The bound alone could take up the whole violation: the multiplier is no larger than that needs.
            violation = excess(zero)[0]
            far = torch.where(valid, zero, (violation / rise).clamp(min=0.0))
            found = decreasing_root(excess, zero, far, 4e-15 * (violation.abs() + sigma.abs()))
        multiplier = implicit(found, excess)
        moved = steps.prox(start, rate * multiplier)[0] + steps.centre
        moved = torch.where(valid, alpha[name].reshape(moved.shape), moved)
        return Move({name: moved.reshape(alpha[name].shape)})
