"""One stage of training with Lightning: progress, logs, checkpoints, and going on after an interruption."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from conelayers.internals import FULL, directory, misfits, replacing
from drolayers.errors import ModelError
from drolayers.extras import needs
from drolayers.learning.data import ExampleData, Examples
from drolayers.learning.loop import Best, Loop
from drolayers.learning.settings import Stage, Trainer

DONE = "done.json"
BEGUN = "begun.txt"
CHECKPOINTS = ("last.ckpt", "best.ckpt")
RUN = "run.txt"
LOCK = "lock"
TRAININGS = ("prediction", "decision")
PARTS = {"state_dict", "epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"}
"""What Lightning needs of a checkpoint to go on from it."""
HELD: set[Path] = set()
"""The locks of this process."""


class _History(Callback):
    """What was logged, epoch by epoch; kept in checkpoints."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """One row an epoch."""
        self.rows.append(
            {k: float(v) for k, v in trainer.callback_metrics.items()} | {"epoch": float(trainer.current_epoch)}
        )

    def state_dict(self) -> dict[str, Any]:
        """The rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rows."""
        self.rows = list(state_dict["rows"])


class _Best(Checkpoint):
    """The weights of the best epoch of several processes that have no folder."""

    def __init__(self, monitor: str | None) -> None:
        self.monitor, self.best = monitor, Best()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at what is monitored."""
        if self.monitor is not None:
            self.best.see(pl_module, float(trainer.callback_metrics[self.monitor]))


class _CheckpointFiles(TorchCheckpointIO):
    """Write every checkpoint beside its final place and rename it there.

    Lightning writes to the folder of temporary files and moves the file. A move between disks is a copy, which leaves
    a truncated checkpoint on a disk that is full.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint as a whole, or raise and leave the file at ``path`` as it was."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_bytes(content.getvalue())


def claim(folder: Path, resume: bool, settings: dict[str, Any], *data: Examples | None) -> None:
    """Mark a folder with what is trained in it; refuse to continue the training of something else."""
    digest = sha256(json.dumps(settings, sort_keys=True).encode())
    for part in data:
        if part is not None:
            for table in (part.Z, part.Y, part.known, *([] if part.weights is None else [part.weights])):
                digest.update(str(tuple(table.shape)).encode() + table.contiguous().numpy().tobytes())
    for place in (folder, *(folder / name for name in TRAININGS)):
        _only_files(place)
    directory(folder)
    mark = folder / RUN
    kept = [folder / stage / name for stage in ("", *TRAININGS) for name in (DONE, *CHECKPOINTS)]
    if resume and not mark.exists() and any(file.exists() for file in kept):
        raise ModelError(
            f"{folder} holds checkpoints but not run.txt, which says what they are of: give another directory, or "
            "resume=False to begin again."
        )
    if resume and mark.exists() and mark.read_bytes() != digest.hexdigest().encode():
        raise ModelError(
            f"{folder} holds a run on other data or with other settings: give those, or another directory, or "
            "resume=False to begin again."
        )
    if not resume:
        for stage in [*(folder / name for name in TRAININGS), *folder.glob("*/trial-*")]:
            _forget(stage, RUN, BEGUN)
    _write_whole(mark, digest.hexdigest())


def _forget(folder: Path, *marks: str) -> bool:
    """Remove what is kept of a training, and whether there was any of it."""
    _only_files(folder)
    kept = any((folder / name).exists() for name in (DONE, *CHECKPOINTS))
    for name in (DONE, *CHECKPOINTS, *marks):
        (folder / name).unlink(missing_ok=True)
    return kept


def _only_files(folder: Path) -> None:
    """Refuse folders that have the names of a training's files."""
    for path in (folder / name for name in (RUN, BEGUN, DONE, *CHECKPOINTS, LOCK)):
        if path.is_dir():
            raise ModelError(f"{path} is a folder, where a training keeps a file: move it, or give another directory.")


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep others from training in a folder meanwhile; processes of one training share it."""
    if folder is None or "LOCAL_RANK" in os.environ:
        yield
        return
    _only_files(folder)
    lock = directory(folder) / LOCK
    place, mine = lock.resolve(), os.getpid()
    holder = mine if place in HELD else _holder(lock)
    if holder is not None:
        raise ModelError(
            f"Another training runs in {folder} (process {holder}): give each a directory of its own, or delete {lock} "
            "where that process is something else."
        )
    _write_whole(lock, f"{mine} {_began(mine)}")
    HELD.add(place)
    try:
        yield
    finally:
        HELD.discard(place)
        lock.unlink(missing_ok=True)


def _holder(lock: Path) -> int | None:
    """The process that a lock tells of, where it still runs: what was killed leaves its lock, and its number to others.

    In a container that is started anew, every process has the number of one before.
    """
    try:
        told, began = (*lock.read_text().split(maxsplit=1), "")[:2]
        process = int(told)
    except (OSError, ValueError):
        return None
    if process < 1 or process == os.getpid() or not _lives(process):
        return None
    return process if began in ("", _began(process)) else None


def _began(process: int) -> str:
    """When a process began, in ticks since the machine did; empty where that is not told."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _lives(process: int) -> bool:
    """Whether a process of this machine is still there."""
    if sys.platform == "win32":
        # There, signal 0 is Ctrl-C.
        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, process)
        ctypes.windll.kernel32.CloseHandle(handle)
        return bool(handle)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _write_whole(path: Path, text: str) -> None:
    """A file appears whole or not at all, whenever the process is killed."""
    with replacing(path) as unfinished:
        unfinished.write_text(text)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt, now and afterwards: Lightning exits, and then hears no further one."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def one_voice() -> Iterator[None]:
    """A full disk is told once: threads that write logs raise it too, to whoever waits for them."""
    before, there = threading.excepthook, {*threading.enumerate()}

    def told(found: threading.ExceptHookArgs) -> None:
        if not isinstance(found.exc_value, OSError) or found.exc_value.errno not in FULL:
            before(found)

    threading.excepthook = told
    try:
        yield
    except (OSError, ModelError):
        for thread in {*threading.enumerate()} - there:
            thread.join(1.0)
        raise
    finally:
        threading.excepthook = before


