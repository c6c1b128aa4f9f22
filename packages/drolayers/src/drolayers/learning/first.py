"""The first training: sets are fitted to data, without looking at decisions."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from math import isnan
from typing import final

from torch import Tensor

from drolayers.learning.comparison import Comparison
from drolayers.learning.course import Course
from drolayers.learning.model import SetModel
from drolayers.learning.module import PredictionModule
from drolayers.learning.pretraining import Phase, PredictionLosses
from drolayers.learning.settings import FIRST_RATE, MOST, RATE, Cosine, Stage, rate_schedule

LONGER = 2.5
"""So many times longer are locations fitted to single outcomes than all else: squared errors are cheap, and slow."""


@final
class FirstTraining:
    """Fits sets to data, to neighbours or to outcomes.

    Args:
        course: what is trained, and on what.
        stage: how; None for not at all.

    Attributes:
        loss: what is minimised; None where there is nothing that it means something to.
    """

    def __init__(self, course: Course, stage: Stage | None) -> None:
        self.course, self.stage = course, stage
        self.loss: PredictionLosses | None = None
        if stage is not None and stage.epochs:
            loss = PredictionLosses(course.problem.sets, course.training.Y, stage.locations)
            self.loss = loss if loss.fits else None

    @property
    def auto(self) -> bool:
        """Whether its rate is left to us."""
        return self.stage is not None and self.stage.rate == "auto"

    @property
    def open(self) -> bool:
        """Whether what locations are fitted to is left to us, too."""
        return self.auto and self.stage is not None and self.stage.locations == "auto"

    def run(self, comparison: Comparison | None) -> None:
        """Train, once or in the ways that are compared."""
        loss, stage = self.loss, self.stage
        if loss is None or stage is None:
            return
        rate = stage.rate if not self.auto else FIRST_RATE if comparison is None and not loss.single else RATE
        # Single outcomes are noisier than means of neighbours, so that steps must become small.
        careful = {"decay": max(stage.decay, 3.0)} if self.auto else {}
        first = stage.but(rate=rate, **(careful if loss.single else {}))
        if comparison is None or not self.auto:
            self._fit(loss, first, "prediction")
            return
        tried = [first]
        if loss.averages and self.open:
            tried.append(stage.but(rate=rate, locations="outcomes", **careful))
        for k, one in enumerate(tried):
            name = f"prediction/trial-{k}" if k else "prediction"
            fitted = " to outcomes" if one.locations == "outcomes" else ""
            usual = one.locations == "outcomes" or tried[-1].locations != "outcomes"
            comparison.begun(f"pre-trained{fitted}, rate {one.rate:.2g}", partial(self._fit, loss, one, name), usual)

    def _fit(self, loss: PredictionLosses, stage: Stage, name: str) -> None:
        """Locations, and then bounds or both."""
        loss.locations = stage.locations
        phase: Phase = "both"
        half = stage.epochs // 2
        if loss.single:
            first = f"{name}-locations" if "/" in name else f"{name}/trial-locations"
            # Few points make small batches, for decisions; means over more of them are better ones.
            longer = stage.but(epochs=round(LONGER * stage.epochs), batch_size=stage.batch_size or MOST)
            # As mean predictions are trained, so that sets are around what they would be.
            usual = longer.but(clip=None, rate=Cosine(RATE, longer.epochs)) if self.auto else longer
            self._locate(loss, usual, first)
            model, training = self.course.pipeline.model, self.course.training
            if isinstance(model, SetModel):
                # Shapes begin at what is left around the centres.
                model.take_typical(self.course.problem.sets, loss.shapes(model(training.Z), training.Y))
            stage, half, phase = stage.but(epochs=max(half, 1)), 0, "bound"
        weights = self.course.row_weights
        module = PredictionModule(self.course.pipeline, loss, rate_schedule(stage), half, phase, weights)
        self.course.train(name, module, stage)

    def _locate(self, loss: PredictionLosses, stage: Stage, name: str) -> None:
        """Fit locations to single outcomes, from nothing and from least squares: the better on validation data is kept.

        A network alone spends its epochs, and its early stopping, on what least squares know, where that is much. (On
        four draws of PyEPO's problems that are in no table, 80 points, mean predictions that begin with least squares
        have regrets of 0.0006 and 0.0073 on portfolios, without and with noise, where others have 0.0024 and 0.0085;
        0.038 and 0.158 against 0.045 and 0.170 on paths; 0.0136 and 0.0864 against 0.0162 and 0.0898 on knapsacks. On
        the battery, with 101 covariates, those from nothing are ahead.)
        """
        course, model = self.course, self.course.pipeline.model
        training, held_out = course.training, course.held_out
        aims, start = loss.aims(training.Y), deepcopy(model.state_dict())
        found: list[tuple[float, dict[str, Tensor]]] = []

        def note(located: PredictionModule) -> None:
            if held_out is not None and not isnan(value := located.judged(held_out)):
                found.append((value, deepcopy(model.state_dict())))

        def trained(name: str) -> None:
            located = PredictionModule(course.pipeline, loss, rate_schedule(stage), 0, "location", course.row_weights)
            note(located)
            course.train(name, located, stage)
            note(located)

        trained(name)
        if held_out is None or not aims or course.model is None:
            return
        model.load_state_dict(start)
        weights = training.weights, held_out.weights
        course.model.take_linear(course.problem.sets, training.Z, aims, held_out.Z, loss.aims(held_out.Y), *weights)
        trained(f"{name}-linear")
        if found:
            model.load_state_dict(min(found, key=lambda one: one[0])[1])
