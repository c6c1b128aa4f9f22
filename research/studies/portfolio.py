"""Study: a weekly portfolio of twenty American stocks, walked forward from 2005 to 2022."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from conelayers.errors import ModelError
from drolayers.extras import require
from research.studies.allocation import CAP, LEVEL, PER_CENT, Allocation, AssetModel, MarketNeighbours
from research.studies.learner import learner
from research.studies.output import in_parallel, interval, show, write
from research.studies.statistics import block_rows, difference, drawdown, estimate, tail_mean
from research.studies.stocks import Prices, Weeks, load_prices, weeks

Array = NDArray[np.float64]
Part = Literal["development", "test"]

EQUAL, SKFOLIO = "equal weights", "skfolio's robust CVaR"
PREDICTION, DECISION = "prediction-focused sets", "decision-focused sets"
POLICIES = (EQUAL, SKFOLIO, PREDICTION, DECISION)
SEEDED = (PREDICTION, DECISION)
YEAR = 52


@dataclass(frozen=True)
class Settings:
    """Settings of the study; those of learning were chosen on the development years.

    Attributes:
        seeds: of the two learnt policies.
        window: weeks of training data.
        refit: weeks between two trainings.
        neighbours: weeks that make Q_z.
        projected: whether learnt sets must contain Q_z.
        hidden: width of the networks.
        pretrain_epochs: of fitting the sets to Q_z.
        epochs: of training on decisions.
        lr: its rate.
        batch_size: weeks a step.
        radius: of skfolio's ball.
        skfolio_window: weeks of data given to skfolio.
        skfolio_refit: weeks between two of its fits.
        trading_cost: of one unit of turnover.
        block: weeks in a block of the bootstrap.
        resamples: of the bootstrap.
        last: weeks of the period that are used, from its end; None for all.
    """

    seeds: tuple[int, ...] = (0, 1)
    window: int = 520
    refit: int = 208
    neighbours: int = 50
    projected: bool = False
    hidden: int = 16
    pretrain_epochs: int = 20
    epochs: int = 6
    lr: float = 3e-2
    batch_size: int = 52
    radius: float = 1e-3
    skfolio_window: int = 260
    skfolio_refit: int = 26
    trading_cost: float = 0.001
    block: int = 13
    resamples: int = 5000
    last: int | None = None

    @classmethod
    def quick(cls) -> Settings:
        """A short run that shows that everything works; its figures mean nothing."""
        return cls(
            seeds=(0,), window=104, refit=52, neighbours=20, pretrain_epochs=2, epochs=1, resamples=200, last=52
        ).with_skfolio(104, 52)

    def with_skfolio(self, window: int, refit: int) -> Settings:
        """Other windows for skfolio."""
        return replace(self, skfolio_window=window, skfolio_refit=refit)


PERIODS: dict[Part, tuple[str, str]] = {
    "development": ("2001-01-01", "2004-12-31"),
    "test": ("2005-01-01", "2022-12-31"),
}
"""Decisions are taken within these days; settings were chosen on the first period alone."""


def decide(policy: str, seed: int, past: Weeks, now: Weeks, membership: Array, settings: Settings) -> Array:
    """Target weights ``(week, asset)`` for some weeks from data that were known before the first of them.

    Args:
        policy: its name.
        seed: of a policy that is trained.
        past: weeks whose returns are known at the first decision.
        now: the weeks to decide; only their contexts are used.
        membership: of stocks in sectors.
        settings: of the study.
    """
    torch.set_num_threads(1)
    if len(past) and past.until.max() > now.days.min():
        raise ModelError("The past must be over before the first decision: leave out weeks whose returns come later.")
    if policy == EQUAL:
        return np.full((len(now), membership.shape[1]), 1.0 / membership.shape[1])
    if policy == SKFOLIO:
        made = require("skfolio.optimization", "studies").DistributionallyRobustCVaR(
            cvar_beta=LEVEL, wasserstein_ball_radius=settings.radius, max_weights=CAP
        )
        return np.tile(made.fit(past.Y).weights_, (len(now), 1))
    allocation = Allocation(past.Y, membership)
    # The latest fifth of the past says which epoch to keep.
    cut = len(past) - len(past) // 5
    outcomes = allocation.whiten(past.Y)
    model = AssetModel(allocation, past.Z, past.Y, settings.hidden, seed)
    nominal = MarketNeighbours(settings.neighbours)
    learnt = learner(allocation.problem, model, nominal, policy == DECISION, seed, settings)
    learnt.fit(past.Z[:cut], outcomes[:cut], validation=(past.Z[cut:], outcomes[cut:]))
    return np.asarray(learnt.decide(now.Z)[allocation.weights])


def walk_forward(
    data: Weeks,
    membership: Array,
    settings: Settings,
    part: Part,
    jobs: int,
    policies: Sequence[str] = POLICIES,
) -> tuple[Weeks, dict[str, Array]]:
    """The weeks of a period and the target weights ``(seed, week, asset)`` of every policy, each decided from its past.

    Weeks are decided in runs between two fits; a fit sees the weeks that were over at the first decision of its run.
    """
    first, last = PERIODS[part]
    inside = np.flatnonzero((data.days >= np.datetime64(first)) & (data.until <= np.datetime64(last)))
    if settings.last is not None:
        inside = inside[-settings.last :]
    tasks, labels = [], []
    # The slow ones, which come last in the tables, first, so that no process waits at the end.
    for policy in reversed(policies):
        seeds = settings.seeds if policy in SEEDED else (0,)
        window, every = settings.window, settings.refit
        if policy == SKFOLIO:
            window, every = settings.skfolio_window, settings.skfolio_refit
        for seed in seeds:
            for start in range(0, len(inside), every):
                run = inside[start : start + every]
                known = np.flatnonzero(data.until <= data.days[run[0]])[-window:]
                given = {"past": data.rows(known), "now": data.rows(run), "membership": membership}
                tasks.append({"policy": policy, "seed": seed, "settings": settings, **given})
                labels.append((policy, seed))
    parts: dict[tuple[str, int], list[Array]] = {}
    for label, weights in zip(labels, in_parallel(decide, tasks, jobs), strict=True):
        parts.setdefault(label, []).append(weights)
    found: dict[str, list[Array]] = {}
    for (policy, _), pieces in parts.items():
        found.setdefault(policy, []).append(np.concatenate(pieces))
    return data.rows(inside), {policy: np.array(found[policy]) for policy in policies}


def trade(weights: Array, returns: Array, trading_cost: float) -> tuple[Array, Array, Array]:
    """Weekly returns before and after costs, and turnover, of target weights ``(seed, week, asset)``.

    Between two decisions the weights drift with the prices; the turnover is the sum of the changes from the drifted
    weights to the next targets. The first purchase is free.
    """
    gross = (weights * returns).sum(-1)
    grown = weights * (1.0 + returns)
    drifted = grown / grown.sum(-1, keepdims=True)
    turnover = np.zeros_like(gross)
    turnover[:, 1:] = np.abs(weights[:, 1:] - drifted[:, :-1]).sum(-1)
    return gross, (1.0 + gross) * (1.0 - trading_cost * turnover) - 1.0, turnover


def _annual_return(returns: Array) -> Array:
    """Geometric, a year."""
    return np.asarray(np.expm1(YEAR * np.log1p(returns).mean(-1)))


def _volatility(returns: Array) -> Array:
    return np.asarray(np.sqrt(YEAR) * returns.std(-1, ddof=1))


def _cvar(returns: Array) -> Array:
    """Mean loss of the worst twentieth of the weeks."""
    return tail_mean(-returns)


def _objective(returns: Array) -> Array:
    """What the learnt policies minimise: expected loss plus CVaR, in per cent a week."""
    return PER_CENT * (tail_mean(-returns, LEVEL) - returns.mean(-1))


STATISTICS: dict[str, Callable[[Array], Array]] = {
    "annual return": _annual_return,
    "volatility": _volatility,
    "CVaR 95 %": _cvar,
    "objective": _objective,
}


def summary(weights: dict[str, Array], returns: Array, settings: Settings, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Every figure of every policy, with bootstrap intervals, and the differences to equal weights."""
    rows = block_rows(len(returns), settings.block, settings.resamples, np.random.default_rng(seed))
    traded = {name: trade(targets, returns, settings.trading_cost) for name, targets in weights.items()}
    figures: dict[str, dict[str, Any]] = {}
    for name, (gross, net, turnover) in traded.items():
        figures[name] = {
            "max drawdown": float(drawdown(gross).mean()),
            "turnover": float(YEAR * turnover[:, 1:].mean()),
            "failed": int(np.isnan(gross).sum()),
            "annual return by seed": np.atleast_1d(_annual_return(gross)).tolist(),
        }
        for title, statistic in STATISTICS.items():
            figures[name][title] = estimate(gross, statistic, rows)
            for other in (EQUAL, PREDICTION):
                figures[name][f"{title} - {other}"] = difference(gross, traded[other][0], statistic, rows)
        figures[name]["annual return, net"] = estimate(net, _annual_return, rows)
        for other in (EQUAL, PREDICTION):
            figures[name][f"annual return, net - {other}"] = difference(net, traded[other][1], _annual_return, rows)
    return figures


