from __future__ import annotations

import warnings
from dataclasses import dataclass

import cvxpy as cp
import distributed
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from torch import nn

import drolayers as dro
from conelayers import Exact, Smoothed
from drolayers.learning import Annealed, SetModel
from drolayers.learning.deprecated import OF_LAYER
from research.problems import Portfolio, PortfolioData
from tests.drolayers.learning.small import assert_learnt, bets, learner, sales, shop, weights


@pytest.fixture(scope="module")
def fitted() -> tuple[dro.DecisionFocusedLearner, np.ndarray, np.ndarray]:
    Z, Y = sales(40)
    return learner(shop().problem, training__epochs=3).fit(Z, Y), Z, Y


def test_fit_decide_predict_set_loss_and_score(fitted) -> None:
    model, Z, Y = fitted
    decision = model.decide(Z[:7])
    shapes = {variable.name(): value.shape for variable, value in decision.items()}
    assert shapes == {"retail": (7, 2), "lots": (7, 2)}
    assert all(np.isfinite(value).all() for value in decision.values())
    sets = model.predict_set(Z[:7])
    assert {name: value.shape for name, value in sets.items()} == {"0.mu": (7, 2), "0.sigma": (7,)}
    assert (sets["0.sigma"] > 0).all()
    retail, lots = model.decide(Z).values()
    stock = retail + 2.0 * lots
    by_hand = retail.sum(1) + 1.8 * lots.sum(1) + np.maximum(4.0 * (Y - stock), stock - Y).sum(1)
    assert model.loss(Z, Y) == pytest.approx(by_hand.mean(), rel=1e-9)
    assert model.score(Z, Y) == -model.loss(Z, Y)
    assert [len(rows) for rows in model.history_.values()] == [2, 3]


def test_the_predicted_set_contains_the_nominal_distribution(fitted) -> None:
    model, Z, _ = fitted
    atoms, mass = model.pipeline_.nominal(torch.as_tensor(Z))
    sets = model.predict_set(torch.as_tensor(Z))
    spread = (mass * ((atoms - sets["0.mu"][:, None]) ** 2).sum(2)).sum(1)
    assert bool((spread <= sets["0.sigma"] * (1 + 1e-9)).all())


def test_training_lowers_the_loss() -> None:
    Z, Y = sales(60)
    before = learner(shop(False).problem, pretraining=None, training__epochs=1, training__rate=1e-9).fit(
        Z, Y, validation=(Z, Y)
    )
    after = learner(shop(False).problem, pretraining=None, training__epochs=12, training__rate=2e-2).fit(
        Z, Y, validation=(Z, Y)
    )
    first, last = (model.fit(Z, Y, validation=(Z, Y)).loss(Z, Y) for model in (before, after))
    assert last < first - 0.02


def test_numpy_pandas_torch_and_lists_give_one_answer(fitted) -> None:
    model, Z, Y = fitted
    table = pd.DataFrame(Z, columns=["a", "b"])
    other = learner(model.problem, training__epochs=3).fit(table, pd.DataFrame(Y))
    np.testing.assert_array_equal(weights(other), weights(model))
    expected = list(model.decide(Z).values())
    for form in (table, Z.tolist(), torch.as_tensor(Z), torch.as_tensor(Z).float().double()):
        for found, wanted in zip(model.decide(form).values(), expected, strict=True):
            np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-5)
    assert other.feature_names_in_ == ["a", "b"]
    with pytest.raises(dro.ShapeError, match=r"columns \['a', 'b'\]"):
        other.decide(table[["b", "a"]])


def test_columns_that_hold_no_numbers_are_named() -> None:
    Z, Y = sales(20)
    table = pd.DataFrame(Z, columns=["a", "b"])
    for wrong in (["up", "down"] * 10, pd.Categorical(["up", "down"] * 10), pd.array([1, None] * 10, dtype="Int64")):
        with pytest.raises(dro.ShapeError, match=r"columns \['c'\].*pandas\.get_dummies"):
            learner(shop().problem).fit(table.assign(c=wrong), Y)