def train(
    name: str, module: pl.LightningModule, data: ExampleData, stage: Stage, where: Trainer, begun: Any = None
) -> list[dict[str, float]]:
    """Run a stage, leave the module at its best epoch by what it monitors, and return what was logged.

    Args:
        name: of the stage, and of its folder.
        module: what is trained.
        data: training and validation batches.
        stage: how long, and with which gradients.
        where: folder, progress and processes.
        begun: what it begins with, as JSON can hold it: one that began with something else is not gone on with.
    """
    if where.directory is None and where.devices == 1:
        return Loop(stage, where.progress).run(module, data)
    monitor, history = None if data.validation is None else str(module.monitor), _History()
    if where.directory is None:
        kept = _Best(monitor)
        _run(_trainer(stage, where, None, [history, kept, *_patience(stage, monitor)]), module, data)
        kept.best.restore(module)
        return history.rows
    folder = directory(Path(where.directory) / name)
    _begin(folder, sha256(json.dumps(begun, sort_keys=True).encode()).hexdigest())
    done, last, best = folder / DONE, folder / "last.ckpt", folder / "best.ckpt"
    if where.resume and (rows := _history(done)) is not None:
        _restore(module, best, last)
        return rows
    files = [_file(folder, "best", monitor)] if monitor is not None else []
    # The last one after the others, whose state it holds.
    callbacks = [history, *files, *_patience(stage, monitor), _file(folder, "last", None)]
    trainer = _trainer(stage, where, folder, callbacks)
    _run(trainer, module, data, _resume_from(module, last, best) if where.resume else None)
    # The checkpoints are the first process's.
    found = Path(trainer.strategy.broadcast(str(best if best.exists() else last)))
    _restore(module, found, found.with_name(last.name))
    trainer.strategy.barrier()
    if trainer.is_global_zero:
        _write_whole(done, json.dumps({"history": history.rows}))
    return history.rows


def _begin(folder: Path, mark: str) -> None:
    """Forget what is in a folder unless it began like this, and say so."""
    _only_files(folder)
    begun = folder / BEGUN
    if begun.exists() and begun.read_bytes() == mark.encode():
        return
    if _forget(folder):
        warnings.warn(
            f"{folder} holds a training that began with something else, of another version or after other comparisons: "
            "it is trained anew.",
            stacklevel=4,
        )
    _write_whole(begun, mark)


