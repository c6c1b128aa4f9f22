"""Rows without a decision are reported by fit, decide, score and loss, and train nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score
from torch import Tensor, nn

import drolayers as dro
from drolayers import metrics
from drolayers.baselines import WeightedSampleAverage
from drolayers.learning.loop import Loop
from tests.drolayers.learning.small import learner, sales, shop

MASKED = 0.5
"""Value of the first covariate above which ``SomeEmpty`` predicts an empty set."""


@pytest.fixture(autouse=True)
def without_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave predicted sets empty, the simplest way to rows that no other part of a model can decide for."""
    monkeypatch.setattr("drolayers.ambiguity.sets.Sets.ensure_nonempty", lambda self, theta, *_: theta)


class SomeEmpty(nn.Module):
    """Predict (μ, σ) of a moment set, empty where the first covariate is large."""

    def __init__(self, share: float = MASKED) -> None:
        super().__init__()
        self.share = share
        self.linear = nn.Linear(2, 3)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.copy_(torch.tensor([2.5, 2.5, 1.0]))

    def forward(self, z: Tensor) -> Tensor:
        predicted = self.linear(z)
        empty = z[:, :1] > self.share
        return torch.cat([predicted[:, :2], torch.where(empty, -1.0, predicted[:, 2:].abs() + 0.1)], 1)


def some_empty(share: float = MASKED, **settings: Any) -> dro.DecisionFocusedLearner:
    return learner(shop().problem, model=SomeEmpty(share), projection=None, pretraining=None, **settings)


@contextmanager
def collected() -> Iterator[list[str]]:
    """The sentences of all UnsolvedItemsWarning."""
    sentences: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield sentences
    sentences += [str(one.message) for one in caught if issubclass(one.category, dro.UnsolvedItemsWarning)]


@pytest.mark.parametrize("budget", [0.0, 0.75])
@pytest.mark.parametrize("directory", [False, True])
def test_fit_raises_after_an_epoch_without_a_solution(budget: float, directory: bool, tmp_path) -> None:
    trainer = dro.Trainer(progress=False, budget=budget, directory=tmp_path / "run" if directory else None)
    with pytest.raises(dro.SolveError, match=r"None of (\d+) training rows was solved .*: \1 EMPTY_SET.*dro\.Project"):
        some_empty(-1.0, trainer=trainer).fit(*sales())


def test_a_batch_without_a_solved_item_changes_no_weight() -> None:
    """Not even by Adam's memory of earlier batches."""
    Z, Y = sales(40)
    order = np.argsort(Z[:, 0])
    Z, Y = Z[order], Y[order]
    stage = dro.Stage(epochs=1, batch_size=4, rate=1e-1)
    steps: list[tuple[bool, bool]] = []

    model = dro.DecisionFocusedLearner(
        shop().problem,
        model=SomeEmpty(),
        projection=None,
        pretraining=None,
        training=stage,
        trainer=dro.Trainer(progress=False, budget=0.0),
    )
    original = Loop._epoch

    def epoch(self: Loop, module: Any, optimiser: Any, data: Any, device: Any) -> None:
        step, training = optimiser.step, module.training_step
        solved: list[bool] = []

        def watched_training(batch: Any, number: int) -> Tensor:
            solved.append(bool((batch[0][:, 0] <= MASKED).any()))
            loss: Tensor = training(batch, number)
            return loss

        def watched_step(*args: Any) -> None:
            before = nn.utils.parameters_to_vector(module.pipeline.model.parameters()).detach().clone()
            step(*args)
            after = nn.utils.parameters_to_vector(module.pipeline.model.parameters()).detach()
            steps.append((solved[-1], not torch.equal(before, after)))

        module.training_step, optimiser.step = watched_training, watched_step
        original(self, module, optimiser, data, device)
        del module.training_step

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", dro.UnsolvedItemsWarning)
        patch.setattr(Loop, "_epoch", epoch)
        patch.setattr("drolayers.learning.loop.SeededBatches", InOrder)
        model.fit(Z, Y, validation=(Z[:5], Y[:5]))
    assert {solved for solved, _ in steps} == {True, False}
    assert all(solved == moved for solved, moved in steps)
    assert np.isfinite(model.history_["decision"][0]["decision_loss"])


