"""What training keeps of the insurance: mean against tail of several objectives, with and without a shift.

    python -m research prove frontier --jobs 2 --out runs/frontier

Problems and shifts are those of the robustness experiment (``research/experiments/robustness.py``), learnt from 100 and
250 points with its settings. "fitted set" stops after the first training, "no set" trains points on decisions; the
others train sets on an objective: the mean, the CVaR of the realised cost, the worst shift of a batch, or the
worst-case quantile at two levels. Figures are the mean and the 95 % CVaR of the loss on a large test sample, drawn in
``frontier.svg``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from drolayers import baselines
from drolayers.learning import DecisionFocusedLearner, Trainer
from drolayers.learning.objectives import CVaR, Shift, WorstCaseQuantile
from drolayers.nominal import KNN
from research.experiments.protocols import PROTOCOLS
from research.experiments.robustness import PROBLEMS, TEST, judged, made
from research.experiments.task import Outcome, Row, Task

POINTS = (100, 250)
FITTED, NO_SET = "fitted set", "no set"
OBJECTIVES: dict[str, Any] = {
    "mean": "mean",
    "CVaR 0.8": CVaR(0.8),
    "shift 0.5": Shift(0.5),
    "worst-case quantile 0.5": WorstCaseQuantile(0.5),
    "worst-case quantile 0.8": WorstCaseQuantile(0.8),
}


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every objective on every problem, number of points and draw."""
    return [
        Task("frontier", "strong", name, (("problem", problem), ("points", points)), seed)
        for seed in range(seeds)
        for problem in PROBLEMS
        for points in (POINTS[:1] if quick else POINTS)
        for name in (*OBJECTIVES, FITTED, NO_SET)
    ]


def run(task: Task, work: Path) -> Outcome:
    """One objective on one draw."""
    warnings.simplefilter("ignore")
    problem, points = str(task.columns["problem"]), int(task.columns["points"])
    built, training, contexts, losses, _ = made(problem)(points, task.seed, TEST, None)
    settings = PROTOCOLS[f"robustness-{problem}"]["strong"]
    trainer = Trainer(progress=False, budget=0.0)
    if task.method == NO_SET:
        policy: Any = baselines.NoSet(built.problem, seed=task.seed, trainer=trainer, **settings.baselines["no-set"])
    else:
        shared = {"nominal": KNN(k=settings.k(points)), "trainer": trainer, "seed": task.seed, **settings.learner}
        chosen = {"training": None} if task.method == FITTED else {"objective": OBJECTIVES[task.method]}
        policy = DecisionFocusedLearner(built.problem, **{**shared, **chosen})
    return Outcome(judged(task.method, policy.fit(*training).decide(contexts), losses))


def picture(rows: Sequence[Row], folder: Path) -> None:
    """Mean without a shift against the tail without and with each, as ``frontier.svg``."""
    from matplotlib.figure import Figure

    problems, shifts = (list(dict.fromkeys(str(r[name]) for r in rows)) for name in ("problem", "shift"))
    shifts.sort(key=lambda shift: shift != "none")
    figure = Figure((4.5 * len(shifts), 4.0 * len(problems)), layout="constrained")
    panels = [(problem, shift) for problem in problems for shift in shifts]
    for axes, (problem, shift) in zip(
        figure.subplots(len(problems), len(shifts), squeeze=False).flat, panels, strict=True
    ):
        own = [r for r in rows if r["problem"] == problem and int(r["points"]) == POINTS[0]]
        for name in (*OBJECTIVES, FITTED, NO_SET):
            mean, tail = (
                [float(r["value"]) for r in own if (r["method"], r["metric"], r["shift"]) == (name, metric, where)]
                for metric, where in (("mean", shifts[0]), ("cvar95", shift))
            )
            if mean and tail:
                (x, wide), (y, high) = _centre(mean), _centre(tail)
                axes.errorbar(x, y, xerr=wide, yerr=high, fmt="o", capsize=2, label=name)
        axes.set(title=f"{problem}, test data: {shift}", xlabel="mean cost, no shift", ylabel="95 % CVaR of the cost")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(folder / "frontier.svg")


def _centre(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error."""
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
