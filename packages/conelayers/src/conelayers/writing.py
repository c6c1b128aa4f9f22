"""Writing files: whole or not at all, and one sentence where a disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conelayers.errors import ModelError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(where: str | Path) -> Iterator[None]:
    """A disk that is full, or takes nothing, is one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*FULL, errno.EROFS, errno.EIO):
            raise
        advice = "free some space" if error.errno in FULL else "give another place"
        # Of a file that is copied the second is where to.
        said = (
            f"{error.filename2 or error.filename or where} cannot be written: {error.strerror}; {advice} and try again."
        )
        raise ModelError(said) from None


def file(path: str | Path) -> Path:
    """A path that is not that of a folder."""
    found = Path(path)
    if os.path.isdir(found):  # a path that cannot be looked at is no folder either
        raise ModelError(f"{found} is a folder: give the name of a file.")
    return found


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A place to write to beside the file, which takes its place at the end, whenever the process is killed.

    A link stays, and what it leads to is replaced. Devices and pipes are written to as they are: open the place, and
    rename nothing over it.
    """
    target = file(path)
    if target.exists() and not target.is_file():
        with writing(target):
            yield target
        return
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with writing(target):
            yield unfinished
            unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
