from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drolayers import metrics
from drolayers.baselines.sibling import ExpectedCost
from research.proving import oracles, pyepo
from research.proving.table import means


@pytest.mark.parametrize("problem", pyepo.PROBLEMS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_quick_decisions_are_those_of_the_library(problem, noise) -> None:
    """Outcomes as they were drawn and as somebody may predict them, with both signs and ties."""
    drawn = pyepo.draw(problem, 4, 40, noise, 1)
    outcomes = np.concatenate([drawn.test[1][:8], np.random.default_rng(0).normal(0, 1, (8, drawn.quick.dim))])
    y = torch.as_tensor(outcomes)
    expected = ExpectedCost(drawn.problem, 1).decide(y[:, None], torch.ones_like(y[:, :1]))
    found = drawn.quick.decide(y)
    scale = np.abs(outcomes).max()
    np.testing.assert_allclose(drawn.problem.loss(found, y) / scale, drawn.problem.loss(expected, y) / scale, atol=1e-6)
    x = next(iter(found.values())).numpy()
    for constraint in drawn.problem.constraints:
        for row in x:
            drawn.problem.variables[0].value = row
            assert constraint.violation().max() < 1e-9


def test_the_linear_form_is_the_loss() -> None:
    for problem in pyepo.PROBLEMS:
        drawn = pyepo.draw(problem, 2, 20, 0.5, 0)
        y = torch.as_tensor(drawn.test[1][:4])
        w = drawn.quick.solve(torch.cat([y, torch.ones_like(y[:, :1])], 1))
        np.testing.assert_allclose((w[:, :-1] * y).sum(1), metrics.hindsight(drawn.problem, y), rtol=1e-6)


def test_a_knapsack_against_enumeration() -> None:
    rng = np.random.default_rng(3)
    every = np.array(np.meshgrid(*[[0.0, 1.0]] * 9)).reshape(9, -1).T
    for dims in (1, 2, 3):
        weights, values = rng.uniform(1, 5, (dims, 9)), rng.normal(1, 2, (30, 9))
        room = 0.4 * weights.sum(1)
        inside = every[(every @ weights.T <= room).all(1)]
        found = oracles.packed(values, weights, room)
        assert (found @ weights.T <= room + 1e-9).all()
        np.testing.assert_allclose((found * values).sum(1), (values @ inside.T).max(1), atol=1e-12)


def test_least_squares_is_the_start_of_all() -> None:
    drawn = pyepo.draw("shortest path", 2, 50, 0.5, 0)
    Z, Y = drawn.training
    predicted = pyepo.applied(pyepo.squares(Z, Y))(Z)
    full = np.column_stack([Z, np.ones(len(Z))])
    np.testing.assert_allclose(predicted, full @ np.linalg.lstsq(full, Y, rcond=None)[0], atol=1e-10)


def test_a_draw_of_peers(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pyepo, "STEPS", 6)
    monkeypatch.setattr(pyepo, "RATES", (1e-2,))
    task = next(task for task in pyepo.tasks(1, quick=True) if task.method == pyepo.PEERS)
    rows = pyepo.run(task, tmp_path).rows
    regrets = {row["method"]: row["value"] for row in rows if row["metric"] == "regret"}
    assert {"mean prediction, linear", "spo+", "knn spo+", "ltr"} <= set(regrets)
    assert all(0 < value < 0.5 for value in regrets.values())
    task = next(task for task in pyepo.tasks(1, quick=True) if task.method == pyepo.REGRESSIONS)
    plain = {row["method"]: row["value"] for row in pyepo.run(task, tmp_path).rows if row["metric"] == "regret"}
    assert set(plain) == {"least squares", "random forest"}
    assert all(0 < value < 0.5 for value in plain.values())
    # What is ours is a task of its own.
    task = next(task for task in pyepo.tasks(1, quick=True) if task.method == pyepo.BASELINES)
    own = {row["method"]: row["value"] for row in pyepo.run(task, tmp_path).rows if row["metric"] == "regret"}
    assert set(own) == {"weighted sample average", "mean prediction"} == set(pyepo.OWN) - {"prediction-focused"}
    assert all(0 < value < 0.5 for value in own.values())
    # All settings of a seed come first.
    seeds = [task.seed for task in pyepo.tasks(2)]
    assert seeds == sorted(seeds)
    assert len(seeds) == 2 * 6 * 60


def test_means_by_part() -> None:
    """A method that has two settings of one part, one of which lacks a seed."""
    rows = [
        {
            "setting": s,
            "part": "p",
            "seed": seed,
            "method": "mine",
            "metric": "regret",
            "value": float(seed + (s == "b")),
        }
        for s, seeds in {"a": 3, "b": 2}.items()
        for seed in range(seeds)
    ]
    assert "| mine | 1 ± 0.5 (2) |" in means(rows, ["part"])
