"""What robustness buys: few data, and test distributions that have moved away from training.

Two problems, the newsvendor with SOC-III and the portfolio with 20 assets, four of them in lots, each learnt from 50,
100 and 250 points in all (learners hold a fifth of them out). Decisions are judged by the mean and the 95 % CVaR of
their loss on a large test sample: from the distribution of training, with noise 1.5 times as large, and with means
moved. All minimise the expected loss, except for decision-focused learning in a second version, whose sets are trained
on the 95 % CVaR and whose decisions minimise the worst case of that.

Means of the newsvendor move up by a third of a unit, about the mean standard deviation of demand. Means of the
portfolio move by a normal vector, one entry an asset, drawn with the seed of the run, whose standard deviation is half
that of returns: if all assets moved alike, so would all portfolios.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drolayers.learning import Trainer
from drolayers.nominal import KNN
from research.experiments.learn import (
    DECISION,
    PREDICTION,
    Array,
    Data,
    Policy,
    fit_both,
    known,
    seed_range,
    settings_of,
    trained,
)
from research.experiments.task import Outcome, Row, Task, row
from research.problems import Newsvendor, Portfolio, PortfolioData

POINTS = (50, 100, 250)
PROBLEMS = ("newsvendor", "portfolio")
ASSETS, LOTS, POOL, TEST = 20, 4, 20000, 4000
NOISE, NEWSVENDOR_SHIFT, PORTFOLIO_SHIFT, LEVEL = 1.5, 1 / 3, 0.5, 0.95
SHIFTS = ("none", "noise x 1.5", "means moved")
RISK = "decision-focused, CVaR"
NO_SET, AVERAGE, WEIGHTED = "decision-focused, no set", "sample average", "weighted sample average"
REFERENCE = "true distribution of training"
METHODS = (DECISION, RISK, NO_SET, PREDICTION, WEIGHTED, AVERAGE, REFERENCE)


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Every family of methods for every problem, number of points and seed."""
    return [
        trained("robustness", protocol, method, (("problem", problem), ("points", points)), seed)
        for problem in PROBLEMS
        for protocol in known(f"robustness-{problem}", quick, protocols)
        for points in ((50,) if quick else POINTS)
        for seed in seed_range(seeds)
        for method in ("sets", "sets-cvar", "no-set", "averages")
    ]


def run(task: Task, work: Path) -> Outcome:
    """Fit one family of methods to a few points and judge it under every shift."""
    quick, points = task.protocol == "quick", int(task.columns["points"])
    risk = LEVEL if task.method == "sets-cvar" else None
    built, training, contexts, losses, best = made(str(task.columns["problem"]))(
        points, task.seed, 500 if quick else TEST, risk
    )
    # The reference needs no training, so it comes along with one of the families.
    rows = judged(REFERENCE, best, losses) if task.method == "averages" else []
    for name, policy in _policies(task, built, training, work).items():
        rows += judged(name, policy.decide(contexts), losses)
    return Outcome(rows)


def _policies(task: Task, built: Newsvendor | Portfolio, training: Data, work: Path) -> dict[str, Policy]:
    """The fitted policies of one family."""
    settings = settings_of(task)
    if task.method in ("sets", "sets-cvar"):
        learners = fit_both(built.problem, training, None, settings, task.seed, work)
        return dict(learners) if task.method == "sets" else {RISK: learners[DECISION]}
    import drolayers.baselines as baselines

    if task.method == "no-set":
        trainer = Trainer(directory=work / "no-set", resume=True, progress=False, budget=0.0)
        learner = baselines.NoSet(built.problem, seed=task.seed, trainer=trainer, **settings.baselines["no-set"])
        return {NO_SET: learner.fit(*training)}
    weighted = baselines.WeightedSampleAverage(built.problem, KNN(k=settings.k(len(training[0]))))
    return {
        AVERAGE: baselines.SampleAverage(built.problem).fit(*training),
        WEIGHTED: weighted.fit(*training),
    }


