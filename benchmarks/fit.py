"""What the comparison of a default fit costs: its processor time beside that of a single training.

    python benchmarks/fit.py                   eighteen fits, each both ways in turn: about fifteen minutes on one core
    python benchmarks/fit.py --quick           small data alone

A single training is ``Trainer(budget=0)``: one first training, one second, nothing compared and nothing left out. A
ratio below one is a fit that left its long training out. Both sides are of one run, one thread, in turn, twice; the
smaller of both times counts. Costs of PyEPO's problems are affine in what is uncertain, where a training may be left
out; the newsvendor's are not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import cvxpy as cp
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import drolayers as dro
from research.proving import pyepo

TWICE = 2


def newsvendor(points: int, lots: bool) -> tuple[dro.DecisionProblem, np.ndarray, np.ndarray]:
    """Four goods, bought singly or in lots: the README's."""
    price, lot = np.array([0.25, 0.5, 0.75, 1.0]), np.array([10.0, 13.0, 16.0, 19.0])
    short, hold = np.array([2.0, 4.0, 6.0, 8.0]), np.array([0.5, 1.0, 1.5, 2.0])
    y = dro.Uncertain(4, support=dro.support.Nonnegative())
    retail, wholesale = cp.Variable(4, nonneg=True), cp.Variable(4, boolean=True)
    stock, cost = retail, price @ retail
    if lots:
        stock, cost = stock + cp.multiply(lot, wholesale), cost + (0.95 * price * lot) @ wholesale
    cost += cp.sum(cp.maximum(cp.multiply(short, y - stock), cp.multiply(hold, stock - y)))
    sets = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(points, 1))
    return dro.DecisionProblem(cost, [], sets), Z, 12.0 + 4.0 * Z + rng.standard_normal((points, 4))


def fits(quick: bool) -> Iterator[tuple[str, dro.DecisionProblem, np.ndarray, np.ndarray]]:
    """What is fitted: a name, a problem and data."""
    for points in (60,) if quick else (60, 150, 500):
        for lots in (True, False):
            yield f"newsvendor{', lots' if lots else ''}, {points}", *newsvendor(points, lots)
    for points in (100,) if quick else (100, 1000):
        for problem in pyepo.PROBLEMS:
            for degree in (1, 6):
                drawn = pyepo.draw(problem, degree, points, 0.5, seed=10)
                parts = zip(drawn.training, drawn.validation, strict=True)
                yield f"{problem}, degree {degree}, {points}", drawn.problem, *(np.concatenate(part) for part in parts)


def seconds(problem: dro.DecisionProblem, Z: np.ndarray, Y: np.ndarray, **trainer: float) -> float:
    """Processor time of one fit."""
    begun = time.process_time()
    dro.DecisionFocusedLearner(problem, trainer=dro.Trainer(progress=False, **trainer)).fit(Z, Y)
    return time.process_time() - begun


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    seconds(*newsvendor(20, lots=True))  # what is compiled once is not counted
    print("| fit, points | default | single training | ratio |\n|---|---|---|---|")
    ratios = []
    for name, problem, Z, Y in fits(quick):
        both = [(seconds(problem, Z, Y), seconds(problem, Z, Y, budget=0.0)) for _ in range(TWICE)]
        ours, single = (min(side) for side in zip(*both, strict=True))
        ratios.append(ours / single)
        print(f"| {name} | {ours:.1f} s | {single:.1f} s | {ours / single:.2f} |", flush=True)
    print(f"\nThe largest ratio is {max(ratios):.2f}.")


if __name__ == "__main__":
    main()
