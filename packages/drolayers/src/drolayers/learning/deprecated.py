"""The learner's arguments of version 0.1, for one version more."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from drolayers.errors import ModelError
from drolayers.layer import DROLayer
from drolayers.learning.settings import MARGIN, Network, Settings
from drolayers.problem import DecisionProblem
from drolayers.projection import Projection

MOVED: dict[str, tuple[tuple[str, str], ...]] = {
    "hidden": (("model", "hidden"),),
    "degree": (("model", "degree"),),
    "pretrain_epochs": (("pretraining", "epochs"),),
    "pretrain_lr": (("pretraining", "rate"),),
    "locations": (("pretraining", "locations"),),
    "epochs": (("training", "epochs"),),
    "lr": (("training", "rate"),),
    "anchor": (("training", "anchor"),),
    "patience": (("training", "patience"),),
    "temperature": (("training", "temperature"),),
    "gradient": (("training", "gradient"),),
    "smoothing": (("training", "smoothing"),),
    "batch_size": (("pretraining", "batch_size"), ("training", "batch_size")),
    "gradient_clip": (("pretraining", "clip"), ("training", "clip")),
    "lr_divisor": (("pretraining", "decay"), ("training", "decay")),
    "directory": (("trainer", "directory"),),
    "resume": (("trainer", "resume"),),
    "progress": (("trainer", "progress"),),
    "devices": (("trainer", "devices"),),
    "validation_share": (("trainer", "validation_share"),),
    "leave_one_out": (("trainer", "leave_one_out"),),
}
"""Where each of them is now."""

OF_LAYER = ("candidates", "samples", "proposal", "enumerate_up_to", "oracle", "engine")
STRATEGIES = ("decision", "prediction")
OLD = {*MOVED, *OF_LAYER, "strategy", "margin"}


def upgraded(problem: DecisionProblem, settings: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with old ones put where they belong now, and a warning that says where."""
    found, told = dict(settings), []
    parts: dict[str, dict[str, Any]] = {}
    if old.get("strategy", "decision") not in STRATEGIES:
        raise ModelError(f"strategy must be 'decision' or 'prediction', not {old['strategy']!r}.")
    if old.get("strategy") == "prediction":
        told.append("training=None")
        found["training"] = None
    for name, value in old.items():
        if name in MOVED:
            for owner, key in MOVED[name]:
                parts.setdefault(owner, {})[key] = value
        elif name not in OLD:
            raise ModelError(f"DecisionFocusedLearner has no argument {name!r}: choose from {sorted(settings)}.")
    for owner, changes in parts.items():
        # Folder and resume make sense together only, so all changes are made at once.
        part = found[owner] if found[owner] is not None or owner != "model" else Network()
        if isinstance(part, Settings):
            part = found[owner] = part.but(**changes)
            # All that is not as in a bare one, so that what is advised is what was asked for.
            plain = type(part)().get_params()
            given = [f"{key}={value!r}" for key, value in part.get_params().items() if value != plain[key]]
            told.append(f"{owner}=dro.{type(part).__name__}({', '.join(given)})")
    if layer := {name: old[name] for name in OF_LAYER if name in old}:
        found["layer"] = DROLayer(problem, seed=settings["seed"], **layer)
        told.append(f"layer=dro.DROLayer(problem, {', '.join(f'{k}={v!r}' for k, v in layer.items())})")
    if old.get("margin", MARGIN) != MARGIN and isinstance(found["projection"], str):
        name = "ambiguity" if len(problem.sets.members) == 1 else "sets"
        method: Any = "direct" if found["projection"] == "auto" else found["projection"]
        found["projection"] = Projection(getattr(problem, name), margin=old["margin"], method=method)
        told.append(f"projection=dro.Projection(problem.{name}, margin={old['margin']!r}, method={method!r})")
    warnings.warn(
        f"{', '.join(sorted(old))} moved: write {'; '.join(told) or 'nothing instead'}.", FutureWarning, stacklevel=3
    )
    return found
