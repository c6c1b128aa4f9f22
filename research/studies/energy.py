"""Study: commit power stations for tomorrow's load, measured in Victoria in 2014."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drolayers.baselines import SampleAverage, WeightedSampleAverage
from drolayers.baselines.sibling import ExpectedCost
from research.studies.commitment import Commitment
from research.studies.forecast import AroundForecast, ResidualAtoms
from research.studies.learner import learner
from research.studies.output import in_parallel, interval, show, write
from research.studies.statistics import block_rows, difference, estimate, tail_mean
from research.studies.victoria import WEEK, DayAhead, day_ahead, load_demand

Array = NDArray[np.float64]
Part = Literal["development", "test"]

FORESIGHT, CERTAIN = "perfect foresight", "forecast taken as certain"
AVERAGE, RESIDUALS = "sample average", "sample average of residuals"
PREDICTION, DECISION = "prediction-focused sets", "decision-focused sets"
POLICIES = (FORESIGHT, CERTAIN, AVERAGE, RESIDUALS, PREDICTION, DECISION)
SEEDED = (PREDICTION, DECISION)


@dataclass(frozen=True)
class Settings:
    """Settings of the study; those of learning were chosen on the development weeks.

    Attributes:
        emergency: prices of what is missing when everything else runs, in $/MWh; the study is run for each.
        seeds: of the two learnt policies.
        neighbours: residuals that make Q_z for the sets.
        atoms: residuals that make the sample average.
        projected: whether learnt sets must contain Q_z.
        hidden: width of the networks.
        pretrain_epochs: of fitting the sets to Q_z.
        epochs: of training on decisions.
        lr: its rate.
        batch_size: days a step.
        resamples: of the bootstrap.
        days: at most so many days are trained on and tested on; None for all.
    """

    emergency: tuple[float, ...] = (500.0, 1500.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    neighbours: int = 30
    atoms: int = 60
    projected: bool = True
    hidden: int = 16
    pretrain_epochs: int = 20
    epochs: int = 6
    lr: float = 3e-3
    batch_size: int = 32
    resamples: int = 5000
    days: int | None = None

    @classmethod
    def quick(cls) -> Settings:
        """A short run that shows that everything works; its figures mean nothing."""
        few = cls(emergency=(500.0,), seeds=(0,), neighbours=10, atoms=10, days=42, resamples=200)
        return replace(few, pretrain_epochs=4, epochs=1)


def split(data: DayAhead, part: Part) -> tuple[DayAhead, DayAhead]:
    """Training days and held-out days.

    Every fourth week is kept for the test. Settings are chosen on another fourth, with the other half for training;
    for the test, all that is not test is training data.
    """
    return (data.weeks(0, 2), data.weeks(1)) if part == "development" else (data.weeks(0, 1, 2), data.weeks(3))


def costs(price: float, policy: str, seed: int, training: DayAhead, held_out: DayAhead, settings: Settings) -> Array:
    """The cost of every held-out day, in thousand dollars, at an emergency price."""
    torch.set_num_threads(1)
    commitment = Commitment(price)
    problem, outcomes = commitment.problem, torch.as_tensor(held_out.Y)
    if policy == FORESIGHT:
        chosen = ExpectedCost(problem, 1).decide(outcomes[:, None], torch.ones(len(outcomes), 1, dtype=torch.float64))
    else:
        made = _policy(policy, seed, commitment, training, settings)
        with warnings.catch_warnings():
            # A short run has fewer days than neighbours.
            warnings.filterwarnings("ignore", message=".*padded with atoms of weight zero.*")
            chosen = made.fit(training.Z, training.Y).decide(torch.as_tensor(held_out.Z))
    return problem.loss(chosen, outcomes).numpy()


def _policy(policy: str, seed: int, commitment: Commitment, training: DayAhead, settings: Settings) -> Any:
    """A policy by name, not fitted."""
    problem = commitment.problem
    if policy == CERTAIN:
        return WeightedSampleAverage(problem, ResidualAtoms(0))
    if policy == AVERAGE:
        return SampleAverage(problem)
    if policy == RESIDUALS:
        return WeightedSampleAverage(problem, ResidualAtoms(settings.atoms))
    model = AroundForecast(training.Z, training.Y, settings.hidden, seed)
    return learner(problem, model, ResidualAtoms(settings.neighbours), policy == DECISION, seed, settings)


def run(settings: Settings, folder: Path, part: Part = "test", jobs: int = 2) -> dict[str, dict[str, Any]]:
    """Run the study: print the tables, write the files, and return the figures by emergency price and policy."""
    start = time.perf_counter()
    training, held_out = (_at_most(data, settings.days) for data in split(day_ahead(load_demand()), part))
    data = {"training": training, "held_out": held_out, "settings": settings}
    # The slow ones, which come last in the tables, first, so that no process waits at the end.
    labels = [
        (price, policy, seed)
        for policy in reversed(POLICIES)
        for price in settings.emergency
        for seed in (settings.seeds if policy in SEEDED else (0,))
    ]
    tasks = [{"price": price, "policy": policy, "seed": seed, **data} for price, policy, seed in labels]
    found: dict[tuple[float, str], list[Array]] = {}
    for (price, policy, _), series in zip(labels, in_parallel(costs, tasks, jobs), strict=True):
        found.setdefault((price, policy), []).append(series)
    by_price = {
        f"{price:g}": {policy: np.array(found[price, policy]) for policy in POLICIES} for price in settings.emergency
    }
    figures = {price: summary(series, settings.resamples) for price, series in by_price.items()}
    seconds = time.perf_counter() - start
    tables = {"costs": _rows(figures), "differences": _contrasts(figures)}
    details = {
        "study": "energy",
        "part": part,
        "settings": asdict(settings),
        "days": {"training": len(training), "held out": len(held_out), "dates": held_out.days.tolist()},
        "seconds": round(seconds, 1),
        "figures": figures,
        "costs": {
            price: {policy: values.round(3).tolist() for policy, values in series.items()}
            for price, series in by_price.items()
        },
    }
    write(folder, tables, details, plot(by_price))
    show(f"Cost of a day, thousand dollars ({len(held_out)} {part} days)", tables["costs"])
    show("Differences in cost", tables["differences"])
    print(f"{seconds:.0f} s; files in {folder}")
    return figures


def summary(series: dict[str, Array], resamples: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Mean and tail of every policy, and the differences to the sample average and to prediction-focused sets."""
    count = next(iter(series.values())).shape[1]
    rows = block_rows(count, WEEK, resamples, np.random.default_rng(seed))
    figures: dict[str, dict[str, Any]] = {}
    for name, values in series.items():
        figures[name] = {
            "mean": estimate(values, _mean, rows),
            "cvar": estimate(values, tail_mean, rows),
            "by_seed": values.mean(1).tolist(),
            "cvar_by_seed": tail_mean(values).tolist(),
            # A day without a decision would flatter a mean over the others, so it is not left out but counted.
            "failed": int(np.isnan(values).sum()),
        }
        for reference in (AVERAGE, RESIDUALS, PREDICTION):
            figures[name][f"mean - {reference}"] = difference(values, series[reference], _mean, rows)
            figures[name][f"cvar - {reference}"] = difference(values, series[reference], tail_mean, rows)
    return figures


