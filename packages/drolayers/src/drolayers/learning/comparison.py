"""What was left to the learner, compared on validation data: projection or none, size, which gradient, which rate.

Short trainings from the same start, each an eighth as long as the training itself, one question after the other: what
wins one is kept for the next. The training that follows has the settings that won. At the end one of all these models
is kept, be it the one that training on decisions began with.

The best of many looks better than it is, the more so the fewer and the noisier validation data are. One model is
therefore the usual one, that which was fitted to outcomes, and others take its place only where they are better by more
than a standard error of the difference, row by row. (On draws of PyEPO's problems that are in no table, 57 in all, that
had regrets of 5 % less than the best baseline, the least loss ones of 0.5 % less.) What wins before trainings on
decisions is the usual one beside these.

Networks that are fitted to squared errors follow the few largest outcomes, and go on along a line where data end. What
the neighbours' outcomes say is blunter, and never wild. So locations are also judged a part of the way to neighbours'
means (:data:`SHARES`), around the usual model and around the best.

Where costs are affine in what is uncertain and their mean is the goal, the predicted mean is known to be all that one
can use. There the usual model is the one with the smallest sets that decide for as many; others, larger sets among
them, must be better by one and a half standard errors, trained networks by three, since each is the best of many epochs
on the data that judge it; and the long training is left out where no short one was better by half of that. A linear
model cannot follow the mean everywhere, so that trainings have more to gain: there one and a half suffice. (Margins
were chosen on PyEPO's draws 10 to 13, which are in no table: RESULTS.md, the proving ground.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from conelayers.internals import weighted_mean
from drolayers.errors import ShapeError, SolveError
from drolayers.learning.model import SetModel
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.settings import RATE, Stage
from drolayers.projection import Projection

SHORT = 8
"""A trial is so many times shorter than the training."""

RATES = (3.0 * RATE, 9.0 * RATE, RATE / 3.0)
"""Rates of the second training that are tried beside the usual one: the second where the first won, else the last."""

SIZES = (0.1, 0.001)
"""Sizes, relative to what the first training found, at which sets are judged too."""

SHARES = (0.25, 0.5, 0.75)
"""Of the way to neighbours' means, at which locations are judged too."""

SAME = 1e-6
"""Losses that differ by less, relative to their size, are the same: decisions are not more accurate."""


@dataclass(frozen=True)
class Trial:
    """One line of a report.

    Attributes:
        what: was tried.
        loss: mean over the validation data that have a decision.
        solved: share of the validation data that have one, or of some training data where that is smaller.
        epochs: that it took.
        chosen: whether it, or the training with its settings, is what decides now.
        losses: of the validation data one by one, NaN where there is no decision.
        weights: of the validation data; None for equal weights.
    """

    what: str
    loss: float
    solved: float
    epochs: int
    chosen: bool = False
    losses: Tensor | None = field(default=None, repr=False, compare=False)
    weights: Tensor | None = field(default=None, repr=False, compare=False)

    def beats(self, other: Trial, errors: float = 0.0) -> bool:
        """Whether it decides for as many, at a loss that is smaller by more than some standard errors."""
        if self.solved != other.solved:
            return self.solved > other.solved
        return other.loss - self.loss > (errors * self._error(other) if errors else 0.0)

    def _error(self, other: Trial) -> float:
        """The standard error of the difference between two losses, not below what solvers leave open."""
        if self.losses is None or other.losses is None:
            return 0.0
        gap = self.losses - other.losses
        both = gap.isfinite()
        weights = torch.ones_like(gap)[both] if self.weights is None else self.weights.to(gap)[both]
        gap, size = gap[both], float(weighted_mean(other.losses[both].abs(), weights))
        count = len(gap)
        if count < 2:
            return float("inf")
        # √(n/(n-1) Σ w² (g - ḡ)²) / Σ w, which for equal weights is the deviation over √n.
        away = weights * (gap - weighted_mean(gap, weights))
        error = float((count / (count - 1.0) * away.square().sum()).sqrt() / weights.sum())
        return max(error, SAME * size)


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


@dataclass(frozen=True, eq=False)
class _Kept:
    """A model that may decide in the end."""

    trial: Trial
    weights: dict[str, Tensor]
    projection: Projection | None
    share: float
    size: float

    def put(self, pipeline: Pipeline) -> None:
        """Into a pipeline."""
        pipeline.model.load_state_dict(self.weights)
        pipeline.projection, pipeline.share = self.projection, self.share