@pytest.mark.parametrize("name", ["Z", "Y"])
def test_nan_is_refused_with_its_rows(name: str) -> None:
    data = dict(zip("ZY", sales(20), strict=True))
    data[name][3, 1] = np.nan
    with pytest.raises(dro.ShapeError, match=rf"{name} holds NaN or infinity in rows \[3\]"):
        learner(shop().problem).fit(data["Z"], data["Y"])


@pytest.mark.parametrize(
    ("Z", "Y", "says"),
    [
        (np.zeros((5, 2)), np.zeros((4, 2)), "5 rows and Y has 4"),
        (np.zeros((5, 2)), np.zeros((5, 3)), "2 columns, not 3"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "non-empty"),
        (np.zeros((5, 2, 1)), np.zeros((5, 2)), "table"),
        ([["a", "b"]], [[1.0, 2.0]], "holds text"),
    ],
)
def test_wrong_shapes_are_named(Z, Y, says: str) -> None:
    with pytest.raises(dro.ShapeError, match=says):
        learner(shop().problem).fit(Z, Y)


def test_wrong_shapes_after_fitting(fitted) -> None:
    model, Z, Y = fitted
    with pytest.raises(dro.ShapeError, match="2 columns, as in training, not 3"):
        model.decide(np.zeros((4, 3)))
    with pytest.raises(dro.ShapeError, match="rows"):
        model.loss(Z, Y[:-1])
    with pytest.raises(NotFittedError):
        learner(model.problem).decide(Z)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"strategy": "guess"}, "strategy"),
        ({"wings": 2}, "no argument 'wings'"),
        ({"training": 3}, "training must be"),
        ({"layer": "fast"}, "layer must be"),
        ({"layer": dro.DROLayer(shop().problem)}, "another problem"),
        ({"projection": dro.Projection(shop().problem.ambiguity)}, "another set"),
        ({"training__gradient": "rough"}, "gradient"),
        ({"trainer__resume": True}, "directory"),
        ({"trainer__validation_share": 1.0}, "validation_share"),
        ({"projection": "nearest"}, "method"),
    ],
)
def test_settings_that_make_no_sense(settings, says: str) -> None:
    with pytest.raises(dro.ModelError, match=says):
        learner(shop().problem, **settings).fit(*sales())


def test_a_constant_column_changes_nothing_but_the_width() -> None:
    Z, Y = sales(20)
    wide = np.concatenate([Z, np.full((20, 1), 7.0)], 1)
    model = learner(shop().problem).fit(wide, Y)
    assert np.isfinite(model.loss(wide, Y))
    moved = wide + np.array([0.0, 0.0, 1e-3])
    # The first layer sees the column standardised to zero, in units of its size: a thousandth is next to nothing there.
    assert abs(model.loss(moved, Y) - model.loss(wide, Y)) < 1e-3


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_points_than_neighbours(count: int) -> None:
    Z, Y = sales(count)
    with pytest.warns(UserWarning, match="training points"):
        model = learner(shop().problem, nominal=dro.nominal.KNN(k=20)).fit(Z, Y)
    assert np.isfinite(model.loss(Z, Y))


def test_no_row_that_could_be_solved_ends_the_fit() -> None:
    """An infinite worst case, since predicted sets are never empty."""
    Z, Y = sales(20)
    y, stock = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(cp.maximum(4.0 * (y - stock), stock - y))
    # Both coordinates may grow together without bound.
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.Linear(mu=[1.0, -1.0])]))
    own = nn.Linear(2, 1)
    start = torch.nn.utils.parameters_to_vector(own.parameters()).detach().clone()
    with pytest.raises(dro.SolveError, match="INFINITE_WORST_CASE"):
        learner(problem, model=own, projection=None, pretraining=None).fit(Z, Y)
    torch.testing.assert_close(torch.nn.utils.parameters_to_vector(own.parameters()).detach(), start)


def test_a_model_of_ones_own_is_trained_but_not_changed() -> None:
    Z, Y = sales()
    own = nn.Sequential(nn.Linear(2, 3), nn.Softplus())
    before = torch.nn.utils.parameters_to_vector(own.parameters()).detach().clone()
    model = learner(shop().problem, model=own).fit(Z, Y)
    assert torch.equal(torch.nn.utils.parameters_to_vector(own.parameters()), before)
    assert not np.allclose(weights(model), before.double().numpy())
    assert not len(model.nominal.covariates)  # nor is the nominal distribution
    with pytest.raises(dro.ShapeError, match=r"\(batch, 3\), not \(1, 4\)"):
        learner(shop().problem, model=nn.Linear(2, 4)).fit(Z, Y)


def test_prediction_alone() -> None:
    model = learner(shop().problem, training=None, pretraining__epochs=4).fit(*sales())
    assert list(model.history_) == ["prediction"]


def test_a_wasserstein_ball_learns_its_radius() -> None:
    assert_learnt(*bets(lambda y: dro.Wasserstein(y, 20, norm=2)))
    Z, Y = sales()
    model = learner(shop(ambiguity="ball").problem).fit(Z, Y)
    assert list(model.history_) == ["decision"]
    with pytest.warns(UserWarning, match="radius"):
        learner(shop(ambiguity="ball").problem, training=None).fit(Z, Y)


def test_what_is_not_learnt_is_seen() -> None:
    """The helper fails where nothing moves, and where the loss is climbed."""
    problem, Z, Y = bets(lambda y: dro.Wasserstein(y, 20, norm=2))
    with pytest.raises(AssertionError, match="radius has not moved"):
        assert_learnt(problem, Z, Y, training__rate=1e-12)
    with pytest.raises(AssertionError, match="the loss has not fallen"):
        assert_learnt(problem, Z, Y, training__rate=lambda epoch: -1e-2)


def test_parameters_without_meaning_are_skipped_in_pretraining() -> None:
    Z, Y = sales()
    problem = shop(False, "linear").problem
    with pytest.warns(UserWarning, match=r"leaves \['1.mu'\] alone"):
        model = learner(problem, training=None).fit(Z, Y)
    fresh = SetModel(problem.ambiguity, 2, (8,), torch.Generator().manual_seed(0)).double()
    moved = [
        any(not torch.equal(a, b) for a, b in zip(trained.parameters(), new.parameters(), strict=True))
        for trained, new in zip(model.pipeline_.model.networks, fresh.networks, strict=True)
    ]
    assert dict(zip(problem.ambiguity.parameters, moved, strict=True))["1.mu"] is False
    assert dict(zip(problem.ambiguity.parameters, moved, strict=True))["0.mu"] is True


def test_flat_problems_are_smoothed_with_an_annealed_level() -> None:
    data = PortfolioData.generate(5, 60)
    portfolio = Portfolio(5)
    assert portfolio.problem.program.flat
    seen = []

    def watch(epoch: int) -> float:
        seen.append(model.pipeline_.layer.gradient)
        return 1.0

    model = learner(portfolio.problem, training__epochs=3, training__temperature=watch)
    model.fit(data.Z, data.Y)
    last = model.pipeline_.layer.gradient
    assert seen[0] == Smoothed(1e-2)
    assert seen[1] == Smoothed(1e-2)
    assert seen[2].level < 1e-2
    assert isinstance(last, Smoothed)
    assert last.level < seen[2].level
    by_hand = learner(portfolio.problem, training__epochs=1, training__gradient="exact").fit(data.Z, data.Y)
    assert isinstance(by_hand.pipeline_.layer.gradient, Exact)


def test_exact_gradients_where_the_map_is_not_flat(fitted) -> None:
    assert isinstance(fitted[0].pipeline_.layer.gradient, Exact)


def test_temperatures_follow_their_schedule() -> None:
    seen = []

    def hot(epoch: int) -> float:
        seen.append((epoch, Annealed(10.0, 3.0, 2)(epoch)))
        return seen[-1][1]

    model = learner(shop().problem, training__epochs=5, training__temperature=hot).fit(*sales())
    assert seen == [(0, 10.0), (1, 10.0), (2, 10.0 / 3), (3, 10.0 / 3), (4, 10.0 / 9)]
    assert model.pipeline_.layer.temperature <= 10.0
    fixed = learner(shop().problem, training__epochs=1, training__temperature=2.5).fit(*sales())
    assert fixed.pipeline_.layer.temperature == 2.5


