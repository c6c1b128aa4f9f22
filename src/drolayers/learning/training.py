"""One stage of training with Lightning: progress, logs, checkpoints, and going on after an interruption."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from drolayers.checks import directory
from drolayers.errors import ModelError
from drolayers.extras import needs
from drolayers.learning.data import ExampleData, Examples
from drolayers.learning.settings import Stage, Trainer

DONE = "done.json"
STAGES = ("prediction", "decision")


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


def claim(folder: Path, resume: bool, settings: dict[str, Any], *data: Examples | None) -> None:
    """Mark a folder with what is trained in it; refuse to continue the training of something else."""
    digest = sha256(json.dumps(settings, sort_keys=True).encode())
    for part in data:
        if part is not None:
            for table in (part.Z, part.Y, part.known):
                digest.update(table.contiguous().numpy().tobytes())
    directory(folder)
    mark = folder / "run.txt"
    if resume and mark.exists() and mark.read_text() != digest.hexdigest():
        raise ModelError(
            f"{folder} holds a run on other data or with other settings: give those, or another directory, or "
            "resume=False to begin again."
        )
    if not resume:
        for stage in [*(folder / name for name in STAGES), *folder.glob("*/trial-*")]:
            for old in (DONE, "run.txt", "last.ckpt", "best.ckpt"):
                (stage / old).unlink(missing_ok=True)
    _write_whole(mark, digest.hexdigest())


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep others from training in a folder meanwhile; processes of one training share it."""
    if folder is None or "LOCAL_RANK" in os.environ:
        yield
        return
    lock = directory(folder) / "lock"
    try:
        holder = int(lock.read_text())
    except (OSError, ValueError):
        holder = None
    if holder is not None and (holder == os.getpid() or _lives(holder)):
        raise ModelError(f"Another training runs in {folder} (process {holder}): give each a directory of its own.")
    _write_whole(lock, str(os.getpid()))
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Whether a process of this machine is still there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _write_whole(path: Path, text: str) -> None:
    """A file appears whole or not at all, whenever the process is killed."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def train(
    name: str, module: pl.LightningModule, data: ExampleData, stage: Stage, where: Trainer
) -> list[dict[str, float]]:
    """Run a stage, leave the module at its best epoch by what it monitors, and return what was logged.

    Args:
        name: of the stage, and of its folder.
        module: what is trained.
        data: training and validation batches.
        stage: how long, and with which gradients.
        where: folder, progress and processes.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) if where.directory is None else Path(where.directory) / name
        directory(folder)
        done, last, best = folder / DONE, folder / "last.ckpt", folder / "best.ckpt"
        if where.resume and done.exists():
            _restore(module, best if best.exists() else last)
            return list(json.loads(done.read_text())["history"])
        history = _History()
        monitor = None if data.validation is None else str(module.monitor)
        trainer = _trainer(stage, where, folder, monitor, history)
        with warnings.catch_warnings():
            # Lightning's advice on workers and intervals does not apply to data that lie in memory.
            warnings.filterwarnings("ignore", module="lightning")
            resume_from = str(last) if where.resume and last.exists() else None
            try:
                trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
            except SystemExit:
                # Lightning ends the process at Ctrl-C; whoever called may want to say something first.
                if not trainer.interrupted:
                    raise
        if trainer.interrupted:
            raise KeyboardInterrupt
        # The checkpoints are the first process's, which must not take its scratch folder away before all have read.
        kept = Path(trainer.strategy.broadcast(str(best if best.exists() else last)))
        _restore(module, kept)
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            _write_whole(done, json.dumps({"history": history.rows}))
        return history.rows


def _trainer(stage: Stage, where: Trainer, folder: Path, monitor: str | None, history: _History) -> pl.Trainer:
    """Lightning's trainer with what people expect of long work."""
    callbacks: list[Callback] = [history]
    if monitor is not None:
        callbacks.append(
            ModelCheckpoint(folder, filename="best", monitor=monitor, save_top_k=1, enable_version_counter=False)
        )
        if stage.patience is not None:
            callbacks.append(EarlyStopping(monitor, patience=stage.patience, check_finite=False))
    # After the others, whose state it holds. Not save_last=True: with save_top_k=0 that writes nothing before the end.
    callbacks.append(
        ModelCheckpoint(folder, filename="last", enable_version_counter=False, save_on_train_epoch_end=True)
    )
    if where.directory is not None:
        needs("learning", "tensorboard")
    logger = TensorBoardLogger(folder, name="logs", version="") if where.directory is not None else False
    quiet = logging.getLogger("lightning.pytorch")
    quiet.setLevel(logging.WARNING)
    return pl.Trainer(
        max_epochs=stage.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=where.devices,
        strategy="ddp" if where.devices > 1 else "auto",
        callbacks=callbacks,
        logger=logger,
        enable_progress_bar=where.progress,
        enable_model_summary=False,
        gradient_clip_val=stage.clip,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
    )


def _restore(module: pl.LightningModule, path: Path) -> None:
    """Put the weights of a checkpoint into a module."""
    try:
        module.load_state_dict(torch.load(path, weights_only=True, map_location="cpu")["state_dict"])
    except (RuntimeError, OSError, EOFError, KeyError, UnpicklingError) as error:
        raise ModelError(
            f"The checkpoint {path} does not fit this learner or is damaged: use resume=False to begin again."
        ) from error
