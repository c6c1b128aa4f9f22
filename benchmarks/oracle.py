"""The T best integer decisions of a batch of mixed-integer portfolios, beside SCIP and Gurobi in the same run.

    python benchmarks/oracle.py            the whole table
    python benchmarks/oracle.py --quick    small sizes, fewer instances of the peers
    python benchmarks/oracle.py --linear   plain combinatorial problems instead: all oracles on one batch

Ours is timed on a batch, the peers on a few instances of that batch; the table gives processor time (all threads) for
each instance, which other work on the machine disturbs little, and for ours also the wall time of the batch (the best
of a few runs; the solver has its own threads, torch is given one). Peers exclude the points that they have found by
cuts and solve again (Gurobi also with its solution pool). SCIP runs at its default tolerance, which favours it but is
too coarse for returns, and at 1e-7; Gurobi at its default. Every objective compared is that of a conic solve at the
point returned: the figures in brackets are the peer's largest excess over ours, and how many points it returned.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch

from conelayers import ConeProgram, compile_program
from conelayers.errors import LayerError
from conelayers.oracles import SCIP, Auto, BranchAndBound, Candidates, Gurobi, HiGHS, Oracle

COUNT = 3
GROUP = 4


def portfolio(assets: int, spread: bool) -> ConeProgram:
    """n assets in groups of four, a fifth of them in lots of 1/n: the first ones, or one or so of every group."""
    lots, held = cp.Variable(assets // 5, boolean=True), cp.Variable(assets - assets // 5, nonneg=True)
    size = np.full(assets // 5, 1.0 / assets)
    x = cp.hstack([cp.multiply(size, lots), held])
    if spread:
        x = x[np.random.default_rng(0).permutation(assets)]
    mu, root = cp.Parameter(assets), cp.Parameter(assets // GROUP, nonneg=True)
    t = cp.Variable(assets // GROUP)
    cones = cp.SOC(t, cp.reshape(x, (GROUP, assets // GROUP), order="F"), axis=0)
    problem = cp.Problem(cp.Minimize(root @ t - mu @ x), [cp.sum(held) + size @ lots == 1, cones])
    return compile_program(problem, [mu, root])


def outputs(assets: int, batch: int, seed: int) -> torch.Tensor:
    """What a network would predict at the scale of returns: means of about 1e-2, deviations of about 5e-2."""
    rng = np.random.default_rng(seed)
    mu = 1e-2 * rng.standard_normal((batch, assets))
    variance = (5e-2 * np.exp(0.3 * rng.standard_normal((batch, assets)))) ** 2
    return torch.from_numpy(np.concatenate([mu, np.sqrt(variance.reshape(batch, -1, GROUP).sum(2))], 1))


@dataclass(frozen=True)
class Peer:
    """An oracle to compare with, and how many instances it is given."""

    name: str
    oracle: Oracle
    largest: int


def peers(limit: float) -> list[Peer]:
    """SCIP and Gurobi, both ways; the free licence of Gurobi ends before 100 assets."""
    return [
        Peer("SCIP", SCIP(tolerance=1e-6, time_limit=limit, jobs=1), 200),
        Peer("SCIP at 1e-7", SCIP(time_limit=limit, jobs=1), 100),
        Peer("Gurobi (cuts)", Gurobi(pool=False, tolerance=1e-6, time_limit=limit, jobs=1), 60),
        Peer("Gurobi (pool)", Gurobi(pool=True, tolerance=1e-6, time_limit=limit, jobs=1), 60),
    ]


def compare(ours: Candidates, theirs: Candidates) -> str:
    """How much worse the peer's certified objectives are at most, relative to ours (negative: better)."""
    valid = ours.valid[: len(theirs.valid)] & theirs.valid
    ratio = (theirs.objective - ours.objective[: len(theirs.valid)]) / ours.objective[: len(theirs.valid)].abs()
    return f"{float(ratio[valid].max()):+.0e}, {int(valid.sum())}/{theirs.valid.numel()}" if valid.any() else "none"


def timed(oracle: Oracle, program: ConeProgram, theta: torch.Tensor) -> tuple[Candidates, float]:
    """Candidates, and the processor time that they took."""
    start = time.process_time()
    found = oracle.best(program, program.values(theta), COUNT)
    return found, time.process_time() - start


def run(assets: int, spread: bool, batch: int, instances: int, limit: float) -> None:
    """One size: ours on the batch (the best of a few runs after one to warm up), peers on a few."""
    program, oracle = portfolio(assets, spread), BranchAndBound()
    theta = outputs(assets, batch, seed=assets)
    runs = [timed(oracle, program, theta) for _ in range(8 if assets <= 100 else 4)][1:]
    found, wall = runs[0][0], min(c.time for c, _ in runs)
    each = min(processor for _, processor in runs) / batch
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    layout = "spread" if spread else "first"
    print(
        f"| {assets} | {assets // 5} {layout} | {wall:.2f} s | {1e3 * each:.1f} ms | {int(found.nodes.sum())} | "
        f"{found.rounds} | {found.relaxations} | {int((found.status == 0).sum())} | {memory:.1f} |",
        end="",
        flush=True,
    )
    for peer in peers(limit):
        if assets > peer.largest:
            print(" - |", end="", flush=True)
            continue
        few = theta[: instances if assets <= 60 else 2]
        try:
            theirs, processor = timed(peer.oracle, program, few)
        except LayerError as error:
            print(f" {type(error).__name__} |", end="", flush=True)
            continue
        taken, proven = processor / len(few), int((theirs.status == 0).sum())
        note = "" if proven == len(few) else f", {proven}/{len(few)} proven"
        print(f" {1e3 * taken:.0f} ms = {taken / each:.0f}x ({compare(found, theirs)}{note}) |", end="", flush=True)
    print(flush=True)


