"""What became of each item: statuses by our own residuals, and the second route for those that are unfinished."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.engine.solvers.contract import Points, Solver
from conelayers.program import residuals
from conelayers.program.program import ConeProgram, Values
from conelayers.scaling.units import Units
from conelayers.status import Status

ACCEPT = 1e-7
"""Relative residual up to which an item is called OPTIMAL: its value is right to so much of itself."""

TOLERATE = 1e-4
"""The same for INACCURATE; beyond it an item has FAILED. Either promise ends where terms of the value cancel: at
``residuals.ROUNDING`` of their size."""

CERTIFY = 1e-6
"""Relative defect up to which a ray counts as a certificate."""


def classify(
    program: ConeProgram, values: Values, points: Points, rounding: float = residuals.ROUNDING
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Status by our own residuals: a verdict is believed only with its certificate.

    Where terms of the value cancel, it may be off by a share ``rounding`` of their size.
    """
    residual = residuals.optimality(program, values, points.x, points.z, points.s, ACCEPT, rounding)
    status = torch.full_like(points.verdict, int(Status.FAILED))
    status[residual <= ACCEPT] = int(Status.OPTIMAL)
    short = (residual > ACCEPT).nonzero()[:, 0]
    if short.numel():
        x, z, s = (t[short] for t in (points.x, points.z, points.s))
        rest = residuals.optimality(program, values[short], x, z, s, TOLERATE, rounding)
        status[short[rest <= TOLERATE]] = int(Status.INACCURATE)
    rays = (points.verdict == int(Status.INFEASIBLE)) | (points.verdict == int(Status.UNBOUNDED))
    if not bool(rays.any()):
        return status, residual
    for verdict, proof in (
        (Status.INFEASIBLE, lambda v, r: residuals.infeasibility(program, v, r.z)),
        (Status.UNBOUNDED, lambda v, r: residuals.unboundedness(program, v, r.x)),
    ):
        claimed = points.verdict == int(verdict)
        if bool(claimed.any()):
            proven = claimed & (proof(values, points) <= CERTIFY)
            status[claimed] = int(Status.FAILED)
            status[proven] = int(verdict)
    return status, residual


@dataclass(frozen=True, eq=False)
class Plainly:
    """A solver that is given a batch in the program's own units, and answers in others."""

    solver: Solver
    units: Units
    values: Values

    def solve(self, program: ConeProgram, values: Values) -> Points:
        """Solve the batch that it was made for."""
        plain, numbers = Units.plain(self.values.detach())
        found = self.solver.solve(program, numbers)
        x, z, s = self.units.hats(*plain.own(found.x, found.z, found.s))
        return replace(found, x=x, z=z, s=s)


def second_route(
    rescue: Solver | Plainly,
    program: ConeProgram,
    values: Values,
    points: Points,
    status: Tensor,
    residual: Tensor,
    items: Tensor,
    rounding: float = residuals.ROUNDING,
) -> tuple[Points, Tensor, Tensor]:
    """Solve some items by the second route and keep whichever answer is the better."""
    second = rescue.solve(program, values[items])
    second_status, second_residual = classify(program, values[items], second, rounding)
    certified = (second_status == int(Status.INFEASIBLE)) | (second_status == int(Status.UNBOUNDED))
    rows = (certified | (second_residual < residual[items])).nonzero()[:, 0]
    chosen = items[rows]
    status = status.index_copy(0, chosen, second_status[rows])
    residual = residual.index_copy(0, chosen, second_residual[rows].to(residual))
    return points.merged(second, chosen, rows), status, residual
