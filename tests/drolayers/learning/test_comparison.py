"""What was left to the learner is chosen on validation data, within a budget, and told."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

import drolayers as dro
from drolayers.learning import second
from drolayers.learning.comparison import SHARES, Choice, Comparison, Trial
from drolayers.learning.course import Course
from drolayers.learning.data import examples
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.second import SecondTraining
from tests.drolayers.learning.small import learner as quick
from tests.drolayers.learning.small import sales, shop, weights

Z, Y = sales(20)
HELD = sales(12, seed=1)


def learner(problem: dro.DecisionProblem, **settings: Any) -> dro.DecisionFocusedLearner:
    """A quick one that compares."""
    return quick(problem, **{"trainer__budget": 0.75, **settings})


def test_the_best_of_all_trials_decides_and_the_budget_is_kept() -> None:
    model = learner(shop(lots=False).problem, training__epochs=8, trainer__budget=0.75)
    report = model.fit(Z, Y, validation=HELD).report_
    chosen = report.chosen
    assert chosen is not None
    assert chosen.loss == min(t.loss for t in report.trials if t.solved == 1.0)
    assert model.loss(*HELD) == pytest.approx(chosen.loss, rel=1e-9)
    trials = [t for t in report.trials if t.epochs == 1]
    # A judging looks at 12 and 20 rows, without gradients: half an epoch of 32.
    assert len(trials) == 4 == 0.75 * 8 / (1 + 0.5)
    assert [t.epochs for t in report.trials][-1] == 8
    # Projection or none first, that of the best start before the other; then the rate; no trial is left for gradients.
    assert {t.what.split(",")[0] for t in trials[:2]} == {"projection", "no projection"}
    assert [trial.what.split("rate ")[1].split(",")[0] for trial in trials[:3]] == ["0.003", "0.003", "0.009"]
    assert trials[3].what.split("rate ")[1].split(",")[0] in ("0.027", "0.001")
    for told in (chosen.what, report.reason):
        assert told in str(report)


def test_training_that_does_not_help_is_given_up() -> None:
    problem = shop(lots=False).problem
    wild = learner(problem, training=dro.Stage(epochs=2, rate=1e3, clip=None, batch_size=10)).fit(Z, Y, validation=HELD)
    assert wild.report_.chosen is not None
    assert wild.report_.chosen.epochs == 0
    assert "did not help" in wild.report_.reason
    only = learner(problem, training=None).fit(Z, Y, validation=HELD)
    np.testing.assert_array_equal(weights(wild), weights(only))


def test_what_is_given_is_not_compared() -> None:
    problem = shop(lots=False).problem
    given = dro.Stage(epochs=8, rate=1e-3, gradient="exact", batch_size=10)
    report = learner(problem, projection=None, training=given).fit(Z, Y, validation=HELD).report_
    assert [t.epochs for t in report.trials] == [0, 8]
    assert all("no projection" in t.what for t in report.trials)
    silent = learner(problem, training__epochs=8, trainer__budget=0.0).fit(Z, Y, validation=HELD).report_
    assert not silent.trials
    assert "Nothing" in str(silent)


def test_locations_of_the_first_training_are_compared_where_its_rate_is_left_open() -> None:
    model = learner(shop(lots=False).problem, pretraining=dro.Stage(epochs=2, batch_size=10), training__epochs=1)
    told = [t.what for t in model.fit(Z, Y, validation=HELD).report_.trials if t.epochs == 0]
    moved = [what for what in told if "neighbours" in what]
    # Those of the usual model, and of the best where that is another.
    assert len(moved) in (len(SHARES), 2 * len(SHARES))
    told = [what for what in told if what not in moved]
    assert len(told) == 8
    assert {what.split(", ")[1] for what in told} == {"rate 0.003"}
    assert sum("to outcomes" in what for what in told) == 4
    model = learner(
        shop(lots=False).problem,
        pretraining=dro.Stage(epochs=2, batch_size=10, locations="nominal"),
        projection=None,
        training__epochs=1,
    )
    told = [t.what for t in model.fit(Z, Y, validation=HELD).report_.trials if t.epochs == 0]
    assert told == ["pre-trained, rate 0.003, no projection"]


def bets(limit: bool = False) -> dro.DecisionProblem:
    """One of three bets, or none, whose returns are uncertain; perhaps with a loss that is never to be exceeded."""
    y, x = dro.Uncertain(3, support=dro.support.Box(-9.0, 9.0)), cp.Variable(3, nonneg=True)
    constraints = [cp.sum(x) <= 1, *([dro.always(y @ x >= -20.0)] if limit else [])]
    return dro.DecisionProblem(cp.Maximize(y @ x), constraints, dro.MomentSet.grouped(y, 1))


def test_sets_may_be_smaller_than_the_data_where_that_decides_better() -> None:
    """Returns whose mean is positive and small beside their spread: sets that hold the spread bet on nothing."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 1)), rng.normal([0.5, 0.2, 0.1], 1.0, (n, 3))) for n in (40, 60)]
    settings = {"pretraining": dro.Stage(epochs=10, batch_size=10, rate=1e-2), "training__epochs": 1}
    model = learner(bets(), **settings).fit(*data[0], validation=data[1])
    judged = {t.what.split("projection")[1]: t.loss for t in model.report_.trials if "no projection" in t.what}
    assert judged[", 0.001 of the size"] < -0.3 < judged[""] - 0.15
    assert model.loss(*data[1]) < -0.3
    # Where a constraint rests on the sets their size is a promise.
    bound = learner(bets(limit=True), **settings).fit(*data[0], validation=data[1])
    assert not any("of the size" in t.what for t in bound.report_.trials)