class InOrder(list):  # type: ignore[type-arg]
    """Batches in the order of the data."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        super().__init__([list(range(k, min(k + size, count))) for k in range(0, count, size)])

    def set_epoch(self, epoch: int) -> None:
        """Nothing is shuffled."""


@pytest.mark.parametrize("objective", ["mean", dro.objectives.CVaR(0.5), dro.objectives.Shift(0.5), "zero"])
def test_training_uses_the_solved_rows_alone(objective: Any) -> None:
    """A training with unsolved rows equals one on the solved rows; an objective may be NaN or zero for the others."""

    class Zero:
        def __call__(self, problem, decision, y):
            return torch.where(decision.ok, decision.expected(lambda x: problem.loss(x, y)), 0.0)

    Z, Y = sales(30)
    solved = Z[:, 0] <= MASKED
    held_out = Z[solved][:6], Y[solved][:6]
    trained = []
    for rows in (np.ones(30, bool), solved):
        model = some_empty(
            objective=Zero() if objective == "zero" else objective,
            training=dro.Stage(epochs=3, batch_size=30, rate=1e-2, gradient="smoothed"),
            nominal=dro.nominal.KNN(k=1),
        )
        with collected() as sentences:
            model.fit(Z[rows], Y[rows], validation=held_out)
        assert len(sentences) == (1 if rows.all() else 0)
        if rows.all():
            assert f"{int((~solved).sum())} of 30 training rows were not solved" in sentences[0]
        trained.append(model)
    together, alone = (nn.utils.parameters_to_vector(m.pipeline_.model.parameters()).detach() for m in trained)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    first, second = (model.history_["decision"][-1] for model in trained)
    assert first["decision_loss"] == pytest.approx(second["decision_loss"], rel=1e-5)
    assert first["effective_sample_size"] == pytest.approx(second["effective_sample_size"], rel=1e-5)
    assert first["masked_share"] == pytest.approx((~solved).mean())


def test_epochs_gain_nothing_from_failing_on_hard_rows() -> None:
    """The best epoch is one with the fewest undecided validation rows, though their cost is the largest."""
    Z, Y = sales(40)
    Y[Z[:, 0] > MASKED] += 20.0

    class Failing(SomeEmpty):
        """Decides for hard rows in the first epochs only."""

        def forward(self, z: Tensor) -> Tensor:
            predicted = self.linear(z)
            empty = (z[:, :1] > MASKED) & (self.linear.bias[2] > 1.2).detach()
            return torch.cat([predicted[:, :2], torch.where(empty, -1.0, predicted[:, 2:].abs() + 0.1)], 1)

    class Growing:
        """Its gradient raises the third bias whatever the decisions."""

        def __call__(self, problem, decision, y):
            return decision.expected(lambda x: problem.loss(x, y)) - 1e3 * decision.value

    with collected():
        model = learner(
            shop(False).problem,
            model=Failing(),
            projection=None,
            pretraining=None,
            training=dro.Stage(epochs=6, batch_size=40, rate=0.12),
            objective=Growing(),
        ).fit(Z, Y, validation=(Z, Y))
    rows = model.history_["decision"]
    shares = [row["val_masked_share"] for row in rows]
    assert min(shares) == 0.0 < max(shares)
    assert model.decision(Z).ok.all()


def fitted() -> tuple[dro.DecisionFocusedLearner, np.ndarray, np.ndarray, np.ndarray]:
    """A learner, data, and the rows that it decides for."""
    Z, Y = sales(40)
    with collected():
        model = some_empty().fit(Z, Y)
    return model, Z, Y, Z[:, 0] <= MASKED


def test_score_and_loss_of_a_learner() -> None:
    model, Z, Y, solved = fitted()
    count = f"{int((~solved).sum())} of 40 rows were not solved: {int((~solved).sum())} EMPTY_SET"
    with collected() as sentences:
        assert model.score(Z, Y) == -np.inf
        assert np.isnan(model.loss(Z, Y))
    assert len(sentences) == 2
    assert all(count in sentence and dro.Status.EMPTY_SET.advice in sentence for sentence in sentences)
    assert all("missing='skip'" in sentence for sentence in sentences)
    with collected() as sentences:
        skipped = model.loss(Z, Y, missing="skip")
        assert model.score(Z, Y, missing="skip") == -skipped
        assert skipped == pytest.approx(model.loss(Z[solved], Y[solved]))
        assert skipped == pytest.approx(np.nanmean(model.costs(Z, Y)))
    assert not sentences
    with collected() as sentences:
        assert model.score(Z[~solved], Y[~solved], missing="skip") == -np.inf
        assert np.isnan(model.loss(Z[~solved], Y[~solved], missing="skip"))
    assert len(sentences) == 2
    for method in (model.score, model.loss, model.violations):
        with pytest.raises(dro.ModelError, match="missing must be 'worst' or 'skip', not 'drop'"):
            method(Z, Y, missing="drop")


def test_decisions_and_reports_of_a_learner() -> None:
    model, Z, Y, solved = fitted()
    missing = int((~solved).sum())
    for method in (model.decide, model.decision, model.predict):
        with collected() as sentences:
            method(Z)
        (sentence,) = sentences
        assert f"{missing} of 40 rows were not solved" in sentence
    with collected() as sentences:
        report, told = model.report(Z, Y), model.disappointment(Z, Y)
        model.costs(Z, Y)
    assert not sentences
    assert f"rows             40, of which {missing} have no decision and are left out below" in str(report)
    assert told.undecided == missing
    assert f"{missing} rows without a decision are left out" in str(told)
    assert "without a decision" not in str(model.disappointment(Z[solved], Y[solved]))


def limited() -> tuple[dro.DecisionProblem, cp.Variable, cp.Parameter]:
    """Without a decision where the known limit is negative."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    limit = cp.Parameter(name="limit")
    rules = [x <= limit, dro.chance(y[0] <= x[0] + 9.0, 0.7)]
    return dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), rules, dro.Wasserstein(y, 5)), x, limit


