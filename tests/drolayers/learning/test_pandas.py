"""Rows of pandas objects are paired by position, so that their labels must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import torch

import drolayers as dro
from tests.drolayers.learning.small import learner, sales, shop

DAYS = pd.date_range("2026-01-01", periods=30)
PROBLEM = shop(False).problem


def frames(index: Any = DAYS) -> tuple[pd.DataFrame, pd.DataFrame]:
    Z, Y = sales(30)
    return pd.DataFrame(Z, index=index, columns=["a", "b"]), pd.DataFrame(Y, index=index, columns=["p", "q"])


@pytest.fixture(scope="module")
def fitted() -> dro.DecisionFocusedLearner:
    return learner(PROBLEM).fit(*frames())


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fit": lambda model, Z, Y: learner(PROBLEM).fit(Z, Y),
    "validation": lambda model, Z, Y: learner(PROBLEM).fit(*sales(30), validation=(Z, Y)),
    "score": lambda model, Z, Y: model.score(Z, Y),
    "loss": lambda model, Z, Y: model.loss(Z, Y),
    "costs": lambda model, Z, Y: model.costs(Z, Y),
    "report": lambda model, Z, Y: model.report(Z, Y),
    "coverage": lambda model, Z, Y: model.coverage(Z, Y),
    "disappointment": lambda model, Z, Y: model.disappointment(Z, Y),
    "violations": lambda model, Z, Y: model.violations(Z, Y),
    "calibrate": lambda model, Z, Y: model.calibrate(Z, Y, coverage=0.5),
    "nominal": lambda model, Z, Y: dro.nominal.KNN(k=3).fit(Z, Y),
    "baseline": lambda model, Z, Y: dro.baselines.SampleAverage(PROBLEM).fit(Z, Y),
    "score of a baseline": lambda model, Z, Y: dro.baselines.SampleAverage(PROBLEM).fit(*frames()).score(Z, Y),
    "choose": lambda model, Z, Y: dro.choose(dro.baselines.SampleAverage(PROBLEM), Z, Y),
}


@pytest.mark.parametrize("use", USES)
def test_the_same_labels_in_another_order_are_refused(use: str, fitted: dro.DecisionFocusedLearner) -> None:
    Z, Y = frames()
    with pytest.raises(
        dro.ShapeError, match=r"Z and (validation |calibration )?Y have the same index in another order"
    ):
        USES[use](fitted, Z, Y.iloc[::-1])


@pytest.mark.parametrize("use", ["fit", "score", "nominal", "baseline"])
def test_other_labels_are_refused_and_the_first_is_named(use: str, fitted: dro.DecisionFocusedLearner) -> None:
    Z, Y = frames()
    with pytest.raises(dro.ShapeError, match=r"different indexes, first in row 0: .*2026-01-01.*2026-02-10.*to_numpy"):
        USES[use](fitted, Z, Y.set_axis(DAYS + pd.Timedelta(days=40)))
    late = DAYS[:-1].append(pd.DatetimeIndex(["2027-01-01"]))
    with pytest.raises(dro.ShapeError, match="first in row 29"):
        USES[use](fitted, Z, Y.set_axis(late))


@pytest.mark.parametrize(
    "change",
    [
        lambda Z, Y: (Z, Y),
        lambda Z, Y: (Z.reset_index(drop=True), Y.reset_index(drop=True)),
        lambda Z, Y: (Z.iloc[::-1], Y.iloc[::-1]),
        lambda Z, Y: (Z.to_numpy(), Y.iloc[::-1]),
        lambda Z, Y: (Z, torch.tensor(Y.to_numpy().tolist())),
        lambda Z, Y: (Z, Y.to_numpy().tolist()),
        # Labels may occur twice, as those of groups do.
        lambda Z, Y: (Z.set_axis([0] * 15 + [1] * 15), Y.set_axis([0] * 15 + [1] * 15)),
        lambda Z, Y: (Z.reset_index(drop=True), Y.set_axis(np.arange(30.0))),
    ],
)
def test_equal_labels_and_arrays_are_accepted(change: Any, fitted: dro.DecisionFocusedLearner) -> None:
    assert np.isfinite(fitted.loss(*change(*frames())))


def test_known_data_have_the_labels_of_the_contexts() -> None:
    y, x, stock = dro.Uncertain(2), cp.Variable(2, nonneg=True), cp.Parameter(2, name="stock", nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x - stock), x + stock - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Z, Y = frames()
    known = pd.DataFrame(np.ones((30, 2)), index=DAYS, columns=["stock_1", "stock_2"])
    average = dro.baselines.SampleAverage(problem).fit(Z, Y, known=known)
    model = learner(problem).fit(Z, Y, known=known)
    for policy in (average, model):
        for ask in (policy.decide, policy.predict):
            with pytest.raises(dro.ShapeError, match="Z and known have the same index in another order"):
                ask(Z, known=known.iloc[::-1])
    with pytest.raises(dro.ShapeError, match=r"Z and known\['stock'\] have the same index in another order"):
        model.decision(Z, {"stock": known.iloc[::-1]})
    for ask in (dro.metrics.hindsight, lambda *args: dro.metrics.regret(args[0], average.decide(Z, known), *args[1:])):
        with pytest.raises(dro.ShapeError, match="Y and known have the same index in another order"):
            ask(problem, Y, known.iloc[::-1])
