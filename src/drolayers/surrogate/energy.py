"""Energies of integer points, and the probabilities that they define.

The surrogate of the decision loss is r_λ = E_p[l(x, y)] with p(x_d) ∝ exp(-f(x_d, θ)/λ). Estimated from points drawn
with intensity q it is Σ_s w_s l(x_s, y) with

    w = softmax(-f/λ - log q),

q held fixed. Its derivative, by autograd through f and x_c*, is the self-normalised estimate of the paper's terms:
the covariance of -f'/λ with the loss (two terms), and the mean of ∂l/∂x_c · ∂x_c*/∂θ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.checks import number
from drolayers.errors import ModelError


@dataclass(frozen=True)
class RelativeTemperature:
    """λ as a multiple of the spread of the objectives at hand: their mean distance from the best, item by item.

    An absolute temperature means nothing without the scale of the objective: 10 is nearly uniform for returns of 1e-2
    and nearly greedy for costs of 1e+4.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ModelError(f"A temperature must be positive, not {self.factor}.")


Temperature = float | RelativeTemperature


def check_temperature(temperature: Temperature) -> Temperature:
    """A temperature as it is, if it is one."""
    if isinstance(temperature, RelativeTemperature):
        return temperature
    value = number("temperature", temperature)
    if not value > 0:
        raise ModelError(f"A temperature must be positive, not {temperature}.")
    return value


def absolute_temperature(
    temperature: Temperature, objective: Float[Tensor, "batch slot"], valid: Bool[Tensor, "batch slot"]
) -> Float[Tensor, "batch"]:
    """λ for every item, a constant of the computation."""
    if not isinstance(temperature, RelativeTemperature):
        return objective.new_full((objective.shape[0],), float(temperature))
    values = objective.detach()
    best = torch.where(valid, values, torch.full_like(values, torch.inf)).amin(1, keepdim=True)
    best = torch.where(best.isfinite(), best, torch.zeros_like(best))
    count = valid.sum(1).clamp(min=1)
    spread = torch.where(valid, values - best, torch.zeros_like(values)).sum(1) / count
    # Equal objectives have no spread; any positive temperature then gives the same, uniform, probabilities.
    floor = (1e-9 * best[:, 0].abs()).clamp(min=torch.finfo(best.dtype).tiny)
    return temperature.factor * torch.maximum(spread, floor)


def energy_probabilities(
    objective: Float[Tensor, "batch slot"],
    log_intensity: Float[Tensor, "batch slot"],
    valid: Bool[Tensor, "batch slot"],
    temperature: Float[Tensor, "batch"],
) -> Float[Tensor, "batch slot"]:
    """softmax(-f/λ - log q) over the valid slots, zero elsewhere; an item without any has zeros only."""
    safe = torch.where(valid, objective, torch.zeros_like(objective))
    logits = -safe / temperature[:, None] - log_intensity.detach()
    logits = logits.masked_fill(~valid, -torch.inf)
    any_valid = valid.any(1, keepdim=True)
    logits = torch.where(any_valid, logits, torch.zeros_like(logits))
    return torch.softmax(logits, 1) * any_valid


def effective_sample_size(probabilities: Float[Tensor, "batch slot"]) -> Float[Tensor, "batch"]:
    """1/Σ w²: small values tell of a poor proposal, large ones prove nothing (a missed mode does not show)."""
    squares = (probabilities.detach() ** 2).sum(1)
    return torch.where(squares > 0, 1.0 / squares.clamp(min=1e-300), torch.zeros_like(squares))
