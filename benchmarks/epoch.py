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
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from paper_pipeline import STAGES, Stopwatch, run_paper_pipeline

import drolayers as dro
from conelayers.oracles import BranchAndBound
from drolayers.learning.data import SeededBatches
from drolayers.learning.pipeline import Pipeline

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from research.problems import Portfolio, PortfolioData

ASSETS, POINTS, BATCH, CANDIDATES, SAMPLES, NEIGHBOURS = 60, 2500, 100, 3, 4, 20
LOTS = ASSETS // 5


class TimedOracle:
    """Our oracle, under the stopwatch."""

    def __init__(self, watch: Stopwatch) -> None:
        self.inner, self.watch, self.name = BranchAndBound(), watch, "timed"

    def best(self, *arguments: Any) -> Any:
        """The T best points."""
        with self.watch.stage("integer"):
            return self.inner.best(*arguments)


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
        stages = pipeline.stages(Z[rows], torch.tensor(rows))
        for stage in ("learning", "projection"):
            with watch.stage(stage):
                next(stages)
        before = watch.seconds["integer"]
        with watch.stage("layer"):
            decision = next(stages)
            loss, count = decision.mean(lambda x, rows=rows: problem.loss(x, Y[rows]))
        watch.seconds["layer"] -= watch.seconds["integer"] - before
        with watch.stage("backward"):
            loss.backward()
        with watch.stage("learning"):
            optimiser.step()
        steps, masked = steps + 1, masked + len(rows) - count
    return steps, masked


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
        portfolio.problem,
        nominal=dro.nominal.KNN(NEIGHBOURS),
        pretraining=dro.Stage(epochs=4, rate=1e-2, batch_size=BATCH),
        training=None,
        trainer=dro.Trainer(progress=False),
    )
    pipeline = learner.fit(data.Z, data.Y, validation=(data.Z[:1], data.Y[:1])).pipeline_
    mine, peer, warm = Stopwatch(clock), Stopwatch(clock), Stopwatch(clock)
    layer = dro.DROLayer(
        portfolio.problem,
        candidates=CANDIDATES,
        samples=SAMPLES,
        gradient="smoothed",
        oracle=TimedOracle(mine),
    )
    pipeline.layer = layer
    pipeline.train()
    items = 2 if arguments.quick else 5
    with torch.no_grad():
        raw = pipeline.model(torch.as_tensor(data.Z[:items]))
        atoms, _ = pipeline.around(torch.as_tensor(data.Z[:items]), torch.arange(items))
    returns = torch.as_tensor(data.Y[:items])
    run_paper_pipeline(raw, atoms, returns, peer, candidates=CANDIDATES, samples=SAMPLES)

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
