"""Iterative refinement: certified against bounds that need no solver."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import Engine, Status, compile_program, make_engine
from conelayers.engine.refinement import ENOUGH, REFINE_FROM, refine
from conelayers.engine.solvers.automatic import general_solver
from conelayers.engine.verdict import classify
from conelayers.program import residuals
from tests.helpers.programs import family


def convex_regression(points: int) -> tuple[cp.Problem, cp.Variable, np.ndarray]:
    """Fit a convex sequence to a concave one; rows that are nearly parallel hide a third of the optimum (LISWET1)."""
    place = np.arange(points)
    y = np.sqrt(place / (points - 1)) + 0.1 * np.sin(place + 1)
    x = cp.Variable(points, name="x")
    return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - y)), [cp.diff(x, 2) >= 0]), x, y


def test_nearly_parallel_rows_are_solved_to_the_last_digits() -> None:
    """A feasible point bounds the optimum from above, weak duality from below; both by arithmetic alone."""
    problem, variable, y = convex_regression(3000)
    program = compile_program(problem)
    solution = make_engine().solve(program, torch.zeros(1, 0, dtype=torch.float64))
    assert solution.statuses == [Status.OPTIMAL]
    x = solution.variable(variable)[0].numpy()
    # Adding a parabola makes the sequence convex.
    bent = max(0.0, float(-np.diff(x, 2).min())) * np.arange(len(y)) ** 2 / 2.0
    above = 0.5 * float(((x + bent - y) ** 2).sum())
    # Multipliers of the second differences solve D'z = x - y: any nonnegative z is a bound.
    z = np.cumsum(np.cumsum(x - y))[:-2].clip(min=0.0)
    Dz = np.convolve(z, [1.0, -2.0, 1.0])
    below = -0.5 * float(Dz @ Dz) - float(z @ np.diff(y, 2))
    assert below <= above * (1 + 1e-12)
    assert above - below <= 1e-5 * above
    assert below * (1 - 1e-7) <= float(solution.objective) <= above * (1 + 1e-7)


@pytest.mark.parametrize("name", ["qp", "flat"])
def test_rough_answers_become_accurate(name: str) -> None:
    member = family(name)
    program, values = member.program, member.program.values(member.theta(4, seed=2))
    solver = general_solver().with_tolerance(1e-6)
    rough = solver.solve(program, values)
    status, residual = classify(program, values, rough)
    assert float(residual.max()) > REFINE_FROM
    points, better, smaller = refine(solver, program, values, rough, status, residual, residuals.ROUNDING)
    assert better.tolist() == [int(Status.OPTIMAL)] * 4
    assert float(smaller.max()) <= 10.0 * ENOUGH
    torch.testing.assert_close(classify(program, values, points)[1], smaller)


def test_only_points_that_a_correction_can_start_from_are_refined() -> None:
    member = family("qp")
    program, values = member.program, member.program.values(member.theta(3, seed=2))
    solver = general_solver().with_tolerance(1e-6)
    rough = solver.solve(program, values)
    rough = replace(rough, x=torch.stack([rough.x[0], torch.full_like(rough.x[1], torch.nan), rough.x[2]]))
    status, residual = classify(program, values, rough)
    status[2] = int(Status.INFEASIBLE)
    points, better, _ = refine(solver, program, values, rough, status, residual, residuals.ROUNDING)
    assert better.tolist() == [int(Status.OPTIMAL), int(Status.FAILED), int(Status.INFEASIBLE)]
    torch.testing.assert_close(points.x[1:], rough.x[1:], rtol=0, atol=0, equal_nan=True)


def test_an_engine_without_a_second_route_does_not_refine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("refined")

    monkeypatch.setattr("conelayers.engine.engine.refine", fail)
    member = family("qp")
    assert Engine(general_solver()).solve(member.program, member.theta(2)).statuses == [Status.OPTIMAL] * 2
    with pytest.raises(AssertionError, match="refined"):
        make_engine().solve(member.program, member.theta(2))
