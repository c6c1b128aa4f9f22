"""PyEPO's problems by its own generators: shortest path, knapsack and portfolio, against its own methods.

    python -m research prove pyepo --jobs 2 --out runs/pyepo

Costs by the recipe of Elmachtoub and Grigas (2022): degrees 1, 2, 4, 6 and 8, noise 0 and 0.5, 100 and 1,000 points, of
which a fifth is held out, and 1,000 points for the test. Figures are normalised regrets
(:func:`drolayers.metrics.regret`), and processor seconds of training and tuning.

What everybody is given. PyEPO's methods predict y by a linear model, as the published comparisons do, from one start,
least squares. Each is trained three times, once for each learning rate in ``RATES``, for ``STEPS`` steps of ``BATCH``
points (Adam, the rate falling along a half cosine); validation data choose among the rates, all epochs and the start
itself. Their other settings are PyEPO's own defaults (λ of DBB 10, ten neighbours of weight one half) but for
``SAMPLES`` perturbations of half the deviation of y, and a solution pool that grows in a twentieth of the steps.
"mean prediction, linear" has the same budget on squared errors. Least squares and forests are tuned alike, each among
three: penalties (``PENALTIES``) and points in a leaf (``LEAVES``). The weighted sample average and "mean prediction"
are the learner's own baselines, as they come. The learner is ``DecisionFocusedLearner(problem).fit(Z, Y)`` on the same
split and nothing else ("learner"), and the same with a linear model: its own trials (``Trainer(budget=0.75)``) choose
among rates, projections, gradients and epochs on the same validation data, from its own pre-training, about 450 steps
in all of 8 points where there are 80, and 720 of 50 where there are 800. Nobody sees test data; RESULTS.md says which
draws were in sight while defaults were made (``FIRST``).

A task is a draw: peers, which share data, start and optimal decisions, are one (``--only peers``), and what is ours,
which may change without them, one each (``--only learner``, ``"learner, linear"``, ``prediction-focused``,
``baselines``, ``regressions``). All settings of a seed come before the next seed, so that what was interrupted is a
balanced table.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import drolayers as dro
from drolayers import baselines
from drolayers.baselines.regression import MeanModel
from research.baselines.pyepo import METHODS, Pyepo
from research.experiments.task import Outcome, Row, Task, row
from research.proving import oracles

Array = NDArray[np.float64]
Decide = Callable[[Array], Any]

PROBLEMS = ("shortest path", "knapsack", "portfolio")
DEGREES, POINTS, NOISES = (1, 2, 4, 6, 8), (100, 1000), (0.0, 0.5)
TEST, FEATURES, HELD_OUT = 1000, 5, 0.2
GRID, ITEMS, ROWS, ASSETS = 5, 32, 2, 50
RATES, STEPS, BATCH, SAMPLES = (1e-3, 1e-2, 1e-1), 200, 32, 2
NEIGHBOURS, RISK = 10, 2.25
FIRST = 110
"""The first draw: those below 100 were looked at, tests included, to choose the learner's defaults, and of 100 to 109
figures of earlier versions were in sight."""
PARTS = ("points", "problem", "noise")
"""What is told apart: tables by the first, means over the grid by the others."""
LEARNER, LINEAR, FITTED, BASELINES, PEERS = "learner", "learner, linear", "prediction-focused", "baselines", "peers"
REGRESSIONS, PENALTIES, LEAVES = "regressions", (0.0, 0.1, 1.0), (1, 3, 10)
APART = "everything of ours apart"
"""Of what tasks are made: results of others are run again."""
OWN = ("mean prediction", "weighted sample average", FITTED)
"""The learner's own baselines: it is counted against the best of them, too."""


