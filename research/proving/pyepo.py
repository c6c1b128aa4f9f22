"""PyEPO's problems by its own generators: shortest path, knapsack and portfolio, against its own methods.

    python -m research prove pyepo --jobs 2 --out runs/pyepo

Costs by the recipe of Elmachtoub and Grigas (2022): degrees 1, 2, 4, 6 and 8, noise 0 and 0.5, 100 and 1,000 points, of
which a fifth is held out, and 1,000 points for the test. All predict y by a linear model, as the published comparisons
do, and all but the default learner are tuned on the same validation data among the same learning rates (``RATES``) from
one start, the fit by squared errors. The learner is ``DecisionFocusedLearner(problem).fit(Z, Y)`` with a linear model
and nothing else; "default" beside it has the default network too. Figures are normalised regrets
(:func:`drolayers.metrics.regret`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression

import drolayers as dro
from drolayers import baselines, metrics
from drolayers.baselines.sibling import ExpectedCost
from research.baselines.pyepo import METHODS, Pyepo
from research.experiments.task import Outcome, Task, row

Array = NDArray[np.float64]

PROBLEMS = ("shortest path", "knapsack", "portfolio")
DEGREES, POINTS, NOISES = (1, 2, 4, 6, 8), (100, 1000), (0.0, 0.5)
TEST, FEATURES, HELD_OUT = 1000, 5, 0.2
GRID, ITEMS, ROWS, ASSETS = 5, 32, 2, 50
RATES = (1e-3, 1e-2, 1e-1)
"""Learning rates that everybody may choose from, on validation data."""
SQUARES, FOREST = "least squares", "random forest"
LEARNER, DEFAULT = "learner, linear", "learner, default"
OWN = ("mean prediction", "weighted sample average", "prediction-focused")
NAMES = (LEARNER, DEFAULT, *OWN, SQUARES, FOREST, *METHODS)


@dataclass(frozen=True)
class Drawn:
    """A problem with its data."""

    problem: dro.DecisionProblem
    training: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every method on every problem, degree, number of points, noise and draw."""
    small: dict[str, tuple[Any, ...]] = {"problem": PROBLEMS[:1], "degree": (4,), "points": (100,), "noise": (0.5,)}
    full: dict[str, tuple[Any, ...]] = {"problem": PROBLEMS, "degree": DEGREES, "points": POINTS, "noise": NOISES}
    grid = small if quick else full
    return [
        Task("pyepo", "linear", name, (("problem", p), ("degree", d), ("points", n), ("noise", e)), seed)
        for seed in range(seeds)
        for p in grid["problem"]
        for n in grid["points"]
        for e in grid["noise"]
        for d in grid["degree"]
        for name in NAMES
    ]


def run(task: Task, work: Path) -> Outcome:
    """One method on one draw."""
    warnings.simplefilter("ignore")
    setting = task.columns
    drawn = draw(
        str(setting["problem"]), int(setting["degree"]), int(setting["points"]), float(setting["noise"]), task.seed
    )
    decide, told = fitted(task.method, drawn, task.seed)
    found = metrics.regret(drawn.problem, decide(drawn.test[0]), drawn.test[1])
    return Outcome([row(task.method, "regret", found), *(row(task.method, name, v) for name, v in told.items())])


def draw(name: str, degree: int, points: int, noise: float, seed: int) -> Drawn:
    """A problem and data by PyEPO's generators."""
    from pyepo.data import knapsack, portfolio, shortestpath

    count, held = points + TEST, int(points * HELD_OUT)
    if name == "shortest path":
        Z, Y = shortestpath.genData(count, FEATURES, (GRID, GRID), degree, noise, seed)
        problem = shortest_path(GRID)
    elif name == "knapsack":
        weights, Z, Y = knapsack.genData(count, FEATURES, ITEMS, ROWS, degree, noise, seed)
        problem = packing(np.asarray(weights), 0.3)
    else:
        covariance, Z, Y = portfolio.genData(count, FEATURES, ASSETS, degree, noise, seed)
        problem = investing(np.asarray(covariance))
    Z, Y = np.asarray(Z, dtype=float), np.asarray(Y, dtype=float)
    parts = [slice(held, points), slice(0, held), slice(points, count)]
    return Drawn(problem, *((Z[part], Y[part]) for part in parts))


