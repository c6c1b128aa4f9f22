"""Locations may begin at least squares: the ridge, what it is fitted to, and when it is kept."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import drolayers as dro
from drolayers.baselines.regression import MeanModel, train
from drolayers.learning.data import Examples, examples
from drolayers.learning.model import RIDGES, Perceptron, SetModel, ridge
from drolayers.learning.pretraining import PredictionLosses

OUTCOMES = dro.Stage(epochs=8, locations="outcomes")


def _data(count: int, seed: int = 0, noise: float = 0.0, bend: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Contexts, and outcomes that are linear in them but for a bend and noise."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((count, 3))
    weights = np.random.default_rng(99).standard_normal((3, 2))
    Y = 10.0 + Z @ weights + bend * np.sin(3.0 * Z[:, :2]) + noise * rng.standard_normal((count, 2))
    return Z, Y


def _problem(ambiguity: Any = None) -> dro.DecisionProblem:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    made = dro.MomentSet.grouped(y, 1) if ambiguity is None else ambiguity(y)
    return dro.DecisionProblem(y @ x, [cp.sum(x) == 1], made)


def _fitted(problem: dro.DecisionProblem, Z: np.ndarray, Y: np.ndarray, **settings: Any) -> dro.DecisionFocusedLearner:
    # Linear maps are judged beyond the range of the training data too.
    quiet = {
        "model": dro.Network(extrapolate=True),
        "trainer": dro.Trainer(progress=False),
        "pretraining": OUTCOMES,
        "training": None,
        "projection": None,
    }
    return dro.DecisionFocusedLearner(problem, **(quiet | settings)).fit(Z, Y)


def test_the_ridge_is_that_of_scikit_learn_and_the_best_on_validation_data() -> None:
    rng = np.random.default_rng(0)
    X, T = rng.standard_normal((30, 12)) + 1.0, rng.standard_normal((30, 4))
    held_X, held_T = rng.standard_normal((20, 12)) + 1.0, rng.standard_normal((20, 4))
    weight, bias = ridge(*(torch.as_tensor(part) for part in (X, T, held_X, held_T)))
    fits = [Ridge(alpha=penalty * len(X)).fit(X, T) for penalty in RIDGES]
    best = min(fits, key=lambda fit: ((fit.predict(held_X) - held_T) ** 2).sum())
    np.testing.assert_allclose(weight.numpy(), best.coef_, atol=1e-10)
    np.testing.assert_allclose(bias.numpy(), best.intercept_, atol=1e-10)
    # Noise wants a large penalty: the largest is not the last one tried by accident.
    assert best is fits[0]


def test_more_inputs_than_points_are_the_same_ridge() -> None:
    """By the smaller of both products; a column that stands there twice is no trouble."""
    rng = np.random.default_rng(1)
    X, T = rng.standard_normal((5, 40)), rng.standard_normal((5, 2))
    X = np.column_stack([X, X[:, 0]])
    weight, bias = ridge(*(torch.as_tensor(part) for part in (X, T, X, T)))
    # What is asked of the data themselves likes the least penalty.
    fit = Ridge(alpha=RIDGES[-1] * len(X)).fit(X, T)
    np.testing.assert_allclose(weight.numpy(), fit.coef_, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), fit.intercept_, atol=1e-9)


@pytest.mark.parametrize("hidden", [(), (7,), (8, 8)])
def test_a_perceptron_that_takes_a_linear_map_is_it(hidden: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    network = Perceptron([3, *hidden, 2], generator).double()
    weight, bias = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    z = torch.randn(5, 3, dtype=torch.float64)
    assert not torch.allclose(network(z), z @ weight.T + bias)
    network.take_linear(weight, bias)
    torch.testing.assert_close(network(z), z @ weight.T + bias)
    # It is part of the state, and a network that takes it over is the same.
    again = Perceptron([3, *hidden, 2], None).double()
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again(z), network(z))


def test_a_linear_part_that_was_not_taken_stays_nothing() -> None:
    network = Perceptron([3, 4, 2], torch.Generator().manual_seed(0)).double()
    network(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert network.beside is not None
    assert not network.beside.weight.grad.any()


A = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]])


@pytest.mark.parametrize(
    "build",
    [
        lambda y: dro.MomentSet.grouped(y, 1),
        lambda y: dro.MomentSet.grouped(y, 2),
        lambda y: dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]),
        lambda y: dro.MomentSet(y, [dro.moments.Norm(2, A=A)]),
        lambda y: dro.MomentSet(y, [dro.moments.Absolute(mu=np.array([1.0, -1.0]))]),
        lambda y: dro.Outcomes(y, "box"),
        lambda y: dro.Outcomes(y, "ellipsoid"),
        lambda y: dro.MeanCovariance(y),
    ],
)
def test_aims_are_where_the_loss_of_single_outcomes_vanishes(build: Any) -> None:
    """Locations that fit an outcome by itself: the first term of the loss, taken there, is nothing."""
    sets = _problem(build).sets
    Y = torch.as_tensor(_data(20)[1])
    loss = PredictionLosses(sets, Y, "outcomes")
    aims = loss.aims(Y)
    assert aims
    typical = sets.typical(Y)
    values = {
        name: aims.get(name, typical[name].centre.expand(len(Y), *typical[name].centre.shape)) for name in typical
    }
    theta = torch.cat([value.reshape(len(Y), -1) for value in values.values()], 1).double()
    assert float(loss.at_outcomes(theta, Y)) < 1e-12
    assert float(loss.at_outcomes(theta + 1.0, Y)) > 1e-3


def test_sets_without_such_locations_have_no_aims() -> None:
    Y = torch.as_tensor(_data(20)[1])
    learnt = _problem(lambda y: dro.MomentSet(y, [dro.moments.Norm(2, A=dro.Learn(2, 2))])).sets
    assert PredictionLosses(learnt, Y, "outcomes").aims(Y) == {}
    given = _problem(lambda y: dro.MomentSet(y, [dro.moments.SquaredNorm(mu=np.zeros(2))])).sets
    assert PredictionLosses(given, Y, "outcomes").aims(Y) == {}
    # Means over neighbours are not single outcomes.
    assert PredictionLosses(_problem().sets, Y, "nominal").aims(Y) == {}


def test_linear_outcomes_are_predicted_exactly_and_bent_ones_better_than_by_a_line() -> None:
    Z, Y = _data(60)
    fitted = _fitted(_problem(), Z, Y)
    assert bool(fitted.pipeline_.model.networks[0].straight)
    new = _data(50, seed=1)
    # A ridge of a thousandth shrinks weights by as much.
    found = fitted.predict_set(new[0])["mu"]
    assert np.abs(found - new[1]).max() < 0.02 * np.abs(new[1] - 10.0).max()
    Z, Y = _data(300, bend=2.0)
    held = _data(200, seed=1, bend=2.0)
    line = Ridge(alpha=1e-3).fit(Z, Y).predict(held[0])
    longer = OUTCOMES.but(epochs=40)
    found = _fitted(_problem(), Z, Y, pretraining=longer).predict_set(held[0])["mu"]
    assert ((found - held[1]) ** 2).mean() < 0.7 * ((line - held[1]) ** 2).mean()


@pytest.mark.parametrize("unit", [1e-5, 1e5])
def test_the_start_does_not_depend_on_units(unit: float) -> None:
    Z, Y = _data(50, noise=0.5)
    one, other = (_fitted(_problem(), Z, k * Y).predict_set(Z)["mu"] / k for k in (1.0, unit))
    np.testing.assert_allclose(other, one, rtol=1e-6)


@pytest.mark.parametrize("bend", [0.0, 2.0])
def test_locations_fitted_to_outcomes_are_mean_predictions(bend: float) -> None:
    """The same networks by the same steps, but for rounding: sets stand around what mean prediction would say."""
    Z, Y = _data(60, noise=0.5, bend=bend)
    problem = _problem()
    found = _fitted(problem, Z, Y).predict_set(Z)["mu"]
    mean = dro.baselines.MeanPrediction(problem, epochs=20).fit(Z, Y).predict_mean(Z)
    assert np.sqrt(((found - mean) ** 2).mean()) < 0.01 * Y.std()


def test_a_model_of_ones_own_keeps_its_start() -> None:
    Z, Y = _data(40)
    own = SetModel(_problem().ambiguity, 3, (4,), torch.Generator().manual_seed(0))
    fitted = _fitted(_problem(), Z, Y, model=own, pretraining=dro.Stage(epochs=2, locations="outcomes"))
    assert not bool(fitted.pipeline_.model.networks[0].straight)


def test_without_validation_data_training_begins_at_nothing() -> None:
    Z, Y = _data(40)
    fitted = _fitted(_problem(), Z, Y, trainer=dro.Trainer(progress=False, validation_share=0.0))
    assert not bool(fitted.pipeline_.model.networks[0].straight)
    assert not bool(dro.baselines.MeanPrediction(_problem(), validation_share=0.0).fit(Z, Y).model_.network.straight)


def test_a_saved_learner_keeps_its_linear_part(tmp_path: Any) -> None:
    Z, Y = _data(60)
    problem = _problem()
    fitted = _fitted(problem, Z, Y)
    fitted.save(tmp_path / "linear")
    again = dro.DecisionFocusedLearner.load(tmp_path / "linear", problem)
    np.testing.assert_array_equal(again.predict_set(Z)["mu"], fitted.predict_set(Z)["mu"])


def test_no_epochs_are_no_training() -> None:
    Z, Y = _data(40)
    for policy in (dro.baselines.MeanPrediction(_problem(), epochs=0), dro.baselines.MeanPrediction(_problem())):
        assert bool(policy.fit(Z, Y).model_.network.straight) is bool(policy.epochs)
    fitted = _fitted(_problem(), Z, Y, pretraining=dro.Stage(epochs=0))
    assert not bool(fitted.pipeline_.model.networks[0].straight)


def test_a_start_without_a_score_is_no_best_one() -> None:
    training, held_out = (examples(_problem(), *_data(30, seed=seed)) for seed in (0, 1))
    model = MeanModel(3, 2, ())
    model.take_units(training.Z, training.Y)
    asked = []

    def score(data: Examples) -> float:
        asked.append(float(model.error(data.Z, data.Y)))
        return asked[-1] if len(asked) > 1 else float("nan")

    train(model, model.error, score, training, held_out, epochs=5, lr=0.1, batch_size=10, seed=0)
    assert float(model.error(held_out.Z, held_out.Y)) == pytest.approx(min(asked[1:]))
    assert min(asked[1:]) < asked[0]
