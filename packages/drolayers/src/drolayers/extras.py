"""Optional packages of drolayers: an error names the extra to install."""

from __future__ import annotations

from typing import Any

from conelayers import internals
from conelayers.internals import absent

__all__ = ["LEARNING", "absent", "needs", "require"]

LEARNING = ("lightning", "sklearn", "safetensors")
"""Without these there is no learning."""


def require(module: str, extra: str) -> Any:
    """Import an optional module, or name the extra that brings it."""
    return internals.require(module, extra, "drolayers")


def needs(extra: str, *packages: str) -> None:
    """Raise unless all packages of an extra can be imported."""
    internals.needs(extra, *packages, distribution="drolayers")
