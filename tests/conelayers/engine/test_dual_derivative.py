"""Derivatives of multipliers against central differences, and where there are none."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Derivative, Smoothed, compile_program, make_engine

STEP = 1e-4


def quadratic(cones: str) -> tuple[ConeProgram, Tensor]:
    """A strictly convex program whose constraints depend on the features, and features at which some bind."""
    rng = np.random.default_rng(3)
    x, a, b = cp.Variable(4), cp.Parameter(4), cp.Parameter(3)
    A = rng.standard_normal((3, 4))
    constraints = [A @ x <= b, cp.sum(x) == a[0]]
    if cones == "second-order":
        constraints.append(cp.norm(x - a) <= b[0] + 0.5)
    if cones == "semidefinite":
        constraints.append(cp.bmat([[1.0 + x[0], x[1] + a[1]], [x[1] + a[1], b[1] + x[2]]]) >> 0)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + 2.0 * a @ x), constraints)
    features = torch.as_tensor(np.concatenate([0.4 * rng.standard_normal((5, 4)), 1.0 + rng.random((5, 3))], 1))
    return compile_program(problem, [a, b]), features


def weights(program: ConeProgram) -> Tensor:
    """A weight for every multiplier."""
    return torch.randn(program.rows, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("cones", ["linear", "second-order", "semidefinite"])
def test_multipliers_agree_with_differences(cones: str) -> None:
    program, features = quadratic(cones)
    engine = make_engine().with_tolerance(1e-12)
    solution = engine.solve(program, features.requires_grad_())
    assert bool(solution.ok.all())
    weight = weights(program)
    (solution.dual @ weight).sum().backward()
    assert all(Derivative(code).ok for code in solution.dual_derivative.tolist())
    assert solution.derivative.tolist() == [int(Derivative.UNASKED)] * len(features)
    for k in range(features.shape[1]):
        move = torch.zeros_like(features)
        move[:, k] = STEP
        ends = [engine.solve(program, features.detach() + side * move).dual @ weight for side in (1.0, -1.0)]
        difference = (ends[0] - ends[1]) / (2.0 * STEP)
        torch.testing.assert_close(features.grad[:, k], difference, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cones", ["linear", "second-order", "semidefinite"])
def test_smoothed_derivatives_approach_the_exact_ones(cones: str) -> None:
    program, features = quadratic(cones)
    gradients = []
    for gradient in ("exact", Smoothed(1e-8)):
        leaf = features.clone().requires_grad_()
        solution = make_engine(gradient=gradient).solve(program, leaf)
        (solution.dual @ weights(program)).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)


def test_decision_and_multipliers_together() -> None:
    program, features = quadratic("second-order")
    both = []
    for parts in (("primal",), ("dual",), ("primal", "dual")):
        leaf = features.clone().requires_grad_()
        solution = make_engine().solve(program, leaf)
        sum(getattr(solution, part).square().sum() for part in parts).backward()  # type: ignore[union-attr]
        both.append(leaf.grad)
    torch.testing.assert_close(both[0] + both[1], both[2])


def test_multipliers_that_are_not_unique_have_no_derivative() -> None:
    """Two copies of a constraint share a multiplier in any way: x has a derivative, their multipliers have none."""
    x, theta = cp.Variable(), cp.Parameter(2)
    program = compile_program(cp.Problem(cp.Minimize(cp.square(x) - 4 * theta[0] * x), [x <= 1, 2 * x <= 2]), [theta])
    features = torch.tensor([[2.0, 0.0], [0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, features)
    with pytest.warns(UserWarning, match="no gradient"):
        solution.dual[:, 0].sum().backward()
    codes = [Derivative(code) for code in solution.dual_derivative.tolist()]
    assert codes == [Derivative.LOOSE, Derivative.FACE]
    assert features.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_unsolved_items_have_nan_multipliers_and_a_zero_gradient() -> None:
    x, theta = cp.Variable(), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(cp.square(x)), [x >= theta, x <= 1]), [theta])
    features = torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, features)
    assert solution.dual[1].isnan().all()
    solution.dual[0].sum().backward()
    # The multiplier of x >= theta is 2 theta.
    torch.testing.assert_close(features.grad[:, 0], torch.tensor([2.0, 0.0], dtype=torch.float64))
