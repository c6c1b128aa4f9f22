"""Many tasks on many cores: finished ones are kept, interrupted ones go on, and one that fails stops no other."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conelayers.checks import directory
from conelayers.errors import ModelError
from research.experiments.registry import load
from research.experiments.task import Outcome, Row, Task

RESULTS, CURVES = "results.csv", "curves.csv"
ONE_THREAD = dict.fromkeys(
    # Moreau sizes its pools by the cores that the process may use, and reads no variable.
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "1",
)
LEADING = ("experiment", "protocol", "method")
TRAILING = ("seed", "metric", "value", "version", "cores", "platform", "python", "torch", "wall_seconds", "cpu_seconds")

Run = Callable[[Task, Path], Outcome]


def run_tasks(tasks: Sequence[Task], folder: Path, jobs: int = 1, run: Run | None = None) -> list[str]:
    """Run what is not finished yet, ``jobs`` at a time, one thread each.

    A finished task leaves one file, ``<folder>/tasks/<id>.json``, which appears whole or not at all. An interrupted one
    keeps its checkpoints in ``<folder>/work`` and goes on from there at the next call.

    Args:
        tasks: what to run.
        folder: where results are kept.
        jobs: processes.
        run: from a task and a folder for its checkpoints to its outcome; the registry's unless given.

    Returns:
        One sentence for every task that failed.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    directory(folder / "tasks")
    waiting = [task for task in tasks if not is_finished(task, folder)]
    failures: list[str] = []
    with one_thread_each(), _progress(len(tasks), len(tasks) - len(waiting)) as advance:
        try:
            parallel = Parallel(n_jobs=min(jobs, max(len(waiting), 1)), return_as="generator_unordered")
            for failure in parallel(delayed(_attempt)(task, folder, run or _registered) for task in waiting):
                failures += [failure] if failure else []
                advance()
        except TerminatedWorkerError as error:
            raise ModelError(
                "A worker was killed, most likely for want of memory: run the same command with fewer --jobs; what is "
                "finished is kept."
            ) from error
    return failures


def is_finished(task: Task, folder: Path) -> bool:
    """Whether a result with the same settings is there."""
    stored = _read(folder / "tasks" / f"{task.id}.json")
    return stored is not None and stored.get("fingerprint") == task.fingerprint


def collect(folder: Path) -> list[Row]:
    """All results as tidy rows, one figure a row; also written to ``results.csv``, and curves to ``curves.csv``."""
    stored = [s for s in map(_read, sorted((folder / "tasks").glob("*.json"))) if s is not None]
    fixed = {*LEADING, *TRAILING}
    names = sorted({name for s in stored for r in ({**s["setting"]}, *s["rows"]) for name in r} - fixed)
    rows = [
        {name: r.get(name, "") for name in (*LEADING, *names, *TRAILING)}
        for s in stored
        for r in ({**s["about"], **s["setting"], **found} for found in s["rows"])
    ]
    write_table(folder / RESULTS, [*LEADING, *names, *TRAILING], rows)
    points = [
        {**s["about"], "method": method, "position": position, "value": value}
        for s in stored
        for method, curve in s["curves"].items()
        for position, value in enumerate(curve)
    ]
    if points:
        write_table(folder / CURVES, [*LEADING, "seed", "position", "value"], points)
    return rows


def curves(folder: Path, experiment: str) -> list[tuple[str, str, int, list[float]]]:
    """Protocol, method, seed and numbers of every curve of an experiment."""
    stored = [s for s in map(_read, sorted((folder / "tasks").glob(f"{experiment}-*.json"))) if s is not None]
    return [
        (s["about"]["protocol"], method, s["about"]["seed"], curve)
        for s in stored
        for method, curve in s["curves"].items()
    ]


def _registered(task: Task, work: Path) -> Outcome:
    """What the registry runs for a task."""
    return load(task.experiment).run(task, work)


def _attempt(task: Task, folder: Path, run: Run) -> str:
    """Run one task and keep its result; the sentence of its failure, or nothing."""
    import torch

    torch.set_num_threads(1)
    if run is _registered:
        # A worker's first task would be charged for the imports.
        load(task.experiment)
    work = folder / "work" / f"{task.id}-{task.fingerprint or 'plain'}"
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        outcome = run(task, work)
    except Exception as error:
        path = folder / "failed" / f"{task.id}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        told = " ".join(str(error).split()) or "no reason was given"
        return f"{task.id} failed ({type(error).__name__}: {told}); {path} has the traceback."
    seconds = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    about = {"experiment": task.experiment, "protocol": task.protocol, "seed": task.seed, **machine(), **seconds}
    result = {
        "about": about,
        "task": task.method,
        "setting": task.columns,
        "fingerprint": task.fingerprint,
        "rows": outcome.rows,
        "curves": outcome.curves,
    }
    write_whole(folder / "tasks" / f"{task.id}.json", json.dumps(result, indent=1) + "\n")
    (folder / "failed" / f"{task.id}.txt").unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)
    return ""


def machine() -> dict[str, Any]:
    """What results depend on besides the code."""
    import torch

    import drolayers

    return {
        "version": drolayers.__version__,
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_whole(path: Path, text: str) -> None:
    """A file appears whole or not at all, whenever the process is killed."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    """A stored result; None where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) and {"about", "setting", "rows", "curves"} <= set(found) else None


def write_table(path: Path, header: Sequence[str], rows: Sequence[Row]) -> None:
    """A CSV file, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Environment in which every worker that starts uses one thread."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error; the estimate counts what was finished in this call only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    begun, count = time.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=console) as bar:
        line = bar.add_task("tasks", total=total, completed=done, left="")

        def advance() -> None:
            nonlocal count
            count += 1
            left = (time.monotonic() - begun) / count * (total - done - count)
            bar.update(line, advance=1, left=f"about {left / 60:.0f} min left")
            if not console.is_terminal and count % max(1, (total - done) // 50) == 0:
                # A log file has no bar: a line now and then.
                bar.console.print(f"{done + count} of {total} tasks, about {left / 60:.0f} min left")

        yield advance
