"""Tensors with a header and a checksum: where they can be written to, and what is no file of ours."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
import torch

import drolayers as dro
from conelayers import files
from conelayers.writing import writing

TENSORS = {"a": torch.arange(6.0).reshape(2, 3)}


def save(path: str | Path) -> None:
    files.save(path, {"format": 1}, TENSORS)


def test_a_full_disk_is_where_something_is_copied_to_not_from() -> None:
    with pytest.raises(dro.ModelError, match=r"^there/last\.ckpt cannot be written: No space left"), writing("folder"):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/scratch", None, "there/last.ckpt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_are_written_to_not_replaced(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    save(pipe)
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]
    (tmp_path / "heard").write_bytes(heard[0])
    header, found = files.load(tmp_path / "heard", "saved thing", 1)
    assert header == {"format": 1}
    torch.testing.assert_close(found, TENSORS)


@pytest.mark.parametrize("where", ["", ".", "folder"])
def test_folders_are_told(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for use in (save, lambda path: files.load(path, "saved thing", 1)):
        with pytest.raises(dro.ModelError, match="is a folder: give the name of a file") as caught:
            use(where)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]
