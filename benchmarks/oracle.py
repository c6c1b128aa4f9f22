"""The T best integer decisions of a batch of mixed-integer portfolios, beside SCIP and Gurobi in the same run.

    python benchmarks/oracle.py            the whole table
    python benchmarks/oracle.py --quick    small sizes, fewer instances of the peers

Ours is timed on a batch, the peers on a few instances of that batch, all cores at work on different instances; for
them the table gives seconds for each instance. Peers exclude the points that they have found by cuts and solve again
(Gurobi also with its solution pool), at their own default tolerances, which favours them. Every objective compared is
that of a conic solve at the point returned.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch

from drolayers.conic import ConeProgram
from drolayers.conic.compile import compile_program
from drolayers.errors import DROError
from drolayers.integer import BranchAndBound, Candidates, Oracle
from drolayers.integer.gurobi import Gurobi
from drolayers.integer.scip import SCIP

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
        Peer("SCIP", SCIP(tolerance=1e-6, time_limit=limit), 200),
        Peer("Gurobi (cuts)", Gurobi(pool=False, tolerance=1e-6, time_limit=limit), 60),
        Peer("Gurobi (pool)", Gurobi(pool=True, tolerance=1e-6, time_limit=limit), 60),
    ]


def compare(ours: Candidates, theirs: Candidates) -> str:
    """How much worse the peer's certified objectives are at most, relative to ours (negative: better)."""
    valid = ours.valid[: len(theirs.valid)] & theirs.valid
    ratio = (theirs.objective - ours.objective[: len(theirs.valid)]) / ours.objective[: len(theirs.valid)].abs()
    return f"{float(ratio[valid].max()):+.0e}, {int(valid.sum())}/{theirs.valid.numel()}" if valid.any() else "none"


def run(assets: int, spread: bool, batch: int, instances: int, limit: float) -> None:
    """One size: ours on the batch (the best of three runs after one to warm up), peers on a few."""
    program, oracle = portfolio(assets, spread), BranchAndBound()
    theta = outputs(assets, batch, seed=assets)
    found = min((oracle.top(program, theta, COUNT) for _ in range(4)), key=lambda c: c.time)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    each = found.time / batch
    layout = "spread" if spread else "first"
    print(
        f"| {assets} | {assets // 5} {layout} | {found.time:.2f} | {int(found.nodes.sum())} | {found.rounds} | "
        f"{found.relaxations} | {int((found.status == 0).sum())} | {memory:.1f} |",
        end="",
    )
    for peer in peers(limit):
        if assets > peer.largest:
            print(" - |", end="", flush=True)
            continue
        few = theta[: instances if assets <= 60 else 2]
        try:
            peer.oracle.top(program, few[:2], 1)  # starts the worker processes
            start = time.perf_counter()
            theirs = peer.oracle.top(program, few, COUNT)
            taken = (time.perf_counter() - start) / len(few)
            proven = int((theirs.status == 0).sum())
            note = "" if proven == len(few) else f", {proven}/{len(few)} proven"
            print(f" {taken:.3f} s = {taken / each:.0f}x ({compare(found, theirs)}{note}) |", end="", flush=True)
        except DROError as error:
            print(f" {type(error).__name__} |", end="", flush=True)
    print(flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer instances")
    quick = parser.parse_args().quick
    sizes = [(20, False), (60, False), (60, True)]
    if not quick:
        sizes += [(100, False), (100, True), (200, False), (200, True), (400, False), (800, False)]
    batch, instances, limit = (20, 2, 20.0) if quick else (100, 6, 60.0)
    names = " | ".join(f"{p.name}, an instance" for p in peers(limit))
    print(f"batch of {batch}, T = {COUNT}, {torch.get_num_threads()} threads")
    print(f"| assets | binaries | batch, s | nodes | rounds | solves | proven | peak GB | {names} |")
    print("|" + "---|" * (8 + len(peers(limit))))
    for assets, spread in sizes:
        run(assets, spread, batch, instances, limit)


if __name__ == "__main__":
    main()
