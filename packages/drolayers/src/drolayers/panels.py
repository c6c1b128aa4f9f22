"""Axes and colours that all pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drolayers.errors import ModelError
from drolayers.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST, NOMINAL, PLAIN = "#c0392b", "#7f8c8d", "#2c3e50"


def panels(axes: Axes | Sequence[Axes] | None, count: int) -> list[Axes]:
    """As many axes as are needed, those given or new ones."""
    MatplotlibAxes = require("matplotlib.axes", "plot").Axes

    if axes is None:
        pyplot = require("matplotlib.pyplot", "plot")
        columns = min(count, 4)
        rows = -(-count // columns)
        size = (5.2, 3.6) if count == 1 else (3.0 * columns, 2.4 * rows)
        grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")[1].ravel()
        for spare in grid[count:]:
            spare.set_axis_off()
        return list(grid[:count])
    given: list[Any] = [axes] if isinstance(axes, MatplotlibAxes) else list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count or not all(isinstance(part, MatplotlibAxes) for part in given):
        raise ModelError(f"This picture needs {count} Matplotlib axes, not {len(given)} ({axes!r}).")
    return given


def entry(shape: Sequence[int], coordinate: int) -> str:
    """The name of a coordinate of y, which has some shape."""
    return f"y[{', '.join(str(i) for i in np.unravel_index(coordinate, tuple(shape)))}]"
