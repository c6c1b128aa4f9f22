"""Training on decisions of calibrated sets: how large the sets of a batch are."""

from __future__ import annotations

from math import ceil
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import betainc
from torch import Tensor

from drolayers.learning.calibration import rank
from drolayers.learning.data import Examples
from drolayers.learning.pipeline import Pipeline

OTHERS = 512
"""Rows at most whose scores tell the size of a batch's sets."""

SMALL = 0.05
"""Size of the sets at the start of a training, relative to the one that covers."""

GROWTH = 2
"""One part in so many of a training passes before sets have the size that covers."""


@final
class Covering:
    """Sets that hold their outcomes with some probability, whatever shape they are about to learn.

    In training, a quantile of the scores of *other* training rows scales the sets of a batch. Scores need no decision,
    so that there can be many, and a quantile of many neither jumps from batch to batch nor hangs on one row. Where a
    batch is most of the data, each half of it scales the other, as on validation data (Yeh et al., End-to-end
    conformal calibration for optimization under uncertainty, 2024).

    Sets begin small and grow: decisions against a large set of a shape that is not learnt yet are often to do nothing,
    whatever the context, and have no gradient.

    Args:
        level: the probability.
        training: rows of the training.
        epochs: of the training.
        seed: for the rows that are drawn.
    """

    def __init__(self, level: float, training: Examples, epochs: int, seed: int) -> None:
        self.level, self.training, self.seed = level, training, seed
        self._growing = min(ceil(epochs / GROWTH), epochs - 1)

    def __call__(
        self, pipeline: Pipeline, y: Tensor, rows: Int[Tensor, "batch"], epoch: int, step: int, theta: Tensor
    ) -> Tensor:
        """θ of a training batch at the size of the day."""
        size = SMALL ** (1.0 - epoch / self._growing) if epoch < self._growing else 1.0
        others = np.setdiff1d(np.arange(len(self.training)), rows.cpu().numpy())
        if len(others) < len(rows):
            return self._scaled(
                pipeline, theta, size * crossed(pipeline.layer.problem.sets.scores_anywhere(theta, y), self.level)
            )
        drawn = np.random.default_rng([self.seed, step]).permutation(others)[:OTHERS]
        scores = self._scores(pipeline, drawn.tolist(), theta.device)
        return self._scaled(pipeline, theta, size * quantile(scores, self.level))

    def crossed(self, pipeline: Pipeline, y: Tensor, theta: Tensor) -> Tensor:
        """θ of a batch at full size, each half by the scores of the other; a single row by those of training rows."""
        if len(y) < 2:
            rows = list(range(min(len(self.training), OTHERS)))
            return self._scaled(pipeline, theta, quantile(self._scores(pipeline, rows, theta.device), self.level))
        return self._scaled(pipeline, theta, crossed(pipeline.layer.problem.sets.scores_anywhere(theta, y), self.level))

    def _scaled(self, pipeline: Pipeline, theta: Tensor, factor: Tensor) -> Tensor:
        return pipeline.layer.problem.sets.scaled(theta, factor)

    def _scores(self, pipeline: Pipeline, rows: list[int], device: torch.device) -> Float[Tensor, "row"]:
        """How large the sets of some training rows must be to hold their outcomes."""
        z, y, numbers, known = (part.to(device) for part in self.training.batch(rows))
        return pipeline.layer.problem.sets.scores_anywhere(pipeline.theta(z, numbers, known, nonempty=False), y)


def quantile(scores: Float[Tensor, "row"], level: float) -> Float[Tensor, ""]:
    """A quantile as a mean of the order statistics around the one that covers (Harrell and Davis, 1982).

    One where no score is finite.
    """
    found = scores[scores.isfinite()].sort().values
    count = len(found)
    if not count:
        return scores.new_ones(())
    place = min(rank(count, level), count)
    reached = betainc(place, count + 1.0 - place, np.arange(count + 1) / count)
    return (torch.as_tensor(np.diff(reached)).to(found) * found).sum()


def crossed(scores: Float[Tensor, "batch"], level: float) -> Float[Tensor, "batch"]:
    """For every row of a batch the scale that the other half of it asks for, differentiable; one where there is none.

    Halves are every other row. The quantile of one that is too small is its largest score.
    """
    found = torch.ones_like(scores)
    for half in range(2):
        other = scores[1 - half :: 2]
        other = other[other.isfinite()]
        if other.numel():
            place = min(rank(len(other), level), len(other))
            found[half::2] = other.sort().values[place - 1]
    return found
