"""The experiments by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from conelayers.errors import ModelError
from research.experiments.task import Outcome, Task


class Module(Protocol):
    """What the file of an experiment offers."""

    def tasks(self, quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
        """What there is to run."""

    def run(self, task: Task, work: Path) -> Outcome:
        """Run one task; ``work`` is for checkpoints."""


@dataclass(frozen=True)
class Experiment:
    """A name for people, the file, and whether its tasks need the machine for themselves."""

    title: str
    module: str
    alone: bool = False


EXPERIMENTS = {
    "newsvendor": Experiment("Multi-item newsvendor (figure 3)", "newsvendor"),
    "portfolio": Experiment("Continuous portfolio (section 6.2.1, wealth curve)", "portfolio"),
    "mixed": Experiment("Mixed-integer portfolio (tables 1 and 2)", "mixed"),
    "robustness": Experiment("What robustness buys (ours)", "robustness"),
    "time": Experiment("Running time of one step (table 3)", "timing", alone=True),
}


def load(name: str) -> Module:
    """The file of an experiment."""
    if name not in EXPERIMENTS:
        raise ModelError(f"There is no experiment {name!r}: choose from {sorted(EXPERIMENTS)}.")
    return cast(Module, import_module(f"research.experiments.{EXPERIMENTS[name].module}"))
