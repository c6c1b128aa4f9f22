"""Problems and data small enough to train on in a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import drolayers as dro


@dataclass(frozen=True)
class Shop:
    """Two items, each bought in any amount or, where there are lots, in a lot of two."""

    problem: dro.DecisionProblem
    retail: cp.Variable
    lots: cp.Variable | None


def shop(lots: bool = True, ambiguity: str = "square") -> Shop:
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    retail = cp.Variable(2, nonneg=True, name="retail")
    boxes = cp.Variable(2, boolean=True, name="lots") if lots else None
    stock = retail if boxes is None else retail + 2.0 * boxes
    paid = cp.sum(retail) if boxes is None else cp.sum(retail) + 1.8 * cp.sum(boxes)
    cost = paid + cp.sum(cp.maximum(4.0 * (y - stock), stock - y))
    sets: dict[str, Any] = {
        "square": lambda: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
        "linear": lambda: dro.MomentSet(y, [dro.moments.SquaredNorm(), dro.moments.Linear()]),
        "ball": lambda: dro.Wasserstein(y, 5),
    }
    return Shop(dro.DecisionProblem(cost, [], sets[ambiguity]()), retail, boxes)


def sales(count: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (count, 2) and outcomes (count, 2)."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(size=(count, 2))
    return Z, 2.0 + Z + 0.3 * np.abs(rng.standard_normal((count, 2)))


def learner(problem: dro.DecisionProblem, **settings: Any) -> dro.DecisionFocusedLearner:
    """A quick one."""
    parts: dict[str, Any] = {
        "model": dro.Network(hidden=(8,)),
        "nominal": None if problem.ambiguity.needs_nominal else dro.nominal.KNN(k=5),
        "pretraining": dro.Stage(epochs=2, rate=1e-2, batch_size=10),
        "training": dro.Stage(epochs=2, batch_size=10),
        "trainer": dro.Trainer(progress=False, budget=0.0),
    }
    changes: dict[str, dict[str, Any]] = {}
    for name in [name for name in settings if "__" in name]:
        part, _, key = name.partition("__")
        changes.setdefault(part, {})[key] = settings.pop(name)
    parts |= {part: parts[part].but(**changed) for part, changed in changes.items()}
    return dro.DecisionFocusedLearner(problem, **{**parts, **settings})


def assert_learnt(problem: dro.DecisionProblem, Z: Any, Y: Any, given: Sequence[str] = (), **settings: Any) -> None:
    """Parameters, but for those that the projection gives, move in the second training, and its loss falls.

    The loss is that of training epochs, with exact gradients: for problems without integers, whose loss has no
    temperature.
    """
    start = learner(problem, training__epochs=0, **settings).fit(Z, Y).predict_set(Z)
    settings = {"training__epochs": 6, "training__rate": 1e-2, "training__gradient": "exact", **settings}
    found = learner(problem, **settings).fit(Z, Y)
    for name, value in found.predict_set(Z).items():
        if name in given:
            continue
        moved = np.abs(np.asarray(value) - np.asarray(start[name])).max()
        assert moved > 1e-3 * np.abs(np.asarray(start[name])).max(), f"{name} has not moved"
    losses = [row["decision_loss"] for row in found.history_["decision"]]
    assert losses[-1] < losses[0], "the loss has not fallen"


def bets(ambiguity: Callable[[dro.Uncertain], Any]) -> tuple[dro.DecisionProblem, np.ndarray, np.ndarray]:
    """Two assets, of which the better one is riskier: the size of the set says how much goes where, smoothly."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], ambiguity(y))
    rng = np.random.default_rng(1)
    return problem, rng.uniform(size=(60, 1)), np.array([0.4, 0.1]) + np.array([1.0, 0.5]) * rng.normal(size=(60, 2))


def weights(learnt: dro.DecisionFocusedLearner) -> np.ndarray:
    """All weights of the model, flat."""
    return np.concatenate([p.detach().numpy().ravel() for p in learnt.pipeline_.model.parameters()])
