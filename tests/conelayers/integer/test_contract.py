"""Checks that every oracle receives."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch

from conelayers import ConeProgram, Status, make_engine
from conelayers.errors import ModelError, ShapeError
from conelayers.integer.feasibility import feasible_points
from conelayers.oracles import (
    SCIP,
    Auto,
    BranchAndBound,
    Candidates,
    Enumeration,
    Gurobi,
    HiGHS,
    Oracle,
    Simplex,
    make_oracle,
)
from conelayers.program.program import Values
from tests.helpers.integer_checks import assert_contract, assert_same_values, brute_force
from tests.helpers.integer_programs import FAMILIES, LINEAR, newsvendor, portfolio

# A solver that is not installed fails its own tests, and not those that stand beside them.
ORACLES: dict[str, Callable[[], Oracle]] = {
    "auto": Auto,
    "branch_and_bound": BranchAndBound,
    "enumeration": Enumeration,
    "scip": partial(SCIP, jobs=1),
    "gurobi": partial(Gurobi, jobs=1),
    "gurobi_cuts": partial(Gurobi, jobs=1, pool=False),
    "highs": partial(HiGHS, jobs=1),
    "simplex": Simplex,
}

LINEAR_ONLY = ("highs", "simplex")


@pytest.fixture(params=ORACLES)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return ORACLES[request.param]()


@pytest.mark.parametrize(
    ("oracle", "name"),
    [(oracle, name) for oracle in ORACLES for name in (LINEAR if oracle in LINEAR_ONLY else FAMILIES)],
    indirect=["oracle"],
)
def test_best_points(oracle: Oracle, name: str) -> None:
    family = FAMILIES[name](np.random.default_rng(11), 3)
    expected = brute_force(family.program, family.theta)
    found = oracle.best(family.program, family.values, 3)
    assert_contract(family.program, family.theta, found, 3)
    # Two points closer than a solver's tolerance may be confused by it; SCIP's is the coarsest.
    assert_same_values(found, expected, 1e-5 if oracle.name == "scip" else 1e-6 if oracle.name == "gurobi" else 1e-7)
    feasible = expected.isfinite().any(1)
    assert torch.equal(found.status == int(Status.OPTIMAL), feasible)
    assert torch.equal(found.status == int(Status.INFEASIBLE), ~feasible)


def test_fewer_points_than_asked(oracle: Oracle) -> None:
    family = FAMILIES["assignment"](np.random.default_rng(1), 2)
    found = oracle.best(family.program, family.values, 9)
    assert found.valid.sum(1).tolist() == [6, 6]
    assert found.statuses == [Status.OPTIMAL] * 2
    assert bool(found.objective[:, 6:].isinf().all())


def test_single_precision_and_a_graph(oracle: Oracle) -> None:
    family = FAMILIES["covering"](np.random.default_rng(2), 3)
    theta = family.theta.float()
    one = oracle.best(family.program, family.program.values(theta), 2)
    two = oracle.best(family.program, family.program.values(theta.requires_grad_()), 2)
    assert one.objective.dtype == torch.float64
    assert not two.objective.requires_grad
    assert torch.equal(one.points, two.points)
    assert torch.equal(one.objective, two.objective)


def test_points_that_tie_come_in_lexicographic_order(oracle: Oracle) -> None:
    family = FAMILIES["ties"](np.random.default_rng(4), 4)
    found = oracle.best(family.program, family.values, 9)
    equal = (found.objective[:, 1:] - found.objective[:, :-1]).abs() < 1e-8
    assert equal.any(1).all()
    for item, slot in equal.nonzero().tolist():
        assert found.points[item, slot].tolist() < found.points[item, slot + 1].tolist()


@pytest.mark.parametrize("name", ["prices", "deviations"])
def test_an_item_is_answered_by_its_own_data(oracle: Oracle, name: str) -> None:
    if oracle.name in LINEAR_ONLY and name not in LINEAR:
        pytest.skip("It takes linear programs only")
    family = FAMILIES[name](np.random.default_rng(5), 4)
    together = oracle.best(family.program, family.values, 2)
    for item in range(4):
        alone = oracle.best(family.program, family.values[torch.tensor([item])], 2)
        assert torch.equal(alone.points[0][alone.valid[0]], together.points[item][together.valid[item]])
        assert alone.statuses[0] == together.statuses[item]


def test_nan_fails_alone(oracle: Oracle) -> None:
    family = FAMILIES["pure"](np.random.default_rng(2), 3)
    theta = family.theta.clone()
    theta[1] = torch.nan
    found = oracle.best(family.program, family.program.values(theta), 2)
    assert found.statuses == [Status.OPTIMAL, Status.FAILED, Status.OPTIMAL]


@pytest.mark.parametrize("name", FAMILIES)
def test_feasibility_is_that_of_a_solve(name: str) -> None:
    rng = np.random.default_rng(12)
    family = FAMILIES[name](rng, 5)
    lower, upper = family.program.integer_bounds
    expected = brute_force(family.program, family.theta).isfinite()
    size = (upper - lower + 1).long()
    index = torch.from_numpy(rng.integers(0, expected.shape[1], (5, 40)))
    points, rest = [], index.clone()
    for k in range(size.numel() - 1, -1, -1):
        points.append(lower[k] + rest % size[k])
        rest = rest // size[k]
    found = feasible_points(make_engine(), family.program, family.values, torch.stack(points[::-1], -1).double())
    assert torch.equal(found, expected.gather(1, index))


def test_feasibility_of_what_is_no_point() -> None:
    family = FAMILIES["pure"](np.random.default_rng(0), 2)
    theta = family.theta.clone()
    theta[1] = torch.nan
    points = torch.tensor([[0.0, 3, 0, 0], [0.5, 2.5, 0.5, 0], [-1, 2, 0, 1], [6, 0, 0, 0], [1, 1, 0, 1]]).double()
    found = feasible_points(make_engine(), family.program, family.program.values(theta), points.expand(2, -1, -1))
    assert found.tolist() == [[True, False, False, False, True], [False] * 5]
    with pytest.raises(ShapeError, match="points"):
        feasible_points(make_engine(), family.program, family.values, torch.zeros(2, 3))


def test_bad_requests(oracle: Oracle) -> None:
    family = FAMILIES["pure"](np.random.default_rng(0), 2)
    with pytest.raises(ModelError, match="At least one"):
        oracle.best(family.program, family.values, 0)


def test_auto_says_what_it_chose() -> None:
    auto = make_oracle("auto")
    assert isinstance(auto, Auto)
    small, large = portfolio(np.random.default_rng(0), 2, 20, 4), newsvendor(np.random.default_rng(0), 2)
    assert auto.choose(small.program).name == "enumeration"
    assert auto.choose(large.program).name == "branch_and_bound"
    assert auto.choose(FAMILIES["pure"](np.random.default_rng(0), 2).program).name == "simplex"
    found = auto.best(large.program, large.values, 1)
    assert found.oracle == "branch_and_bound"
    assert "branch_and_bound" in repr(found)


def test_registry() -> None:
    for name in ("branch_and_bound", "simplex", "enumeration", "scip", "gurobi", "highs"):
        assert make_oracle(name).name == name
    mine = BranchAndBound(fill=7)
    assert make_oracle(mine) is mine
    with pytest.raises(ModelError, match="no oracle 'cplex'"):
        make_oracle("cplex")


@dataclass(frozen=True)
class Counted:
    """An oracle as a user might write one: it has a name and ``best``, and nothing else."""

    asked: list[int] = field(default_factory=list)
    name: str = "counted"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        self.asked.append(count)
        return replace(Enumeration().best(program, values, count), oracle=self.name)


class Nameless:
    def best(self) -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [object(), Nameless(), Counted, SCIP, 3, None],
    ids=["object", "nameless", "class", "factory", "number", "None"],
)
def test_what_is_no_oracle_is_refused(wrong: object) -> None:
    with pytest.raises(ModelError, match=r"is no oracle: it must be a name or an object with name and best\(") as said:
        make_oracle(wrong)  # type: ignore[arg-type]
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in LINEAR])
def test_cones_that_a_solver_cannot_represent(name: str) -> None:
    family = FAMILIES[name](np.random.default_rng(0), 2)
    for oracle in (HiGHS(jobs=1), Simplex()):
        with pytest.raises(ModelError, match="quadratic" if name == "cardinality" else "soc"):
            oracle.best(family.program, family.values, 1)


def test_too_large_for_the_free_licence() -> None:
    if "GRB_LICENSE_FILE" in os.environ:
        pytest.skip("a full licence is installed")
    family = portfolio(np.random.default_rng(0), 1, 200, 4)
    with pytest.raises(ModelError, match="licence"):
        Gurobi(jobs=1).best(family.program, family.values, 1)


def test_a_large_box_is_not_enumerated() -> None:
    family = portfolio(np.random.default_rng(0), 1, 120, 4)
    with pytest.raises(ModelError, match="branch_and_bound"):
        Enumeration().best(family.program, family.values, 1)
