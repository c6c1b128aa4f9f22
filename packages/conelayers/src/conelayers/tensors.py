"""Numbers that a user gave, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.checks import finite, real
from conelayers.errors import ModelError, ShapeError

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


def row_weights(weights: Any, rows: int, name: str = "sample_weight") -> Float[Tensor, "row"] | None:
    """Check the weights of rows and divide them by the mean of the positive ones; None stands for equal weights.

    Args:
        weights: one nonnegative number a row.
        rows: their number.
        name: of the weights, for messages.

    Raises:
        ShapeError: they are no vector of so many numbers, or hold NaN or infinity.
        ModelError: one is negative, or all are zero.
    """
    if weights is None:
        return None
    values = tensor(name, weights).detach().cpu().double()
    if values.shape != (rows,):
        raise ShapeError(f"{name} must have shape ({rows},), one weight for each row, not {tuple(values.shape)}.")
    finite(name, values[:, None])
    if bool((values < 0).any()):
        negative = (values < 0).nonzero()[:8, 0].tolist()
        raise ModelError(f"{name} must not be negative, as in rows {negative}: use 0 to leave a row out.")
    if not bool((values > 0).any()):
        raise ModelError(f"{name} must not be zero in every row: at least one row must count.")
    # First by the largest, so that no sum overflows.
    values = values / values.max()
    return values / values[values > 0].mean()


def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Average over the first dimension, Σ w_i v_i / Σ w_i; equally unless weights are given."""
    if weights is None:
        return values.mean(0)
    shaped = weights.to(values).reshape(-1, *[1] * (values.dim() - 1))
    return (shaped * values).sum(0) / shaped.sum()
