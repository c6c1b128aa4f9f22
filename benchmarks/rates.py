"""Learning rates and batches of both trainings on several problems: which defaults lose least?

    python benchmarks/rates.py                 all problems, both models, three draws of data: half an hour on 2 cores
    python benchmarks/rates.py --quick         one draw

Every line is a setting, every column a problem. Figures are what decisions on fresh data cost above those of the best
setting of that column, in per cent of what lies between it and the unconditional sample average. Problems: a continuous
newsvendor, a portfolio, and the shortest path through a 5x5 grid (costs by the recipe of Elmachtoub and Grigas, degree
4, noise 0.5). Data are drawn for this; no experiment of the repository uses these seeds.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from joblib import Parallel, delayed

import drolayers as dro

Draw = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]

FIRST = [(40, 1e-2, 50), (40, 1e-2, 16), (40, 3e-2, 16), (100, 1e-2, 16), (40, 1e-2, None)]
SECOND = [(30, 1e-3, 3.0, 50), (30, 1e-3, 3.0, 16), (30, 3e-3, 3.0, 16), (30, 1e-2, 3.0, 16), (30, 3e-3, 1.0, 16)]
DEFAULTS = [(30, 3e-3, 1.0, None), (30, 3e-3, 3.0, None), (30, 1e-2, 3.0, None)]
"""Batches of None are those of the default: a tenth of the points, but 8 at least and 50 at most."""


def newsvendor() -> tuple[dro.DecisionProblem, Draw]:
    """Three items; demand bends with the context."""
    y, x = dro.Uncertain(3, support=dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
    cost = cp.sum(x) + np.array([3.0, 5.0, 9.0]) @ cp.pos(y - x)

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.uniform(size=(count, 2))
        mean = 5.0 + np.stack([3 * z[:, 0], 3 * z[:, 1] ** 2, 2 * z[:, 0] * z[:, 1]], 1)
        return z, np.abs(mean + (0.3 + z[:, :1]) * rng.standard_normal((count, 3)))

    return dro.DecisionProblem(cost, [], dro.MomentSet.grouped(y, 1)), draw


def portfolio() -> tuple[dro.DecisionProblem, Draw]:
    """Six assets whose means are linear in the context, below the noise."""
    y, x = dro.Uncertain(6), cp.Variable(6, nonneg=True)
    slopes = np.random.default_rng(5).standard_normal((3, 6))

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal((count, 3))
        return z, 0.01 * z @ slopes + 0.02 * rng.standard_normal((count, 6))

    return dro.DecisionProblem(-(y @ x), [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1)), draw


def path(size: int = 5) -> tuple[dro.DecisionProblem, Draw]:
    """From one corner of a grid to the other."""
    nodes = [(i, j) for i in range(size) for j in range(size)]
    edges = [
        (a, (a[0] + d[0], a[1] + d[1])) for a in nodes for d in ((0, 1), (1, 0)) if (a[0] + d[0], a[1] + d[1]) in nodes
    ]
    flow = np.zeros((len(nodes), len(edges)))
    for k, (a, b) in enumerate(edges):
        flow[nodes.index(a), k], flow[nodes.index(b), k] = -1.0, 1.0
    supply = np.zeros(len(nodes))
    supply[0], supply[-1] = -1.0, 1.0
    y, x = dro.Uncertain(len(edges), support=dro.support.Nonnegative()), cp.Variable(len(edges), nonneg=True)
    B = np.random.default_rng(7).integers(0, 2, size=(5, len(edges)))

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal((count, 5))
        base = ((z @ B / np.sqrt(5) + 3) ** 4 / 3.5**4 + 1) * rng.uniform(0.5, 1.5, size=(count, len(edges)))
        return z, base

    return dro.DecisionProblem(y @ x, [flow @ x == supply, x <= 1], dro.MomentSet.grouped(y, 1)), draw


PROBLEMS = {"newsvendor": newsvendor, "portfolio": portfolio, "path": path}
MODELS = {"linear": (), "network": (64, 64)}


def cost(problem: dro.DecisionProblem, policy: Any, Z: np.ndarray, Y: np.ndarray) -> float:
    """The mean cost of a policy's decisions."""
    decided = {v: torch.as_tensor(x) for v, x in policy.decide(Z).items()}
    return float(problem.loss(decided, torch.as_tensor(Y)).nanmean())


def one(name: str, points: int, seed: int, hidden: tuple[int, ...], first: tuple, second: tuple | None) -> float:
    """The cost of one setting on fresh data."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problem, draw = PROBLEMS[name]()
    rng = np.random.default_rng([seed, points])
    (Z, Y), test = draw(points, rng), draw(2000, rng)
    if not first:
        return cost(problem, dro.baselines.SampleAverage(problem).fit(Z, Y), *test)
    if first == ("knn",):
        return cost(problem, dro.baselines.WeightedSampleAverage(problem, dro.nominal.KNN(k=10)).fit(Z, Y), *test)
    if first == ("mean",):
        return cost(problem, dro.baselines.MeanPrediction(problem, hidden=hidden).fit(Z, Y), *test)
    epochs, rate, batch = first
    training = None if second is None else dro.Stage(second[0], second[1], decay=second[2], batch_size=second[3])
    learner = dro.DecisionFocusedLearner(
        problem,
        dro.Network(hidden),
        dro.nominal.KNN(k=10),
        pretraining=dro.Stage(epochs, rate, batch_size=batch),
        training=training,
        trainer=dro.Trainer(progress=False),
        seed=seed,
    )
    return cost(problem, learner.fit(Z, Y), *test)


def main() -> None:
    """All settings of the first training, then of the second after the best of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one draw of data")
    parser.add_argument("--points", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    seeds = range(900, 901 if given.quick else 903)
    columns = list(itertools.product(PROBLEMS, given.points, MODELS))
    baselines: list[tuple[Any, Any]] = [((), None), (("knn",), None), (("mean",), None)]
    settings = baselines + [(f, None) for f in FIRST] + [(FIRST[k], s) for k in (0, 1) for s in SECOND]
    settings += [(FIRST[-1], s) for s in DEFAULTS]
    start = time.perf_counter()
    work = [(p, n, seed, MODELS[m], f, s) for f, s in settings for p, n, m in columns for seed in seeds]
    found = np.array(Parallel(n_jobs=given.jobs, verbose=1)(delayed(one)(*w) for w in work))
    table = found.reshape(len(settings), len(columns), len(seeds)).mean(2)
    best = table.min(0)
    gaps = 100 * (table - best) / (table[0] - best)
    print(
        f"{'first, then second training':<58}"
        + "".join(f"{p[:5]} {n} {m[:3]}".rjust(15) for p, n, m in columns)
        + "      mean"
    )
    for (f, s), row in zip(settings, gaps, strict=True):
        label = f"{f or 'sample average'} {s or ''}"
        print(f"{label:<58}" + "".join(f"{gap:15.1f}" for gap in row) + f"{row.mean():10.1f}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
