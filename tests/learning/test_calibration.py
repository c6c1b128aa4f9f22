"""Sets that are scaled on data: promises hold over draws, and rows that were trained on are refused."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import drolayers as dro
from drolayers.conic import make_engine
from drolayers.learning.calibration import Share, conformal, descend, lower_bound, rank
from drolayers.learning.covering import crossed
from drolayers.learning.storage import FORMAT, read_header
from tests.learning.small import learner, sales, shop

BOXES = {"box": lambda: dro.moments.Mean(sigma=None), "ellipsoid": lambda: dro.moments.Norm(2, A=np.eye(2))}


def draw(count: int, seed: int | list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Noise that grows with the context."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(size=(count, 2))
    return Z, 3.0 + Z + (0.2 + Z) * rng.normal(size=(count, 2))


def linear(kind: str) -> dro.DecisionFocusedLearner:
    """A cost that is affine in y, where a set of means is one of outcomes."""
    y, x = dro.Uncertain(2), cp.Variable(2, name="x")
    problem = dro.DecisionProblem(-(y @ x), [cp.norm(x, 1) <= 1], dro.MomentSet(y, [BOXES[kind]()]))
    return learner(problem, projection=None, pretraining__epochs=5, training=None)


@pytest.mark.parametrize("kind", BOXES)
def test_coverage_over_draws(kind: str) -> None:
    """Of 39 scores the 36th: a new outcome is covered with probability 0.9, on average over draws."""
    model = linear(kind).fit(*draw(60, 0))
    fresh, found = draw(300, 1), []
    for k in range(50):
        calibration = model.calibrate(*draw(39, [2, k]), coverage=0.9)
        assert calibration.scale == model.pipeline_.scale
        found.append(model.coverage(*fresh).rate)
    # Of one draw, coverage is Beta(36, 4); and the fresh data are finite.
    error = np.sqrt(0.9 * 0.1 / 41 / 50 + 0.9 * 0.1 / 300)
    assert abs(np.mean(found) - 0.9) < 3 * error
    # What is covered costs no more than was certified.
    covered = model.disappointment(*fresh).share
    assert covered.rate <= 1.0 - model.coverage(*fresh).rate + 1e-9


def test_disappointment_over_draws() -> None:
    """Decisions at scales on many rows are the truth; a promise is broken, but in at most β of the draws."""
    model = learner(shop(False).problem, projection=None, pretraining__epochs=8, training=None).fit(*draw(80, 0))
    Z, Y = draw(800, 1)
    scales, pool = [2.0 ** (k / 16) for k in range(4, -14, -2)], {}
    for scale in scales:
        model.pipeline_.scale = scale
        decision = model.decision(Z)
        pool[scale] = decision.value - model.problem.loss(decision.best, torch.as_tensor(Y))
    truth = {scale: float(gaps.mean()) for scale, gaps in pool.items()}
    assert min(truth.values()) < 0 < max(truth.values())
    rng, broken, beta, draws = np.random.default_rng(2), 0, 0.2, 150
    for _ in range(draws):
        rows = torch.as_tensor(rng.integers(800, size=60))
        kept, low = descend(scales, lambda scale, rows=rows: pool[scale][rows], beta, rng)
        assert low >= 0.0
        broken += truth[kept] < 0
    assert 0 < broken / draws <= beta + 2 * np.sqrt(beta * (1 - beta) / draws)


def test_the_scale_of_a_disappointment_is_the_last_that_holds() -> None:
    Z, Y = draw(80, 0)
    model = learner(shop(False).problem, projection=None, training=None).fit(Z, Y)
    found = model.calibrate(*draw(60, 1), disappointment=0.1)
    assert found.low >= 0
    assert found.certified - found.realised >= found.low
    assert (found.by, found.rows) == ("disappointment", 60)
    told = model.disappointment(*draw(60, 1))
    assert (told.certified, told.realised) == pytest.approx((found.certified, found.realised))
    model.pipeline_.scale = found.scale / 2**0.25
    below = model.decision(draw(60, 1)[0])
    gaps = below.value - model.problem.loss(below.best, torch.as_tensor(draw(60, 1)[1]))
    assert lower_bound(gaps, 0.1, np.random.default_rng(0)) < found.low


@pytest.mark.parametrize("ambiguity", ["square", "ball"])
def test_decisions_are_those_of_the_scaled_sets(ambiguity: str, tmp_path: Path) -> None:
    """And stay so in a saved learner, which knows what it was trained on."""
    Z, Y = sales(40)
    stand = shop(False, ambiguity)
    model = learner(stand.problem).fit(Z, Y, calibration_share=0.3)
    assert len(model.calibration_rows_) == 12
    before = {name: value.copy() for name, value in model.predict_set(Z).items()}
    found = model.calibrate(disappointment=0.3, scales=[30.0, 20.0])
    assert found.scale == 20.0
    name, power = ("0.sigma", 2) if ambiguity == "square" else ("radius", 1)
    np.testing.assert_allclose(model.predict_set(Z)[name], before[name] * 20.0**power)
    theta = torch.as_tensor(np.column_stack([v.reshape(40, -1) for v in model.predict_set(Z).values()]))
    nominal = model.pipeline_.nominal(torch.as_tensor(Z)) if ambiguity == "ball" else None
    value = stand.problem.worst_case_cost(model.decide(torch.as_tensor(Z)), theta, nominal)
    np.testing.assert_allclose(model.decision(Z).value, value, rtol=1e-5)
    model.save(tmp_path / "model.safetensors")
    again = dro.DecisionFocusedLearner.load(tmp_path / "model.safetensors", stand.problem)
    assert again.calibration_ == found
    np.testing.assert_allclose(again.decide(Z)[stand.retail], model.decide(Z)[stand.retail], rtol=1e-9)
    assert read_header(tmp_path / "model.safetensors")["format"] == FORMAT
    with pytest.raises(dro.ModelError, match="were trained or validated on"):
        again.calibrate(Z, Y, disappointment=0.3)
    with pytest.raises(dro.ModelError, match="held out"):
        again.calibrate(disappointment=0.3)


def test_what_cannot_be_calibrated() -> None:
    Z, Y = sales(40)
    model = learner(shop(False).problem, training=None).fit(Z, Y)
    fresh = sales(8, 1)
    for settings, says in (
        ({}, "either coverage= or disappointment="),
        ({"coverage": 0.9, "disappointment": 0.1}, "either coverage= or disappointment="),
        ({"coverage": 0.9}, "needs 9 calibration rows at least, not 8"),
        ({"coverage": 1.0}, "between 0 and 1"),
        ({"disappointment": 0.1, "scales": [0.0]}, "positive"),
        ({"disappointment": 0.1, "scales": [1e-3]}, "larger scales"),
    ):
        with pytest.raises(dro.ModelError, match=says):
            model.calibrate(*fresh, **settings)
    assert model.pipeline_.scale == 1.0
    with pytest.raises(dro.ModelError, match="1 of 9 calibration rows"):
        model.calibrate(np.vstack([fresh[0], Z[3:4]]), np.vstack([fresh[1], Y[3:4]]), coverage=0.8)
    with pytest.raises(dro.ModelError, match="both Z and Y"):
        model.calibrate(fresh[0], coverage=0.8)
    ball = learner(shop(False, "ball").problem).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="disappointment="):
        ball.calibrate(*sales(20, 1), coverage=0.8)
    with pytest.raises(dro.ModelError, match="calibration_share"):
        model.fit(Z, Y, calibration_share=1.0)


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_a_bound_from_few_rows_promises_no_more_than_it_knows(rows: int) -> None:
    """Gaps of mean zero: a bound of level 0.95 is above it in about one of twenty draws, be they of a row or two."""
    rng = np.random.default_rng(0)
    wrong = sum(lower_bound(torch.tensor(rng.normal(size=rows)), 0.05, rng) > 0.0 for _ in range(400))
    assert wrong <= 48


def test_one_row_among_equal_ones_makes_no_absurd_bound() -> None:
    """Gaps that are zero up to what a solver leaves, but for one of -0.3: the mean is above the worst row's share."""
    rng = np.random.default_rng(0)
    gaps = torch.tensor([-0.3, *(1e-11 * rng.normal(size=59))])
    assert -0.1 < lower_bound(gaps, 0.05, rng) < -0.3 / 60


