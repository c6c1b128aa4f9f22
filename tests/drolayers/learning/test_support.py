"""Outcomes outside of the support of y are refused by whatever learns from them, and reported where they are scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import drolayers as dro
from tests.drolayers.learning.small import learner, sales, shop

PROBLEM = shop(False).problem


def spoilt(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of which a quarter are negative in their second coordinate."""
    Z, Y = sales(count, seed)
    Y[3::4, 1] = -0.5
    return Z, Y


LEARNS: dict[str, Callable[[], Any]] = {
    "fit": lambda: learner(PROBLEM).fit(*spoilt()),
    "validation": lambda: learner(PROBLEM).fit(*sales(), validation=spoilt()),
    "calibration": lambda: learner(PROBLEM).fit(*sales()).calibrate(*spoilt(), coverage=0.5),
    "sample average": lambda: dro.baselines.SampleAverage(PROBLEM).fit(*spoilt()),
    "weighted": lambda: dro.baselines.WeightedSampleAverage(PROBLEM).fit(*spoilt()),
    "mean": lambda: dro.baselines.MeanPrediction(PROBLEM, epochs=1).fit(*spoilt()),
    "point": lambda: dro.baselines.NoSet(PROBLEM).fit(*spoilt()),
    "choose": lambda: dro.choose(dro.baselines.SampleAverage(PROBLEM), *spoilt()),
}


@pytest.mark.parametrize("name", LEARNS)
def test_outcomes_outside_of_the_support_are_refused(name: str) -> None:
    with pytest.raises(
        dro.ModelError,
        match=r"10 of 40 .*outcomes \(25%\) lie outside of the support Nonnegative\(\) of y.* rows \[3, 7, .*"
        r"y\[1\] = -0.5 in row 3.*clip",
    ):
        LEARNS[name]()


def test_rounding_is_allowed_relative_to_outcomes() -> None:
    Z, Y = sales()
    Y[0, 0] = -1e-9
    learner(PROBLEM).fit(1e-6 * Z, Y)
    learner(PROBLEM).fit(Z, 1e6 * Y)
    with pytest.raises(dro.ModelError, match="1 of 24 outcomes"):
        learner(PROBLEM).fit(Z, np.where(Y < 0, -1e-3, Y))


def test_costs_outside_of_the_support_are_computed_and_reported() -> None:
    for policy in (learner(PROBLEM).fit(*sales()), dro.baselines.SampleAverage(PROBLEM).fit(*sales())):
        with pytest.warns(UserWarning, match=r"10 of 40 outcomes .*: the worst case does not bound their costs"):
            score = policy.score(*spoilt())
        assert np.isfinite(score)
    model = learner(PROBLEM).fit(*sales())
    for ask in (model.loss, model.report, model.costs, model.disappointment):
        with pytest.warns(UserWarning, match="lie outside of the support"):
            ask(*spoilt())


def test_ends_that_are_known_data_are_those_of_each_row() -> None:
    top = cp.Parameter(nonneg=True, name="top")
    y, x = dro.Uncertain(1, support=dro.support.Box(0.0, top)), cp.Variable(1, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Z = np.linspace(0.0, 1.0, 30)[:, None]
    Y = 1.0 + Z
    learner(problem).fit(Z, Y, known={"top": 1.5 + Z[:, 0]})
    with pytest.raises(dro.ModelError, match=r"15 of 30 outcomes \(50%\).*y\[0\] = 1.5"):
        learner(problem).fit(Z, Y, known={"top": np.full(30, 1.5)})


def test_supports_without_columns_show_the_outcome() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Ellipsoid([3.0, 3.0], np.eye(2))), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Z, Y = sales()
    Y[:] = 3.0
    Y[2, 0] = 9.0
    with pytest.raises(dro.ModelError, match=r"1 of 24 .* y = \[9, 3\] in row 2"):
        learner(problem).fit(Z, Y)


def test_a_cost_without_y_is_refused() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    with pytest.raises(dro.ModelError, match=r"Neither the cost nor a constraint uses the uncertain y"):
        dro.DecisionProblem(cp.sum(x), [cp.sum(x) >= 1], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    other = dro.Uncertain(2)
    with pytest.raises(dro.ModelError):
        dro.DecisionProblem(other @ x, [cp.sum(x) == 1], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    # Constraints with worst cases, and decisions that adapt to y, use it too.
    dro.DecisionProblem(cp.sum(x), [dro.expected(cp.sum(y - x)) <= 0], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