def path(side: int = 5) -> tuple[ConeProgram, int]:
    """The shortest path through a grid, and how many costs it has."""
    node = np.arange(side * side).reshape(side, side)
    tail = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    head = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    flow = (node.reshape(-1, 1) == tail) * 1.0 - (node.reshape(-1, 1) == head)
    x, cost, ends = cp.Variable(tail.size, boolean=True), cp.Parameter(tail.size), np.zeros(side * side)
    ends[0], ends[-1] = 1.0, -1.0
    return compile_program(cp.Problem(cp.Minimize(cost @ x), [flow @ x == ends]), [cost]), tail.size


def knapsack(items: int = 32, rows: int = 2) -> tuple[ConeProgram, int]:
    """Items with several weights, of which two fifths fit in."""
    weight = np.random.default_rng(0).uniform(1.0, 3.0, (rows, items))
    x, worth = cp.Variable(items, boolean=True), cp.Parameter(items)
    problem = cp.Problem(cp.Minimize(-worth @ x), [weight @ x <= 0.4 * weight.sum(1)])
    return compile_program(problem, [worth]), items


def linear(batch: int = 32, repeats: int = 3) -> None:
    """Plain combinatorial problems: every oracle on the whole batch, after one of two items, the best of a few runs.

    What takes more than five seconds is run once. Ours uses one core, the solvers of others as many as are said.
    """
    every = os.cpu_count() or 1
    oracles: list[tuple[str, Oracle, int]] = [
        ("", Auto(), 1),
        ("", BranchAndBound(time_limit=10.0), 1),
        *((", pool", Gurobi(pool=True, jobs=n), n) for n in (1, every)),
        (", cuts", Gurobi(pool=False, jobs=every), every),
        ("", SCIP(jobs=every), every),
        ("", HiGHS(jobs=every), every),
    ]
    problems = {
        "shortest path, 5x5": path(),
        "shortest path, 12x12": path(12),
        "knapsack, 32 items, 2 rows": knapsack(),
        "knapsack, 48 items, 3 rows": knapsack(48, 3),
        "the same, whole worths": knapsack(48, 3),
        "the first, worths nearly alike": knapsack(),
    }
    print(f"batch of {batch}, T = {COUNT}\n")
    print(
        "| problem | oracle | cores | batch, wall | each, processor | nodes | solves | proven | excess over the first |"
    )
    print("|" + "---|" * 9)
    for name, (program, size) in problems.items():
        theta = torch.from_numpy(np.random.default_rng(1).uniform(1.0, 3.0, (batch, size)))
        theta = (5.0 * theta).ceil() if "whole" in name else 2.0 + 0.02 * theta if "alike" in name else theta
        first: Candidates | None = None
        for way, oracle, cores in oracles:
            timed(oracle, program, theta[:2])
            runs = [timed(oracle, program, theta)]
            while len(runs) < repeats and sum(c.time for c, _ in runs) < 5.0:
                runs.append(timed(oracle, program, theta))
            found = runs[0][0]
            first = first or found
            # Jobs on several cores are processes of their own.
            processor = f"{1e3 * min(p for _, p in runs) / batch:.2f} ms" if cores == 1 else ""
            print(
                f"| {name} | `{found.oracle}`{way} | {cores} | {min(c.time for c, _ in runs):.3f} s | {processor} | "
                f"{int(found.nodes.sum()) or ''} | {found.relaxations} | {int((found.status == 0).sum())} | "
                f"{compare(first, found)} |",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer instances")
    parser.add_argument("--linear", action="store_true", help="plain combinatorial problems instead of portfolios")
    chosen = parser.parse_args()
    quick = chosen.quick
    torch.set_num_threads(1)
    if chosen.linear:
        linear()
        return
    sizes = [(20, False), (60, False), (60, True)]
    if not quick:
        sizes += [(100, False), (100, True), (200, False), (200, True), (400, False), (800, False)]
    batch, instances, limit = (20, 2, 20.0) if quick else (100, 6, 60.0)
    names = " | ".join(p.name for p in peers(limit))
    print(f"batch of {batch}, T = {COUNT}, {os.cpu_count()} cores\n")
    print(
        f"| assets | binaries | batch, wall | each, processor | nodes | rounds | solves | proven | peak GB | {names} |"
    )
    print("|" + "---|" * (9 + len(peers(limit))))
    for assets, spread in sizes:
        run(assets, spread, batch, instances, limit)


if __name__ == "__main__":
    main()
