"""What both trainings of a learner share: its parts, the data, and where they are trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.errors import ShapeError
from drolayers.learning import storage
from drolayers.learning.data import ExampleData, Examples
from drolayers.learning.model import SetModel
from drolayers.learning.module import DecisionModule, PredictionModule
from drolayers.learning.pipeline import Pipeline, evaluating
from drolayers.learning.settings import Stage, Trainer
from drolayers.learning.training import train
from drolayers.problem import DecisionProblem

SOME = 64
"""Contexts around which the size of sets is looked at before training."""


@final
@dataclass(frozen=True, eq=False)
class Course:
    """One fit of one pipeline.

    Args:
        pipeline: what is trained.
        training: data to train on.
        held_out: those for validation; None where there are none.
        typical: changes of θ that are typical of the training data.
        trainer: where it is trained.
        seed: of the order of the data.
        own: whether the model is the user's own.
        history: what all trainings logged, short ones too, by their names.
    """

    pipeline: Pipeline
    training: Examples
    held_out: Examples | None
    typical: Float[Tensor, "theta"]
    trainer: Trainer
    seed: int
    own: bool
    history: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    @property
    def problem(self) -> DecisionProblem:
        """Whose decisions are learnt."""
        return self.pipeline.layer.problem

    @property
    def model(self) -> SetModel | None:
        """The default model; None where the user gave one."""
        model = self.pipeline.model
        return model if isinstance(model, SetModel) and not self.own else None

    def begin(self) -> None:
        """Units of the default model, data of the nominal distribution, and the neighbours of all points."""
        pipeline, training, held_out, size = self.pipeline, self.training, self.held_out, self.problem.size
        assert pipeline.nominal is not None
        if training.weights is None:
            pipeline.nominal.fit(training.Z, training.Y)
        else:
            pipeline.nominal.fit(training.Z, training.Y, sample_weight=training.weights)
        # A single point cannot be left out.
        own = torch.arange(len(training)) if self.trainer.leave_one_out and len(training) > 1 else None
        known = torch.full((len(training),), -1) if own is None else own
        Z = training.Z if held_out is None else torch.cat([training.Z, held_out.Z])
        pipeline.remember(Z, torch.nn.functional.pad(known, (0, len(Z) - len(training)), value=-1))
        if self.model is not None:
            some = torch.linspace(0, len(training) - 1, min(len(training), SOME)).long()
            near = pipeline.around(training.Z[some], some)
            assert near is not None
            self.model.take_units(self.problem.sets, training.Z, training.Y, near.atoms)
        with torch.no_grad(), evaluating(pipeline):
            theta = pipeline.model(training.Z[:1])
        if tuple(theta.shape) != (1, size):
            raise ShapeError(f"The model must return shape (batch, {size}), not {tuple(theta.shape)}.")

    @property
    def row_weights(self) -> Float[Tensor, "row"] | None:
        """Weights of all rows, those for validation behind the others; None for equal weights."""
        parts = [part for part in (self.training, self.held_out) if part is not None]
        if all(part.weights is None for part in parts):
            return None
        return torch.cat([torch.ones(len(p)).double() if p.weights is None else p.weights for p in parts])

    def train(self, name: str, module: PredictionModule | DecisionModule, stage: Stage, origin: str = "") -> None:
        """Run one training, from what ``origin`` says in words, and keep its best epoch."""
        data = ExampleData(self.training, self.held_out, stage.items(len(self.training)), self.seed)
        where = self.trainer.but(progress=False) if "/" in name else self.trainer
        # Not the weights: a model of one's own need not begin with the same, and processors round differently.
        begun = [storage.described(stage), self.pipeline.projection is None, origin, self.history]
        self.history[name] = train(name, module, data, stage, where, begun)