def test_learning_rates_follow_their_schedule() -> None:
    Z, Y = sales()
    rates = (1e-3, lambda epoch: 1e-3 / 3**epoch)
    same = [learner(shop(False).problem, training__rate=rate, training__decay=3.0).fit(Z, Y) for rate in rates]
    # Two epochs are divided by a third each: every epoch has its own rate.
    np.testing.assert_allclose(weights(same[0]), weights(same[1]), rtol=0, atol=1e-12)
    frozen = learner(shop(False).problem, training__rate=lambda epoch: 1e-30).fit(Z, Y)
    assert not np.allclose(weights(frozen), weights(same[0]))


def test_early_stopping_and_the_best_epoch() -> None:
    Z, Y = sales(30)
    # With no learning at all every epoch ties with the first.
    model = learner(shop(False).problem, training__epochs=20, training__rate=1e-30, training__patience=2).fit(Z, Y)
    assert len(model.history_["decision"]) == 3
    wild = learner(shop(False).problem, training__epochs=6, training__rate=0.5).fit(Z, Y, validation=(Z, Y))
    best = min(row["val_decision_loss"] for row in wild.history_["decision"])
    assert wild.loss(Z, Y) == pytest.approx(best, abs=1e-6)


def test_one_seed_one_result(fitted) -> None:
    model, Z, Y = fitted
    np.testing.assert_array_equal(weights(learner(model.problem, training__epochs=3).fit(Z, Y)), weights(model))
    assert not np.allclose(weights(learner(model.problem, training__epochs=1, seed=1).fit(Z, Y)), weights(model))


def test_settings_and_clones(fitted) -> None:
    model, Z, _ = fitted
    assert model.get_params()["training__batch_size"] == 10
    copy = clone(model)
    assert copy.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    assert copy.problem is model.problem
    assert copy.nominal is not model.nominal
    with pytest.raises(NotFittedError):
        copy.decide(Z)
    assert copy.set_params(training__rate=0.5).training.rate == 0.5
    assert model.training.rate != 0.5
    assert dro.DecisionFocusedLearner(model.problem).training.rate == dro.Stage().rate
    for wrong in ({"nonsense": 1}, {"training__nonsense": 1}, {"layer__samples": 1}):
        with pytest.raises(ValueError, match=r"nonsense|layer"):
            copy.set_params(**wrong)


def _search() -> tuple[GridSearchCV, np.ndarray, np.ndarray]:
    Z, Y = sales(16)
    model = learner(shop(False).problem, training__epochs=1, pretraining__epochs=1)
    return GridSearchCV(model, {"training__rate": [1e-3, 1e-2]}, cv=2, n_jobs=2, error_score="raise"), Z, Y


def test_grid_search() -> None:
    search, Z, Y = _search()
    with joblib.parallel_config("threading"):
        search.fit(Z, Y)
    # By hand: each half is judged by what was learnt from the other.
    halves = np.arange(8), np.arange(8, 16)
    scores = []
    for lr in (1e-3, 1e-2):
        model = learner(search.estimator.problem, training__epochs=1, pretraining__epochs=1, training__rate=lr)
        scores.append(np.mean([model.fit(Z[a], Y[a]).score(Z[b], Y[b]) for a, b in (halves, halves[::-1])]))
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores, rtol=1e-9)
    assert abs(scores[0] - scores[1]) > 1e-6
    assert search.best_params_["training__rate"] == (1e-3, 1e-2)[int(np.argmax(scores))]
    assert next(iter(search.best_estimator_.decide(Z).values())).shape == (16, 2)


