"""Compare three rules for the gradient through a relative temperature, in training.

    python benchmarks/temperature_rules.py --minutes 35     continues where the last run stopped, then prints the table
    python benchmarks/temperature_rules.py --minutes 0      prints the table of what is finished

The layer's relative temperature is λ = factor · mean(f - min f), which depends on θ. The rules:

    detached        λ is a constant of the computation, one for each item;
    differentiated  the gradient flows through λ as well;
    batch           one constant λ for all items, the mean of theirs.

A cell is one training of a linear model by one rule: its problem, number of feasible integer points (2, 4 or 32),
whether they are enumerated or sampled, and its seed. The model starts at least squares for the mean and at the variance
of the residuals for the bounds. It then takes ``STEPS`` steps of Adam on the surrogate loss with the factors 1, 1/3
and 1/9 for a third of the steps each, as the learner does. Its cost is that of its decisions on ``TEST`` fresh rows.
The rules of a seed share data, start, batches and draws, so their costs are compared in pairs. With two points the
sample is exactly the enumeration, so that cell is not repeated.

Problems: the newsvendor and the portfolio of ``rates.py`` with lots and with entry fees, a path through stages of two
edges each with its costs, and the paper's mixed-integer portfolio. Each finished cell is a line of
``figures/temperature_rules.csv``. No other experiment of the repository uses these seeds.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
import drolayers.layer
from conelayers.surrogate.energy import compute_temperature
from research.problems.portfolio import Portfolio, PortfolioData

Draw = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]

FILE = Path(__file__).parent / "figures" / "temperature_rules.csv"
COLUMNS = ["seed", "problem", "points", "sample", "rule", "start", "hindsight", "cost", "seconds"]
SEEDS = range(7100, 7140)
BINARIES = {2: 1, 4: 2, 32: 5}
SCENARIOS = [(2, "enumerated"), (4, "enumerated"), (4, "sampled"), (32, "enumerated"), (32, "sampled")]
SAMPLES = {4: {"candidates": 2, "samples": 2}, 32: {"candidates": 3, "samples": 4}}
"""Sampled points: the library's defaults, and fewer where those would cover everything."""
TRAIN, TEST, BATCH, STEPS, RATE = 240, 300, 8, 48, 1e-2


def newsvendor(binaries: int, seed: int) -> tuple[dro.DecisionProblem, Draw]:
    """Two items, retail in any amount and wholesale in lots; demand bends with the context."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    lots = cp.Variable(binaries, boolean=True)
    size = np.array([7.5, 7.5, 2.0, 2.0, 1.0])[:binaries]
    item = np.eye(2)[[0, 1, 0, 1, 0]][:binaries].T
    stock = x + (item * size) @ lots
    cost = cp.sum(x) + 0.9 * size @ lots + np.array([3.0, 9.0]) @ cp.pos(y - stock)

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.uniform(size=(count, 2))
        mean = 5.0 + np.stack([3 * z[:, 0], 3 * z[:, 1] ** 2], 1)
        return z, np.abs(mean + (0.3 + z[:, :1]) * rng.standard_normal((count, 2)))

    return dro.DecisionProblem(cost, [], dro.MomentSet.grouped(y, 1)), draw


def portfolio(binaries: int, seed: int) -> tuple[dro.DecisionProblem, Draw]:
    """Six assets with linear means below the noise; the first ones cost an entry fee."""
    y, x = dro.Uncertain(6), cp.Variable(6, nonneg=True)
    opened = cp.Variable(binaries, boolean=True)
    slopes = np.random.default_rng(5).standard_normal((3, 6))

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal((count, 3))
        return z, 0.01 * z @ slopes + 0.02 * rng.standard_normal((count, 6))

    cost, constraints = -(y @ x) + 0.004 * cp.sum(opened), [cp.sum(x) == 1, x[:binaries] <= opened]
    return dro.DecisionProblem(cost, constraints, dro.MomentSet.grouped(y, 1)), draw


def path(binaries: int, seed: int) -> tuple[dro.DecisionProblem, Draw]:
    """One of two edges in each stage; costs by the recipe of Elmachtoub and Grigas, degree 4, noise 0.5."""
    y, x = dro.Uncertain(2 * binaries, support=dro.support.Nonnegative()), cp.Variable(2 * binaries, boolean=True)
    B = np.random.default_rng(7).integers(0, 2, size=(5, 2 * binaries))

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal((count, 5))
        base = (z @ B / np.sqrt(5) + 3) ** 4 / 3.5**4 + 1
        return z, base * rng.uniform(0.5, 1.5, size=base.shape)

    return dro.DecisionProblem(y @ x, [x[0::2] + x[1::2] == 1], dro.MomentSet.grouped(y, 1)), draw


def paper(binaries: int, seed: int) -> tuple[dro.DecisionProblem, Draw]:
    """The paper's mixed-integer portfolio with six assets, some of which are bought in a fixed amount or not at all."""
    data = PortfolioData.generate(6, TRAIN + TEST, seed)
    parts = iter(data.split(TRAIN, TEST))

    def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        part = next(parts)
        return part.Z, part.Y

    return Portfolio(6, binaries).problem, draw


