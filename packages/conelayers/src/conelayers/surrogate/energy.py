"""Temperatures and probabilities of the surrogate of an integer decision.

The surrogate of a decision loss l is a mean over feasible integer points x_d, with the worst-case cost f as energy:

    r(θ; λ) = Σ p(x_d; θ, λ) l(x_d, x_c*(x_d, θ)),        p(x_d; θ, λ) ∝ exp(-f(x_d, θ) / λ).

Points x_s that were drawn with intensity q_s give the self-normalised estimate Σ_s w_s l(x_s) with

    w = softmax(-f / λ - log q).

Autograd differentiates this sum by θ through f, x_c* and l. The temperature λ, the points and their intensities q are
constants: the gradient is that of θ -> r(θ; λ) at the λ of this very call. Its three terms are those of theorem 4.14 of
Ma, Ning and Du, "Differentiable Distributionally Robust Optimization Layers" (ICML 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.checks import number
from conelayers.errors import ModelError

SPREAD_FLOOR_REL = 1e-9
"""Smallest mean gap relative to |min f|: objectives that agree to this many digits are equal, so p is uniform."""


ROUNDING_REL = 1e-12
"""Smallest mean gap relative to the terms of f: objectives whose terms cancel to less differ by rounding."""


@dataclass(frozen=True)
class RelativeTemperature:
    """A temperature proportional to the mean gap of the objectives, item by item.

    With f the worst-case costs of the feasible integer points of an item,

        λ = factor · mean(f - min f).

    The mean is taken over all feasible points if they are enumerated. If points are drawn, it is estimated from them
    with the weights 1/q of their intensities q, Σ_s (f_s - min f)/q_s / Σ_s 1/q_s. The estimate converges to the mean
    over all feasible points as the number of draws grows, for every proposal. With ``samples=0`` the sample is the T
    best points, and the mean is theirs.

    λ is a constant of the computation: no gradient flows through it. ``decision.temperature`` returns it.

    An absolute temperature depends on the scale of the objective: 10 is nearly uniform for returns of 1e-2 and nearly
    greedy for costs of 1e+4.

    Args:
        factor: multiple of the mean gap; positive.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ModelError(f"A temperature must be positive, not {self.factor}.")


Temperature = float | RelativeTemperature | Tensor
"""One absolute λ for all items, a relative one, or absolute ones ``(batch,)``, one per item."""


def check_temperature(temperature: Temperature) -> Temperature:
    """Validate and return ``temperature``; a tensor is detached."""
    if isinstance(temperature, RelativeTemperature):
        return temperature
    if isinstance(temperature, Tensor) and temperature.dim() > 0:
        if temperature.dim() != 1 or not bool((temperature > 0).all()):
            raise ModelError(
                "A tensor of temperatures must have shape (batch,) and positive entries, "
                f"got shape {tuple(temperature.shape)}. Pass `decision.temperature`, or one number."
            )
        return temperature.detach()
    value = number("temperature", temperature)
    if not value > 0:
        raise ModelError(f"A temperature must be positive, not {temperature}.")
    return value


@torch.no_grad()
def compute_temperature(
    temperature: Temperature,
    objective: Float[Tensor, "batch candidate"],
    optimum: Float[Tensor, "batch"],
    log_intensity: Float[Tensor, "batch candidate"],
    valid: Bool[Tensor, "batch candidate"],
    term_size: Float[Tensor, "batch"] | None = None,
) -> Float[Tensor, "batch"]:
    """Compute λ of every item as a constant, without a graph.

    A relative temperature is factor · Σ_s v_s (f_s - min f), with the self-normalised importance weights
    v = softmax(-log q) over the valid candidates.

    Args:
        temperature: as set on the layer.
        objective: f of each candidate.
        optimum: min f over all feasible points.
        log_intensity: log q of each candidate; zeros if all feasible points are enumerated.
        valid: which candidates were solved.
        term_size: size of the terms of f, of which an f that cancels is only known to a share ``ROUNDING_REL``.

    Returns:
        Positive temperatures ``(batch,)``, in float64.
    """
    if isinstance(temperature, Tensor):
        if temperature.shape != optimum.shape:
            raise ModelError(
                f"The layer has {temperature.shape[0]} temperatures, but the batch has {optimum.shape[0]} items. "
                "Set `layer.temperature` to one number, or to one per item."
            )
        return temperature.to(objective)
    if not isinstance(temperature, RelativeTemperature):
        return objective.new_full(optimum.shape, temperature)
    weights = energy_probabilities(torch.zeros_like(objective), log_intensity, valid, torch.ones_like(optimum))
    gaps = torch.where(valid, objective - optimum[:, None], torch.zeros_like(objective))
    mean_gap = (weights * gaps).sum(1)
    # Without a gap any positive temperature gives the same, uniform, probabilities.
    scale = torch.where(valid.any(1), optimum.abs(), torch.zeros_like(optimum))
    rounding = torch.zeros_like(scale) if term_size is None else ROUNDING_REL * term_size
    floor = torch.maximum(SPREAD_FLOOR_REL * scale, rounding).clamp(min=torch.finfo(objective.dtype).tiny)
    return temperature.factor * torch.maximum(mean_gap, floor)


def energy_probabilities(
    objective: Float[Tensor, "batch candidate"],
    log_intensity: Float[Tensor, "batch candidate"],
    valid: Bool[Tensor, "batch candidate"],
    temperature: Float[Tensor, "batch"],
) -> Float[Tensor, "batch candidate"]:
    """Compute softmax(-f/λ - log q) over the valid candidates, differentiable in f alone.

    Args:
        objective: f of each candidate.
        log_intensity: log q of each candidate, a constant.
        valid: which candidates were solved.
        temperature: λ of each item.

    Returns:
        Probabilities ``(batch, candidate)``: zero for an invalid candidate, all zero for an item without a valid one.
    """
    safe = torch.where(valid, objective, torch.zeros_like(objective))
    logits = -safe / temperature[:, None] - log_intensity.detach()
    logits = logits.masked_fill(~valid, -torch.inf)
    any_valid = valid.any(1, keepdim=True)
    logits = torch.where(any_valid, logits, torch.zeros_like(logits))
    return torch.softmax(logits, 1) * any_valid


def effective_sample_size(probabilities: Float[Tensor, "batch candidate"]) -> Float[Tensor, "batch"]:
    """Compute 1/Σ p²: a small value reveals a poor sample, a large one proves nothing (a missed mode stays unseen)."""
    squares = (probabilities.detach() ** 2).sum(1)
    return torch.where(squares > 0, 1.0 / squares.clamp(min=1e-300), torch.zeros_like(squares))
