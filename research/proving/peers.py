"""Other packages beside ours: whether they are there, and what is written where they are not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from research.experiments.task import Row, row


def installed(package: str) -> str:
    """A package and its version, as the fingerprint of a task: what was found without it is found again with it."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"without {package}"


def unavailable(package: str) -> str:
    """Why there is no answer of a package; empty where it is installed."""
    missing = installed(package).startswith("without")
    return f"{package} is not installed here: pip install --no-deps {package}." if missing else ""


def compared(ours: str, value: float | str, peer: str, theirs: float | str, rows: list[Row]) -> list[Row]:
    """Values of both, how far they are apart, and more rows; a sentence in place of a value is kept."""
    found = [{"method": name, "metric": "value", "value": v} for name, v in ((ours, value), (peer, theirs))]
    if isinstance(value, float) and isinstance(theirs, float):
        found.append(row(ours, "relative difference", abs(value - theirs) / max(abs(theirs), 1e-12)))
    return [*found, *rows]