def test_a_sweep_and_an_oracle_on_a_dask_cluster() -> None:
    search, Z, Y = _search()
    made = shop()
    theta = torch.tensor([[2.5, 2.5, 0.5]], dtype=torch.float64).repeat(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
        with cluster, distributed.Client(cluster), joblib.parallel_config("dask"):
            search.fit(Z, Y)
            remote = dro.DROLayer(made.problem, oracle="scip").eval()(theta)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    local = dro.DROLayer(made.problem).eval()(theta)
    torch.testing.assert_close(remote.value, local.value, rtol=1e-6, atol=1e-6)


def test_arguments_of_the_last_version_are_told_where_they_are_now() -> None:
    problem = shop().problem
    old = {"epochs": 3, "pretrain_epochs": 2, "batch_size": 7, "hidden": (4,), "samples": 2, "strategy": "decision"}
    with pytest.warns(FutureWarning, match=r"training=dro.Stage\(epochs=3, batch_size=7\)") as warned:
        model = dro.DecisionFocusedLearner(problem, **old)
    assert (model.training.epochs, model.training.batch_size, model.pretraining.epochs) == (3, 7, 2)
    assert (model.model, model.layer.samples) == (dro.Network((4,)), 2)
    assert warned[0].filename == __file__
    with pytest.warns(FutureWarning, match="training=None"):
        assert dro.DecisionFocusedLearner(problem, strategy="prediction").training is None
    # It was the fourth argument.
    with pytest.warns(FutureWarning, match="training=None"):
        by_place = dro.DecisionFocusedLearner(problem, None, None, "prediction")
    assert (by_place.training, by_place.projection) == (None, "auto")
    with pytest.warns(FutureWarning, match="training=dro.Stage") as warned:
        assert by_place.set_params(training=dro.Stage(), epochs=4).training == dro.Stage(epochs=4)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("hidden", (4,)), ("degree", 2), ("temperature", 2.0), ("gradient", "exact"), ("smoothing", 0.1)],
        *[("margin", 0.5), ("leave_one_out", False), ("pretrain_epochs", 7), ("pretrain_lr", 0.1), ("epochs", 7)],
        *[("lr", 0.1), ("lr_divisor", 2.0), ("batch_size", 7), ("gradient_clip", None), ("patience", 2)],
        *[("validation_share", 0.5), ("directory", "runs"), ("progress", False), ("devices", 2), ("anchor", 1.0)],
        *[
            ("locations", "outcomes"),
            ("candidates", 2),
            ("samples", 2),
            ("oracle", "enumeration"),
            ("engine", "clarabel"),
        ],
        *[("proposal", None), ("enumerate_up_to", 0)],
    ],
)
def test_what_is_advised_instead_of_an_old_argument_is_the_same(name: str, value: object) -> None:
    problem = shop().problem
    with pytest.warns(FutureWarning) as warned:
        old = dro.DecisionFocusedLearner(problem, **{name: value})
    advice = str(warned[0].message).split("write ")[1].removesuffix(".").replace("; ", ", ")
    new = eval(f"dro.DecisionFocusedLearner(problem, {advice})", {"dro": dro, "problem": problem})
    for part in ("model", "pretraining", "training", "trainer"):
        assert getattr(old, part) == getattr(new, part)
    assert repr(old.projection) == repr(new.projection)
    assert (old.layer is None) == (new.layer is None) == (name not in OF_LAYER)
    if old.layer is not None:
        one, other = (
            (
                *(layer.candidates, layer.samples, layer.enumerate_up_to, type(layer.proposal)),
                *(layer.engine.solver.name, None if layer.oracle is None else layer.oracle.name),
            )
            for layer in (old.layer, new.layer)
        )
        assert one == other


def test_a_layer_and_a_projection_that_are_handed_in_are_used_and_not_changed() -> None:
    problem = shop().problem
    layer = dro.DROLayer(problem, candidates=2, samples=1, temperature=7.0, enumerate_up_to=0)
    projection = dro.Projection(problem.ambiguity, margin=0.5)
    model = learner(problem, layer=layer, projection=projection).fit(*sales())
    assert model.pipeline_.projection is projection
    assert model.pipeline_.layer is not layer
    assert (model.pipeline_.layer.candidates, model.pipeline_.layer.temperature) == (2, 7.0)
    annealed = learner(problem, layer=layer, training__temperature=2.0, training__gradient="smoothed").fit(*sales())
    assert annealed.pipeline_.layer.temperature == 2.0
    assert isinstance(annealed.pipeline_.layer.gradient, Smoothed)
    assert layer.temperature == 7.0
    assert isinstance(layer.gradient, Exact)


