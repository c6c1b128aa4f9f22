"""Optional packages: looked for where they are needed, and named in one sentence where they are missing."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from conelayers.errors import MissingExtraError


def require(module: str, extra: str, distribution: str = "conelayers") -> Any:
    """Import an optional module, or name the extra of a distribution that brings it."""
    needs(extra, module.split(".")[0], distribution=distribution)
    return import_module(module)


def absent(*packages: str) -> list[str]:
    """List the packages that are not installed."""
    return [package for package in packages if sys.modules.get(package) is None and find_spec(package) is None]


def needs(extra: str, *packages: str, distribution: str = "conelayers") -> None:
    """Raise unless all packages of an extra can be imported."""
    if missing := absent(*packages):
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{', '.join(missing)} {verb} not installed: pip install '{distribution}[{extra}]' brings what is missing."
        )
