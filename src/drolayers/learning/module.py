"""The two kinds of training as Lightning modules that can also be used by themselves."""

from __future__ import annotations

import time
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from drolayers.ambiguity.base import Nominal
from drolayers.layer import Decision, DROLayer
from drolayers.learning.pretraining import PredictionLoss
from drolayers.learning.schedule import SmoothingSchedule, TemperatureSchedule
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


class _Training(pl.LightningModule):
    """What both trainings share: the optimiser, and decisions on validation data."""

    def __init__(self, pipeline: Pipeline, lr: float, lr_divisor: float, lr_every: int) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.lr, self.lr_divisor, self.lr_every = lr, lr_divisor, lr_every

    def configure_optimizers(self) -> Any:
        """Adam, its rate divided every so many epochs."""
        optimiser = torch.optim.Adam(self.pipeline.model.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, self.lr_every, 1.0 / self.lr_divisor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


class PredictionModule(_Training):
    """Prediction-focused training of the model: location parameters first, then bounds."""

    def __init__(
        self,
        pipeline: Pipeline,
        loss: PredictionLoss,
        lr: float,
        lr_divisor: float,
        lr_every: int,
        location_epochs: int,
    ) -> None:
        super().__init__(pipeline, lr, lr_divisor, lr_every)
        self.loss, self.location_epochs = loss, location_epochs

    def _loss(self, batch: Batch, phase: Literal["location", "bound"]) -> Tensor:
        """The two-term loss."""
        z, _, rows = batch
        nominal = self.pipeline.around(z, rows if bool((rows >= 0).all()) else None)
        assert nominal is not None
        return self.loss(self.pipeline.model(z), nominal, phase)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the term of the day."""
        phase: Literal["location", "bound"] = "location" if self.current_epoch < self.location_epochs else "bound"
        loss = self._loss(batch, phase)
        self.log("prediction_loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Both terms."""
        self.log("val_prediction_loss", self._loss(batch, "bound"), batch_size=len(batch[0]))


class DecisionModule(_Training):
    """Decision-focused training of the model through projection, layer and surrogate.

    Args:
        pipeline: the parts.
        temperature: λ by epoch.
        smoothing: level of smoothing by epoch; None for exact gradients.
        lr: learning rate.
        lr_divisor: what it is divided by every ``lr_every`` epochs.
        lr_every: epochs between.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        temperature: TemperatureSchedule,
        smoothing: SmoothingSchedule | None,
        lr: float,
        lr_divisor: float,
        lr_every: int,
    ) -> None:
        super().__init__(pipeline, lr, lr_divisor, lr_every)
        self.temperature, self.smoothing = temperature, smoothing
        self._backward_from = 0.0

    def on_train_epoch_start(self) -> None:
        """Move along the schedules."""
        layer = self.pipeline.layer
        layer.temperature = self.temperature(self.current_epoch)
        if self.smoothing is not None:
            layer.gradient = self.smoothing(self.current_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step on the surrogate of the decision loss, over the items that were solved."""
        z, y, rows = batch
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
        # Every process divides by the mean number of solved items, so that their average is that of one process.
        mine = decision.ok.sum().to(total)
        solved = torch.as_tensor(self.all_gather(mine)).double().mean().to(total)
        loss = total / solved.clamp(min=1.0)
        self._record(decision, loss, mine, len(z), clock)
        self._backward_from = time.perf_counter()
        return loss

    def on_after_backward(self) -> None:
        """Time of the backward pass."""
        seconds = time.perf_counter() - self._backward_from
        self.log("seconds/backward", seconds, on_step=False, on_epoch=True, batch_size=1)

    def _record(self, decision: Decision, loss: Tensor, solved: Tensor, items: int, clock: list[float]) -> None:
        """Losses, effective sample size, masked items, and the time of the paper's stages."""
        integer = decision.oracle.time if decision.oracle is not None else 0.0
        size = decision.effective_sample_size[decision.ok]
        self.log("decision_loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=max(int(solved), 1))
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

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The decision loss itself, at the optimal decisions."""
        z, y, _ = batch
        decision = self.pipeline(z)
        problem = self.pipeline.layer.problem
        count = int(decision.ok.sum())
        loss = decision.expected(lambda x: problem.loss(x, y)).sum() / max(count, 1)
        value = loss if count else torch.full_like(loss, torch.inf)
        self.log("val_decision_loss", value, prog_bar=True, batch_size=max(count, 1))