def test_an_objective_of_ones_own() -> None:
    """Training on the negative cost makes decisions worse."""

    @dataclass(frozen=True)
    class Worse:
        def __call__(self, problem, decision, y):
            return -decision.expected(lambda x: problem.loss(x, y))

    Z, Y = sales(40)
    problem = shop(False).problem
    options = {"pretraining": None, "training__epochs": 4, "training__rate": 2e-2, "trainer__validation_share": 0.0}
    best, worst = (learner(problem, objective=o, **dict(options)).fit(Z, Y).loss(Z, Y) for o in (None, Worse()))
    assert worst > best + 0.1


def test_given_bounds_leave_locations_to_be_fitted() -> None:
    """With every sigma given, the first training once did nothing at all, and its loss was zero."""
    Z, Y = sales(60)
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    cost = cp.sum(cp.maximum(3 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm(sigma=0.1)]))
    model = learner(problem, training=None, pretraining__epochs=60, trainer__validation_share=0.0, projection=None)
    model.fit(Z, Y)
    losses = [row["prediction_loss"] for row in model.history_["prediction"]]
    assert losses[-1] < 0.5 * losses[0]
    found = model.predict_set(Z)["0.mu"]
    # Outcomes are 2 + z plus the mean of a folded normal distribution.
    assert np.abs(found - (2.24 + Z)).mean() < 0.12


def test_flat_items_are_found_by_their_gradients_not_by_their_cones() -> None:
    """Where one asset is far better than the other it gets everything, which no second-order cone tells."""
    rng = np.random.default_rng(0)
    Z = rng.uniform(-1.0, 1.0, size=(200, 1))
    Y = np.concatenate([Z, -Z], 1) + 0.1 * rng.standard_normal((200, 2))
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(-(y @ x), [cp.sum(x) == 1], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    assert not problem.program.flat
    model = learner(problem, pretraining__epochs=30, training__epochs=1).fit(Z, Y)
    assert 0.2 < (model.decide(Z)[x].max(1) > 1 - 1e-6).mean() < 0.98
    assert isinstance(model.pipeline_.layer.gradient, Smoothed)


def test_neighbours_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    weigh = dro.nominal.KNN.weigh

    def counted(self, z, exclude):
        searched.append(len(z))
        return weigh(self, z, exclude)

    monkeypatch.setattr(dro.nominal.KNN, "weigh", counted)
    Z, Y = sales(24)
    model = learner(shop(False).problem, training__epochs=3).fit(Z, Y)
    # Whether atoms are chosen among equals, and then those of all points.
    assert searched == [20, 24]
    pipeline, rows = model.pipeline_, torch.arange(5)
    z = model.pipeline_.nominal.covariates[rows] * pipeline.nominal.scale + pipeline.nominal.shift
    for found, expected in zip(pipeline.around(z, rows), pipeline.nominal(z, exclude=rows), strict=True):
        torch.testing.assert_close(found, expected)


def test_distributions_that_are_no_weights_are_asked_at_every_step() -> None:
    class Shifted(dro.nominal.KNN.__mro__[1]):  # type: ignore[name-defined, misc]
        def __init__(self):
            super().__init__(None, True)
            self.asked = []

        def learn(self):
            """Nothing to prepare."""

        def weigh(self, z, exclude):
            return torch.ones(len(z), len(self.outcomes), dtype=z.dtype)

        def forward(self, z, exclude=None):
            self.asked.append(exclude)
            atoms = self.outcomes[:4].expand(len(z), -1, -1).to(z)
            return dro.Nominal(atoms, atoms.new_full((len(z), 4), 0.25))

    model = learner(shop(False).problem, nominal=Shifted()).fit(*sales(24))
    asked = [rows for rows in model.pipeline_.nominal.asked if rows is not None]
    # 20 rows are trained on, and those held out are excluded from nothing.
    assert max(int(rows.max()) for rows in asked) == 19
    assert any(bool((rows == -1).all()) for rows in asked)


def test_a_matrix_is_fitted_by_its_likelihood() -> None:
    """Contexts turn the noise: the ellipsoid of a context whitens it better than that of all data together."""
    rng = np.random.default_rng(0)
    Z = rng.integers(0, 2, size=(600, 1)).astype(float)
    straight, turned = np.array([[2.0, 0.0], [0.0, 0.2]]), np.array([[0.2, 0.0], [0.0, 2.0]])
    noise = rng.standard_normal((600, 2))
    Y = 5.0 + np.where(Z > 0.5, noise @ turned, noise @ straight)
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    ambiguity = dro.MomentSet(y, [dro.moments.Norm(2, A=dro.Learn(2, 2))])
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], ambiguity)
    stage = dro.Stage(60, 1e-2, batch_size=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dro.nominal.TiedAtomsWarning)
        model = learner(problem, training=None, pretraining=stage, nominal=dro.nominal.KNN(k=200)).fit(Z, Y)
    found = model.predict_set(np.array([[0.0], [1.0]]))
    for A, mu, noisy in zip(found["0.A"], found["0.mu"], (straight, turned), strict=True):
        # AΣAᵀ is the identity where A whitens; the start, of all data together, is off by a factor of ten.
        spread = np.linalg.eigvalsh(A @ noisy @ noisy.T @ A.T)
        assert 0.5 < spread.min() <= spread.max() < 2.0
        np.testing.assert_allclose(np.linalg.solve(A, mu), [5.0, 5.0], atol=0.3)


