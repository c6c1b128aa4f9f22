"""What a saved learner says about itself, checked before anything is built from it."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

from conelayers.internals import is_count, is_number, must, whole
from drolayers.errors import ModelError
from drolayers.learning.model import monomials

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
    must("columns", _names(header.get("columns"), header["inputs"]), f"None or {header['inputs']} names")
    must("outcomes", _names(header.get("outcomes")), "None or names")
    for name in ("parameters", "known"):
        found = header.get(name, {})
        right = isinstance(found, dict) and all(isinstance(v, list) and all(map(is_count, v)) for v in found.values())
        must(name, right, "shapes by name")
    for name in ("model", "nominal", "projection", "pretraining", "training", "layer"):
        must(name, header.get(name) is None or isinstance(header[name], dict), "None or settings by name")
    share = header.get("share", 0.0)
    must("share", is_number(share) and 0 <= share <= 1, "a number from 0 to 1")
    nominal, projection = header["nominal"], header["projection"]
    if nominal is not None:
        right = isinstance(nominal.get("kind"), str) and isinstance(nominal.get("settings"), dict)
        must("nominal", right, "a kind and its settings")
        width = shapes.get("nominal.covariates", ())[1:]
        must("nominal.covariates", width == (header["inputs"],), f"rows of {header['inputs']} numbers")
    if projection is not None:
        method, weights = projection.get("method"), projection.get("weights")
        must("projection", method is None or isinstance(method, str), "a method by name, or None")
        size = sum(prod(shape) for shape in header["parameters"].values())
        right = isinstance(weights, list) and len(weights) == size and all(map(_positive, weights))
        must("projection", right, f"{size} positive weights")
    for name in ("seen", "scores"):
        must(name, len(shapes.get(name, (0,))) == 1, "a list of numbers")
    if header["model"] is not None:
        _check_network(header, shapes)


def _check_network(header: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """The tensors of the default model have the shapes that its settings make: none larger is ever built."""
    hidden, degree = header["model"].get("hidden"), header["model"].get("degree")
    must("model", isinstance(hidden, list) and all(is_count(width) and width for width in hidden), "a list of widths")
    must("model", isinstance(header["model"].get("extrapolate"), bool), "extrapolate as true or false")
    seen = next(iter(shapes.get("model.input_shift", ())), 0)
    wanted: dict[str, tuple[int, ...]] = {
        "model.input_shift": (monomials(header["inputs"], whole("degree", degree), seen),)
    }
    wanted |= {f"model.{end}": (header["inputs"],) for end in ("lowest", "highest")}
    for k, shape in enumerate(header["parameters"].values()):
        widths = [seen, *hidden, prod(shape)]
        wanted |= {f"model.networks.{k}.layers.{2 * d}.weight": (b, a) for d, (a, b) in enumerate(pairwise(widths))}
        wanted |= {f"model.networks.{k}.beside.weight": (widths[-1], seen)} if hidden else {}
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            raise ModelError(f"its model should have {name} of shape {shape}, not {shapes.get(name)}.")


def _names(value: Any, count: int | None = None) -> bool:
    if value is None:
        return True
    right = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return right and count in (None, len(value))


def _positive(value: Any) -> bool:
    return is_number(value) and value > 0
