"""A random sweep of linear integer programs: what our search finds against HiGHS, point by point.

Programs are drawn so that many searches are long: integers that are worth nearly the same, packed and covered, with
ranges beyond zero and one, columns that are worth nothing, continuous columns beside them, equations, coefficients
whose sums meet a bound exactly, and units from 1e-3 to 1e3.

    python benchmarks/sweep_integer.py [--programs 200] [--seed 0] [--items 4] [--count 3]

What is counted: searches with and without a row for how many integers can be had (``integer/partition.py``), those that
agree (values of all points to 1e-6), that are wrong while they say OPTIMAL, and that are flagged.
"""

from __future__ import annotations

import argparse
from collections import Counter

import cvxpy as cp
import numpy as np
import torch

from drolayers.conic import ConeProgram
from drolayers.conic.compile import compile_program
from drolayers.integer import HiGHS, Simplex
from drolayers.integer.partition import FIRST
from drolayers.status import Status

WRONG = 1e-6
"""Relative error from which a value is wrong."""


def stranger(seed: int, items: int) -> tuple[ConeProgram, torch.Tensor, str]:
    """A program, its parameters by items, and how it would be drawn again."""
    rng = np.random.default_rng(seed)
    k, m = int(rng.integers(8, 26)), int(rng.integers(1, 4))
    top = int(rng.choice([1, 1, 1, 2, 5]))
    low = int(rng.choice([0, 0, 0, -1]))
    sign, whole, unit = rng.choice([1.0, -1.0]), bool(rng.uniform() < 0.4), 10.0 ** rng.integers(-3, 4)
    weight = rng.integers(2, 9, (m, k)) * 1.0 if whole else rng.uniform(3, 8, (m, k))
    worth, price, room = cp.Parameter(k), cp.Parameter(2), cp.Parameter(m)
    x = cp.Variable(k, integer=True, bounds=[np.full(k, low), np.full(k, top)])
    held, cost = weight @ x, -sign * worth @ x
    rows = []
    if mixed := bool(rng.uniform() < 0.5):
        # A little more room, or a little less to be had, for a price.
        extra = cp.Variable(2, nonneg=True)
        held, cost = held - sign * extra[0], cost + price @ extra
        rows += [extra <= unit * rng.uniform(0.1, 3, 2), sum(extra) >= unit * 0.05]
    if equal := bool(rng.uniform() < 0.2):
        rows.append(x[0] + x[1] - x[2] == low)
    rows.append(sign * unit * held <= sign * unit * room)
    spread = float(rng.choice([0.0, 0.01, 0.05, 0.5]))
    prices = 1.0 + spread * rng.standard_normal((items, k))
    prices[:, rng.uniform(size=k) < 0.1] = 0.0
    if rng.uniform() < 0.2:
        prices *= rng.choice([-1.0, 1.0], k)
    rooms = weight.sum(1) * (low + (top - low) * rng.uniform(0.2, 0.7, (items, 1)))
    theta = np.concatenate([prices, rng.uniform(0.01, 1.5, (items, 2)), np.floor(rooms) if whole else rooms], 1)
    parameters = [worth, price, room] if mixed else [worth, room]
    theta = theta if mixed else np.delete(theta, [k, k + 1], 1)
    scale = 10.0 ** rng.integers(-3, 4)
    theta[:, :k] *= scale
    if mixed:
        theta[:, k : k + 2] *= scale
    told = (
        f"seed {seed}: {k} integers from {low} to {top}, {m} rows, {unit=:g}, {scale=:g}, {sign=:g}, {mixed=}, {equal=}"
    )
    return compile_program(cp.Problem(cp.Minimize(cost), rows), parameters), torch.from_numpy(theta), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--count", type=int, default=3)
    asked = parser.parse_args()
    told: Counter[tuple[str, str]] = Counter()
    for seed in range(asked.seed * 100_000, asked.seed * 100_000 + asked.programs):
        program, theta, words = stranger(seed, asked.items)
        values = program.values(theta)
        ours = Simplex().best(program, values, asked.count)
        truth = HiGHS(jobs=1).best(program, values, asked.count)
        for item in range(asked.items):
            kind = "long" if int(ours.nodes[item]) > FIRST else "short"
            statuses = [Status(int(found.status[item])).name for found in (ours, truth)]
            if statuses[1] not in ("OPTIMAL", "INFEASIBLE"):
                told[kind, "no reference"] += 1
                continue
            if statuses[0] != statuses[1]:
                wrong = statuses[0] in ("OPTIMAL", "INFEASIBLE")
                told[kind, "WRONG" if wrong else "flagged"] += 1
                print(f"{words}; item {item}: {statuses[0]}, HiGHS {statuses[1]}")
                continue
            valid = ours.valid[item], truth.valid[item]
            mine, theirs = (found.objective[item][found.valid[item]] for found in (ours, truth))
            size = float(theta[item].abs().max()) if mine.numel() else 1.0
            same = torch.equal(*valid) and bool(((mine - theirs).abs() <= WRONG * (size + theirs.abs())).all())
            told[kind, "right" if same else "WRONG"] += 1
            if not same:
                print(f"{words}; item {item}: {mine.tolist()}, HiGHS {theirs.tolist()}")
    for (kind, word), count in sorted(told.items()):
        print(f"{kind:6s} {word:13s} {count}")


if __name__ == "__main__":
    main()