class Comparison:
    """Trains one pipeline in several ways and remembers the best.

    Args:
        pipeline: after the first training.
        run: trains it with some settings under a name, from what is said, and leaves it at its best epoch.
        measure: its losses on validation data one by one, and the share of these that have a decision.
        projections: that may be used, the usual one first.
        sized: whether sets may be made smaller than those that the first training found.
        shares: of the way to neighbours' means that locations may be moved.
        errors: by how many standard errors another model must be better than the usual one.
        trained: by how many a trained one must be better than what it began with; as many unless given.
        smallest: whether the usual one is that with the smallest sets that decide for as many, rather than the best.
        judging: what it takes to measure once, in epochs of a training; a trial pays for it.
        weights: of the validation data; None for equal weights.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        run: Callable[[Stage, str, str], None],
        measure: Callable[[], tuple[Tensor, float]],
        projections: Sequence[Projection | None],
        sized: bool = False,
        shares: Sequence[float] = (),
        errors: float = 0.0,
        smallest: bool = False,
        trained: float | None = None,
        judging: float = 0.0,
        weights: Tensor | None = None,
    ) -> None:
        self.pipeline, self._run, self._measure, self.projections = pipeline, run, measure, list(projections)
        self.sized, self.shares, self.smallest = sized, shares, smallest
        self.errors, self.trained = errors, errors if trained is None else trained
        self.judging, self.weights = judging, weights
        self._start = deepcopy(pipeline.model.state_dict())
        self._layer = pipeline.layer.gradient, pipeline.layer.temperature
        self.trials: list[Trial] = []
        self.reason: str | None = None
        self._differ = self._left_out = False
        self._unsolved: SolveError | None = None
        self._usual: _Kept | None = None
        self._others: list[_Kept] = []
        self._settled: _Kept | None = None

    @property
    def _best(self) -> _Kept:
        """What decides if nothing better comes."""
        usual = self._usual
        # The least loss of all may be that of a few rows: what is better by the margin comes before it.
        errors = self.errors if self._settled is None else self.trained
        found = [one for one in self._others if usual is None or one.trial.beats(usual.trial, errors)]
        if usual is not None and not found:
            return usual
        return min(found, key=lambda one: (-one.trial.solved, one.trial.loss))

    def begun(self, what: str, train: Callable[[], None], usual: bool) -> None:
        """A first training, from the model as it was made, be it the usual one."""
        self.pipeline.model.load_state_dict(self._start)
        train()
        self._noted(what, usual)

    def settle(self, what: str) -> list[Projection | None]:
        """Judge moved locations, and go on from the best; the projections that make a difference, the best first."""
        if not self.trials:
            self._noted(what, usual=True)
        begun = dict.fromkeys(one for one in (self._usual, self._best) if one is not None)
        for one, share in product(begun, self.shares):
            one.put(self.pipeline)
            self.pipeline.share = share
            self._note(one.trial.what + _moved(share), 0, size=one.size)
        self._settled = self._usual = found = self._best
        self._others = []
        found.put(self.pipeline)
        self._start, best = found.weights, found.projection
        return [best, *(other for other in self.projections if self._differ and other is not best)]

    def _noted(self, what: str, usual: bool) -> None:
        """Judge the model as it is with every projection, and smaller sets without."""
        seen = []
        for projection in self.projections:
            self.pipeline.projection = projection
            seen.append(self._note(f"{what}, {'no projection' if projection is None else 'projection'}", 0, usual))
        self._differ = self._differ or len({trial.loss for trial in seen}) > 1
        model, sets = self.pipeline.model, self.pipeline.layer.problem.sets
        if not self.sized or self.pipeline.projection is not None or not isinstance(model, SetModel):
            return
        units = model.centre.clone(), model.scale.clone()
        for size in SIZES:
            if seen[-1].solved < seen[0].solved:
                # What is smaller still is empty where this is.
                break
            # Units of a parameter are the one place where all items' sets are made smaller alike.
            factor = sets.scaled(torch.ones_like(units[0])[None], size)[0]
            model.centre.copy_(units[0] * factor)
            model.scale.copy_(units[1] * factor)
            seen.append(self._note(f"{what}, no projection{_sized(size)}", 0, usual, size))

    def tried(self, choice: Choice, name: str) -> Trial:
        """A training from the start."""
        assert self._settled is not None
        layer, origin, size = self.pipeline.layer, self._settled.trial.what, self._settled.size
        layer.gradient, layer.temperature = self._layer
        self.pipeline.model.load_state_dict(self._start)
        self.pipeline.projection = choice.projection
        what = choice.name + _sized(size) + _moved(self.pipeline.share)
        try:
            self._run(choice.stage, name, origin)
        except SolveError as error:
            self._unsolved = error
            trial = Trial(f"{what}, no decisions", float("inf"), 0.0, choice.stage.epochs)
            self.trials.append(trial)
            return trial
        except ShapeError:
            # At too large a rate the parameters overflow: there is nothing to measure, and nothing is won.
            if all(bool(parameter.isfinite().all()) for parameter in self.pipeline.model.parameters()):
                raise
            trial = Trial(f"{what}, diverged", float("inf"), 0.0, choice.stage.epochs)
            self.trials.append(trial)
            return trial
        return self._note(what, choice.stage.epochs, size=size)

    def train(self, choice: Choice, budget: float, questions: Sequence[Callable[[Choice], list[Choice]]]) -> None:
        """The long training with what wins, unless short ones show that it would be in vain."""
        choice = self.search(choice, budget, questions)
        self._left_out = self._hopeless()
        if not self._left_out:
            self.tried(choice, "decision")

    def _hopeless(self) -> bool:
        """Whether no short training came half as far ahead of what it began with as a better one must be."""
        short, usual = [trial for trial in self.trials if trial.epochs], self._usual
        if not self.smallest or not self.trained or not short or usual is None or self._best is not usual:
            return False
        decides = usual.trial.solved == 1.0
        return decides and not any(trial.beats(usual.trial, self.trained / 2.0) for trial in short)

    def search(self, choice: Choice, budget: float, questions: Sequence[Callable[[Choice], list[Choice]]]) -> Choice:
        """The choice that wins, question by question, while trials cost no more than the budget.

        Args:
            choice: to begin with.
            budget: epochs of all trials, their judging included, relative to those of the training.
            questions: each from a choice to others that answer it differently.
        """
        short = max(1, choice.stage.epochs // SHORT)
        left = math.floor(budget * choice.stage.epochs / (short + self.judging) + 1e-9)
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
        trained = sum(trial.epochs > 0 for trial in self.trials)
        return self.tried(replace(choice, stage=choice.stage.but(epochs=epochs)), f"decision/trial-{trained}")

    def keep(self) -> Findings:
        """Leave the pipeline at the best model that was seen.

        Raises:
            SolveError: no model decides for any row.
        """
        best = self._best
        if self._unsolved is not None and not best.trial.solved:
            raise self._unsolved
        layer = self.pipeline.layer
        layer.gradient, layer.temperature = self._layer
        best.put(self.pipeline)
        trials = [replace(t, chosen=t is best.trial, losses=None, weights=None) for t in self.trials]
        return Findings(trials, self.reason or self._reason(best.trial))

    def _reason(self, best: Trial) -> str:
        """Why it is the best."""
        if self._left_out:
            margin = _margin(self.trained / 2.0)
            return (
                f"No short training on decisions helped{margin} on validation data: the long one was left out, and the "
                "pre-trained model is kept."
            )
        margin, long = _margin(self.trained), self.trials[-1]
        # By a few rows, and not by the margin: nothing else has less loss than what is kept.
        ahead = [t for t in self.trials if t.solved == best.solved and t.loss < best.loss]
        if not best.epochs:
            by = margin if any(t.epochs for t in ahead) else ""
            return f"Training on decisions did not help{by} on validation data: the pre-trained model is kept."
        if best is long:
            of = f" of those that were better than what they began with{margin}" if ahead else ""
            return f"The longest training was the best on validation data{of}."
        if long in ahead:
            return (
                f"A short training was better than what it began with{margin} on validation data, and the long one was "
                "not: the model of the short one is kept."
            )
        return "A short training was better on validation data than the long one: its model is kept."

    def _note(self, what: str, epochs: int, usual: bool = False, size: float = 1.0) -> Trial:
        """Measure the pipeline as it is, and keep it while it may decide in the end."""
        losses, solved = self._measure()
        finite, weights = losses.isfinite(), self.weights
        mean = weighted_mean(losses[finite], None if weights is None else weights[finite.cpu()])
        loss = float(mean) if bool(finite.any()) else float("inf")
        trial = Trial(what, loss, solved, epochs, losses=losses, weights=weights)
        self.trials.append(trial)
        pipeline = self.pipeline
        kept = _Kept(trial, deepcopy(pipeline.model.state_dict()), pipeline.projection, pipeline.share, size)
        if usual and (self._usual is None or self._replaces(trial, self._usual.trial)):
            self._usual, displaced = kept, self._usual
        else:
            displaced = kept
        if displaced is not None:
            self._others.append(displaced)
        if self._settled is not None:
            # The usual one stays: what is not better now will not be.
            self._others = [self._best] if self._best is not self._usual else []
        return trial

    def _replaces(self, trial: Trial, usual: Trial) -> bool:
        """Whether one of the usual models is more usual than another: the usual ones come from large to small sets."""
        return trial.solved >= usual.solved if self.smallest else trial.beats(usual)


def _sized(size: float) -> str:
    """How large sets were made, in words."""
    return f", {size:g} of the size" if size != 1.0 else ""


def _moved(share: float) -> str:
    """How far locations were moved, in words."""
    return f", {share:.0%} of the way to neighbours" if share else ""


def _margin(errors: float) -> str:
    """So many standard errors, in words."""
    return {0.0: "", 1.0: " by more than a standard error"}.get(errors, f" by more than {errors:g} standard errors")
