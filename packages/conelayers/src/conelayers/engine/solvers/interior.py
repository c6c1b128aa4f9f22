"""Our own interior-point method as a solver: compiled on the CPU, in torch on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from conelayers.engine.solution import WarmStart
from conelayers.engine.solvers.contract import Capabilities, Points
from conelayers.interior.batch import AlgebraName, Batch
from conelayers.interior.method import NEAR, Goal
from conelayers.interior.polishing import polish_points
from conelayers.program.program import SYMMETRIC, ConeProgram, Values
from conelayers.program.replay import rounded
from conelayers.status import Status, usable

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
        count = len(values.q)
        if values.q.device.type == "cuda":
            # A recording serves one size of batch, and branch-and-bound asks for many: they are rounded up.
            size = rounded(count, max(program.nonzeros, program.rows))
            values = values[torch.arange(size, device=values.q.device).clamp(max=count - 1)]
        batch = Batch.of(program, values, self.algebra)
        best, passed, verdict, steps, score = batch.solve(Goal(self.tolerance, self.max_iter, level))
        # A certificate needs no division by τ, and τ is next to nothing then.
        sound = usable(verdict) | (best.tau > 1e-8)
        tau = torch.where(sound, best.tau, torch.ones_like(best.tau))
        x, z, s = best.x / tau, best.z / tau, best.s / tau
        short = sound & ((score > self.tolerance) | (self.tolerance < POLISH)) & (score <= NEAR)
        done, rough = torch.zeros_like(short), None
        if (items := short.nonzero()[:, 0]).numel():
            # Copies: polishing works in place, and the transpose of a single item shares its memory.
            rough = tuple(v.T[:count].clone(memory_format=torch.contiguous_format) for v in (x, z, s))
            done = polish_points(batch, x, z, s, items).done
            verdict = torch.where(done, int(Status.OPTIMAL), verdict)
        # Batch first again, without what was added to round its size.
        x, z, s = (v.T[:count].contiguous() for v in (x, z, s))
        passed = None if passed is None else passed.pick(slice(count))
        return Points(x, z, s, verdict[:count], steps[:count], passed, done[:count], short[:count], rough)

    def with_tolerance(self, tolerance: float) -> Interior:
        """The same solver, asked for another accuracy."""
        return replace(self, tolerance=tolerance)