def _mean(values: Array) -> Array:
    return np.asarray(values.mean(-1))


def _at_most(data: DayAhead, days: int | None) -> DayAhead:
    """The first days of the data."""
    return data if days is None else DayAhead(data.days[:days], data.Z[:days], data.Y[:days])


def _rows(figures: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The table of costs."""
    rows = []
    for price, by_policy in figures.items():
        for name, figure in by_policy.items():
            seeds = figure["by_seed"]
            rows.append(
                {
                    "policy": name,
                    "emergency, $/MWh": price,
                    "mean cost": interval(figure["mean"], digits=0),
                    "CVaR 95 %": interval(figure["cvar"], digits=0),
                    "mean by seed": f"{min(seeds):.0f} to {max(seeds):.0f}" if len(seeds) > 1 else "",
                    "failed days": str(figure["failed"]),
                }
            )
    return rows


def _contrasts(figures: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The table of differences that matter."""
    pairs = [(RESIDUALS, AVERAGE), (PREDICTION, AVERAGE), (DECISION, AVERAGE)]
    pairs += [(PREDICTION, RESIDUALS), (DECISION, RESIDUALS), (DECISION, PREDICTION)]
    return [
        {
            "policy": name,
            "minus": reference,
            "emergency, $/MWh": price,
            "mean cost": interval(by_policy[name][f"mean - {reference}"], digits=0),
            "CVaR 95 %": interval(by_policy[name][f"cvar - {reference}"], digits=0),
        }
        for price, by_policy in figures.items()
        for name, reference in pairs
    ]


def plot(by_price: dict[str, dict[str, Array]]) -> Figure:
    """How often a day costs more than so much, one picture for every emergency price."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (price, series) in zip(
        figure.subplots(1, len(by_price), squeeze=False)[0], by_price.items(), strict=True
    ):
        for name, values in series.items():
            each = np.sort(values.mean(0))[::-1]
            axes.step(each / 1000.0, (np.arange(len(each)) + 1) / len(each), where="post", label=name, lw=1.2)
        axes.set(xscale="log", yscale="log", xlabel="cost of a day, million dollars", ylabel="share of days above it")
        axes.set_title(f"emergency at {price} $/MWh", fontsize=10)
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure
