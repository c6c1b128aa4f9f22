"""Options of the learner that change what is fitted and how: polynomials, locations, anchor, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from conelayers.surrogate.proposal import Energy
from drolayers.learning.model import SetModel, polynomials
from drolayers.learning.pretraining import PredictionLoss
from tests.drolayers.learning.small import learner, sales, shop


def _curved(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, outcomes, and their true means, which bend strongly."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(-1.0, 1.0, size=(count, 1))
    mean = 5.0 + 4.0 * np.concatenate([Z**2, -(Z**2)], 1)
    return Z, mean + 0.1 * rng.standard_normal((count, 2)), mean


def _fitted(**settings: Any) -> dro.DecisionFocusedLearner:
    """A learner of the continuous shop."""
    return learner(shop(False).problem, **settings)


def test_polynomials_are_all_monomials() -> None:
    z = torch.tensor([[2.0, 3.0], [-1.0, 5.0]])
    a, b = z[:, 0], z[:, 1]
    torch.testing.assert_close(polynomials(z, 1), z)
    torch.testing.assert_close(polynomials(z, 2), torch.stack([a, b, a * a, a * b, b * b], 1))
    cubic = polynomials(z, 3)
    assert cubic.shape == (2, 9)
    torch.testing.assert_close(cubic[:, 5:], torch.stack([a**3, a * a * b, a * b * b, b**3], 1))


def test_degree_reaches_the_default_model() -> None:
    Z, Y = sales(20)
    model = _fitted(model__degree=2, training__epochs=1, pretraining__epochs=1).fit(Z, Y).pipeline_.model
    assert isinstance(model, SetModel)
    assert model.degree == 2
    assert model.networks[0].layers[0].in_features == 5
    inner = (polynomials(torch.as_tensor(Z), 2) - model.input_shift) / model.input_scale
    assert bool((inner.std(0) > 0.5).all())  # monomials are standardised one by one


def test_without_hidden_layers_a_degree_of_two_bends() -> None:
    """A linear model cannot follow a parabola, one of its squares can."""
    Z, Y, mean = _curved(100)
    errors = []
    for degree in (1, 2):
        model = _fitted(
            model__hidden=(),
            model__degree=degree,
            training=None,
            pretraining__epochs=150,
            pretraining__rate=0.05,
            pretraining__batch_size=100,
            trainer__validation_share=0.0,
        )
        errors.append(np.abs(model.fit(Z, Y).predict_set(Z)["0.mu"] - mean).mean())
    assert errors[1] < 0.25 * errors[0]


@pytest.mark.parametrize("degree", [0, -1, 1.5, "2"])
def test_a_degree_that_is_none_is_refused(degree: Any) -> None:
    with pytest.raises(dro.ModelError, match="degree"):
        _fitted(model__degree=degree).fit(*sales(20))


def test_outcomes_have_no_bias_of_neighbours() -> None:
    """The neighbours' mean flattens a bend; with many of them among few points the difference is plain."""
    Z, Y, mean = _curved(60)
    errors = {}
    for locations in ("nominal", "outcomes"):
        model = _fitted(
            nominal=dro.nominal.KNN(k=25),
            model__hidden=(),
            model__degree=2,
            training=None,
            pretraining__epochs=150,
            pretraining__rate=0.05,
            pretraining__batch_size=60,
            trainer__validation_share=0.0,
            projection=None,
            pretraining__locations=locations,
        )
        errors[locations] = float(np.abs(model.fit(Z, Y).predict_set(Z)["0.mu"] - mean).mean())
    assert errors["outcomes"] < 0.5 * errors["nominal"]