def test_a_report_of_one_row(recwarn: pytest.WarningsRecorder) -> None:
    here = learner(shop(lots=False).problem).fit(*sales())
    Z, Y = sales(1, seed=1)
    recwarn.clear()
    told = here.report(Z, Y)
    assert told.cost == pytest.approx(here.loss(Z, Y))
    assert np.isnan(told.error)
    assert told.disappointment.low == -np.inf
    assert not recwarn.list
    with pytest.raises(dro.ModelError, match="more rows"):
        here.calibrate(Z, Y, disappointment=0.1)


def test_ranks_and_intervals() -> None:
    assert [rank(9, 0.9), rank(39, 0.9), rank(19, 0.95), rank(8, 0.9)] == [9, 36, 19, 9]
    assert conformal(torch.arange(9.0).flip(0) + 1, 0.9) == 9.0
    # Clopper and Pearson's own example of tables: 10 of 20.
    share = Share.of(10, 20)
    assert (share.low, share.high) == pytest.approx((0.2720, 0.7280), abs=1e-4)
    assert (Share.of(0, 5).low, Share.of(5, 5).high) == (0.0, 1.0)
    # The lower bound of a normal mean is Student's.
    values = torch.as_tensor(np.random.default_rng(0).normal(size=400))
    student = float(values.mean() - 1.2837 * values.std() / 20)
    assert lower_bound(values, 0.1, np.random.default_rng(1)) == pytest.approx(student, abs=0.01)


