"""Table 3: wall time of one training step, stage by stage, for a batch of 100 and T = S = 1.

The paper's stages: the learning layer, the projection layer, the integer search, the DRO layer, and the backward pass
through all of them. Its seconds are from its own machine, so the ratio says what a user gains, not what a line of code
does; peers that run on the same machine are in the benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drolayers.learning.pipeline import STAGES
from research.experiments.learn import known, seed_range, settings_of, trained
from research.experiments.step import Step
from research.experiments.task import Outcome, Task, row

__all__ = ["ASSETS", "PAPER", "STAGES", "run", "tasks"]

ASSETS = (100, 200, 400, 800)
PAPER = {
    100: (0.001, 16.5, 8.4, 1.2, 9.8),
    200: (0.001, 19.6, 12.8, 1.4, 13.1),
    400: (0.001, 44.0, 24.1, 5.8, 90.5),
    800: (0.001, 82.9, 47.6, 15.3, 358.7),
}
"""Seconds by number of assets; the learning layer is given as below a millisecond."""
STEPS = 5


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Every number of assets, whatever the protocol: three runs at most."""
    runs = seed_range(seeds)[:3]
    return [
        trained("time", protocol, "sets", (("assets", assets),), seed)
        for protocol in known("time", quick, ("paper",))
        for assets in (ASSETS[:2] if quick else ASSETS)
        for seed in runs
    ]


def run(task: Task, work: Path) -> Outcome:
    """The median of every stage over a few steps."""
    settings = settings_of(task)
    step = Step(
        int(task.columns["assets"]),
        batch=settings.learner["training"].batch_size,
        candidates=int(settings.layer["candidates"]),
        samples=int(settings.layer["samples"]),
        seed=task.seed,
    )
    found = step.measure(STEPS)
    rows = [row("drolayers", name, value) for name, value in found.seconds.items()]
    return Outcome([*rows, row("drolayers", "all", found.total)])
