"""Iterative refinement: solve again for what an answer still lacks, magnified.

A point (x, z) that is nearly optimal leaves the residual of the rows, b - Ax, and the slope of the objective there,
Px + q. The correction d of the point solves a program of the same structure,

    minimise  ½ dᵀPd + δ(Px + q)ᵀd   subject to  Ad + t = δ(b - Ax),  t ∈ K,

whose solution is δ times what is missing, and whose multipliers are δ times those of the program itself. A solver that
is right to some 1e-6 of its own numbers is then right to 1e-6/δ of ours. Rows that are nearly parallel need this:
their multipliers grow as the rows are met better, so that a violation of 1e-6 can hide a third of the optimal value
(LISWET1 of Maros and Meszaros: 25.1 where 36.1 is right).

Reference:
    Weber, Sager and Gleixner, Solving quadratic programs to high precision using scaled iterative refinement,
    Mathematical Programming Computation 11 (2019).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.engine.solvers.contract import Points, Solver
from conelayers.engine.verdict import classify
from conelayers.program import residuals
from conelayers.program.program import ConeProgram, Values
from conelayers.scaling.units import Units
from conelayers.status import Status

REFINE_FROM = 1e-8
"""Residual from which an answer is refined: ten times what a solver is asked for, a tenth of what OPTIMAL promises."""

REFINE_UP_TO = 1.0
"""Residual from which a point is no approximation that a correction could start from."""

ENOUGH = 1e-9
"""Residual from which no further round is worth its time."""

MAGNIFICATION = 1e3
"""δ of the first round, and by how much it grows a round: the solver's accuracy is about its inverse squared."""

ROUNDS = 3
"""Rounds at most; one suffices for all but a few programs of Maros and Meszaros (``benchmarks/maros.py``)."""


def refine(
    solver: Solver,
    program: ConeProgram,
    values: Values,
    points: Points,
    status: Tensor,
    residual: Tensor,
    rounding: float,
) -> tuple[Points, Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Refine the points whose residual is too large, and judge them again.

    Args:
        solver: solves the corrections.
        program: the structure.
        values: the numbers, in the engine's units.
        points: the points to refine; a point with a certificate of infeasibility or of no minimum stays as it is.
        status: their statuses, ``(batch,)``.
        residual: their residuals, ``(batch,)``.
        rounding: share of its terms' size by which a value may be off where they cancel.

    Returns:
        Points, statuses and residuals; those that were not improved are unchanged.
    """
    certified = (status == int(Status.INFEASIBLE)) | (status == int(Status.UNBOUNDED))
    near = (residual > REFINE_FROM) & (residual < REFINE_UP_TO) & points.x.isfinite().all(1)
    items = (~certified & near).nonzero()[:, 0]
    current = points.x[items]
    scale = torch.full_like(current[:, :1], MAGNIFICATION)
    for _ in range(ROUNDS):
        if not items.numel():
            break
        numbers = values[items]
        corrected = _corrected(solver, program, numbers, current, scale)
        new_status, new_residual = classify(program, numbers, corrected, rounding)
        improved = new_residual < residual[items]
        rows = improved.nonzero()[:, 0]
        points = points.merged(corrected, items[rows], rows)
        status = status.index_copy(0, items[rows], new_status[rows])
        residual = residual.index_copy(0, items[rows], new_residual[rows].to(residual))
        # Magnified by more than its inverse, the violation itself would be a large number.
        limit = 1.0 / violation(program, numbers, corrected).clamp(min=torch.finfo(scale.dtype).eps)
        scale = torch.minimum(MAGNIFICATION * scale, limit[:, None])
        # A linear objective is the same in every round: a round that did not help is the last one.
        promising = improved | torch.full_like(improved, program.quadratic)
        open_rows = ((new_residual > ENOUGH) & promising & corrected.x.isfinite().all(1)).nonzero()[:, 0]
        items, current, scale = items[open_rows], corrected.x[open_rows], scale[open_rows]
    return points, status, residual


def violation(program: ConeProgram, values: Values, points: Points) -> Float[Tensor, "item"]:
    """Largest violation of the rows and of stationarity, item by item."""
    Px, Ax, Az = residuals.products(program, values, points.x, points.z)
    primal, dual = (Ax + points.s - values.b).abs(), (Px + values.q + Az).abs()
    return torch.cat([primal, dual], 1).amax(1)


def _corrected(
    solver: Solver,
    program: ConeProgram,
    values: Values,
    x: Float[Tensor, "item column"],
    scale: Float[Tensor, "item 1"],
) -> Points:
    """Solve for the corrections of some points and add them."""
    Px, Ax, _ = residuals.products(program, values, x, torch.zeros_like(values.b))
    magnified = Values(
        values.P, values.A, scale * (Px + values.q), scale * (values.b - Ax), torch.zeros_like(values.constant)
    )
    units, numbers = Units.of(program, magnified)
    solved = solver.solve(program, numbers)
    d, z, s = units.own(solved.x, solved.z, solved.s)
    claimed = torch.full_like(solved.verdict, int(Status.OPTIMAL))
    return Points(x + d / scale, z / scale, s / scale, claimed, solved.steps)
