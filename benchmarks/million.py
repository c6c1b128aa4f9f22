"""What a million decisions cost: items a second of the layer without gradients, and memory; on a CPU or a GPU.

    python benchmarks/million.py --items 20000                  two cores: fewer items, scaled up
    python benchmarks/million.py --device cuda --items 200000   a GPU; the last column is the time for a million

The newsvendor of the paper (four items, each at retail or in a lot), its portfolio (60 assets, twelve of them in lots,
a bound each), and the shortest path through a 5x5 grid. θ is drawn around what is typical of data. Wall time of one
pass over all items, in batches, after two batches that compile, record and allocate.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers.problem import DecisionProblem

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rates import path

from research.problems import Newsvendor, Portfolio, PortfolioData


def drawn(problem: DecisionProblem, Y: Tensor, items: int) -> Tensor:
    """θ of many items: typical of outcomes, three tenths of its scale around that."""
    typical = problem.ambiguity.typical(Y).values()
    centre, scale = (torch.cat([getattr(t, name).reshape(-1) for t in typical]) for name in ("centre", "scale"))
    noise = torch.rand(items, centre.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return centre + 0.3 * scale * (2.0 * noise - 1.0)


def newsvendor(items: int) -> tuple[DecisionProblem, Tensor]:
    """Sets of full knowledge at contexts all over the unit interval."""
    shop = Newsvendor()
    return shop.problem, shop.full_knowledge(torch.linspace(0.0, 1.0, items, dtype=torch.float64).numpy()[:, None])


def portfolio(items: int) -> tuple[DecisionProblem, Tensor]:
    """60 assets."""
    problem = Portfolio(60, 12, 1).problem
    return problem, drawn(problem, torch.as_tensor(PortfolioData.generate(60, 1000).Y), items)


def shortest(items: int) -> tuple[DecisionProblem, Tensor]:
    """40 edges, whose costs differ by a few percent from those of the recipe."""
    problem, draw = path()
    return problem, drawn(problem, torch.as_tensor(draw(1000, np.random.default_rng(0))[1]), items)


def run(name: str, problem: DecisionProblem, theta: Tensor, batch: int, engine: str) -> None:
    """One line of the table."""
    layer, gpu = dro.DROLayer(problem, engine=engine).to(theta.device).eval(), theta.device.type == "cuda"
    with torch.no_grad():
        for part in theta.split(batch)[:2]:
            layer(part)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        failed = sum((~layer(part).ok).sum() for part in theta.split(batch))
        failed = int(failed)
    seconds = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rate = len(theta) / seconds
    print(
        f"{name:12s} {len(theta):9,d} {batch:7,d} {rate:12,.0f} {memory / 1e9:8.2f} {failed:7d} {1e6 / rate:12.1f}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--batch", type=int, help="items at a time; by default 512 on a CPU, 8,192 on a GPU")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", nargs="+", default=["newsvendor", "portfolio", "path"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    gpu = arguments.device == "cuda"
    batch, engine = arguments.batch or (8192 if gpu else 512), "batched" if gpu else "auto"
    print(f"{'':12s} {'items':>9s} {'batch':>7s} {'items/s':>12s} {'GB':>8s} {'failed':>7s} {'s a million':>12s}")
    for name, make in {"newsvendor": newsvendor, "portfolio": portfolio, "path": shortest}.items():
        if name in arguments.only:
            problem, theta = make(arguments.items)
            run(name, problem, theta.to(arguments.device), batch, engine)


if __name__ == "__main__":
    main()
