"""What was left to the learner, compared on validation data: projection or none, size, which gradient, which rate.

Short trainings from the same start, each an eighth as long as the training itself, one question after the other: what
wins one is kept for the next. The training that follows has the settings that won. At the end the model with the least
loss on validation data is kept, be it the one that training on decisions began with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from drolayers.errors import ShapeError
from drolayers.learning.model import SetModel
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.settings import RATE, Stage
from drolayers.projection import Projection

SHORT = 8
"""A trial is so many times shorter than the training."""

RATES = (3.0 * RATE, 9.0 * RATE, RATE / 3.0)
"""Rates of the second training that are tried beside the usual one: the second where the first won, else the last."""

FIRST_RATES = (1e-2, RATE)
"""Rates of the first training that are tried."""

SIZES = (0.1, 0.01)
"""Sizes, relative to what the first training found, at which sets are judged too."""


@dataclass(frozen=True)
class Trial:
    """One line of a report.

    Attributes:
        what: was tried.
        loss: mean over the validation data that have a decision.
        solved: share of the validation data that have one, or of some training data where that is smaller.
        epochs: that it took.
        chosen: whether it, or the training with its settings, is what decides now.
    """

    what: str
    loss: float
    solved: float
    epochs: int
    chosen: bool = False

    def beats(self, other: Trial) -> bool:
        """Whether it decides for as many, at a smaller loss."""
        return self.solved > other.solved or (self.solved == other.solved and self.loss < other.loss)


@dataclass(frozen=True)
class Findings:
    """What a learner tried on validation data and what it kept; printed as a table.

    Attributes:
        trials: in the order in which they were made.
        reason: one sentence.
    """

    trials: list[Trial] = field(default_factory=list)
    reason: str = "Nothing was compared."

    @property
    def chosen(self) -> Trial | None:
        """What decides now."""
        return next((trial for trial in self.trials if trial.chosen), None)

    def __str__(self) -> str:
        width = max([len(trial.what) for trial in self.trials], default=0)
        lines = [f"{'':<{width}}  epochs  solved  validation loss"] if self.trials else []
        lines += [
            f"{t.what:<{width}}  {t.epochs:>6}  {t.solved:>6.1%}  {t.loss:.6g}{'  <' if t.chosen else ''}"
            for t in self.trials
        ]
        return "\n".join([*lines, self.reason])


@dataclass(frozen=True)
class Choice:
    """Settings of a training on decisions that may be compared."""

    projection: Projection | None
    stage: Stage

    @property
    def name(self) -> str:
        """In words."""
        rate = "" if callable(self.stage.rate) else f", rate {self.stage.rate:.2g}"
        return f"{'no projection' if self.projection is None else 'projection'}, {self.stage.gradient} gradient{rate}"


class Comparison:
    """Trains one pipeline in several ways and remembers the best.

    Args:
        pipeline: after the first training.
        run: trains it with some settings under a name, and leaves it at its best epoch.
        measure: its loss on validation data, and the share of these that have a decision.
        projections: that may be used, the usual one first.
        sized: whether sets may be made smaller than those that the first training found.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        run: Callable[[Stage, str], None],
        measure: Callable[[], tuple[float, float]],
        projections: Sequence[Projection | None],
        sized: bool = False,
    ) -> None:
        self.pipeline, self._run, self._measure, self.projections = pipeline, run, measure, list(projections)
        self.sized = sized
        self._start = deepcopy(pipeline.model.state_dict())
        self._layer = pipeline.layer.gradient, pipeline.layer.temperature
        self.trials: list[Trial] = []
        self._differ = False
        self._best: tuple[Trial, dict[str, Tensor], Projection | None] | None = None

    def begun(self, what: str, train: Callable[[], None]) -> None:
        """A first training, from the model as it was made."""
        self.pipeline.model.load_state_dict(self._start)
        train()
        self._noted(what)

    def settle(self, what: str) -> list[Projection | None]:
        """Go on from the best model so far; the projections that make a difference, the best first."""
        if self._best is None:
            self._noted(what)
        assert self._best is not None
        _, self._start, best = self._best
        self.pipeline.model.load_state_dict(self._start)
        self.pipeline.projection = best
        return [best, *(other for other in self.projections if self._differ and other is not best)]

    def _noted(self, what: str) -> None:
        """Judge the model as it is with every projection, and smaller sets without."""
        seen = []
        for projection in self.projections:
            self.pipeline.projection = projection
            seen.append(self._note(f"{what}, {'no projection' if projection is None else 'projection'}", 0))
        self._differ = self._differ or len({trial.loss for trial in seen}) > 1
        model, sets = self.pipeline.model, self.pipeline.layer.problem.sets
        if not self.sized or self.pipeline.projection is not None or not isinstance(model, SetModel):
            return
        units = model.centre.clone(), model.scale.clone()
        for size in SIZES:
            # Units of a parameter are the one place where all items' sets are made smaller alike.
            factor = sets.scaled(torch.ones_like(units[0])[None], size)[0]
            model.centre.copy_(units[0] * factor)
            model.scale.copy_(units[1] * factor)
            self._note(f"{what}, no projection, {size:g} of the size", 0)

    def tried(self, choice: Choice, name: str) -> Trial:
        """A training from the start."""
        layer = self.pipeline.layer
        layer.gradient, layer.temperature = self._layer
        self.pipeline.model.load_state_dict(self._start)
        self.pipeline.projection = choice.projection
        try:
            self._run(choice.stage, name)
        except ShapeError:
            # At too large a rate the parameters overflow: there is nothing to measure, and nothing is won.
            if all(bool(parameter.isfinite().all()) for parameter in self.pipeline.model.parameters()):
                raise
            trial = Trial(f"{choice.name}, diverged", float("inf"), 0.0, choice.stage.epochs)
            self.trials.append(trial)
            return trial
        return self._note(choice.name, choice.stage.epochs)

    def search(self, choice: Choice, budget: float, questions: Sequence[Callable[[Choice], list[Choice]]]) -> Choice:
        """The choice that wins, question by question, while trials cost no more than the budget.

        Args:
            choice: to begin with.
            budget: epochs of all trials, relative to those of the training.
            questions: each from a choice to others that answer it differently.
        """
        short = max(1, choice.stage.epochs // SHORT)
        left = math.floor(budget * choice.stage.epochs / short + 1e-9)
        best: Trial | None = None
        for question in questions:
            for other in question(choice):
                if left < (2 if best is None else 1):
                    return choice
                if best is None:
                    best, left = self._brief(choice, short), left - 1
                trial, left = self._brief(other, short), left - 1
                if trial.beats(best):
                    best, choice = trial, other
        return choice

    def _brief(self, choice: Choice, epochs: int) -> Trial:
        """A short training."""
        return self.tried(replace(choice, stage=choice.stage.but(epochs=epochs)), f"decision/trial-{len(self.trials)}")

    def keep(self) -> Findings:
        """Leave the pipeline at the best model that was seen."""
        assert self._best is not None
        best, weights, projection = self._best
        layer = self.pipeline.layer
        layer.gradient, layer.temperature = self._layer
        self.pipeline.model.load_state_dict(weights)
        self.pipeline.projection = projection
        trials = [replace(t, chosen=t is best) for t in self.trials]
        why = (
            "Training on decisions did not help on validation data: the pre-trained model is kept."
            if not best.epochs
            else "The longest training was the best on validation data."
            if best is self.trials[-1]
            else "A short training was better on validation data than the long one: its model is kept."
        )
        return Findings(trials, why)

    def _note(self, what: str, epochs: int) -> Trial:
        """Measure the pipeline as it is, and keep it if nothing was better."""
        loss, solved = self._measure()
        trial = Trial(what, loss, solved, epochs)
        self.trials.append(trial)
        if self._best is None or trial.beats(self._best[0]):
            self._best = trial, deepcopy(self.pipeline.model.state_dict()), self.pipeline.projection
        return trial