def test_baselines_regret_and_choice() -> None:
    problem, x, _ = limited()
    Z, Y = sales(20)
    known = {"limit": np.where(np.arange(20) < 15, 4.0, -1.0)}
    policy = WeightedSampleAverage(problem, dro.nominal.KNN(k=5)).fit(Z, Y, known=known)
    with collected() as sentences:
        decision = policy.decide(Z, known)
    assert len(sentences) == 1
    assert "5 of 20 items were not solved: 5 INFEASIBLE" in sentences[0]
    with collected() as sentences:
        assert policy.score(Z, Y, known) == -np.inf
    assert any("5 of 20 rows have no decision. The score is minus infinity" in sentence for sentence in sentences)
    costs = problem.loss(
        {x: torch.as_tensor(decision[x][:15])}, torch.as_tensor(Y[:15]), {"limit": known["limit"][:15]}
    )
    assert policy.score(Z, Y, known, missing="skip") == pytest.approx(-float(costs.mean()))
    with collected() as sentences:
        assert np.isnan(metrics.regret(problem, decision, Y, known))
    assert any("5 of 20 outcomes have no best decision (the first is outcome 15)" in sentence for sentence in sentences)
    with collected() as sentences, pytest.raises(dro.ModelError, match="5 rows have no decision"):
        dro.choose(policy, Z, Y, known=known, cv=2, refit=False)
    assert not sentences


def test_violations_of_a_learner() -> None:
    problem, _, _ = limited()
    Z, Y = sales(20)
    known = {"limit": np.where(np.arange(20) < 15, 4.0, -1.0)}
    with collected() as sentences:
        model = learner(problem, training__epochs=1).fit(Z, Y, known=known)
    assert any("training rows were not solved" in sentence for sentence in sentences)
    with pytest.warns(dro.UnsolvedItemsWarning, match="5 of 20 rows were not solved.*violations are NaN"):
        assert all(np.isnan(value) for value in model.violations(Z, Y, known).values())
    skipped = model.violations(Z, Y, known, missing="skip")
    first = {"limit": known["limit"][:15]}
    assert list(skipped.values()) == pytest.approx(list(model.violations(Z[:15], Y[:15], first).values()))


def test_cross_validation_punishes_rows_without_a_decision() -> None:
    Z, Y = sales(40)
    with collected():
        scores = cross_val_score(some_empty(), Z, Y, cv=2)
        whole = cross_val_score(some_empty(2.0), Z, Y, cv=2)
    assert (scores == -np.inf).all()
    assert np.isfinite(whole).all()
