"""The optional packages that bring the data."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from drolayers.errors import MissingExtraError


def require(module: str) -> Any:
    """An optional module, or a sentence on how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise MissingExtraError(
            f"{package} is not installed, and the study needs it: pip install 'drolayers[studies]'."
        ) from error
