"""Solvers of others as oracles: a record says what a solver is and can, the loop is here, every point is certified."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conelayers.checks import whole
from conelayers.engine.engine import Engine
from conelayers.engine.registry import default_engine
from conelayers.errors import ModelError
from conelayers.extras import needs, require
from conelayers.integer.boxes import Boxes
from conelayers.integer.external.instance import Instance, Row, exclusion
from conelayers.integer.oracle import Candidates, check_cones, check_positive
from conelayers.integer.pool import Pool
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status

Array = np.ndarray

_ATTEMPTS = 4
"""How often a solver is asked again when some of its points fail their certificate."""


@dataclass(frozen=True, eq=False)
class Job:
    """What a solver is asked: the ``count`` best points of an instance other than those excluded."""

    instance: Instance
    count: int
    excluded: Sequence[Array]
    tolerance: float
    time_limit: float | None
    pool: bool


@dataclass(frozen=True, eq=False)
class Found:
    """What a solver says: points, best first, and whether they are proven to be the best.

    ``exhausted`` means that there are no other feasible points.
    """

    points: Sequence[Array]
    status: Status
    exhausted: bool = False


@dataclass(frozen=True)
class MIPSolver:
    """A solver of others, as data.

    Args:
        name: what the oracle, and the extra that installs it, are called.
        package: what is imported.
        cones: those that it can represent.
        worker: does a job, given the package; it runs in another process.
        tolerance: what it is asked for unless the user says otherwise.
        quadratic: whether the objective may have a quadratic part.
        pool: whether one search can return several points.
    """

    name: str
    package: str
    cones: frozenset[str]
    worker: Callable[[Any, Job], Found]
    tolerance: float
    quadratic: bool = True
    pool: bool = False

    def load(self) -> Any:
        """The package."""
        return require(self.package, self.name)

    def check(self, program: ConeProgram) -> None:
        """Refuse what the solver cannot represent."""
        check_cones(self.name, program, self.cones, self.quadratic)

    def do(self, job: Job) -> Found:
        """Do a job, in whichever process this is."""
        return self.worker(self.load(), job)


@dataclass(frozen=True, eq=False)
class External:
    """A solver of others: one instance at a time, in parallel, each of its points certified by our engine.

    Args:
        solver: which one; ``SCIP``, ``Gurobi`` and ``HiGHS`` have theirs already.
        engine: certifies the points that the solver returns.
        tolerance: feasibility, integrality and gap asked of the solver; None for what suits it.
        time_limit: seconds for each solve; None for no limit.
        jobs: instances at a time, as joblib counts them (-1: all cores).
        pool: take the points from one search, instead of excluding one by one; None: where the solver can.
    """

    solver: MIPSolver
    engine: Engine = field(default_factory=default_engine)
    tolerance: float | None = None
    time_limit: float | None = None
    jobs: int = -1
    pool: bool | None = None

    def __post_init__(self) -> None:
        # Looked for at once, and imported by who works with it.
        needs(self.name, "joblib", self.solver.package.split(".")[0])
        check_positive("tolerance", self.tolerance)
        check_positive("time_limit", self.time_limit)
        if whole("jobs", self.jobs, -sys.maxsize) == 0:
            raise ModelError("jobs must be a whole number other than 0: -1 takes all cores.")
        if self.pool and not self.solver.pool:
            raise ModelError(f"Oracle {self.name!r} has no pool of solutions: leave out pool.")

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.solver.name

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """Ask the solver for every item, certify what it returns, and ask again where too little of it stands."""
        joblib = require("joblib", self.name)
        self.solver.load()
        self.solver.check(program)
        settings = (
            self.solver.tolerance if self.tolerance is None else self.tolerance,
            self.time_limit,
            self.solver.pool if self.pool is None else self.pool,
        )
        pool = Pool(program, values, count)
        boxes = Boxes(self.engine, program, pool.values)
        batch, integers = len(values.q), program.integers.numel()
        excluded: list[list[Array]] = [[] for _ in range(batch)]
        status = np.full(batch, int(Status.FAILED))
        pending, rounds, relaxations = np.flatnonzero(pool.good), 0, 0
        doubtful = np.zeros(batch, dtype=bool)
        for _ in range(_ATTEMPTS):
            if not pending.size:
                break
            missing = count - pool.found[pending]
            asked = (
                Job(Instance.of(program, pool.values, int(i)), int(m), excluded[i], *settings)
                for i, m in zip(pending, missing, strict=True)
            )
            answers: list[Found] = joblib.Parallel(n_jobs=self.jobs)(
                joblib.delayed(self.solver.do)(job) for job in asked
            )
            item = pending.repeat([len(found.points) for found in answers])
            points = np.array([p for found in answers for p in found.points]).reshape(item.size, integers)
            solved = boxes.solve(item, points, points)
            rounds, relaxations = rounds + 1, relaxations + item.size
            pool.offer(item, points.astype(np.int64), solved)
            doubtful[item[solved.status == int(Status.FAILED)]] = True
            again = []
            for i, found in zip(pending, answers, strict=True):
                excluded[i] += found.points
                status[i] = int(found.status)
                if found.status == Status.OPTIMAL and not found.exhausted and pool.found[i] < count:
                    again.append(i)
            pending = np.array(again, dtype=np.int64)
        unfinished = np.isin(np.arange(batch), pending) | doubtful
        nothing = pool.found == 0
        proven = status == int(Status.OPTIMAL)
        status = np.where(proven & unfinished, int(Status.INACCURATE), status)
        status = np.where(proven & nothing & ~unfinished, int(Status.INFEASIBLE), status)
        status = np.where((status == int(Status.INACCURATE)) & nothing, int(Status.FAILED), status)
        gap = np.where(status == int(Status.OPTIMAL), 0.0, np.inf)
        return pool.candidates(self.name, status, gap, np.zeros(batch, dtype=np.int64), rounds, relaxations)


def one_by_one(job: Job, solve: Callable[[], Found], add: Callable[[int, list[Row]], None]) -> Found:
    """Solve, exclude what was found, solve again, until there are enough points or no others; with a pool, solve once.

    Args:
        job: what is asked.
        solve: the best of what the model admits.
        add: appends so many binaries, and then rows, to the model.
    """
    points: list[Array] = []
    known, columns, new = set(), job.instance.columns, [*job.excluded]
    while True:
        for point in new:
            known.add(tuple(point))
            added, rows = exclusion(job.instance, point, columns)
            add(added, rows)
            columns += added
        found = solve()
        # One integer point may come several times, with continuous parts that differ by a tolerance.
        new = [np.array(p) for p in dict.fromkeys(map(tuple, found.points)) if p not in known]
        points += new
        if found.points and not new:
            # What is excluded comes back: rows hold up to the tolerance only, and nothing is proven.
            return Found(points, Status.INACCURATE)
        if job.pool or found.status != Status.OPTIMAL or found.exhausted or len(points) >= job.count:
            return Found(points, found.status, found.exhausted)
