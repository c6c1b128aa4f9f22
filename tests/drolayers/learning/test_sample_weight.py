"""Weights of rows: whole ones equal repeated rows, zeros equal dropped rows, and their scale does not matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.model_selection import KFold, cross_validate

import drolayers as dro
from drolayers.learning.model import ridge
from drolayers.learning.objectives import CVaR, Shift
from drolayers.learning.pretraining import PredictionLosses
from drolayers.nominal import KNN
from drolayers.tails import worst_weights
from tests.drolayers.learning.small import learner, sales, shop, weights

SHOP = shop(False)
PROBLEM = SHOP.problem


def whole(count: int = 24) -> np.ndarray:
    """Some rows thrice, some not at all."""
    return np.random.default_rng(3).integers(0, 4, count)


def repeated(*tables: np.ndarray) -> list[np.ndarray]:
    return [np.repeat(table, whole(len(table)), 0) for table in tables]


def alike(ours: Any, theirs: Any, Z: np.ndarray, tolerance: float = 1e-9) -> None:
    for name, value in ours.decide(Z).items():
        np.testing.assert_allclose(value, theirs.decide(Z)[name], rtol=0, atol=tolerance)


BASELINES: dict[str, Callable[[], Any]] = {
    "average": lambda: dro.baselines.SampleAverage(PROBLEM),
    "weighted": lambda: dro.baselines.WeightedSampleAverage(PROBLEM, KNN(k=6)),
    "mean": lambda: dro.baselines.MeanPrediction(PROBLEM, hidden=(4,), epochs=3),
    "point": lambda: dro.baselines.NoSet(PROBLEM, training=dro.Stage(epochs=1), trainer=dro.Trainer(budget=0.0)),
    "learner": lambda: learner(PROBLEM),
    "likelihood": lambda: learner(
        dro.DecisionProblem(PROBLEM.cost, [], dro.Outcomes(PROBLEM.ambiguity.y, "ellipsoid")), training=None
    ),
    "tail": lambda: learner(PROBLEM, objective=CVaR(0.5)),
    "shift": lambda: learner(PROBLEM, objective=Shift(0.3)),
}


@pytest.mark.parametrize("kind", BASELINES)
def test_rows_of_weight_zero_are_absent(kind: str) -> None:
    (Z, Y), w = sales(), whole()
    weighted = BASELINES[kind]().fit(Z, Y, sample_weight=w)
    dropped = BASELINES[kind]().fit(Z[w > 0], Y[w > 0], sample_weight=w[w > 0])
    alike(weighted, dropped, Z)
    assert weighted.score(Z, Y, sample_weight=w) == pytest.approx(
        dropped.score(Z[w > 0], Y[w > 0], sample_weight=w[w > 0])
    )


@pytest.mark.parametrize("kind", BASELINES)
def test_their_scale_does_not_matter(kind: str) -> None:
    (Z, Y), w = sales(), 0.5 + np.random.default_rng(0).uniform(size=24)
    one, other = (BASELINES[kind]().fit(Z, Y, sample_weight=scale * w) for scale in (1.0, 1024.0))
    alike(one, other, Z)
    assert one.score(Z, Y, sample_weight=w) == pytest.approx(one.score(Z, Y, sample_weight=3.0 * w), rel=1e-12)
    equal, plain = BASELINES[kind]().fit(Z, Y, sample_weight=np.full(24, 7.0)), BASELINES[kind]().fit(Z, Y)
    alike(equal, plain, Z, 1e-6)


def test_whole_weights_are_repeated_rows() -> None:
    """Where nothing is drawn and no batch depends on the number of rows."""
    Z, Y = sales()
    average = dro.baselines.SampleAverage(PROBLEM)
    weighted = average.fit(Z, Y, sample_weight=whole()).decide(Z)
    twice = dro.baselines.SampleAverage(PROBLEM).fit(*repeated(Z, Y)).decide(Z)
    np.testing.assert_allclose(weighted[SHOP.retail], twice[SHOP.retail], atol=1e-6)
    fitted = learner(PROBLEM).fit(Z, Y)
    for policy in (average, fitted):
        assert policy.score(Z, Y, sample_weight=whole()) == pytest.approx(policy.score(*repeated(Z, Y)), rel=1e-12)
    assert fitted.loss(Z, Y, sample_weight=whole()) == pytest.approx(fitted.loss(*repeated(Z, Y)), rel=1e-12)


def test_a_weighted_median_is_the_newsvendors() -> None:
    """Least E|y - x| under weights: their median, which moves with them."""
    y, x = dro.Uncertain(1), cp.Variable(1)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    Y = np.array([[1.0], [2.0], [5.0], [9.0], [11.0]])
    for w, median in (([1, 1, 1, 1, 1], 5.0), ([5, 1, 1, 1, 1], 1.0), ([1, 1, 1, 1, 9], 11.0), ([0, 0, 0, 1, 0], 9.0)):
        found = dro.baselines.SampleAverage(problem).fit(np.zeros((5, 1)), Y, sample_weight=w)
        assert float(found.decide(np.zeros((1, 1)))[x][0, 0]) == pytest.approx(median, abs=1e-5)


def norms(y: dro.Uncertain) -> Any:
    return dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.Norm(2, A=dro.Learn(2, 2))])


def by_event(y: dro.Uncertain) -> Any:
    low, high = y.within(dro.support.Box(0.0, 3.0)), y.within(dro.support.Box(2.0, 9.0))
    return dro.Mixture([dro.MomentSet(part, [dro.moments.SquaredNorm()]) for part in (low, high)])


@pytest.mark.parametrize("kind", ["square", "norms", "shape", "mixture"])
@pytest.mark.parametrize("phase", ["location", "bound", "both"])
def test_losses_of_sets_are_weighted_means(kind: str, phase: Any) -> None:
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    sets: dict[str, Callable[[], Any]] = {
        "square": lambda: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
        "norms": lambda: norms(y),
        "shape": lambda: dro.Outcomes(y, "ellipsoid"),
        "mixture": lambda: by_event(y),
    }
    x = cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y)), [], sets[kind]())
    Z, Y = (torch.as_tensor(table) for table in sales())
    loss, w = PredictionLosses(problem.sets, Y), torch.as_tensor(whole())
    theta = 1.0 + torch.rand(24, problem.size, generator=torch.Generator().manual_seed(0)).double()
    atoms, masses = KNN(k=4).fit(Z, Y)(Z)
    rows = torch.arange(24).repeat_interleave(w)
    repeated_rows = loss(theta[rows], (atoms[rows], masses[rows]), phase, Y[rows])
    for scale in (1.0, 5.0):
        torch.testing.assert_close(loss(theta, (atoms, masses), phase, Y, scale * w.double()), repeated_rows)


def test_least_squares_with_weights_are_those_of_repeated_rows() -> None:
    X, T = (torch.as_tensor(table) for table in sales())
    w = torch.as_tensor(whole())
    rows = torch.arange(24).repeat_interleave(w)
    counted = w > 0
    ours = ridge(X[counted], T[counted], X, T, w[counted].double(), w.double())
    theirs = ridge(X[rows], T[rows], X[rows], T[rows])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    # As many columns as rows and more: eigenvectors of the other product.
    wide = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).double()
    scaled = [ridge(wide, T, wide, T, scale * torch.ones(24).double(), torch.ones(24).double()) for scale in (1.0, 9.0)]
    for a, b in zip(*scaled, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(scaled[0][0], ridge(wide, T, wide, T)[0])


def test_worst_weights_of_repeated_values() -> None:
    generator = torch.Generator().manual_seed(0)
    values, twice = torch.randn(12, generator=generator).double(), torch.randint(1, 4, (12,), generator=generator)
    rows = torch.arange(12).repeat_interleave(twice)
    for radius in (0.0, 0.05, 0.4, 3.0, 100.0):
        theirs = torch.zeros(12).double().index_add(0, rows, worst_weights(values[rows], radius))
        torch.testing.assert_close(worst_weights(values, radius, twice.double()), theirs)


def test_the_losses_of_a_batch_with_whole_weights_are_those_of_repeated_rows() -> None:
    """One step on all rows: the mean, a tail and a shift, and their gradients."""
    Z, Y = sales()
    for objective in ("mean", CVaR(0.6), Shift(0.5), dro.objectives.WorstCaseQuantile(0.5)):
        steps = []
        for tables, settings in (((Z, Y), {"sample_weight": whole()}), (repeated(Z, Y), {})):
            made = learner(
                PROBLEM,
                nominal=None,
                projection=None,
                pretraining=None,
                objective=objective,
                model=torch.nn.Linear(2, PROBLEM.size, dtype=torch.float64),
                training=dro.Stage(epochs=1, batch_size=1000, rate=1e-2, gradient="exact", temperature=1.0),
                trainer=dro.Trainer(progress=False, budget=0.0, validation_share=0.0),
            )
            with torch.no_grad():
                made.model.weight.zero_()
                made.model.bias.copy_(torch.tensor([2.5, 2.5, 1.0]))
            steps.append(made.fit(*tables, **settings))
        rows = [one.history_["decision"][0]["decision_loss"] for one in steps]
        assert rows[0] == pytest.approx(rows[1], rel=1e-6)


def test_validation_data_may_have_weights() -> None:
    (Z, Y), (Z_val, Y_val), w = sales(), sales(12, 1), whole(12)
    settings = {"trainer": dro.Trainer(progress=False, budget=0.75), "training__epochs": 8}
    ours = learner(PROBLEM, **settings).fit(Z, Y, validation=(Z_val, Y_val, None, w))
    theirs = learner(PROBLEM, **settings).fit(Z, Y, validation=(*repeated(Z_val, Y_val),))
    mine, others = ours.report_.trials, theirs.report_.trials
    assert [one.what for one in mine] == [one.what for one in others]
    assert [one.loss for one in mine[:2]] == pytest.approx([one.loss for one in others[:2]], rel=1e-6)
    kept = w > 0
    absent = learner(PROBLEM, **settings).fit(Z, Y, validation=(Z_val[kept], Y_val[kept], None, w[kept]))
    np.testing.assert_array_equal(weights(ours), weights(absent))
    with pytest.raises(dro.ModelError, match="validation sample_weight must not be negative"):
        learner(PROBLEM).fit(Z, Y, validation=(Z_val, Y_val, None, -1.0 * w))


def test_rows_that_count_more_are_fitted_more() -> None:
    """Two groups of opposite demand at one context: decisions follow the heavy one."""
    Z = np.zeros((40, 1))
    Y = np.where(np.arange(40)[:, None] % 2, 1.0, 5.0) * np.ones((40, 2))
    light, heavy = (
        learner(PROBLEM, training__epochs=5).fit(Z, Y, sample_weight=np.where(np.arange(40) % 2, *ratio)).decide(Z[:1])
        for ratio in ((50.0, 1.0), (1.0, 50.0))
    )
    assert (heavy[SHOP.retail] > light[SHOP.retail] + 0.5).all()


def test_scikit_learn_passes_weights_on() -> None:
    Z, Y = sales()
    w = 1.0 + whole()
    plain = learner(PROBLEM, training=None)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = plain.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = cross_validate(routed, Z, Y, cv=KFold(2), params={"sample_weight": w})["test_score"]
    for score, (training, test) in zip(found, KFold(2).split(Z), strict=True):
        mine = learner(PROBLEM, training=None).fit(Z[training], Y[training], sample_weight=w[training])
        assert score == pytest.approx(mine.score(Z[test], Y[test], sample_weight=w[test]))


def test_a_run_with_other_weights_is_refused(tmp_path: Path) -> None:
    Z, Y = sales()
    kept = {"trainer__directory": tmp_path, "trainer__resume": True}
    first = learner(PROBLEM, **kept).fit(Z, Y, sample_weight=1.0 + whole())
    again = learner(PROBLEM, **kept).fit(Z, Y, sample_weight=2.0 * (1.0 + whole()))
    np.testing.assert_array_equal(weights(first), weights(again))
    with pytest.raises(dro.ModelError, match="other data"):
        learner(PROBLEM, **kept).fit(Z, Y)
    # With a folder trainings are Lightning's, which ends where our own loop does.
    alone = learner(PROBLEM).fit(Z, Y, sample_weight=1.0 + whole())
    np.testing.assert_allclose(weights(first), weights(alone), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("use", ["fit", "score", "baseline", "score of a baseline"])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (np.ones(3), r"sample_weight must have shape \(24,\)"),
        (np.full(24, np.nan), "sample_weight holds NaN"),
        (-np.ones(24), "sample_weight must not be negative"),
        (np.zeros(24), "sample_weight must not be zero in every row"),
        (pd.Series(np.ones(24), index=range(24, 0, -1)), "Z and sample_weight have"),
    ],
)
def test_wrong_weights_are_one_sentence(use: str, wrong: Any, told: str) -> None:
    Z, Y = (pd.DataFrame(table) for table in sales())
    average = dro.baselines.SampleAverage(PROBLEM)
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: learner(PROBLEM).fit(Z, Y, sample_weight=wrong),
        "score": lambda: learner(PROBLEM, training=None, pretraining=None).fit(Z, Y).score(Z, Y, sample_weight=wrong),
        "baseline": lambda: average.fit(Z, Y, sample_weight=wrong),
        "score of a baseline": lambda: average.fit(Z, Y).score(Z, Y, sample_weight=wrong),
    }
    with pytest.raises((dro.ModelError, dro.ShapeError), match=told) as caught:
        calls[use]()
    assert "\n" not in str(caught.value)
