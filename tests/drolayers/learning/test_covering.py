"""The size of sets while their shape is trained, and the unit in which sizes are counted."""

from __future__ import annotations

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.learning.comparison import Choice, Comparison
from drolayers.learning.covering import OTHERS, SMALL, Covering, quantile
from drolayers.learning.data import Examples
from drolayers.learning.first import FirstTraining
from drolayers.learning.pipeline import Pipeline


def stock(shape: str = "box") -> dro.DecisionProblem:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    return dro.DecisionProblem(cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y)), [], dro.Outcomes(y, shape))


class Constant(torch.nn.Module):
    """The same set whatever the context."""

    def __init__(self, theta: list[float]) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.theta.expand(len(z), -1)


def drawn(count: int) -> Examples:
    rng = np.random.default_rng(0)
    Z, Y = torch.as_tensor(rng.normal(size=(count, 1))), torch.as_tensor(rng.normal(size=(count, 2)))
    return Examples(Z, Y)


def test_a_quantile_of_many_is_that_of_the_distribution() -> None:
    scores = torch.as_tensor(np.random.default_rng(1).permutation(20_000) / 20_000.0)
    for level in (0.2, 0.9, 0.99):
        assert float(quantile(scores, level)) == pytest.approx(level, abs=1e-3)
    assert float(quantile(torch.full((7,), 3.0), 0.9)) == pytest.approx(3.0)
    # Infinite scores are left out, and nothing is left unscaled.
    assert float(quantile(torch.tensor([2.0, torch.inf]), 0.5)) == pytest.approx(2.0)
    assert float(quantile(torch.tensor([torch.inf]), 0.5)) == 1.0
    # Its weights add up to one, and many rows have some.
    scores = scores[:200].requires_grad_()
    quantile(scores, 0.9).backward()
    assert scores.grad is not None
    assert float(scores.grad.sum()) == pytest.approx(1.0)
    assert int((scores.grad > 0.01).sum()) > 10


def test_sets_of_a_batch_are_scaled_by_other_rows_and_grow() -> None:
    data = drawn(2 * OTHERS)
    problem = stock()
    pipeline = Pipeline(Constant([0.0, 0.0, 1.0, 1.0]), None, None, dro.DROLayer(problem))
    z, y, rows, _ = data.batch(list(range(20)))
    theta = pipeline.model(z)
    covering = Covering(0.8, data, epochs=10, seed=0)
    widths = [covering(pipeline, y, rows, epoch, 3, theta)[:, 2] for epoch in range(10)]
    assert all(len(width.unique()) == 1 for width in widths)
    sizes = [width[0].item() for width in widths]
    # What covers 0.8 of two independent normal coordinates.
    full = sizes[-1]
    assert full == pytest.approx(1.618, abs=0.12)
    assert sizes[0] == pytest.approx(SMALL * full)
    assert all(a < b for a, b in pairwise(sizes[:6]))
    assert sizes[5:] == [full] * 5
    # The scale undoes the unit of the sets: nothing is to be gained by making them larger as they are.
    (pulled,) = torch.autograd.grad(widths[-1].sum(), pipeline.model.theta)
    assert float(pulled[2:].sum()) == pytest.approx(0.0, abs=1e-9)
    # The batch's own outcomes do not count while there are others; where it is most of the data its halves do.
    torch.testing.assert_close(covering(pipeline, 100 * y, rows, 9, 3, theta)[:, 2], widths[-1])
    few = Covering(0.8, data[:20], epochs=10, seed=0)
    assert len(few(pipeline, y, rows, 9, 0, theta)[:, 2].unique()) == 2
    torch.testing.assert_close(few(pipeline, y, rows, 9, 0, theta), few.crossed(pipeline, y, theta))