def test_a_choice_is_saved_and_resumed(tmp_path: Path) -> None:
    problem = shop(lots=False).problem
    where = dro.Trainer(tmp_path / "run", progress=False)
    first = learner(problem, training__epochs=4, trainer=where).fit(Z, Y, validation=HELD)
    again = learner(problem, training__epochs=4, trainer=where.but(resume=True)).fit(Z, Y, validation=HELD)
    assert str(again.report_) == str(first.report_)
    np.testing.assert_array_equal(weights(again), weights(first))
    first.save(tmp_path / "model.safetensors")
    loaded = dro.DecisionFocusedLearner.load(tmp_path / "model.safetensors", problem)
    assert loaded.loss(*HELD) == pytest.approx(first.loss(*HELD), rel=1e-9)


def test_what_began_elsewhere_is_trained_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which other things were compared before, so that trainings began with other sets."""
    problem = shop(lots=False).problem
    settings: dict[str, Any] = {"pretraining": dro.Stage(epochs=2, batch_size=10), "training__epochs": 16}
    folder = dro.Trainer(tmp_path / "run", progress=False)
    with monkeypatch.context() as before:
        before.setattr(second, "SHARES", ())
        before.setattr(second, "RATES", (0.3, 0.1, 0.03))
        old = learner(problem, trainer=folder, **settings).fit(Z, Y, validation=HELD)
    with pytest.warns(UserWarning, match="it is trained anew"):
        resumed = learner(problem, trainer=folder.but(resume=True), **settings).fit(Z, Y, validation=HELD)
    fresh = learner(problem, **settings).fit(Z, Y, validation=HELD)
    assert str(old.report_) != str(fresh.report_)
    assert str(resumed.report_) == str(fresh.report_)
    np.testing.assert_array_equal(weights(resumed), weights(fresh))


@pytest.mark.parametrize(
    "other",
    [
        {"origin": "pre-trained, no projection, 0.1 of the size"},
        {"before": {"prediction": [{"prediction_loss": 2.0}]}},
        {"stage": dro.Stage(2, batch_size=5)},
    ],
)
def test_a_training_that_began_with_something_else_is_trained_anew_and_says_so(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Sets of another size, after another training, or with other settings: a shrunk model stands in for all."""
    problem = shop(lots=False).problem
    trainer = dro.Trainer(tmp_path / "run", progress=False, budget=0.0)
    model = learner(problem, trainer=trainer).fit(Z, Y, validation=HELD)
    data = examples(problem, Z, Y)

    def end(size: float, origin: str = "", before: Any = None, stage: dro.Stage | None = None) -> float:
        pipeline, stage = deepcopy(model.pipeline_), stage or dro.Stage(2, batch_size=10)
        pipeline.model.scale.mul_(size)
        where = trainer.but(directory=tmp_path / "again", resume=True)
        course = Course(pipeline, data, None, torch.ones(problem.size), where, 0, False, dict(before or {}))
        course.train("decision", SecondTraining(course, stage, "mean", free=False).module(stage), stage, origin)
        return course.history["decision"][-1]["decision_loss"]

    ends = [end(1.0), end(1.0)]
    with pytest.warns(UserWarning, match="began with something else.*it is trained anew"):
        ends += [end(0.1, **other)]
    assert ends[0] == ends[1] != ends[2] == end(0.1, **other)