def test_outcomes_are_fitted_as_well_as_a_regression_fits_them() -> None:
    """A constant outcome, of no spread, and noise that a longer training follows: neither spoils the locations."""
    rng = np.random.default_rng(4)
    Z = rng.standard_normal((260, 5))
    constant = 0.1 + np.where(np.arange(260) % 2, 1e-17, 0.0) + rng.choice([0.0, 2e-17], 260)
    mean = np.hstack([constant[:, None], (Z @ rng.standard_normal((5, 7))) ** 2 / 10.0])
    y, x = dro.Uncertain(8), cp.Variable(8, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    rows, held, unit = slice(0, 80), slice(80, 260), mean.std(0) + (mean.std(0) < 1e-12)
    for noise in (0.0, 0.5):
        Y = mean + noise * unit * rng.standard_normal(mean.shape) * (mean.std(0) > 1e-12)
        pretraining = dro.Stage(rate=3e-3, decay=3.0, locations="outcomes")
        settings: dict[str, Any] = {"pretraining": pretraining, "training": None, "projection": None}
        settings["model"] = dro.Network(extrapolate=True)
        mine = dro.DecisionFocusedLearner(problem, trainer=dro.Trainer(progress=False), **settings)
        mine.fit(Z[rows], Y[rows], validation=(Z[held], Y[held]))
        other = dro.baselines.MeanPrediction(problem).fit(Z[rows], Y[rows], validation=(Z[held], Y[held]))
        found, expected = (
            float((((one - mean[held]) / unit) ** 2).mean())
            for one in (mine.predict_set(Z[held])["mu"], other.predict_mean(Z[held]))
        )
        assert found < 1.15 * expected
        # Bounds are fitted all the same, to what is around the locations.
        sigma = mine.predict_set(Z[held])["sigma"]
        assert 0.3 < np.median(sigma[:, 1:] / ((mine.predict_set(Z[held])["mu"] - Y[held]) ** 2).mean(0)[1:]) < 3.0


@pytest.mark.parametrize("shape", ["ellipsoid", "box"])
def test_shapes_are_those_of_what_is_left_around_the_centres(shape: Any) -> None:
    """Contexts move outcomes farther than noise does: neighbours lie apart for that, what is left does not."""
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((500, 6))
    root = np.array([[0.5, 0.0], [0.45, 0.15]])
    Y = Z @ rng.standard_normal((6, 2)) + rng.standard_normal((500, 2)) @ root.T
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.Outcomes(y, shape))
    learner = dro.DecisionFocusedLearner(
        problem, training=None, projection=None, trainer=dro.Trainer(progress=False, budget=0.0)
    ).fit(Z[:400], Y[:400])
    found = learner.predict_set(Z[400:])
    left, multiple = Y[400:] - found["centre"], problem.ambiguity._multiple
    covariance = left.T @ left / len(left)
    assert np.trace(covariance) < 2.0 * np.trace(root @ root.T)
    if shape == "box":
        mine = np.median(found["radius"] / multiple, axis=0) ** 2
        assert np.all(np.abs(np.log(mine / np.diag(covariance))) < 1.0)
        return
    factor = found["factor"] / multiple
    mine = np.median(factor @ factor.transpose(0, 2, 1), axis=0)
    # The whole shape, correlation included: both ways round, one covariance in units of the other is near one.
    assert np.all(np.abs(np.log(np.linalg.eigvals(np.linalg.solve(covariance, mine)).real)) < 1.0)


def test_bounds_are_still_fitted_to_the_neighbours() -> None:
    """A single outcome has no spread, so σ is pulled to that of Q_z, however locations are fitted."""
    ambiguity = shop(False).problem.ambiguity
    Y = torch.as_tensor(sales(20)[1])
    loss = PredictionLoss(ambiguity, Y)
    nominal = (Y[torch.arange(15).reshape(3, 5)], torch.full((3, 5), 0.2, dtype=torch.float64))
    gradients = []
    for outcomes in (None, Y[15:18]):
        mu = (Y[15:18] + 0.0).requires_grad_()
        sigma = torch.full((3,), 0.1, dtype=torch.float64, requires_grad=True)
        theta = ambiguity.pack({"0.mu": mu, "0.sigma": sigma})
        gradients.append(torch.autograd.grad(loss(theta, nominal, "both", outcomes), (mu, sigma)))
    (to_neighbours, first), (to_outcomes, second) = gradients
    torch.testing.assert_close(first, second)
    assert bool((first < 0).all())
    assert bool((to_neighbours.abs().amax(1) > 1e-3).all())
    # Here μ is the outcome itself, which is where its own term is smallest.
    torch.testing.assert_close(to_outcomes, torch.zeros_like(to_outcomes))


def test_unknown_locations_are_refused() -> None:
    with pytest.raises(dro.ModelError, match="locations must be one of"):
        _fitted(pretraining__locations="neighbours").fit(*sales(20))


