"""Files of ours: tensors and JSON with a checksum, of which nothing is ever executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conelayers.checks import LARGEST
from conelayers.errors import ModelError
from conelayers.extras import require
from conelayers.writing import file, replacing

MOST = 1e300
"""Numbers are smaller."""


def save(path: str | Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors under a header, with a checksum of both."""
    safetensors = require("safetensors.torch", "save")
    told = json.dumps(header)
    # Own memory: safetensors refuses tensors that share it.
    own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    metadata = {"header": told, "checksum": checksum(told, own)}
    try:
        with replacing(path) as unfinished:
            # Its own writing of files renames one over what is there, be that a pipe.
            unfinished.write_bytes(safetensors.save(own, metadata=metadata))
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {_line(error)}.") from None


def load(
    path: str | Path,
    what: str,
    form: int,
    check: Callable[[dict[str, Any], dict[str, Tensor]], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file, or one sentence.

    Args:
        path: the file.
        what: it should be, for messages: "saved learner".
        form: its format, a number that the header tells.
        check: raises a ``ModelError`` unless header and tensors are what they should be, in words that go on from a
            colon.
    """
    safetensors = require("safetensors", "save")
    source = str(file(path))
    try:
        with safetensors.safe_open(source, framework="pt") as stored:
            metadata = stored.metadata() or {}
            found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
        header = json.loads(metadata.get("header", "{}"))
    except (OSError, safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as a {what}: {_line(error)}; copy it anew or save it again.") from None
    if not isinstance(header, dict) or not isinstance(header.get("format"), int):
        raise ModelError(f"{path} is not a {what}.")
    if header["format"] != form:
        raise ModelError(
            f"{path} is a {what} of format {header['format']}, and this version reads format {form}: make it anew with "
            "this version, or use the one that wrote it."
        )
    if metadata.get("checksum") != checksum(metadata["header"], found):
        raise ModelError(f"{path} is damaged: its checksum does not fit its contents; copy it anew, or save it again.")
    if check is not None:
        try:
            check(header, found)
        except ModelError as error:
            raise ModelError(f"{path} is not a {what} that can be used: {error}") from None
    return header, found


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest of a header and of tensors by name, type and shape."""
    digest = sha256(header.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        # As bytes, since NumPy does not know all of torch's types.
        plain = torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1))
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def misfits(state: Mapping[str, Tensor], wanted: Mapping[str, Any]) -> str | None:
    """How the tensors of a state differ from those of a module in name or shape, in a few words; None if they fit."""
    for name in wanted:
        if name not in state:
            return f"{name} is missing"
        shapes = [tuple(getattr(values[name], "shape", ())) for values in (state, wanted)]
        if shapes[0] != shapes[1]:
            return f"{name} has shape {shapes[0]}, not {shapes[1]}"
    unknown = [name for name in state if name not in wanted]
    return f"{unknown[0]} is unknown" if unknown else None


def must(name: str, right: bool, what: str) -> None:
    """Refuse a part of a file that is not what it should be."""
    if not right:
        raise ModelError(f"its {name} must be {what}.")


def is_count(value: Any) -> bool:
    """Whether an entry of a header is a whole number that may be a size."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def is_number(value: Any) -> bool:
    """Whether an entry of a header is a number with which something can be computed."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST


def _line(error: BaseException) -> str:
    """What an exception says, in one line and without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
