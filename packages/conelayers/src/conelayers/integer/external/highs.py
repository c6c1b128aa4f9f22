"""HiGHS for programs that are mixed-integer linear, with cuts that exclude the points it has found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conelayers.integer.external.external import External, Found, Job, MIPSolver, one_by_one
from conelayers.integer.external.instance import Instance, Row
from conelayers.status import Status


def _worker(highspy: Any, job: Job) -> Found:
    """Set up, and solve again and again."""
    solver, kinds = highspy.Highs(), highspy.HighsModelStatus
    options = {
        "output_flag": False,
        "threads": 1,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": job.tolerance,
        "mip_feasibility_tolerance": job.tolerance,
        "primal_feasibility_tolerance": job.tolerance,
        "dual_feasibility_tolerance": job.tolerance,
    }
    if job.time_limit is not None:
        options["time_limit"] = job.time_limit
    for name, value in options.items():
        solver.setOptionValue(name, value)
    _build(highspy, solver, job.instance)

    def solve() -> Found:
        solver.run()
        status = solver.getModelStatus()
        if status == kinds.kInfeasible:
            return Found([], Status.OPTIMAL, exhausted=True)
        if status in (kinds.kUnbounded, kinds.kUnboundedOrInfeasible):
            return Found([], Status.UNBOUNDED)
        if status != kinds.kOptimal:
            return Found([], Status.INACCURATE)
        x = np.array(solver.getSolution().col_value)
        return Found([np.round(x[job.instance.integers])], Status.OPTIMAL)

    def add(binaries: int, rows: list[Row]) -> None:
        for _ in range(binaries):
            solver.addVar(0.0, 1.0)
            solver.changeColIntegrality(solver.getNumCol() - 1, highspy.HighsVarType.kInteger)
        for columns, coefficients, rhs in rows:
            solver.addRow(-np.inf, rhs, columns.size, columns.astype(np.int32), coefficients)

    return one_by_one(job, solve, add)


def _build(highspy: Any, solver: Any, instance: Instance) -> None:
    """Columns and rows."""
    lp = highspy.HighsLp()
    A, b, zero = instance.A, instance.b, instance.cones.zero
    lp.num_col_, lp.num_row_ = instance.columns, b.size
    lp.col_cost_ = instance.q
    lp.col_lower_, lp.col_upper_ = instance.lower, instance.upper
    lp.row_lower_, lp.row_upper_ = np.where(np.arange(b.size) < zero, b, -np.inf), b
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = A.indptr, A.indices, A.data
    kinds = [highspy.HighsVarType.kContinuous] * instance.columns
    for j in instance.integers:
        kinds[j] = highspy.HighsVarType.kInteger
    lp.integrality_ = kinds
    solver.passModel(lp)


HiGHS = partial(
    External,
    MIPSolver("highs", "highspy", frozenset({"zero", "nonneg"}), _worker, tolerance=1e-9, quadratic=False),
)
"""The solver HiGHS, with the settings of ``External``; for linear rows and a linear objective only."""
