"""What the benchmarks of Yeh et al. share: sets that promise a coverage, beside policies that promise nothing.

Methods that promise a coverage of 1-α fit an :class:`drolayers.Outcomes` box or ellipsoid ("fitted"), train its shape
on decisions of calibrated sets ("trained"), and are calibrated on points that nothing else sees. Those without a
promise are the library's own baselines: the losses are affine in what is uncertain and nobody asks for less risk, so
that the conditional mean is all that one can use. Where the tail of the loss is the goal, the ones named after the CVaR
are trained on it.

Sets of one shape are fitted once a draw, and kept beside the results: every level is calibrated from there, and every
training begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import drolayers as dro
from conelayers.checks import directory
from drolayers import baselines
from research.experiments.task import Outcome, Row, Task, Value, row
from research.problems.split import Split

ALPHAS = (0.01, 0.05, 0.1, 0.2)
SHAPES = ("box", "ellipsoid")
LEARNER, CAREFUL, FITTED = "learner, default", "learner, CVaR", "prediction-focused"
OWN = ("sample average", "mean prediction", "weighted sample average", FITTED)
"""The learner's own baselines: it is counted against the best of them, too."""
PLAIN = (*OWN, LEARNER, CAREFUL)
TAIL = 0.95
"""Level of the CVaR of the loss that is reported, and that the methods named after it are trained on."""
INSURED, INSURED_ALPHA = "trained ellipsoid, CVaR", 0.1
EPOCHS = 16
"""Of calibrated training: losses on validation data are flat from the tenth on."""

Setting = tuple[tuple[str, Value], ...]
Build = Callable[[Callable[[dro.Uncertain], Any]], dro.DecisionProblem]


def tasks(name: str, settings: Sequence[Setting], seeds: int, quick: bool) -> list[Task]:
    """Every method, setting and level."""
    levels = [
        (f"{how} {shape}", (*setting, ("alpha", alpha)))
        for setting in settings
        for alpha in ((0.1,) if quick else ALPHAS)
        for shape in SHAPES
        for how in ("fitted", "trained")
    ]
    levels += [(INSURED, (*setting, ("alpha", INSURED_ALPHA))) for setting in settings]
    plain = [(method, setting) for setting in settings for method in PLAIN]
    return [
        Task(name, "published", method, setting, seed) for seed in range(seeds) for method, setting in plain + levels
    ]


def run(task: Task, build: Build, split: Split, store: Path) -> Outcome:
    """One method on one draw; sets that were fitted are kept in a folder."""
    Z_test, Y_test = split.test
    if task.method in PLAIN:
        # What is not used for a promise is used for training.
        Z, outcomes = (np.concatenate(parts) for parts in zip(split.training, split.calibration, strict=True))
        problem = build(lambda y: dro.MomentSet.grouped(y, 1))
        policy = _plain(task.method, problem, task.seed).fit(Z, outcomes)
        return Outcome(judged(task.method, realised(problem, policy.decide(Z_test), Y_test)))
    objective: Any = dro.objectives.CVaR(TAIL) if task.method == INSURED else "mean"
    how, shape = task.method.removesuffix(", CVaR").split()
    kind: Any = shape
    problem, level = build(lambda y: dro.Outcomes(y, kind)), 1.0 - float(task.columns["alpha"])
    quiet: dict[str, Any] = {"projection": None, "trainer": dro.Trainer(progress=False), "seed": task.seed}
    place = store / ("-".join([shape, *(str(v) for n, v in task.setting if n != "alpha"), str(task.seed)]) + ".fit")
    if place.exists():
        learner = dro.DecisionFocusedLearner.load(place, problem)
    else:
        learner = dro.DecisionFocusedLearner(problem, training=None, **quiet).fit(*split.training)
        learner.save(directory(store) / place.name)
    if how == "trained":
        stage, begun = dro.Stage(EPOCHS, coverage=level), learner.pipeline_.model
        learner = dro.DecisionFocusedLearner(
            problem, begun, pretraining=None, training=stage, objective=objective, **quiet
        ).fit(*split.training)
    learner.calibrate(*split.calibration, coverage=level)
    rows = judged(task.method, realised(problem, learner.decide(Z_test), Y_test))
    return Outcome([*rows, row(task.method, "coverage", learner.coverage(*split.test).rate)])


def _plain(name: str, problem: dro.DecisionProblem, seed: int) -> Any:
    """A policy that promises nothing."""
    if name in (LEARNER, CAREFUL, FITTED):
        settings: dict[str, Any] = {
            CAREFUL: {"objective": dro.objectives.CVaR(TAIL)},
            FITTED: {"training": None},
        }.get(name, {})
        return dro.DecisionFocusedLearner(problem, **settings, trainer=dro.Trainer(progress=False), seed=seed)
    kinds = {
        "sample average": baselines.SampleAverage,
        "mean prediction": baselines.MeanPrediction,
        "weighted sample average": baselines.WeightedSampleAverage,
    }
    return kinds[name](problem, seed=seed)


def realised(problem: dro.DecisionProblem, decision: Any, Y: np.ndarray) -> np.ndarray:
    """Losses of decisions, point by point."""
    chosen = {variable: torch.as_tensor(value) for variable, value in decision.items()}
    return problem.loss(chosen, torch.as_tensor(Y)).numpy()


def judged(name: str, losses: np.ndarray) -> list[Row]:
    """Mean loss and its tail on the test points."""
    worst = np.sort(losses)[int(np.ceil(TAIL * len(losses))) :]
    return [row(name, "loss", losses.mean()), row(name, f"CVaR {TAIL:g}", worst.mean())]
