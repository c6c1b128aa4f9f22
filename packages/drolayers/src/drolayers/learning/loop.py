"""A training in one process that nobody goes on from: no folder, no logs, no checkpoints.

Lightning does for these what it does for all. On steps of a millisecond, as those that fit sets to data, that was half
of the time. The loop below makes the same calls in the same order, so that it leaves the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import isnan
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from drolayers.learning.data import Batch, ExampleData, SeededBatches
from drolayers.learning.pipeline import evaluating
from drolayers.learning.settings import Stage


class Best:
    """The weights of the best epoch, in memory.

    Attributes:
        waited: epochs since then.
    """

    def __init__(self) -> None:
        self.waited, self._loss = 0, float("inf")
        self._weights: dict[str, Any] | None = None

    def see(self, module: nn.Module, loss: float) -> None:
        """Keep them where they are the first or better."""
        better = loss < self._loss
        self.waited = 0 if better else self.waited + 1
        if better or self._weights is None:
            self._weights, self._loss = deepcopy(module.state_dict()), float("inf") if isnan(loss) else loss

    def restore(self, module: nn.Module) -> None:
        """Put them back; without validation data the last are the best."""
        if self._weights is not None:
            module.load_state_dict(self._weights)


class Loop:
    """What modules ask of Lightning's trainer, and the loop itself.

    Args:
        stage: how long, and with which gradients.
        progress: whether to show a bar.

    Attributes:
        current_epoch: counted from zero.
        global_step: steps so far.
        is_last_batch: whether the epoch ends with this one.
        world_size: processes.
    """

    world_size = 1

    def __init__(self, stage: Stage, progress: bool) -> None:
        self.stage, self.progress = stage, progress
        self.current_epoch, self.global_step, self.is_last_batch = 0, 0, False
        self._logged: dict[str, list[tuple[Tensor, int]]] = {}

    def log(self, name: str, value: Tensor, weight: int = 1) -> None:
        """Note a figure, to be averaged over the epoch."""
        self._logged.setdefault(name, []).append((value.detach(), weight))

    def run(self, module: Any, data: ExampleData) -> list[dict[str, float]]:
        """Train, leave the module at its best epoch by what it monitors, and return what was logged."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        rows: list[dict[str, float]] = []
        best = Best()
        with self._attached(module, device), torch.enable_grad():
            configured = module.configure_optimizers()
            optimiser, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
            module.on_train_start()
            epochs = tqdm(range(self.stage.epochs), desc="Epochs", disable=not self.progress)
            for self.current_epoch in epochs:
                self._epoch(module, optimiser, data, device)
                if data.validation is not None:
                    self._validate(module, data, device)
                module.on_train_epoch_end()
                schedule.step()
                rows.append(self._means() | {"epoch": float(self.current_epoch)})
                epochs.set_postfix({k: f"{v:.4g}" for k, v in rows[-1].items() if k.endswith("_loss")})
                if data.validation is not None:
                    best.see(module, rows[-1][module.monitor])
                    if best.waited == self.stage.patience:
                        break
        best.restore(module)
        return rows

    def _epoch(self, module: Any, optimiser: torch.optim.Optimizer, data: ExampleData, device: torch.device) -> None:
        """One step a batch."""
        module.on_train_epoch_start()
        order = SeededBatches(len(data.training), data.batch_size, data.seed)
        order.set_epoch(self.current_epoch)
        for number, rows in enumerate(order):
            self.is_last_batch = number == len(order) - 1
            loss = module.training_step(_moved(data.training.batch(rows), device), number)
            optimiser.zero_grad()
            loss.backward()
            module.on_after_backward()
            if self.stage.clip is not None:
                torch.nn.utils.clip_grad_norm_(module.pipeline.model.parameters(), self.stage.clip)
            optimiser.step()
            self.global_step += 1

    @torch.no_grad()
    def _validate(self, module: Any, data: ExampleData, device: torch.device) -> None:
        """All validation data."""
        assert data.validation is not None
        with evaluating(module):
            module.on_validation_epoch_start()
            for number, rows in enumerate(torch.arange(len(data.validation)).split(data.evaluation_size)):
                module.validation_step(_moved(data.validation.batch(rows.tolist()), device), number)
            module.on_validation_epoch_end()

    def _means(self) -> dict[str, float]:
        """Of what was noted in this epoch."""
        logged, self._logged = self._logged, {}
        return {name: float(weighted_mean(pairs)) for name, pairs in logged.items()}

    @contextmanager
    def _attached(self, module: pl.LightningModule, device: torch.device) -> Iterator[None]:
        """A module on its device, which knows of this loop."""
        module.trainer = self  # type: ignore[assignment]
        module.to(device)
        try:
            yield
        finally:
            module.trainer = None
            module.cpu()


def weighted_mean(pairs: Sequence[tuple[Any, float]]) -> Any:
    """The mean of values with their weights."""
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


def _moved(batch: Batch, device: torch.device) -> Batch:
    """A batch on a device."""
    z, y, rows, known = batch
    return z.to(device), y.to(device), rows.to(device), known.to(device)
