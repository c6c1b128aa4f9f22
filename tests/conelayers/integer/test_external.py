"""The loop around solvers of others, on records whose solvers are a few lines; and settings."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from conelayers import Status
from conelayers.errors import MissingExtraError, ModelError
from conelayers.integer.external.external import Found, Job, MIPSolver, one_by_one
from conelayers.oracles import SCIP, BranchAndBound, Enumeration, External, Gurobi, HiGHS
from tests.helpers.integer_checks import assert_contract
from tests.helpers.integer_programs import pure

LINEAR = frozenset({"zero", "nonneg"})


def every_point(_: Any, job: Job) -> Found:
    """Solve pure integer linear programs by trying all points."""
    instance, zero = job.instance, job.instance.cones.zero
    axes = [np.arange(low, high + 1) for low, high in zip(instance.lower, instance.upper, strict=True)]
    known = [point.tolist() for point in job.excluded]
    slacks = [(np.array(p), instance.b - instance.A @ np.array(p)) for p in product(*axes) if list(p) not in known]
    points = [p for p, s in slacks if np.abs(s[:zero]).max() < 1e-9 and s[zero:].min() > -1e-9]
    points.sort(key=lambda point: float(instance.q @ point))
    return Found(points[: job.count], Status.OPTIMAL, exhausted=len(points) < job.count)


def test_a_record_makes_an_oracle() -> None:
    family = pure(np.random.default_rng(3), 4)
    tiny = External(MIPSolver("tiny", "numpy", LINEAR, every_point, tolerance=1e-9), jobs=1)
    found = tiny.best(family.program, family.values, 3)
    assert_contract(family.program, family.theta, found, 3)
    assert torch.equal(found.points, Enumeration().best(family.program, family.values, 3).points)
    assert found.oracle == "tiny"


def stuck(_: Any, job: Job) -> Found:
    """Return one point, whatever is excluded."""
    return one_by_one(job, lambda: Found([np.array([0.0, 3.0, 0.0, 0.0])], Status.OPTIMAL), lambda binaries, rows: None)


def test_a_point_that_comes_back_although_excluded_ends_the_search_without_a_proof() -> None:
    family = pure(np.random.default_rng(3), 2)
    oracle = External(MIPSolver("stuck", "numpy", LINEAR, stuck, tolerance=1e-9), jobs=1)
    found = oracle.best(family.program, family.values, 3)
    assert_contract(family.program, family.theta, found, 3)
    assert found.statuses == [Status.INACCURATE] * 2
    assert found.valid.sum(1).tolist() == [1, 1]


def test_a_package_that_is_missing() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'conelayers\[absent\]'"):
        External(MIPSolver("absent", "drolayers_absent", LINEAR, stuck, tolerance=1e-9))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"tolerance": "fine"}, "tolerance must be one number"),
        ({"time_limit": float("nan")}, "time_limit must be positive"),
        ({"jobs": 0}, "jobs must be a whole number other than 0"),
        ({"jobs": 1.5}, "jobs must be a whole number"),
    ],
    ids=str,
)
def test_settings_are_checked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        HiGHS(**settings)


def test_other_settings_are_checked() -> None:
    assert Gurobi(pool=False).pool is False
    assert SCIP(pool=False).pool is False
    with pytest.raises(ModelError, match="'scip' has no pool of solutions"):
        SCIP(pool=True)
    with pytest.raises(ModelError, match="time_limit must be positive"):
        BranchAndBound(time_limit=float("nan"))
