"""The checks themselves must be able to fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from conelayers import make_engine
from tests.helpers.cone_checks import assert_agrees, assert_gradient, assert_kkt, central_differences, margin, violation
from tests.helpers.programs import NAMES, family


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["primal", "dual", "slack", "objective"])
def test_optimality_check_sees_a_moved_point(name: str, field: str) -> None:
    member = family(name)
    theta = member.theta(2)
    solution = make_engine().solve(member.program, theta)
    assert_kkt(member, theta, solution)
    moved = getattr(solution, field) + 1e-3
    with pytest.raises(AssertionError, match=name):
        assert_kkt(member, theta, replace(solution, **{field: moved}))


@pytest.mark.parametrize("field", ["primal", "objective"])
def test_agreement_check_sees_a_difference(field: str) -> None:
    member = family("socp")
    theta = member.theta(2)
    solution = make_engine().solve(member.program, theta)
    assert_agrees(member, theta, solution)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_agrees(member, theta, replace(solution, **{field: getattr(solution, field) * 1.001}))
    with pytest.raises(AssertionError, match="Not equal"):
        assert_agrees(member, theta.flip(0), solution)


def test_gradient_check_sees_a_difference() -> None:
    member = family("socp")
    theta = member.theta(2).requires_grad_()
    weight = torch.zeros(2, member.program.columns)
    weight[:, :3] = 1.0
    _, expected = central_differences(member.program, theta, weight)
    (found,) = torch.autograd.grad(make_engine().solve(member.program, theta).objective.sum(), theta)
    assert_gradient(found, expected, 1e-4)
    for wrong in (-found, 1.001 * found, 0.0 * found, found.flip(0), torch.full_like(found, torch.nan)):
        with pytest.raises(AssertionError):
            assert_gradient(wrong, expected, 1e-4)


def test_cone_check_sees_points_outside() -> None:
    program = family("every_cone").program
    cones = program.cones
    inside, inside_dual = np.zeros(cones.rows), np.zeros(cones.rows)
    inside[cones.zero : cones.zero + cones.nonneg] = 1.0
    inside_dual[: cones.zero + cones.nonneg] = 1.0
    at = cones.zero + cones.nonneg
    first = [cones.zero, at]
    for d in cones.soc:
        inside[at] = inside_dual[at] = 2.0
        inside[at + 1] = inside_dual[at + 1] = -1.0
        at += d
    for _ in range(cones.exp):
        first.append(at + 2)
        inside[at : at + 3] = [1.0, 1.0, 2.8]
        inside_dual[at : at + 3] = [-1.0, 1.0, 0.2]
        at += 3
    for _ in cones.power:
        first.append(at)
        inside[at : at + 3] = [1.0, 1.0, 0.9]
        inside_dual[at : at + 3] = [1.0, 1.0, 0.9]
        at += 3
    assert violation(program, inside) == 0.0
    assert violation(program, inside_dual, dual=True) == 0.0
    for row in first:
        for point, dual in ((inside, False), (inside_dual, True)):
            outside = point.copy()
            outside[row] -= 1.95 if row != first[2] else point[row] - 0.01
            assert violation(program, outside, dual) > 0.1


def test_cone_check_sees_indefinite_matrices() -> None:
    program = family("delage_ye").program
    cones = program.cones
    at = cones.zero + cones.nonneg + sum(cones.soc)
    identity = np.zeros(cones.rows)
    for order in cones.psd:
        # The diagonal ends each column of the upper triangle.
        identity[at + np.cumsum(np.arange(1, order + 1)) - 1] = 1.0
        at += order * (order + 1) // 2
    assert at == cones.rows
    assert violation(program, identity) == violation(program, identity, dual=True) == 0.0
    for row in range(cones.zero + cones.nonneg + sum(cones.soc), cones.rows):
        outside = identity.copy()
        # Beyond one off the diagonal, below zero on it.
        outside[row] = -0.2 if identity[row] else 1.2 * np.sqrt(2.0)
        assert violation(program, outside) == pytest.approx(0.2)
        assert violation(program, outside, dual=True) == pytest.approx(0.2)


def test_complementarity_check_sees_a_zero_eigenvalue() -> None:
    member = family("sdp")
    solution = make_engine().solve(member.program, member.theta(4))
    assert float(margin(member.program, solution).min()) > 1e-3
    nothing = torch.zeros_like(solution.dual)
    assert float(margin(member.program, replace(solution, dual=nothing, slack=nothing)).max()) == 0.0
