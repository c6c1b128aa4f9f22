"""What every set asks on a newsvendor: its value, its decision, what that costs on new data, and seconds.

    python benchmarks/price_of_sets.py [--points 30] [--batch 100] [--only mixture]
    python benchmarks/price_of_sets.py --battery path/to/battery.npz

Four products, a unit costs 1, demand that is missed 4, what is left over 0.5. Every set is put around the same sample:
its typical parameters, projected so that it holds the sample where a projection exists. Times are processor time, that
of a decision as one of a batch. A set is one line of ``SETS``;
one with parameters of its own choice names them. Printed as the tables of docs/howto/which-set.md.

With the battery of Yeh et al. (research/problems/battery.py says where its data are from) every set is put around the
20 days that are most like each of ``--batch`` test days, in the same way; its decision is paid for at the prices that
came.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet

ITEMS, SHORT, LEFT, FRESH, TAIL = 4, 4.0, 0.5, 100_000, 0.95
MEANS = np.array([4.0, 6.0, 8.0, 10.0])


@dataclass(frozen=True)
class Row:
    """A set as a function of y and the number of points, and parameters other than the typical ones."""

    name: str
    make: Callable[[dro.Uncertain, int], AmbiguitySet]
    given: Mapping[str, float] = field(default_factory=dict)


def rainy(y: dro.Uncertain, points: int) -> AmbiguitySet:
    """Half of the days are good ones for the last product."""
    halves = dro.support.Box(hi=[np.inf] * 3 + [MEANS[3]]), dro.support.Box(lo=[0.0] * 3 + [MEANS[3]])
    return dro.Mixture([dro.MomentSet(y.within(half), [m.Mean(), m.Variance()]) for half in halves])


SETS = [
    Row("sample itself: `Empirical`", dro.Empirical),
    Row("`Divergence`, χ², 0.1", lambda y, n: dro.Divergence(y, n, "chi2")),
    Row("`Divergence`, KL, 0.1", lambda y, n: dro.Divergence(y, n, "kl")),
    Row("`Divergence`, total variation, 0.1", lambda y, n: dro.Divergence(y, n, "tv")),
    Row("`Wasserstein`, order 1", lambda y, n: dro.Wasserstein(y, n)),
    Row("`Wasserstein`, order 2", lambda y, n: dro.Wasserstein(y, n, norm=2, order=2)),
    Row("`Wasserstein`, order ∞", lambda y, n: dro.Wasserstein(y, n, norm=np.inf, order=np.inf)),
    Row("`Mean`, `Variance`", lambda y, n: dro.MomentSet(y, [m.Mean(), m.Variance()])),
    Row("`Norm(1)`, `SquaredNorm`", lambda y, n: dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])),
    Row("`SquaredNorm`", lambda y, n: dro.MomentSet(y, [m.SquaredNorm()])),
    Row("`Norm(1)`", lambda y, n: dro.MomentSet(y, [m.Norm(1)])),
    Row("`MeanCovariance`", lambda y, n: dro.MeanCovariance(y)),
    Row("`Outcomes`, box", lambda y, n: dro.Outcomes(y, "box")),
    Row("`Outcomes`, ellipsoid", lambda y, n: dro.Outcomes(y, "ellipsoid")),
    Row("`Outcomes`, budget", lambda y, n: dro.Outcomes(y, "budget")),
    Row("`Mixture` of two `Mean`, `Variance`", rainy),
]


def demand(rng: np.random.Generator, count: int) -> np.ndarray:
    """Demands of so many days, whose sizes have a day's weather in common."""
    return rng.gamma(9.0, MEANS / 9.0, (count, ITEMS)) * rng.uniform(0.8, 1.2, (count, 1))


def typical(ambiguity: AmbiguitySet, Y: Tensor, given: Mapping[str, float]) -> Tensor:
    """Typical parameters of a set for a sample."""
    found = {name: value.centre[None].double() for name, value in ambiguity.typical(Y).items()}
    found |= {name: torch.full_like(found[name], value) for name, value in given.items()}
    return ambiguity.pack(found).double()


def fitted(ambiguity: AmbiguitySet, Y: Tensor, given: Mapping[str, float]) -> Tensor:
    """Typical parameters, moved so that the set holds the sample."""
    theta = typical(ambiguity, Y, given)
    try:
        return dro.Projection(ambiguity)(theta, around(Y))
    except dro.ModelError:
        # Nothing to learn, or no projection.
        return theta


