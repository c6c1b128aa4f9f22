"""What a saved learner says about itself, checked before anything is built from it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from drolayers.checks import whole
from drolayers.errors import ModelError
from drolayers.learning.model import monomials

MOST = 1e300
"""Numbers are smaller."""

KNOWN = ("inputs", "parameters", "model", "nominal", "projection", "pretraining", "training", "seed")


def check_header(header: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise one sentence unless every part of a header is what it should be, and fits the tensors beside it.

    Args:
        header: of a saved learner.
        shapes: of the tensors in the file, by name.
    """
    if missing := [name for name in KNOWN if name not in header]:
        raise ModelError(f"its header lacks {missing}.")
    whole("inputs", header["inputs"])
    whole("seed", header["seed"], 0)
    _must("columns", _names(header.get("columns"), header["inputs"]), f"None or {header['inputs']} names")
    _must("outcomes", _names(header.get("outcomes")), "None or names")
    for name in ("parameters", "known"):
        found = header.get(name, {})
        right = isinstance(found, dict) and all(isinstance(v, list) and all(map(_count, v)) for v in found.values())
        _must(name, right, "shapes by name")
    for name in ("model", "nominal", "projection", "pretraining", "training", "layer"):
        _must(name, header.get(name) is None or isinstance(header[name], dict), "None or settings by name")
    share = header.get("share", 0.0)
    _must("share", _number(share) and 0 <= share <= 1, "a number from 0 to 1")
    nominal, projection = header["nominal"], header["projection"]
    if nominal is not None:
        right = isinstance(nominal.get("kind"), str) and isinstance(nominal.get("settings"), dict)
        _must("nominal", right, "a kind and its settings")
    if projection is not None:
        method, weights = projection.get("method"), projection.get("weights")
        _must("projection", method is None or isinstance(method, str), "a method by name, or None")
        size = sum(_size(shape) for shape in header["parameters"].values())
        right = isinstance(weights, list) and len(weights) == size and all(map(_positive, weights))
        _must("projection", right, f"{size} positive weights")
    if header["model"] is not None:
        _check_network(header, shapes)


def _check_network(header: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """The tensors of the default model have the shapes that its settings make: none larger is ever built."""
    hidden, degree = header["model"].get("hidden"), header["model"].get("degree")
    _must("model", isinstance(hidden, list) and all(_count(width) and width for width in hidden), "a list of widths")
    seen = shapes.get("model.input_shift", (0,))[0]
    wanted: dict[str, tuple[int, ...]] = {
        "model.input_shift": (monomials(header["inputs"], whole("degree", degree), seen),)
    }
    for k, shape in enumerate(header["parameters"].values()):
        widths = [seen, *hidden, _size(shape)]
        wanted |= {f"model.networks.{k}.layers.{2 * d}.weight": (b, a) for d, (a, b) in enumerate(pairwise(widths))}
        wanted |= {f"model.networks.{k}.beside.weight": (widths[-1], seen)} if hidden else {}
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            raise ModelError(f"its model should have {name} of shape {shape}, not {shapes.get(name)}.")


def _must(name: str, right: bool, what: str) -> None:
    if not right:
        raise ModelError(f"its {name} must be {what}.")


def _names(value: Any, count: int | None = None) -> bool:
    if value is None:
        return True
    right = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return right and count in (None, len(value))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    # Whole numbers of JSON may be too large for anything to be computed with them.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _size(shape: list[int]) -> int:
    size = 1
    for entry in shape:
        size *= entry
    return size
