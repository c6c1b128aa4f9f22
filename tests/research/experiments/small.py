"""Tasks and outcomes that take no time."""

from __future__ import annotations

from pathlib import Path

from research.experiments.task import Outcome, Task, row


def some_tasks(count: int = 4, mark: str = "a") -> list[Task]:
    return [Task("toy", "strong", "sets", (("points", 10 * k),), k, mark) for k in range(count)]


def square(task: Task, work: Path) -> Outcome:
    """A run that leaves a checkpoint behind, as a training does."""
    work.mkdir(parents=True)
    (work / "last.ckpt").write_text("half done")
    return Outcome([row("decision-focused", "score", float(task.seed**2))], {"decision-focused": [1.0, 2.0]})


def fails_at_two(task: Task, work: Path) -> Outcome:
    found = square(task, work)
    if task.seed == 2:
        raise ValueError("nothing\nworks")
    return found
