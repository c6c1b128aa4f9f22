"""The two kinds of training as Lightning modules that can also be used by themselves."""

from __future__ import annotations

import time
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from drolayers.ambiguity.nominal import Nominal
from drolayers.layer import Decision, DROLayer
from drolayers.learning.pretraining import PredictionLoss
from drolayers.learning.schedule import RateSchedule, SmoothingSchedule, TemperatureSchedule
from drolayers.nominal import NominalDistribution
from drolayers.projection import Projection

Batch = tuple[Tensor, Tensor, Tensor]


class Pipeline(nn.Module):
    """Context → θ → projection → decision: the parts of the paper's figure 1, in one module.

    Args:
        model: from ``z`` to a flat θ.
        nominal: Q_z; None where neither the projection nor the set needs it.
        projection: onto sets that contain Q_z; None leaves θ as the model gives it.
        layer: from θ to the decision.
    """

    def __init__(
        self, model: nn.Module, nominal: NominalDistribution | None, projection: Projection | None, layer: DROLayer
    ) -> None:
        super().__init__()
        self.model, self.nominal, self.projection, self.layer = model, nominal, projection, layer

    def around(self, z: Tensor, rows: Tensor | None = None) -> Nominal | None:
        """Q_z, without the training points themselves where their rows are given."""
        return None if self.nominal is None else self.nominal(z, exclude=rows)

    def theta(self, z: Tensor, nominal: Nominal | None) -> Tensor:
        """θ, projected."""
        theta: Tensor = self.model(z)
        return theta if self.projection is None or nominal is None else self.projection(theta, nominal)

    def forward(self, z: Tensor, rows: Tensor | None = None) -> Decision:
        """The decision for a batch of contexts."""
        nominal = self.around(z, rows)
        return self.layer(self.theta(z, nominal), nominal)

    @torch.no_grad()
    def decide(self, z: Tensor, chunk: int = 512) -> Decision:
        """The decisions for any number of contexts, without gradients."""
        return Decision.cat([self(part) for part in z.split(chunk)])

    def cost_unit(self, z: Tensor, y: Tensor) -> float:
        """By how much the costs of the decisions for some contexts differ at their outcomes, on average.

        Where they do not, their size; one where that vanishes too.
        """
        self.eval()
        decision = self.decide(z)
        ok = decision.ok.nonzero()[:, 0]
        if not ok.numel():
            return 1.0
        cost = self.layer.problem.loss({v: x[ok] for v, x in decision.best.items()}, y[ok]).double()
        size, spread = cost.abs().mean(), (cost - cost.mean()).abs().mean()
        found = float(spread if spread > 1e-9 * size else size)
        return found if 0.0 < found < float("inf") else 1.0

    def nothing(self) -> Tensor:
        """Zero, as a function of all weights: the loss of a process whose share of a batch is empty."""
        return torch.stack([weight.sum() for weight in self.model.parameters()]).sum() * 0.0


