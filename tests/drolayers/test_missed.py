"""What data say of constraints: an excess counts beside the terms of its own row at its own point."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro


def numbers(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def moments(y: dro.Uncertain) -> dro.MomentSet:
    return dro.MomentSet(y, [dro.moments.SquaredNorm()])


def share(problem: dro.DecisionProblem, x: dict[cp.Variable, Tensor], outcomes: Tensor) -> float:
    (found,) = problem.missed(x, outcomes).values()
    return float(found)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e7])
@pytest.mark.parametrize("kind", ["chance", "always"])
def test_a_row_is_not_judged_by_the_size_of_others(kind: str, unit: float) -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    rows = cp.hstack([y[0] - 1e7 * x[0], unit * (y[1] - x[1])]) <= 0
    rule = dro.chance(rows, 0.9) if kind == "chance" else dro.always(rows)
    problem = dro.DecisionProblem(cp.sum(x), [rule], moments(y))
    outcomes = numbers([1e3, 1.0], [2e3, 2.0], [1e3, 3.0], [1e3, 4.0])
    assert share(problem, {x: numbers([1.0, 0.0]).expand(4, 2)}, outcomes) == 1.0
    assert share(problem, {x: numbers([1.0, 2.0]).expand(4, 2)}, outcomes) == 0.5


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_what_a_solver_leaves_of_a_binding_row_is_none(unit: float) -> None:
    """In any unit of outcomes and decisions; and a thousandth of a percent is some."""
    y, x = dro.Uncertain(1, support=dro.support.Box(0.0, 5.0 * unit)), cp.Variable(1, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x), [dro.always(x >= y)], moments(y))
    decision = dro.DROLayer(problem)(numbers([2.0 * unit, unit**2]))
    assert share(problem, decision.best, numbers([5.0 * unit])) == 0.0
    assert share(problem, {x: numbers([5.0 * unit * (1 - 1e-5)])}, numbers([5.0 * unit])) == 1.0


def test_equations_from_both_sides() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(cp.sum(x), [dro.always(cp.sum(x) == cp.sum(y))], moments(y))
    outcomes = numbers([1e5, -1e5]).expand(3, 2)
    # Beside terms of 1e5, which cancel.
    off = torch.tensor([0.0, 1e-3, -1e-3], dtype=torch.float64)
    assert share(problem, {x: torch.stack([off, torch.zeros(3)], -1)}, outcomes) == 0.0
    assert share(problem, {x: torch.stack([1e3 * off, torch.zeros(3)], -1)}, outcomes) == pytest.approx(2 / 3)


def test_an_answerless_second_stage_excuses_no_other_point() -> None:
    y, x, v = dro.Uncertain(1), cp.Variable(1, nonneg=True), cp.Variable(1, nonneg=True)
    stage = dro.recourse(cp.Minimize(3 * cp.sum(v)), [v >= y - x, v <= 1])
    problem = dro.DecisionProblem(cp.sum(x), [dro.chance(stage <= 2, 0.9)], moments(y))
    outcomes = numbers([1.8], [1.9], [1.95], [5.0], [1.5])
    assert share(problem, {x: torch.ones(5, 1, dtype=torch.float64)}, outcomes) == pytest.approx(0.8)


def test_what_is_not_known_has_not_held() -> None:
    y, x, least = dro.Uncertain(1), cp.Variable(1), cp.Parameter(nonneg=True, name="least")
    problem = dro.DecisionProblem(cp.sum(x), [dro.chance(y + least <= x, 0.9)], moments(y))
    (found,) = problem.missed({x: numbers([9.0], [9.0])}, numbers([1.0], [1.0]), {"least": numbers(1.0, -1.0)}).values()
    assert bool(found.isnan())


def test_rules_that_cancel_are_rounding() -> None:
    """A rule that says nothing at an outcome is made of terms that are as large as what it responds to."""
    y = dro.Uncertain(1, support=dro.support.Box(0.0, 5.0))
    s = dro.Adaptive(1, to=y, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(s), [dro.always(s >= 5 - y)], moments(y))
    decision = problem.decision(problem.solve(numbers([2.0, 1.0])).primal)
    (rule,) = problem.coefficients
    decision[rule] = numbers([5.0 - 1e-9, -1.0, *[0.0] * (rule.size - 2)])
    assert [float(v) for v in problem.missed(decision, numbers([5.0])).values()] == [0.0, 0.0]
    decision[rule] = numbers([5.0 - 1e-4, -1.0, *[0.0] * (rule.size - 2)])
    assert [float(v) for v in problem.missed(decision, numbers([5.0])).values()] == [1.0, 1.0]


def test_an_equation_that_a_layer_holds_does_not_choose_the_epoch() -> None:
    """Training must not tell a problem from the same one with the equation substituted."""
    y, w = dro.Uncertain(2, support=dro.support.Box(0.0, 5.0)), cp.Variable(2, nonneg=True)
    x, s = cp.Variable(1, nonneg=True), dro.Adaptive(2, to=y)
    balance = dro.always(cp.sum(s) + x[0] == cp.sum(y) + 3)
    stock = cp.sum(w) + 3 * cp.sum(cp.pos(y - w))
    service = dro.chance(y <= w + 1, 0.7)
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(80, 1))
    Y = np.clip(1 + 2 * Z + 0.6 * rng.normal(size=(80, 2)), 0, 5)
    losses = []
    for cost, rules in (
        (2.1 * cp.sum(x) + 2 * cp.sum(s) + stock, [service, balance, x <= 3]),
        (2.1 * cp.sum(x) + 2 * (cp.sum(y) + 3 - x[0]) + stock, [service, x <= 3]),
    ):
        problem = dro.DecisionProblem(cost, rules, moments(y))
        torch.manual_seed(0)
        model = dro.DecisionFocusedLearner(
            problem,
            model=dro.Network(hidden=(4,)),
            projection=None,
            pretraining=dro.Stage(epochs=5, rate=1e-2),
            training=dro.Stage(epochs=3, rate=1e-2, violations=0.1),
            trainer=dro.Trainer(progress=False, budget=0.0),
        ).fit(Z, Y)
        losses.append([row["val_decision_loss"] for row in model.history_["decision"]])
        if balance in rules:
            assert model.violations(Z, Y)[balance] == 0.0
    np.testing.assert_allclose(*losses, rtol=1e-3)
