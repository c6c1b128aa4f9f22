"""Seconds to compile a newsvendor under both moments of the paper (SOC-III), and the sizes of the programs.

    python benchmarks/compile.py [items ...]

Expected on one core: under 2 s with 200 items, under 10 s with 800; sizes grow linearly.
"""

from __future__ import annotations

import sys
import time

import cvxpy as cp
import numpy as np

import drolayers as dro


def newsvendor(items: int) -> dro.DecisionProblem:
    """Retail and wholesale orders against demand with bounded l1 and squared deviations."""
    rng = np.random.default_rng(0)
    y = dro.Uncertain(items, dro.support.Nonnegative())
    retail, wholesale = cp.Variable(items, nonneg=True), cp.Variable(items, boolean=True)
    stock = retail + 2.0 * wholesale
    shortage, surplus = rng.uniform(2.0, 4.0, items), rng.uniform(0.2, 1.0, items)
    cost = cp.sum(retail) + 1.5 * cp.sum(wholesale)
    cost += cp.sum(cp.maximum(cp.multiply(shortage, y - stock), cp.multiply(surplus, stock - y)))
    return dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]))


def main(sizes: list[int]) -> None:
    """Print one line a size."""
    newsvendor(2)  # Imports and caches.
    print(f"{'items':>6} {'seconds':>8} {'rows':>8} {'columns':>8} {'non-zeros':>10} {'non-zeros/item':>15}")
    for items in sizes:
        start = time.perf_counter()
        program = newsvendor(items).program
        seconds = time.perf_counter() - start
        counts = f"{program.rows:>8} {program.columns:>8} {program.nonzeros:>10} {program.nonzeros / items:>15.1f}"
        print(f"{items:>6} {seconds:>8.2f} {counts}")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [50, 200, 800])
