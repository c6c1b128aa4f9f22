"""Data in three parts: to learn from, to calibrate on, to be judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """Contexts and outcomes for training, calibration and test."""

    training: tuple[Array, Array]
    calibration: tuple[Array, Array]
    test: tuple[Array, Array]
