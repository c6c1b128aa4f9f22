"""One command for every benchmark: run what is missing, then print means and errors over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from drolayers.errors import ModelError
from research.experiments.runner import Run, collect, run_tasks
from research.experiments.task import Row, Task
from research.proving.verdicts import verdicts

BENCHMARKS = ("battery", "frontier", "pyepo")
TABLE = "table.md"


def prove(
    benchmark: str, folder: Path, data: Path | None, seeds: int, quick: bool, only: Sequence[str], jobs: int
) -> list[str]:
    """Run a benchmark and write its table; one sentence for every task that failed."""
    if benchmark == "battery":
        from research.proving import battery as module

        if data is None:
            raise ModelError("The battery needs its data: give --data path/to/battery.npz (chrisyeh96/e2e-conformal).")
        run: Run = partial(module.run, data=data.resolve())
        tasks = module.tasks(seeds, quick)
    elif benchmark in BENCHMARKS:
        other = import_module(f"research.proving.{benchmark}")
        run, tasks = other.run, other.tasks(seeds, quick)
    else:
        raise ModelError(f"There is no benchmark {benchmark!r}: choose from {list(BENCHMARKS)}.")
    known = {task.method for task in tasks}
    if unknown := sorted(set(only) - known):
        raise ModelError(f"There is no method {unknown[0]!r}: choose from {sorted(known)}.")
    wanted: list[Task] = [task for task in tasks if not only or task.method in only]
    failures = run_tasks(wanted, folder, jobs, run)
    print(written(benchmark, folder))
    return failures


def written(benchmark: str, folder: Path) -> str:
    """The table of what is finished in a folder, which is written there."""
    rows = collect(folder)
    text = table(rows)
    if benchmark == "pyepo":
        judged = [r for r in rows if r["metric"] == "regret"]
        ours = ("learner", "learner, linear")
        text += "\n\n" + verdicts(judged, ("problem", "points", "noise", "degree"), ("problem", "points"), ours)
    (folder / TABLE).write_text(text + "\n", encoding="utf-8")
    return text


def table(rows: Sequence[Row]) -> str:
    """Means with standard errors over seeds, one line a setting, one column a method; metrics one after another."""
    fixed = {"experiment", "protocol", "method", "metric", "value", "seed", "version", "cores", "platform", "python"}
    fixed |= {"torch", "wall_seconds", "cpu_seconds"}
    names = [name for name in rows[0] if name not in fixed] if rows else []
    parts = []
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
                    float(r["value"])
                    for r in own
                    if r["method"] == method and tuple(str(r[name]) for name in names) == setting
                ]
                cells.append(_cell(found))
            lines.append(" | ".join(["", *setting, *cells, ""]).strip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(values: Sequence[float]) -> str:
    """Mean ± standard error (number)."""
    if not values:
        return ""
    error = f" ± {stdev(values) / sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{error} ({len(values)})"
