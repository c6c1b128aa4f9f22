"""The exceptions of the library: those of the engine, and what only known data and sets can raise."""

from __future__ import annotations

from conelayers.errors import (
    DifferentiationError,
    LayerError,
    MissingExtraError,
    ModelError,
    ShapeError,
    SolveError,
    UnsolvedItemsWarning,
)

__all__ = [
    "DifferentiationError",
    "LayerError",
    "MaskedDataWarning",
    "MissingExtraError",
    "ModelError",
    "ShapeError",
    "SolveError",
    "UnsolvedItemsWarning",
]


class MaskedDataWarning(UserWarning):
    """Some items of a batch were given known data that cannot be used."""
