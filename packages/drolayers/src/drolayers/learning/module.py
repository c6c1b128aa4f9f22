"""The two kinds of training as Lightning modules that can also be used by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from drolayers.errors import ShapeError, SolveError
from drolayers.layer import Decision
from drolayers.learning.covering import Covering
from drolayers.learning.data import Batch, Examples
from drolayers.learning.loop import Loop, weighted_mean
from drolayers.learning.objectives import Mean, Objective, takes_weights
from drolayers.learning.pipeline import Pipeline, evaluating, timed
from drolayers.learning.pretraining import Phase, PredictionLosses
from drolayers.learning.settings import RateSchedule, SmoothingSchedule, TemperatureSchedule
from drolayers.learning.violations import Violations
from drolayers.status import Status

UNSOLVED_CHARGE = 1e6
"""Cost units that the selection of epochs charges for validation rows without a decision, times their share."""


class _Training(pl.LightningModule):
    """What both trainings share: the optimiser, and decisions on validation data."""

    monitor: str
    """By which loss on validation data the best epoch is told."""
    solved_only: frozenset[str] = frozenset()
    """Figures that are means over solved items, of which an epoch may have none."""

    row_weights: Tensor | None

    def __init__(self, pipeline: Pipeline, rate: RateSchedule, row_weights: Tensor | None = None) -> None:
        super().__init__()
        self.pipeline, self.rate = pipeline, rate
        self.register_buffer("row_weights", row_weights, persistent=False)
        self._noted: dict[str, list[tuple[float, float]]] = {}

    def on_train_start(self) -> None:
        """Lightning trains in whatever mode it finds: in evaluation no integer points would be drawn."""
        self.train()

    def configure_optimizers(self) -> Any:
        """Adam, with its rate by epoch."""
        optimiser = torch.optim.Adam(self.pipeline.model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, self.rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}

    def _note(self, weight: float, **values: Tensor | float) -> None:
        """Figures of a step: Lightning's own means take a tenth of the time of small problems."""
        for name, value in values.items():
            self._noted.setdefault(name.replace("__", "/"), []).append((float(value), weight))

    def on_after_backward(self) -> None:
        """At the end of an epoch, the means of what was noted."""
        if not self.trainer.is_last_batch:
            return
        for name in self.solved_only - set(self._noted):
            # This process had no solved item in the whole epoch.
            self._note(1, **{name: float("nan")})
        for name, pairs in self._noted.items():
            mean = weighted_mean(pairs)
            self.log(name, mean, prog_bar=name.endswith("_loss"), on_step=False, on_epoch=True, batch_size=1)
        self._noted = {}

    def log(self, name: str, value: Any, **settings: Any) -> None:  # type: ignore[override]
        """Note a figure in double precision; Lightning makes single numbers of Python's."""
        precise = torch.as_tensor(value, dtype=torch.float64)
        if isinstance(self.trainer, Loop):
            self.trainer.log(name, precise, settings.get("batch_size", 1))
        else:
            super().log(name, precise, **settings)

    def _gathered(self, value: Tensor) -> Tensor:
        """A value of all processes, one after the other."""
        return value[None] if self.trainer.world_size == 1 else torch.as_tensor(self.all_gather(value))

    def _weights(self, rows: Tensor) -> Tensor | None:
        """The weights of some rows; None for equal weights."""
        return None if self.row_weights is None else self.row_weights[rows.to(self.row_weights.device)]

    def _average(self, total: Tensor, count: Tensor) -> Tensor:
        """A total over the items of one process as a mean over those of all.

        Gradients are averaged over processes, so each divides by the mean number (or weight) of items a process.
        """
        mean = self._gathered(count.to(total)).mean().to(total)
        return total / torch.where(mean > 0, mean, torch.ones_like(mean))


