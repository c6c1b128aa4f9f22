"""Parameters of moments: given or to be learnt, and where a model begins with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conelayers.internals import whole

FLOOR = 1e-100
"""Bounds of powers are raised to this before their root is taken, whose derivative diverges at zero. Small enough for
any unit: the bound of a fourth power is the fourth power of an outcome."""

Leaves = Mapping[str, Any]
"""Parameters of a moment by name: CVXPY leaves, arrays or tensors, as the caller needs them."""


@dataclass(frozen=True)
class Learn:
    """A matrix to be learnt, by its shape: ``Norm(2, A=dro.Learn(3, 5))``."""

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", tuple(whole("Every size in dro.Learn", s) for s in shape))


Parameters = dict[str, NDArray[np.float64] | Learn]
"""All parameters of a moment apart from its bound, by name, given or to be learnt."""


@dataclass(frozen=True, eq=False)
class Typical:
    """Where a model should begin with a parameter, and how far it should expect to move.

    Args:
        centre: a sensible value.
        scale: a sensible step, of the same shape.
        positive: whether the parameter must stay positive, or which of its entries must; there the scale is the value.
        meaningful: whether fitting the moment to data determines it; the smallest expectation of ``‖Ay - μ‖`` over a
            learnable ``A``, say, is zero at ``A = 0`` and tells nothing.
        fixed: entries that a model leaves at the centre; none unless given.
    """

    centre: Tensor
    scale: Tensor
    positive: bool | Tensor = False
    meaningful: bool = True
    fixed: Tensor | None = None


def deviation(y: Tensor) -> Tensor:
    """Standard deviations of columns; those of constants are replaced by their size, by one where all vanish."""
    spread, size = y.std(0, unbiased=False), y.abs().amax(0)
    varies = spread > 1e-12 * size
    size = torch.where(size > 0, size, size.max())
    return torch.where(varies, spread, torch.where(size > 0, size, torch.ones_like(size)))
