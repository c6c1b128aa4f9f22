"""Differentiable distributionally robust optimization layers for PyTorch.

Names are loaded on first use, so that a compiled cone program runs where CVXPY is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drolayers.errors import DROError, MissingExtraError, ModelError, ShapeError, SolveError
    from drolayers.status import Status
    from drolayers.uncertainty import Uncertain

__version__ = "0.1.0"

_HOME = {
    "DROError": "errors",
    "MissingExtraError": "errors",
    "ModelError": "errors",
    "ShapeError": "errors",
    "SolveError": "errors",
    "Status": "status",
    "Uncertain": "uncertainty",
}
_MODULES = {"support": "support"}

__all__ = ["DROError", "MissingExtraError", "ModelError", "ShapeError", "SolveError", "Status", "Uncertain"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"drolayers.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"drolayers.{_MODULES[name]}")
    raise AttributeError(f"module 'drolayers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