def around(Y: Tensor) -> tuple[Tensor, Tensor]:
    """The sample as a nominal distribution."""
    return Y[None], torch.full((1, len(Y)), 1.0 / len(Y), dtype=torch.float64)


def priced(row: Row, Y: Tensor, fresh: Tensor, batch: int) -> str:
    """One line of the table."""
    start = time.process_time()
    y, x = dro.Uncertain(ITEMS, dro.support.Nonnegative()), cp.Variable(ITEMS, nonneg=True)
    cost = cp.sum(x) + SHORT * cp.sum(cp.pos(y - x)) + LEFT * cp.sum(cp.pos(x - y))
    problem = dro.DecisionProblem(cost, [], row.make(y, len(Y)))
    built = time.process_time() - start
    theta = fitted(problem.ambiguity, Y, row.given).expand(batch, -1)
    nominal = tuple(part.expand(batch, *part.shape[1:]) for part in around(Y))
    nominal = nominal if problem.ambiguity.needs_nominal else None
    layer, seconds = dro.DROLayer(problem), np.inf
    for _ in range(3):
        start = time.process_time()
        decision = layer(theta, nominal)
        seconds = min(seconds, time.process_time() - start)
    stock = decision.best[x][:1].detach()
    losses = problem.loss({x: stock.expand(len(fresh), -1)}, fresh)
    tail = losses[losses >= losses.quantile(TAIL)].mean()
    value, total, size = float(decision.value[0]), float(stock.sum()), f"{float(losses.mean()):.1f} | {float(tail):.1f}"
    times = f"{1e3 * built:.0f} | {1e3 * seconds / batch:.1f}"
    return f"| {row.name} | {value:.1f} | {total:.1f} | {size} | {times} |"


def priced_battery(row: Row, path: Path, days: int, neighbours: int = 20) -> str:
    """One line of the battery's table: certified and realised cost of a day, its tail, energy sold, seconds."""
    from research.problems.battery import Battery, prices
    from research.problems.battery import days as split

    X, Y, mean, deviation = prices(path)
    parts = split(X, Y, False, 0)
    start = time.process_time()
    built = Battery(mean, deviation, lambda y: row.make(y, neighbours))
    seconds = [time.process_time() - start]
    nominal = dro.nominal.KNN(k=neighbours).fit(*parts.training)
    Z, outcomes = (torch.as_tensor(part[:days]) for part in parts.test)
    around_each, ambiguity = nominal(Z), built.problem.ambiguity
    theta = torch.cat([typical(ambiguity, atoms, row.given) for atoms in around_each.atoms])
    theta = dro.Projection(ambiguity)(theta, around_each) if ambiguity.size else theta
    start = time.process_time()
    decision = dro.DROLayer(built.problem)(theta, around_each if ambiguity.needs_nominal else None)
    seconds.append((time.process_time() - start) / days)
    losses = built.problem.loss(decision.best, outcomes)[decision.ok]
    tail = losses[losses >= losses.quantile(TAIL)].mean()
    sold = decision.best[built.discharge][decision.ok].sum(1).mean()
    figures = [float(decision.value[decision.ok].mean()), float(sold), float(losses.mean()), float(tail)]
    times = f"{1e3 * seconds[0]:.0f} | {1e3 * seconds[1]:.1f}"
    return f"| {row.name} | {' | '.join(f'{figure:.2f}' for figure in figures)} | {times} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--battery", type=Path, help="battery.npz: the other table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.battery:
        print("| set | certified | sold | mean cost | mean of the worst 5 % | build, ms | decide, ms |")
        print("|---|---|---|---|---|---|---|")
        for row in SETS:
            # Days are not of two kinds here.
            if options.only.lower() in row.name.lower() and row.make is not rainy:
                print(priced_battery(row, options.battery, options.batch), flush=True)
        return
    rng = np.random.default_rng(0)
    Y, fresh = (torch.as_tensor(demand(rng, count)) for count in (options.points, FRESH))
    chosen = [row for row in SETS if options.only.lower() in row.name.lower()]
    # What is compiled the first time is no part of any set's price.
    priced(chosen[0], Y, fresh[:10], 2)
    print("| set | certified | stock | mean cost | mean of the worst 5 % | build, ms | decide, ms |")
    print("|---|---|---|---|---|---|---|")
    for row in chosen:
        print(priced(row, Y, fresh, options.batch), flush=True)


if __name__ == "__main__":
    main()