PROBLEMS = {"newsvendor": newsvendor, "portfolio": portfolio, "path": path, "paper's portfolio": paper}
LOWEST = {"newsvendor": 0.0, "portfolio": -np.inf, "path": 0.0, "paper's portfolio": -np.inf}
"""Lower ends of the supports."""


def differentiate(*inputs: Any) -> Tensor:
    """Compute λ with its graph."""
    return compute_temperature.__wrapped__(*inputs)  # type: ignore[attr-defined]


def average(*inputs: Any) -> Tensor:
    """Compute one constant λ for the batch: the mean over items with a candidate."""
    temperature, solved = compute_temperature(*inputs), inputs[-1].any(1)
    return temperature[solved].mean().expand_as(temperature) if bool(solved.any()) else temperature


RULES = {"detached": compute_temperature, "differentiated": differentiate, "batch": average}


class LinearModel(torch.nn.Module):
    """θ = (μ, σ) with μ affine in the context and log σ affine in it, in units of the data.

    It starts at least squares for μ and at the variance of the residuals for σ. On a nonnegative support μ is cut off
    at zero, so that no set is empty.
    """

    def __init__(self, Z: Tensor, Y: Tensor, lowest: float) -> None:
        super().__init__()
        self.lowest = lowest
        self.shift, self.scale = Z.mean(0), Z.std(0)
        self.unit = Y.std(0)
        rows = self._rows(Z)
        slopes = torch.linalg.lstsq(rows, Y / self.unit).solution
        self.mean = torch.nn.Parameter(slopes)
        self.variance = (Y - rows @ slopes * self.unit).square().mean(0)
        self.log_variance = torch.nn.Parameter(torch.zeros_like(slopes))

    def _rows(self, Z: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(Z[:, :1]), (Z - self.shift) / self.scale], 1)

    def forward(self, Z: Tensor) -> Tensor:
        """Predict θ ``(row, theta)``."""
        rows = self._rows(Z)
        mean = (rows @ self.mean * self.unit).clamp(min=self.lowest)
        return torch.cat([mean, self.variance * (rows @ self.log_variance).exp()], 1)


def cost_on(layer: dro.DROLayer, theta: Tensor, Y: Tensor) -> float:
    """Return the mean cost of the decisions at outcomes."""
    with torch.no_grad():
        decision = layer.eval()(theta)
    layer.train()
    if not bool(decision.ok.all()):
        raise RuntimeError(f"{int((~decision.ok).sum())} rows have no decision.")
    return float(layer.problem.loss(decision.best, Y).mean())