Losses = dict[str, Callable[[Any], Array]]


def made(problem: str) -> Callable[[int, int, int, float | None], tuple[Any, Data, Array, Losses, Any]]:
    """What makes a problem and its data from points, seed, size of the test and level of risk."""
    return _newsvendor if problem == "newsvendor" else _portfolio


def _newsvendor(points: int, seed: int, count: int, risk: float | None) -> tuple[Newsvendor, Data, Array, Losses, Any]:
    """Problem, training data, test contexts, losses of decisions by shift, and the best decisions without shift."""
    built = Newsvendor("SOC-III", risk)
    training = built.draw(points, np.random.default_rng([seed, points]))
    rng = np.random.default_rng([seed, 0, 1])
    contexts = rng.uniform(size=(count // 4, 1))
    moves = {SHIFTS[0]: {}, SHIFTS[1]: {"scale": NOISE}, SHIFTS[2]: {"shift": NEWSVENDOR_SHIFT}}
    # The same noise for every shift.
    entropy = int(rng.integers(2**32))
    outcomes = {name: built.demands(contexts, 50, np.random.default_rng(entropy), **m) for name, m in moves.items()}
    losses: Losses = {name: partial(_cost, built, Y) for name, Y in outcomes.items()}
    retail, wholesale = built.optimal(contexts)
    return built, training, contexts, losses, {built.retail: retail, built.wholesale: wholesale}


def _portfolio(points: int, seed: int, count: int, risk: float | None) -> tuple[Portfolio, Data, Array, Losses, Any]:
    """The same for the portfolio; the market is that of the published generator, the points are drawn from many."""
    built = Portfolio(ASSETS, LOTS, risk=risk)
    pool, test = PortfolioData.generate(ASSETS, POOL + count).split(POOL, count)
    chosen = np.random.default_rng([seed, points]).choice(POOL, points, replace=False)
    move = PORTFOLIO_SHIFT * pool.Y.std() * np.random.default_rng([seed, 0, 2]).standard_normal(ASSETS)
    moved = {SHIFTS[0]: test, SHIFTS[1]: test.shifted(scale=NOISE), SHIFTS[2]: test.shifted(shift=move)}
    losses: Losses = {name: partial(_loss, built, data.Y) for name, data in moved.items()}
    best = built.best_weights(test.mean)
    assert built.lots is not None
    decision = {built.lots: best[:, :LOTS] * ASSETS, built.free: best[:, LOTS:]}
    return built, (pool.Z[chosen], pool.Y[chosen]), test.Z, losses, decision


def _cost(built: Newsvendor, Y: Array, decision: Any) -> Array:
    """Costs of the newsvendor, all demands in a row."""
    return built.realised_cost(np.asarray(decision[built.retail]), np.asarray(decision[built.wholesale]), Y).ravel()


def _loss(built: Portfolio, Y: Array, decision: Any) -> Array:
    """Losses of the portfolio, on the scale of scores."""
    return -10 * (built.weights(decision) * Y).sum(1)


def judged(method: str, decision: Any, losses: Losses) -> list[Row]:
    """Mean and CVaR under every shift, over the test points that have a decision, and the share that has none."""
    rows = []
    for shift, loss in losses.items():
        values = loss(decision)
        solved = values[~np.isnan(values)]
        figures = {"mean": solved.mean(), "cvar95": cvar(solved, LEVEL), "undecided": np.isnan(values).mean()}
        rows += [{**row(method, metric, value), "shift": shift} for metric, value in figures.items()]
    return rows


def cvar(losses: Array, level: float) -> float:
    """The mean of the worst 1 - level of a sample: min_t t + E(l - t)⁺/(1 - level), attained at a quantile."""
    ordered = np.sort(losses)
    quantile = ordered[max(int(np.ceil(level * len(ordered))) - 1, 0)]
    return float(quantile + np.maximum(losses - quantile, 0.0).mean() / (1.0 - level))
