"""Batches of cone programs on a GPU, beside Moreau's CUDA back end and Clarabel in the same run.

    python benchmarks/gpu.py                portfolios (bounds for groups of four, lots relaxed) and newsvendors
    python benchmarks/gpu.py --device cpu   the same on the CPU, beside Moreau there
    python benchmarks/gpu.py --search       linear integer programs by batch: the simplex method on the host, the tree
                                            on the device, and what "auto" takes (--batches, --assets)

Forward and backward seconds of our own method and of Moreau, the median of five calls after two that record and
allocate; and the largest difference to Clarabel's optimal values on twenty items of each batch, relative to one plus
their size.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Engine, make_engine
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.oracles import Auto, BranchAndBound, Simplex
from drolayers.problem import DecisionProblem

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from research.experiments.step import Step
from research.problems import Portfolio, PortfolioData

SAMPLE = 20


def portfolio(assets: int, batch: int) -> tuple[DecisionProblem, Tensor]:
    """The mixed-integer portfolio with its lots relaxed, and sets around the conditional means."""
    problem = Portfolio(assets, assets // 5, group=4).problem
    data = PortfolioData.generate(assets, batch)
    rng = np.random.default_rng(0)
    sigma = 4 * data.Y.var() * rng.uniform(0.5, 1.5, (batch, assets // 4))
    return problem, torch.as_tensor(np.concatenate([data.mean, sigma], 1))


def newsvendor(items: int, batch: int) -> tuple[DecisionProblem, Tensor]:
    """A newsvendor of many items under both moments."""
    import cvxpy as cp

    rng = np.random.default_rng(0)
    y = dro.Uncertain(items, support=dro.support.Nonnegative())
    stock = cp.Variable(items, nonneg=True)
    short, hold = rng.uniform(2, 8, items), rng.uniform(0.5, 2, items)
    cost = cp.sum(stock) + cp.sum(cp.maximum(cp.multiply(short, y - stock), cp.multiply(hold, stock - y)))
    ambiguity = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
    centre = rng.uniform(5, 15, (batch, items))
    bounds = rng.uniform(0.8, 1.2, (batch, 2)) * items
    theta = np.concatenate([centre, bounds[:, :1], centre, bounds[:, 1:] * 1.5], 1)
    return DecisionProblem(cost, [], ambiguity), torch.as_tensor(theta)


def now() -> float:
    """The clock, when a device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(engine: Engine, problem: DecisionProblem, theta: Tensor, calls: int) -> tuple[float, float, Tensor, Any]:
    """Median seconds forward and backward, and the optimal values."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(calls + 2):
        given = theta.clone().requires_grad_(True)
        start = now()
        solution = problem.solve(given, engine=engine)
        middle = now()
        torch.nan_to_num(solution.primal).sum().backward()
        seconds[0].append(middle - start)
        seconds[1].append(now() - middle)
    return median(seconds[0][2:]), median(seconds[1][2:]), solution.objective.detach(), solution


def difference(problem: DecisionProblem, theta: Tensor, values: Tensor) -> float:
    """The largest relative difference to Clarabel's optimal values on a sample of the batch."""
    chosen = torch.linspace(0, len(theta) - 1, min(SAMPLE, len(theta))).long()
    features = problem.features(theta[chosen.to(theta.device)].cpu())
    program = problem.program
    data = program.values(features)
    raw = Clarabel().solve(program, data)
    exact = (data.q * raw.x).sum(1) + data.constant
    mine = values[chosen.to(values.device)].cpu()
    return float(((mine - exact).abs() / (1.0 + exact.abs())).max())


def search(assets: int, batches: list[int], device: str, calls: int) -> None:
    """Seconds of the search for T = 3 points of portfolios with a bound each, by oracle, after two calls."""
    print(f"{'programs':24s} " + " ".join(f"{h:>10s}" for h in ("simplex", "tree", "auto")) + "  auto took; difference")
    for batch in batches:
        step = Step(assets, 1, batch=batch, device=device)
        rows, problem = torch.arange(batch, device=device).remainder(len(step.Z)), step.portfolio.problem
        with torch.no_grad():
            parts = step.pipeline
            theta = parts.projection(parts.model(step.Z[rows]), parts.nominal(step.Z[rows], exclude=rows))
            values = problem.program.values(problem.features(theta))
        seconds, found = [], []
        for oracle in (Simplex(), BranchAndBound(), Auto()):
            taken = []
            for _ in range(calls + 2):
                start = now()
                answer = oracle.best(problem.program, values, 3)
                taken.append(now() - start)
            seconds.append(median(taken[2:]))
            found.append(answer)
        apart = max(float((answer.objective - found[0].objective).abs().max()) for answer in found)
        figures = " ".join(f"{s:10.4f}" for s in seconds)
        print(f"portfolio-{assets}-{batch:<10d} {figures}  {found[-1].oracle}; {apart:.0e}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    parser.add_argument("--only", nargs="*", default=[], help="such as portfolio-60-100")
    parser.add_argument("--engines", nargs="*", default=["batched", "moreau"])
    parser.add_argument("--search", action="store_true", help="integer search on host and device")
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 400, 1600, 6400], help="of --search")
    parser.add_argument("--assets", type=int, default=800, help="of --search")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {name}, tolerance {arguments.tolerance:g}\n")
    if arguments.search:
        search(arguments.assets, arguments.batches, arguments.device, arguments.calls)
        return
    heads = ("forward", "backward", "steps", "not ok", "difference")
    print(
        f"{'programs':24s} {'engine':8s} "
        + " ".join(f"{h:>{w}s}" for h, w in zip(heads, (9, 9, 6, 6, 10), strict=True))
    )
    cases = [(portfolio, 60, 100), (portfolio, 60, 6400), (portfolio, 800, 100), (portfolio, 800, 1600)]
    cases += [(newsvendor, n, 100) for n in (50, 200, 800)]
    for make, size, batch in cases:
        label = f"{make.__name__}-{size}-{batch}"
        if arguments.only and label not in arguments.only:
            continue
        problem, theta = make(size, batch)
        theta = theta.to(arguments.device)
        for engine in arguments.engines:
            try:
                made = make_engine(engine)
                made = made.with_tolerance(arguments.tolerance)
                forward, backward, values, solution = timed(made, problem, theta, arguments.calls)
            except Exception as error:  # a peer that is missing or fails is a line of the table
                print(f"{label:24s} {engine:8s} {type(error).__name__}: {str(error).splitlines()[0][:90]}", flush=True)
                continue
            missing = int((~solution.ok).sum())
            gap = difference(problem, theta, values)
            steps = solution.iterations.double().mean()
            print(
                f"{label:24s} {engine:8s} {forward:9.4f} {backward:9.4f} {steps:6.1f} {missing:6d} {gap:10.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