def test_what_follows_a_training_made_anew_is_made_anew(tmp_path: Path) -> None:
    """A model of one's own that begins elsewhere every time."""

    def run(resume: bool) -> dro.DecisionFocusedLearner:
        where = dro.Trainer(tmp_path, resume=resume, progress=False)
        return learner(shop(lots=False).problem, model=nn.Linear(2, 3), trainer=where).fit(Z, Y, validation=HELD)

    first = run(resume=False)
    np.testing.assert_array_equal(weights(run(resume=True)), weights(first))
    for name in ("done.json", "last.ckpt", "best.ckpt"):
        (tmp_path / "prediction" / name).unlink()
    with pytest.warns(UserWarning, match="decision.* began with something else"):
        second = run(resume=True)
    assert not np.array_equal(weights(second), weights(first))
    np.testing.assert_array_equal(weights(run(resume=True)), weights(second))


def test_another_model_takes_the_place_of_the_usual_one_only_where_it_is_clearly_better() -> None:
    usual, lucky = torch.full((6,), 1.0), torch.tensor([0.2, 1.5, 1.2, 0.9, 0.9, 1.2])
    better = usual - torch.tensor([0.1, 0.0, 0.1, 0.05, 0.1, 0.1])
    told = [
        Trial(what, float(losses.mean()), 1.0, 0, losses=losses)
        for what, losses in (("usual", usual), ("lucky", lucky), ("better", better))
    ]
    assert told[1].beats(told[0])
    assert not told[1].beats(told[0], errors=1.0)
    assert told[2].beats(told[0], errors=1.0)
    # Nor do differences that are smaller than what solvers leave open, be they the same in every row.
    closer = replace(told[0], loss=1.0 - 1e-8, losses=usual.double() - 1e-8)
    assert closer.beats(told[0])
    assert not closer.beats(told[0], errors=1.0)
    # Those that decide for more are better, whatever it costs; one row alone shows nothing.
    assert replace(told[1], solved=0.9).beats(replace(told[0], solved=0.8), errors=1.0)
    assert not Trial("", 0.0, 1.0, 0, losses=usual[:1] - 1).beats(Trial("", 1.0, 1.0, 0, losses=usual[:1]), errors=1.0)


@pytest.mark.parametrize(("errors", "kept"), [(1.0, 0.0), (0.0, 1.0)])
def test_the_usual_model_is_kept_where_others_are_merely_lucky(errors: float, kept: float) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    pipeline = Pipeline(Model(), None, None, dro.DROLayer(shop(lots=False).problem))
    losses = iter([torch.full((4,), 1.0), torch.tensor([0.1, 1.9, 0.9, 1.0])])

    def run(stage: dro.Stage, name: str, origin: str) -> None:
        assert origin == "pre-trained, no projection"
        nn.init.ones_(pipeline.model.theta)

    comparison = Comparison(pipeline, run, lambda: (next(losses), 1.0), [None], errors=errors)
    comparison.settle("pre-trained")
    comparison.tried(Choice(None, dro.Stage(2, rate=0.1)), "decision")
    findings = comparison.keep()
    assert float(pipeline.model.theta.detach()) == kept
    assert ("did not help" in findings.reason) == (kept == 0.0)


