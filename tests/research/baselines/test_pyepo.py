from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np
import pytest
import torch
from pyepo.func import SPOPlus

import drolayers as dro
from research.baselines import Pyepo
from research.baselines.pyepo import LinearProblem, extended, optimisation_model
from research.problems import Portfolio
from tests.drolayers.baselines.problems import Shop, sales


def mixed() -> tuple[dro.DecisionProblem, cp.Variable, cp.Variable]:
    """A cost a(x)ᵀy + b(x) with slopes that are not the decision itself, and a convex b."""
    y = dro.Uncertain(2)
    x, lots = cp.Variable(2, nonneg=True), cp.Variable(2, boolean=True)
    cost = y @ (x + 2.0 * lots - 1.0) + 0.5 * cp.sum(x) + 0.1 * cp.max(x) + 3.0
    return dro.DecisionProblem(cost, [x <= 2.0, cp.sum(lots) == 1], dro.MomentSet.grouped(y, 1)), x, lots


def test_the_linear_form_is_the_cost() -> None:
    problem, _, _ = mixed()
    linear = LinearProblem(problem)
    rng = np.random.default_rng(0)
    y, other = (torch.as_tensor(rng.standard_normal((8, 2))) for _ in range(2))
    decision, w = linear.decide(y), linear.solve(extended(y))
    np.testing.assert_allclose((w * extended(other)).sum(1), problem.loss(decision, other), atol=1e-9)
    for row in range(8):
        (x, lots), weights = problem.variables, y[row].numpy()
        cost = weights @ (x + 2.0 * lots - 1.0) + 0.5 * cp.sum(x) + 0.1 * cp.max(x) + 3.0
        best = cp.Problem(cp.Minimize(cost), problem.constraints).solve(solver=cp.HIGHS)
        assert float(w[row] @ extended(y)[row]) == pytest.approx(best, abs=1e-6)


def test_the_last_entry_is_the_price_of_what_is_certain() -> None:
    """Costs (y, t) weigh a(x)ᵀy against t b(x): their multiples are decided alike, and t alone matters."""
    linear = LinearProblem(mixed()[0])
    y = torch.as_tensor(np.random.default_rng(2).standard_normal((8, 2)))
    w = linear.solve(extended(y))
    np.testing.assert_allclose(linear.solve(3.0 * extended(y)), w, atol=1e-6)
    dear = torch.cat([y, torch.full((8, 1), 4.0, dtype=torch.float64)], 1)
    np.testing.assert_allclose(linear.solve(dear), linear.solve(extended(y / 4.0)), atol=1e-6)
    assert np.abs(linear.solve(dear) - w).max() > 0.1


def test_promises_are_solved_together() -> None:
    linear = LinearProblem(Portfolio(4).problem)
    model, calls = optimisation_model(linear), []
    solve = linear.solve
    linear.solve = lambda cost: (calls.append(len(cost)), solve(cost))[1]  # type: ignore[method-assign]
    costs = extended(torch.as_tensor(np.random.default_rng(0).standard_normal((6, 4)))).numpy()
    pairs = []
    for cost in costs:
        model.setObj(cost)
        pairs.append(model.solve())
    solutions, values = np.asarray([p[0] for p in pairs], dtype=float), np.asarray([p[1] for p in pairs], dtype=float)
    assert calls == [6]
    np.testing.assert_allclose(solutions[:, :4], -np.eye(4)[costs[:, :4].argmax(1)], atol=1e-6)
    np.testing.assert_allclose(values, -costs[:, :4].max(1), atol=1e-6)
    model.setObj(costs[2])
    assert float(model.solve()[1]) == pytest.approx(values[2], abs=1e-6)
    assert calls == [6, 1]


def test_spo_plus_against_its_definition() -> None:
    linear = LinearProblem(Portfolio(4).problem)
    rng = np.random.default_rng(1)
    true, guess = (extended(torch.as_tensor(rng.standard_normal((5, 4)))) for _ in range(2))
    guess.requires_grad_()
    best = linear.solve(true)
    loss = SPOPlus(optimisation_model(linear))(guess, true, best, (true * best).sum(1, keepdim=True))
    # max_w {(c - 2ĉ)ᵀw} + 2ĉᵀw*(c) - z*(c), and the maximum over the simplex is a maximum over assets.
    twisted = (2 * guess - true)[:, :4].detach()
    expected = twisted.max(1).values + 2 * (guess * best).sum(1).detach() - (true * best).sum(1)
    assert float(loss.detach()) == pytest.approx(float(expected.mean()), abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, guess)
    vertex = -torch.nn.functional.one_hot(twisted.argmax(1), 4)
    np.testing.assert_allclose(gradient[:, :4], 2 * (best[:, :4] - vertex) / 5, atol=1e-6)


@pytest.mark.parametrize("method", ["spo+", "perturbed"])
def test_training_finds_good_decisions(method) -> None:
    rng = np.random.default_rng(0)
    portfolio = Portfolio(4, binaries=1)
    Z = rng.uniform(-1, 1, (300, 2))
    mean = 0.02 * np.stack([Z[:, 0], -Z[:, 0], Z[:, 1], -Z[:, 1]], 1)
    Y = mean + 0.01 * rng.standard_normal((300, 4))
    settings = {"hidden": (8,), "pretrain_epochs": 0, "epochs": 4, "lr": 1e-2, "batch_size": 60, "samples": 4}
    policy = Pyepo(portfolio.problem, method, **settings).fit(Z, Y)
    weights = portfolio.weights(policy.decide(Z))
    achieved, best = (weights * mean).sum(1).mean(), portfolio.best_return(mean).mean()
    assert achieved > 0.7 * best
    again = Pyepo(portfolio.problem, method, **settings).fit(Z, Y)
    np.testing.assert_array_equal(weights, portfolio.weights(again.decide(Z)))


def test_refusals(monkeypatch) -> None:
    shop, (Z, Y) = Shop(), sales()
    with pytest.raises(dro.ModelError, match="affine"):
        Pyepo(shop.problem).fit(Z, Y)
    portfolio = Portfolio(2)
    with pytest.raises(dro.ModelError, match="no method"):
        Pyepo(portfolio.problem, "magic").fit(Z, Y)  # type: ignore[arg-type]
    for name in [*(name for name in sys.modules if name.split(".")[0] == "pyepo"), "pyepo"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(dro.MissingExtraError, match=r"drolayers\[pyepo\]"):
        Pyepo(portfolio.problem).fit(Z, Y)
