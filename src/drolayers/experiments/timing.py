"""Table 3: wall time of one training step, stage by stage, for a batch of 100 and T = S = 1.

The paper's stages: the learning layer, the projection layer, the integer search, the DRO layer, and the backward pass
through all of them. Its seconds are from its own machine, so the ratio says what a user gains, not what a line of code
does; peers that run on the same machine are in the benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from drolayers.experiments.learn import known, seed_range, settings_of
from drolayers.experiments.task import Outcome, Task, row
from drolayers.layer import DROLayer
from drolayers.learning import DecisionFocusedLearner
from drolayers.learning.module import Pipeline
from drolayers.nominal import KNN
from drolayers.problems import Portfolio, PortfolioData
from drolayers.surrogate import Energy

ASSETS = (100, 200, 400, 800)
STAGES = ("learning", "projection", "integer", "layer", "backward")
PAPER = {
    100: (0.001, 16.5, 8.4, 1.2, 9.8),
    200: (0.001, 19.6, 12.8, 1.4, 13.1),
    400: (0.001, 44.0, 24.1, 5.8, 90.5),
    800: (0.001, 82.9, 47.6, 15.3, 358.7),
}
"""Seconds by number of assets; the learning layer is given as below a millisecond."""
STEPS = 5


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Every number of assets, whatever the protocol: three runs at most."""
    runs = seed_range(seeds)[:3]
    return [
        Task("time", protocol, "sets", (("assets", assets),), seed, mark)
        for protocol, mark in known("time", quick, ("paper",)).items()
        for assets in (ASSETS[:2] if quick else ASSETS)
        for seed in runs
    ]


def run(task: Task, work: Path) -> Outcome:
    """Pre-train briefly, so that sets are as in training, then time steps and take the median of each stage."""
    settings = settings_of(task)
    assets, batch = int(task.columns["assets"]), int(settings.learner["batch_size"])
    built = Portfolio(assets, assets // 5)
    data = PortfolioData.generate(assets, 1000)
    nominal = KNN(k=settings.k(len(data.Z)))
    learner = DecisionFocusedLearner(
        built.problem, None, nominal, "prediction", task.seed, pretrain_epochs=4, batch_size=batch, progress=False
    ).fit(data.Z, data.Y, validation=(data.Z[:1], data.Y[:1]))
    pipeline = learner.pipeline_
    layer = DROLayer(
        built.problem,
        candidates=int(settings.learner["candidates"]),
        samples=int(settings.learner["samples"]),
        temperature=10.0,
        proposal=Energy(),
        enumerate_up_to=0,
        gradient=pipeline.layer.gradient,
        seed=task.seed,
    )
    pipeline = Pipeline(pipeline.model, pipeline.nominal, pipeline.projection, layer).train()
    Z, Y = torch.as_tensor(data.Z), torch.as_tensor(data.Y)
    # The first step compiles and allocates.
    seconds = [_step(pipeline, Z, Y, torch.arange(batch) + batch * (k % 10)) for k in range(STEPS + 1)][1:]
    stages = {name: median(step[name] for step in seconds) for name in STAGES}
    rows = [row("drolayers", name, value) for name, value in stages.items()]
    return Outcome([*rows, row("drolayers", "all", sum(stages.values()))])


def _step(pipeline: Pipeline, Z: torch.Tensor, Y: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Seconds of one step by stage."""
    assert pipeline.projection is not None
    problem, clock = pipeline.layer.problem, [time.perf_counter()]
    raw = pipeline.model(Z[rows])
    clock.append(time.perf_counter())
    nominal = pipeline.around(Z[rows], rows)
    assert nominal is not None
    theta = pipeline.projection(raw, nominal)
    clock.append(time.perf_counter())
    decision = pipeline.layer(theta, nominal)
    loss = decision.expected(lambda x: problem.loss(x, Y[rows])).mean()
    clock.append(time.perf_counter())
    loss.backward()
    clock.append(time.perf_counter())
    integer = decision.oracle.time if decision.oracle is not None else 0.0
    learning, projection, layer, backward = (b - a for a, b in pairwise(clock))
    return dict(zip(STAGES, (learning, projection, integer, layer - integer, backward), strict=True))