def test_a_huge_anchor_keeps_locations_at_the_regression() -> None:
    """Trained on decisions alone locations drift; with a huge anchor they end where the outcomes' regression does."""
    Z, Y = sales(60)
    common = {
        "model__hidden": (),
        "pretraining__locations": "outcomes",
        "pretraining__epochs": 120,
        "pretraining__rate": 0.05,
        "pretraining__batch_size": 60,
        "trainer__validation_share": 0.0,
    }
    start = _fitted(training=None, **common).fit(Z, Y).predict_set(Z)["0.mu"]
    moved = {}
    for anchor in (0.0, 1e6):
        model = _fitted(
            training__anchor=anchor,
            training__batch_size=60,
            training__epochs=25,
            training__rate=0.02,
            training__decay=1.0,
            **common,
        ).fit(Z, Y)
        moved[anchor] = float(np.abs(model.predict_set(Z)["0.mu"] - start).mean())
    assert moved[0.0] > 0.05
    assert moved[1e6] < 0.3 * moved[0.0]


@pytest.mark.parametrize("anchor", [-1.0, -1e-9, float("nan")])
def test_a_negative_anchor_is_refused(anchor: float) -> None:
    with pytest.raises(dro.ModelError, match="anchor"):
        _fitted(training__anchor=anchor).fit(*sales(20))


def test_a_ball_has_nothing_to_anchor() -> None:
    with pytest.raises(dro.ModelError, match="anchor= needs a moment set"):
        learner(shop(ambiguity="ball").problem, training__anchor=1.0).fit(*sales(20))


def test_proposal_and_enumeration_reach_the_layer() -> None:
    Z, Y = sales(20)
    proposal = Energy()
    problem = shop().problem
    given = dro.DROLayer(problem, proposal=proposal, enumerate_up_to=7)
    model = learner(problem, layer=given, training__epochs=1, pretraining__epochs=1).fit(Z, Y)
    layer = model.pipeline_.layer
    assert layer.proposal is proposal
    assert layer.enumerate_up_to == 7


@pytest.mark.parametrize(("limit", "sampled"), [(0, True), (32, False)])
def test_enumerate_up_to_decides_who_is_asked(limit: int, sampled: bool) -> None:
    """Two switches make four combinations: enumerated by default, and found by the oracle where that is forbidden."""
    Z, Y = sales(20)
    problem = shop().problem
    layer = dro.DROLayer(problem, enumerate_up_to=limit)
    model = learner(problem, layer=layer, training__epochs=1, pretraining__epochs=1).fit(Z, Y)
    model.pipeline_.train()
    decision = model.pipeline_(torch.as_tensor(Z[:3]))
    assert (decision.oracle is not None) == sampled
    assert bool(decision.ok.all())


def test_saving_keeps_the_degree(tmp_path: Path) -> None:
    Z, Y = sales(30)
    problem = shop().problem
    model = learner(problem, model__degree=3, training__epochs=1, pretraining__epochs=1).fit(Z, Y)
    model.save(tmp_path / "model.safetensors")
    again = dro.DecisionFocusedLearner.load(tmp_path / "model.safetensors", problem)
    assert again.model.degree == again.pipeline_.model.degree == 3
    for name, value in model.predict_set(Z).items():
        np.testing.assert_allclose(again.predict_set(Z)[name], value, rtol=1e-12)
    for variable, value in model.decide(Z).items():
        np.testing.assert_allclose(again.decide(Z)[variable], value, atol=1e-7)


def test_saving_keeps_the_other_options(tmp_path: Path) -> None:
    Z, Y = sales(30)
    problem = shop().problem
    pretraining = dro.Stage(epochs=1, rate=1e-2, locations="outcomes")
    training = dro.Stage(epochs=1, anchor=0.5, temperature=2.0)
    model = learner(problem, pretraining=pretraining, training=training, projection="clip", seed=3).fit(Z, Y)
    model.save(tmp_path / "model.safetensors")
    again = dro.DecisionFocusedLearner.load(tmp_path / "model.safetensors", problem)
    assert (again.pretraining, again.training, again.projection, again.seed) == (pretraining, training, "clip", 3)
    own = learner(problem, projection=dro.Projection(problem.ambiguity), training__epochs=1).fit(Z, Y)
    own.save(tmp_path / "own")
    with pytest.raises(dro.ModelError, match="projection of your own"):
        dro.DecisionFocusedLearner.load(tmp_path / "own", problem)
    again = dro.DecisionFocusedLearner.load(tmp_path / "own", problem, projection=dro.Projection(problem.ambiguity))
    np.testing.assert_allclose(again.loss(Z, Y), own.loss(Z, Y), rtol=1e-9)
