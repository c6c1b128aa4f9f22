"""Gurobi, one instance at a time, with its solution pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drolayers.conic import ConeProgram, Engine, Values, make_engine
from drolayers.errors import ModelError
from drolayers.integer.external import Found, check_cones, require, stacked, top
from drolayers.integer.instance import Instance, exclusion
from drolayers.integer.oracle import Candidates
from drolayers.status import Status

_TOO_LARGE = 10010


@dataclass(frozen=True, eq=False)
class Gurobi:
    """The solver Gurobi; its free licence covers small programs (200 variables with cones).

    Args:
        engine: certifies the points that Gurobi returns.
        pool: take the best points from one search with a solution pool, instead of excluding one by one.
        tolerance: feasibility, integrality and gap asked of Gurobi.
        time_limit: seconds for each solve; None for no limit.
        jobs: instances at a time, as joblib counts them (-1: all cores).
    """

    engine: Engine = field(default_factory=make_engine)
    pool: bool = True
    tolerance: float = 1e-9
    time_limit: float | None = None
    jobs: int = -1
    name: str = "gurobi"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        require("gurobipy", "gurobi")
        check_cones(program, frozenset({"zero", "nonneg", "soc"}), True, self.name)
        worker = _Worker(self.pool, self.tolerance, self.time_limit)
        return top(worker, self.engine, program, values, count, self.jobs, self.name)


@dataclass(frozen=True)
class _Worker:
    """Solves one instance; can be sent to another process."""

    pool: bool
    tolerance: float
    time_limit: float | None

    def __call__(self, instance: Instance, count: int, excluded: np.ndarray) -> Found:
        """Build, solve, read the points."""
        gurobi = require("gurobipy", "gurobi")
        with gurobi.Env(params={"OutputFlag": 0, "LogToConsole": 0}) as env, gurobi.Model(env=env) as model:
            try:
                return self._solve(gurobi, model, instance, count, excluded)
            except gurobi.GurobiError as error:
                if error.errno != _TOO_LARGE:
                    raise
                raise ModelError(
                    "The program is larger than this Gurobi licence allows: install a full licence, or use "
                    "oracle='branch_and_bound'."
                ) from error

    def _solve(self, gurobi: Any, model: Any, instance: Instance, count: int, excluded: np.ndarray) -> Found:
        """One search with a pool, or one search for each point."""
        params = {
            "Threads": 1,
            "FeasibilityTol": self.tolerance,
            "IntFeasTol": self.tolerance,
            "OptimalityTol": self.tolerance,
            "BarQCPConvTol": self.tolerance,
            "MIPGap": 0.0,
            "MIPGapAbs": self.tolerance,
            "DualReductions": 0,
        }
        if self.time_limit is not None:
            params["TimeLimit"] = self.time_limit
        if self.pool:
            params |= {"PoolSearchMode": 2, "PoolSolutions": count}
        for name, value in params.items():
            model.setParam(name, value)
        x = _build(gurobi, model, instance)
        for point in excluded:
            _exclude(gurobi, model, x, instance, point)
        points: list[np.ndarray] = []
        while len(points) < count:
            model.optimize()
            if model.Status == gurobi.GRB.UNBOUNDED or (model.Status == gurobi.GRB.INF_OR_UNBD):
                return Found(stacked(points, instance), Status.NO_MINIMUM)
            if not model.SolCount:
                proven = model.Status == gurobi.GRB.INFEASIBLE
                return Found(stacked(points, instance), Status.OPTIMAL if proven else Status.INACCURATE, proven)
            # A pool may hold one integer point several times, with continuous parts that differ by a tolerance.
            for k in range(model.SolCount if self.pool else 1):
                model.setParam("SolutionNumber", k)
                point = np.round([x[j].Xn for j in instance.integers])
                if not any(np.array_equal(point, other) for other in points):
                    points.append(point)
            proven = model.Status == gurobi.GRB.OPTIMAL
            if not proven or self.pool:
                exhausted = proven and model.SolCount < count
                return Found(stacked(points, instance), Status.OPTIMAL if proven else Status.INACCURATE, exhausted)
            _exclude(gurobi, model, x, instance, points[-1])
        return Found(stacked(points, instance), Status.OPTIMAL)


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


def _exclude(gurobi: Any, model: Any, x: list[Any], instance: Instance, point: np.ndarray) -> None:
    """Exclude one integer point; new binaries join the end of ``x``."""
    added, rows = exclusion(instance, point, len(x))
    x += [model.addVar(vtype=gurobi.GRB.BINARY) for _ in range(added)]
    for columns, coefficients, rhs in rows:
        terms = (float(a) * x[j] for a, j in zip(coefficients, columns, strict=True))
        model.addConstr(gurobi.quicksum(terms) <= float(rhs))
    model.update()
