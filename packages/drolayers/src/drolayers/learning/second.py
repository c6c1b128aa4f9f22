"""The second training: on decisions, with what was left to us compared on validation data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, final

import torch
from torch import Tensor

from conelayers import RelativeTemperature, Smoothed
from drolayers.errors import ModelError
from drolayers.learning.comparison import RATES, SHARES, Choice, Comparison
from drolayers.learning.course import SOME, Course
from drolayers.learning.covering import Covering
from drolayers.learning.first import FirstTraining
from drolayers.learning.model import SetModel
from drolayers.learning.module import DecisionModule
from drolayers.learning.objectives import Mean, Objective, checked_objective
from drolayers.learning.pipeline import evaluating
from drolayers.learning.pretraining import PredictionLosses
from drolayers.learning.settings import RATE, Stage, rate_schedule, smoothing_schedule, temperature_schedule
from drolayers.learning.violations import Violations

STILL = 0.1
"""Share of training points whose decisions do not move with θ beyond which gradients are smoothed."""

COVERING_STILL = 0.95
"""The same for sets that grow to a coverage, at the size at which they begin."""


IMMOVABLE = "Training on decisions was left out, since no decision moves with the set's parameters."
"""Of a set such as a ball of order 1 on all of space, whose radius adds the same to the cost of every decision."""

IMMOVABLE_ADVICE = (
    "A ball of order 1 on all of space, for example, adds its radius times one slope to the cost of every decision. "
    "Bound the support of y, choose another order or another set, or pass training=None to fit sets only."
)

ERRORS, MEAN_ERRORS, LINEAR_ERRORS = (1.0, 1.0), (1.5, 3.0), (1.5, 1.5)
"""Standard errors by which others must be better than the usual model, and trained ones than what they began with.

