"""Everything from one command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conelayers.errors import ModelError
from research.experiments.protocols import NAMES, PROTOCOLS
from research.experiments.registry import EXPERIMENTS, load
from research.experiments.runner import collect, run_tasks
from research.experiments.task import Row, Task


def plan(
    only: Sequence[str] = (), protocols: Sequence[str] = (), seeds: int | range = 10, quick: bool = False
) -> list[Task]:
    """The tasks of some experiments, in the order of the registry.

    Args:
        only: names of experiments; all unless given.
        protocols: all unless given.
        seeds: how many, or which.
        quick: one seed, small sizes, few epochs.
    """
    if unknown := sorted(set(only) - set(EXPERIMENTS)):
        raise ModelError(f"There is no experiment {unknown[0]!r}: choose from {sorted(EXPERIMENTS)}.")
    everything = {name for settings in PROTOCOLS.values() for name in settings}
    if unknown := sorted(set(protocols) - everything):
        raise ModelError(f"There is no protocol {unknown[0]!r}: choose from {sorted(everything)}.")
    chosen = [name for name in EXPERIMENTS if not only or name in only]
    number = range(1) if quick else seeds
    return [task for name in chosen for task in load(name).tasks(quick, number, tuple(protocols) or NAMES)]


def reproduce(tasks: Sequence[Task], folder: Path, jobs: int = 1) -> tuple[list[Row], list[str]]:
    """Run a plan and collect all results of the folder.

    Args:
        tasks: the plan.
        folder: of results; finished tasks in it are not run again.
        jobs: processes. Timings are taken last, one at a time.

    Returns:
        Tidy rows, and one sentence for every task that failed.
    """
    together = [task for task in tasks if not EXPERIMENTS[task.experiment].alone]
    alone = [task for task in tasks if EXPERIMENTS[task.experiment].alone]
    failures = run_tasks(together, folder, jobs) if together else []
    failures += run_tasks(alone, folder, 1) if alone else []
    return collect(folder), failures