class _Training(pl.LightningModule):
    """What both trainings share: the optimiser, and decisions on validation data."""

    def __init__(self, pipeline: Pipeline, rate: RateSchedule) -> None:
        super().__init__()
        self.pipeline, self.rate = pipeline, rate

    def configure_optimizers(self) -> Any:
        """Adam, with its rate by epoch."""
        first = self.rate(0)
        optimiser = torch.optim.Adam(self.pipeline.model.parameters(), lr=first)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: self.rate(epoch) / first)
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

    def __init__(
        self,
        pipeline: Pipeline,
        loss: PredictionLoss,
        rate: RateSchedule,
        location_epochs: int,
        outcomes: bool = False,
    ) -> None:
        super().__init__(pipeline, rate)
        self.loss, self.location_epochs, self.outcomes = loss, location_epochs, outcomes

    def _loss(self, batch: Batch, phase: Literal["location", "bound"]) -> Tensor:
        """The mean two-term loss of a batch."""
        z, y, rows = batch
        if not len(z):
            return self.pipeline.nothing()
        nominal = self.pipeline.around(z, rows if bool((rows >= 0).all()) else None)
        assert nominal is not None
        return self.loss(self.pipeline.model(z), nominal, phase, y if self.outcomes else None)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the term of the day."""
        phase: Literal["location", "bound"] = "location" if self.current_epoch < self.location_epochs else "bound"
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
        temperature: λ by epoch.
        smoothing: level of smoothing by epoch; None for exact gradients.
        rate: learning rate by epoch.
        anchor: weight of the first term of the prediction-focused loss, taken at the outcomes, beside the decision
            loss; it keeps locations where the data are while decisions shape the rest.
        loss: that loss; needed where the weight is not zero.
        unit: of the decision loss, so that gradients are clipped, and locations held, alike in whatever unit the cost
            is counted (:meth:`Pipeline.cost_unit`).
    """

    def __init__(
        self,
        pipeline: Pipeline,
        temperature: TemperatureSchedule,
        smoothing: SmoothingSchedule | None,
        rate: RateSchedule,
        anchor: float = 0.0,
        loss: PredictionLoss | None = None,
        unit: float = 1.0,
    ) -> None:
        super().__init__(pipeline, rate)
        self.temperature, self.smoothing, self.anchor, self.loss = temperature, smoothing, anchor, loss
        self.unit = unit
        self._backward_from = 0.0
        self._validated = [0.0, 0, 0]

    def on_train_epoch_start(self) -> None:
        """Move along the schedules."""
        layer = self.pipeline.layer
        layer.temperature = self.temperature(self.current_epoch)
        if self.smoothing is not None:
            layer.gradient = self.smoothing(self.current_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the surrogate of the decision loss, over the items that were solved."""
        z, y, rows = batch
        if not len(z):
            self._backward_from = time.perf_counter()
            return self._average(self.pipeline.nothing(), torch.zeros(()))
        clock = [time.perf_counter()]
        raw = self.pipeline.model(z)
        clock.append(time.perf_counter())
        nominal = self.pipeline.around(z, rows)
        theta = raw if self.pipeline.projection is None or nominal is None else self.pipeline.projection(raw, nominal)
        clock.append(time.perf_counter())
        decision = self.pipeline.layer(theta, nominal)
        problem = self.pipeline.layer.problem
        total = decision.expected(lambda x: problem.loss(x, y)).sum()
        clock.append(time.perf_counter())
        mine = decision.ok.sum()
        loss = self._average(total / self.unit, mine)
        if self.anchor and self.loss is not None and nominal is not None:
            held = self.loss(raw, nominal, "location", y) / self.loss.scale.numel()
            loss = loss + self._average(self.anchor * held * len(z), torch.tensor(float(len(z))))
        self._record(decision, total.detach() / mine.clamp(min=1), int(mine), len(z), clock)
        self._backward_from = time.perf_counter()
        return loss

    def on_after_backward(self) -> None:
        """Time of the backward pass."""
        seconds = time.perf_counter() - self._backward_from
        self.log("seconds/backward", seconds, on_step=False, on_epoch=True, batch_size=1)

    def _record(self, decision: Decision, loss: Tensor, solved: int, items: int, clock: list[float]) -> None:
        """Losses, effective sample size, masked items, and the time of the paper's stages."""
        integer = decision.oracle.time if decision.oracle is not None else 0.0
        size = decision.effective_sample_size[decision.ok]
        self.log("decision_loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=max(solved, 1))
        self.log_dict(
            {
                "effective_sample_size": size.mean() if size.numel() else torch.zeros(()),
                "masked_share": 1.0 - solved / items,
                "seconds/learning": clock[1] - clock[0],
                "seconds/projection": clock[2] - clock[1],
                "seconds/integer": integer,
                "seconds/layer": clock[3] - clock[2] - integer,
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
        z, y, _ = batch
        decision = self.pipeline(z)
        problem = self.pipeline.layer.problem
        total = float(decision.expected(lambda x: problem.loss(x, y)).sum())
        solved = int(decision.ok.sum())
        self._validated = [a + b for a, b in zip(self._validated, (total, solved, len(z)), strict=True)]

    def on_validation_epoch_end(self) -> None:
        """The mean over the items that were solved; an epoch that solves none is never the best."""
        total, solved, items = self._validated
        self.log("val_decision_loss", total / solved if solved else float("inf"), prog_bar=True)
        self.log("val_masked_share", 1.0 - solved / max(items, 1))