def shortest_path(grid: int) -> dro.DecisionProblem:
    """From one corner of a grid to the other, to the right and down."""
    nodes = np.arange(grid * grid).reshape(grid, grid)
    # Edges row by row, as the generator counts them: those of a row, then those to the next one.
    edges = []
    for i in range(grid):
        edges += [(nodes[i, j], nodes[i, j + 1]) for j in range(grid - 1)]
        edges += [(nodes[i, j], nodes[i + 1, j]) for j in range(grid) if i < grid - 1]
    flow = np.zeros((grid * grid, len(edges)))
    for e, (tail, head) in enumerate(edges):
        flow[tail, e], flow[head, e] = -1.0, 1.0
    wanted = np.zeros(grid * grid)
    wanted[0], wanted[-1] = -1.0, 1.0
    y, x = dro.Uncertain(len(edges)), cp.Variable(len(edges), nonneg=True)
    return dro.DecisionProblem(y @ x, [flow @ x == wanted], dro.MomentSet.grouped(y, 1))


def packing(weights: Array, share: float) -> dro.DecisionProblem:
    """The most valuable items that fit, in several dimensions."""
    y, x = dro.Uncertain(weights.shape[1]), cp.Variable(weights.shape[1], boolean=True)
    room = [weights @ x <= share * weights.sum(1)]
    return dro.DecisionProblem(cp.Maximize(y @ x), room, dro.MomentSet.grouped(y, 1))


def investing(covariance: Array) -> dro.DecisionProblem:
    """The best return at a bounded risk (PyEPO's: 2.25 times the mean of the covariances)."""
    y, x = dro.Uncertain(len(covariance)), cp.Variable(len(covariance), nonneg=True)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(covariance)))
    risk = cp.norm(root.T @ x) <= np.sqrt(2.25 * covariance.mean())
    return dro.DecisionProblem(cp.Maximize(y @ x), [cp.sum(x) == 1, risk], dro.MomentSet.grouped(y, 1))


Decide = Callable[[Array], Any]


def fitted(name: str, drawn: Drawn, seed: int) -> tuple[Decide, dict[str, float]]:
    """A method after training and tuning on validation data, and what it has to say."""
    problem, training = drawn.problem, drawn.training
    linear = dro.Network(hidden=())
    if name in (LEARNER, DEFAULT):
        model = linear if name == LEARNER else None
        learner = dro.DecisionFocusedLearner(problem, model, trainer=dro.Trainer(progress=False), seed=seed)
        learner.fit(*training, validation=drawn.validation)
        chosen = learner.report_.chosen
        return learner.decide, {} if chosen is None else {"epochs": float(chosen.epochs)}
    if name == "prediction-focused":
        learner = dro.DecisionFocusedLearner(
            problem, linear, training=None, trainer=dro.Trainer(progress=False), seed=seed
        )
        return learner.fit(*training, validation=drawn.validation).decide, {}
    if name == "weighted sample average":
        return baselines.WeightedSampleAverage(problem).fit(*training).decide, {}
    if name in (SQUARES, FOREST):
        model = LinearRegression() if name == SQUARES else RandomForestRegressor(random_state=seed)
        return predicting(problem, model.fit(*training).predict), {}
    if name == "mean prediction":
        tried = [baselines.MeanPrediction(problem, seed, hidden=(), lr=rate) for rate in RATES]
    else:
        method: Any = name
        tried = [Pyepo(problem, method, seed, hidden=(), lr=rate, batch_size=32) for rate in RATES]
    losses = [mean_cost(problem, one.fit(*training, validation=drawn.validation).decide, drawn) for one in tried]
    return tried[int(np.argmin(losses))].decide, {"rate": RATES[int(np.argmin(losses))]}


def mean_cost(problem: dro.DecisionProblem, decide: Decide, drawn: Drawn) -> float:
    """On validation data."""
    Z, Y = drawn.validation
    chosen = {variable: torch.as_tensor(value) for variable, value in decide(Z).items()}
    return float(problem.loss(chosen, torch.as_tensor(Y)).mean())


def predicting(problem: dro.DecisionProblem, predict: Callable[[Array], Array]) -> Decide:
    """The best decisions for predicted outcomes."""
    solver = ExpectedCost(problem, 1)

    def decide(Z: Array) -> Any:
        y = torch.as_tensor(predict(Z)).double()
        return solver.decide(y[:, None], torch.ones_like(y[:, :1]))

    return decide
