"""What the authors' published scripts do and the library does not: their networks, pre-training, and weighting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from conelayers.surrogate.proposal import Draws, Energy, ProposalInput
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.nominal import NominalDistribution
from drolayers.projection import Projection


@dataclass(frozen=True)
class PublishedEnergy:
    """The paper's proposal with the published weights of its draws, which are not those it draws with.

    A draw outside the T best happens with the outside mass p of the proposal and is then uniform over the box, so that
    its probability is p over the number of points. The published mixed-integer portfolio leaves p out, as if every draw
    were uniform. Draws outside then count p times as much as they should: a sixth at most, where the outside mass is
    capped at 0.2 of the inside mass. (The published newsvendor weights its draws rightly.)

    Args:
        inner: the proposal that is drawn from.
    """

    inner: Energy = field(default_factory=Energy)

    def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
        """Draw as the right proposal does."""
        draws = self.inner.sample(inputs, count, rng)
        return Draws(draws.points, self.log_intensity(inputs, draws.points, count), draws.valid)

    def log_intensity(
        self, inputs: ProposalInput, points: Float[Tensor, "batch draw integer"], count: int
    ) -> Float[Tensor, "batch draw"]:
        """Right inside, uniform over the whole box outside."""
        right = self.inner.log_intensity(inputs, points, count)
        return torch.where(inputs.is_best(points), right, torch.full_like(right, -inputs.log_box_size))


@dataclass(frozen=True)
class Pretraining:
    """Networks and pre-training of a published script.

    Args:
        hidden: widths of the hidden layers of every network.
        epochs: of each of the two phases.
        lr: at which each phase begins.
        divisor: what it is divided by.
        every: after so many epochs.
        batch_size: items a step.
        fresh: contexts drawn uniformly for a step in place of the batch (newsvendor); 0 takes the data in their order.
        projection: method of the projection.
        weights: of the parameters in it.
    """

    hidden: tuple[int, ...]
    epochs: int = 10
    lr: float = 0.1
    divisor: float = 5.0
    every: int = 5
    batch_size: int = 100
    fresh: int = 0
    projection: str = "clip"
    weights: dict[str, float] = field(default_factory=dict)


class PublishedModel(nn.Module):
    """A network for every parameter of the set, with no activation at its end, and the projection after them.

    The projection is part of the model, since its weights are not the library's.

    Args:
        ambiguity: the set.
        nominal: fitted.
        inputs: number of covariates.
        settings: widths and projection.
        seed: of the initial weights, which are PyTorch's default.
    """

    def __init__(
        self, ambiguity: MomentSet, nominal: NominalDistribution, inputs: int, settings: Pretraining, seed: int
    ) -> None:
        super().__init__()
        widths = [int(torch.Size(shape).numel()) for shape in ambiguity.parameters.values()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = nn.ModuleList(_perceptron([inputs, *settings.hidden, width]) for width in widths)
        weights = {name: value for name, value in settings.weights.items() if name in ambiguity.parameters}
        self.projection = Projection(ambiguity, weights=weights or None, method=settings.projection)  # type: ignore[arg-type]
        self.nominal = nominal
        self.double()

    def raw(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch theta"]:
        """θ before the projection."""
        return torch.cat([network(z) for network in self.networks], 1)

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch theta"]:
        """θ whose set contains the nominal distribution."""
        return self.projection(self.raw(z), self.nominal(z))


def pretrained(
    ambiguity: MomentSet, nominal: NominalDistribution, Z: Any, settings: Pretraining, seed: int
) -> PublishedModel:
    """A model after both phases: locations on their distance to each neighbour, then bounds on the squared error.

    Args:
        ambiguity: the set.
        nominal: fitted; training points are among their own neighbours, as in the scripts.
        Z: training contexts.
        settings: of the script.
        seed: of weights and contexts.
    """
    contexts = torch.as_tensor(np.asarray(Z, dtype=float))
    model = PublishedModel(ambiguity, nominal, contexts.shape[1], settings, seed)
    rng = np.random.default_rng([seed, 1])
    for phase in ("location", "bound"):
        for epoch in range(settings.epochs):
            if epoch % settings.every == 0:
                # The scripts begin with a new optimiser whenever the rate falls.
                rate = settings.lr / settings.divisor ** (epoch // settings.every)
                optimiser = torch.optim.Adam(model.networks.parameters(), lr=rate)
            for z in _batches(contexts, settings, rng):
                optimiser.zero_grad()
                _loss(ambiguity, model.raw(z), nominal(z), phase).backward()
                optimiser.step()
    return model


def _loss(ambiguity: MomentSet, theta: Tensor, nominal: tuple[Tensor, Tensor], phase: str) -> Tensor:
    """E_Q[g] for locations, (E_Q[g] - σ)² for bounds, with locations held fixed."""
    atoms, weights = nominal
    expected = (weights[..., None] * ambiguity.values(theta, atoms)).sum(1)
    if phase == "location":
        return expected.sum(1).mean()
    return (expected.detach() - torch.cat(ambiguity.sigmas(theta), 1)).square().mean()


def _batches(contexts: Tensor, settings: Pretraining, rng: np.random.Generator) -> Iterator[Tensor]:
    """The contexts of one epoch."""
    for part in contexts.split(settings.batch_size):
        if settings.fresh:
            low, high = contexts.amin(0).numpy(), contexts.amax(0).numpy()
            yield torch.as_tensor(rng.uniform(low, high, size=(settings.fresh, contexts.shape[1])))
        else:
            yield part


def _perceptron(widths: list[int]) -> nn.Sequential:
    """Linear layers with rectifiers between."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