def test_bounds_that_are_fitted_to_heavy_tails_do_not_vanish() -> None:
    """A hundredth of the outcomes are a hundred times as large: the variance of all is not that of any context."""
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(300, 2))
    Y = Z + 0.1 * rng.normal(size=(300, 2))
    Y[::97] *= 100.0
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + y @ x, [cp.sum(x) <= 1], dro.MomentSet.grouped(y, 1))
    learner = dro.DecisionFocusedLearner(
        problem,
        projection=None,
        pretraining=dro.Stage(epochs=20, rate=1e-2),
        training=None,
        trainer=dro.Trainer(progress=False),
    ).fit(Z, Y)
    found = learner.predict_set(Z)
    nominal = learner.pipeline_.nominal(torch.as_tensor(Z))
    away = (nominal.atoms - torch.as_tensor(np.asarray(found["mu"]))[:, None]).square()
    wanted = (nominal.weights[..., None] * away).sum(1).median(0).values
    middle = torch.as_tensor(np.asarray(found["sigma"])).median(0).values
    assert bool(((0.2 * wanted < middle) & (middle < 5.0 * wanted)).all())


def test_a_rate_that_diverges_loses() -> None:
    pipeline = Pipeline(Constant([0.0, 0.0, 1.0, 1.0]), None, None, dro.DROLayer(stock()))

    def run(stage: dro.Stage, name: str, origin: str) -> None:
        with torch.no_grad():
            pipeline.model.theta.mul_(torch.inf if stage.rate == 1.0 else 0.5)
        if stage.rate == 1.0:
            raise dro.ShapeError("theta holds NaN or infinite values.")

    losses = iter([3.0, 2.0])
    comparison = Comparison(pipeline, run, lambda: (torch.tensor([next(losses)]), 1.0), [None])
    comparison.settle("pre-trained")
    wild = comparison.tried(Choice(None, dro.Stage(2, rate=1.0)), "decision")
    assert wild.loss == float("inf")
    comparison.tried(Choice(None, dro.Stage(2, rate=0.1)), "decision")
    findings = comparison.keep()
    assert findings.chosen is not None
    assert findings.chosen.loss == 2.0
    assert "diverged" in str(findings)
    assert pipeline.model.theta.tolist() == [0.0, 0.0, 0.5, 0.5]


def test_an_outcome_that_is_constant_does_not_keep_the_others_from_being_fitted() -> None:
    rng = np.random.default_rng(3)
    Z = rng.uniform(-1.0, 1.0, size=(120, 1))
    Y = np.hstack([np.full((120, 1), 0.1), 0.1 + 0.02 * Z, 0.1 - 0.02 * Z])
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    problem = dro.DecisionProblem(cp.Maximize(y @ x), [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    learner = dro.DecisionFocusedLearner(
        problem,
        nominal=dro.nominal.KNN(k=4),
        projection=None,
        pretraining=dro.Stage(epochs=40, rate=1e-2),
        training=None,
        trainer=dro.Trainer(progress=False),
    ).fit(Z, Y)
    missed = np.abs(np.asarray(learner.predict_set(Z)["mu"]) - Y)
    assert missed.mean(0).max() < 0.002


def test_a_single_row_is_judged_at_a_size_that_covers() -> None:
    data = drawn(200)
    pipeline = Pipeline(Constant([0.0, 0.0, 1.0, 1.0]), None, None, dro.DROLayer(stock()))
    z, y, _, _ = data.batch([0])
    width = Covering(0.8, data, epochs=4, seed=0).crossed(pipeline, y, pipeline.model(z))[0, 2].item()
    assert width == pytest.approx(1.618, abs=0.25)


def test_sets_that_hold_no_single_outcomes_are_refused_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y)), [], dro.MeanCovariance(y))
    learner = dro.DecisionFocusedLearner(problem, training=dro.Stage(2, coverage=0.9))
    monkeypatch.setattr(FirstTraining, "run", lambda *_: pytest.fail("It was trained."))
    rng = np.random.default_rng(0)
    with pytest.raises(dro.ModelError, match="disappointment"):
        learner.fit(rng.normal(size=(40, 1)), rng.normal(size=(40, 2)))
