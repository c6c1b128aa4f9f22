"""Outcomes, contexts and costs times 10^k: the learner learns the same decisions."""

from __future__ import annotations

from functools import cache

import cvxpy as cp
import numpy as np
import pytest

import drolayers as dro
from tests.drolayers.learning.small import learner, sales

m = dro.moments
SETS = {
    "square": lambda y, u: dro.MomentSet(y, [m.SquaredNorm()]),
    "fourth power": lambda y, u: dro.MomentSet(y, [m.AbsolutePower(4, mu=[1.0, 0.0]), m.SquaredNorm()]),
    "square plus absolute": lambda y, u: dro.MomentSet(y, [m.SquaredNorm() + u * m.Norm(1)]),
    # Four atoms: the best order is their 0.6-quantile, and of five it would not be unique.
    "ball": lambda y, u: dro.Wasserstein(y, 4),
}


def shop(kind: str, lots: bool, outcomes: float, cost: float) -> tuple[dro.DecisionProblem, cp.Variable]:
    """The shop of the other tests; outcomes and orders in one unit, the bill in another."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    retail = cp.Variable(2, nonneg=True)
    boxes = cp.Variable(2, boolean=True) if lots else np.zeros(2)
    stock = retail + 2.0 * outcomes * boxes
    paid = cp.sum(retail) + 1.8 * outcomes * cp.sum(boxes)
    bill = paid + cp.sum(cp.maximum(4.0 * (y - stock), stock - y))
    return dro.DecisionProblem(cost / outcomes * bill, [], SETS[kind](y, outcomes)), retail


@cache
def learnt(
    kind: str, lots: bool, contexts: float = 1.0, outcomes: float = 1.0, cost: float = 1.0
) -> tuple[np.ndarray, float]:
    """Decisions and loss on the training data, in units of one."""
    Z, Y = sales(20)
    problem, retail = shop(kind, lots, outcomes, cost)
    model = learner(problem, training__epochs=3, pretraining__epochs=3, training__rate=2e-2).fit(
        contexts * Z, outcomes * Y
    )
    decision = model.decide(contexts * Z)[retail] / outcomes
    return decision, model.loss(contexts * Z, outcomes * Y) / cost


def assert_learns_the_same(kind: str, lots: bool, **units: float) -> None:
    expected, found = learnt(kind, lots), learnt(kind, lots, **units)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-3, atol=2e-3)
    assert found[1] == pytest.approx(expected[1], rel=1e-3)


@pytest.mark.parametrize(
    ("unit", "k"),
    [*((unit, k) for unit in ("outcomes", "cost") for k in (-8, -4, 4, 8)), ("contexts", -8), ("contexts", 8)],
)
def test_learning_in_other_units(unit: str, k: int) -> None:
    assert_learns_the_same("square", False, **{unit: 10.0**k})


@pytest.mark.parametrize(("kind", "lots"), [("square", True), ("fourth power", False), ("square plus absolute", False)])
@pytest.mark.parametrize("k", [-8, 8])
def test_learning_other_sets_in_other_units(kind: str, lots: bool, k: int) -> None:
    assert_learns_the_same(kind, lots, outcomes=10.0**k, cost=10.0**k)


@pytest.mark.parametrize("k", [-8, 8])
def test_learning_a_radius_in_other_units(k: int) -> None:
    assert_learns_the_same("ball", False, outcomes=10.0**k)


def test_training_matters() -> None:
    """Decisions after training differ from those before by far more than units are allowed to."""
    Z, Y = sales(20)
    problem, retail = shop("square", False, 1.0, 1.0)
    before = (
        learner(problem, training__epochs=1, pretraining__epochs=1, training__rate=1e-9, pretraining__rate=1e-9)
        .fit(Z, Y)
        .decide(Z)[retail]
    )
    assert np.abs(learnt("square", False)[0] - before).max() > 0.05