def _run(trainer: pl.Trainer, module: pl.LightningModule, data: ExampleData, resume_from: str | None = None) -> None:
    """Train; Ctrl-C is a KeyboardInterrupt."""
    with warnings.catch_warnings(), interruptible(), one_voice():
        # Lightning's advice on workers and intervals does not apply to data that lie in memory.
        warnings.filterwarnings("ignore", module="lightning")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        except SIGTERMException:
            # Lightning's has no exit code, so that what was told to end would seem to have ended well.
            raise SystemExit(128 + signal.SIGTERM) from None
        except SystemExit:
            # Lightning ends the process at Ctrl-C; whoever called may want to say something first.
            if not trainer.interrupted:
                raise
    if trainer.interrupted:
        raise KeyboardInterrupt


def _patience(stage: Stage, monitor: str | None) -> list[Callback]:
    """What ends a training early."""
    if monitor is None or stage.patience is None:
        return []
    return [EarlyStopping(monitor, patience=stage.patience, check_finite=False)]


def _file(folder: Path, name: str, monitor: str | None) -> Callback:
    """The best epoch by what is monitored, or the last, as a file.

    Not save_last=True for the last: with save_top_k=0 that writes nothing before the end.
    """
    return ModelCheckpoint(
        folder,
        filename=name,
        monitor=monitor,
        enable_version_counter=False,
        save_on_train_epoch_end=True if monitor is None else None,
    )


def _trainer(stage: Stage, where: Trainer, folder: Path | None, callbacks: list[Callback]) -> pl.Trainer:
    """Lightning's trainer with what people expect of long work."""
    if folder is not None:
        needs("learning", "tensorboard")
    logger = TensorBoardLogger(folder, name="logs", version="") if folder is not None else False
    quiet = logging.getLogger("lightning.pytorch")
    quiet.setLevel(logging.WARNING)
    return pl.Trainer(
        max_epochs=stage.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=where.devices,
        strategy="ddp" if where.devices > 1 else "auto",
        callbacks=callbacks,
        plugins=[_CheckpointFiles()],
        logger=logger,
        enable_progress_bar=where.progress,
        enable_model_summary=False,
        gradient_clip_val=stage.clip,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
    )


def _history(done: Path) -> list[dict[str, float]] | None:
    """What a finished stage logged; None where it is not finished or that cannot be read: checkpoints tell then."""
    try:
        rows = json.loads(done.read_bytes())["history"]
        return [{str(k): float(v) for k, v in row.items()} for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _checkpoint(module: pl.LightningModule, path: Path) -> dict[str, Any] | None:
    """A checkpoint of a module, read without executing anything; None where it is damaged or of another."""
    try:
        with ZipFile(path) as archive:
            # Torch does not look at the checksums that it writes.
            if archive.testzip() is not None:
                return None
        found = torch.load(path, weights_only=True, map_location="cpu")
    except Exception:
        # Torch raises nearly anything on a damaged file, and advises to switch its safety off.
        return None
    fits = isinstance(found, dict) and set(found) >= PARTS and isinstance(found["state_dict"], dict)
    return found if fits and misfits(found["state_dict"], module.state_dict()) is None else None


def _resume_from(module: pl.LightningModule, last: Path, best: Path) -> str | None:
    """The checkpoint to go on from: the last one or, where it is damaged, the best; None where there is none."""
    if not last.exists() and not best.exists():
        return None
    return str(_sound(module, (last, best), "training goes on from there")[0])


def _restore(module: pl.LightningModule, *paths: Path) -> None:
    """Put the weights of the first checkpoint that can be read into a module."""
    module.load_state_dict(_sound(module, paths, "its weights are taken")[1]["state_dict"])


def _sound(module: pl.LightningModule, paths: Sequence[Path], then: str) -> tuple[Path, dict[str, Any]]:
    """The first checkpoint that can be read; where it is not the first of all, a warning says so."""
    there = [path for path in paths if path.exists()]
    for path in there:
        if (found := _checkpoint(module, path)) is not None:
            if path != there[0]:
                warnings.warn(f"{there[0]} is damaged, and {path.name} is not: {then}.", stacklevel=4)
            return path, found
    damaged = " and ".join(str(path) for path in there) or str(paths[0])
    them = "them" if len(there) > 1 else "it"
    raise ModelError(
        f"The checkpoint {damaged} is damaged or of another learner, and there is no other: delete {them} to repeat "
        "this training alone, or use resume=False to begin again."
    )
