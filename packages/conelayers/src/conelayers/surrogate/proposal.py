"""Proposals: how integer points are drawn around the best ones, and with which intensity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.errors import ModelError

__all__ = ["Energy", "Stratified"]


def __dir__() -> list[str]:
    return sorted(__all__)


OUTSIDE_SHARE_MIN = 1e-12
"""Smallest share of the box outside the best points that is not rounding: below it, no point is outside."""


@dataclass(frozen=True, eq=False)
class ProposalInput:
    """The input of a proposal: the T best points of every item, and the box that contains all integer points.

    Args:
        points: the best points, best first.
        objective: their objectives f; +inf where not ``valid``.
        valid: which candidates hold a point.
        lower: lower ends of the box.
        upper: upper ends of the box.
        temperature: λ of each item, for proposals that draw by energy. A relative temperature is here that of the T
            best points alone, since that of the surrogate is computed from the draws.
    """

    points: Float[Tensor, "batch candidate integer"]
    objective: Float[Tensor, "batch candidate"]
    valid: Bool[Tensor, "batch candidate"]
    lower: Float[Tensor, "integer"]
    upper: Float[Tensor, "integer"]
    temperature: Float[Tensor, "batch"]

    @property
    def log_box_size(self) -> float:
        """Logarithm of the number of integer points in the box; the number itself may exceed any float."""
        return float(torch.log(self.upper - self.lower + 1.0).sum())

    def log_outside_size(self) -> Float[Tensor, "batch"]:
        """Compute the logarithm of the number of box points outside the best; -inf if there is none."""
        log_inside = self.valid.sum(1).double().log()
        outside_share = -torch.expm1(log_inside - self.log_box_size)
        log_size = self.log_box_size + outside_share.clamp(min=1e-300).log()
        return torch.where(outside_share > OUTSIDE_SHARE_MIN, log_size, torch.full_like(log_size, -torch.inf))

    def is_best(self, points: Float[Tensor, "batch draw integer"]) -> Bool[Tensor, "batch draw"]:
        """Test which points are among the best."""
        same = (points[:, :, None, :] == self.points[:, None, :, :]).all(-1)
        return (same & self.valid[:, None, :]).any(-1)


@dataclass(frozen=True, eq=False)
class Draws:
    """Drawn points and their intensities, both constants of the computation.

    Args:
        points: integral, inside the box.
        log_intensity: log q, with q proportional to the expected number of times that a point is in the sample. The
            factor may differ between items, since weights 1/q are normalised.
        valid: which draws hold a point.
    """

    points: Float[Tensor, "batch draw integer"]
    log_intensity: Float[Tensor, "batch draw"]
    valid: Bool[Tensor, "batch draw"]


class Proposal(Protocol):
    """A way to draw points. Infeasible draws carry weight zero, since q is defined on the whole box."""

    def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
        """Draw ``count`` points for every item.

        Args:
            inputs: the best points and the box.
            count: S.
            rng: the source of all randomness.
        """

    def log_intensity(
        self, inputs: ProposalInput, points: Float[Tensor, "batch draw integer"], count: int
    ) -> Float[Tensor, "batch draw"]:
        """Compute log q of points when ``count`` are drawn."""


@dataclass(frozen=True)
class Stratified:
    """The T best points exactly, and ``count`` points drawn uniformly outside them.

    A point outside represents N/count points, with N the number of box points outside, so that q = count/N. Each of the
    best represents itself, so that q = 1. On a dozen binaries with nearly uniform energies this recovers most of the
    gradient. Few draws from the paper's proposal recover little, since most of them are among the best.
    """

    def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
        """Return the best points, then ``count`` draws from outside: ``(batch, T + count)`` points."""
        outside, possible = draw_outside(inputs, count, rng)
        points = torch.cat([inputs.points, outside], 1)
        valid = torch.cat([inputs.valid, possible[:, None].expand(-1, count)], 1)
        return Draws(points, self.log_intensity(inputs, points, count), valid)

    def log_intensity(
        self, inputs: ProposalInput, points: Float[Tensor, "batch draw integer"], count: int
    ) -> Float[Tensor, "batch draw"]:
        """Return 0 for the best points, log(count/N) outside."""
        outside = np.log(max(count, 1)) - inputs.log_outside_size()[:, None]
        inside = torch.zeros_like(outside)
        return torch.where(inputs.is_best(points), inside, outside.nan_to_num(posinf=0.0))


@dataclass(frozen=True)
class Energy:
    """The paper's proposal: the T best by their energies exp(-f/λ), all other box points with one constant energy M.

    λ is ``ProposalInput.temperature``.

    Args:
        ratio: M as a fraction of the energy of the T-th best point.
        cap: upper bound on the mass outside, as a fraction of the mass inside.
    """

    ratio: float = 0.5
    cap: float = 0.2

    def __post_init__(self) -> None:
        if not (self.ratio > 0 and self.cap > 0):
            raise ModelError(f"Energy needs a positive ratio and cap, not ratio={self.ratio}, cap={self.cap}.")

    def log_masses(
        self, inputs: ProposalInput
    ) -> tuple[Float[Tensor, "batch candidate"], Float[Tensor, "batch"], Float[Tensor, "batch"]]:
        """Compute the logarithms of the best points' energies, of M, and of the total mass of the box."""
        energy = (-inputs.objective / inputs.temperature[:, None]).masked_fill(~inputs.valid, -torch.inf)
        inside = torch.logsumexp(energy, 1)
        last = torch.where(inputs.valid, energy, torch.full_like(energy, torch.inf)).amin(1)
        outside = inputs.log_outside_size()
        constant = torch.minimum(last + np.log(self.ratio), inside + np.log(self.cap) - outside)
        constant = torch.where(outside.isfinite(), constant, torch.full_like(constant, -torch.inf))
        total = torch.logaddexp(inside, constant + outside.nan_to_num(neginf=0.0))
        return energy, constant, total

    def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
        """Draw a best point with the share of the mass inside, otherwise a uniform point outside."""
        energy, _, total = self.log_masses(inputs)
        inside = (torch.logsumexp(energy, 1) - total).exp()
        batch = energy.shape[0]
        device = energy.device
        uniform = torch.as_tensor(rng.random((batch, count)), device=device)
        cumulative = torch.softmax(energy, 1).cumsum(1)
        index = (torch.as_tensor(rng.random((batch, count, 1)), device=device) >= cumulative[:, None, :]).sum(-1)
        index = index.clamp(max=energy.shape[1] - 1)
        best = inputs.points.gather(1, index[..., None].expand(-1, -1, inputs.points.shape[2]))
        outside, possible = draw_outside(inputs, count, rng)
        within = (uniform < inside[:, None]) | ~possible[:, None]
        points = torch.where(within[..., None], best, outside)
        valid = inputs.valid.any(1, keepdim=True).expand(-1, count)
        return Draws(points, self.log_intensity(inputs, points, count), valid)

    def log_intensity(
        self, inputs: ProposalInput, points: Float[Tensor, "batch draw integer"], count: int
    ) -> Float[Tensor, "batch draw"]:
        """Return the log probability of one draw: the energy inside, M outside, each divided by the total mass."""
        energy, constant, total = self.log_masses(inputs)
        same = (points[:, :, None, :] == inputs.points[:, None, :, :]).all(-1) & inputs.valid[:, None, :]
        inside = torch.where(same, energy[:, None, :], torch.full_like(energy[:, None, :], -torch.inf)).amax(-1)
        logarithm = torch.where(same.any(-1), inside, constant[:, None].expand_as(inside)) - total[:, None]
        return logarithm.nan_to_num(neginf=0.0)


def draw_outside(
    inputs: ProposalInput, count: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "batch draw integer"], Bool[Tensor, "batch"]]:
    """Draw uniformly from the box without the best points, by rejection.

    Returns:
        points: ``count`` draws for every item; arbitrary for an item without a point outside.
        possible: which items have a point outside.
    """
    batch, _, integers = inputs.points.shape
    possible = inputs.log_outside_size().isfinite() & inputs.valid.any(1)
    low, high = (end.cpu().numpy().astype(np.int64) for end in (inputs.lower, inputs.upper))

    def draw(number: int) -> Tensor:
        drawn = rng.integers(low, high + 1, size=(number, integers))
        return torch.as_tensor(drawn, dtype=torch.float64, device=inputs.points.device)

    points = draw(batch * count).reshape(batch, count, integers)
    rejected = inputs.is_best(points) & possible[:, None]
    while bool(rejected.any()):
        points[rejected] = draw(int(rejected.sum()))
        rejected = inputs.is_best(points) & possible[:, None]
    return points, possible
