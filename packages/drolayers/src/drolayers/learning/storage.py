"""Learners on disk: tensors and JSON in one safetensors file. Nothing that is read is ever executed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conelayers import RelativeTemperature
from conelayers.internals import files, must
from drolayers.errors import ModelError
from drolayers.layer import DROLayer
from drolayers.learning.calibration import Calibration, checked_scales
from drolayers.learning.headers import check_header
from drolayers.learning.settings import Annealed, Network, Settings, Stage
from drolayers.nominal import KNN, Forest, Kernel, NominalDistribution
from drolayers.projection import Projection

FORMAT = 5
KINDS: tuple[Any, ...] = (Annealed, RelativeTemperature)
SCHEDULES = ("rate", "temperature")
NOMINALS: dict[str, type[NominalDistribution]] = {"KNN": KNN, "Kernel": Kernel, "Forest": Forest}


def write(
    path: str | Path, header: dict[str, Any], parts: dict[str, nn.Module], more: Mapping[str, Tensor] | None = None
) -> None:
    """Write the tensors of some modules, and more, under a header; the file appears whole or not at all."""
    tensors: dict[str, Tensor] = dict(more or {})
    for part, module in parts.items():
        for name, value in module.state_dict().items():
            if not isinstance(value, Tensor):
                raise ModelError(f"The {part} keeps {name!r}, which is not a tensor, in its state: it cannot be saved.")
            tensors[f"{part}.{name}"] = value
    files.save(path, {"format": FORMAT, **header}, tensors)


def read_header(path: str | Path) -> dict[str, Any]:
    """What a saved learner says about itself."""
    return read(path)[0]


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a saved learner, both checked before anything is made of them."""

    def check(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        check_header(header, {name: tuple(value.shape) for name, value in tensors.items()})
        must("seen", tensors.get("seen", torch.zeros(0, dtype=torch.int64)).dtype == torch.int64, "whole numbers")

    return files.load(path, "saved learner", FORMAT, check)


def restore(path: str | Path, module: nn.Module, part: str, tensors: dict[str, Tensor]) -> None:
    """Put the tensors of one part back into a module."""
    state = {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        why = files.misfits(state, module.state_dict()) or " ".join(str(error).split())
        raise ModelError(f"The {part} in {path} does not fit the one that was given: {why}.") from None
    # Infinities may be meant, as in a mask of one's own.
    if bad := next((name for name, value in state.items() if bool(value.isnan().any())), None):
        raise ModelError(f"The {part} in {path} cannot be used: {bad} holds NaN; copy the file anew, or train again.")


def described_nominal(nominal: NominalDistribution | None) -> dict[str, Any] | None:
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
    except (TypeError, KeyError, ValueError) as error:
        raise ModelError(f"{path} describes its nominal distribution badly: {error}") from None
    raise ModelError(f"{path} names an unknown nominal distribution: {description.get('kind')!r}.")


def described(settings: Settings | None) -> dict[str, Any] | None:
    """Settings that JSON can hold; a schedule of the user's own is named only."""
    if settings is None:
        return None
    return {name: value if plain(value) else named(value) for name, value in settings.get_params().items()}


def named(value: Any) -> Any:
    """A schedule or a temperature of ours as data; anything else by its name, the same in every process."""
    for kind in KINDS:
        if type(value) is kind:
            return {kind.__name__: asdict(value)}
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def check_same(path: str | Path, part: str, found: dict[str, Any] | None, saved: dict[str, Any] | None) -> None:
    """Refuse a part that differs from the one that a learner was saved with; one that cannot be told is believed."""
    if found is not None and saved is not None and found != saved:
        raise ModelError(f"{path} was saved with another {part}: {saved}, not {found}.")


def described_projection(given: Projection | str | None, made: Projection | None) -> dict[str, Any] | None:
    """The method and weights of a default projection; those of one's own are to be given again."""
    if made is None:
        return None
    weights = np.concatenate([weight.reshape(-1) for weight in made.weights.values()]).tolist()
    own = None if isinstance(given, str) else {"margin": made.margin, "absolute": made.absolute, "by": made.method}
    return {"method": given if isinstance(given, str) else None, "weights": weights, "own": own}


def described_layer(layer: DROLayer | None) -> dict[str, Any] | None:
    """The plain settings of a layer that was handed in; None for the default one."""
    if layer is None:
        return None
    plainly = {name: getattr(layer, name) for name in ("candidates", "samples", "enumerate_up_to")}
    oracle = None if layer.oracle is None else layer.oracle.name
    return {**plainly, "proposal": shown(layer.proposal), "oracle": oracle, "gradient": repr(layer.gradient)}


def shown(part: Any) -> str | None:
    """A part of the user's own as text that is the same in every process: without its place in memory."""
    return None if part is None else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part))


def answers(model: nn.Module, Z: Tensor) -> list[str]:
    """What a model of the user's own says to some contexts with weights that are made up.

    Models that differ in their initial weights alone answer alike; others, whatever they are called, do not.
    """
    copy = deepcopy(model).eval()
    with torch.no_grad():
        for weight in copy.parameters():
            made_up = torch.sin(torch.arange(1.0, weight.numel() + 1.0, dtype=torch.float64)).reshape(weight.shape)
            weight.copy_(made_up)
        return [f"{value:.5e}" for value in copy(Z[:3]).reshape(-1).tolist()]


def restored(path: str | Path, header: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a saved learner; parts of the user's own making must be given."""
    found: dict[str, Any] = {}
    own = {"model": header["model"] is None, "projection": "method" in (header["projection"] or {})}
    own["projection"] = own["projection"] and header["projection"]["method"] is None
    for name, made in own.items():
        if made and given.get(name) is None:
            raise ModelError(f"{path} was saved with a {name} of your own: pass one as {name}=.")
    if given.get("model") is None:
        found["model"] = _made(path, "model", Network, header["model"])
    found["projection"] = None if header["projection"] is None else header["projection"]["method"]
    # Decisions need the optimum alone, which all layers of a problem share: the default one does.
    for name in ("pretraining", "training"):
        found[name] = None if header[name] is None else _made(path, name, Stage, header[name])
    found["seed"] = header["seed"]
    return {name: value for name, value in found.items() if given.get(name) is None}


def restored_calibration(path: str | Path, header: dict[str, Any]) -> Calibration | None:
    """The scale of the sets, and what it promises."""
    found = header.get("calibration")
    if found is None:
        return None
    try:
        return Calibration(**{**found, "scale": checked_scales([found["scale"]])[0]})
    except (TypeError, KeyError, ModelError) as error:
        raise ModelError(f"{path} describes its calibration badly: {error}") from error


def _made(path: str | Path, name: str, kind: Any, values: dict[str, Any]) -> Any:
    """An object of settings; a schedule that was only named is left at its default."""
    known = {field.name: field for field in fields(kind)}
    try:
        plainly = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return kind(**{k: _read(v) for k, v in plainly.items() if not (isinstance(v, str) and k in SCHEDULES)})
    except (TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{path} describes its {name} badly: {error}") from None


def _read(value: Any) -> Any:
    """A schedule or a temperature of ours from its data."""
    for kind in KINDS:
        if isinstance(value, dict) and set(value) == {kind.__name__}:
            return kind(**value[kind.__name__])
    return value


def plain(value: Any) -> bool:
    """Whether JSON can hold a setting."""
    if isinstance(value, list | tuple):
        return all(plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
