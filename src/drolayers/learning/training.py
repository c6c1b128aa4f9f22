"""One stage of training with Lightning: progress, logs, checkpoints, and going on after an interruption."""

from __future__ import annotations

import json
import logging
import os
import warnings
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from drolayers.checks import directory
from drolayers.errors import ModelError
from drolayers.learning.data import OutcomeData, Outcomes

DONE = "done.json"


@dataclass(frozen=True)
class Stage:
    """What one stage of training is given.

    Args:
        name: of the stage.
        epochs: at most so many.
        monitor: the logged figure whose smallest value marks the epoch to keep; None keeps the last.
        patience: epochs without improvement before it stops; None never stops early.
        gradient_clip: largest norm of a gradient.
        directory: for checkpoints and logs; None keeps neither.
        resume: continue where the last checkpoint in the directory stands.
        progress: whether to show a bar.
        devices: number of processes.
    """

    name: str
    epochs: int
    monitor: str | None
    patience: int | None
    gradient_clip: float | None
    directory: Path | None
    resume: bool
    progress: bool
    devices: int


class _History(Callback):
    """What was logged, epoch by epoch; kept in checkpoints."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """One row an epoch."""
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()} | {"epoch": trainer.current_epoch})

    def state_dict(self) -> dict[str, Any]:
        """The rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rows."""
        self.rows = list(state_dict["rows"])


def claim(folder: Path, resume: bool, training: Outcomes, held_out: Outcomes | None, settings: dict[str, Any]) -> None:
    """Mark a folder with what is trained in it; refuse to continue the training of something else."""
    digest = sha256(json.dumps(settings, sort_keys=True).encode())
    for data in (training, held_out):
        if data is not None:
            digest.update(data.Z.contiguous().numpy().tobytes() + data.Y.contiguous().numpy().tobytes())
    directory(folder)
    mark = folder / "run.txt"
    if resume and mark.exists() and mark.read_text() != digest.hexdigest():
        raise ModelError(
            f"{folder} holds a run on other data or with other settings: give those, or another directory, or "
            "resume=False to begin again."
        )
    if not resume:
        for old in (DONE, "last.ckpt", "best.ckpt"):
            for stage in folder.glob(f"*/{old}"):
                stage.unlink(missing_ok=True)
    _write_whole(mark, digest.hexdigest())


def _write_whole(path: Path, text: str) -> None:
    """A file appears whole or not at all, whenever the process is killed."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def train(stage: Stage, module: pl.LightningModule, data: OutcomeData) -> list[dict[str, float]]:
    """Run a stage, leave the module at its best epoch, and return what was logged."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) if stage.directory is None else stage.directory
        directory(folder)
        done, last, best = folder / DONE, folder / "last.ckpt", folder / "best.ckpt"
        if stage.resume and done.exists():
            _restore(module, best if best.exists() else last)
            return list(json.loads(done.read_text())["history"])
        history = _History()
        trainer = _trainer(stage, folder, history)
        with warnings.catch_warnings():
            # Lightning's advice on workers and intervals does not apply to data that lie in memory.
            warnings.filterwarnings("ignore", module="lightning")
            resume_from = str(last) if stage.resume and last.exists() else None
            trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        if trainer.interrupted:
            raise KeyboardInterrupt
        # The checkpoints are the first process's, which must not take its scratch folder away before all have read.
        kept = Path(trainer.strategy.broadcast(str(best if best.exists() else last)))
        _restore(module, kept)
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            _write_whole(done, json.dumps({"history": history.rows}))
        return history.rows


def _trainer(stage: Stage, folder: Path, history: _History) -> pl.Trainer:
    """Lightning's trainer with what people expect of long work."""
    callbacks: list[Callback] = [history]
    if stage.monitor is not None:
        callbacks.append(
            ModelCheckpoint(folder, filename="best", monitor=stage.monitor, save_top_k=1, enable_version_counter=False)
        )
        if stage.patience is not None:
            callbacks.append(EarlyStopping(stage.monitor, patience=stage.patience, check_finite=False))
    # After the others, whose state it holds. Not save_last=True: with save_top_k=0 that writes nothing before the end.
    callbacks.append(
        ModelCheckpoint(folder, filename="last", enable_version_counter=False, save_on_train_epoch_end=True)
    )
    logger = TensorBoardLogger(folder, name="logs", version="") if stage.directory is not None else False
    quiet = logging.getLogger("lightning.pytorch")
    quiet.setLevel(logging.WARNING)
    return pl.Trainer(
        max_epochs=stage.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=stage.devices,
        strategy="ddp" if stage.devices > 1 else "auto",
        callbacks=callbacks,
        logger=logger,
        enable_progress_bar=stage.progress,
        enable_model_summary=False,
        gradient_clip_val=stage.gradient_clip,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
    )


def _restore(module: pl.LightningModule, path: Path) -> None:
    """Put the weights of a checkpoint into a module."""
    module.load_state_dict(torch.load(path, weights_only=True, map_location="cpu")["state_dict"])