def train(problem: str, points: int, sample: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train by every rule from one start on one draw of data; yield one cell each."""
    built, draw = PROBLEMS[problem](BINARIES[points], seed)
    rng = np.random.default_rng([seed, points])
    (Z, Y), (test_Z, test_Y) = (tuple(map(torch.as_tensor, draw(count, rng))) for count in (TRAIN, TEST))
    settings: dict[str, Any] = (
        {"samples": "all"} if sample == "enumerated" else {**SAMPLES[points], "enumerate_up_to": 0}
    )
    layer, model = dro.DROLayer(built), LinearModel(Z, Y, LOWEST[problem])
    start = cost_on(layer, model(test_Z).detach(), test_Y)
    hindsight = cost_on(layer, torch.cat([test_Y, 1e-6 * model.variance.expand_as(test_Y)], 1), test_Y)
    for rule, compute in RULES.items():
        begin = time.process_time()
        layer, model = dro.DROLayer(built, seed=seed, **settings), LinearModel(Z, Y, LOWEST[problem])
        optimiser = torch.optim.Adam(model.parameters(), RATE)
        order = torch.Generator().manual_seed(seed)
        with mock.patch.object(drolayers.layer, "compute_temperature", compute):
            for step in range(STEPS):
                if step % (TRAIN // BATCH) == 0:
                    batches = iter(torch.randperm(TRAIN, generator=order).split(BATCH))
                rows = next(batches)
                layer.temperature = dro.RelativeTemperature(3.0 ** -(3 * step // STEPS))
                optimiser.zero_grad()
                decision = layer(model(Z[rows]))
                decision.expected(lambda x, rows=rows: built.loss(x, Y[rows])).mean().backward()
                optimiser.step()
        yield {
            "seed": seed,
            "problem": problem,
            "points": points,
            "sample": sample,
            "rule": rule,
            "start": start,
            "hindsight": hindsight,
            "cost": cost_on(layer, model(test_Z).detach(), test_Y),
            "seconds": round(time.process_time() - begin, 2),
        }


def read() -> list[dict[str, str]]:
    """Read the finished cells."""
    if not FILE.exists():
        return []
    with FILE.open() as stream:
        return list(csv.DictReader(stream))


def run(minutes: float) -> None:
    """Finish cells, seed by seed, until the processor time is spent."""
    finished = {(int(c["seed"]), c["problem"], int(c["points"]), c["sample"]) for c in read() if c["rule"] == "batch"}
    if not FILE.exists():
        FILE.write_text(",".join(COLUMNS) + "\n")
    for seed, name, (points, sample) in product(SEEDS, PROBLEMS, SCENARIOS):
        if time.process_time() > 60 * minutes:
            return
        if (seed, name, points, sample) in finished:
            continue
        cells = list(train(name, points, sample, seed))
        with FILE.open("a", newline="") as stream:
            csv.DictWriter(stream, COLUMNS, lineterminator="\n").writerows(cells)


def print_table() -> None:
    """Print mean costs of the detached rule, and paired differences from it with standard errors.

    A difference is a percentage of the regret of the start, its cost less that of decisions in hindsight; positive is
    worse than detached.
    """
    cells: dict[tuple[str, int, str], dict[str, dict[int, float]]] = {}
    for cell in read():
        start, hindsight = float(cell["start"]), float(cell["hindsight"])
        regret = 100 * (float(cell["cost"]) - hindsight) / (start - hindsight)
        rules = cells.setdefault((cell["problem"], int(cell["points"]), cell["sample"]), {})
        rules.setdefault(cell["rule"], {})[int(cell["seed"])] = regret
    print(f"{'problem':<18}{'points':>7} {'sample':<11}{'seeds':>6}{'detached':>10}{'differentiated':>18}{'batch':>18}")
    pooled: dict[tuple[str, str], list[np.ndarray]] = {}
    by_seed: dict[str, dict[int, list[float]]] = {"differentiated": {}, "batch": {}}
    for (name, points, sample), rules in sorted(cells.items(), key=lambda c: (c[0][1], c[0][2], c[0][0])):
        seeds = sorted(set.intersection(*(set(rules.get(rule, {})) for rule in RULES)))
        base = np.array([rules["detached"][s] for s in seeds])
        text = ""
        for rule in ("differentiated", "batch"):
            gap = np.array([rules[rule][s] for s in seeds]) - base
            pooled.setdefault((f"{points} {sample}", rule), []).append(gap)
            for seed, value in zip(seeds, gap, strict=True):
                by_seed[rule].setdefault(seed, []).append(float(value))
            text += format_gap(gap.mean(), gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.nan)
        print(f"{name:<18}{points:>7} {sample:<11}{len(seeds):>6}{base.mean():>10.1f}{text}")
    print("mean over problems")
    for scenario in dict.fromkeys(scenario for scenario, _ in pooled):
        text = ""
        for rule in ("differentiated", "batch"):
            gaps = pooled[scenario, rule]
            errors = [g.std(ddof=1) / len(g) ** 0.5 if len(g) > 1 else np.nan for g in gaps]
            text += format_gap(np.mean([g.mean() for g in gaps]), np.sqrt(np.square(errors).sum()) / len(gaps))
        print(f"{scenario:<52}{text}")
    # Cells of a seed share data, so the error of the overall mean is that of the means of seeds.
    means = {rule: np.array([np.mean(values) for values in seeds.values()]) for rule, seeds in by_seed.items()}
    text = "".join(
        format_gap(m.mean(), m.std(ddof=1) / len(m) ** 0.5 if len(m) > 1 else np.nan) for m in means.values()
    )
    print(f"{'all, by seed':<52}{text}")


def format_gap(mean: float, error: float) -> str:
    """Write a mean difference with its standard error."""
    return f"{mean:+10.2f} ± {error:<5.2f}"


def main() -> None:
    """Run for some minutes, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=35.0, help="processor time")
    minutes = parser.parse_args().minutes
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run(minutes)
    print_table()


if __name__ == "__main__":
    main()
