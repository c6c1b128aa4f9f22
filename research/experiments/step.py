"""One training step of the mixed-integer portfolio, stage by stage, on a CPU or a GPU.

The paper's stages: the learning layer, the projection layer, the T best integer decisions, the DRO layer at the points
of the sample, and the backward pass through all of them.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conelayers.surrogate.proposal import Energy
from drolayers.layer import DROLayer
from drolayers.learning.pipeline import STAGES, Pipeline, timed
from drolayers.nominal import KNN
from drolayers.projection import Projection
from research.problems import Portfolio, PortfolioData

POINTS = 1000


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by stage.

    Attributes:
        assets: number of assets, a fifth of them in lots.
        group: assets that share a bound.
        seconds: by stage, the median over steps.
        masked: items without a decision, over all steps.
        memory: peak memory in bytes, of the GPU or of the process.
    """

    assets: int
    group: int
    seconds: dict[str, float]
    masked: int
    memory: int

    @property
    def total(self) -> float:
        """All stages together."""
        return sum(self.seconds.values())


class Step:
    """A portfolio with its data, a small model, projection and layer, ready to be trained.

    Args:
        assets: number of assets, a fifth of them in lots.
        group: assets that share a bound.
        batch: items a step.
        candidates: T.
        samples: S.
        device: where everything runs.
        engine: of the layer.
        seed: of the model and the draws.
    """

    def __init__(
        self,
        assets: int,
        group: int = 1,
        *,
        batch: int = 100,
        candidates: int = 3,
        samples: int = 4,
        device: str = "cpu",
        engine: Any = "auto",
        seed: int = 0,
    ) -> None:
        self.assets, self.group, self.batch, self.device = assets, group, batch, torch.device(device)
        self.portfolio = Portfolio(assets, assets // 5, group)
        ambiguity = self.portfolio.problem.ambiguity
        self.data = PortfolioData.generate(assets, POINTS)
        self.Z, self.Y = (torch.as_tensor(t, device=self.device) for t in (self.data.Z, self.data.Y))
        nominal = KNN(k=20).fit(self.Z.cpu(), self.Y.cpu()).to(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, ambiguity.size)).double()
        # Sets of the size that pre-training would give them, so that the search is that of training.
        typical = ambiguity.typical(torch.as_tensor(self.data.Y))
        last = model[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            scale = torch.cat([t.scale.reshape(-1) for t in typical.values()])
            last.weight.mul_(0.3 * scale[:, None])
            last.bias.copy_(torch.cat([t.centre.reshape(-1) for t in typical.values()]))
        layer = DROLayer(
            self.portfolio.problem,
            candidates=candidates,
            samples=samples,
            proposal=Energy(),
            enumerate_up_to=0,
            gradient="smoothed",
            engine=engine,
            seed=seed,
        )
        self.pipeline = Pipeline(model, nominal, Projection(ambiguity), layer).to(self.device).train()
        self.pipeline.remember(self.Z, torch.arange(len(self.Z), device=self.device))
        self.optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run(self, rows: Tensor) -> tuple[dict[str, float], int]:
        """One step: seconds by stage, and how many items had no decision."""
        _, _, decision, seconds = timed(self.pipeline.stages(self.Z[rows], rows), self._now)
        start = self._now()
        loss, _ = decision.mean(lambda x: self.portfolio.problem.loss(x, self.Y[rows]))
        lost = self._now()
        self.optimiser.zero_grad()
        loss.backward()
        back = self._now()
        self.optimiser.step()
        seconds["learning"] += self._now() - back
        seconds["layer"] += lost - start
        return {**seconds, "backward": back - lost}, int((~decision.ok).sum())

    def measure(self, steps: int = 5, warm_up: int = 2) -> StepTime:
        """The median over steps, after some that compile, record and allocate."""
        chunks = [
            (torch.arange(self.batch) + self.batch * k).remainder(POINTS).to(self.device)
            for k in range(steps + warm_up)
        ]
        for rows in chunks[:warm_up]:
            self.run(rows)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = [self.run(rows) for rows in chunks[warm_up:]]
        seconds = {name: median(step[name] for step, _ in found) for name in STAGES}
        return StepTime(self.assets, self.group, seconds, sum(masked for _, masked in found), self._memory())

    def _now(self) -> float:
        """The clock, when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _memory(self) -> int:
        """Peak memory in bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def growth(first: StepTime, last: StepTime) -> float:
    """The power of the number of assets with which a step's time grows."""
    return float(np.log(last.total / first.total) / np.log(last.assets / first.assets))