def _assets(objective: Any = "mean", **settings: Any) -> dro.DecisionFocusedLearner:
    """A learner of a cost that is affine in outcomes."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.Maximize(y @ x), [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    open_rate = dro.Stage(epochs=2, batch_size=10)
    return learner(problem, pretraining=open_rate, objective=objective, **settings)


def test_where_the_mean_suffices_the_usual_sets_are_the_smallest() -> None:
    """Larger sets, projected ones and trained ones must be better by two standard errors."""
    report = _assets().fit(Z, Y, validation=HELD).report_
    chosen = report.chosen
    assert chosen is not None
    usual = [t for t in report.trials if t.what.endswith("to outcomes, rate 0.003, no projection, 0.001 of the size")]
    assert len(usual) == 1
    # Twelve rows tell none of them apart.
    assert chosen.what == usual[0].what
    assert "standard error" in report.reason or "did not help" in report.reason
    # Where a tail is the goal, the mean is not all there is.
    other = _assets(dro.objectives.CVaR(0.5)).fit(Z, Y, validation=HELD).report_
    assert "2 standard errors" not in other.reason


def _compared(short: list[float], rows: int = 16, **settings: Any) -> tuple[Comparison, list[int]]:
    """A comparison whose short trainings gain so many standard errors on the usual model; epochs of all trainings."""
    pipeline = Pipeline(nn.Linear(1, 1), None, None, dro.DROLayer(shop(lots=False).problem))
    noise = torch.randn(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()
    ran: list[int] = []
    gains = iter([*short, 3.0])

    def measure() -> tuple[torch.Tensor, float]:
        if not ran:
            return torch.ones(rows, dtype=torch.float64), settings.get("solved", 1.0)
        return 1.0 + noise - next(gains) / rows**0.5, 1.0

    comparison = Comparison(
        pipeline,
        lambda stage, *_: ran.append(stage.epochs),
        measure,
        [None],
        errors=settings.get("errors", 2.0),
        smallest=settings.get("smallest", True),
    )
    comparison.settle("pre-trained")
    choice = Choice(None, dro.Stage(16, rate=0.1))
    others = [replace(choice, stage=choice.stage.but(rate=0.1 + k)) for k in range(1, len(short))]
    comparison.train(choice, len(short) / 8, [lambda best: others])
    return comparison, ran


def test_the_long_training_is_left_out_where_short_ones_show_nothing() -> None:
    comparison, ran = _compared([0.5, 0.9, -1.0])
    assert ran == [2, 2, 2]
    findings = comparison.keep()
    assert findings.chosen is not None
    assert findings.chosen.epochs == 0
    assert "No short training" in findings.reason
    assert "a standard error" in findings.reason
    # One that is ahead by more is followed by the long training, which is ahead by three here.
    comparison, ran = _compared([0.5, 1.1, -1.0])
    assert ran == [2, 2, 2, 16]
    findings = comparison.keep()
    assert findings.chosen is findings.trials[-1]
    assert "longest" in findings.reason


def _judged(models: list[tuple[float, float]], **settings: Any) -> Trial:
    """What is kept of first models, the usual ones last, that gain on the last so much, with so large an error."""
    pipeline = Pipeline(nn.Linear(1, 1), None, None, dro.DROLayer(shop(lots=False).problem))
    noise = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 4.0 * (noise - noise.mean()) / noise.std()
    seen = iter([1.0 - gain - error * noise for gain, error in models])
    comparison = Comparison(pipeline, lambda *_: None, lambda: (next(seen), 1.0), [None], **settings)
    for k in range(len(models)):
        comparison.begun(f"model {k}", lambda: None, usual=k >= 1)
    comparison.settle("pre-trained")
    chosen = comparison.keep().chosen
    assert chosen is not None
    return chosen


def test_larger_sets_take_the_place_of_the_smallest_where_they_are_better_by_the_margin() -> None:
    """They are fitted to outcomes as well; the one of the least loss may owe it to a few rows."""
    rule = {"errors": 2.0, "smallest": True}
    assert _judged([(0.0, 1.0), (0.3, 0.1), (0.0, 0.0)], **rule).what.startswith("model 1")
    assert _judged([(0.0, 1.0), (0.3, 0.2), (0.0, 0.0)], **rule).what.startswith("model 2")
    # The first has the least loss, by one standard error only; the second is better by three.
    assert _judged([(0.5, 0.5), (0.3, 0.1), (0.0, 0.0)], **rule).what.startswith("model 1")
    # Of two that are better by the margin, the better.
    assert _judged([(0.5, 0.1), (0.3, 0.1), (0.0, 0.0)], **rule).what.startswith("model 0")
    # Elsewhere the usual one is the best of its kind, whatever its size.
    assert _judged([(0.0, 1.0), (0.1, 0.2), (0.0, 0.0)], errors=1.0).what.startswith("model 1")


@pytest.mark.parametrize("settings", [{"smallest": False}, {"errors": 0.0}, {"solved": 0.9}])
def test_the_long_training_is_left_out_only_where_the_mean_suffices_and_all_have_a_decision(
    settings: dict[str, Any],
) -> None:
    assert _compared([0.5, 0.9], **settings)[1] == [2, 2, 16]


def _reason(models: list[tuple[int, float, float]], trained: float = 2.0) -> tuple[str, str]:
    """What is kept of trainings of so many epochs, the first the usual model, by gain and spread, and why."""
    pipeline = Pipeline(nn.Linear(1, 1), None, None, dro.DROLayer(shop(lots=False).problem))
    noise = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 4.0 * (noise - noise.mean()) / noise.std()
    seen = iter([1.0 - gain - spread * noise for _, gain, spread in models])
    comparison = Comparison(pipeline, lambda *_: None, lambda: (next(seen), 1.0), [None], errors=2.0, trained=trained)
    later = [k for k, (epochs, *_) in enumerate(models) if epochs]
    for k in range(later[0]):
        comparison.begun(f"model {k}", lambda: None, usual=k == 0)
    comparison.settle("pre-trained")
    for k in later:
        comparison.tried(Choice(None, dro.Stage(models[k][0], rate=float(k))), "decision")
    findings = comparison.keep()
    assert findings.chosen is not None
    return findings.chosen.what, findings.reason


def test_reasons_are_true_where_the_least_loss_is_not_kept() -> None:
    """Beyond the margin some are kept though others, not beyond it, have less loss."""
    usual, clear, lucky, worse = (0.0, 0.0), (0.3, 0.1), (0.5, 0.5), (-0.3, 0.1)
    what, reason = _reason([(0, *usual), (2, *worse), (9, *lucky)])
    assert what.startswith("model 0")
    assert reason.startswith("Training on decisions did not help by more than 2 standard errors")
    # What is kept is pre-trained too, and better than the usual by the margin; a training has less loss.
    what, reason = _reason([(0, *usual), (0, *clear), (2, *worse), (9, *lucky)])
    assert what.startswith("model 1")
    assert reason.startswith("Training on decisions did not help by more than 2 standard errors")
    # As clearly better as a start has to be, but not as a training.
    assert _reason([(0, *usual), (0, *clear), (2, *worse), (9, *worse)], trained=4.0)[0].startswith("model 1")
    assert _reason([(0, *usual), (2, *worse), (9, *clear)], trained=4.0)[0].startswith("model 0")
    # Much better than the usual one, but hardly than what it began with.
    what, reason = _reason([(0, *usual), (0, *clear), (2, *worse), (9, 0.31, 0.2)])
    assert what.startswith("model 1")
    what, reason = _reason([(0, *usual), (0, *clear), (2, *worse), (9, *usual)])
    assert reason.startswith("Training on decisions did not help on")
    what, reason = _reason([(0, *usual), (2, *clear), (9, *lucky)])
    assert "rate 1" in what
    assert "than what it began with by more than 2 standard errors on validation data, and the long" in reason
    what, reason = _reason([(0, *usual), (2, *clear), (9, *worse)])
    assert reason.startswith("A short training was better on validation data than the long one")
    what, reason = _reason([(0, *usual), (2, *lucky), (9, *clear)])
    assert "rate 2" in what
    assert "the best on validation data of those that were better than what they began with by more than 2" in reason
    assert (
        _reason([(0, *usual), (2, *worse), (9, *clear)])[1] == "The longest training was the best on validation data."
    )


def test_without_a_budget_for_short_trainings_there_is_the_long_one() -> None:
    comparison, ran = _compared([])
    assert ran == [16]
    assert "longest" in comparison.keep().reason


def test_a_learner_without_a_long_training_has_no_history_of_it() -> None:
    model = _assets(training__epochs=8).fit(Z, Y, validation=HELD)
    assert "No short training" in model.report_.reason
    assert list(model.history_) == ["prediction"]
    dro.plot.training(model)
    with pytest.raises(dro.ModelError, match="no stage 'decision'"):
        dro.plot.training(model, stage="decision")


@pytest.mark.parametrize(("hidden", "margin"), [((), 1.5), ((4,), 3.0)])
def test_trainings_of_a_linear_model_need_not_be_as_much_better(hidden: tuple[int, ...], margin: float) -> None:
    """It must err somewhere, even where the mean suffices: PyEPO's paths and knapsacks, in RESULTS.md."""
    reason = _assets(training__epochs=8, model__hidden=hidden).fit(Z, Y, validation=HELD).report_.reason
    # The long training is left out where no short one is ahead by half of it.
    assert f"No short training on decisions helped by more than {margin / 2:g} standard errors" in reason