def _boxes() -> dro.DecisionProblem:
    """Whole boxes only."""
    y, boxes = dro.Uncertain(2), cp.Variable(2, boolean=True)
    cost = cp.sum(cp.maximum(4 * (y - 3 * boxes), 3 * boxes - y))
    return dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))


def test_integers_are_trained_on_in_training_mode() -> None:
    """In evaluation no points are drawn, and where all is integer no weight moves: Lightning takes what it finds."""
    Z, Y = sales(30)
    problem = _boxes()
    options = {"training__rate": 0.05, "trainer__validation_share": 0.0, "pretraining__epochs": 1}
    before = learner(problem, training=None, trainer__validation_share=0.0, pretraining__epochs=1).fit(Z, Y)
    after = learner(problem, training__epochs=2, **options).fit(Z, Y)
    assert np.abs(weights(after) - weights(before)).max() > 1e-3
    assert all(row["effective_sample_size"] > 1.05 for row in after.history_["decision"])
    modes = []

    class Watched(nn.Linear):
        def forward(self, z):
            modes.append(self.training)
            return super().forward(z)

    learner(
        problem, model=Watched(2, 3), training__epochs=1, pretraining=None, **{"trainer__validation_share": 0.0}
    ).fit(Z, Y)
    assert any(modes)


def test_given_centres_leave_bounds_to_be_fitted() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    cost = cp.sum(cp.maximum(3 * (y - x), x - y))
    Z, Y = sales(30)
    free = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm(mu=[2.7, 2.7])]))
    model = learner(free, pretraining__epochs=6, training=None).fit(Z, Y)
    losses = [row["prediction_loss"] for row in model.history_["prediction"]]
    assert losses[-1] < losses[0]
    fixed = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm(mu=[2.7, 2.7], sigma=1.0)]))
    with pytest.raises(dro.ModelError, match="no learnable parameters"):
        learner(fixed).fit(Z, Y)


def test_a_layer_that_is_handed_in_does_not_turn_smoothing_off() -> None:
    data = PortfolioData.generate(5, 60)
    portfolio = Portfolio(5)
    model = learner(portfolio.problem, layer=dro.DROLayer(portfolio.problem, candidates=5)).fit(data.Z, data.Y)
    assert isinstance(model.pipeline_.layer.gradient, Smoothed)
    own = dro.DROLayer(portfolio.problem, gradient=Smoothed(0.3))
    kept = learner(portfolio.problem, layer=own).fit(data.Z, data.Y)
    assert kept.pipeline_.layer.gradient == Smoothed(0.3)


