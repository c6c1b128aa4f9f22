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
from conelayers import make_engine
from drolayers.learning.calibration import (
    Calibration,
    Share,
    check_enough,
    conformal,
    descend,
    differences,
    disappointed,
    enough,
    fingerprint,
    lower_bound,
    met_again,
    rank,
)
from drolayers.learning.covering import crossed
from drolayers.learning.data import Examples
from drolayers.learning.storage import FORMAT, read_header
from tests.drolayers.learning.small import learner, sales, shop

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
    # What is covered costs no more than the worst case.
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
    assert found.promised - found.realised >= found.low
    assert (found.by, found.rows) == ("disappointment", 60)
    told = model.disappointment(*draw(60, 1))
    assert (told.worst_case_cost, told.realised) == pytest.approx((found.promised, found.realised))
    model.pipeline_.scale = found.scale / 2**0.25
    below = model.decision(draw(60, 1)[0])
    gaps = below.value - model.problem.loss(below.best, torch.as_tensor(draw(60, 1)[1]))
    assert lower_bound(gaps, 0.1, np.random.default_rng(0)) < found.low


@pytest.mark.parametrize("ambiguity", ["square", "ball"])
def test_decisions_are_those_of_the_scaled_sets(ambiguity: str, tmp_path: Path) -> None:
    """And stay so in a saved learner, which knows what it was trained on."""
    Z, Y = sales(125)
    stand = shop(False, ambiguity)
    model = learner(stand.problem).fit(Z, Y, calibration_share=0.3)
    assert len(model.calibration_rows_) == 37
    before = {name: value.copy() for name, value in model.predict_set(Z).items()}
    found = model.calibrate(disappointment=0.3, scales=[30.0, 20.0])
    assert found.scale == 20.0
    name, power = ("0.sigma", 2) if ambiguity == "square" else ("radius", 1)
    np.testing.assert_allclose(model.predict_set(Z)[name], before[name] * 20.0**power)
    theta = torch.as_tensor(np.column_stack([v.reshape(125, -1) for v in model.predict_set(Z).values()]))
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
        ({"disappointment": 0.1}, "needs 59 calibration rows at least, not 8"),
        ({"disappointment": 0.1, "scales": 2.0}, "non-empty list of positive numbers, not 2.0"),
    ):
        with pytest.raises(dro.ModelError, match=says):
            model.calibrate(*fresh, **settings)
    with pytest.raises(dro.ModelError, match="larger scales"):
        model.calibrate(*sales(60, 1), disappointment=0.1, scales=[1e-3])
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
    with pytest.raises(dro.ModelError, match="needs 59 calibration rows"):
        here.calibrate(Z, Y, disappointment=0.1)


def test_ranks_and_intervals() -> None:
    assert [rank(9, 0.9), rank(39, 0.9), rank(19, 0.95), rank(8, 0.9)] == [9, 36, 19, 9]
    assert conformal(torch.arange(9.0).flip(0) + 1, 0.9) == 9.0
    with pytest.raises(dro.ModelError, match="needs 9999 calibration rows at least, not 9998"):
        check_enough(9998, 0.9999)
    check_enough(9999, 0.9999)
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
    assert len(str(told).splitlines()) == 7
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
    with pytest.warns(UserWarning, match="200 of 200 calibration rows are equal to rows .* drop copies"):
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
    for draws in (dro.plot.coverage, dro.plot.sets, dro.plot.worst_case_costs):
        with pytest.raises(dro.ShapeError, match=r"Y must have the columns \['p', 'q'\]"):
            draws(model, *swapped)
    for kind in (dro.baselines.SampleAverage, dro.baselines.WeightedSampleAverage, dro.baselines.MeanPrediction):
        policy = kind(model.problem).fit(*frames)
        with pytest.raises(dro.ShapeError, match=r"Y must have the columns \['p', 'q'\]"):
            policy.score(*swapped)
        with pytest.raises(dro.ShapeError, match=r"Z must have the columns \['a', 'b'\]"):
            policy.decide(frames[0][["b", "a"]])
    with pytest.raises(dro.ModelError, match="has no worst-case costs"):
        dro.plot.worst_case_costs(policy, *frames)


def dear() -> tuple[dro.DecisionProblem, dro.DecisionFocusedLearner]:
    """Where more than one unit is missing, no second stage helps."""
    y, x, v = (
        dro.Uncertain(1, support=dro.support.Nonnegative()),
        cp.Variable(1, nonneg=True),
        cp.Variable(1, nonneg=True),
    )
    cost = cp.sum(x) + dro.recourse(cp.Minimize(3 * cp.sum(v)), [v >= y - x, v <= 1])
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 10, order=np.inf, norm=np.inf))
    return problem, learner(problem, nominal=dro.nominal.KNN(k=10), projection=None, training=None)


