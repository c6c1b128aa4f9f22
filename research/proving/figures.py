"""Figures of a benchmark as a small table to be kept beside the code: a line a setting and method, a column a draw.

Means say how a version did; only draws can be paired with those of the next one.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from conelayers.errors import ModelError
from research.experiments.runner import LEADING, TRAILING, write_table
from research.experiments.task import Row

FIGURES = "figures.csv"
SCORES = ("loss", "regret")
"""What is counted as won and lost; less is better."""
BEFORE = ", before"
"""What the methods of an earlier run are called."""


def keep(rows: Sequence[Row], metrics: Sequence[str], path: Path) -> None:
    """Write what was scored."""
    lines: dict[tuple[str, ...], Row] = {}
    names = columns(rows)
    scored = [r for r in rows if r["metric"] in metrics]
    for r in scored:
        setting = {name: str(r[name]) for name in (*names, "method", "metric")}
        # Nine digits are more than a decision has.
        line = lines.setdefault(tuple(setting.values()), dict(setting))
        line[str(r["seed"])] = r["value"] if isinstance(r["value"], str) else f"{r['value']:.9g}"
    seeds = [str(seed) for seed in sorted({int(r["seed"]) for r in scored})]
    write_table(path, [*names, "method", "metric", *seeds], [lines[key] for key in sorted(lines)])


def recall(path: Path) -> list[Row]:
    """The rows that were written."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): give the {FIGURES} of an earlier run.") from error
    found = []
    for line in lines:
        draws = {name: value for name, value in line.items() if name is not None and name.isdecimal() and value}
        setting = {name: value for name, value in line.items() if name is not None and not name.isdecimal()}
        if not {"method", "metric"} <= set(setting) or None in line:
            raise ModelError(f"{path} holds no figures by method and metric: give the {FIGURES} of an earlier run.")
        found += [setting | {"seed": int(seed), "value": _figure(value)} for seed, value in draws.items()]
    return found


def before(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Earlier figures, under names of their own, of those draws and settings that there are rows of."""
    names = columns(rows)

    def draw(r: Row) -> tuple[str, ...]:
        return tuple(str(r.get(name)) for name in (*names, "seed"))

    here, earlier = set(map(draw, rows)), recall(path)
    found = [r | {"method": r["method"] + BEFORE} for r in earlier if draw(r) in here]
    if rows and not found:
        raise ModelError(f"{path} holds no draw of a setting that was run: give the {FIGURES} of the same benchmark.")
    return found


def elsewhere(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Figures that were found elsewhere, but for those that there are rows of."""
    found = recall(path)
    if rows and found and set(columns(rows)) != set(columns(found)):
        raise ModelError(
            f"{path} has settings by {columns(found)}, and this benchmark by {columns(rows)}: give its own {FIGURES}."
        )
    names = (*(columns(rows) or columns(found)), "method", "metric", "seed")
    here = {tuple(str(r[name]) for name in names) for r in rows}
    return [r for r in found if tuple(str(r[name]) for name in names) not in here]


def columns(rows: Sequence[Row]) -> list[str]:
    """The columns that make a setting."""
    return [name for name in rows[0] if name not in {*LEADING, *TRAILING}] if rows else []


def _figure(value: str) -> float | str:
    """A number, or the sentence that stands in place of one."""
    try:
        return float(value)
    except ValueError:
        return value
