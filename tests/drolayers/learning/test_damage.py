"""What can happen to a run between two sittings: other models, damaged files, full disks, Ctrl-C."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import drolayers as dro
from conelayers import files
from drolayers.learning import storage
from drolayers.learning.training import one_voice
from tests.drolayers.learning.small import learner, sales, shop, weights
from tests.helpers import damage

PROBLEM = shop(False).problem


class Twice(nn.Module):
    """A model that looks like another: its factor is not printed."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(2, 3), factor

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner(z)


def run(folder: Path, resume: bool = True, **settings: Any) -> dro.DecisionFocusedLearner:
    return learner(PROBLEM, trainer__directory=folder, trainer__resume=resume, **settings).fit(*sales())


def test_a_model_that_only_looks_the_same_is_refused(tmp_path: Path) -> None:
    first = run(tmp_path, resume=False, model=Twice(1.0), training__epochs=1)
    with pytest.raises(dro.ModelError, match="resume=False"):
        run(tmp_path, model=Twice(2.0), training__epochs=1)
    # Initial weights do not matter: those of the checkpoint are gone on from.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = run(tmp_path, model=Twice(1.0), training__epochs=1)
    np.testing.assert_array_equal(weights(again), weights(first))


def test_checkpoints_without_their_mark_are_refused(tmp_path: Path) -> None:
    run(tmp_path, resume=False)
    for mark in (tmp_path / "run.txt", tmp_path / "decision" / "run.txt"):
        text = mark.read_text()
        mark.unlink()
        with pytest.raises(dro.ModelError, match=r"holds checkpoints but not run\.txt.*resume=False"):
            run(tmp_path)
        mark.write_text(text)
    (tmp_path / "run.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(dro.ModelError, match="other settings"):
        run(tmp_path)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("where", [".", "prediction", "decision"])
@pytest.mark.parametrize("name", ["run.txt", "begun.txt", "done.json", "last.ckpt", "lock"])
def test_folders_in_place_of_files_are_named_before_anything_is_trained(
    name: str, where: str, resume: bool, tmp_path: Path
) -> None:
    (tmp_path / where / name).mkdir(parents=True)
    with pytest.raises(dro.ModelError, match=rf"{name} is a folder, where a training keeps a file"):
        run(tmp_path, resume=resume, pretraining__epochs=1)
    assert not list(tmp_path.rglob("best.ckpt"))


def test_an_objective_without_a_name_resumes_and_another_does_not(tmp_path: Path) -> None:
    class Own:
        def __call__(self, problem: Any, decision: Any, y: Any) -> torch.Tensor:
            return decision.expected(lambda x: problem.loss(x, y))

    class Other(Own): ...

    first = run(tmp_path, resume=False, objective=Own())
    np.testing.assert_array_equal(weights(run(tmp_path, objective=Own())), weights(first))
    with pytest.raises(dro.ModelError, match="other settings"):
        run(tmp_path, objective=Other())


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One byte of the weights of the first layer."""
    data = bytearray(path.read_bytes())
    weight = next(
        value
        for name, value in torch.load(path, weights_only=True)["state_dict"].items()
        if name.endswith("networks.0.layers.0.weight")
    )
    place = data.find(weight.numpy().tobytes())
    assert place > 0
    data[place + 3] = (data[place + 3] + 1) % 256
    path.write_bytes(bytes(data))


def foreign(path: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}}, path)


def executing(path: Path) -> None:
    torch.save({"state_dict": print}, path)


@pytest.mark.parametrize("damage", [truncated, emptied, flipped, foreign, executing])
def test_a_damaged_last_checkpoint_falls_back_to_the_best(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run(tmp_path, resume=False)
    stage = tmp_path / "decision"
    (stage / "done.json").unlink()
    damage(stage / "last.ckpt")
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged, and best\.ckpt is not"):
        again = run(tmp_path)
    assert len(again.history_["decision"]) == 2
    assert np.isfinite(again.loss(*sales()))
    (stage / "done.json").unlink()
    for name in ("last.ckpt", "best.ckpt"):
        damage(stage / name)
    with pytest.raises(dro.ModelError, match="resume=False to begin again") as caught:
        run(tmp_path)
    assert "weights_only" not in str(caught.value)
    # Nor does a chain of causes advise to switch safety off.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_damaged_best_checkpoint_and_a_damaged_end_of_a_finished_run(tmp_path: Path) -> None:
    first = run(tmp_path, resume=False)
    stage = tmp_path / "decision"
    for text in ("", "{}", '{"history": [3]}', "[1]"):
        (stage / "done.json").write_text(text)
        again = run(tmp_path)
        np.testing.assert_array_equal(weights(again), weights(first))
        assert again.history_["decision"] == first.history_["decision"]
    truncated(stage / "best.ckpt")
    with pytest.warns(UserWarning, match=r"best\.ckpt is damaged, and last\.ckpt is not: its weights are taken"):
        run(tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files stands in for a disk of that size.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(dro.ModelError, match=r"cannot be written: .*; free some space and try again"):
            run(tmp_path, resume=False, model=dro.Network(hidden=(256, 256)))
        fitted = learner(PROBLEM, model=dro.Network(hidden=(256, 256)), training=None, pretraining=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fitted.fit(*sales())
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(dro.ModelError, match="cannot be written"):
            fitted.save(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [file for file in tmp_path.iterdir() if file.is_file() and file.name not in ("run.txt",)]


class Disk:
    """The disk of a folder, which may be full: half of a file is written, and then no more.

    Temporary files lie on another disk, so that they are copied here and cannot be renamed.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.full = folder, False
        rename, copy, write = os.rename, shutil.copyfile, Path.write_bytes

        def renamed(source: Any, target: Any) -> None:
            if self.holds(target) and not self.holds(source):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
            rename(source, target)

        def copied(source: Any, target: Any, **settings: Any) -> Any:
            self.fill(target, lambda: write(Path(target), Path(source).read_bytes()[::2]))
            return copy(source, target, **settings)

        def written(path: Path, data: bytes) -> int:
            self.fill(path, lambda: write(path, data[: len(data) // 2]))
            return write(path, data)

        patch.setattr(os, "rename", renamed)
        patch.setattr(shutil, "copyfile", copied)
        patch.setattr(Path, "write_bytes", written)

    def holds(self, path: Any) -> bool:
        return self.folder in Path(path).parents

    def fill(self, path: Any, write_half: Callable[[], Any]) -> None:
        if self.full and self.holds(path):
            write_half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@dataclass(frozen=True)
class Filling:
    """The mean cost; during its first step the disk becomes full."""

    disk: ClassVar[Disk]

    def __call__(self, *args: Any, **settings: Any) -> torch.Tensor:
        self.disk.full = True
        return dro.objectives.CVaR(0.0)(*args, **settings)


def test_a_run_goes_on_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole", resume=False, objective=dro.objectives.CVaR(0.0))
    folder = tmp_path / "small"
    monkeypatch.setattr(Filling, "disk", Disk(folder, monkeypatch), raising=False)
    with pytest.raises(dro.ModelError, match="free some space and try again"):
        run(folder, resume=False, objective=Filling())
    assert (folder / "prediction" / "done.json").exists()
    # Whatever stands under the name of a checkpoint can be read.
    for path in folder.rglob("*.ckpt"):
        torch.load(path, weights_only=True)
    assert not list((folder / "decision").glob("*.ckpt"))
    monkeypatch.setattr(Disk, "fill", lambda *_: None)
    again = run(folder, objective=Filling())
    np.testing.assert_array_equal(weights(again), weights(whole))
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(tmp_path, resume=False)
    stage = tmp_path / "decision"
    for name in ("done.json", "last.ckpt"):
        (stage / name).unlink()
    truncated(stage / "best.ckpt")
    with pytest.raises(dro.ModelError, match=r"decision/best\.ckpt is damaged.*delete it") as caught:
        run(tmp_path)
    assert "last.ckpt" not in str(caught.value)
    # The advice works: the first training is not done again.
    before = (tmp_path / "prediction" / "best.ckpt").stat().st_mtime_ns
    (stage / "best.ckpt").unlink()
    assert len(run(tmp_path).history_["decision"]) == 2
    assert (tmp_path / "prediction" / "best.ckpt").stat().st_mtime_ns == before


def test_a_disk_that_is_full_for_logs_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written by a thread, whose traceback would stand beside the sentence."""
    resource = pytest.importorskip("resource")
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80, hard))
    try:
        with pytest.raises(dro.ModelError, match=r"cannot be written: .*; free some space and try again"):
            run(tmp_path, resume=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.rglob("events*"))
    assert told == []
    # Whatever else happens in threads is heard.
    thread = threading.Thread(target=lambda: 1 / 0)
    with one_voice():
        thread.start()
        thread.join()
    assert [found.exc_type for found in told] == [ZeroDivisionError]


class Interrupted(nn.Module):
    """A model during which Ctrl-C is pressed."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner, self.calls, self.at = nn.Linear(2, 3), 0, at

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.at:
            signal.raise_signal(signal.SIGINT)
        return self.inner(z)


@pytest.fixture
def _audible() -> Iterator[None]:
    """Processes in the background do not hear Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_audible")
def test_ctrl_c_is_a_keyboard_interrupt_now_and_afterwards(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, resume=False, model=Interrupted(6))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=Interrupted(1))  # not in Lightning's hands yet


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    learner(PROBLEM, training=None, pretraining__epochs=1).fit(*sales()).save(path)
    return path


def test_saved_files_have_checksums(saved: Path, tmp_path: Path) -> None:
    data, copy = saved.read_bytes(), tmp_path / "copy"
    for place in range(9, len(data), max(1, len(data) // 60)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        copy.write_bytes(bytes(changed))
        with pytest.raises(dro.ModelError, match="copy") as caught:
            dro.DecisionFocusedLearner.load(copy, PROBLEM)
        assert "\n" not in str(caught.value)
    copy.write_bytes(data[:-7])
    with pytest.raises(dro.ModelError, match="cannot be read"):
        dro.DecisionFocusedLearner.load(copy, PROBLEM)


def test_files_of_another_format_say_so(saved: Path, tmp_path: Path) -> None:
    header, tensors = files.load(saved, "saved learner", storage.FORMAT)
    files.save(tmp_path / "old", {**header, "format": 2}, tensors)
    with pytest.raises(
        dro.ModelError, match=rf"format 2, and this version reads format {storage.FORMAT}: make it anew"
    ):
        dro.DecisionFocusedLearner.load(tmp_path / "old", PROBLEM)


def test_headers_are_checked_before_anything_is_built(saved: Path, tmp_path: Path) -> None:
    """``"degree": 100000`` once hung; whatever a header says, a learner comes of it or one sentence."""
    header, tensors = files.load(saved, "saved learner", storage.FORMAT)
    places = [path for path in damage.places(header) if path[0] not in ("format", "note")]
    assert ("model", "degree") in places
    assert ("nominal", "settings", "k") in places
    refused = 0
    for path in places:
        for junk in damage.JUNK:
            files.save(tmp_path / "junk", damage.put(header, path, junk), tensors)
            refused += damage.refused(tmp_path / "junk", lambda file: dro.DecisionFocusedLearner.load(file, PROBLEM))
    assert refused > 200
    for path in (("model", "degree"), ("model", "hidden"), ("inputs",)):
        files.save(
            tmp_path / "junk",
            damage.put(header, path, [10**6, 10**6] if path[-1] == "hidden" else 100000),
            tensors,
        )
        with pytest.raises(dro.ModelError, match="not a saved learner that can be used"):
            dro.DecisionFocusedLearner.load(tmp_path / "junk", PROBLEM)


@pytest.mark.parametrize("nominal", [dro.nominal.KNN(5), dro.nominal.Kernel(), dro.nominal.Forest(trees=3)])
def test_tensors_are_checked_before_they_are_used(nominal: dro.nominal.KNN, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    fitted = learner(PROBLEM, training=None, pretraining=None, nominal=nominal)
    fitted.fit(*sales(30), calibration_share=0.3).calibrate(coverage=0.5)
    fitted.save(file)
    Z = sales()[0][:3]

    def load(file: Path) -> dro.DecisionFocusedLearner:
        return dro.DecisionFocusedLearner.load(file, PROBLEM)

    def use(loaded: dro.DecisionFocusedLearner) -> None:
        loaded.predict(Z)
        loaded.calibrate(*sales(9, seed=1), coverage=0.5)
        loaded.predict(Z)

    header, tensors = files.load(file, "saved learner", storage.FORMAT)
    assert not damage.refused(file, load, use)
    refused = {}
    for told, changed in damage.tensors(tensors):
        files.save(file, header, changed)
        refused[told] = damage.refused(file, load, use)
    assert refused["nominal.outcomes: one column less"]
    assert refused["nominal.covariates: one row less"]


@pytest.mark.parametrize("network", [dro.Network(degree=100000), dro.Network(hidden=(10**6, 10**6))])
def test_a_model_that_no_machine_holds_is_one_sentence(network: dro.Network) -> None:
    with pytest.raises(dro.ModelError, match="smaller"):
        learner(PROBLEM, model=network).fit(*sales())
