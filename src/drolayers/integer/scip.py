"""SCIP, one instance at a time, with cuts that exclude the points it has found."""

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
class SCIP:
    """The solver SCIP through PySCIPOpt.

    Args:
        engine: certifies the points that SCIP returns.
        tolerance: feasibility asked of SCIP. Its own default of 1e-6 is coarse at the scale of returns; below 1e-7 its
            linear solver begins to give up.
        time_limit: seconds for each solve; None for no limit.
        jobs: instances at a time, as joblib counts them (-1: all cores).
    """

    engine: Engine = field(default_factory=make_engine)
    tolerance: float = 1e-7
    time_limit: float | None = None
    jobs: int = -1
    name: str = "scip"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        require("pyscipopt", "scip")
        check_cones(program, frozenset({"zero", "nonneg", "soc"}), True, self.name)
        worker = _Worker(self.tolerance, self.time_limit)
        return top(worker, self.engine, program, values, count, self.jobs, self.name)


@dataclass(frozen=True)
class _Worker:
    """Solves one instance; can be sent to another process."""

    tolerance: float
    time_limit: float | None

    def __call__(self, instance: Instance, count: int, excluded: np.ndarray) -> Found:
        """Solve, exclude the point, solve again."""
        scip = require("pyscipopt", "scip")
        model = scip.Model()
        model.hideOutput()
        for name in ("numerics/feastol", "numerics/dualfeastol"):
            model.setParam(name, self.tolerance)
        model.setParam("limits/gap", 1e-2 * self.tolerance)
        # With dual reductions SCIP 10 presolves cones of small lots to objectives that are off in the third digit.
        for name in ("misc/allowstrongdualreds", "misc/allowweakdualreds"):
            model.setParam(name, False)
        if self.time_limit is not None:
            model.setParam("limits/time", self.time_limit)
        x = _build(scip, model, instance)
        for point in excluded:
            _exclude(scip, model, x, instance, point)
        points: list[np.ndarray] = []
        while len(points) < count:
            try:
                model.optimize()
            except Exception:  # PySCIPOpt raises no other class when SCIP's own linear solver breaks down
                return Found(stacked(points, instance), Status.INACCURATE)
            status = model.getStatus()
            if status in ("infeasible", "inforunbd", "unbounded") or not model.getNSols():
                outcome = {"infeasible": Status.OPTIMAL, "unbounded": Status.NO_MINIMUM, "inforunbd": Status.NO_MINIMUM}
                done = outcome.get(status, Status.INACCURATE)
                return Found(stacked(points, instance), done, exhausted=status == "infeasible")
            best = model.getBestSol()
            points.append(np.round([model.getSolVal(best, x[j]) for j in instance.integers]))
            if status != "optimal":
                return Found(stacked(points, instance), Status.INACCURATE)
            model.freeTransform()
            _exclude(scip, model, x, instance, points[-1])
        return Found(stacked(points, instance), Status.OPTIMAL)


def _build(scip: Any, model: Any, instance: Instance) -> list[Any]:
    """Variables, rows, cones and objective."""
    integer = np.isin(np.arange(instance.columns), instance.integers)
    x = [
        model.addVar(
            vtype="I" if integer[j] else "C",
            lb=None if np.isneginf(instance.lower[j]) else float(instance.lower[j]),
            ub=None if np.isposinf(instance.upper[j]) else float(instance.upper[j]),
        )
        for j in range(instance.columns)
    ]
    A, b, cones = instance.A, instance.b, instance.cones

    def row(r: int) -> Any:
        entries = slice(A.indptr[r], A.indptr[r + 1])
        return scip.quicksum(float(a) * x[j] for a, j in zip(A.data[entries], A.indices[entries], strict=True))

    for r in range(cones.zero):
        model.addCons(row(r) == float(b[r]))
    for r in range(cones.zero, cones.zero + cones.nonneg):
        if A.indptr[r + 1] > A.indptr[r]:
            model.addCons(row(r) <= float(b[r]))
        elif b[r] < 0:
            model.addCons(x[0] - x[0] <= float(b[r]))
    at = cones.zero + cones.nonneg
    for dimension in cones.soc:
        # One variable for each row of the cone, so that SCIP sees the cone as one.
        slack = [model.addVar(lb=0.0 if k == 0 else None) for k in range(dimension)]
        for k in range(dimension):
            model.addCons(slack[k] + row(at + k) == float(b[at + k]))
        model.addCons(scip.quicksum(s * s for s in slack[1:]) <= slack[0] * slack[0])
        at += dimension
    objective = scip.quicksum(float(c) * v for c, v in zip(instance.q, x, strict=True))
    if instance.P.nnz:
        square, P = model.addVar(lb=0.0), instance.P.tocoo()
        terms = (0.5 * float(a) * x[i] * x[j] for a, i, j in zip(P.data, P.row, P.col, strict=True))
        model.addCons(scip.quicksum(terms) <= square)
        objective = objective + square
    model.setObjective(objective)
    return x


def _exclude(scip: Any, model: Any, x: list[Any], instance: Instance, point: np.ndarray) -> None:
    """Exclude one integer point; new binaries join the end of ``x``."""
    added, rows = exclusion(instance, point, len(x))
    x += [model.addVar(vtype="B") for _ in range(added)]
    for columns, coefficients, rhs in rows:
        terms = (float(a) * x[j] for a, j in zip(coefficients, columns, strict=True))
        model.addCons(scip.quicksum(terms) <= float(rhs))
