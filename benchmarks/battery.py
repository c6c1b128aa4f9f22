"""The battery on real prices: time of one step, and how many gradients are right.

A battery is charged and discharged over the 24 hours of a day against uncertain prices, in a box
(``MomentSet.grouped(y, 1)``) or in an ellipsoid (``Norm(2, A=dro.Learn(24, 24))``).

    python benchmarks/battery.py path/to/battery.npz [--items 63] [--seed 0] [--engines auto batched]

The data are `battery.npz` of the repository chrisyeh96/e2e-conformal (MIT licence; Yeh et al., *End-to-End Conformal
Calibration for Optimization Under Uncertainty*): ``Y`` holds 2,189 days of 24 hourly prices in dollars. They are not
part of this repository.

Sets are drawn as a model would state them: a real day, standardised by mean and deviation of every hour, shrunk towards
the mean by a factor between 0.2 and 1, plus noise of 0.05 deviations, is the centre; half widths are a level between
0.005 and 0.6 deviations (uniform in its logarithm) times exp(0.3 n), hour by hour, n normal; the correlation of
neighbouring hours, for the ellipsoid, lies between 0.3 and 0.9.

Seconds are processor seconds of the whole process, the median of five steps of a batch of 100. Gradients are those of a
random weight of the decision, along three random directions of θ, against central differences of Clarabel's solutions;
days are drawn until ``--items`` of them have stable differences.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Engine, make_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.drolayers.engine.strangers import (
    battery_problem,
    battery_row,
    directions,
    random_weights,
    stable_differences,
)

BATCH = 100
REPEATS = 5
SHAPES = ("box", "ellipse")
MASKED = ("KINK", "LOOSE", "UNVERIFIED")


def seconds(problem: dro.DecisionProblem, theta: Tensor, weight: Tensor, engine: Engine) -> tuple[float, float]:
    """Processor seconds of one step, forward and backward; the first two steps warm up."""
    forward, backward = [], []
    for attempt in range(2 + REPEATS):
        leaf = theta.clone().requires_grad_()
        start = time.process_time()
        solution = problem.solve(leaf, engine=engine)
        middle = time.process_time()
        (solution.primal * weight).nan_to_num().sum().backward()
        if attempt >= 2:
            forward.append(middle - start)
            backward.append(time.process_time() - middle)
    return median(forward), median(backward)


def told(solution: Any) -> list[str]:
    """The codes of the derivatives, where the engine tells."""
    codes = getattr(solution, "derivative", None)
    return ["?"] * len(solution.status) if codes is None else [dro.Derivative(int(code)).name for code in codes]


def examine(shape: str, days: np.ndarray, prices: tuple[np.ndarray, np.ndarray], options: argparse.Namespace) -> None:
    """Differences once, then every engine."""
    problem, variables = battery_problem(shape, *prices)
    rng = np.random.default_rng(options.seed)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        theta = torch.tensor(np.array([battery_row(shape, days[rng.integers(len(days))], rng) for _ in range(count)]))
        return theta, random_weights(problem.program, variables, count, rng)

    kept: list[tuple[Tensor, ...]] = []
    looked = 0
    while len(kept) < options.items and looked < 20 * options.items:
        theta, weight = draw(20)
        along = directions(theta, 3, rng)
        found = stable_differences(problem.program, theta, weight, along, problem.features)
        looked += len(theta)
        for i in found.stable.nonzero()[:, 0].tolist():
            kept.append((theta[i], weight[i], along[:, i], found.decision[i], found.size[i]))
    theta, weight, along, expected, size = (
        torch.stack(list(part)) for part in zip(*kept[: options.items], strict=True)
    )
    moving = int((expected.norm(dim=1) > size).sum())
    print(f"{shape}: {len(theta)} items with stable differences of {looked} drawn, {moving} of which move", flush=True)
    batch = draw(BATCH)
    for name in options.engines:
        engine = make_engine(name)
        forward, backward = seconds(problem, *batch, engine)
        leaf = theta.clone().requires_grad_()
        solution = problem.solve(leaf, engine=engine)
        (gradient,) = torch.autograd.grad((solution.primal * weight).nan_to_num().sum(), leaf)
        along_them = (gradient[:, None] * along).sum(-1)
        error = (along_them - expected).norm(dim=1) / torch.maximum(expected.norm(dim=1), size)
        codes, optimal = told(solution), (solution.status == int(dro.Status.OPTIMAL)).tolist()
        masked = [i for i, code in enumerate(codes) if code in MASKED]
        off = [i for i in range(len(theta)) if i not in masked and optimal[i] and not float(error[i]) <= 1e-2]
        print(
            f"  {name:<10} forward {forward:7.3f} s  backward {backward:7.3f} s  off by more than 1 %: {len(off):3d}"
            f"  masked: {len(masked):3d}  not optimal: {optimal.count(False):3d}"
            f"  codes: {dict(Counter(codes))}  worst: {[round(float(error[i]), 3) for i in off][:8]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="battery.npz")
    parser.add_argument("--items", type=int, default=63, help="items with stable differences")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", default=["auto"])
    options = parser.parse_args()
    if options.data is None:
        print("Nothing to do without battery.npz (chrisyeh96/e2e-conformal): give its path.")
        return
    warnings.simplefilter("ignore")  # flat gradients: most decisions stand at a vertex
    prices = np.load(options.data)["Y"]
    mean, deviation = prices.mean(0), prices.std(0)
    for shape in SHAPES:
        examine(shape, (prices - mean) / deviation, (mean, deviation), options)


if __name__ == "__main__":
    main()