@final
class Quick:
    """A problem ±yᵀx by an exact solver of its own, as PyEPO sees it.

    Args:
        problem: with one variable and a cost y @ x, to be minimised or maximised.
        solver: from outcomes to the best x, row by row.
    """

    def __init__(self, problem: dro.DecisionProblem, solver: Callable[[Array], Array]) -> None:
        (self.variable,) = problem.variables
        self.dim, self.solver = problem.ambiguity.y.dim, solver
        self.sign = float(problem.loss({self.variable: torch.ones(1, self.dim)}, torch.ones(1, self.dim)) / self.dim)

    def best(self, y: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """The best x for known outcomes."""
        return torch.as_tensor(self.solver(np.ascontiguousarray(y.detach().numpy(), dtype=float)))

    def decide(self, y: Float[Tensor, "batch dim"]) -> dict[cp.Variable, Tensor]:
        """The best decisions for known outcomes."""
        return {self.variable: self.best(y)}

    def solve(self, cost: Float[Tensor, "batch dim+1"]) -> Float[Tensor, "batch dim+1"]:
        """The coefficients of y, and nothing beside them."""
        x = self.best(cost[:, : self.dim] / cost[:, self.dim :])
        return torch.cat([self.sign * x, torch.zeros_like(x[:, :1])], 1)

    def cost(self, x: Any, y: Array) -> Array:
        """Of decisions at outcomes, one number per row."""
        return self.sign * (np.asarray(x[self.variable]) * y).sum(1)


@dataclass(frozen=True)
class Drawn:
    """A problem with its data."""

    problem: dro.DecisionProblem
    quick: Quick
    training: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]

    def held_out_cost(self, decide: Decide) -> float:
        """What decisions cost on validation data."""
        Z, Y = self.validation
        return float(self.quick.cost(decide(Z), Y).mean())

    def predicting(self, predict: Callable[[Array], Any]) -> Decide:
        """The best decisions for what is predicted."""
        return lambda Z: self.quick.decide(torch.as_tensor(predict(Z)))


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Learners and peers on every problem, degree, number of points, noise and draw."""
    small: dict[str, tuple[Any, ...]] = {"problem": PROBLEMS[:1], "degree": (4,), "points": (100,), "noise": (0.5,)}
    full: dict[str, tuple[Any, ...]] = {"problem": PROBLEMS, "degree": DEGREES, "points": POINTS, "noise": NOISES}
    grid = small if quick else full
    return [
        Task("pyepo", "linear", who, (("problem", p), ("degree", d), ("points", n), ("noise", e)), seed, APART)
        for seed in range(FIRST, FIRST + seeds)
        for n in grid["points"]
        for e in grid["noise"]
        for d in grid["degree"]
        for p in grid["problem"]
        for who in (LEARNER, LINEAR, FITTED, BASELINES, REGRESSIONS, PEERS)
    ]


def run(task: Task, work: Path) -> Outcome:
    """A learner or all peers on one draw."""
    warnings.simplefilter("ignore")
    setting = task.columns
    drawn = draw(
        str(setting["problem"]), int(setting["degree"]), int(setting["points"]), float(setting["noise"]), task.seed
    )
    Z, Y = drawn.test
    best = drawn.quick.cost(drawn.quick.decide(torch.as_tensor(Y)), Y)
    rows: list[Row] = []
    methods = {
        PEERS: lambda: peers(drawn, task.seed),
        BASELINES: lambda: simple(drawn, task.seed),
        REGRESSIONS: lambda: regressions(drawn, task.seed),
        LEARNER: lambda: ours(drawn, task.seed, LEARNER),
        LINEAR: lambda: ours(drawn, task.seed, LINEAR, model=dro.Network(hidden=())),
        FITTED: lambda: ours(drawn, task.seed, FITTED, training=None),
    }[task.method]()
    while True:
        begun = time.process_time()
        found = next(methods, None)
        if found is None:
            return Outcome(rows)
        name, decide, told = found
        told["seconds"] = time.process_time() - begun
        missed = float((drawn.quick.cost(decide(Z), Y) - best).sum() / np.abs(best).sum())
        rows += [row(name, "regret", missed), *(row(name, metric, value) for metric, value in told.items())]


def draw(name: str, degree: int, points: int, noise: float, seed: int) -> Drawn:
    """A problem and data by PyEPO's generators."""
    from pyepo.data import knapsack, portfolio, shortestpath

    count, held = points + TEST, int(points * HELD_OUT)
    solver: Callable[[Array], Array]
    if name == "shortest path":
        Z, Y = shortestpath.genData(count, FEATURES, (GRID, GRID), degree, noise, seed)
        problem, ways = shortest_path(GRID), oracles.paths(GRID)
        solver = lambda y: ways[(y @ ways.T).argmin(1)]  # noqa: E731
    elif name == "knapsack":
        weights, Z, Y = knapsack.genData(count, FEATURES, ITEMS, ROWS, degree, noise, seed)
        problem = packing(np.asarray(weights), 0.3)
        solver = lambda y: oracles.packed(y, np.asarray(weights), 0.3 * weights.sum(1))  # noqa: E731
    else:
        covariance, Z, Y = portfolio.genData(count, FEATURES, ASSETS, degree, noise, seed)
        problem = investing(np.asarray(covariance))
        solver = lambda y: oracles.invested(y, covariance, RISK * covariance.mean())  # noqa: E731
    Z, Y = np.asarray(Z, dtype=float), np.asarray(Y, dtype=float)
    parts = [slice(held, points), slice(0, held), slice(points, count)]
    return Drawn(problem, Quick(problem, solver), *((Z[part], Y[part]) for part in parts))


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
    """The best return at a bounded risk (PyEPO's: 2.25 times the mean of the covariances), where there is any."""
    y, x = dro.Uncertain(len(covariance)), cp.Variable(len(covariance), nonneg=True)
    constraints: list[cp.Constraint] = [cp.sum(x) == 1]
    if covariance.any():
        root = np.linalg.cholesky(covariance)
        constraints.append(cp.norm(root.T @ x) <= np.sqrt(RISK * covariance.mean()))
    return dro.DecisionProblem(cp.Maximize(y @ x), constraints, dro.MomentSet.grouped(y, 1))