def test_the_usual_sets_are_the_smallest_that_decide_for_as_many() -> None:
    """Small sets around means outside the support hold their witness: all decide for all rows, with a support too."""
    found = []
    for least in (-np.inf, 0.0):
        y, x = (
            dro.Uncertain(2, support=dro.support.Box(np.full(2, least), np.full(2, np.inf))),
            cp.Variable(2, nonneg=True),
        )
        problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
        rng = np.random.default_rng(0)
        some = rng.standard_normal((60, 2))
        outcomes = np.maximum(1.0 + 2.0 * some + 0.3 * rng.standard_normal((60, 2)), 0.0)
        model = learner(problem, pretraining=dro.Stage(epochs=4), training__epochs=1, model__hidden=())
        found.append(model.fit(some, outcomes).report_)
    usual = [[t for t in r.trials if "to outcomes" in t.what and "neighbours" not in t.what] for r in found]
    for trials, report in zip(usual, found, strict=True):
        assert [t.solved for t in trials] == [1.0] * 4
        assert report.chosen is not None
        assert "0.001 of the size" in report.chosen.what
        assert report.chosen.solved == 1.0


def test_without_a_first_training_nothing_is_usual() -> None:
    """A model that was never fitted needs no standard error to be replaced."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    model = learner(problem, pretraining=None, training=dro.Stage(epochs=8, batch_size=10)).fit(Z, Y, validation=HELD)
    report = model.report_
    assert report.chosen is not None
    assert report.chosen.loss == min(t.loss for t in report.trials)
    assert "standard error" not in report.reason


def test_which_problems_the_mean_suffices_for() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    known = cp.Parameter(2, name="known")
    box, ambiguity = [cp.sum(x) <= 1], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    for cost, expected in (
        (y @ x, True),
        (y @ x + cp.sum_squares(x) + cp.max(x), True),
        (cp.multiply(known, y) @ x + cp.sum(y), True),
        (cp.sum(cp.maximum(y - x, x - y)), False),
        (cp.pos(y @ x), False),
        (dro.cvar(y @ x, 0.9), False),
        (y @ x + dro.expected(cp.pos(y[0] - x[0])), False),
        (dro.expected(y[0] * x[0]) + dro.expected(y[1] * x[1]), True),
    ):
        assert dro.DecisionProblem(cost, box, ambiguity).neutral is expected
    assert not dro.DecisionProblem(y @ x, [*box, dro.chance(y @ x <= 3, 0.9)], ambiguity).neutral


def test_a_budget_is_a_number() -> None:
    with pytest.raises(dro.ModelError, match="budget"):
        dro.Trainer(budget=-1.0)
