from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import drolayers as dro
from drolayers.baselines import SampleAverage, WeightedSampleAverage
from drolayers.baselines.sibling import ExpectedCost, affine
from research.problems import Portfolio
from tests.drolayers.baselines.problems import Shop, sales


def direct(shop: Shop, Y: np.ndarray, weights: np.ndarray) -> float:
    """The optimal value of the sample average problem, written out scenario by scenario."""
    cost = sum(w * shop.cost(row) for w, row in zip(weights, Y, strict=True))
    return float(cp.Problem(cp.Minimize(cost), shop.problem.constraints).solve(solver=cp.HIGHS))


def mean_cost(shop: Shop, decision: dict, Y: np.ndarray, weights: np.ndarray) -> float:
    repeated = {v: np.repeat(np.asarray(x)[None], len(Y), 0) for v, x in decision.items()}
    return float(weights @ shop.problem.loss(repeated, torch.as_tensor(Y)).numpy())


@pytest.mark.parametrize("lots", [False, True])
@pytest.mark.parametrize("support", [None, dro.support.Reals(), dro.support.Box(0.0, 9.0)])
def test_sample_average_equals_the_problem_written_out(lots: bool, support) -> None:
    shop, (Z, Y) = Shop(lots, support), sales()
    policy = SampleAverage(shop.problem).fit(Z, Y)
    decision = policy.decide(Z[:3])
    assert all(np.array_equal(x[0], x[2]) for x in decision.values())
    weights = np.full(len(Y), 1 / len(Y))
    found = mean_cost(shop, {v: x[0] for v, x in decision.items()}, Y, weights)
    assert found == pytest.approx(direct(shop, Y, weights), abs=1e-6)
    if shop.lots is not None:
        assert set(np.unique(decision[shop.lots])) <= {0.0, 1.0}


@pytest.mark.parametrize("nominal", [dro.nominal.KNN(k=4), dro.nominal.Kernel(max_atoms=6), None])
def test_weighted_sample_average_equals_the_problem_written_out(nominal) -> None:
    shop, (Z, Y) = Shop(lots=True), sales()
    policy = WeightedSampleAverage(shop.problem, nominal).fit(Z, Y)
    test = np.array([[0.1, 0.9], [0.5, 0.5]])
    decision = policy.decide(test)
    atoms, weights = policy.nominal_(torch.as_tensor(test))
    for item in range(2):
        found = mean_cost(shop, {v: x[item] for v, x in decision.items()}, atoms[item].numpy(), weights[item].numpy())
        assert found == pytest.approx(direct(shop, atoms[item].numpy(), weights[item].numpy()), abs=1e-6)


def test_one_atom_stands_for_all_where_the_cost_is_affine() -> None:
    portfolio = Portfolio(5, binaries=2)
    assert affine(portfolio.problem)
    assert not affine(Shop().problem)
    rng = np.random.default_rng(0)
    Z, Y = rng.standard_normal((40, 2)), rng.standard_normal((40, 5))
    policy = SampleAverage(portfolio.problem).fit(Z, Y)
    weights = portfolio.weights(policy.decide(Z[:1]))
    assert (weights @ Y.mean(0))[0] == pytest.approx(portfolio.best_return(Y.mean(0)[None])[0], abs=1e-7)
    contextual = WeightedSampleAverage(portfolio.problem, dro.nominal.KNN(k=6)).fit(Z, Y)
    assert contextual.model_.problem.ambiguity.atoms == 1
    atoms, _ = contextual.nominal_(torch.as_tensor(Z))
    mean = atoms.mean(1).numpy()
    returns = (portfolio.weights(contextual.decide(Z)) * mean).sum(1)
    np.testing.assert_allclose(returns, portfolio.best_return(mean), atol=1e-7)


def test_outcomes_outside_the_support_are_refused() -> None:
    shop, (Z, Y) = Shop(), sales()
    Y[0] = -0.5
    with pytest.raises(dro.ModelError, match="support"):
        SampleAverage(shop.problem).fit(Z, Y)


def test_costs_that_need_their_support_keep_it() -> None:
    """A convex function of the decision that multiplies y, and a second stage."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    x = cp.Variable(2)
    needs_sign = dro.DecisionProblem(y @ cp.abs(x - 1.0) + cp.sum(x), [x >= 0, x <= 3], dro.Wasserstein(y, 3))
    x2 = cp.Variable(2, nonneg=True)
    staged = dro.recourse(np.array([4.0, 1.0, 4.0, 1.0]), np.kron(np.eye(2), [[1.0, -1.0]]), y - x2)
    two_stage = dro.DecisionProblem(cp.sum(x2) + staged, [x2 <= 9], dro.Wasserstein(y, 3))
    atoms = torch.tensor([[[1.0, 2.0], [3.0, 0.5], [0.2, 0.4]]], dtype=torch.float64)
    weights = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    for problem, variable, cost in (
        (needs_sign, x, lambda a: a @ cp.abs(x - 1.0) + cp.sum(x)),
        (two_stage, x2, lambda a: cp.sum(x2) + cp.sum(cp.maximum(4.0 * (a - x2), x2 - a))),
    ):
        decision = ExpectedCost(problem, 3).decide(atoms, weights)
        written = sum(w * cost(a) for w, a in zip(weights[0].numpy(), atoms[0].numpy(), strict=True))
        best = cp.Problem(cp.Minimize(written), problem.constraints).solve(solver=cp.CLARABEL)
        variable.value = decision[variable][0].numpy()
        assert float(written.value) == pytest.approx(best, abs=1e-6)


def test_scores_are_mean_costs_so_that_searches_work() -> None:
    shop, (Z, Y) = Shop(), sales()
    policy = WeightedSampleAverage(shop.problem, dro.nominal.KNN(k=4)).fit(Z, Y)
    cost = shop.problem.loss(policy.decide(torch.as_tensor(Z)), torch.as_tensor(Y)).mean()
    assert policy.score(Z, Y) == pytest.approx(-float(cost))
    assert np.isfinite(cross_val_score(SampleAverage(shop.problem), Z, Y, cv=2)).all()


def test_manners() -> None:
    shop, (Z, Y) = Shop(), sales()
    policy = WeightedSampleAverage(shop.problem, dro.nominal.KNN(k=4))
    with pytest.raises(NotFittedError, match="WeightedSampleAverage is not fitted"):
        policy.decide(Z)
    again = clone(policy)
    assert again.problem is shop.problem
    arrays, tensors = policy.fit(Z, Y).decide(Z), again.fit(Z, Y).decide(torch.as_tensor(Z))
    assert isinstance(arrays[shop.retail], np.ndarray)
    np.testing.assert_array_equal(arrays[shop.retail], tensors[shop.retail])
    with pytest.raises(dro.ShapeError, match="2 columns, as in training"):
        policy.decide(np.zeros((1, 3)))
    with pytest.raises(dro.ShapeError, match="Y must have 2 columns"):
        SampleAverage(shop.problem).fit(Z, Y[:, :1])
    with pytest.raises(dro.ModelError, match="SampleAverage needs"):
        SampleAverage(3).fit(Z, Y)  # type: ignore[arg-type]
    with pytest.raises(dro.ModelError, match="nominal must be"):
        WeightedSampleAverage(shop.problem, 5).fit(Z, Y)  # type: ignore[arg-type]
