"""How loops are compiled, wherever they stand, and what they take: arrays of three kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    # Not "fast": infinities and NaN are looked for.
    "fastmath": {"contract", "reassoc", "arcp"},
}