Fitted = tuple[str, Decide, dict[str, float]]


def ours(drawn: Drawn, seed: int, name: str, **settings: Any) -> Iterator[Fitted]:
    """A learner with nothing but its defaults, or with some other settings."""
    learner = dro.DecisionFocusedLearner(drawn.problem, **settings, trainer=dro.Trainer(progress=False), seed=seed)
    chosen = learner.fit(*drawn.training, validation=drawn.validation).report_.chosen
    yield name, learner.decide, {} if chosen is None else {"epochs": float(chosen.epochs)}


def simple(drawn: Drawn, seed: int) -> Iterator[Fitted]:
    """The library's baselines as they come."""
    problem, training = drawn.problem, drawn.training
    yield "weighted sample average", baselines.WeightedSampleAverage(problem).fit(*training).decide, {}
    mean = baselines.MeanPrediction(problem, seed).fit(*training, validation=drawn.validation)
    yield "mean prediction", drawn.predicting(mean.predict_mean), {}


def regressions(drawn: Drawn, seed: int) -> Iterator[Fitted]:
    """Predictions without a gradient, each the best of three on validation data."""
    linear = [make_pipeline(StandardScaler(), Ridge(penalty * len(drawn.training[0]))) for penalty in PENALTIES]
    forests = [RandomForestRegressor(min_samples_leaf=leaf, random_state=seed) for leaf in LEAVES]
    for name, models in (("least squares", linear), ("random forest", forests)):
        tried = [drawn.predicting(model.fit(*drawn.training).predict) for model in models]
        yield name, min(tried, key=drawn.held_out_cost), {}


def peers(drawn: Drawn, seed: int) -> Iterator[Fitted]:
    """Everybody else: what is trained on decisions, or could be, from one start."""
    problem, quick, training, held_out = drawn.problem, drawn.quick, drawn.training, drawn.validation
    predicting = drawn.predicting

    cost, start = drawn.held_out_cost, squares(*training)
    begin = predicting(applied(start))
    epochs = STEPS // -(-len(training[0]) // BATCH)
    budget: dict[str, Any] = {"epochs": epochs, "batch_size": BATCH, "hidden": ()}
    linear = [baselines.MeanPrediction(problem, seed, lr=rate, **budget) for rate in RATES]
    yield (
        "mean prediction, linear",
        *tuned([predicting(one.fit(*training, validation=held_out).predict_mean) for one in linear], cost),
    )
    budget |= {"start": start, "linear": quick, "samples": SAMPLES}
    methods: list[tuple[str, Any, int]] = [(name, name, 0) for name in METHODS if name != "perturbed"]
    for name, method, neighbours in [*methods, ("knn spo+", "spo+", NEIGHBOURS), ("knn pfyl", "pfyl", NEIGHBOURS)]:
        trained = [Pyepo(problem, method, seed, lr=rate, neighbours=neighbours, **budget) for rate in RATES]
        yield name, *tuned([begin, *(one.fit(*training, validation=held_out).decide for one in trained)], cost)


def tuned(tried: list[Decide], cost: Callable[[Decide], float]) -> tuple[Decide, dict[str, float]]:
    """The best of some on validation data, and its rate: the last of them are those of the rates."""
    best = int(np.argmin([cost(decide) for decide in tried]))
    return tried[best], {"rate": RATES[best - len(tried)] if best >= len(tried) - len(RATES) else 0.0}


def squares(Z: Array, Y: Array) -> MeanModel:
    """Least squares as a model that can be trained on."""
    model = MeanModel(Z.shape[1], Y.shape[1], ())
    model.take_units(torch.as_tensor(Z), torch.as_tensor(Y))
    inner = ((torch.as_tensor(Z) - model.input_shift) / model.input_scale).numpy()
    aims = ((torch.as_tensor(Y) - model.output_shift) / model.output_scale).numpy()
    found = np.linalg.lstsq(np.column_stack([inner, np.ones(len(Z))]), aims, rcond=None)[0]
    (layer,) = (part for part in model.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(found[:-1].T))
        layer.bias.copy_(torch.as_tensor(found[-1]))
    return model


def applied(model: nn.Module) -> Callable[[Array], Array]:
    """A model from arrays to arrays."""
    return lambda Z: model(torch.as_tensor(Z)).detach().numpy()
