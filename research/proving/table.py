"""One command for every benchmark: run what is missing, then print means and errors over seeds, and who wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from conelayers.errors import ModelError
from research.experiments.runner import Run, collect, run_tasks
from research.experiments.task import Row, Task
from research.proving.duels import by_setting, duels
from research.proving.figures import FIGURES, SCORES, before, columns, elsewhere, keep

BENCHMARKS = ("battery", "frontier", "linear", "portfolio", "pyepo", "rsome")
TABLE = "table.md"
HEADING = "Means ± standard errors over seeds (their number)."


def prove(
    benchmark: str,
    folder: Path,
    data: Path | None,
    seeds: int,
    quick: bool,
    only: Sequence[str],
    jobs: int,
    against: str = "",
    where: Sequence[str] = (),
    beside: Path | None = None,
    known: Path | None = None,
    first: int | None = None,
) -> list[str]:
    """Run a benchmark, or its settings ``where`` some columns have given values, and write its table.

    Draws begin with the ``first``, or where the benchmark's own begin. Figures of an earlier run may stand ``beside``
    those of the same draws, and ``known`` ones count as if run here.

    Returns:
        One sentence for every task that failed.
    """
    module: Any
    if benchmark == "battery":
        from research.proving import battery as module

        if data is None:
            raise ModelError("The battery needs its data: give --data path/to/battery.npz (chrisyeh96/e2e-conformal).")
        run: Run = partial(module.run, data=data.resolve())
        tasks = module.tasks(seeds, quick)
    elif benchmark in BENCHMARKS:
        module = import_module(f"research.proving.{benchmark}")
        run, tasks = module.run, module.tasks(seeds, quick)
    else:
        raise ModelError(f"There is no benchmark {benchmark!r}: choose from {list(BENCHMARKS)}.")
    tasks = beginning(tasks, first)
    methods = list(dict.fromkeys(task.method for task in tasks))
    if unknown := sorted({*only, *([against] if against else [])} - set(methods)):
        raise ModelError(f"There is no method {unknown[0]!r}: choose from {sorted(methods)}.")
    wanted: list[Task] = [task for task in settings(tasks, where) if not only or task.method in only]
    if not wanted:
        raise ModelError(f"No task of {[*only]} has {' and '.join(where)}: leave out one or the other.")
    failures = run_tasks(wanted, folder, jobs, run)
    reference = against or next((name for name in methods if name.startswith("learner")), "")
    print(written(benchmark, folder, reference, beside, known))
    return failures


def beginning(tasks: Sequence[Task], first: int | None) -> list[Task]:
    """The same on other draws, the first of which is given."""
    own = min(task.seed for task in tasks)
    return [replace(task, seed=task.seed + (own if first is None else first) - own) for task in tasks]


def settings(tasks: Sequence[Task], where: Sequence[str]) -> list[Task]:
    """The tasks whose columns, or seed, have the values asked for, such as ``degree=8``; any of several of one."""
    asked: dict[str, set[str]] = {}
    told = {task: {**task.columns, "seed": task.seed} for task in tasks}
    for one in where:
        name, _, value = one.partition("=")
        known = sorted({str(columns[name]) for columns in told.values() if name in columns})
        if value not in known:
            names = sorted({column for columns in told.values() for column in columns})
            choices = f"{name}=, one of {known}" if known else f"a column, one of {names}, and its value"
            raise ModelError(f"There is no setting {one!r}: give {choices}.")
        asked.setdefault(name, set()).add(value)
    return [task for task in tasks if all(str(told[task].get(name)) in values for name, values in asked.items())]


def written(benchmark: str, folder: Path, reference: str, beside: Path | None = None, known: Path | None = None) -> str:
    """The table of what is finished in a folder, which is written there, with the figures that it is made of."""
    rows, module = collect(folder), import_module(f"research.proving.{benchmark}")
    rows += [] if known is None else elsewhere(known, rows)
    if any(r["metric"] in SCORES for r in rows):
        keep(rows, SCORES, folder / FIGURES)
    rows += [] if beside is None else before(beside, rows)
    parts = [HEADING, table(rows), *told(benchmark, rows, reference), getattr(module, "PUBLISHED", "")]
    text = "\n\n".join(part for part in parts if part)
    (folder / TABLE).write_text(text + "\n", encoding="utf-8")
    if rows and hasattr(module, "picture"):
        module.picture(rows, folder)
    return text


def told(benchmark: str, rows: Sequence[Row], reference: str) -> list[str]:
    """Who wins and loses, and where a benchmark has parts, means over their settings, part by part."""
    module = import_module(f"research.proving.{benchmark}")
    own, (part, *others) = getattr(module, "OWN", ()), getattr(module, "PARTS", ("",))
    if not part:
        return [duels(rows, reference, own), by_setting(rows, reference, own)]
    found = []
    for value in dict.fromkeys(str(r[part]) for r in rows):
        some = [r for r in rows if str(r[part]) == value]
        for text in (means(some, others), duels(some, reference, own), by_setting(some, reference, own)):
            found.append(text and f"{part} {value}: {text}")
    return found


def table(rows: Sequence[Row]) -> str:
    """Means with standard errors over seeds, one line a setting, one column a method; metrics one after another."""
    names, parts = columns(rows), []
    for metric in dict.fromkeys(str(r["metric"]) for r in rows):
        own = [r for r in rows if r["metric"] == metric]
        methods = list(dict.fromkeys(str(r["method"]) for r in own))
        settings = sorted({tuple(str(r[name]) for name in names) for r in own})
        lines = [f"**{metric}**", "", " | ".join(["", *names, *methods, ""]).strip()]
        lines.append("|" + "---|" * (len(names) + len(methods)))
        for setting in settings:
            cells = []
            for method in methods:
                found = [
                    r["value"]
                    for r in own
                    if r["method"] == method and tuple(str(r[name]) for name in names) == setting
                ]
                cells.append(_cell(found))
            lines.append(" | ".join(["", *setting, *cells, ""]).strip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def means(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Means over all settings of a part, by its columns, with errors over seeds that have all of them."""
    own = [r for r in rows if r["metric"] in SCORES]
    parts = list(dict.fromkeys(tuple(str(r[name]) for name in names) for r in own))
    lines = [" | ".join(["", "method", *(" ".join(part) for part in parts), ""]).strip()]
    lines.append("|" + "---|" * (1 + len(parts)))
    for method in dict.fromkeys(str(r["method"]) for r in own):
        cells = []
        for part in parts:
            seeds: dict[Any, list[float]] = {}
            for r in own:
                if r["method"] == method and tuple(str(r[name]) for name in names) == part:
                    seeds.setdefault(r["seed"], []).append(float(r["value"]))
            whole = max(map(len, seeds.values()), default=0)
            cells.append(_cell([fmean(values) for values in seeds.values() if len(values) == whole]))
        lines.append(" | ".join(["", method, *cells, ""]).strip())
    return f"**Means by {', '.join(names)}**\n\n" + "\n".join(lines)


def _cell(values: Sequence[float | str]) -> str:
    """Mean ± standard error (number), or a sentence where there is no figure."""
    if sentences := dict.fromkeys(value for value in values if isinstance(value, str)):
        return " ".join(sentences)
    figures = [float(value) for value in values]
    if not figures:
        return ""
    error = f" ± {stdev(figures) / sqrt(len(figures)):.2g}" if len(figures) > 1 else ""
    return f"{fmean(figures):.4g}{error} ({len(figures)})"
