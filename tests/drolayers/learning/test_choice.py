"""Cross-validation on a criterion that the user names, against the same written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold, RepeatedKFold, TimeSeriesSplit

import drolayers as dro
from drolayers.tails import worst_weights
from tests.drolayers.learning.small import learner, sales, shop
from tests.drolayers.learning.test_calibration import dear, missing
from tests.drolayers.learning.test_known import Shelf
from tests.drolayers.learning.test_known import data as shelf_data

STAND = shop(False)


def costs(model, Z: np.ndarray, Y: np.ndarray) -> np.ndarray:
    retail = model.decide(Z)[STAND.retail]
    return retail.sum(1) + np.maximum(4.0 * (Y - retail), retail - Y).sum(1)


@pytest.mark.parametrize("criterion", ["mean", "cvar", "shift", "own"])
def test_a_scale_is_chosen_by_the_criterion(criterion: str, tmp_path: Path) -> None:
    Z, Y = sales(36)
    model = learner(STAND.problem, projection=None, training=None)
    given, by_hand = {
        "mean": ("mean", np.mean),
        "cvar": (dro.objectives.CVaR(0.75), lambda c: np.sort(c)[-9:].mean()),
        "shift": (dro.objectives.Shift(0.5), lambda c: worst_weights(torch.as_tensor(c), 0.5).numpy() @ c),
        "own": (lambda c, Z, Y: (Z[:, 0] * c).sum() / Z[:, 0].sum(), lambda c: Z[:, 0] @ c / Z[:, 0].sum()),
    }[criterion]
    parts = KFold(3, shuffle=True, random_state=0)
    scales = (0.1, 1.0, 4.0)
    choice = dro.choose(model, Z, Y, criterion=given, cv=parts, scales=scales)
    expected, fold = {scale: np.zeros(36) for scale in scales}, None
    for training, rest in parts.split(Z):
        fold = clone(model).fit(Z[training], Y[training])
        for scale in scales:
            fold.pipeline_.scale = scale
            expected[scale][rest] = costs(fold, Z[rest], Y[rest])
    values = {scale: by_hand(found) for scale, found in expected.items()}
    assert {one.scale: one.value for one in choice.candidates} == pytest.approx(values)
    assert choice.chosen.scale == min(values, key=values.get) == choice.best.pipeline_.scale
    whole = clone(model).fit(Z, Y)
    whole.pipeline_.scale = choice.chosen.scale
    np.testing.assert_allclose(costs(choice.best, Z, Y), costs(whole, Z, Y))
    choice.best.save(tmp_path / "best.safetensors")
    again = dro.DecisionFocusedLearner.load(tmp_path / "best.safetensors", STAND.problem, projection=None)
    np.testing.assert_allclose(costs(again, Z, Y), costs(whole, Z, Y))
    assert str(choice).count("\n") == 2


def test_rows_of_every_repeat_count() -> None:
    Z, Y = sales(20)
    parts = RepeatedKFold(n_splits=4, n_repeats=3, random_state=0)
    policy = dro.baselines.SampleAverage(STAND.problem)
    choice = dro.choose(policy, Z, Y, cv=parts)
    found = [costs(clone(policy).fit(Z[t], Y[t]), Z[r], Y[r]) for t, r in parts.split(Z)]
    assert len(found) == 12
    assert choice.chosen.value == pytest.approx(np.concatenate(found).mean())
    assert choice.chosen.error == pytest.approx(np.std([c.mean() for c in found], ddof=1) / 12**0.5)
    with pytest.raises(dro.ModelError, match="no number"):
        dro.choose(policy, Z, Y, criterion=lambda c, Z, Y: float("nan"))


def test_policies_by_name_and_splitters_that_leave_rows_out() -> None:
    Z, Y = sales(30)
    policies = {
        "average": dro.baselines.SampleAverage(STAND.problem),
        "learner": learner(STAND.problem, training=None),
        "ball": learner(shop(False, "ball").problem),
    }
    choice = dro.choose(policies, Z, Y, cv=TimeSeriesSplit(2), refit=False)
    assert [one.name for one in choice.candidates] == list(policies)
    assert choice.best is None
    (first, second) = TimeSeriesSplit(2).split(Z)
    parts = [costs(clone(policies["average"]).fit(Z[a], Y[a]), Z[b], Y[b]) for a, b in (first, second)]
    assert choice.candidates[0].value == pytest.approx(np.concatenate(parts).mean())
    assert choice.candidates[0].error == pytest.approx(np.std([p.mean() for p in parts], ddof=1) / 2**0.5)


def test_known_data_go_with_their_rows() -> None:
    Z, Y, known = shelf_data(30)
    problem = Shelf().problem
    model = learner(problem, training=None)
    choice = dro.choose(model, Z, Y, cv=3, known=known)
    rows = {name: np.asarray(values) for name, values in known.items()}
    found = []
    for training, rest in KFold(3).split(Z):
        fold = clone(model).fit(Z[training], Y[training], known={name: v[training] for name, v in rows.items()})
        found.append(fold.loss(Z[rest], Y[rest], {name: v[rest] for name, v in rows.items()}))
    assert choice.chosen.value == pytest.approx(np.mean(found))
    whole = clone(model).fit(Z, Y, known=known)
    assert choice.best.loss(Z, Y, known) == pytest.approx(whole.loss(Z, Y, known))
    # Those of other rows are not the same.
    assert whole.loss(Z, Y, {name: v[::-1].copy() for name, v in rows.items()}) != pytest.approx(
        whole.loss(Z, Y, known)
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"candidates": []}, "at least one"),
        ({"candidates": [3]}, "Candidate 0 is no policy"),
        ({"criterion": "median"}, "criterion must be"),
        ({"criterion": dro.objectives.WorstCaseQuantile(0.8)}, "criterion must be"),
        ({"scales": [-1.0]}, "positive"),
        ({"candidates": dro.baselines.SampleAverage(STAND.problem), "scales": [1.0]}, "scales= are for sets"),
    ],
)
def test_choices_that_make_no_sense(settings, says: str) -> None:
    settings = {"candidates": learner(STAND.problem, training=None), **settings}
    with pytest.raises(dro.ModelError, match=says):
        dro.choose(settings.pop("candidates"), *sales(12), **settings)


def test_infinite_costs_and_criteria_are_told_as_such() -> None:
    problem, _ = dear()
    policy, data = dro.baselines.WeightedSampleAverage(problem, dro.nominal.KNN(k=10)), missing(100, 0)
    for criterion in ("mean", dro.objectives.CVaR(0.9), dro.objectives.Shift(0.5)):
        with pytest.raises(dro.ModelError, match=r"candidate 0: \d+ rows cost infinitely much"):
            dro.choose(policy, *data, cv=2, criterion=criterion)
    with pytest.raises(dro.ModelError, match=r"candidate 0: .* infinitely much"):
        dro.choose(policy, *data, cv=2, criterion=lambda c, Z, Y: np.inf)
    average = dro.baselines.SampleAverage(STAND.problem)
    for value, says in (
        (np.inf, "candidate 0: the criterion is infinite"),
        (-np.inf, "criterion of candidate 0 is -inf"),
        (np.ones(3), r"one number for all costs, not an array of shape \(3,\)"),
        ("little", "one number, not 'little'"),
        (None, "is no number"),
    ):
        with pytest.raises(dro.ModelError, match=says):
            dro.choose(average, *sales(12), cv=2, criterion=lambda c, Z, Y, value=value: value)
    # One that is finite wins.
    values = iter([np.inf, 1.0, 1.0, 1.0])
    rich = dro.choose(
        {"poor": average, "rich": dro.baselines.SampleAverage(STAND.problem)},
        *sales(12),
        cv=2,
        criterion=lambda c, Z, Y: next(values),
        refit=False,
    )
    assert rich.chosen.name == "rich"
    assert "poor: inf, since the criterion is infinite" in str(rich)


def test_names_and_sizes_that_choose_cannot_know() -> None:
    average = dro.baselines.SampleAverage(STAND.problem)
    with pytest.raises(dro.ModelError, match="one name as text"):
        dro.choose({1: average, "1": average}, *sales(12))
    shaped = learner(STAND.problem, training__coverage=0.8, projection=None)
    with pytest.raises(dro.ModelError, match=r"Candidate 0 is trained with Stage\(coverage=.*scales="):
        dro.choose(shaped, *sales(30), cv=2)
    assert dro.choose(shaped, *sales(30), cv=2, scales=[1.0, 2.0]).best.calibration_.by == "choice"
