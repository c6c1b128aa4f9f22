"""What a part of the user's own making is made of, as data that are the same in every process.

A folder is gone on with only by what it was begun with. Names do not tell: two lambdas have the same one, and two
objects of a class may differ in a number. What a function reads from its module is not looked at, and of what comes
from other packages only what pickle makes of it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from itertools import count
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from drolayers.learning.settings import Stage

DEEP = 12
"""Parts within parts that are looked into: beyond, and in circles, names count."""

NAMED = ("cvxpy", "drolayers.problem", "drolayers.layer")
"""Where objects come from that are told by their name: they number themselves anew in every process."""

LONGEST = 3
"""Schedules are asked for so many times the epochs of a stage: some of its trainings are longer."""


def contents(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Numbers, the code of functions and what objects hold, in lists.

    Args:
        value: anything.
        around: what it lies in.
    """
    if value is None or isinstance(value, bool | str | bytes):
        return repr(value)
    if isinstance(value, np.generic):
        return contents(value.item())
    if isinstance(value, int | float | complex):
        return repr(complex(value))
    name = getattr(value, "__qualname__", type(value).__qualname__)
    named = isinstance(value, type | ModuleType) or type(value).__module__.startswith(NAMED)
    if named or len(around) > DEEP or id(value) in around:
        return name
    deeper = partial(contents, around=(*around, id(value)))
    try:
        return [name, _parts(value, deeper)]
    except Exception:
        # Nearly anything may be raised by what others made; a run must not fail for it.
        return name


def _parts(value: Any, deeper: Any) -> Any:
    """What something is made of."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return deeper((plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy())
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return deeper(value.tolist())
        return [str(value.dtype), list(value.shape), sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), [deeper(one) for one in value.co_consts], list(value.co_names)]
    if isinstance(value, FunctionType):
        cells = [_within(cell) for cell in value.__closure__ or ()]
        return [deeper(part) for part in (value.__code__, value.__defaults__, value.__kwdefaults__, cells)]
    if isinstance(value, MethodType):
        return [deeper(value.__func__), deeper(value.__self__)]
    if isinstance(value, partial):
        return [deeper(part) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return [[deeper(key), deeper(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [deeper(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(str(deeper(one)) for one in value)
    if isinstance(value, nn.Module):
        ours = [{k: one for k, one in vars(m).items() if k not in INTERNAL} for m in value.modules()]
        return [deeper(ours), [_code(type(m), deeper) for m in value.modules()], deeper(dict(value.state_dict()))]
    if _foreign(type(value)):
        return sha256(pickle.dumps(value)).hexdigest()
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ()) if hasattr(value, slot)]
    held = {**getattr(value, "__dict__", {}), **{slot: getattr(value, slot) for slot in slots}}
    return [deeper(held), _code(type(value), deeper)]


def _within(cell: CellType) -> Any:
    """What a function closes over; it may not be there yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


INTERNAL = set(vars(nn.Module()))
"""What every module keeps for itself."""


def _code(kind: type, deeper: Any) -> Any:
    """The functions of a class and of those that it is made from, as far as they are the user's own."""
    own = [one for one in kind.__mro__ if not _foreign(one)]
    return [[deeper(part) for part in vars(one).values() if isinstance(part, FunctionType)] for one in own]


def _foreign(kind: type) -> bool:
    """Whether a class comes with Python or from an installed package."""
    package = kind.__module__.partition(".")[0]
    place = getattr(sys.modules.get(package), "__file__", None) or ""
    return (
        package in sys.stdlib_module_names - {"__main__"}
        or "site-packages" in place
        or package in ("conelayers", "drolayers")
    )


def schedules(stage: Stage | None) -> Any:
    """What the settings of a stage that change from epoch to epoch are in each of them."""
    if stage is None:
        return None
    changing = {name: one for name, one in stage.get_params().items() if callable(one)}
    return [[name, _told(one, LONGEST * stage.epochs)] for name, one in changing.items()]


def _told(schedule: Any, epochs: int) -> Any:
    """The values of a schedule, as far as it has some."""
    found: list[Any] = []
    for epoch in count():
        if epoch == epochs:
            return found
        try:
            found.append(contents(schedule(epoch)))
        except Exception:
            return found
