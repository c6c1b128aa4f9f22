"""The exceptions of the library; each message is one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from drolayers.status import Status


class DROError(Exception):
    """Base class of all errors raised on purpose by drolayers."""


class ModelError(DROError, ValueError):
    """The model cannot be represented; the message names the offending expression."""


class ShapeError(DROError, ValueError):
    """A tensor has the wrong shape, type or non-finite entries."""


class MissingExtraError(DROError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


class DifferentiationError(DROError, RuntimeError):
    """A derivative was asked for that does not exist here."""


class MaskedDataWarning(UserWarning):
    """Some items of a batch were given known data that cannot be used."""


class SolveError(DROError, RuntimeError):
    """Some items of a batch could not be solved; ``items`` maps their positions to statuses."""

    def __init__(self, statuses: Sequence[Status], more_advice: str = "") -> None:
        self.items = {i: Status(s) for i, s in enumerate(statuses) if not Status(s).ok}
        listed = ", ".join(f"{i}: {s}" for i, s in list(self.items.items())[:8])
        more = "" if len(self.items) <= 8 else f" and {len(self.items) - 8} more"
        advice = " ".join(sorted({s.advice for s in self.items.values()}))
        told = f"{len(self.items)} of {len(statuses)} items were not solved ({listed}{more}). {advice} {more_advice}"
        super().__init__(told.strip())