def test_columns_of_outcomes_and_of_validation_data_are_checked() -> None:
    Z, Y = sales(20)
    contexts, outcomes = pd.DataFrame(Z, columns=["a", "b"]), pd.DataFrame(Y, columns=["u", "v"])
    problem = shop(False).problem
    with pytest.raises(dro.ShapeError, match="validation Z must have the columns"):
        learner(problem).fit(contexts, outcomes, validation=(contexts[["b", "a"]], outcomes))
    with pytest.raises(dro.ShapeError, match="validation Y must have the columns"):
        learner(problem).fit(contexts, outcomes, validation=(contexts, outcomes[["v", "u"]]))
    model = learner(problem, training=None).fit(contexts, outcomes)
    with pytest.raises(dro.ShapeError, match="Y must have the columns"):
        model.loss(contexts, outcomes[["v", "u"]])


def test_a_fit_that_fails_leaves_what_was_there() -> None:
    class Bad:
        def __call__(self, problem, decision, y):
            return decision.expected(lambda x: problem.loss(x, y)).mean()

    Z, Y = sales(20)
    model = learner(shop(False).problem, objective=Bad())
    with pytest.raises(dro.ShapeError, match="one loss an item"):
        model.fit(Z, Y)
    with pytest.raises(NotFittedError):
        model.decide(Z)
    model.set_params(objective=None).fit(Z, Y)
    before = model.loss(Z, Y)
    with pytest.raises(dro.ShapeError, match="one loss an item"):
        model.set_params(objective=Bad()).fit(Z, Y)
    assert model.loss(Z, Y) == before


def test_counts_of_numpy_and_models_that_need_batches() -> None:
    Z, Y = sales(20)
    stage = dro.Stage(epochs=np.int64(1), batch_size=np.int32(10), patience=np.int64(2), rate=lambda epoch: 0.0 * epoch)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    fitted = learner(shop(False).problem, model=model, pretraining=stage, training=stage, seed=np.int64(3)).fit(Z, Y)
    # Rates of zero: batch means move, weights do not; single contexts decide as they do among others.
    for kept, given in zip(fitted.pipeline_.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(kept, given.double())
    together, alone = (fitted.decision(z).value for z in (Z, Z[:1]))
    torch.testing.assert_close(alone, together[:1])


def test_violations_on_data() -> None:
    """By their definitions, written out."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    short = cp.sum(cp.pos(y - x))
    rules = [
        dro.expected(short) <= 1.0,
        dro.cvar(short, 0.75) <= 1.5,
        dro.chance(y <= x + 0.5, 0.6),
        dro.always(x <= y + 100.0),
        dro.expected(y[0]) + 2 * dro.cvar(short, 0.75) + dro.cvar(y[1], 0.5) <= 40.0 + x[0],
    ]
    problem = dro.DecisionProblem(cp.sum(x), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    learner = dro.DecisionFocusedLearner(
        problem, pretraining=dro.Stage(epochs=3), training=dro.Stage(epochs=1), nominal=dro.nominal.KNN(k=5)
    )
    Z, Y = sales()
    learner.fit(Z, Y)
    found = list(learner.violations(Z, Y).values())
    excess = Y - learner.decide(Z)[x]
    missing = np.sort(excess.clip(min=0).sum(1))
    # Each worst case by itself: the tail of a sum is smaller than the sum of tails.
    several = Y[:, 0].mean() + 2 * missing[-6:].mean() + np.sort(Y[:, 1])[-12:].mean()
    several -= 40.0 + learner.decide(Z)[x][:, 0].mean()
    expected = [missing.mean() - 1.0, missing[-6:].mean() - 1.5, (excess > 0.5).any(1).mean(), 0.0, several]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_training_without_decisions_says_so() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    impossible = dro.DecisionProblem(cp.sum(x), [dro.chance(y <= x, 0.8), x <= 1], ambiguity)
    with pytest.raises(dro.SolveError, match=r"None of (\d+) training rows was solved.*: \1 INFEASIBLE.*relax"):
        learner(impossible).fit(*sales(24))
