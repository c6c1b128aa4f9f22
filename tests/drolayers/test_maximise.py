"""A reward to be maximised is the cost that is its negative, and all that is reported is a cost."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro

PRICE, COST = np.array([5.0, 4.0]), np.array([2.0, 1.0])


def reward(x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    """What is sold brings its price, what was bought costs."""
    return PRICE @ cp.minimum(x, y) - COST @ x


def parts() -> tuple[cp.Variable, dro.Uncertain, dro.MomentSet]:
    y = dro.Uncertain(2, dro.support.Nonnegative())
    return cp.Variable(2, nonneg=True), y, dro.MomentSet(y, [dro.moments.SquaredNorm()])


THETA = torch.tensor([[3.0, 2.0, 1.0], [1.0, 5.0, 0.2]], dtype=torch.float64)


def test_values_are_costs() -> None:
    x, y, ambiguity = parts()
    most = dro.DecisionProblem(cp.Maximize(reward(x, y)), [x <= 6], ambiguity)
    least = dro.DecisionProblem(cp.Minimize(-reward(x, y)), [x <= 6], ambiguity)
    bare = dro.DecisionProblem(-reward(x, y), [x <= 6], ambiguity)
    assert (most.maximises, least.maximises, bare.maximises) == (True, False, False)
    assert "negative rewards" in repr(most)
    assert "negative rewards" not in repr(least)
    decision = dro.DROLayer(most)(THETA)
    for other in (least, bare):
        torch.testing.assert_close(dro.DROLayer(other)(THETA).value, decision.value)
    best = {x: decision.best[x]}
    torch.testing.assert_close(most.worst_case_cost(best, THETA), decision.value, rtol=1e-6, atol=1e-6)
    outcomes = torch.tensor([[2.0, 3.0], [4.0, 0.0]], dtype=torch.float64)
    sold = torch.minimum(decision.best[x], outcomes) @ torch.tensor(PRICE)
    torch.testing.assert_close(most.loss(best, outcomes), decision.best[x] @ torch.tensor(COST) - sold)
    # The worst distribution leaves the smallest expected reward, which is positive here: the value is its negative.
    atoms, probabilities = most.worst_case_distribution(best, THETA)
    x.value, expected = decision.best[x][0].numpy(), 0.0
    for atom, probability in zip(atoms[0].numpy(), probabilities[0].numpy(), strict=True):
        y.value = np.maximum(atom, 0.0)
        expected += float(probability) * float(reward(x, y).value)
    assert expected > 0
    assert float(decision.value[0]) == pytest.approx(-expected, rel=1e-5)


def test_the_score_is_the_reward() -> None:
    x, y, ambiguity = parts()
    problem = dro.DecisionProblem(cp.Maximize(reward(x, y)), [x <= 6], ambiguity)
    generator = torch.Generator().manual_seed(0)
    Z = torch.rand(30, 1, generator=generator).double()
    Y = 2 + Z + torch.rand(30, 2, generator=generator).double()
    learner = dro.DecisionFocusedLearner(problem, pretraining=dro.Stage(epochs=1), training=None).fit(Z, Y)
    chosen = learner.decide(Z)[x]
    earned = (torch.minimum(chosen, Y) @ torch.tensor(PRICE) - chosen @ torch.tensor(COST)).mean()
    assert learner.score(Z, Y) == pytest.approx(float(earned), rel=1e-6)


def test_a_second_stage_that_earns() -> None:
    """The largest profit that two products allow, by cp.Maximize twice."""
    x, y, ambiguity = parts()
    sold = cp.Variable(2, nonneg=True)
    profit = dro.recourse(cp.Maximize(PRICE @ sold), [sold <= x, sold <= y])
    assert profit.is_concave()
    written = dro.DecisionProblem(cp.Maximize(profit - COST @ x), [x <= 6], ambiguity)
    direct = dro.DecisionProblem(cp.Maximize(reward(x, y)), [x <= 6], ambiguity)
    torch.testing.assert_close(written.solve(THETA).objective, direct.solve(THETA).objective, rtol=1e-6, atol=1e-6)


def test_what_is_not_concave_is_refused() -> None:
    x, y, ambiguity = parts()
    with pytest.raises(dro.ModelError, match="not convex"):
        dro.DecisionProblem(cp.Maximize(cp.sum(cp.pos(y - x))), [], ambiguity)
