"""Figure 3: the percentage optimality gap of the newsvendor by set and number of training points.

The gap is reported in two ways. ``gap`` is exact: demands are integrated in closed form and contexts by the midpoint
rule. ``sampled_gap`` is the paper's: the mean cost over 1e5 test pairs against an optimum from 400 contexts with 200
demands each. Of the pairs, 2,000 contexts have 50 demands each, since every distinct context costs a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from research.experiments.learn import (
    Array,
    Policy,
    fit_both,
    known,
    reference_protocol,
    seed_range,
    settings_of,
    trained,
)
from research.experiments.task import Outcome, Row, Task, row
from research.problems import Newsvendor

SETS = ("SOC-I", "SOC-II", "SOC-III")
POINTS = (100, 200, 400, 800)
BENCHMARK = "benchmark (true moments)"
PAPER_IMPROVEMENT = {"SOC-I": 21.4, "SOC-II": 18.7, "SOC-III": 18.1}

Buy = Callable[[Array], tuple[Array, Array]]


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Learning for every set, number of points and seed; the benchmark for every set and seed."""
    once = reference_protocol(quick)
    every = [(name, seed) for name in SETS for seed in seed_range(seeds)]
    benchmarks = [Task("newsvendor", once, "benchmark", (("set", name),), seed, "1") for name, seed in every]
    return benchmarks + [
        trained("newsvendor", protocol, "sets", (("set", name), ("points", points)), seed)
        for protocol in known("newsvendor", quick, protocols)
        for name, seed in every
        for points in ((100,) if quick else POINTS)
    ]


def run(task: Task, work: Path) -> Outcome:
    """Both learners on one draw of the data, or the benchmark."""
    built = Newsvendor(task.columns["set"])  # type: ignore[arg-type]
    judge = Judge(built, task.seed, quick=task.protocol == "quick")
    if task.method == "benchmark":
        return Outcome(judge.rows(BENCHMARK, built.benchmark))
    points = int(task.columns["points"])
    rng = np.random.default_rng([task.seed, points])
    training, validation = built.draw(points, rng), built.draw(max(1, points // 5), rng)
    learners = fit_both(built.problem, training, validation, settings_of(task), task.seed, work)
    return Outcome([r for name, learner in learners.items() for r in judge.rows(name, buyer(built, learner))])


def buyer(built: Newsvendor, policy: Policy) -> Buy:
    """A policy as a function from contexts to what is bought."""

    def buy(Z: Array) -> tuple[Array, Array]:
        decision = policy.decide(Z)
        return np.asarray(decision[built.retail]), np.asarray(decision[built.wholesale])

    return buy


class Judge:
    """Gaps of a policy on the test draws of one seed, which all methods share."""

    def __init__(self, built: Newsvendor, seed: int, quick: bool = False) -> None:
        rng = np.random.default_rng([seed, 0, 1])
        contexts, demands = (400, 50) if quick else (2000, 50)
        self.built, self.points = built, 200 if quick else 1000
        self.Z = rng.uniform(size=(contexts, 1))
        self.Y = built.demands(self.Z, demands, rng)
        self.best = built.mean_cost(built.optimal, self.points)
        self.sampled_best = built.sampled_optimum(rng)

    def rows(self, method: str, buy: Buy) -> list[Row]:
        """Cost, both gaps in percent, and the share of contexts without a decision, which the means leave out."""
        grid = (np.arange(self.points)[:, None] + 0.5) / self.points
        bought = buy(np.concatenate([grid, self.Z]))
        retail, wholesale = (np.split(part, [self.points]) for part in bought)
        exact = self.built.expected_cost(grid, retail[0], wholesale[0])
        sampled = self.built.realised_cost(retail[1], wholesale[1], self.Y)
        cost = float(np.nanmean(exact))
        return [
            row(method, "cost", cost),
            row(method, "gap", 100 * (cost / self.best - 1)),
            row(method, "sampled_gap", 100 * (float(np.nanmean(sampled)) / self.sampled_best - 1)),
            row(method, "undecided", float(np.isnan(bought[0]).any(1).mean())),
        ]


def improvement(benchmark: float, learnt: float) -> float:
    """How much of the benchmark's gap decision-focused learning saves, in percent: (benchmark - learnt)/benchmark."""
    return 100.0 * (benchmark - learnt) / benchmark
