"""The continuous portfolio with 40 assets: scores on the 1,000 test points, and what becomes of 100 over them.

The returns are those of the published generator with its seed; seeds of ours are those of networks and batches. A score
is ten times the mean return. Wealth is the product of 1 + 0.1 times the score of each test day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from conelayers.errors import ModelError
from research.experiments.learn import (
    DECISION,
    Array,
    Policy,
    fit_both,
    known,
    reference_protocol,
    seed_range,
    settings_of,
    trained,
)
from research.experiments.protocols import PROTOCOLS, Settings
from research.experiments.task import Outcome, Row, Task, row
from research.problems import Portfolio, PortfolioData

ASSETS, SIZES = 40, (2500, 500, 1000)
PAPER = {DECISION: 0.289, "prediction-focused": 0.082, "Costa-Iyengar": 0.268}
REFERENCES = ("equal weights", "Bayes-optimal", "hindsight")
EXACT = "decision-focused, exact gradient"
BASELINES = {
    "costa-iyengar": "Costa-Iyengar",
    "mean": "mean prediction",
    "mean-network": "mean prediction, network",
    "spo+": "SPO+",
    "perturbed": "perturbed",
}


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Sets, and every baseline that the protocol has settings for; references once."""
    setting = (("assets", ASSETS),)
    found = [Task("portfolio", reference_protocol(quick), "references", setting, 0, "1")]
    for protocol in known("portfolio", quick, protocols):
        methods = ["sets", *(["sets-exact"] if protocol == "paper" else []), *_baselines(protocol)]
        every = [(name, seed) for name in methods for seed in seed_range(seeds)]
        found += [trained("portfolio", protocol, name, setting, seed) for name, seed in every]
    return found


def _baselines(protocol: str) -> list[str]:
    """Those with settings, and with their package."""
    installed = find_spec("pyepo") is not None
    return [n for n in PROTOCOLS["portfolio"][protocol].baselines if installed or n not in ("spo+", "perturbed")]


def run(task: Task, work: Path) -> Outcome:
    """Train one family of methods and score it."""
    built = Portfolio(int(task.columns["assets"]))
    training, validation, test = PortfolioData.generate(built.assets).split(*SIZES)
    if task.method == "references":
        return _scored({name: reference(name, built, test) for name in REFERENCES}, test)
    settings, data = settings_of(task), ((training.Z, training.Y), (validation.Z, validation.Y))
    if task.method in ("sets", "sets-exact"):
        if task.method == "sets-exact":
            exact = settings.learner["training"].but(gradient="exact")
            settings = replace(settings, learner={**settings.learner, "training": exact})
        learners = fit_both(built.problem, *data, settings, task.seed, work)
        policies: dict[str, Policy] = {EXACT: learners[DECISION]} if task.method == "sets-exact" else dict(learners)
    else:
        policy = baseline(task.method, built, settings, task.seed)
        policies = {BASELINES[task.method]: policy.fit(*data[0], validation=data[1])}
    return _scored({name: built.weights(policy.decide(test.Z)) for name, policy in policies.items()}, test)


def baseline(name: str, built: Portfolio, settings: Settings, seed: int) -> Any:
    """A baseline that is not fitted yet."""
    from drolayers.baselines import MeanPrediction
    from research.baselines import CostaIyengar, Pyepo

    given = dict(settings.baselines.get(name, {}))
    makers: Mapping[str, Any] = {
        "costa-iyengar": lambda: CostaIyengar(built.problem, seed=seed, **given),
        "mean": lambda: MeanPrediction(built.problem, seed=seed, **given),
        "mean-network": lambda: MeanPrediction(built.problem, seed=seed, **given),
        "spo+": lambda: Pyepo(built.problem, "spo+", seed=seed, **given),
        "perturbed": lambda: Pyepo(built.problem, "perturbed", seed=seed, **given),
    }
    if name not in makers:
        raise ModelError(f"There is no baseline {name!r} for the portfolio: choose from {sorted(makers)}.")
    return makers[name]()


def reference(name: str, built: Portfolio, test: PortfolioData) -> Array:
    """Portfolios that need no training: equal weights, the best for the true means, the best in hindsight."""
    if name == "equal weights":
        return np.full_like(test.Y, 1.0 / test.Y.shape[1])
    return built.best_weights(test.mean if name == "Bayes-optimal" else test.Y)


def score_rows(method: str, weights: Array, Y: Array) -> list[Row]:
    """The score, and the share of days without a decision, which the mean leaves out."""
    daily = (weights * Y).sum(1)
    return [row(method, "score", 10 * np.nanmean(daily)), row(method, "undecided", np.isnan(daily).mean())]


def wealth(weights: Array, Y: Array) -> list[float]:
    """What 100 grow to, day by day; a day without a decision earns nothing."""
    score = 10 * np.nan_to_num((weights * Y).sum(1))
    return [float(value) for value in 100 * np.cumprod(1 + 0.1 * score)]


def _scored(portfolios: Mapping[str, Array], test: PortfolioData) -> Outcome:
    """Rows and curves of several portfolios."""
    rows = [r for name, weights in portfolios.items() for r in score_rows(name, weights, test.Y)]
    return Outcome(rows, {name: wealth(weights, test.Y) for name, weights in portfolios.items()})
