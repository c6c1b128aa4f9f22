"""Points over semidefinite cones, taken to machine precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from conelayers.derivative.newton import items, polished
from conelayers.engine.solution import WarmStart
from conelayers.engine.solvers.contract import Capabilities, Points, Solver
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status


@final
@dataclass(frozen=True)
class Polished:
    """A solver whose points over semidefinite cones are polished on their face, one item after another.

    Where multipliers are not unique, as in degenerate programs, interior-point methods end at 1e-6 at times.
    Newton's method on the optimality conditions has no path to follow and ends at 1e-15; a point that it does not take
    there stays as it was. Our own method polishes its cones itself.

    Args:
        solver: who finds the points.
    """

    solver: Solver

    @property
    def name(self) -> str:
        """The solver's."""
        return self.solver.name

    @property
    def capabilities(self) -> Capabilities:
        """The solver's."""
        return self.solver.capabilities

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Solve, then polish what is no certificate."""
        found, cones = self.solver.solve(program, values, warm_start, level), program.cones
        if not cones.psd or cones.exp or cones.power:
            return found
        x, z, s, verdict = (t.clone() for t in (found.x, found.z, found.s, found.verdict))
        claimed = [int(Status.INFEASIBLE), int(Status.UNBOUNDED)]
        for k, item in enumerate(items(program, values, x, z, s)):
            if int(verdict[k]) in claimed:
                continue
            *point, done = polished(cones, item.P, item.A, item.q, item.b, item.x, item.z - item.s)
            if done:
                for target, value in zip((x, z, s), point, strict=True):
                    target[k] = torch.as_tensor(value).to(target)
                verdict[k] = int(Status.OPTIMAL)
        return replace(found, x=x, z=z, s=s, verdict=verdict)

    def with_tolerance(self, tolerance: float) -> Polished:
        """The same, asked for another accuracy."""
        return replace(self, solver=self.solver.with_tolerance(tolerance))
