"""SCIP, with cuts that exclude the points it has found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conelayers.integer.external.external import External, Found, Job, MIPSolver, one_by_one
from conelayers.integer.external.instance import Instance, Row
from conelayers.status import Status

_WITHOUT = {"infeasible": Status.OPTIMAL, "unbounded": Status.UNBOUNDED, "inforunbd": Status.UNBOUNDED}
"""What it means that there is no solution."""


def _worker(scip: Any, job: Job) -> Found:
    """Set up, and solve again and again."""
    model = scip.Model()
    model.hideOutput()
    for name in ("numerics/feastol", "numerics/dualfeastol"):
        model.setParam(name, job.tolerance)
    model.setParam("limits/gap", 1e-2 * job.tolerance)
    # With dual reductions SCIP 10 presolves cones of small lots to objectives that are off in the third digit.
    for name in ("misc/allowstrongdualreds", "misc/allowweakdualreds"):
        model.setParam(name, False)
    if job.time_limit is not None:
        model.setParam("limits/time", job.time_limit)
    x = _build(scip, model, job.instance)

    def solve() -> Found:
        try:
            model.optimize()
        except Exception:  # PySCIPOpt raises no other class when SCIP's own linear solver breaks down
            return Found([], Status.INACCURATE)
        status = model.getStatus()
        if status in _WITHOUT or not model.getNSols():
            return Found([], _WITHOUT.get(status, Status.INACCURATE), exhausted=status == "infeasible")
        best = model.getBestSol()
        point = np.round([model.getSolVal(best, x[j]) for j in job.instance.integers])
        # Rows can be added to the original model only.
        model.freeTransform()
        return Found([point], Status.OPTIMAL if status == "optimal" else Status.INACCURATE)

    def add(binaries: int, rows: list[Row]) -> None:
        x.extend(model.addVar(vtype="B") for _ in range(binaries))
        for columns, coefficients, rhs in rows:
            terms = (float(a) * x[j] for a, j in zip(coefficients, columns, strict=True))
            model.addCons(scip.quicksum(terms) <= float(rhs))

    return one_by_one(job, solve, add)


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


# SCIP's own tolerance of 1e-6 is coarse at the scale of returns; below 1e-7 its linear solver begins to give up.
SCIP = partial(
    External,
    MIPSolver("scip", "pyscipopt", frozenset({"zero", "nonneg", "soc"}), _worker, tolerance=1e-7),
)
"""The solver SCIP through PySCIPOpt, with the settings of ``External``."""
