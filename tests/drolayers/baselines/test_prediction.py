from __future__ import annotations

import numpy as np
import pytest

import drolayers as dro
from drolayers.baselines import FullKnowledge, MeanPrediction, PredictionFocused
from drolayers.learning.data import Examples, matrix, split
from research.problems import Newsvendor, Portfolio
from tests.drolayers.baselines.problems import Shop, sales


def test_the_mean_is_learnt_and_decided_upon() -> None:
    rng = np.random.default_rng(0)
    portfolio = Portfolio(4)
    Z = rng.uniform(-1, 1, (600, 2))
    mean = 0.02 * np.stack([Z[:, 0], -Z[:, 0], Z[:, 1], -Z[:, 1]], 1)
    Y = mean + 0.01 * rng.standard_normal((600, 4))
    policy = MeanPrediction(portfolio.problem, hidden=(16,), epochs=30, lr=1e-2).fit(Z[:400], Y[:400])
    predicted = policy.predict_mean(Z[400:])
    assert np.sqrt(np.mean((predicted - mean[400:]) ** 2)) < 0.003
    weights = portfolio.weights(policy.decide(Z[400:]))
    np.testing.assert_allclose((weights * predicted).sum(1), predicted.max(1), atol=1e-6)
    best = min(row["validation"] for row in policy.history_)
    assert best < policy.history_[0]["validation"]


def test_a_curved_mean_is_linear_in_monomials() -> None:
    rng = np.random.default_rng(0)
    portfolio = Portfolio(2)
    Z = rng.uniform(-1, 1, (600, 2))
    mean = np.stack([Z[:, 0] * Z[:, 1], 0.5 - Z[:, 0] ** 2], 1)
    Y = mean + 0.1 * rng.standard_normal((600, 2))
    errors = {}
    for degree in (1, 2):
        policy = MeanPrediction(portfolio.problem, hidden=(), degree=degree, epochs=40, lr=3e-2).fit(Z[:400], Y[:400])
        errors[degree] = np.sqrt(np.mean((policy.predict_mean(Z[400:]) - mean[400:]) ** 2))
    assert errors[2] < 0.03 < 0.2 < errors[1]


def test_the_best_epoch_is_kept() -> None:
    shop, (Z, Y) = Shop(), sales()
    held_out = sales(20, seed=1)
    policy = MeanPrediction(shop.problem, hidden=(8,), epochs=12, lr=1.0).fit(Z, Y, held_out)
    errors, kept = [row["validation"] for row in policy.history_], squared_error(policy, *held_out, Y)
    # At so high a rate the last epoch is not the best one, and the start may be.
    assert errors[-1] > kept * 1.001
    assert kept == pytest.approx(min(errors), rel=1e-9) or kept < min(errors)


def squared_error(policy: MeanPrediction, Z: np.ndarray, Y: np.ndarray, training: np.ndarray) -> float:
    """The mean squared error in standard deviations of the training outcomes."""
    return float((((policy.predict_mean(Z) - Y) / training.std(0)) ** 2).mean())


def test_losses_are_means_over_points_not_over_batches() -> None:
    """Without learning the loss of an epoch is the error on the training data, whatever is left for the last batch."""
    shop, (Z, Y) = Shop(), sales()
    Y = Y * np.array([1.0, 50.0])
    policy = MeanPrediction(shop.problem, hidden=(8,), epochs=2, lr=1e-30, batch_size=7).fit(Z, Y, sales(5, seed=1))
    for row in policy.history_:
        assert row["loss"] == pytest.approx(squared_error(policy, Z, Y, Y), rel=1e-9)


def test_decisions_at_a_point_meet_its_demand() -> None:
    shop, (Z, Y) = Shop(), sales()
    policy = MeanPrediction(shop.problem, hidden=(8,), epochs=5).fit(Z, Y)
    small = policy.predict_mean(Z).sum(1) < 5.5
    assert small.any()
    # Stock costs one and a shortage four: what is certain to be asked for is bought.
    np.testing.assert_allclose(policy.decide(Z)[shop.retail][small], policy.predict_mean(Z)[small], atol=1e-6)


@pytest.mark.parametrize("wrong", [3, (np.zeros((4, 2)),), (np.zeros((4, 2)), np.zeros((4, 2)), None, None, 1)])
def test_validation_data_are_a_pair(wrong) -> None:
    with pytest.raises(dro.ShapeError, match="validation must be a pair"):
        MeanPrediction(Shop().problem).fit(*sales(), wrong)


def test_a_share_is_held_out_and_the_rest_keeps_its_order() -> None:
    Z, Y = sales(20)
    Z[:, 0] = np.arange(20)
    training, held_out = split(Shop().problem, Examples(matrix(Z, "Z"), matrix(Y, "Y")), None, 0.3, 0)
    first, second = (part.Z[:, 0].tolist() for part in (training, held_out))
    assert (len(first), len(second)) == (14, 6)
    assert sorted(first + second) == list(range(20))
    assert (first, second) == (sorted(first), sorted(second))
    assert second not in (list(range(6)), list(range(14, 20)))
    np.testing.assert_array_equal(held_out.Y, Y[np.array(second, dtype=int)])
    assert split(Shop().problem, Examples(matrix(Z, "Z"), matrix(Y, "Y")), None, 0.3, 1)[1].Z[:, 0].tolist() != second
    assert split(Shop().problem, Examples(matrix(Z, "Z"), matrix(Y, "Y")), None, 0.0, 0)[1] is None


def test_one_seed_one_result() -> None:
    shop, (Z, Y) = Shop(), sales()
    first, second, other = (
        MeanPrediction(shop.problem, seed, hidden=(8,), epochs=3).fit(Z, Y).predict_mean(Z) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-6


def test_prediction_focused_is_the_learner_without_decisions() -> None:
    shop, (Z, Y) = Shop(), sales()
    quick = {"model": dro.Network((8,)), "pretraining": dro.Stage(3, 1e-2), "nominal": dro.nominal.KNN(k=5)}
    policy = PredictionFocused(shop.problem, **quick).fit(Z, Y)
    same = dro.DecisionFocusedLearner(shop.problem, training=None, **quick).fit(Z, Y)
    np.testing.assert_array_equal(policy.decide(Z)[shop.retail], same.decide(Z)[shop.retail])
    assert list(policy.history_) == ["prediction"]
    with pytest.raises(dro.ModelError, match="not trained on decisions"):
        PredictionFocused(shop.problem, training=dro.Stage())


def test_full_knowledge_is_the_benchmark() -> None:
    made = Newsvendor("SOC-II")
    Z = np.array([[0.1], [0.5], [0.8]])
    policy = FullKnowledge(made.problem, made.full_knowledge).fit(None, None)
    decision = policy.decide(Z)
    retail, wholesale = made.benchmark(Z)
    np.testing.assert_allclose(decision[made.retail], retail, atol=1e-6)
    np.testing.assert_array_equal(decision[made.wholesale], wholesale)
    named = FullKnowledge(made.problem, lambda z: made.problem.ambiguity.unpack(made.full_knowledge(z)))
    np.testing.assert_allclose(named.decide(Z)[made.retail], retail, atol=1e-6)
    y = dro.Uncertain(2)
    ball = dro.DecisionProblem(Shop().cost(y), [], dro.Wasserstein(y, 2))
    with pytest.raises(dro.ModelError, match="ball"):
        FullKnowledge(ball, made.full_knowledge).fit(None, None)