def missing(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.uniform(size=(count, 1))
    return Z, 3.0 + Z + rng.exponential(size=(count, 1))


def test_infinite_costs_keep_no_promise() -> None:
    model, fresh = dear()[1].fit(*missing(100, 0)), missing(300, 1)
    with pytest.raises(dro.ModelError, match=r"At scale 8, .* of 80 rows cost infinitely much"):
        model.calibrate(*missing(80, 2), disappointment=0.1)
    costs, value = model.costs(*fresh), model.decision(fresh[0]).value
    told, infinite = model.report(*fresh), int(costs.isinf().sum())
    assert 0 < infinite < 300
    assert told.disappointment.infinite == infinite
    assert told.disappointment.share.rate == pytest.approx(float((costs > value).double().mean()), abs=0.01)
    assert told.disappointment.low == -np.inf
    assert f"{infinite} rows cost infinitely much" in str(told)
    panel = dro.plot.worst_case_costs(model, *fresh)
    assert any(f"{infinite} infinitely far" in text.get_text() for text in panel.get_legend().get_texts())
    with pytest.warns(UserWarning, match="loss of the last epoch is infinite"):
        dear()[1].set_params(training=dro.Stage(1)).fit(*missing(60, 0))
    nothing = torch.full((60,), torch.nan)
    with pytest.raises(dro.ModelError, match="have no cost"):
        descend([1.0], lambda scale: nothing, 0.1, np.random.default_rng(0))
    # A larger scale that keeps the promise is kept.
    gaps = {2.0: torch.linspace(1, 2, 60), 1.0: torch.tensor([1.0] * 59 + [-torch.inf])}
    assert descend([1.0, 2.0], gaps.__getitem__, 0.1, np.random.default_rng(0))[0] == 2.0


def test_what_is_infinite_or_no_number_is_above_its_worst_case() -> None:
    worst_case, realised = torch.ones(5), torch.tensor([torch.inf, 2.0, 1.0 + 1e-8, 0.5, torch.nan])
    told = disappointed(worst_case, realised, 0)
    assert told.share.rate == 0.6
    assert told.infinite == 1


def test_outcomes_outside_of_the_support_are_covered_by_nothing() -> None:
    y = dro.Uncertain(1, support=dro.support.Nonnegative())
    x = cp.Variable(1, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4 * (y - x), 2 * (x - y)))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    rng = np.random.default_rng(0)

    def draws(count: int, below: float) -> tuple[np.ndarray, np.ndarray]:
        Z = rng.uniform(size=(count, 1))
        return Z, np.where(rng.uniform(size=(count, 1)) < below, -0.5, 0.2 + Z + rng.uniform(size=(count, 1)))

    model = learner(problem, projection=None, training=None).fit(*draws(100, 0.0))
    with pytest.raises(dro.ModelError, match=r"of 200 calibration outcomes .* lie outside of the support"):
        model.calibrate(*draws(200, 0.05), coverage=0.8)
    model.calibrate(*draws(200, 0.0), coverage=0.8)
    Z, Y = draws(500, 0.05)
    with pytest.warns(UserWarning, match="lie outside of the support"):
        told = model.report(Z, Y)
    assert told.coverage.rate <= float((Y >= 0).mean())
    # Outcomes in their sets cost no more than the worst case.
    assert told.disappointment.share.rate <= 1.0 - told.coverage.rate + 1e-9
    with pytest.warns(UserWarning, match="lie outside of the support"):
        told = model.report(Z[Y[:, 0] < 0], Y[Y[:, 0] < 0])
    assert told.coverage.rate == 0.0
    shaped = model.set_params(training=dro.Stage(2, coverage=0.9))
    with pytest.raises(dro.ModelError, match=r"of 100 outcomes .* lie outside of the support"):
        shaped.fit(*draws(100, 0.3))


