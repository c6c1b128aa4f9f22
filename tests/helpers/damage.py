"""What can be wrong with a file whose checksum is right: every entry of its header, every tensor."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conelayers.errors import LayerError

JUNK = [
    *(None, -1, 0, 100000, 10**12, 10**30, True, 1.5, float("nan"), "x", ""),
    *([], [3], [-1.0], [10**12], [10**30], ["x"], {}, {"degree": 10**9}),
]


def places(header: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every entry of a header, whole or within another."""
    found = [path] if path else []
    inner = header.items() if isinstance(header, dict) else enumerate(header) if isinstance(header, list) else ()
    for name, value in inner:
        found += places(value, (*path, name))
    return found


def put(header: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """A header with another entry."""
    inner = changed = json.loads(json.dumps(header))
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = junk
    return changed


def tensors(given: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every tensor left out, of another shape or type, or with other numbers; and a word on what was done."""
    for name, value in given.items():
        whole = not value.is_floating_point()
        others = {
            "a matrix": value.reshape(1, -1),
            "a number": value.new_zeros(()),
            "empty": value[:0] if value.dim() else value.new_zeros(0),
            "the other type": value.double() if whole else value.long(),
            "complex": value.to(torch.complex64),
            "one more": torch.cat([value, value[:1]]) if value.dim() else value.reshape(1),
            "one row less": value[:-1] if value.dim() else value.reshape(1),
            "one column less": value[..., :-1] if value.dim() else value.reshape(1),
            "backwards": value.flip(0) if value.dim() else value,
            "nothing but zeros": torch.zeros_like(value),
        }
        for number in (-1, 1, 10**12, 2**62) if whole else (-1.0, torch.finfo(value.dtype).max, torch.nan, torch.inf):
            others[f"with {number}"] = value.clone()
            others[f"with {number}"].reshape(-1)[-1:] = number
            others[f"nothing but {number}"] = torch.full_like(value, number)
        yield f"{name}: left out", {other: one for other, one in given.items() if other != name}
        for told, other in others.items():
            yield f"{name}: {told}", {**given, name: other}


def refused(file: Path, load: Callable[[Path], Any], use: Callable[[Any], object] = bool) -> bool:
    """Whether a file is refused, or what comes of it, in one sentence; whatever else is raised is a failure."""
    loaded = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = load(file)
            use(loaded)
    except LayerError as error:
        said = str(error)
        assert "\n" not in said, said
        assert loaded is not None or str(file) in said or "must be" in said, said
        return True
    return False
