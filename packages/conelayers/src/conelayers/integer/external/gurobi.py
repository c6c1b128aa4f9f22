"""Gurobi, with its solution pool or with cuts that exclude the points it has found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from conelayers.errors import ModelError
from conelayers.integer.external.external import External, Found, Job, MIPSolver, one_by_one
from conelayers.integer.external.instance import Instance, Row
from conelayers.status import Status

_TOO_LARGE = 10010


def _worker(gurobi: Any, job: Job) -> Found:
    """Set up, solve, and name what a licence does not cover."""
    params = {
        "Threads": 1,
        "FeasibilityTol": job.tolerance,
        "IntFeasTol": job.tolerance,
        "OptimalityTol": job.tolerance,
        "BarQCPConvTol": job.tolerance,
        "MIPGap": 0.0,
        "MIPGapAbs": job.tolerance,
        "DualReductions": 0,
    }
    if job.time_limit is not None:
        params["TimeLimit"] = job.time_limit
    if job.pool:
        params |= {"PoolSearchMode": 2, "PoolSolutions": job.count}
    with gurobi.Env(params={"OutputFlag": 0, "LogToConsole": 0}) as env, gurobi.Model(env=env) as model:
        try:
            for name, value in params.items():
                model.setParam(name, value)
            return _points(gurobi, model, job)
        except gurobi.GurobiError as error:
            if error.errno != _TOO_LARGE:
                raise
            raise ModelError(
                "The program is larger than this Gurobi licence allows: install a full licence, or use "
                "oracle='branch_and_bound'."
            ) from error


def _points(gurobi: Any, model: Any, job: Job) -> Found:
    """One search with a pool, or one search for each point."""
    x = _build(gurobi, model, job.instance)

    def solve() -> Found:
        model.optimize()
        if model.Status in (gurobi.GRB.UNBOUNDED, gurobi.GRB.INF_OR_UNBD):
            return Found([], Status.UNBOUNDED)
        if not model.SolCount:
            proven = model.Status == gurobi.GRB.INFEASIBLE
            return Found([], Status.OPTIMAL if proven else Status.INACCURATE, exhausted=proven)
        points = []
        for k in range(model.SolCount if job.pool else 1):
            model.setParam("SolutionNumber", k)
            points.append(np.round([x[j].Xn for j in job.instance.integers]))
        proven = model.Status == gurobi.GRB.OPTIMAL
        exhausted = proven and job.pool and model.SolCount < job.count
        return Found(points, Status.OPTIMAL if proven else Status.INACCURATE, exhausted)

    def add(binaries: int, rows: list[Row]) -> None:
        x.extend(model.addVar(vtype=gurobi.GRB.BINARY) for _ in range(binaries))
        for columns, coefficients, rhs in rows:
            terms = (float(a) * x[j] for a, j in zip(coefficients, columns, strict=True))
            model.addConstr(gurobi.quicksum(terms) <= float(rhs))
        model.update()

    return one_by_one(job, solve, add)


def _build(gurobi: Any, model: Any, instance: Instance) -> list[Any]:
    """Variables, rows, cones and objective."""
    A, b, cones = instance.A, instance.b, instance.cones
    kinds = np.full(instance.columns, gurobi.GRB.CONTINUOUS)
    kinds[instance.integers] = gurobi.GRB.INTEGER
    x = model.addMVar(instance.columns, lb=instance.lower, ub=instance.upper, vtype=kinds)
    linear = cones.zero + cones.nonneg
    if cones.zero:
        model.addMConstr(A[: cones.zero], x, "=", b[: cones.zero])
    if cones.nonneg:
        model.addMConstr(A[cones.zero : linear], x, "<", b[cones.zero : linear])
    at = linear
    for dimension in cones.soc:
        low = np.full(dimension, -np.inf)
        low[0] = 0.0
        slack = model.addMVar(dimension, lb=low)
        model.addConstr(A[at : at + dimension] @ x + slack == b[at : at + dimension])
        model.addConstr(slack[1:] @ slack[1:] <= slack[0] * slack[0])
        at += dimension
    objective = instance.q @ x
    if instance.P.nnz:
        objective = objective + 0.5 * (x @ instance.P @ x)
    model.setObjective(objective)
    model.update()
    return list(x.tolist())


Gurobi = partial(
    External,
    MIPSolver("gurobi", "gurobipy", frozenset({"zero", "nonneg", "soc"}), _worker, tolerance=1e-9, pool=True),
)
"""The solver Gurobi, with the settings of ``External``. Its free licence covers 200 variables where there are cones."""
