"""Statuses rest on residuals that are computed afterwards, never on a solver's own word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeProgram, Status, compile_program
from conelayers.engine.solvers.automatic import general_solver
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.contract import Points
from conelayers.engine.verdict import classify, second_route
from conelayers.program.program import Values
from conelayers.program.residuals import infeasibility, outside, unboundedness, value_error
from tests.helpers.cone_checks import by_clarabel, violation
from tests.helpers.programs import family

NAMES = ["lp", "qp", "qp_weights", "socp", "sdp_mixed"]


def solved(name: str, items: int = 4) -> tuple[ConeProgram, Values, Points]:
    """Points that are right to the last digits."""
    member = family(name)
    values = member.program.values(member.theta(items, seed=1))
    return member.program, values, Clarabel(tolerance=1e-11).solve(member.program, values)


def claiming(points: Points, verdict: Status) -> Points:
    """The same with another word for it."""
    return replace(points, verdict=torch.full_like(points.verdict, int(verdict)))


def statuses(program: ConeProgram, values: Values, points: Points) -> set[Status]:
    return {Status(int(s)) for s in classify(program, values, points)[0]}


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_without_its_certificate_is_not_believed(name: str) -> None:
    program, values, points = solved(name)
    assert statuses(program, values, points) == {Status.OPTIMAL}
    # The word of a solver that gave up does not matter where its point is right.
    assert statuses(program, values, claiming(points, Status.FAILED)) == {Status.OPTIMAL}
    for lie in (Status.INFEASIBLE, Status.UNBOUNDED):
        assert statuses(program, values, claiming(points, lie)) == {Status.FAILED}


@pytest.mark.parametrize("part", ["x", "z", "s"])
@pytest.mark.parametrize("name", ["lp", "qp", "socp", "sdp_mixed"])
def test_a_point_that_is_off_is_not_optimal(name: str, part: str) -> None:
    """By how much decides: far below what is accepted, between both limits, beyond them."""
    program, values, points = solved(name)
    generator = torch.Generator().manual_seed(0)
    value = getattr(points, part)
    move = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    for size, allowed in (
        (1e-10, {Status.OPTIMAL}),
        (3e-6, {Status.INACCURATE}),
        (1e-1, {Status.FAILED}),
    ):
        moved = replace(points, **{part: value + size * move})
        assert statuses(program, values, claiming(moved, Status.OPTIMAL)) == allowed, size


@pytest.mark.parametrize("name", ["qp", "socp", "portfolio"])
def test_the_residual_bounds_the_error_of_the_value(name: str) -> None:
    """For points that are off by different amounts, against CVXPY's values."""
    member = family(name)
    theta = member.theta(4, seed=1)
    best, _ = by_clarabel(member, theta)
    program, values, points = solved(name)
    generator = torch.Generator().manual_seed(1)
    for size in (1e-8, 1e-6, 1e-4, 1e-2):
        x = points.x + size * torch.randn(points.x.shape, generator=generator, dtype=torch.float64)
        _, residual = classify(program, values, replace(points, x=x))
        objective = (values.q * x).sum(1) + values.constant
        if program.quadratic:
            weight = values.P * x[:, program.P_indices]
            rows = torch.repeat_interleave(torch.arange(program.columns), program.P_indptr.diff())
            objective = objective + 0.5 * (weight * x[:, rows]).sum(1)
        error = (objective.numpy() - best) / np.abs(best)
        assert (np.abs(error) <= residual.numpy() * (1 + 1e-6) + 1e-8).all()


def test_errors_of_values_in_numbers() -> None:
    """½xᵀPx + qᵀx = -2 = -(½xᵀPx + bᵀz): a slip of 1e-3 is a two-thousandth of that."""
    assert value_error(2.0, -3.0, 1.0, 1e-3, 0.0, 1e-7) == pytest.approx(5e-4)
    # A gap of 0.2 between -2 and -2.2, beside their mean.
    assert value_error(2.0, -3.0, 1.2, 0.0, 0.0, 1e-7) == pytest.approx(0.2 / 2.1)
    # Terms of 8 that cancel but for 1e-4, and a slip of 8e-9: right to a billionth of the terms, not to a trillionth.
    some = (0.0, 1e-4, -1e-4, 8e-9, 8.0, 1e-7)
    assert value_error(*some, hidden=0.0) == pytest.approx(8e-9 / (1e-4 + 8e-5))
    assert value_error(*some, hidden=0.0, rounding=1e-9) <= 1e-7


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", ["lp", "qp", "socp", "portfolio", "sdp", "sdp_mixed", "delage_ye"])
def test_how_far_rows_lie_outside(name: str, dual: bool) -> None:
    """Cone by cone, against the plain check of these tests."""
    program = family(name).program
    rng = np.random.default_rng(0)
    s = rng.normal(size=(20, program.rows))
    expected = [violation(program, row, dual) for row in s]
    np.testing.assert_allclose(outside(program, torch.tensor(s), dual).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_certificates_by_hand() -> None:
    """x ≥ 1 and x ≤ u with u < 1 have no point; with u free, min -cx has no minimum along x."""
    x, c, u = cp.Variable(), cp.Parameter(), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(c * x), [-x <= -1, x <= u]), [c, u])
    values = program.values(torch.tensor([[1.0, 0.5], [1.0, 2.0]], dtype=torch.float64))
    # One of each row: Aᵀz = 0 and bᵀz = u - 1.
    both = torch.ones(2, 2, dtype=torch.float64)
    assert infeasibility(program, values, both).tolist() == [0.0, np.inf]
    # With the other sign the second item gains one, but lies outside the cone by as much.
    assert infeasibility(program, values, -both).tolist() == [np.inf, 1.0]
    off = both + torch.tensor([[0.1, 0.0]], dtype=torch.float64)
    # Aᵀz is off by 0.1 beside a gain of 0.5, give or take 0.1.
    assert 0.1 < float(infeasibility(program, values, off)[0]) < 0.5
    free = compile_program(cp.Problem(cp.Minimize(c * x), [-x <= -1]), [c])
    values = free.values(torch.tensor([[-2.0], [2.0]], dtype=torch.float64))
    up = torch.ones(2, 1, dtype=torch.float64)
    assert unboundedness(free, values, up).tolist() == [0.0, np.inf]
    # Down there is the row, by one for a gain of two.
    assert unboundedness(free, values, -up).tolist() == pytest.approx([np.inf, 0.5])


def test_a_second_route_that_is_worse_is_not_taken() -> None:
    """An answer of some digits stays, whatever the rescue says without proof."""
    member = family("socp")
    program, values = member.program, member.program.values(member.theta(4))
    rough = general_solver().with_tolerance(1e-5).solve(program, values)
    status, residual = classify(program, values, rough)
    assert int(Status.INACCURATE) in status.tolist()

    @dataclass(frozen=True)
    class Worse:
        says: Status

        def solve(self, program: ConeProgram, values: Values) -> Points:
            points = Clarabel().solve(program, values)
            return claiming(replace(points, x=points.x + 1.0), self.says)

    for claim in (Status.OPTIMAL, Status.INFEASIBLE, Status.UNBOUNDED):
        points, *verdict = second_route(Worse(claim), program, values, rough, status, residual, torch.arange(4))
        torch.testing.assert_close(points.x, rough.x, rtol=0, atol=0)
        torch.testing.assert_close(verdict, [status, residual], rtol=0, atol=0)