The second where the mean is known to suffice, and a network may follow it wherever it goes. A linear model cannot: it
must err somewhere, and a training on decisions tells it where that costs least. There the third, chosen as the second
was (RESULTS.md, the proving ground)."""


@final
class SecondTraining:
    """Trains on decisions.

    Args:
        course: what is trained, and on what.
        stage: how.
        objective: what is minimised.
        free: whether sets may be projected or not, whichever is better.
    """

    def __init__(self, course: Course, stage: Stage, objective: Objective | Literal["mean"] | None, free: bool) -> None:
        self.course, self.stage, self.free = course, stage, free
        self.objective = checked_objective(objective)
        self._units: dict[bool, float] = {}

    def comparison(self, first: FirstTraining) -> Comparison | None:
        """What trains in several ways and judges by validation data; None where there is nothing to compare."""
        stage, course = self.stage, self.course
        pipeline, training, held_out = course.pipeline, course.training, course.held_out
        # What the pre-trained model would be is compared by its cost alone: not where constraints are held on data.
        if not stage.epochs or stage.violations is not None or not course.trainer.budget or held_out is None:
            return None
        covering = self._covering(stage)
        judge = DecisionModule(pipeline, None, None, rate_schedule(stage), objective=self.objective, coverage=covering)
        weights = held_out.weights

        def run(stage: Stage, name: str, origin: str) -> None:
            course.train(name, self.module(stage), stage, origin)

        projections = [pipeline.projection]
        if self.free:
            projections.append(None)
        some = training[: max(len(held_out), SOME // 2)]

        def measure() -> tuple[Tensor, float]:
            # What is not projected, or smaller, may be empty where no validation row is.
            losses, others = judge.measured(held_out), judge.measured(some)
            return losses, min(float(one.isfinite().double().mean()) for one in (losses, others))

        # Not where a promise rests on the sets.
        loose = self.free and not course.problem.rules and stage.coverage is None
        sized = loose and self._has_size()
        located = first.loss is not None and first.loss.locates and isinstance(pipeline.model, SetModel)
        smallest = sized and located and course.problem.neutral and isinstance(self.objective, Mean)
        bends = isinstance(pipeline.model, SetModel) and bool(pipeline.model.hidden)
        # A training whose rate is given is asked for, and nothing is usual that was never fitted.
        asked = stage.rate != "auto" or first.loss is None
        sufficing = MEAN_ERRORS if bends else LINEAR_ERRORS
        errors, trained = (0.0, 0.0) if asked else sufficing if smallest else ERRORS
        # What locations are fitted to may have been asked for, and a model of one's own is the user's, a SetModel too.
        moves = loose and located and first.open and errors > 0 and course.model is not None
        shares = SHARES if moves and course.problem.sets.aims(training.Y[:1]) else ()
        # An epoch looks at every row, and at most of them once more, for gradients.
        judging = 0.5 * (len(held_out) + len(some)) / (len(training) + len(held_out))
        return Comparison(
            pipeline, run, measure, projections, sized, shares, errors, smallest, trained, judging, weights
        )

    def _has_size(self) -> bool:
        """Whether the size of the sets has a name, and is learnt."""
        problem = self.course.problem
        try:
            problem.sets.scaled(torch.ones(1, problem.size, dtype=torch.float64), 0.5)
        except ModelError:
            return False
        return True

    def run(self, comparison: Comparison | None) -> None:
        """Train, with what was left to us chosen on validation data."""
        stage = self.stage
        if not stage.epochs:
            return
        z, _, rows, known = self._some()
        if stage.coverage is None and self.course.pipeline.immovable(z, rows, self.course.typical, known):
            warnings.warn(f"{IMMOVABLE} {IMMOVABLE_ADVICE}", stacklevel=4)
            if comparison is not None:
                comparison.settle("pre-trained")
                comparison.reason = IMMOVABLE
            return
        if comparison is None:
            self.course.train("decision", self.module(stage), stage)
            return
        projections = comparison.settle("pre-trained")
        gradients = [self._gradient(stage)]
        # Trials of sets that grow end before a shape is learnt: large rates and smoothed gradients win them, and fail.
        open_rates = [RATE, *RATES] if stage.coverage is None else [RATE, RATES[-1]]
        rates = open_rates if stage.rate == "auto" else [stage.rate]
        if stage.gradient == "auto" and gradients[0] != "auto" and stage.coverage is None:
            gradients += [other for other in ("exact", "smoothed") if other != gradients[0]]
        choice = Choice(projections[0], stage.but(gradient=gradients[0], rate=rates[0]))
        questions: list[Callable[[Choice], list[Choice]]] = [
            lambda best: [replace(best, projection=other) for other in projections[1:]],
            lambda best: [replace(best, stage=best.stage.but(rate=rate)) for rate in rates[1:2]],
            # Where the larger rate won, larger still; else a smaller one.
            lambda best: [
                replace(best, stage=best.stage.but(rate=rate)) for rate in rates[2 + (best.stage.rate == RATE) :][:1]
            ],
            # Gradients after them: what is quick at the start need not be what gets far, and a good rate gets farther.
            lambda best: [replace(best, stage=best.stage.but(gradient=other)) for other in gradients[1:]],
            # The rate was found with the other gradient.
            lambda best: [
                replace(best, stage=best.stage.but(rate=factor * best.stage.rate))
                for factor in ((3.0, 1.0 / 3.0) if stage.rate == "auto" and best.stage.gradient != gradients[0] else ())
                if isinstance(best.stage.rate, float)
            ],
        ]
        comparison.train(choice, self.course.trainer.budget, questions)

    def _gradient(self, stage: Stage) -> str:
        """The gradient that a training takes: "auto" where there is no choice to be made."""
        course, layer = self.course, self.course.pipeline.layer
        problem = course.problem
        able = replace(layer.engine, gradient=Smoothed(stage.smoothing)).supports(problem.program)
        free = {*problem.variables, *problem.coefficients} - set(problem.integer_variables)
        if stage.gradient != "auto" or isinstance(layer.gradient, Smoothed) or not able or not free:
            return stage.gradient
        z, y, rows, known = self._some()
        covering = self._covering(stage)
        resize = None if covering is None else partial(covering, course.pipeline, y, rows, 0, 0)
        most = STILL if covering is None else COVERING_STILL
        return "smoothed" if course.pipeline.still(z, rows, course.typical, known, resize) > most else "exact"

    def module(self, stage: Stage) -> DecisionModule:
        """One training; a layer of one's own keeps its smoothing, and a temperature that is not the usual."""
        problem, pipeline, layer = self.course.problem, self.course.pipeline, self.course.pipeline.layer
        z, y, rows, known = self._some()
        gradient = self._gradient(stage)
        smoothed = gradient == "smoothed"
        if stage.gradient == "exact":
            layer.gradient = "exact"
        smoothing = smoothing_schedule(stage.smoothing, stage.epochs) if smoothed else None
        kept = stage.temperature is None and layer.temperature != RelativeTemperature()
        temperature = None if kept else temperature_schedule(stage)
        loss = (PredictionLosses(problem.sets, self.course.training.Y) or None) if stage.anchor else None
        # All trainings begin with the same model, projected or not.
        projected = pipeline.projection is not None
        if projected not in self._units:
            self._units[projected] = pipeline.cost_unit(z, y, rows, known)
        unit = self._units[projected]
        rate = rate_schedule(stage)
        if smoothed:
            layer.gradient = Smoothed(stage.smoothing)
        held = None
        if stage.violations is not None:
            with torch.no_grad(), evaluating(pipeline):
                start = pipeline(z, rows, known)
            x, told = ({v: x[start.ok] for v, x in start.best.items()}, problem.known_data.values(known[start.ok]))
            held = Violations(problem, stage.violations, x, y[start.ok], told)
        covering = self._covering(stage)
        weights = self.course.row_weights
        return DecisionModule(
            pipeline, temperature, smoothing, rate, stage.anchor, loss, unit, self.objective, held, covering, weights
        )

    def _some(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Some training rows."""
        return self.course.training.batch(list(range(min(len(self.course.training), 50))))

    def _covering(self, stage: Stage) -> Covering | None:
        """The size of sets while they are trained, where coverage is asked for."""
        if stage.coverage is None:
            return None
        return Covering(stage.coverage, self.course.training, stage.epochs, self.course.seed)
