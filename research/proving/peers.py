"""Other packages beside ours: whether they are there, and what is written where they are not."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

from research.experiments.task import Row, row


def installed(package: str) -> str:
    """A package's version and what it lacks, the fingerprint of a task: a result without them is found again."""
    if not _there(package):
        return f"without {package}"
    needed = [line for line in requires(package) or () if "extra ==" not in line]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    return " without ".join([f"{package} {version(package)}", *(name for name in names if not _there(name))])


def unavailable(package: str) -> str:
    """Why there is no answer of a package; empty where it is installed."""
    return "" if _there(package) else f"{package} is not installed here: pip install --no-deps {package}."


def _there(package: str) -> bool:
    """Whether it is installed."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def compared(ours: str, value: float | str, peer: str, theirs: float | str, rows: list[Row]) -> list[Row]:
    """Values of both, how far they are apart, and more rows; a sentence in place of a value is kept."""
    found = [{"method": name, "metric": "value", "value": v} for name, v in ((ours, value), (peer, theirs))]
    if isinstance(value, float) and isinstance(theirs, float):
        found.append(row(ours, "relative difference", abs(value - theirs) / max(abs(theirs), 1e-12)))
    return [*found, *rows]
