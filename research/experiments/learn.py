"""Prediction- and decision-focused learning from one pre-training, as several experiments need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from drolayers.ambiguity.moment_set import MomentSet
from drolayers.layer import DROLayer
from drolayers.learning import DecisionFocusedLearner, Trainer
from drolayers.nominal import KNN
from drolayers.problem import DecisionProblem
from research.experiments.protocols import PROTOCOLS, Settings
from research.experiments.published import pretrained
from research.experiments.task import REFERENCE, Task, Value, fingerprint

Array = NDArray[np.float64]
Data = tuple[Array, Array]

PREDICTION, DECISION = "prediction-focused", "decision-focused"


class Policy(Protocol):
    """Whatever decides."""

    def decide(self, Z: Any) -> Mapping[cp.Variable, Any]:
        """Decisions for contexts, by CVXPY variable."""


def fit_both(
    problem: DecisionProblem, training: Data, validation: Data | None, settings: Settings, seed: int, work: Path
) -> dict[str, DecisionFocusedLearner]:
    """A prediction-focused learner, and a decision-focused one that goes on from it.

    Args:
        problem: the decision problem.
        training: contexts and outcomes.
        validation: those that decide which epoch is kept; a share of the training data where None.
        settings: of the protocol.
        seed: of everything random.
        work: for checkpoints, from which an interrupted run goes on.
    """
    Z, Y = training
    nominal = KNN(k=settings.k(len(Z)))
    trainer = Trainer(work / "sets", resume=True, progress=False, leave_one_out=settings.leave_one_out, budget=0.0)
    shared: dict[str, Any] = {"trainer": trainer, "nominal": nominal, "seed": seed, **settings.learner}
    if settings.layer:
        shared["layer"] = DROLayer(problem, seed=seed, **settings.layer)
    if settings.published is not None:
        assert isinstance(problem.ambiguity, MomentSet)
        fitted = KNN(k=nominal.k).fit(Z, Y)
        shared["model"] = pretrained(problem.ambiguity, fitted, Z, settings.published, seed)
    learners = {}
    for name in (PREDICTION, DECISION):
        learner = DecisionFocusedLearner(problem, **({**shared, "training": None} if name == PREDICTION else shared))
        learners[name] = learner.fit(Z, Y, validation=validation)
    return learners


def settings_of(task: Task) -> Settings:
    """What the task's protocol says; an experiment on several problems has settings for each."""
    problem = task.columns.get("problem")
    return PROTOCOLS[task.experiment if problem is None else f"{task.experiment}-{problem}"][task.protocol]


def known(name: str, quick: bool, protocols: Sequence[str]) -> list[str]:
    """The protocols that there are settings for."""
    wanted = ["quick"] if quick and "quick" in PROTOCOLS[name] else protocols
    return [protocol for protocol in wanted if protocol in PROTOCOLS[name]]


def trained(experiment: str, protocol: str, method: str, setting: tuple[tuple[str, Value], ...], seed: int) -> Task:
    """A task of a method with settings; its fingerprint is that of the settings which the method sees."""
    task = Task(experiment, protocol, method, setting, seed)
    settings = settings_of(task)
    seen = settings.baselines.get(method, replace(settings, baselines={}))
    return replace(task, fingerprint=fingerprint(seen))


def reference_protocol(quick: bool) -> str:
    """What is the same whatever the protocol, and so runs once."""
    return "quick" if quick else REFERENCE


def seed_range(seeds: int | range) -> range:
    """The seeds from their number."""
    return range(seeds) if isinstance(seeds, int) else seeds
