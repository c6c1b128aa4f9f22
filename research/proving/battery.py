"""The battery of Yeh et al.: calibrated sets on real prices, beside the published figures.

    python -m research prove battery --data path/to/battery.npz --jobs 2 --out runs/battery

Their protocol: prices standardised by all days, the last fifth of the days for the test, a fifth of the others for
calibration, ten draws of that; "no shift" permutes the days first, "shifted" keeps them in time. Methods that promise a
coverage of 1-α fit an :class:`drolayers.Outcomes` box or ellipsoid ("fitted"), train its shape on decisions of
calibrated sets ("trained"), and are calibrated on the days that nothing else sees. Those without a promise are the
library's own baselines: the loss is affine in the prices and nobody asks for less risk, so that the conditional mean is
all that one can use.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import drolayers as dro
from drolayers import baselines
from research.experiments.task import Outcome, Row, Task, row
from research.problems.battery import Battery, days, prices

SPLITS = ("no shift", "shifted")
ALPHAS = (0.01, 0.05, 0.1, 0.2)
SHAPES = ("box", "ellipsoid")
PLAIN = ("sample average", "mean prediction", "weighted sample average", "learner, default")
TAIL = 0.95
"""Level of the CVaR of the day's loss that is reported."""


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every method, split and level."""
    alphas = (0.1,) if quick else ALPHAS
    levels = [
        (f"{how} {shape}", (("split", split), ("alpha", alpha)))
        for split in SPLITS
        for alpha in alphas
        for shape in SHAPES
        for how in ("fitted", "trained")
    ]
    plain = [(name, (("split", split),)) for split in SPLITS for name in PLAIN]
    return [
        Task("battery", "published", name, setting, seed) for seed in range(seeds) for name, setting in plain + levels
    ]


def run(task: Task, work: Path, data: Path) -> Outcome:
    """One method on one draw."""
    warnings.simplefilter("ignore")
    X, Y, mean, deviation = prices(data)
    split = days(X, Y, task.columns["split"] == "shifted", task.seed)
    if task.method in PLAIN:
        # What is not used for a promise is used for training.
        Z, outcomes = (np.concatenate(parts) for parts in zip(split.training, split.calibration, strict=True))
        built = Battery(mean, deviation, lambda y: dro.MomentSet.grouped(y, 1))
        policy = _plain(task.method, built.problem, task.seed).fit(Z, outcomes)
        return Outcome(_judged(task.method, built, policy.decide(split.test[0]), split.test[1]))
    how, shape = task.method.split()
    kind: Any = shape
    built = Battery(mean, deviation, lambda y: dro.Outcomes(y, kind))
    level = 1.0 - float(task.columns["alpha"])
    learner = dro.DecisionFocusedLearner(
        built.problem,
        projection=None,
        training=dro.Stage(coverage=level) if how == "trained" else None,
        trainer=dro.Trainer(progress=False),
        seed=task.seed,
    )
    learner.fit(*split.training).calibrate(*split.calibration, coverage=level)
    rows = _judged(task.method, built, learner.decide(split.test[0]), split.test[1])
    return Outcome([*rows, row(task.method, "coverage", learner.coverage(*split.test).rate)])


def _plain(name: str, problem: dro.DecisionProblem, seed: int) -> Any:
    """A policy that promises nothing."""
    if name == "learner, default":
        return dro.DecisionFocusedLearner(problem, trainer=dro.Trainer(progress=False), seed=seed)
    kinds = {
        "sample average": baselines.SampleAverage,
        "mean prediction": baselines.MeanPrediction,
        "weighted sample average": baselines.WeightedSampleAverage,
    }
    return kinds[name](problem, seed=seed)


def _judged(name: str, built: Battery, decision: Any, Y: np.ndarray) -> list[Row]:
    """Mean loss and its tail on the test days."""
    chosen = {variable: torch.as_tensor(value) for variable, value in decision.items()}
    losses = np.sort(built.problem.loss(chosen, torch.as_tensor(Y)).numpy())
    worst = losses[int(np.ceil(TAIL * len(losses))) :]
    return [row(name, "loss", float(losses.mean())), row(name, f"CVaR {TAIL:g}", float(worst.mean()))]
