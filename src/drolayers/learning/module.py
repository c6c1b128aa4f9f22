"""The two kinds of training as Lightning modules that can also be used by themselves."""

from __future__ import annotations

import time
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from drolayers.errors import ShapeError
from drolayers.layer import Decision
from drolayers.learning.data import Batch, Examples
from drolayers.learning.objectives import Mean, Objective
from drolayers.learning.pipeline import Pipeline, evaluating, timed
from drolayers.learning.pretraining import GaussianLoss, PredictionLoss
from drolayers.learning.settings import RateSchedule, SmoothingSchedule, TemperatureSchedule


class _Training(pl.LightningModule):
    """What both trainings share: the optimiser, and decisions on validation data."""

    monitor: str
    """By which loss on validation data the best epoch is told."""

    def __init__(self, pipeline: Pipeline, rate: RateSchedule) -> None:
        super().__init__()
        self.pipeline, self.rate = pipeline, rate

    def on_train_start(self) -> None:
        """Lightning trains in whatever mode it finds: in evaluation no integer points would be drawn."""
        self.train()

    def configure_optimizers(self) -> Any:
        """Adam, with its rate by epoch."""
        optimiser = torch.optim.Adam(self.pipeline.model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, self.rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}

    def _average(self, total: Tensor, count: Tensor) -> Tensor:
        """A total over the items of one process as a mean over those of all.

        Gradients are averaged over processes, so each divides by the mean number of items a process.
        """
        mean = torch.as_tensor(self.all_gather(count.to(total))).mean().to(total)
        return total / torch.where(mean > 0, mean, torch.ones_like(mean))


class PredictionModule(_Training):
    """Prediction-focused training of the model: location parameters first, then bounds.

    Args:
        pipeline: the parts.
        loss: the two-term loss.
        rate: learning rate by epoch.
        location_epochs: epochs on the first term alone.
        outcomes: whether locations are fitted to the outcomes themselves rather than to their neighbours.
    """

    monitor = "val_prediction_loss"

    def __init__(
        self,
        pipeline: Pipeline,
        loss: PredictionLoss | GaussianLoss,
        rate: RateSchedule,
        location_epochs: int,
        outcomes: bool = False,
    ) -> None:
        super().__init__(pipeline, rate)
        self.loss, self.location_epochs, self.outcomes = loss, location_epochs, outcomes

    def _loss(self, batch: Batch, phase: Literal["location", "bound"]) -> Tensor:
        """The mean two-term loss of a batch."""
        z, y, rows, _ = batch
        if not len(z):
            return self.pipeline.nothing()
        nominal = self.pipeline.around(z, rows)
        assert nominal is not None
        return self.loss(self.pipeline.model(z), nominal, phase, y if self.outcomes else None)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the term of the day."""
        early = self.loss.locates and self.current_epoch < self.location_epochs
        phase: Literal["location", "bound"] = "location" if early else "bound"
        items = len(batch[0])
        loss = self._loss(batch, phase)
        self.log(
            "prediction_loss", loss.detach(), prog_bar=True, on_step=False, on_epoch=True, batch_size=max(items, 1)
        )
        return self._average(loss * items, torch.tensor(float(items)))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Both terms."""
        self.log("val_prediction_loss", self._loss(batch, "bound"), batch_size=len(batch[0]))


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
    """

    monitor = "val_decision_loss"

    def __init__(
        self,
        pipeline: Pipeline,
        temperature: TemperatureSchedule | None,
        smoothing: SmoothingSchedule | None,
        rate: RateSchedule,
        anchor: float = 0.0,
        loss: PredictionLoss | GaussianLoss | None = None,
        unit: float = 1.0,
        objective: Objective | None = None,
    ) -> None:
        super().__init__(pipeline, rate)
        self.temperature, self.smoothing, self.anchor, self.loss = temperature, smoothing, anchor, loss
        self.objective = Mean() if objective is None else objective
        self.unit = unit
        self._backward_from = 0.0
        self._validated = [0.0, 0, 0]

    def on_train_epoch_start(self) -> None:
        """Move along the schedules."""
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
            return self._average(self.pipeline.nothing(), torch.zeros(()))
        raw, _, decision, seconds = timed(self.pipeline.stages(z, rows, table))
        start = time.perf_counter()
        total = self._loss(decision, y, table).sum()
        seconds["layer"] += time.perf_counter() - start
        mine = decision.ok.sum()
        loss = self._average(total / self.unit, mine)
        if self.anchor and self.loss is not None:
            held = self.loss.at_outcomes(raw, y) / self.loss.scale.numel()
            loss = loss + self._average(self.anchor * held * len(z), torch.tensor(float(len(z))))
        self._record(decision, total.detach() / mine.clamp(min=1), int(mine), len(z), seconds)
        self._backward_from = time.perf_counter()
        return loss

    def _loss(self, decision: Decision, y: Tensor, table: Tensor) -> Tensor:
        """The objective, one number an item."""
        problem = self.pipeline.layer.problem
        # An objective of one's own need not know of known data where there is none.
        known = {"known": problem.known_data.values(table)} if problem.known else {}
        found = self.objective(problem, decision, y, **known)
        if not isinstance(found, Tensor) or found.shape != (len(y),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(f"The objective must return a tensor of shape ({len(y)},), one loss an item, not {shape}.")
        return found

    @torch.no_grad()
    def measured(self, data: Examples, chunk: int = 256) -> tuple[float, float]:
        """The mean objective over the items of some data that have a decision, and the share of these."""
        total, solved = 0.0, 0
        with evaluating(self.pipeline):
            for rows in torch.arange(len(data)).split(chunk):
                z, y, numbers, table = data.batch(rows.tolist())
                decision = self.pipeline(z, numbers, table)
                total += float(self._loss(decision, y, table).sum())
                solved += int(decision.ok.sum())
        return total / solved if solved else float("inf"), solved / max(len(data), 1)

    def on_after_backward(self) -> None:
        """Time of the backward pass."""
        seconds = time.perf_counter() - self._backward_from
        self.log("seconds/backward", seconds, on_step=False, on_epoch=True, batch_size=1)

    def _record(self, decision: Decision, loss: Tensor, solved: int, items: int, seconds: dict[str, float]) -> None:
        """Losses, effective sample size, masked items, and the time of the paper's stages."""
        size = decision.effective_sample_size[decision.ok]
        self.log("decision_loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=max(solved, 1))
        self.log_dict(
            {
                "effective_sample_size": size.mean() if size.numel() else torch.zeros(()),
                "masked_share": 1.0 - solved / items,
                **{f"seconds/{stage}": value for stage, value in seconds.items()},
            },
            on_step=False,
            on_epoch=True,
            batch_size=items,
        )

    def on_validation_epoch_start(self) -> None:
        """Nothing is known yet."""
        self._validated = [0.0, 0, 0]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The decision loss itself, at the optimal decisions."""
        z, y, rows, table = batch
        decision = self.pipeline(z, rows, table)
        total = float(self._loss(decision, y, table).sum())
        solved = int(decision.ok.sum())
        self._validated = [a + b for a, b in zip(self._validated, (total, solved, len(z)), strict=True)]

    def on_validation_epoch_end(self) -> None:
        """The mean over the items that were solved; an epoch that solves none is never the best."""
        total, solved, items = self._validated
        self.log("val_decision_loss", total / solved if solved else float("inf"), prog_bar=True)
        self.log("val_masked_share", 1.0 - solved / max(items, 1))
