"""A network for the conditional mean, trained on squared errors: the first stage of several baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor, nn

from conelayers.internals import number, weighted_mean, whole
from drolayers.errors import ModelError
from drolayers.learning.data import Examples, SeededBatches
from drolayers.learning.model import Perceptron, Standardised, ridge, units


class MeanModel(Standardised):
    """A multilayer perceptron for E[y | z], with inputs and outputs in units of the training data.

    Args:
        inputs: number of covariates.
        outputs: number of outcomes.
        hidden: widths of the hidden layers.
        generator: for the initial weights.
        degree: of the polynomials of the covariates that the network sees; 1 for the covariates alone.
    """

    output_shift: Tensor
    output_scale: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (64, 64),
        generator: torch.Generator | None = None,
        degree: int = 1,
    ) -> None:
        super().__init__(inputs, degree)
        self.network = Perceptron([self.seen, *(whole("Every entry of hidden", h) for h in hidden), outputs], generator)
        self.register_buffer("output_shift", torch.zeros(outputs))
        self.register_buffer("output_scale", torch.ones(outputs))
        self.double()

    def take_units(self, Z: Float[Tensor, "n dz"], Y: Float[Tensor, "n dim"]) -> None:
        """Take the units from training data."""
        self.take_inputs(Z)
        shift, scale = units(Y)
        self.output_shift.copy_(shift)
        self.output_scale.copy_(scale)

    def take_linear(self, training: Examples, held_out: Examples) -> None:
        """Begin at least squares, with the ridge that validation data like best."""
        parts = [(self.inner(d.Z), (d.Y - self.output_shift) / self.output_scale) for d in (training, held_out)]
        self.network.take_linear(*ridge(*parts[0], *parts[1], training.weights, held_out.weights))

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch dim"]:
        """The predicted mean."""
        return self.output_shift + self.output_scale * self.network(self.inner(z))

    def error(
        self,
        z: Float[Tensor, "batch dz"],
        y: Float[Tensor, "batch dim"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean squared error of standardised outcomes, by the weights of the items."""
        return weighted_mean(((self(z) - y) / self.output_scale).square(), weights).mean()


def batches(data: Examples, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
    """Contexts, outcomes and, if there are some, weights in an order that depends on the seed and the epoch alone."""
    order = SeededBatches(len(data), whole("batch_size", batch_size), seed)
    order.set_epoch(epoch)
    for rows in order:
        yield (data.Z[rows], data.Y[rows], *([] if data.weights is None else [data.weights[rows]]))


def train(
    module: nn.Module,
    loss: Callable[..., Tensor],
    score: Callable[[Examples], float],
    training: Examples,
    held_out: Examples | None,
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    decay: bool = True,
) -> list[dict[str, float]]:
    """Adam on a loss; the module is left at its best epoch on validation data, or at the last without any.

    Args:
        module: whose parameters are trained.
        loss: of a batch of contexts and outcomes, and of their weights if there are some.
        score: what to compare epochs by on validation data; smaller is better.
        training: data to train on.
        held_out: validation data.
        epochs: passes over the training data.
        lr: learning rate.
        batch_size: items a step.
        seed: of the order of the batches.
        decay: whether the rate falls to zero along a half cosine.

    Returns:
        What was seen, epoch by epoch.
    """
    if not number("lr", lr) > 0:
        raise ModelError(f"lr must be positive, not {lr!r}.")
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)
    total = whole("epochs", epochs, 0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(total, 1)) if decay else None
    module.eval()
    with torch.no_grad():
        best, history = (float("inf") if held_out is None else score(held_out)), []
    best = float("inf") if isnan(best) else best
    kept = None if held_out is None else deepcopy(module.state_dict())
    for epoch in range(total):
        seen, count = 0.0, 0.0
        module.train()
        for batch in batches(training, batch_size, seed, epoch):
            value = loss(*batch)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            mass = float(batch[2].sum()) if len(batch) > 2 else float(len(batch[0]))
            seen, count = seen + float(value.detach()) * mass, count + mass
        if schedule is not None:
            schedule.step()
        row = {"epoch": float(epoch), "loss": seen / count}
        if held_out is not None:
            module.eval()
            with torch.no_grad():
                row["validation"] = score(held_out)
            if row["validation"] < best:
                best, kept = row["validation"], deepcopy(module.state_dict())
        history.append(row)
    if kept is not None:
        module.load_state_dict(kept)
    module.eval()
    return history


def fit_mean(
    training: Examples,
    held_out: Examples | None,
    *,
    hidden: Sequence[int],
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    degree: int = 1,
    linear: bool = True,
) -> tuple[MeanModel, list[dict[str, float]]]:
    """A network for the mean, trained on squared errors from nothing and, unless said otherwise, from least squares.

    It is the better of both on validation data, each at its best epoch; without such data, or without epochs, it begins
    at nothing.
    """
    found: list[tuple[float, MeanModel, list[dict[str, float]]]] = []
    for straight in (False, True) if linear and epochs and held_out is not None else (False,):
        generator = torch.Generator().manual_seed(whole("seed", seed, 0))
        model = MeanModel(training.Z.shape[1], training.Y.shape[1], hidden, generator, degree)
        model.take_units(training.Z, training.Y)
        if straight and held_out is not None:
            model.take_linear(training, held_out)

        def judged(data: Examples, model: MeanModel = model) -> float:
            with torch.no_grad():
                return float(model.error(data.Z, data.Y, data.weights))

        history = train(
            model, model.error, judged, training, held_out, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed
        )
        found.append((0.0 if held_out is None else judged(held_out), model, history))
    _, model, history = min(found, key=lambda one: float("inf") if isnan(one[0]) else one[0])
    return model, history
