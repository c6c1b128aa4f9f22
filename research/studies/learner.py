"""The learner of both studies."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from drolayers.learning import DecisionFocusedLearner, Stage, Trainer
from drolayers.nominal import NominalDistribution
from drolayers.problem import DecisionProblem


class Training(Protocol):
    """What the settings of a study say about learning."""

    @property
    def projected(self) -> bool:
        """Whether learnt sets must contain Q_z."""

    @property
    def pretrain_epochs(self) -> int:
        """Of fitting the sets to Q_z."""

    @property
    def epochs(self) -> int:
        """Of training on decisions."""

    @property
    def lr(self) -> float:
        """Its rate."""

    @property
    def batch_size(self) -> int:
        """Items a step."""


def learner(
    problem: DecisionProblem, model: nn.Module, nominal: NominalDistribution, focused: bool, seed: int, given: Training
) -> DecisionFocusedLearner:
    """Decision-focused, or prediction-focused with the same first training; not fitted."""
    return DecisionFocusedLearner(
        problem,
        model=model,
        nominal=nominal,
        projection="auto" if given.projected else None,
        pretraining=Stage(given.pretrain_epochs, 1e-2, batch_size=given.batch_size),
        training=Stage(given.epochs, given.lr, batch_size=given.batch_size) if focused else None,
        trainer=Trainer(progress=False, budget=0.0),
        seed=seed,
    )
