"""What a part of the user's own making is made of, as data that are the same in every process.

A folder is gone on with only by what it was begun with. Names do not tell: two lambdas have the same one, and two
objects of a class may differ in a number. What a function reads from its module is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from drolayers.learning.settings import Stage

DEEP = 8
"""Objects within objects that are looked into: beyond, and in circles, names count."""

NAMED = ("cvxpy", "drolayers.problem", "drolayers.layer")
"""Where objects come from that are told by their name: they number themselves anew in every process."""


def contents(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Numbers, the code of functions and what objects hold, in lists."""
    if value is None or isinstance(value, bool | str | bytes):
        return repr(value)
    if isinstance(value, int | float | complex | np.number):
        return repr(complex(value))
    if isinstance(value, Tensor):
        return contents(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if len(around) > DEEP or id(value) in around or isinstance(value, type) or type(value).__module__.startswith(NAMED):
        return name
    deeper = partial(contents, around=(*around, id(value)))
    if isinstance(value, CodeType):
        return [value.co_code.hex(), [deeper(one) for one in value.co_consts], list(value.co_names)]
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return [name, *(deeper(part) for part in (value.__code__, value.__defaults__, value.__kwdefaults__, held))]
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
        # Initial weights may differ from run to run.
        own = [{k: one for k, one in vars(m).items() if k[0] != "_" and k != "training"} for m in value.modules()]
        return [[type(m).__qualname__, deeper(part)] for m, part in zip(value.modules(), own, strict=True)]
    return [name, deeper(getattr(value, "__dict__", {}))]


def schedules(stage: Stage | None) -> Any:
    """What the settings of a stage that change from epoch to epoch are in each of them."""
    if stage is None:
        return None
    changing = {name: one for name, one in stage.get_params().items() if callable(one)}
    return contents({name: [one(epoch) for epoch in range(stage.epochs)] for name, one in changing.items()})
