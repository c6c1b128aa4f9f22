"""Objectives against their definitions, and their derivatives against central differences."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from conelayers import make_engine
from drolayers.tails import cvar, quantile, worst_weights
from tests.drolayers.learning.small import learner, sales, shop

OBJECTIVES = [dro.objectives.CVaR(0.7), dro.objectives.Shift(0.5), dro.objectives.WorstCaseQuantile(0.8)]


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.3, 2.0, 8.5, 100.0])
@pytest.mark.parametrize("kind", ["plain", "ties", "far"])
def test_the_worst_reweighting_is_that_of_the_program(radius: float, kind: str) -> None:
    costs = np.random.default_rng(3).gamma(2.0, 2.0, 10)
    costs = {"plain": costs, "ties": np.ceil(costs / 3.0), "far": 1e6 + 1e-3 * costs}[kind]
    q = cp.Variable(10, nonneg=True)
    near = cp.sum_squares(10 * q - 1) / 10 <= radius
    # The program is solved in units of the costs' own spread.
    unit, centre = np.ptp(costs), costs.mean()
    best = cp.Problem(cp.Maximize((costs - centre) / unit @ q), [cp.sum(q) == 1, near]).solve(solver="CLARABEL")
    found = worst_weights(torch.as_tensor(costs), radius).numpy()
    assert found.min() >= 0.0
    assert found.sum() == pytest.approx(1.0)
    assert ((10 * found - 1) ** 2).mean() <= radius * (1 + 1e-6) + 1e-9
    assert (costs - centre) / unit @ found == pytest.approx(best, abs=2e-6)
    assert dro.objectives.Shift(radius).of(torch.as_tensor(costs)) == pytest.approx(centre + unit * best, rel=1e-6)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.75, 0.8, 0.99])
def test_cvar_is_that_of_the_program(level: float) -> None:
    rng = np.random.default_rng(1)
    costs, weights = rng.normal(size=20), rng.dirichlet(np.ones(20))
    for w in (weights, np.full(20, 0.05)):
        q = cp.Variable(20, nonneg=True)
        best = cp.Problem(cp.Maximize(costs @ q), [cp.sum(q) == 1, q <= w / (1 - level)]).solve(solver="CLARABEL")
        found = cvar(torch.as_tensor(costs), level, torch.as_tensor(w))
        assert float(found) == pytest.approx(best, abs=1e-6)
    assert dro.objectives.CVaR(level).of(torch.as_tensor(costs)) == pytest.approx(best, abs=1e-6)
    assert dro.objectives.CVaR(0.0).of(torch.as_tensor(costs)) == pytest.approx(costs.mean())


def decided(lots: bool, theta: torch.Tensor) -> tuple[dro.DecisionProblem, dro.Decision]:
    problem = shop(lots).problem
    # Differences of decisions need more digits than decisions.
    engine = make_engine("auto").with_tolerance(1e-12)
    return problem, dro.DROLayer(problem, temperature=1.0, engine=engine)(theta)


def sets(count: int) -> torch.Tensor:
    """A set an item, the last of which is empty."""
    rng = torch.Generator().manual_seed(0)
    theta = 2.0 + torch.rand(count, 3, generator=rng, dtype=torch.float64)
    theta[-1] = torch.tensor([-9.0, -9.0, 1e-3])
    return theta


@pytest.mark.parametrize("lots", [False, True])
def test_objectives_by_their_definitions(lots: bool) -> None:
    """By item and candidate, written out; an item without a decision is NaN."""
    problem, decision = decided(lots, sets(9))
    y = torch.as_tensor(sales(9)[1])
    assert decision.ok.tolist() == [True] * 8 + [False]
    cost, f, p = (
        v.detach().numpy()[:8]
        for v in (problem.loss(decision.candidates, y), decision.objective, decision.probabilities)
    )
    mean = (p * np.where(p > 0, cost, 0)).sum(1)
    found = {type(o).__name__: o(problem, decision, y).detach().numpy() for o in OBJECTIVES}
    assert all(np.isnan(values[8]) for values in found.values())
    values, mass = cost[p > 0], p[p > 0] / 8
    tail = min(t + (mass * np.maximum(values - t, 0)).sum() / 0.3 for t in values)
    assert found["CVaR"][:8].mean() == pytest.approx(tail, rel=1e-9)
    weights = worst_weights(torch.as_tensor(mean), 0.5).numpy()
    assert found["Shift"][:8].mean() == pytest.approx(weights @ mean, rel=1e-9)
    score = np.where(p > 0, f + np.maximum(cost - f, 0) / 0.2, 0)
    np.testing.assert_allclose(found["WorstCaseQuantile"][:8], (p * score).sum(1), rtol=1e-9)


@pytest.mark.parametrize("lots", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_gradients_of_objectives(objective, lots: bool) -> None:
    theta, y = sets(9), torch.as_tensor(sales(9)[1])
    direction = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction[-1] = 0.0

    def total(step: float) -> torch.Tensor:
        problem, decision = decided(lots, theta + step * direction)
        return objective(problem, decision, y).nansum()

    theta.requires_grad_()
    (gradient,) = torch.autograd.grad(total(0.0), theta)
    with torch.no_grad():
        slope = float(total(1e-4) - total(-1e-4)) / 2e-4
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_training_lowers_its_objective(objective) -> None:
    Z, Y = sales(60)
    settings = {"pretraining": None, "training__rate": 2e-2, "training__batch_size": 30}
    problem = shop(False).problem
    model = learner(problem, objective=objective, training__epochs=10, **settings).fit(Z, Y, validation=(Z, Y))
    losses = [row["val_decision_loss"] for row in model.history_["decision"]]
    assert min(losses) < losses[0] - 0.02
    decision = model.decision(Z)
    known = objective(problem, decision, torch.as_tensor(Y)).mean()
    assert float(known) == pytest.approx(min(losses), rel=1e-6)


def test_validation_is_of_all_rows_at_once() -> None:
    """The CVaR of many batches is not the mean of theirs."""
    Z, Y = sales(300)
    Y[:40] += 3.0
    model = learner(shop(False).problem, objective=dro.objectives.CVaR(0.9), pretraining=None, training__epochs=1)
    model.fit(Z[:20], Y[:20], validation=(Z, Y))
    cost = model.problem.loss(model.decide(torch.as_tensor(Z)), torch.as_tensor(Y)).sort().values
    assert model.history_["decision"][0]["val_decision_loss"] == pytest.approx(float(cost[-30:].mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dro.objectives.CVaR(1.0), "level"),
        (lambda: dro.objectives.WorstCaseQuantile(-0.1), "level"),
        (lambda: dro.objectives.Shift(-1.0), "radius"),
        (lambda: learner(shop().problem, objective="median").fit(*sales()), "objective must be 'mean'"),
        (lambda: learner(shop().problem, objective=dro.objectives.CVaR).fit(*sales()), "objective must be 'mean'"),
    ],
)
def test_objectives_that_make_no_sense(make, says: str) -> None:
    with pytest.raises(dro.ModelError, match=says):
        make()


@pytest.mark.parametrize("share", [1, 3, 8])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_infinite_costs_have_an_infinite_loss_and_leave_gradients_alone(objective, share: int) -> None:
    """Where some, more than the tail, or all cost infinitely much: never NaN."""
    y, x, v = dro.Uncertain(1, support=dro.support.Box(0, 2)), cp.Variable(1, nonneg=True), cp.Variable(1, nonneg=True)
    cost = cp.sum(x) + dro.recourse(cp.Minimize(3 * cp.sum(v)), [v >= y - x, v <= 1])
    problem = dro.DecisionProblem(cost, [x <= 5], dro.MomentSet(y, [dro.moments.Mean(sigma=None)]))
    theta = torch.tensor([[1.0, 0.5]]).double().repeat(8, 1).requires_grad_()
    decision = dro.DROLayer(problem)(theta)
    outcomes = torch.where(torch.arange(8)[:, None] < share, 9.0, 1.0).double()
    loss = objective(problem, decision, outcomes)
    assert loss.detach().sum() == torch.inf
    (gradient,) = torch.autograd.grad(loss.sum(), theta)
    assert bool(gradient.isfinite().all())
    if hasattr(objective, "of"):
        assert objective.of(problem.loss(decision.best, outcomes).detach()) == torch.inf


@pytest.mark.parametrize(("level", "expected"), [(0.5, 3.0), (0.7, 4.0), (0.9, np.inf)])
def test_quantiles_do_not_ask_how_far_beyond_them_values_are(level: float, expected: float) -> None:
    """A second stage without an answer costs infinitely much; a fifth of such rows tells of the upper tail alone."""
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, np.inf], dtype=torch.float64, requires_grad=True)
    found = quantile(values, level, 0.05)
    assert found.item() == pytest.approx(expected)
    if np.isfinite(expected):
        (slope,) = torch.autograd.grad(found, values)
        assert slope.tolist() == pytest.approx([float(value == expected) for value in values.tolist()])
