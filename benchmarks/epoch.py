"""One epoch of the mixed-integer portfolio by stage, beside the paper's pipeline on a part of one batch.

    python benchmarks/epoch.py            60 assets, 12 of them in lots, 2,500 points, batches of 100, T = 3, S = 4
    python benchmarks/epoch.py --quick    two batches of ours, two items of the peer
    python benchmarks/epoch.py --wall     wall time, for an idle machine

Stages are the paper's: the learning layer, the projection layer, the T best integer decisions, the DRO layer; and the
backward pass through all of them. The paper's pipeline is cvxpylayers with its default solver for the projection (the
published objective, 5‖μ - μ'‖ + ‖σ - σ'‖) and for the DRO layer (the dual as the paper writes it out, at S points an
item), and SCIP with no-good cuts at its default tolerance on the same dual. It is given a few items of a batch in the
same run, and its time is scaled up to 100. Its learning layer is taken to cost what ours does. Processor time of all
threads, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

import drolayers as dro
from drolayers.conic.compile import compile_program
from drolayers.integer import BranchAndBound
from drolayers.integer.scip import SCIP
from drolayers.learning.data import SeededBatches
from drolayers.learning.module import Pipeline
from drolayers.problems import Portfolio, PortfolioData

ASSETS, POINTS, BATCH, CANDIDATES, SAMPLES, NEIGHBOURS = 60, 2500, 100, 3, 4, 20
LOTS = ASSETS // 5
STAGES = ("learning", "projection", "integer", "layer", "backward")


class Stopwatch:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.seconds = clock, dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Any:
        """Add what happens inside to a stage."""
        start = self.clock()
        yield
        self.seconds[name] += self.clock() - start


class TimedOracle:
    """Our oracle, under the stopwatch."""

    def __init__(self, watch: Stopwatch) -> None:
        self.inner, self.watch = BranchAndBound(), watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def top_values(self, *arguments: Any) -> Any:
        """The T best points."""
        with self.watch.stage("integer"):
            return self.inner.top_values(*arguments)


def ours(pipeline: Pipeline, data: PortfolioData, batches: int | None, watch: Stopwatch) -> tuple[int, int]:
    """An epoch as the learner runs it; returns the numbers of steps and of items without a decision."""
    optimiser = torch.optim.Adam(pipeline.model.parameters(), lr=1e-4)
    problem = pipeline.layer.problem
    Z, Y = torch.as_tensor(data.Z), torch.as_tensor(data.Y)
    steps = masked = 0
    for rows in SeededBatches(POINTS, BATCH, seed=0):
        if steps == batches:
            break
        optimiser.zero_grad()
        with watch.stage("learning"):
            raw = pipeline.model(Z[rows])
        with watch.stage("projection"):
            nominal = pipeline.around(Z[rows], torch.tensor(rows))
            theta = pipeline.projection(raw, nominal)
        before = watch.seconds["integer"]
        with watch.stage("layer"):
            decision = pipeline.layer(theta, nominal)
            loss, count = decision.mean(lambda x, rows=rows: problem.loss(x, Y[rows]))
        watch.seconds["layer"] -= watch.seconds["integer"] - before
        with watch.stage("backward"):
            loss.backward()
        with watch.stage("learning"):
            optimiser.step()
        steps, masked = steps + 1, masked + len(rows) - count
    return steps, masked


def published_projection() -> CvxpyLayer:
    """The projection layer of the published portfolio."""
    mu, sigma = cp.Variable(ASSETS), cp.Variable(ASSETS)
    mu0, sigma0, atoms = cp.Parameter(ASSETS), cp.Parameter(ASSETS), cp.Parameter((NEIGHBOURS, ASSETS))
    deviation = atoms - np.ones((NEIGHBOURS, 1)) @ cp.reshape(mu, (1, ASSETS), order="C")
    constraints = [cp.sum(cp.square(deviation), axis=0) / NEIGHBOURS <= sigma]
    objective = cp.Minimize(5 * cp.norm(mu - mu0) + cp.norm(sigma - sigma0))
    return CvxpyLayer(cp.Problem(objective, constraints), parameters=[mu0, sigma0, atoms], variables=[mu, sigma])


def written_out(lots: Any, free: cp.Variable, mu: cp.Parameter, sigma: cp.Parameter) -> cp.Problem:
    """The dual as the paper writes it: (yᵢ - μᵢ)² ≤ uᵢ is (uᵢ + 1, uᵢ - 1, 2yᵢ - 2μᵢ) in a cone, with multiplier η."""
    x = cp.hstack([lots / ASSETS, free])
    r, beta = cp.Variable(), cp.Variable(ASSETS, nonneg=True)
    eta = [cp.Variable(ASSETS) for _ in range(3)]
    constraints = [
        r >= cp.sum(eta[0] - eta[1]) - 2 * (mu @ eta[2]),
        2 * eta[2] == x,
        eta[0] + eta[1] == beta,
        cp.SOC(eta[0], cp.vstack(eta[1:]), axis=0),
        cp.sum(x) == 1,
    ]
    return cp.Problem(cp.Minimize(r + sigma @ beta), constraints)


def theirs(raw: Tensor, atoms: Tensor, returns: Tensor, watch: Stopwatch) -> None:
    """The paper's pipeline on a few items."""
    items = len(raw)
    layer = published_projection()
    free = cp.Variable(ASSETS - LOTS, nonneg=True)
    mu, sigma, fixed = cp.Parameter(ASSETS), cp.Parameter(ASSETS, nonneg=True), cp.Parameter(LOTS)
    dro_layer = CvxpyLayer(written_out(fixed, free, mu, sigma), parameters=[fixed, mu, sigma], variables=[free])
    micp = compile_program(written_out(cp.Variable(LOTS, boolean=True), free, mu, sigma), [mu, sigma])
    oracle, rng = SCIP(tolerance=1e-6, jobs=1), np.random.default_rng(0)

    raw = raw.detach().requires_grad_(True)
    with watch.stage("projection"):
        means, bounds = layer(raw[:, :ASSETS], raw[:, ASSETS:], atoms)
    with watch.stage("integer"):
        found = oracle.top(micp, torch.cat([means, bounds.clamp(min=0)], 1).detach(), CANDIDATES)
    # Four draws an item, half of them among the best: which ones makes no difference to the time.
    points = torch.as_tensor(rng.integers(0, 2, (items, SAMPLES, LOTS)), dtype=torch.float64)
    points[:, :2] = found.points[:, :2]
    with watch.stage("layer"):
        index = torch.arange(items).repeat_interleave(SAMPLES)
        (held,) = dro_layer(points.reshape(-1, LOTS), means[index], bounds[index].clamp(min=1e-12))
        loss = -(held * returns[index, LOTS:]).sum()
    with watch.stage("backward"):
        loss.backward()


