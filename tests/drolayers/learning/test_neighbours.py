"""Locations a part of the way to neighbours' means: what they are, when they are tried, and that they stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

import drolayers as dro
from conelayers.errors import ModelError
from drolayers.learning import storage
from drolayers.learning.comparison import SHARES, Choice, Comparison
from drolayers.learning.headers import check_header
from drolayers.learning.pipeline import Pipeline

SETS: dict[str, Any] = {
    "moments": lambda y: dro.MomentSet.grouped(y, 1),
    "two moments": lambda y: dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]),
    "image": lambda y: dro.MomentSet(y, [dro.moments.Norm(2, A=np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 1.0]]))]),
    "box": lambda y: dro.Outcomes(y, "box"),
    "covariance": dro.MeanCovariance,
}


def _problem(ambiguity: Any = SETS["moments"]) -> dro.DecisionProblem:
    """The cheapest of three ways."""
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    return dro.DecisionProblem(y @ x, [cp.sum(x) == 1], ambiguity(y))


def _data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """By the recipe of Elmachtoub and Grigas, degree 8: squared errors follow the few dearest, decisions need not."""
    rng = np.random.default_rng(seed)
    Z, weights = rng.standard_normal((count, 5)), np.random.default_rng(99).integers(0, 2, (5, 3))
    return Z, ((Z @ weights / 5.0**0.5 + 3.0) ** 8 + 1.0) / 3.5**8 * rng.uniform(0.5, 1.5, (count, 3))


def _pipeline(problem: dro.DecisionProblem, Z: np.ndarray, Y: np.ndarray) -> Pipeline:
    model = nn.Linear(5, problem.size, dtype=torch.float64)
    # Sizes well above zero: sets that are empty, or nearly so, grow around their witness.
    with torch.no_grad():
        model.weight.mul_(0.1)
        model.bias.fill_(1.0)
    nominal = dro.nominal.KNN(k=4).fit(torch.as_tensor(Z), torch.as_tensor(Y))
    return Pipeline(model, nominal, None, dro.DROLayer(problem)).eval()


@pytest.mark.parametrize("name", SETS)
def test_locations_move_by_the_share_and_nothing_else_does(name: str) -> None:
    """At a share of one they fit the neighbours' mean by themselves, as those of a single outcome fit it."""
    problem = _problem(SETS[name])
    sets, (Z, Y) = problem.sets, _data(30, 0)
    pipeline, z = _pipeline(problem, Z, Y), torch.as_tensor(Z[:5])
    atoms, weights = pipeline.nominal(z)
    aims = sets.aims((weights[..., None] * atoms).sum(1))
    assert aims
    before = problem.unpack(pipeline.theta(z).detach())
    for share in (0.25, 1.0):
        pipeline.share = share
        after = problem.unpack(pipeline.theta(z).detach())
        for parameter, value in after.items():
            wanted = before[parameter]
            if parameter in aims:
                wanted = (1.0 - share) * wanted + share * aims[parameter]
            torch.testing.assert_close(value, wanted)
    assert not torch.allclose(problem.pack(before), problem.pack(after))


def test_at_the_neighbours_with_sets_of_no_size_the_decision_is_the_weighted_sample_average() -> None:
    problem, (Z, Y) = _problem(), _data(40, 1)
    pipeline, (variable,) = _pipeline(problem, Z, Y), problem.variables
    pipeline.share = 1.0
    nn.init.zeros_(pipeline.model.weight)
    nn.init.constant_(pipeline.model.bias, 1e-12)
    found = pipeline.decide(torch.as_tensor(_data(20, 2)[0])).best[variable]
    policy = dro.baselines.WeightedSampleAverage(problem, dro.nominal.KNN(k=4)).fit(Z, Y)
    torch.testing.assert_close(found, policy.decide(torch.as_tensor(_data(20, 2)[0]))[variable], atol=1e-6, rtol=0.0)


def _learner(problem: dro.DecisionProblem, **settings: Any) -> dro.DecisionFocusedLearner:
    quick = {"training": dro.Stage(epochs=1), "trainer": dro.Trainer(progress=False)}
    return dro.DecisionFocusedLearner(problem, **(quick | settings))


