"""HiGHS for programs that are mixed-integer linear, with cuts that exclude the points it has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drolayers.conic import ConeProgram, Engine, Values, make_engine
from drolayers.integer.external import Found, check_cones, require, stacked, top
from drolayers.integer.instance import Instance, exclusion
from drolayers.integer.oracle import Candidates
from drolayers.status import Status


@dataclass(frozen=True, eq=False)
class HiGHS:
    """The solver HiGHS; only for linear rows and a linear objective.

    Args:
        engine: certifies the points that HiGHS returns.
        tolerance: feasibility and integrality asked of HiGHS.
        time_limit: seconds for each solve; None for no limit.
        jobs: instances at a time, as joblib counts them (-1: all cores).
    """

    engine: Engine = field(default_factory=make_engine)
    tolerance: float = 1e-9
    time_limit: float | None = None
    jobs: int = -1
    name: str = "highs"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        require("highspy", "highs")
        check_cones(program, frozenset({"zero", "nonneg"}), False, self.name)
        worker = _Worker(self.tolerance, self.time_limit)
        return top(worker, self.engine, program, values, count, self.jobs, self.name)


@dataclass(frozen=True)
class _Worker:
    """Solves one instance; can be sent to another process."""

    tolerance: float
    time_limit: float | None

    def __call__(self, instance: Instance, count: int, excluded: np.ndarray) -> Found:
        """Solve, exclude the point, solve again."""
        highspy = require("highspy", "highs")
        solver = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": self.tolerance,
            "mip_feasibility_tolerance": self.tolerance,
            "primal_feasibility_tolerance": self.tolerance,
            "dual_feasibility_tolerance": self.tolerance,
        }
        if self.time_limit is not None:
            options["time_limit"] = self.time_limit
        for name, value in options.items():
            solver.setOptionValue(name, value)
        _build(highspy, solver, instance)
        for point in excluded:
            _exclude(highspy, solver, instance, point)
        points: list[np.ndarray] = []
        kinds = highspy.HighsModelStatus
        while len(points) < count:
            solver.run()
            status = solver.getModelStatus()
            if status == kinds.kInfeasible:
                return Found(stacked(points, instance), Status.OPTIMAL, exhausted=True)
            if status in (kinds.kUnbounded, kinds.kUnboundedOrInfeasible):
                return Found(stacked(points, instance), Status.NO_MINIMUM)
            x = np.array(solver.getSolution().col_value)
            if status != kinds.kOptimal:
                return Found(stacked(points, instance), Status.INACCURATE)
            points.append(np.round(x[instance.integers]))
            _exclude(highspy, solver, instance, points[-1])
        return Found(stacked(points, instance), Status.OPTIMAL)


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


def _exclude(highspy: Any, solver: Any, instance: Instance, point: np.ndarray) -> None:
    """Exclude one integer point."""
    fresh = solver.getNumCol()
    added, rows = exclusion(instance, point, fresh)
    for k in range(added):
        solver.addVar(0.0, 1.0)
        solver.changeColIntegrality(fresh + k, highspy.HighsVarType.kInteger)
    for columns, coefficients, rhs in rows:
        solver.addRow(-np.inf, rhs, columns.size, columns.astype(np.int32), coefficients)
