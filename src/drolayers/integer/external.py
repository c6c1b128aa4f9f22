"""What the oracles built on other solvers share: one instance at a time, in parallel, every point certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from drolayers.conic import ConeProgram, Engine, Values
from drolayers.errors import MissingExtraError, ModelError
from drolayers.integer.boxes import Boxes
from drolayers.integer.instance import Instance
from drolayers.integer.oracle import Candidates
from drolayers.integer.pool import Pool
from drolayers.status import Status

Array = np.ndarray

_ATTEMPTS = 4
"""How often a solver is asked again when some of its points fail their certificate."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a solver says about one instance: points, best first, and whether they are proven to be the best.

    ``exhausted`` means that there are no other feasible points.
    """

    points: Array
    status: Status
    exhausted: bool = False


Worker = Callable[[Instance, int, Array], Found]
"""The best ``count`` points of an instance other than those excluded."""


def top(
    worker: Worker, engine: Engine, program: ConeProgram, values: Values, count: int, jobs: int, name: str
) -> Candidates:
    """Ask a solver for every item, certify what it returns, and ask again where too little of it stands."""
    pool = Pool(program, values, count)
    boxes = Boxes(engine, program, pool.values)
    batch, integers = len(values), program.integers.numel()
    excluded = [np.zeros((0, integers)) for _ in range(batch)]
    status = np.full(batch, int(Status.FAILED))
    pending, rounds, relaxations = np.flatnonzero(pool.good), 0, 0
    doubtful = np.zeros(batch, dtype=bool)
    for _ in range(_ATTEMPTS):
        if not pending.size:
            break
        missing = count - pool.found[pending]
        answers: list[Found] = Parallel(n_jobs=jobs)(
            delayed(worker)(Instance.of(program, pool.values, int(i)), int(m), excluded[i])
            for i, m in zip(pending, missing, strict=True)
        )
        item = pending.repeat([f.points.shape[0] for f in answers])
        points = np.concatenate([np.zeros((0, integers)), *(f.points for f in answers)])
        solved = boxes.solve(item, points, points)
        rounds, relaxations = rounds + 1, relaxations + item.size
        pool.offer(item, points.astype(np.int64), solved)
        doubtful[item[solved.status == int(Status.FAILED)]] = True
        again = []
        for i, found in zip(pending, answers, strict=True):
            excluded[i] = np.concatenate([excluded[i], found.points])
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
    return pool.candidates(name, status, gap, np.zeros(batch, dtype=np.int64), rounds, relaxations)


def stacked(points: list[Array], instance: Instance) -> Array:
    """A list of points as an array."""
    return np.array(points).reshape(len(points), instance.integers.size)


def check_cones(program: ConeProgram, allowed: frozenset[str], quadratic: bool, name: str) -> None:
    """Refuse what a solver cannot represent."""
    missing = sorted(program.cones.kinds - allowed)
    if program.quadratic and not quadratic:
        missing.append("a quadratic objective")
    if missing:
        raise ModelError(f"Oracle {name!r} cannot handle {', '.join(missing)}: use oracle='branch_and_bound'.")


def require(package: str, extra: str) -> Any:
    """An optional package, or a sentence on how to get it."""
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"{package} is not installed: install drolayers[{extra}] for oracle={extra!r}."
        ) from error
