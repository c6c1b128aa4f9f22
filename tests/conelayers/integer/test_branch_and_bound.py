"""The search against enumeration, its limits, its failures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from conelayers import Engine, Status
from conelayers.engine.solvers.automatic import general_solver
from conelayers.engine.solvers.contract import Points, Solver
from conelayers.errors import ModelError
from conelayers.oracles import BranchAndBound
from tests.helpers.integer_checks import assert_contract, assert_same_values, brute_force
from tests.helpers.integer_programs import FAMILIES, newsvendor, portfolio

BATCH = 24


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_enumeration_on_random_batches(name: str, seed: int) -> None:
    """13 families x 2 seeds x 24 items = 624 instances, each for several numbers of points."""
    family = FAMILIES[name](np.random.default_rng(seed), BATCH)
    expected = brute_force(family.program, family.theta)
    everything = min(int(expected.isfinite().sum(1).max()) + 2, 12)
    for count in (1, 3, everything):
        found = BranchAndBound().best(family.program, family.values, count)
        assert_contract(family.program, family.theta, found, count)
        assert_same_values(found, expected)
        feasible = expected.isfinite().any(1)
        assert torch.equal(found.status == int(Status.OPTIMAL), feasible)
        assert torch.equal(found.status == int(Status.INFEASIBLE), ~feasible)


@pytest.mark.parametrize("name", ["assignment", "covering", "pure", "integers"])
def test_more_points_than_there_are(name: str) -> None:
    family = FAMILIES[name](np.random.default_rng(5), 4)
    expected = brute_force(family.program, family.theta)
    count = int(expected.isfinite().sum(1).max()) + 3
    found = BranchAndBound().best(family.program, family.values, count)
    assert_same_values(found, expected)
    assert not found.valid[:, -1].any()
    # Every feasible point is found, each once: those of enumeration, whatever their order.
    lower, upper = (end.long().tolist() for end in family.program.integer_bounds)
    box = list(itertools.product(*(range(a, b + 1) for a, b in zip(lower, upper, strict=True))))
    for item in range(4):
        feasible = sorted(box[k] for k in expected[item].isfinite().nonzero()[:, 0].tolist())
        assert sorted(tuple(p) for p in found.points[item][found.valid[item]].long().tolist()) == feasible


def test_points_are_those_of_enumeration_where_nothing_ties() -> None:
    family = newsvendor(np.random.default_rng(7), 16)
    expected = brute_force(family.program, family.theta)
    found = BranchAndBound().best(family.program, family.values, 4)
    binary = torch.tensor([[float(c) for c in f"{k:06b}"] for k in range(64)])
    assert torch.equal(found.points, binary[expected.argsort(1)[:, :4]].double())


def test_scale_of_the_objective_does_not_matter() -> None:
    family = portfolio(np.random.default_rng(2), 8)
    reference = BranchAndBound().best(family.program, family.values, 3)
    for scale in (1e-3, 1e2):
        found = BranchAndBound().best(family.program, family.program.values(scale * family.theta), 3)
        assert torch.equal(found.points, reference.points)
        torch.testing.assert_close(found.objective, scale * reference.objective, rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("name", ["portfolio_mixed", "newsvendor", "cardinality", "knapsack"])
def test_a_node_limit_ends_with_an_honest_gap(name: str) -> None:
    family = FAMILIES[name](np.random.default_rng(3), 12)
    expected = brute_force(family.program, family.theta).sort(1).values
    found = BranchAndBound(node_limit=1).best(family.program, family.values, 2)
    assert bool((found.nodes <= 1).all())
    stopped = found.status == int(Status.INACCURATE)
    assert stopped.any()
    assert set(found.statuses) <= {Status.OPTIMAL, Status.INACCURATE, Status.FAILED}
    full = found.valid.all(1) & stopped
    # No point is better than the last slot by more than the gap.
    assert bool((expected[full, 1] >= found.objective[full, 1] - found.gap[full] - 1e-9).all())
    assert bool((found.gap[stopped] > 0).all())
    assert bool(found.gap[stopped & ~found.valid.all(1)].isinf().all())


def test_a_time_limit_ends_the_search() -> None:
    family = newsvendor(np.random.default_rng(3), 6)
    found = BranchAndBound(time_limit=1e-9).best(family.program, family.values, 2)
    assert found.rounds == 0
    assert set(found.statuses) == {Status.FAILED}
    assert bool(found.gap.isinf().all())


@pytest.mark.parametrize("setting", [{"node_limit": 0}, {"time_limit": 0.0}])
def test_limits_are_checked(setting: dict[str, float]) -> None:
    with pytest.raises(ModelError, match="limit"):
        BranchAndBound(**setting)


def test_an_item_with_nan_fails_alone() -> None:
    family = portfolio(np.random.default_rng(4), 6)
    theta = family.theta.clone()
    theta[2, 0] = torch.nan
    found = BranchAndBound().best(family.program, family.program.values(theta), 3)
    reference = BranchAndBound().best(family.program, family.values, 3)
    others = torch.arange(6) != 2
    assert found.statuses[2] == Status.FAILED
    assert not found.valid[2].any()
    assert bool((found.status[others] == int(Status.OPTIMAL)).all())
    assert torch.equal(found.points[others], reference.points[others])
    nothing = family.program.values(torch.full_like(theta, torch.nan))
    assert BranchAndBound().best(family.program, nothing, 3).statuses == [Status.FAILED] * 6


@pytest.mark.parametrize("name", ["portfolio_mixed", "newsvendor", "integers"])
def test_two_runs_agree_to_the_bit(name: str) -> None:
    family = FAMILIES[name](np.random.default_rng(8), 8)
    one, two = (BranchAndBound().best(family.program, family.values, 4) for _ in range(2))
    assert torch.equal(one.points, two.points)
    assert torch.equal(one.objective, two.objective)
    assert one.relaxations == two.relaxations


def test_an_item_does_not_depend_on_its_batch() -> None:
    family = newsvendor(np.random.default_rng(9), 9)
    together = BranchAndBound().best(family.program, family.values, 3)
    for item in range(0, 9, 4):
        alone = BranchAndBound().best(family.program, family.program.values(family.theta[item : item + 1]), 3)
        assert torch.equal(alone.points[0], together.points[item])


@dataclass(frozen=True, eq=False)
class Unreliable:
    """A back end that breaks down on a share of the boxes (never on single points), chosen by their numbers."""

    inner: Solver
    share: float
    name: str = "unreliable"

    @property
    def capabilities(self) -> object:
        return self.inner.capabilities

    def solve(self, program, values, warm_start=None, level=None) -> Points:  # type: ignore[no-untyped-def]
        raw = self.inner.solve(program, values, warm_start)
        # Rows come in units of their own, which show in their one entry.
        ends = [
            values.b[:, rows] / values.A[:, program.A_indptr[rows]].abs()
            for rows in (program.lower_rows, program.upper_rows)
        ]
        box = (ends[0] + ends[1]).abs().amax(1) > 1e-9
        hashed = (values.b * torch.arange(1, program.rows + 1).sin()).sum(1).mul(1e4).frac().abs()
        bad = box & (hashed < self.share)
        x = torch.where(bad[:, None], torch.full_like(raw.x, 1e6), raw.x)
        verdict = torch.where(bad, torch.full_like(raw.verdict, int(Status.FAILED)), raw.verdict)
        return replace(raw, x=x, verdict=verdict)


@pytest.mark.parametrize("name", ["portfolio_mixed", "newsvendor", "knapsack", "covering", "integers"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_failed_relaxations_never_lose_a_point(name: str, share: float) -> None:
    family = FAMILIES[name](np.random.default_rng(6), 6)
    expected = brute_force(family.program, family.theta)
    engine = Engine(Unreliable(general_solver(), share))  # type: ignore[arg-type]
    found = BranchAndBound(engine).best(family.program, family.values, 3)
    assert_same_values(found, expected)
    assert bool((found.status <= int(Status.INFEASIBLE)).all())
    assert int(found.nodes.sum()) > BranchAndBound().best(family.program, family.values, 3).nodes.sum()


def test_points_that_cannot_be_solved_leave_a_gap() -> None:
    @dataclass(frozen=True, eq=False)
    class Broken(Unreliable):
        def solve(self, program, values, warm_start=None, level=None) -> Points:  # type: ignore[no-untyped-def]
            raw = self.inner.solve(program, values, warm_start)
            # Fixed boxes have upper + (-lower) = 0; of those, the ones with the first integer at one.
            fixed = (values.b[:, program.upper_rows] + values.b[:, program.lower_rows]).abs().amax(1) < 1e-9
            bad = fixed & (values.b[:, program.upper_rows[0]] > 0)
            x = torch.where(bad[:, None], torch.full_like(raw.x, 1e6), raw.x)
            verdict = torch.where(bad, torch.full_like(raw.verdict, int(Status.FAILED)), raw.verdict)
            return replace(raw, x=x, verdict=verdict)

    family = newsvendor(np.random.default_rng(6), 8)
    expected = brute_force(family.program, family.theta)
    found = BranchAndBound(Engine(Broken(general_solver(), 1.0))).best(family.program, family.values, 1)  # type: ignore[arg-type]
    one = expected[:, 32:].amin(1)
    zero = expected[:, :32].amin(1)
    hidden = one < zero - 1e-6
    assert hidden.any()
    assert bool((found.status[hidden] == int(Status.INACCURATE)).all())
    # An integral relaxation may have settled such a point: the gap is that of the point found.
    assert bool((found.objective[hidden, 0] - one[hidden] <= found.gap[hidden] + 1e-8).all())


def test_a_decision_that_runs_away_has_no_minimum() -> None:
    import cvxpy as cp

    from conelayers import compile_program

    x, y, price = cp.Variable(3, boolean=True), cp.Variable(nonneg=True), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(price * y + cp.sum(x)), [cp.sum(x) >= 1]), [price])
    found = BranchAndBound().best(program, program.values(torch.tensor([[1.0], [-1.0]]).double()), 2)
    assert found.statuses == [Status.OPTIMAL, Status.UNBOUNDED]
    assert not found.valid[1].any()


def test_parity_is_proven_infeasible() -> None:
    import cvxpy as cp

    from conelayers import compile_program

    x, cost = cp.Variable(7, boolean=True), cp.Parameter(7)
    program = compile_program(cp.Problem(cp.Minimize(cost @ x), [2 * cp.sum(x) == 5]), [cost])
    found = BranchAndBound().best(program, program.values(torch.ones(2, 7).double()), 2)
    assert found.statuses == [Status.INFEASIBLE] * 2
