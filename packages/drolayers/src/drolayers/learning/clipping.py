"""The warning about inputs outside the range seen in training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from drolayers.learning.model import SetModel

LISTED = 5
"""Columns that a warning names at most."""

ROUNDING_REL = 1e-9
"""Distance beyond the range, relative to its ends, that is rounding: a file in single precision rounds more."""


class ClippedInputsWarning(UserWarning):
    """Some contexts lie outside the range seen in training, to which the default model clips them."""


def warn_of_clipped(
    model: nn.Module, Z: Float[Tensor, "row column"], names: Sequence[str] | None, stacklevel: int = 3
) -> None:
    """Warn once of the rows whose inputs the default model clips, with their share and the distance by column.

    Args:
        model: the learner's model; models of a user's own are not clipped.
        Z: contexts.
        names: of their columns, if they have some.
        stacklevel: of the warning, as Python counts it.
    """
    if not isinstance(model, SetModel) or model.extrapolate or not len(Z):
        return
    Z, low, high = (part.detach().cpu().double() for part in (Z, model.lowest, model.highest))
    beyond = torch.maximum(low - Z, Z - high)
    size = torch.maximum(low.abs(), high.abs())
    clipped = beyond > ROUNDING_REL * torch.where(size.isfinite(), size, torch.zeros_like(size))
    rows = int(clipped.any(1).sum())
    if not rows:
        return
    worst = torch.where(clipped, beyond, torch.zeros_like(beyond)).amax(0)
    order = (worst / (high - low)).nan_to_num(posinf=torch.inf).argsort(descending=True)
    columns = [k for k in order.tolist() if worst[k] > 0]
    listed = ", ".join(_distance(k, worst, high - low, names) for k in columns[:LISTED])
    more = f" and {len(columns) - LISTED} more" if len(columns) > LISTED else ""
    warnings.warn(
        f"{rows} of {len(Z)} rows ({rows / len(Z):.1%}) have inputs outside the range seen in training, and the model "
        f"clips them to it: {listed}{more}. Train on data that covers them, or let the model extrapolate with "
        "model=dro.Network(extrapolate=True).",
        ClippedInputsWarning,
        stacklevel=stacklevel,
    )


def _distance(k: int, worst: Tensor, width: Tensor, names: Sequence[str] | None) -> str:
    """Return how far a column goes beyond its range, in units of the range."""
    name = f"column {k}" if names is None else repr(names[k])
    if float(width[k]) == 0:
        return f"{name}, constant in training, by up to {float(worst[k]):.3g}"
    return f"{name} by up to {float(worst[k] / width[k]):.3g} times its range"
