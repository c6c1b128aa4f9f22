"""Default learners decide every finite row, and say which inputs they clip."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import moments as m


def shop(ambiguity: Any = None, support: Any = None) -> dro.DecisionProblem:
    """One product."""
    y = dro.Uncertain(1, support=dro.support.Nonnegative() if support is None else support)
    order = cp.Variable(1, name="order")
    made = dro.MomentSet(y, [m.SquaredNorm()]) if ambiguity is None else ambiguity(y)
    return dro.DecisionProblem(cp.sum(cp.maximum(3.0 * (y - order), order - y)), [], made)


def falling(count: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Demand that a line through the data sends below zero."""
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(count, 1))
    return Z, (6.0 - 5.0 * Z + rng.standard_normal((count, 1))).clip(0.0)


def quick(problem: dro.DecisionProblem, **settings: Any) -> dro.DecisionFocusedLearner:
    """The default learner with short trainings."""
    parts = {
        "pretraining": dro.Stage(epochs=6),
        "training": dro.Stage(epochs=1),
        "trainer": dro.Trainer(progress=False, budget=0.0),
    }
    return dro.DecisionFocusedLearner(problem, **{**parts, **settings})


@pytest.mark.parametrize("projection", ["auto", None])
@pytest.mark.parametrize("extrapolate", [False, True])
def test_later_contexts(projection: str | None, extrapolate: bool) -> None:
    """Beyond the data, too, with a projection and without."""
    model = quick(shop(), projection=projection, model=dro.Network(hidden=(), extrapolate=extrapolate)).fit(*falling())
    later = np.array([[1.3], [1.6], [2.0], [20.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error" if extrapolate else "ignore")
        decision = next(iter(model.decide(later).values()))
    assert np.isfinite(decision).all()


def test_a_model_of_ones_own() -> None:
    """Whatever it says."""

    class Wild(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.cat([-100.0 * z, -z], 1) + self.shift

    model = quick(shop(), model=Wild(), projection=None, pretraining=None).fit(*falling(30))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = next(iter(model.decide(np.array([[0.5], [3.0], [-3.0]])).values()))
    assert np.isfinite(found).all()


OUTCOMES = {
    "all equal": lambda rng: np.full((40, 1), 3.0),
    "at the boundary": lambda rng: np.zeros((40, 1)),
    "heavy tails": lambda rng: np.abs(rng.standard_t(1.2, (40, 1))),
    "ten rows": lambda rng: rng.uniform(size=(10, 1)),
    "tiny": lambda rng: 1e-5 * rng.uniform(1, 2, (40, 1)),
    "huge": lambda rng: 1e5 * rng.uniform(1, 2, (40, 1)),
}
SETS = {
    "square": lambda y: dro.MomentSet(y, [m.SquaredNorm()]),
    "mean and variance": lambda y: dro.MomentSet(y, [m.Mean(), m.Variance()]),
    "ball": lambda y: dro.Wasserstein(y, 5, order=2),
    "box": lambda y: dro.Outcomes(y, "box"),
}


@pytest.mark.parametrize(("outcomes", "ambiguity"), [*zip(OUTCOMES, [*SETS, *SETS], strict=False), ("tiny", "square")])
def test_awkward_outcomes(outcomes: str, ambiguity: str) -> None:
    """A constant column beside a varying one."""
    rng = np.random.default_rng(1)
    Y = OUTCOMES[outcomes](rng)
    Z = np.column_stack([rng.uniform(size=len(Y)), np.full(len(Y), 7.0)])
    model = quick(shop(SETS[ambiguity])).fit(Z, Y)
    later = np.array([[0.5, 7.0], [3.0, 7.0], [-5.0, 8.0], [0.1, 0.0]])
    decision = model.decision(later)
    assert bool(decision.ok.all()), decision.counted


def test_the_warning_says_how_many_rows_and_how_far(tmp_path: Path) -> None:
    """Once a call; the range is saved with the learner."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"age": rng.uniform(size=30), "year": np.full(30, 2020.0)})
    Z.loc[0, "age"], Z.loc[1, "age"] = 0.0, 1.0
    Y = rng.uniform(1, 2, (30, 1))
    problem = shop()
    model = quick(problem, trainer=dro.Trainer(progress=False, budget=0.0, validation_share=0.0)).fit(Z, Y)
    later = pd.DataFrame({"age": [0.5, 3.0, 0.2, -1.0], "year": [2020.0, 2020.0, 2021.0, 2020.0]})
    path = tmp_path / "learner.safetensors"
    model.save(path)
    for one in (model, dro.DecisionFocusedLearner.load(path, problem)):
        for method in (one.decide, one.predict_set):
            with pytest.warns(dro.ClippedInputsWarning) as caught:
                method(later)
            assert len(caught) == 1
            said = str(caught[0].message)
            assert "3 of 4 rows (75.0%)" in said
            assert "'age' by up to 2 times its range" in said
            assert "'year', constant in training, by up to 1" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.decide(Z)
    inside = pd.DataFrame({"age": [0.5, 1.0, 0.2, 0.0], "year": [2020.0] * 4})
    found = model.pipeline_.model(torch.as_tensor(later.to_numpy()))
    torch.testing.assert_close(found, model.pipeline_.model(torch.as_tensor(inside.to_numpy())))


def test_coverage_holds_for_sets_that_were_made_to_hold_their_witness() -> None:
    """A scaled set that holds an outcome still does so."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    rng = np.random.default_rng(2)
    for ambiguity in (dro.MomentSet(y, [m.SquaredNorm()]), dro.Outcomes(y, "box"), dro.Outcomes(y, "ellipsoid")):
        values = ambiguity.unpack(torch.as_tensor(rng.standard_normal((50, ambiguity.size))))
        theta = ambiguity.pack({n: v.abs() if n.endswith(("sigma", "radius")) else v for n, v in values.items()})
        outcomes = torch.as_tensor(np.abs(rng.standard_normal((50, 2))))
        scores = ambiguity.scores(theta, outcomes)
        some = (scores.isfinite() & (scores > 0)).nonzero()[:, 0]
        scaled = ambiguity.scaled(theta[some], scores[some])
        found = ambiguity.scores(ambiguity.ensure_nonempty(scaled), outcomes[some])
        assert bool((found <= 1.0 + 1e-9).all())


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_radius_that_moves_no_decision_is_not_trained(budget: float) -> None:
    """It says so, and what the first training left decides."""
    problem = shop(lambda y: dro.Wasserstein(y, 5), dro.support.Reals())
    with pytest.warns(UserWarning, match="no decision moves with the set's parameters"):
        model = quick(problem, trainer=dro.Trainer(progress=False, budget=budget)).fit(*falling(30))
    assert "decision" not in model.history_
    assert np.isfinite(next(iter(model.decide(falling(5)[0]).values()))).all()
    bounded = shop(lambda y: dro.Wasserstein(y, 5), dro.support.Box(0.0, 8.0))
    assert "decision" in quick(bounded).fit(*falling(30)).history_
