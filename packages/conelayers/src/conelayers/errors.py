"""The exceptions and warnings of the library; each message says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class LayerError(Exception):
    """Base class of all errors that the layers raise on purpose."""


class ModelError(LayerError, ValueError):
    """The model cannot be represented; the message names the offending expression."""


class ShapeError(LayerError, ValueError):
    """A tensor has the wrong shape, type or non-finite entries."""


class MissingExtraError(LayerError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


class DifferentiationError(LayerError, RuntimeError):
    """A derivative was asked for that does not exist here."""


class UnsolvedItemsWarning(UserWarning):
    """Some items of a batch have no solution; the message counts them by status and says what to do."""


class SolveError(LayerError, RuntimeError):
    """Some items of a batch could not be solved.

    Attributes:
        items: the status of each unsolved item, by its position in the batch; empty for the rows of a whole epoch.
    """

    def __init__(self, message: str, items: Mapping[int, IntEnum] | None = None) -> None:
        super().__init__(message)
        self.items = dict(items or {})

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its arguments, of which the base class stores the message alone.
        return type(self), (str(self), self.items)


class IntegerGradientWarning(UserWarning):
    """A gradient was asked of integer variables, which have none."""
