"""CVXPY numbers its leaves anew in every process: what was unpickled must not be taken for what was made here."""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from uuid import uuid4

from cvxpy.lin_ops.lin_utils import ID_COUNTER


@cache
def _token(process: int) -> str:
    """A process, among all."""
    return uuid4().hex


class Numbered:
    """What holds leaves of CVXPY: when unpickled, it keeps their numbers from being given to others.

    Attributes:
        foreign: whether it was unpickled from another process, whose numbers may be those of others here.
    """

    foreign: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_made": _token(os.getpid()), **self.__dict__, "_numbers": ID_COUNTER.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ID_COUNTER.count = max(ID_COUNTER.count, state.pop("_numbers", 0))
        foreign = state.get("_made") != _token(os.getpid())
        self.__dict__.update(state, foreign=foreign)
