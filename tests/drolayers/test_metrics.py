"""Regret against enumeration and against those who know the outcomes."""

from __future__ import annotations

import warnings
from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest

import drolayers as dro
from drolayers import metrics


def test_regret_of_a_choice_of_two() -> None:
    y, x = dro.Uncertain(4), cp.Variable(4, boolean=True)
    problem = dro.DecisionProblem(cp.Maximize(y @ x), [cp.sum(x) == 2], dro.MomentSet.grouped(y, 1))
    rng = np.random.default_rng(0)
    Y = rng.uniform(1.0, 3.0, size=(20, 4))
    best = np.array([max(sum(row[list(pair)]) for pair in combinations(range(4), 2)) for row in Y])
    np.testing.assert_allclose(metrics.hindsight(problem, Y), -best, rtol=1e-9)
    taken = np.tile([1.0, 1.0, 0.0, 0.0], (20, 1))
    expected = (best - Y[:, :2].sum(1)).sum() / best.sum()
    assert metrics.regret(problem, {x: taken}, Y) == pytest.approx(expected, rel=1e-9)


def test_known_data_are_known_in_hindsight_too() -> None:
    y, x, stock = dro.Uncertain(2), cp.Variable(2, nonneg=True), cp.Parameter(2, nonneg=True, name="stock")
    problem = dro.DecisionProblem(
        cp.sum(x) + 3 * cp.sum(cp.pos(y - x - stock)), [], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    rng = np.random.default_rng(1)
    Y, S = rng.uniform(2.0, 3.0, size=(6, 2)), rng.uniform(0.0, 1.0, size=(6, 2))
    np.testing.assert_allclose(metrics.hindsight(problem, Y, {"stock": S}), (Y - S).sum(1), rtol=1e-7)
    assert metrics.regret(problem, {x: Y - S}, Y, {"stock": S}) == pytest.approx(0.0, abs=1e-7)


def test_regret_is_not_told_relative_to_nothing_and_not_where_a_decision_is_missing() -> None:
    """A newsvendor who knows demand, and is charged for its mistakes alone, pays nothing."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Y = np.random.default_rng(0).uniform(2.0, 3.0, size=(6, 2))
    with pytest.raises(dro.ModelError, match=r"Those who know the outcomes pay .* cannot be told"):
        metrics.regret(problem, {x: Y + 1.0}, Y)
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    some = np.full((6, 2), 0.5)
    some[2] = np.nan
    assert np.isnan(metrics.regret(problem, {x: some}, Y))
    # All costs are zero.
    assert metrics.regret(problem, {x: np.full((6, 2), 0.5)}, np.zeros((6, 2))) == 0.0


def test_outcomes_have_the_columns_of_y() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    for wrong in (np.ones((3, 1)), np.ones(3), np.ones((3, 3))):
        columns = wrong.shape[1] if wrong.ndim > 1 else 1
        with pytest.raises(dro.ShapeError, match=f"^Y must have 2 columns, not {columns}.$"):
            metrics.hindsight(problem, wrong)
        with pytest.raises(dro.ShapeError, match=f"^Y must have 2 columns, not {columns}.$"):
            metrics.regret(problem, {x: np.full((3, 2), 0.5)}, wrong)


def test_regret_says_where_what_must_always_hold_does_not() -> None:
    y, x = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(1, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x), [dro.always(x >= y)], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Y = np.array([[1.0], [2.0], [3.0], [10.0]])
    with pytest.warns(UserWarning, match="does not hold at 25% of the outcomes"):
        assert metrics.regret(problem, {x: np.full((4, 1), 4.0)}, Y) == pytest.approx(0.0, abs=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.regret(problem, {x: Y}, Y) == pytest.approx(0.0, abs=1e-7)