def main() -> None:
    """Train a little, then time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two batches, two items of the peer")
    parser.add_argument("--wall", action="store_true", help="wall time instead of processor time")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.wall else time.process_time
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    data = PortfolioData.generate(ASSETS, POINTS)
    portfolio = Portfolio(ASSETS, LOTS)
    learner = dro.DecisionFocusedLearner(
        portfolio.problem, None, dro.nominal.KNN(NEIGHBOURS), "prediction", pretrain_epochs=4, batch_size=BATCH,
        progress=False,
    )  # fmt: skip
    pipeline = learner.fit(data.Z, data.Y, validation=(data.Z[:1], data.Y[:1])).pipeline_
    mine, peer, warm = Stopwatch(clock), Stopwatch(clock), Stopwatch(clock)
    layer = dro.DROLayer(
        portfolio.problem,
        candidates=CANDIDATES,
        samples=SAMPLES,
        gradient=learner.pipeline_.layer.gradient,
        oracle=TimedOracle(mine),
    )
    pipeline.layer = layer
    pipeline.train()
    items = 2 if arguments.quick else 5
    with torch.no_grad():
        raw = pipeline.model(torch.as_tensor(data.Z[:items]))
        atoms, _ = pipeline.around(torch.as_tensor(data.Z[:items]), torch.arange(items))
    theirs(raw, atoms, torch.as_tensor(data.Y[:items]), peer)

    ours(pipeline, data, 1, warm)
    mine.seconds = dict.fromkeys(STAGES, 0.0)
    steps, masked = ours(pipeline, data, 2 if arguments.quick else None, mine)

    kind = "wall" if arguments.wall else "processor"
    print(f"{steps} batches of {BATCH}, {masked} items without a decision; peer: {items} items; {kind} seconds")
    print("| stage | an epoch | a batch | the paper's pipeline, a batch | ratio |\n|---|---|---|---|---|")
    mine_batch = {name: seconds / steps for name, seconds in mine.seconds.items()}
    peer_batch = {name: seconds * BATCH / items for name, seconds in peer.seconds.items()}
    peer_batch["learning"] = mine_batch["learning"]
    rows = [(name, mine_batch[name], peer_batch[name]) for name in STAGES]
    rows.append(("all", sum(mine_batch.values()), sum(peer_batch.values())))
    for name, own, other in rows:
        epoch = own * POINTS / BATCH
        print(f"| {name} | {epoch:.2f} | {own:.4f} | {other:.3f} | {other / own:,.0f} |")


if __name__ == "__main__":
    main()
