"""What is made once of a structure and kept as long as it lives: plans, and its indices on each device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

T = TypeVar("T")

_LOCK = threading.Lock()
_KNOWN: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def once(owner: Any, key: Any, make: Callable[[], T]) -> T:
    """What is known of an object under a key, made when first asked for; it must not refer to the object."""
    with _LOCK:
        known = _KNOWN.setdefault(owner, {})
    if key not in known:
        # What is made while nothing is differentiated serves others who differentiate.
        with torch.inference_mode(False), torch.no_grad():
            made = make()
        with _LOCK:
            known.setdefault(key, made)
    found: T = known[key]
    return found


class Index(NamedTuple):
    """Where the numbers of a program stand: row and column of every entry of A and P, and its integers."""

    row: Int[Tensor, "nnz_A"]
    column: Int[Tensor, "nnz_A"]
    P_row: Int[Tensor, "nnz_P"]
    P_column: Int[Tensor, "nnz_P"]
    integers: Int[Tensor, "integer"]
    lower: Int[Tensor, "integer"]
    upper: Int[Tensor, "integer"]


def row_index(indptr: Tensor) -> Tensor:
    """The row of every stored entry of a CSR matrix."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())