class PredictionModule(_Training):
    """Prediction-focused training of the model: location parameters first, then bounds.

    Args:
        pipeline: the parts.
        loss: the two-term loss.
        rate: learning rate by epoch.
        location_epochs: epochs on the first term alone.
        phase: on which terms to go on after them, and to judge epochs by: "location" for the first, "bound" for the
            second, "both".
        row_weights: weights of all rows of the training, by their numbers; None for equal weights.
    """

    monitor = "val_prediction_loss"

    def __init__(
        self,
        pipeline: Pipeline,
        loss: PredictionLosses,
        rate: RateSchedule,
        location_epochs: int,
        phase: Phase = "both",
        row_weights: Tensor | None = None,
    ) -> None:
        super().__init__(pipeline, rate, row_weights)
        self.loss, self.location_epochs, self.phase = loss, location_epochs, phase

    def _loss(self, batch: Batch, phase: Phase) -> Tensor:
        """The mean loss of a batch."""
        z, y, rows, _ = batch
        if not len(z):
            return self.pipeline.nothing()
        nominal = self.pipeline.around(z, rows)
        assert nominal is not None
        return self.loss(self.pipeline.model(z), nominal, phase, y, self._weights(rows))

    @torch.no_grad()
    def judged(self, data: Examples) -> float:
        """The loss that epochs are judged by, on some data."""
        with evaluating(self.pipeline):
            return float(self._loss(data.batch(list(range(len(data)))), self.phase))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the term of the day."""
        early = self.loss.locates and self.current_epoch < self.location_epochs
        mass = self._mass(batch)
        loss = self._loss(batch, "location" if early else self.phase)
        self._note(mass or 1.0, prediction_loss=loss.detach())
        return self._average(loss * mass, torch.tensor(mass))

    def _mass(self, batch: Batch) -> float:
        """The number of items of a batch, or the sum of their weights."""
        weights = self._weights(batch[2])
        return float(len(batch[0])) if weights is None else float(weights.sum())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """What epochs are judged by."""
        items = len(batch[0])
        # Weights of validation rows have mean one, so that the mean over batches is that over rows.
        self.log("val_prediction_loss", self._loss(batch, self.phase) * self._mass(batch) / items, batch_size=items)


class DecisionModule(_Training):
    """Decision-focused training of the model through projection, layer and surrogate.

    Args:
        pipeline: the parts.
        temperature: λ by epoch; None leaves the layer's.
        smoothing: level of smoothing by epoch; None leaves the layer's gradient.
        rate: learning rate by epoch.
        anchor: weight of the first term of the prediction-focused loss, taken at the outcomes, beside the decision
            loss; it keeps locations where the data are while decisions shape the rest.
        loss: that loss; needed where the weight is not zero.
        unit: of the decision loss, so that gradients are clipped, and locations held, alike in whatever unit the cost
            is counted (:meth:`Pipeline.cost_unit`).
        objective: what is minimised; the mean cost unless given.
        violations: how constraints are held on data; None leaves them to the sets.
        coverage: with which probability sets are to hold their outcomes, and what the sets of a batch are scaled by for
            that; None leaves sets as they are.
        row_weights: weights of all rows of the training, by their numbers; None for equal weights.
    """

    monitor = "val_selection_loss"
    solved_only = frozenset({"decision_loss", "effective_sample_size"})

    def __init__(
        self,
        pipeline: Pipeline,
        temperature: TemperatureSchedule | None,
        smoothing: SmoothingSchedule | None,
        rate: RateSchedule,
        anchor: float = 0.0,
        loss: PredictionLosses | None = None,
        unit: float = 1.0,
        objective: Objective | None = None,
        violations: Violations | None = None,
        coverage: Covering | None = None,
        row_weights: Tensor | None = None,
    ) -> None:
        super().__init__(pipeline, rate, row_weights)
        self.temperature, self.smoothing, self.anchor, self.loss = temperature, smoothing, anchor, loss
        self.objective = Mean() if objective is None else objective
        self.unit, self.violations, self.coverage = unit, violations, coverage
        self._seen: list[Tensor] = []
        self._followed = self._skips = False
        self._status_counts = torch.zeros(len(Status), dtype=torch.int64)
        self._backward_from = 0.0
        self._validated: list[tuple[Decision, Tensor, Tensor, Tensor]] = []

    def on_train_epoch_start(self) -> None:
        """Move along the schedules."""
        self._status_counts = torch.zeros(len(Status), dtype=torch.int64)
        layer = self.pipeline.layer
        if self.temperature is not None:
            layer.temperature = self.temperature(self.current_epoch)
        if self.smoothing is not None:
            layer.gradient = self.smoothing(self.current_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the surrogate of the decision loss, over the items that were solved."""
        z, y, rows, table = batch
        if not len(z):
            self._backward_from = time.perf_counter()
            nothing = self._average(self.pipeline.nothing(), torch.zeros(()))
            self._skip_unless_solved(torch.zeros((), dtype=torch.int64))
            # As often as those who have something: each waits for the others.
            anchored = self.anchor and self.loss is not None
            return nothing + self._average(self.pipeline.nothing(), torch.zeros(())) if anchored else nothing
        raw, _, decision, seconds = timed(self.pipeline.stages(z, rows, table, self._resize(y, rows)))
        start = time.perf_counter()
        weights = self._weights(rows)
        total = _total(self._loss(decision, y, table, weights), weights)
        if not total.requires_grad:
            # No decision depends on its set, or none exists.
            total = total + self.pipeline.nothing()
        seconds["layer"] += time.perf_counter() - start
        mine = _total(decision.ok.double(), weights)
        self._status_counts += torch.bincount(decision.status.cpu(), minlength=len(Status))
        loss = self._average(total / self.unit, mine)
        self._skip_unless_solved(mine)
        if self.pipeline.layer.problem.rules and float(mine):
            loss = loss + self._held(decision, y, table, weights)
        if self.anchor and self.loss is not None:
            held = self.loss.at_outcomes(raw, y, weights) / self.loss.scale.numel()
            mass = _total(torch.ones_like(y[:, 0]), weights)
            loss = loss + self._average(self.anchor * held * mass, mass)
        self._record(decision, total.detach(), float(mine), seconds)
        self._backward_from = time.perf_counter()
        return loss

    def _skip_unless_solved(self, mine: Tensor) -> None:
        """Skip the optimiser's step if no process solved an item of its batch and nothing else is trained.

        A gradient of zero is still a step of Adam, which goes on with the mean of earlier gradients.
        """
        self._skips = not self.anchor and not float(self._gathered(mine.to(self.device)).sum())

    def _resize(self, y: Tensor, rows: Tensor | None = None) -> Callable[[Tensor], Tensor] | None:
        """Sets of the size that covers outcomes, where that is asked for; in training, on their way to it."""
        if self.coverage is None:
            return None
        if rows is None:
            return partial(self.coverage.crossed, self.pipeline, y)
        return partial(self.coverage, self.pipeline, y, rows, self.current_epoch, self.global_step)

    def _loss(self, decision: Decision, y: Tensor, table: Tensor, weights: Tensor | None = None) -> Tensor:
        """The objective, one number an item; zero, with a zero gradient, where an item has no decision."""
        problem = self.pipeline.layer.problem
        # A user's objective need not know of known data, nor of weights, if there are none.
        told = problem.known_data
        known: dict[str, Any] = {"known": told.values(table)} if told.parameters else {}
        if weights is not None and takes_weights(self.objective):
            known["weights"] = weights
        found = self.objective(problem, decision, y, **known)
        if not isinstance(found, Tensor) or found.shape != (len(y),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(f"The objective must return a tensor of shape ({len(y)},), one loss an item, not {shape}.")
        return torch.where(decision.ok, found, torch.zeros_like(found))

    @torch.no_grad()
    def measured(self, data: Examples, chunk: int = 256) -> Tensor:
        """The objective, item by item; NaN where there is no decision."""
        found: list[Decision] = []
        with evaluating(self.pipeline):
            for rows in torch.arange(len(data)).split(chunk):
                z, y, numbers, table = data.batch(rows.tolist())
                found.append(self.pipeline(z, numbers, table, self._resize(y)))
        decision = Decision.cat(found)
        return torch.where(decision.ok, self._loss(decision, data.Y, data.known, data.weights), torch.nan)

    def _held(self, decision: Decision, y: Tensor, table: Tensor, weights: Tensor | None) -> Tensor:
        """What data say of the constraints is noted, and where they are held, charged."""
        told = {f"violations/{k}": v for k, v in enumerate(self._missed(decision, y, table, weights).detach())}
        for name, value in told.items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=int(decision.ok.sum()))
        if self.violations is None:
            return decision.value.new_zeros(())
        missed = self._missed(decision, y, table, weights, self.violations.allowed)
        self._seen.append(missed.detach())
        return self.violations(missed)

    def _missed(
        self, decision: Decision, y: Tensor, table: Tensor, weights: Tensor | None, allowed: float | None = None
    ) -> Tensor:
        """What data say of all constraints with worst cases."""
        problem, ok = self.pipeline.layer.problem, decision.ok
        chosen = {variable: value[ok] for variable, value in decision.candidates.items()}
        known, masses = problem.known_data.values(table[ok]), decision.probabilities[ok]
        masses = masses if weights is None else masses * weights[ok].to(masses)[:, None]
        return torch.stack(list(problem.missed(chosen, y[ok], known, masses, allowed).values()))

    def on_train_epoch_end(self) -> None:
        """Multipliers follow the epoch's own data where there are none for validation.

        Raises:
            SolveError: no item of any batch was solved.
        """
        counts = self._gathered(self._status_counts.to(self.device)).reshape(-1, len(Status)).sum(0).tolist()
        if sum(counts) and not any(count for status, count in zip(Status, counts, strict=True) if status.ok):
            unsolved = {status: count for status, count in zip(Status, counts, strict=True) if count}
            raise SolveError(
                f"None of {sum(counts)} training rows was solved in epoch {self.current_epoch}: "
                f"{', '.join(f'{count} {status}' for status, count in unsolved.items())}. Nothing can be learnt from "
                f"them. {' '.join(status.advice for status in unsolved)}"
            )
        if self.violations is not None and not self._followed:
            total = torch.stack(self._seen).sum(0).double() if self._seen else torch.zeros_like(self.violations.unit)
            # A process may have seen nothing; all of them ask.
            total, count = (
                self._gathered(v).reshape(-1, *v.shape).sum(0)
                for v in (total, torch.tensor(float(len(self._seen))).to(total))
            )
            if float(count):
                self.violations.follow(total / count)
        self._seen, self._followed = [], False

    def on_after_backward(self) -> None:
        """Time of the backward pass; a batch without a solved item changes no weight."""
        if self._skips:
            for weight in self.pipeline.model.parameters():
                weight.grad = None
        self._note(1, seconds__backward=time.perf_counter() - self._backward_from)
        super().on_after_backward()

    def _record(self, decision: Decision, total: Tensor, mass: float, seconds: dict[str, float]) -> None:
        """Losses, effective sample size, masked items, and the time of the paper's stages."""
        if mass:
            size = decision.effective_sample_size[decision.ok]
            self._note(mass, decision_loss=total / mass, effective_sample_size=size.mean())
        self._note(
            len(decision.ok),
            masked_share=1.0 - decision.ok.double().mean(),
            **{f"seconds__{stage}": value for stage, value in seconds.items()},
        )

    def on_validation_epoch_start(self) -> None:
        """Nothing is known yet."""
        self._validated = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The optimal decisions."""
        z, y, rows, table = batch
        self._validated.append((self.pipeline(z, rows, table, self._resize(y)), y, table, rows))

    def on_validation_epoch_end(self) -> None:
        """Log the objective of all decisions that there are, as one batch, and the loss that selects the best epoch.

        The selection charges rows without a decision, so that an epoch gains nothing from failing on hard rows. An
        epoch without any decision is never the best.
        """
        decisions, outcomes, tables, numbers = zip(*self._validated, strict=True)
        decision, y, table = Decision.cat(decisions), torch.cat(outcomes), torch.cat(tables)
        weights, solved = self._weights(torch.cat(numbers)), int(decision.ok.sum())
        mass = float(_total(decision.ok.double(), weights))
        loss = float(_total(self._loss(decision, y, table, weights), weights)) / mass if solved else float("inf")
        if self.pipeline.layer.problem.rules and solved:
            for k, missed in enumerate(self._missed(decision, y, table, weights)):
                self.log(f"val_violations/{k}", missed)
            if self.violations is not None:
                missed, self._followed = self._missed(decision, y, table, weights, self.violations.allowed), True
                self.violations.follow(missed)
                loss += self.unit * self.violations.charge(missed)
        masked = 1.0 - solved / len(y)
        self.log("val_decision_loss", loss, prog_bar=True)
        self.log("val_masked_share", masked)
        self.log("val_selection_loss", loss + UNSOLVED_CHARGE * self.unit * masked)
        self._validated = []


def _total(values: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of one value an item, each times its weight."""
    return values.sum() if weights is None else (values * weights.to(values)).sum()
