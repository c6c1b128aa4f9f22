"""Prediction- and decision-focused learning from one pre-training, as several experiments need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from drolayers.ambiguity.moment_set import MomentSet
from drolayers.experiments.protocols import PROTOCOLS, Settings
from drolayers.experiments.published import pretrained
from drolayers.experiments.task import REFERENCE, Task, fingerprint
from drolayers.learning import DecisionFocusedLearner
from drolayers.nominal import KNN
from drolayers.problem import DecisionProblem

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
    shared = {"directory": work / "sets", "resume": True, "progress": False, "nominal": nominal, "seed": seed}
    if settings.published is not None:
        assert isinstance(problem.ambiguity, MomentSet)
        fitted = KNN(k=nominal.k).fit(Z, Y)
        shared["model"] = pretrained(problem.ambiguity, fitted, Z, settings.published, seed)
    learners = {}
    for strategy, name in (("prediction", PREDICTION), ("decision", DECISION)):
        learner = DecisionFocusedLearner(problem, strategy=strategy, **shared, **settings.learner)  # type: ignore[arg-type]
        learners[name] = learner.fit(Z, Y, validation=validation)
    return learners


def settings_of(task: Task) -> Settings:
    """What the task's protocol says."""
    return PROTOCOLS[task.experiment][task.protocol]


def known(experiment: str, quick: bool, protocols: Sequence[str]) -> dict[str, str]:
    """The protocols that an experiment runs, with the fingerprints of their settings."""
    wanted = ["quick"] if quick and "quick" in PROTOCOLS[experiment] else protocols
    return {name: fingerprint(PROTOCOLS[experiment][name]) for name in wanted if name in PROTOCOLS[experiment]}


def reference_protocol(quick: bool) -> str:
    """What is the same whatever the protocol, and so runs once."""
    return "quick" if quick else REFERENCE


def seed_range(seeds: int | range) -> range:
    """The seeds from their number."""
    return range(seeds) if isinstance(seeds, int) else seeds
