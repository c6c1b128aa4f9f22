"""Divergence balls around the weights of a real forest, of which some are as small as 1e-12: every row is solved."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import drolayers as dro

ROWS, ATOMS, ITEMS = 40, 25, 4
UNDERAGE, OVERAGE = 9.0, 1.0
FLOORS = (0.0, 1e-12, 1e-9, 1e-5)


def forest_weights(floor: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the heaviest atoms ``(row, atom, item)`` of a forest on synthetic daily demand, and their weights."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(0)
    count = 150 + ROWS
    day = rng.integers(0, 7, count)
    covariates = np.column_stack([rng.uniform(size=(count, 4)), day])
    mean = 5 + 4 * covariates[:, :1] + np.array([0.0, 2.0, -1.0, 1.0]) * np.sin(day)[:, None]
    demand = np.maximum(0.0, np.round(mean * (1 + 0.4 * rng.standard_normal((count, ITEMS)))))
    forest = ensemble.RandomForestRegressor(20, min_samples_leaf=1, random_state=0)
    forest.fit(covariates[:-ROWS], demand[:-ROWS])
    train, new = forest.apply(covariates[:-ROWS]), forest.apply(covariates[-ROWS:])
    same = new[:, None] == train[None]
    weights = (same / same.sum(1, keepdims=True)).mean(2)
    heaviest = np.argsort(-weights, 1)[:, :ATOMS]
    weights = np.maximum(np.take_along_axis(weights, heaviest, 1), floor)
    return demand[:-ROWS][heaviest], weights / weights.sum(1, keepdims=True)


def worst_mean(costs: NDArray[np.float64], weights: NDArray[np.float64], radius: float) -> float:
    """Return the largest mean cost in the chi-squared ball, from its primal with p = ω + √ω q."""
    positive = weights > 0
    costs, weights = costs[positive], weights[positive]
    q = cp.Variable(len(costs))
    p = weights + cp.multiply(np.sqrt(weights), q)
    problem = cp.Problem(cp.Maximize(costs @ p), [p >= 0, cp.sum(p) == 1, cp.norm(q, 2) <= np.sqrt(radius)])
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("radius", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("kind", ["chi2", "hellinger", "tv"])
def test_every_row_is_solved(kind: str, radius: float, floor: float) -> None:
    y, x = dro.Uncertain(ITEMS, support=dro.support.Nonnegative()), cp.Variable(ITEMS, nonneg=True)
    cost = cp.sum(cp.maximum(UNDERAGE * (y - x), OVERAGE * (x - y)))
    problem = dro.DecisionProblem(cost, [], dro.Divergence(y, ATOMS, kind))  # type: ignore[arg-type]
    atoms, weights = forest_weights(floor)
    theta = torch.full((ROWS, 1), radius, dtype=torch.float64)
    nominal = torch.as_tensor(atoms), torch.as_tensor(weights)
    solution = problem.solve(theta, nominal)
    assert bool(solution.ok.all()), solution.statuses
    if kind != "chi2":
        return
    decision = solution.variable(x).detach()
    for row in range(4):
        short = atoms[row] - decision[row].numpy()
        costs = np.maximum(UNDERAGE * short, -OVERAGE * short).sum(1)
        assert float(solution.objective[row]) == pytest.approx(worst_mean(costs, weights[row], radius), rel=1e-5)
