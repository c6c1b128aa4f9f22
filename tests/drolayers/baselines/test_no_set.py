from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.ambiguity.moments import Norm
from drolayers.baselines import MeanPrediction, NoSet
from drolayers.baselines.no_set import SIGMA
from drolayers.baselines.sibling import sibling
from research.problems import Newsvendor, Portfolio
from tests.drolayers.baselines.problems import Shop, sales


@pytest.mark.parametrize("made", [Newsvendor("SOC-II"), Portfolio(5), Portfolio(5, binaries=2)])
def test_a_set_this_small_is_its_point(made) -> None:
    """The worst-case cost over the set is the cost at the point, and the decision is the best one there."""
    rng = np.random.default_rng(0)
    dim = made.problem.ambiguity.y.dim
    points = torch.as_tensor(made.draw(6, rng)[1] if dim == 4 else 0.03 * rng.standard_normal((6, dim)))
    spread = float((points - points.mean(0)).abs().sum(1).mean())
    point_problem = sibling(made.problem, lambda y: dro.MomentSet(y, [Norm(1, sigma=SIGMA * spread)]))
    decision = dro.DROLayer(point_problem).eval()(points)
    assert bool((decision.status == 0).all())
    cost = made.problem.loss(decision.best, points)
    slope = 10.0
    np.testing.assert_allclose(decision.value, cost, atol=slope * SIGMA * spread)
    if isinstance(made, Portfolio):
        best = -made.best_return(points.numpy())
    else:
        # A demand that is certain is met at retail, or by a lot if that is less: topped up, or with some left over.
        y = points.numpy()
        topped, left = np.maximum(y - made.lot, 0.0), np.maximum(made.lot - y, 0.0)
        by_lot = made.wholesale_price * made.lot + made.retail_price * topped + made.holding * left
        best = np.minimum(made.retail_price * y, by_lot).sum(1)
    np.testing.assert_allclose(cost, best, atol=slope * SIGMA * spread)


def test_where_the_solution_map_is_flat() -> None:
    flat = sibling(Portfolio(5).problem, lambda y: dro.MomentSet(y, [Norm(1, sigma=1e-6)]))
    steep = sibling(Shop().problem, lambda y: dro.MomentSet(y, [Norm(1, sigma=1e-6)]))
    assert flat.program.flat
    assert not steep.program.flat
    mu = torch.tensor([[1.5, 2.0], [2.2, 1.0]], dtype=torch.float64, requires_grad=True)
    shop_decision = dro.DROLayer(steep)(mu).best
    (stock,) = shop_decision.values()
    jacobian = [torch.autograd.grad(stock[:, k].sum(), mu, retain_graph=True)[0] for k in range(2)]
    np.testing.assert_allclose(torch.stack(jacobian, 1), torch.eye(2).expand(2, 2, 2), atol=1e-5)


def test_the_point_moves_to_the_quantile() -> None:
    """Trained on decisions, the point leaves the mean: at the optimum 1 - 4 P(y > s) + P(y ≤ s) = 0."""
    rng = np.random.default_rng(0)
    shop = Shop()
    Z = rng.uniform(size=(200, 1))
    Y = 0.5 + 0.5 * rng.lognormal(0.0, 1.2, size=(200, 2))
    mean = MeanPrediction(shop.problem, hidden=(8,), epochs=10).fit(Z, Y)
    policy = NoSet(
        shop.problem,
        dro.Network((8,)),
        pretraining=dro.Stage(10, 3e-3),
        training=dro.Stage(15, 0.03, decay=1.0),
        trainer=dro.Trainer(progress=False),
    ).fit(Z, Y)
    losses = [
        float(shop.problem.loss({v: torch.as_tensor(x) for v, x in p.decide(Z).items()}, torch.as_tensor(Y)).mean())
        for p in (mean, policy)
    ]
    assert losses[1] < losses[0]
    share = (policy.decide(Z)[shop.retail] < Y).mean()
    assert share == pytest.approx(0.4, abs=0.08)
    assert list(policy.history_) == ["mean", "decision"]


def test_it_learns_where_exact_gradients_vanish() -> None:
    rng = np.random.default_rng(1)
    portfolio = Portfolio(4)
    Z = rng.uniform(-1, 1, (300, 1))
    mean = 0.02 * np.concatenate([Z, -Z, 0 * Z, 0 * Z - 0.01], 1)
    Y = mean + 0.01 * rng.standard_normal((300, 4))
    parts = {"pretraining": dro.Stage(0), "training": dro.Stage(15, 1e-2), "trainer": dro.Trainer(progress=False)}
    policy = NoSet(portfolio.problem, dro.Network((8,)), **parts).fit(Z, Y)
    weights = portfolio.weights(policy.decide(Z))
    assert (weights * mean).sum(1).mean() > 0.8 * mean.max(1).mean()
    again = NoSet(portfolio.problem, dro.Network((8,)), **parts).fit(Z, Y)
    np.testing.assert_array_equal(weights, portfolio.weights(again.decide(Z)))


def test_integers() -> None:
    shop, (Z, Y) = Shop(lots=True), sales()
    policy = NoSet(shop.problem, dro.Network((8,)), pretraining=dro.Stage(3), training=dro.Stage(2)).fit(Z, Y)
    assert shop.lots is not None
    decision, points = policy.decide(Z), policy.learner_.predict_set(Z)["0.mu"]
    # A lot of two costs 1.8 and what is left over one a unit: it pays above 1.9, and is topped up to the point.
    lots = (points > 1.9).astype(float)
    assert lots.any()
    np.testing.assert_array_equal(decision[shop.lots], lots)
    np.testing.assert_allclose(decision[shop.retail] + 2.0 * lots, np.maximum(points, 2.0 * lots), atol=1e-5)


def test_settings_of_the_other_training_are_refused() -> None:
    policy = NoSet(Shop().problem, pretraining=dro.Stage(3, violations=0.1))
    with pytest.raises(dro.ModelError, match=r"give it to training=dro.Stage"):
        policy.fit(*sales())


def test_curved_costs_are_refused_in_terms_of_the_problem() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    for cost, constraints in (
        (cp.square(y @ x - 1) + cp.sum_squares(x), []),
        (cp.sum_squares(x), [dro.expected(cp.square(y @ x - 1)) <= 0.9]),
    ):
        problem = dro.DecisionProblem(cost, constraints, dro.Divergence(y, 5))
        with pytest.raises(dro.ModelError, match=r"NoSet knows no .* curved in y.*MeanPrediction"):
            NoSet(problem).fit(*sales())


def test_where_no_decision_satisfies_the_constraints_on_the_whole_support_it_is_said() -> None:
    """Also where nothing that is learnt stands in the program."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x), [dro.always(x >= y)], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    policy = NoSet(problem, dro.Network((8,)), pretraining=dro.Stage(1), training=dro.Stage(1))
    with pytest.raises(dro.SolveError, match=r"training rows was solved in epoch 0: \d+ INFEASIBLE"):
        policy.fit(*sales())


def test_the_nominal_distribution_that_stands_in_has_no_say_in_ties() -> None:
    Z, Y = sales()
    policy = NoSet(Shop().problem, dro.Network((8,)), pretraining=dro.Stage(1), training=dro.Stage(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", dro.nominal.TiedAtomsWarning)
        policy.fit(np.round(Z), Y)
    with pytest.warns(dro.nominal.TiedAtomsWarning, match="takes its 4 atoms"):
        dro.baselines.WeightedSampleAverage(Shop().problem, dro.nominal.KNN(k=4)).fit(np.round(Z), Y)
