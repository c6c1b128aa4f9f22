"""Our own interior-point method as a solver: compiled on the CPU, in torch on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from drolayers.conic.interior.batch import SHARED, AlgebraName, Batch
from drolayers.conic.interior.face import ROUNDS, polish
from drolayers.conic.interior.method import NEAR, Algebra, Goal
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.replay import rounded
from drolayers.conic.solution import WarmStart
from drolayers.conic.solvers.contract import Capabilities, Points
from drolayers.status import Status, usable

SYMMETRIC = frozenset({"zero", "nonneg", "soc"})
"""The cones of our method."""

POLISH = 1e-9
"""Tolerances below this are met on the active face, as are those that the path falls short of: it ends where arithmetic
does."""


@final
@dataclass(frozen=True)
class Interior:
    """The batched interior-point method, engine "batched".

    Args:
        tolerance: for feasibility and gap.
        max_iter: steps before an item is handed to the second route.
        algebra: "numba" or "torch"; None takes the first on the CPU and the second on a GPU.
    """

    tolerance: float = 1e-9
    max_iter: int = 60
    algebra: AlgebraName | None = None
    name: str = "batched"
    capabilities: ClassVar[Capabilities] = Capabilities(SYMMETRIC)

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Solve; a warm start is not used, since the method starts well inside the cones."""
        items = len(values.q)
        if values.q.device.type == "cuda":
            # A recording serves one size of batch, and branch-and-bound asks for many: they are rounded up.
            size = rounded(items, max(program.nonzeros, program.rows))
            values = values[torch.arange(size, device=values.q.device).clamp(max=items - 1)]
        batch = Batch.of(program, values, self.algebra)
        best, passed, verdict, steps, score = batch.solve(Goal(self.tolerance, self.max_iter, level))
        # A certificate needs no division by τ, and τ is next to nothing then.
        sound = usable(verdict) | (best.tau > 1e-8)
        tau = torch.where(sound, best.tau, torch.ones_like(best.tau))
        x, z, s = best.x / tau, best.z / tau, best.s / tau
        short = sound & ((score > self.tolerance) | (self.tolerance < POLISH)) & (score <= NEAR)
        if (left := short.nonzero()[:, 0]).numel():
            verdict = torch.where(_polished(batch, x, z, s, left), int(Status.OPTIMAL), verdict)
        # Batch first again, without what was added to round its size.
        x, z, s = (v.T[:items].contiguous() for v in (x, z, s))
        kept = None if passed is None else passed.pick(slice(items))
        return Points(x, z, s, verdict[:items], steps[:items], kept)

    def with_tolerance(self, tolerance: float) -> Interior:
        """The same solver, asked for another accuracy."""
        return replace(self, tolerance=tolerance)


def _polished(batch: Batch, x: Tensor, z: Tensor, s: Tensor, items: Tensor) -> Tensor:
    """Take some points to machine precision, in place, batch last, in equilibrated units; which of them were."""
    rows = batch.cone_rows
    at, v, done_at_all = x.clone(), z - s, torch.zeros(len(batch), dtype=torch.bool, device=x.device)

    def work(on: Algebra, x: Any, v: Any) -> tuple[Any, ...]:
        found = polish(on, rows, x, v)
        return found.x, found.z, found.s, found.next_x, found.next_v, found.done[None] + 0.0

    least = min(len(items), SHARED)
    for _ in range(ROUNDS):
        # Later rounds are of few items, and of every size: they share the recording of the first.
        fill = batch.filled(items, least)
        given = (t[:, fill].contiguous() for t in (at, v))
        found = batch[fill].each(work, *given, name="polish")
        *points, next_x, next_v, done = (t[:, : len(items)] for t in found)
        # As numbers, once for all: on a GPU the host waits to hear how many there are.
        chosen, left = ((done[0] > 0).nonzero()[:, 0], (done[0] <= 0).nonzero()[:, 0])
        for target, value in zip((x, z, s), points, strict=True):
            target[:, items[chosen]] = value[:, chosen]
        at[:, items], v[:, items] = next_x, next_v
        done_at_all.index_fill_(0, items[chosen], True)
        items = items[left]
        if not items.numel():
            break
    return done_at_all
