"""Learners on disk: tensors and JSON in one safetensors file. Nothing that is read is ever executed."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drolayers.errors import ModelError
from drolayers.nominal import KNN, Forest, Kernel, NominalDistribution

FORMAT = 1
NOMINALS: dict[str, type[NominalDistribution]] = {"KNN": KNN, "Kernel": Kernel, "Forest": Forest}


def write(path: str | Path, header: dict[str, Any], parts: dict[str, nn.Module]) -> None:
    """Write the tensors of some modules under a header; the file appears whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for part, module in parts.items():
        for name, value in module.state_dict().items():
            if not isinstance(value, Tensor):
                raise ModelError(f"The {part} keeps {name!r}, which is not a tensor, in its state: it cannot be saved.")
            # Own memory: safetensors refuses tensors that share it.
            tensors[f"{part}.{name}"] = value.detach().cpu().clone().contiguous()
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        save_file(tensors, str(unfinished), metadata={"drolayers": json.dumps({"format": FORMAT, **header})})
        unfinished.replace(target)
    except (OSError, SafetensorError) as error:
        unfinished.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written: {error}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """What a saved learner says about itself."""
    return read(path, tensors=False)[0]


def read(path: str | Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a saved learner."""
    try:
        with safe_open(str(path), framework="pt") as stored:
            header = json.loads((stored.metadata() or {}).get("drolayers", "{}"))
            found = {name: stored.get_tensor(name) for name in stored.keys()} if tensors else {}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read as a saved learner: {error}") from error
    known = {"format", "inputs", "parameters", "settings", "model", "nominal"}
    if not isinstance(header, dict) or header.get("format") != FORMAT or not known <= set(header):
        raise ModelError(f"{path} is not a saved learner of format {FORMAT}.")
    return header, found


def restore(path: str | Path, module: nn.Module, part: str, tensors: dict[str, Tensor]) -> None:
    """Put the tensors of one part back into a module."""
    state = {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"The {part} in {path} does not fit the one that was given: {error}") from error


def described_nominal(nominal: NominalDistribution) -> dict[str, Any] | None:
    """Kind and settings of one of our own nominal distributions; None for others."""
    kind = type(nominal).__name__
    if NOMINALS.get(kind) is not type(nominal):
        return None
    names = [name for name in inspect.signature(type(nominal).__init__).parameters if name != "self"]
    return {"kind": kind, "settings": {name: getattr(nominal, name) for name in names}}


def made_nominal(path: str | Path, description: dict[str, Any] | None) -> NominalDistribution:
    """The nominal distribution of a description, without its data."""
    if description is None:
        raise ModelError(f"{path} was saved with a nominal distribution of your own: pass it as nominal=.")
    kind = NOMINALS.get(description.get("kind", ""))
    try:
        if kind is not None:
            return kind(**description["settings"])
    except (TypeError, KeyError) as error:
        raise ModelError(f"{path} describes its nominal distribution badly: {error}") from error
    raise ModelError(f"{path} names an unknown nominal distribution: {description.get('kind')!r}.")


def plain(value: Any) -> bool:
    """Whether JSON can hold a setting."""
    if isinstance(value, list | tuple):
        return all(plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
