"""Numbers that a user gave, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from drolayers.checks import real
from drolayers.errors import ShapeError

_KNOWN = [
    np.dtype(kind) for kind in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
]
"""Types that torch has too."""


def tensor(name: str, value: Any) -> Tensor:
    """A tensor as it is; of anything else one with its numbers, in which whole numbers stay whole.

    Raises:
        ShapeError: these are no real numbers, or not in rows of equal length.
    """
    real(name, value)
    if isinstance(value, Tensor):
        return value
    try:
        array = np.array(value)
        if array.dtype == object and any(entry is None for entry in array.flat):
            # For NumPy it is NaN.
            raise TypeError
        # Numbers as Python holds them, or of a type that torch has not, are taken for floats.
        return torch.as_tensor(array if array.dtype in _KNOWN else array.astype(float))
    except (TypeError, ValueError) as error:
        said = f"{name} must be numbers, real ones, in rows of equal length, not {type(value).__name__}."
        raise ShapeError(said) from error