def run(settings: Settings, folder: Path, part: Part = "test", jobs: int = 2) -> dict[str, dict[str, Any]]:
    """Run the study: print the tables, write the files, and return the figures by policy."""
    start = time.perf_counter()
    prices: Prices = load_prices()
    period, weights = walk_forward(weeks(prices), prices.membership(), settings, part, jobs)
    figures = summary(weights, period.Y, settings)
    seconds = time.perf_counter() - start
    tables = {"figures": _figures(figures), "differences": _differences(figures)}
    details = {
        "study": "portfolio",
        "part": part,
        "settings": asdict(settings),
        "period": [str(period.days[0]), str(period.until[-1]), len(period)],
        "seconds": round(seconds, 1),
        "figures": figures,
    }
    write(folder, tables, details, plot(weights, period, settings))
    kept = {name: targets.astype(np.float32) for name, targets in weights.items()}
    np.savez_compressed(folder / "weights.npz", days=period.days, **kept)  # type: ignore[arg-type]
    show(f"{len(period)} weeks from {period.days[0]} to {period.until[-1]}", tables["figures"])
    show("Differences", tables["differences"])
    print(f"{seconds:.0f} s; files in {folder}")
    return figures


def _figures(figures: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The table of figures."""
    return [
        {
            "policy": name,
            "annual return, %": interval(figure["annual return"], 100),
            "after costs, %": interval(figure["annual return, net"], 100),
            "volatility, %": interval(figure["volatility"], 100),
            "CVaR 95 %, % a week": interval(figure["CVaR 95 %"], 100, 2),
            "max drawdown, %": f"{100 * figure['max drawdown']:.1f}",
            "turnover a year": f"{figure['turnover']:.1f}",
        }
        for name, figure in figures.items()
    ]


def _differences(figures: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The table of differences that matter."""
    pairs = [(SKFOLIO, EQUAL), (PREDICTION, EQUAL), (DECISION, EQUAL), (DECISION, PREDICTION)]
    return [
        {
            "policy": name,
            "minus": other,
            "annual return, %": interval(figures[name][f"annual return - {other}"], 100),
            "after costs, %": interval(figures[name][f"annual return, net - {other}"], 100),
            "volatility, %": interval(figures[name][f"volatility - {other}"], 100),
            "CVaR 95 %, % a week": interval(figures[name][f"CVaR 95 % - {other}"], 100, 2),
            "objective, % a week": interval(figures[name][f"objective - {other}"], 1, 2),
        }
        for name, other in pairs
    ]


def plot(weights: dict[str, Array], period: Weeks, settings: Settings) -> Figure:
    """Wealth after costs, one line a policy (the first seed of those that have several)."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, targets in weights.items():
        net = trade(targets, period.Y, settings.trading_cost)[1]
        axes.plot(period.until, np.cumprod(1.0 + net[0]), label=name, lw=1.1)
    axes.set(yscale="log", ylabel="wealth after trading costs (log scale)")
    axes.legend(frameon=False)
    return figure
