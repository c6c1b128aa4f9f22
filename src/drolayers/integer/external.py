"""What the oracles built on other solvers share: one instance at a time, in parallel, every point certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, delayed

from drolayers.conic import ConeProgram, Cones, Engine, Values
from drolayers.errors import MissingExtraError, ModelError
from drolayers.integer.boxes import Boxes
from drolayers.integer.oracle import Candidates
from drolayers.integer.pool import Pool
from drolayers.status import Status

Array = np.ndarray

_ATTEMPTS = 4
"""How often a solver is asked again when some of its points fail their certificate."""


@dataclass(frozen=True, eq=False)
class Instance:
    """One program as plain arrays, its objective divided by its largest coefficient.

    ``minimise ½xᵀPx + qᵀx, Ax + s = b, s ∈ K`` with ``lower ≤ x ≤ upper`` and some columns integer; rows that hold one
    column are bounds, not rows.
    """

    P: sp.csr_array
    q: Array
    A: sp.csr_array
    b: Array
    cones: Cones
    integers: Array
    lower: Array
    upper: Array

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.q.size

    @classmethod
    def of(cls, program: ConeProgram, values: Values, item: int) -> Instance:
        """Cut one item out of a batch."""
        P_data, A_data, q, b = (t[item].cpu().numpy() for t in (values.P, values.A, values.q, values.b))
        P = sp.csr_array((P_data, program.P_indices.numpy(), program.P_indptr.numpy()), shape=(q.size, q.size))
        A = sp.csr_array((A_data, program.A_indices.numpy(), program.A_indptr.numpy()), shape=(b.size, q.size))
        scale = np.abs(q).max(initial=0.0) or 1.0
        cones, linear = program.cones, program.cones.zero + program.cones.nonneg
        lower, upper = np.full(q.size, -np.inf), np.full(q.size, np.inf)
        index = np.arange(b.size)
        alone = (np.diff(A.indptr) == 1) & (index >= cones.zero) & (index < linear)
        for row in index[alone]:
            column, a = A.indices[A.indptr[row]], A.data[A.indptr[row]]
            if a > 0:
                upper[column] = min(upper[column], b[row] / a)
            elif a < 0:
                lower[column] = max(lower[column], b[row] / a)
        # A structural zero on its own says 0 ≤ b.
        alone &= np.array([bool(A.data[A.indptr[r]]) if alone[r] else False for r in index], dtype=bool)
        kept = replace(cones, nonneg=cones.nonneg - int(alone.sum()))
        size = _cone_scale(A, cones)[~alone]
        A, b = sp.csr_array(sp.diags_array(size) @ A[~alone]), size * b[~alone]
        return cls(P / scale, q / scale, A, b, kept, program.integers.numpy(), lower, upper)


def _cone_scale(A: sp.csr_array, cones: Cones) -> Array:
    """A factor for every row that brings the smallest coefficient of each second-order cone to one.

    Solvers test ``‖s‖² ≤ t²`` against absolute numbers: with lots of 1/60 a tolerance of 1e-7 is 4e-4 of the square.
    """
    scale, at = np.ones(A.shape[0]), cones.zero + cones.nonneg
    for dimension in cones.soc:
        entries = np.abs(A.data[A.indptr[at] : A.indptr[at + dimension]])
        smallest = entries[entries > 0].min(initial=1.0)
        scale[at : at + dimension] = 1.0 / max(smallest, 1e-4)
        at += dimension
    return scale


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


def exclusion(instance: Instance, point: Array, fresh: int) -> tuple[int, list[tuple[Array, Array, float]]]:
    """Rows ``coefficientsᵀx ≤ rhs`` that exclude one integer point, and how many new binaries they need.

    A boolean differs from p where ``p(1-x) + (1-p)x ≥ 1``. A general integer needs two binaries that say on which side
    of p it is. New binaries are columns ``fresh``, ``fresh + 1`` and so on.
    """
    lower, upper = instance.lower[instance.integers], instance.upper[instance.integers]
    rows: list[tuple[Array, Array, float]] = []
    columns, coefficients, rhs, added = [], [], -1.0, 0
    for column, p, low, high in zip(instance.integers, point, lower, upper, strict=True):
        if low == high:
            continue
        if high - low == 1:
            sign = 1.0 if p == high else -1.0
            columns.append(column)
            coefficients.append(sign)
            rhs += high if p == high else -low
            continue
        above, below = fresh + added, fresh + added + 1
        added += 2
        # above = 1 implies x ≥ p + 1; below = 1 implies x ≤ p - 1.
        rows.append((np.array([column, above]), np.array([-1.0, p + 1.0 - low]), -low))
        rows.append((np.array([column, below]), np.array([1.0, high - p + 1.0]), high))
        columns += [above, below]
        coefficients += [-1.0, -1.0]
    rows.append((np.array(columns, dtype=np.int64), np.array(coefficients), rhs))
    return added, rows


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