def test_halves_scale_each_other() -> None:
    """The quantile of the other half, with its derivative; the largest score where that is too small."""
    scores = torch.tensor([5.0, 4.0, 1.0, 6.0, 3.0, 9.0, 2.0, 8.0]).double().requires_grad_()
    found = crossed(scores, 0.5)
    assert found.tolist() == [8.0, 3.0] * 4
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert gradient.tolist() == [0, 0, 0, 0, 4, 0, 0, 4]
    assert crossed(scores, 0.95).tolist() == [9.0, 5.0] * 4
    assert crossed(torch.tensor([3.0]), 0.5).tolist() == [1.0]
    assert crossed(torch.tensor([3.0, torch.inf]), 0.5).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("lots", [False, True])
def test_gradients_through_calibrated_sets(lots: bool) -> None:
    """By central differences: the scale of a set moves with the outcomes and sets of the other half."""
    problem = shop(lots).problem
    ambiguity, y = problem.ambiguity, torch.as_tensor(sales(8)[1])
    layer = dro.DROLayer(problem, temperature=1.0, engine=make_engine("auto").with_tolerance(1e-12))
    rng = torch.Generator().manual_seed(0)
    theta, step = (torch.rand(8, 3, generator=rng, dtype=torch.float64) for _ in range(2))

    def total(theta: torch.Tensor) -> torch.Tensor:
        scaled = ambiguity.scaled(theta, crossed(ambiguity.scores(theta, y), 0.6))
        return layer(scaled).expected(lambda x: problem.loss(x, y)).sum()

    theta = 2.0 + theta
    (gradient,) = torch.autograd.grad(total(theta.requires_grad_()), theta)
    with torch.no_grad():
        slope = float(total(theta + 1e-4 * step) - total(theta - 1e-4 * step)) / 2e-4
    assert float((gradient * step).sum()) == pytest.approx(slope, rel=1e-5)


def test_training_on_calibrated_sets_learns_their_shape() -> None:
    """Their size is a matter of calibration, without which nothing is decided."""
    Z, Y = draw(200, 0)
    model = linear("box").set_params(training=dro.Stage(epochs=4, batch_size=40, rate=1e-2, coverage=0.8))
    with pytest.raises(dro.ModelError, match="without a size"):
        clone(model).fit(Z, Y).decide(Z)
    model.fit(Z, Y, calibration_share=0.3)
    assert (model.calibration_.by, model.calibration_.level, model.calibration_.rows) == ("coverage", 0.8, 60)
    fresh = draw(500, 1)
    covered = model.coverage(*fresh)
    # The coverage of 60 calibration rows is 0.8, give or take 0.05.
    assert abs(covered.rate - 0.8) < 0.15
    late = clone(model).fit(Z, Y)
    late.calibrate(*draw(100, 2), coverage=0.9)
    assert late.coverage(*fresh).rate > covered.rate
    with pytest.raises(dro.ModelError, match="needs 4 calibration rows at least, not 2"):
        clone(model).fit(Z, Y, calibration_share=0.01)
    with pytest.raises(dro.ModelError, match="coverage must lie"):
        dro.Stage(coverage=1.0)


