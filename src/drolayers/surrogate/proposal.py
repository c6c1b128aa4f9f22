"""How integer points are drawn around the best ones, and with which intensity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.errors import ModelError

__all__ = ["Energy", "Stratified"]


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True, eq=False)
class Summit:
    """What is known before sampling: the T best points, and the box that holds all.

    Args:
        points: the best points, best first.
        objective: their objectives.
        valid: which slots hold a point.
        lower: lower ends of the box of all integer points.
        upper: upper ends.
        temperature: λ of every item.
    """

    points: Float[Tensor, "batch best integer"]
    objective: Float[Tensor, "batch best"]
    valid: Bool[Tensor, "batch best"]
    lower: Float[Tensor, "integer"]
    upper: Float[Tensor, "integer"]
    temperature: Float[Tensor, "batch"]

    @property
    def log_size(self) -> float:
        """Logarithm of the number of integer points of the box, which may exceed any float."""
        return float(torch.log(self.upper - self.lower + 1.0).sum())

    def log_outside(self) -> Float[Tensor, "batch"]:
        """Logarithm of the number of points of the box that are not among the best; -inf where none is left."""
        inside = self.valid.sum(1).double()
        left = -torch.expm1(inside.log() - self.log_size)
        return torch.where(
            left > 1e-12, self.log_size + left.clamp(min=1e-300).log(), torch.full_like(left, -torch.inf)
        )

    def is_best(self, points: Float[Tensor, "batch slot integer"]) -> Bool[Tensor, "batch slot"]:
        """Whether points are among the best."""
        same = (points[:, :, None, :] == self.points[:, None, :, :]).all(-1)
        return (same & self.valid[:, None, :]).any(-1)


@dataclass(frozen=True, eq=False)
class Draws:
    """Points and the logarithm of the intensity with which each stands in the sample."""

    points: Float[Tensor, "batch slot integer"]
    log_prob: Float[Tensor, "batch slot"]
    valid: Bool[Tensor, "batch slot"]


class Proposal(Protocol):
    """A way of drawing points. Draws may be infeasible: they then carry weight zero, since q lives on the whole box."""

    def sample(self, summit: Summit, count: int, rng: np.random.Generator) -> Draws:
        """Draw points for every item."""

    def log_prob(
        self, summit: Summit, points: Float[Tensor, "batch slot integer"], count: int
    ) -> Float[Tensor, "batch slot"]:
        """The logarithm of the intensity of points when ``count`` are drawn."""


@dataclass(frozen=True)
class Stratified:
    """The T best points exactly, and ``count`` points drawn uniformly outside them.

    A point outside stands for (number outside)/count points, so its intensity is count/(number outside); the best stand
    for themselves. On a dozen binaries with nearly uniform energies this recovers most of the gradient where a handful
    of draws from the paper's proposal, most of them among the best, recover little.
    """

    def sample(self, summit: Summit, count: int, rng: np.random.Generator) -> Draws:
        """The best, then draws from outside."""
        outside, possible = draw_outside(summit, count, rng)
        points = torch.cat([summit.points, outside], 1)
        valid = torch.cat([summit.valid, possible[:, None].expand(-1, count)], 1)
        return Draws(points, self.log_prob(summit, points, count), valid)

    def log_prob(
        self, summit: Summit, points: Float[Tensor, "batch slot integer"], count: int
    ) -> Float[Tensor, "batch slot"]:
        """Zero inside, log(count) - log(number outside) outside."""
        outside = np.log(max(count, 1)) - summit.log_outside()[:, None]
        inside = torch.zeros_like(outside)
        return torch.where(summit.is_best(points), inside, outside.nan_to_num(posinf=0.0))


@dataclass(frozen=True)
class Energy:
    """The paper's proposal: the T best by their energies, every other point of the box with one constant energy M.

    Args:
        ratio: M as a fraction of the energy of the T-th best point.
        cap: the mass outside is at most this fraction of the mass inside.
    """

    ratio: float = 0.5
    cap: float = 0.2

    def __post_init__(self) -> None:
        if not (self.ratio > 0 and self.cap > 0):
            raise ModelError(f"Energy needs a positive ratio and cap, not ratio={self.ratio}, cap={self.cap}.")

    def masses(self, summit: Summit) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of the best points' energies, of M, and of the total mass."""
        energy = (-summit.objective / summit.temperature[:, None]).masked_fill(~summit.valid, -torch.inf)
        inside = torch.logsumexp(energy, 1)
        last = torch.where(summit.valid, energy, torch.full_like(energy, torch.inf)).amin(1)
        outside = summit.log_outside()
        constant = torch.minimum(last + np.log(self.ratio), inside + np.log(self.cap) - outside)
        constant = torch.where(outside.isfinite(), constant, torch.full_like(constant, -torch.inf))
        total = torch.logaddexp(inside, constant + outside.nan_to_num(neginf=0.0))
        return energy, constant, total

    def sample(self, summit: Summit, count: int, rng: np.random.Generator) -> Draws:
        """A best point with the probability of the inside mass, a uniform draw outside otherwise."""
        energy, _, total = self.masses(summit)
        inside = (torch.logsumexp(energy, 1) - total).exp()
        batch = energy.shape[0]
        device = energy.device
        chance = torch.as_tensor(rng.random((batch, count)), device=device)
        shares = torch.softmax(energy, 1).cumsum(1)
        which = (torch.as_tensor(rng.random((batch, count, 1)), device=device) >= shares[:, None, :]).sum(-1)
        which = which.clamp(max=energy.shape[1] - 1)
        best = summit.points.gather(1, which[..., None].expand(-1, -1, summit.points.shape[2]))
        outside, possible = draw_outside(summit, count, rng)
        within = (chance < inside[:, None]) | ~possible[:, None]
        points = torch.where(within[..., None], best, outside)
        usable = summit.valid.any(1, keepdim=True).expand(-1, count)
        return Draws(points, self.log_prob(summit, points, count), usable)

    def log_prob(
        self, summit: Summit, points: Float[Tensor, "batch slot integer"], count: int
    ) -> Float[Tensor, "batch slot"]:
        """Energy less the total mass inside, M less the total mass outside."""
        energy, constant, total = self.masses(summit)
        same = (points[:, :, None, :] == summit.points[:, None, :, :]).all(-1) & summit.valid[:, None, :]
        inside = torch.where(same, energy[:, None, :], torch.full_like(energy[:, None, :], -torch.inf)).amax(-1)
        logarithm = torch.where(same.any(-1), inside, constant[:, None].expand_as(inside)) - total[:, None]
        return logarithm.nan_to_num(neginf=0.0)


def draw_outside(
    summit: Summit, count: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "batch slot integer"], Bool[Tensor, "batch"]]:
    """Uniform draws from the box without the best points, and which items have any such point."""
    batch, _, integers = summit.points.shape
    possible = summit.log_outside().isfinite() & summit.valid.any(1)
    low, high = (end.cpu().numpy().astype(np.int64) for end in (summit.lower, summit.upper))

    def draw(number: int) -> Tensor:
        drawn = rng.integers(low, high + 1, size=(number, integers))
        return torch.as_tensor(drawn, dtype=torch.float64, device=summit.points.device)

    points = draw(batch * count).reshape(batch, count, integers)
    again = summit.is_best(points) & possible[:, None]
    while bool(again.any()):
        points[again] = draw(int(again.sum()))
        again = summit.is_best(points) & possible[:, None]
    return points, possible