@pytest.mark.parametrize(("errors", "kept"), [(2.0, 0.75), (200.0, 0.0)])
def test_trainings_begin_and_end_where_neighbours_are_clearly_better(errors: float, kept: float) -> None:
    """Row by row a share of one half gains, three quarters more; training from there gains nothing."""
    pipeline = _pipeline(_problem(), *_data(30, 0))
    seen: list[float] = []
    noise = torch.linspace(-1.0, 1.0, 50, dtype=torch.float64)

    def measure() -> tuple[torch.Tensor, float]:
        return 10.0 - pipeline.share * (1.0 + 0.5 * noise), 1.0

    def run(stage: dro.Stage, name: str, origin: str) -> None:
        seen.append(pipeline.share)

    comparison = Comparison(pipeline, run, measure, [None], shares=(0.5, 0.75), errors=errors)
    comparison.begun("fitted", lambda: None, usual=True)
    assert comparison.settle("") == [None]
    comparison.tried(Choice(None, dro.Stage(epochs=1, rate=1e-3)), "decision")
    found = comparison.keep()
    assert seen == [kept]
    assert pipeline.share == kept
    assert found.chosen is not None
    assert ("75% of the way to neighbours" in found.chosen.what) == bool(kept)


def test_a_share_is_saved_and_checked(tmp_path: Path) -> None:
    problem, path = _problem(), tmp_path / "model.safetensors"
    model = _learner(problem, pretraining=dro.Stage(epochs=2)).fit(*_data(40, 3), validation=_data(30, 4))
    assert sum("neighbours" in trial.what for trial in model.report_.trials) >= len(SHARES)
    model.pipeline_.share = 0.5
    model.save(path)
    loaded, Z = dro.DecisionFocusedLearner.load(path, problem), _data(20, 5)[0]
    for variable, value in loaded.decide(Z).items():
        np.testing.assert_array_equal(value, model.decide(Z)[variable])
    model.pipeline_.share = 0.0
    assert not np.array_equal(model.predict_set(Z)["mu"], loaded.predict_set(Z)["mu"])
    header = storage.read_header(path)
    for wrong in (-0.5, 1.5, "half", None, True, float("nan"), 10**400):
        with pytest.raises(ModelError, match="share"):
            check_header(header | {"share": wrong}, {})


def test_what_is_asked_for_is_not_moved() -> None:
    problem, data, held = _problem(), _data(40, 6), _data(30, 7)
    own = nn.Linear(5, problem.size)
    for settings in (
        {"pretraining": dro.Stage(epochs=2, locations="outcomes")},
        {"pretraining": dro.Stage(epochs=2, rate=1e-2)},
        {"pretraining": dro.Stage(epochs=2), "training": dro.Stage(epochs=1, rate=1e-3)},
        {"pretraining": dro.Stage(epochs=2), "projection": None},
        {"pretraining": dro.Stage(epochs=2), "model": own},
        {"pretraining": None},
    ):
        model = _learner(problem, **settings).fit(*data, validation=held)
        assert not any("neighbours" in trial.what for trial in model.report_.trials)
        assert model.pipeline_.share == 0.0


def test_sets_without_a_location_that_outcomes_tell_are_not_moved() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    learnt = dro.MomentSet(y, [dro.moments.Norm(2, A=dro.Learn(3, 3))])
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], learnt)
    assert problem.sets.aims(torch.ones(2, 3)) == {}
    model = _learner(problem, pretraining=dro.Stage(epochs=2)).fit(*_data(40, 6), validation=_data(30, 7))
    assert not any("neighbours" in trial.what for trial in model.report_.trials)


def test_locations_move_though_the_size_was_given() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    given = dro.MomentSet(y, [dro.moments.Norm(1, sigma=0.1)])
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], given)
    model = _learner(problem, pretraining=dro.Stage(epochs=2)).fit(*_data(40, 6), validation=_data(30, 7))
    assert any("neighbours" in trial.what for trial in model.report_.trials)
    assert not any("of the size" in trial.what for trial in model.report_.trials)


def test_not_where_a_promise_rests_on_the_sets() -> None:
    y, x = dro.Uncertain(3, support=dro.support.Box(0.0, 1e4)), cp.Variable(3, nonneg=True)
    ruled = dro.DecisionProblem(y @ x, [cp.sum(x) == 1, dro.expected(y @ x) <= 1e4], SETS["moments"](y))
    for problem, training in ((ruled, dro.Stage(epochs=1)), (_problem(), dro.Stage(epochs=1, coverage=0.5))):
        model = _learner(problem, pretraining=dro.Stage(epochs=2), training=training)
        model.fit(*_data(60, 6), validation=_data(30, 7), calibration_share=0.3)
        assert not any("neighbours" in trial.what for trial in model.report_.trials)


def test_weights_that_are_no_probabilities_are_refused() -> None:
    problem, Y = _problem(), _data(30, 0)[1]
    theta, outcomes = torch.zeros(2, problem.size), torch.as_tensor(Y[:8]).reshape(2, 4, 3)
    with pytest.raises(dro.ShapeError, match="add up to one"):
        problem.sets.towards(theta, (outcomes, torch.full((2, 4), 0.5)), 0.5)