def test_a_report_says_what_the_parts_say() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    rules = [dro.chance(y <= x + 0.5, 0.6), dro.expected(cp.sum(cp.pos(y - x))) <= 1.0]
    problem = dro.DecisionProblem(cp.sum(x), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    model, fresh = learner(problem).fit(*sales(40)), sales(30, 1)
    told = model.report(*fresh)
    assert (told.rows, told.decided) == (30, 30)
    assert told.cost == pytest.approx(model.loss(*fresh))
    assert told.coverage == model.coverage(*fresh)
    assert told.disappointment == model.disappointment(*fresh)
    found = model.violations(*fresh)
    assert told.violations[rules[0]].rate == pytest.approx(found[rules[0]])
    assert told.violations[rules[1]] == pytest.approx(found[rules[1]])
    assert len(str(told).splitlines()) == 6
    ball = learner(shop(False, "ball").problem).fit(*sales(40))
    assert ball.report(*fresh).coverage is None


def test_rows_are_known_again_in_single_precision_and_not_where_data_take_few_values() -> None:
    model, (Z, Y) = linear("box").fit(*draw(60, 0)), draw(60, 0)
    with pytest.raises(dro.ModelError, match="60 of 60 calibration rows are equal"):
        model.calibrate(Z.astype(np.float32), Y.astype(np.float32), coverage=0.5)
    mixed = [np.concatenate([a[:1], b]) for a, b in zip((Z, Y), draw(40, 5), strict=True)]
    with pytest.raises(dro.ModelError, match="1 of 41"):
        model.calibrate(*mixed, coverage=0.5)
    # Doubles that training made of its rows are no chance.
    twice = linear("box").fit(np.concatenate([Z, Z]), np.concatenate([Y, Y]))
    with pytest.raises(dro.ModelError, match="60 of 60"):
        twice.calibrate(Z, Y, coverage=0.5)
    rng = np.random.default_rng(0)
    few = [(rng.integers(0, 2, (200, 2)), rng.integers(1, 4, (200, 2))) for _ in range(2)]
    model = linear("box").fit(*few[0])
    assert model.calibrate(*few[1], coverage=0.5).rows == 200


def test_columns_are_those_of_training() -> None:
    Z, Y = draw(40, 0)
    frames = pd.DataFrame(Z, columns=["a", "b"]), pd.DataFrame(Y, columns=["p", "q"])
    model = linear("box").fit(*frames)
    fresh = [pd.DataFrame(table, columns=frame.columns) for table, frame in zip(draw(30, 1), frames, strict=True)]
    model.calibrate(*fresh, coverage=0.5)
    swapped = frames[0], frames[1][["q", "p"]]
    for asked in (model.coverage, model.loss, model.disappointment, model.score):
        with pytest.raises(dro.ShapeError, match=r"Y must have the columns \['p', 'q'\]"):
            asked(*swapped)
    for draws in (dro.plot.coverage, dro.plot.sets, dro.plot.certified):
        with pytest.raises(dro.ShapeError, match=r"Y must have the columns \['p', 'q'\]"):
            draws(model, *swapped)
    for kind in (dro.baselines.SampleAverage, dro.baselines.WeightedSampleAverage, dro.baselines.MeanPrediction):
        policy = kind(model.problem).fit(*frames)
        with pytest.raises(dro.ShapeError, match=r"Y must have the columns \['p', 'q'\]"):
            policy.score(*swapped)
        with pytest.raises(dro.ShapeError, match=r"Z must have the columns \['a', 'b'\]"):
            policy.decide(frames[0][["b", "a"]])
    with pytest.raises(dro.ModelError, match="certifies nothing"):
        dro.plot.certified(policy, *frames)