def whole(count: int, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Data that take few values."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 7, (count, 1)).astype(float), rng.poisson(8, (count, 1)).astype(float)


def closed(count: int, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """One in twenty is a day on which nothing happens."""
    rng = np.random.default_rng(seed)
    shut = rng.uniform(size=(count, 1)) < 0.05
    return np.where(shut, 0.0, rng.normal(size=(count, 2))), np.where(shut, 0.0, rng.normal(size=(count, 1)))


def prices(count: int, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """In cents, of which two rarely have the same, in another unit."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 10_000, (count, 1)) / 2713.83, rng.integers(0, 3, (count, 1)) / 0.8165


def table(pair: tuple[np.ndarray, np.ndarray]) -> Examples:
    return Examples(*(torch.as_tensor(part) for part in pair))


@pytest.mark.parametrize("kind", [whole, closed, prices])
@pytest.mark.parametrize("count", [9, 60, 300, 600])
def test_independent_rows_that_are_equal_by_chance_are_not_refused(kind, count: int) -> None:
    for k in range(40):
        assert not met_again(table(kind(count, [k, 1])), fingerprint(table(kind(300, [k, 0]))))


@pytest.mark.parametrize(("kind", "copies"), [(closed, 3), (prices, 60)])
def test_copies_among_rows_that_are_equal_by_chance_are_found(kind, copies: int) -> None:
    for k in range(10):
        seen, fresh = kind(300, [k, 0]), kind(90, [k, 1])
        mixed = [np.concatenate([a[:copies], b[copies:]]) for a, b in zip(seen, fresh, strict=True)]
        assert met_again(table(mixed), fingerprint(table(seen))) >= copies


def test_rows_that_are_held_out_are_checked_before_anything_is_trained() -> None:
    """Where all rows are there four times nothing tells copies from data, but for the table itself."""
    Z, Y = (np.repeat(part, 4, 0) for part in draw(60, 0))
    with pytest.warns(UserWarning, match="72 of 72 calibration rows are equal to .* drop copies before data are split"):
        model = linear("box").fit(Z, Y, calibration_share=0.3)
    with pytest.raises(dro.ModelError, match="240 of 240"):
        linear("box").fit(Z, Y).calibrate(Z, Y, coverage=0.9)
    few = [np.concatenate([part, part[:4]]) for part in draw(60, 0)]
    model.set_params(pretraining=dro.Stage(10**6))
    with pytest.raises(dro.ModelError, match=r"calibration rows are equal to .*: drop copies before data are split"):
        model.fit(*few, calibration_share=0.5)


def test_equal_gaps_and_few_rows_promise_nothing() -> None:
    rng = np.random.default_rng(0)
    assert lower_bound(torch.ones(50), 0.1, rng) == -np.inf
    noise = 1e-9 * torch.as_tensor(rng.normal(size=50))
    assert lower_bound(differences(5.0 + noise, torch.full((50,), 3.0)), 0.1, rng) == -np.inf
    with pytest.raises(dro.ModelError, match="differ by the same, 2, in all 50 rows"):
        descend([1.0], lambda scale: torch.full((50,), 2.0), 0.1, rng)
    assert [enough(beta) for beta in (0.3, 0.1, 0.05)] == [37, 59, 72]


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.2])
def test_so_many_rows_keep_promises_on_what_is_rare(beta: float) -> None:
    """Costs of 20 at one row in twenty, worst-case costs of 1/2: the mean gap is negative, and a promise is rare."""
    rng, broken, draws = np.random.default_rng(5), 0, 300
    for _ in range(draws):
        gaps = 0.5 + 0.1 * rng.normal(size=enough(beta)) - np.where(rng.uniform(size=enough(beta)) < 0.05, 20.0, 0.0)
        broken += lower_bound(torch.as_tensor(gaps), beta, rng) >= 0.0
    assert broken / draws <= beta + 2 * np.sqrt(beta * (1 - beta) / draws)


def test_the_value_of_a_fragility_is_no_cost() -> None:
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    x = cp.Variable(2, nonneg=True)
    cost = dro.fragility(cp.sum(x) + cp.sum(cp.maximum(4 * (y - x), x - y)), 25.0)
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 5))
    model = learner(problem, training=None).fit(*sales(40))
    for asked in (
        lambda: model.calibrate(*sales(60, 1), disappointment=0.1),
        lambda: model.disappointment(*sales(60, 1)),
    ):
        with pytest.raises(dro.ModelError, match="a cost per distance"):
            asked()
    told = model.report(*sales(60, 1))
    assert told.disappointment is None
    assert "worst-case cost  none" in str(told)
    with pytest.raises(dro.ModelError, match="a cost per distance"):
        model.set_params(training=dro.Stage(1), objective=dro.objectives.WorstCaseQuantile(0.8)).fit(*sales(40))


def test_the_coverage_of_a_report_is_that_of_decided_rows() -> None:
    y, x = dro.Uncertain(1), cp.Variable(1, nonneg=True)
    least = cp.Parameter(1, name="least")
    problem = dro.DecisionProblem(
        cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [x <= 2, x >= least], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    rng = np.random.default_rng(0)
    Z, Y = rng.uniform(size=(80, 1)), rng.normal(size=(80, 1))
    model = learner(problem, projection=None, training=None).fit(Z, Y, known={"least": np.zeros((80, 1))})
    known = {"least": np.where(np.arange(80)[:, None] < 30, 3.0, 0.0)}
    told = model.report(Z, Y, known)
    assert (told.rows, told.decided, told.coverage.rows) == (80, 50, 50)
    assert told.coverage == model.coverage(Z[30:], Y[30:], {"least": np.zeros((50, 1))})


@pytest.mark.parametrize("promise", ["coverage", "disappointment"])
def test_a_report_promises_nothing_before_calibration(promise: str) -> None:
    model, fresh = linear("box").fit(*draw(60, 0)), draw(200, 1)
    told = model.report(*fresh)
    assert told.disappointment.worst_case_cost == pytest.approx(float(model.decision(fresh[0]).value.mean()))
    for text in (str(told), str(model.disappointment(*fresh))):
        assert "certif" not in text
        assert "promised" not in text
    assert "not calibrated: the worst-case cost is no promise" in str(told)
    model.calibrate(*draw(100, 2), **{promise: 0.8 if promise == "coverage" else 0.2})
    (line,) = [line for line in str(model.report(*fresh)).splitlines() if line.startswith("promised")]
    # The level, and how many rows it rests on.
    assert ("probability 0.8" if promise == "coverage" else "confidence 0.8") in line
    assert "100 calibration rows" in line
    model.calibration_ = Calibration(model.calibration_.scale, "choice", None, 100)
    assert "promised" not in str(model.report(*fresh))
