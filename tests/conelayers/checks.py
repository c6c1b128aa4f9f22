"""References for layers: CVXPY's own solution, and central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from conelayers import ConeLayer, ConeResult

TOLERANCE = 1e-10
STEP = 1e-4


def solve_with_clarabel(problem: cp.Problem, values: dict[cp.Parameter, ArrayLike], gp: bool = False) -> None:
    """Solve one item with Clarabel; variables and dual variables of the problem hold the answer."""
    for parameter, value in values.items():
        parameter.value = np.asarray(value, dtype=float)
    tolerances = {"tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE, "tol_feas": TOLERANCE}
    problem.solve(solver=cp.CLARABEL, gp=gp, **tolerances)


def assert_solves(
    problem: cp.Problem,
    values: dict[cp.Parameter, ArrayLike],
    gp: bool = False,
    duals: bool = True,
    atol: float = 1e-5,
) -> ConeResult:
    """Assert that a layer has the values, variables and duals of CVXPY."""
    layer = ConeLayer(problem, list(values), gp=gp)
    result = layer.solve(*(torch.tensor(np.asarray(value, dtype=float)) for value in values.values()))
    solve_with_clarabel(problem, values, gp)
    assert result.value.item() == float_near(float(problem.value), atol)
    for variable in problem.variables():
        np.testing.assert_allclose(result[variable].numpy(), variable.value, atol=atol)
    for constraint in problem.constraints if duals else []:
        for position, dual in enumerate(constraint.dual_variables):
            ours = result.dual(constraint, position).detach().numpy()
            assert ours.shape == tuple(dual.shape)
            np.testing.assert_allclose(ours.ravel(), np.ravel(dual.value), atol=10 * atol)
    return result


def float_near(number: float, atol: float) -> object:
    """Return an approximate number for comparisons."""
    import pytest

    return pytest.approx(number, abs=atol, rel=atol)


def assert_gradients(function: Callable[..., Tensor], tensors: Sequence[Tensor], atol: float = 1e-4) -> None:
    """Assert that the gradient of a scalar function is that of central differences, entry by entry."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    gradients = torch.autograd.grad(function(*leaves), leaves)
    with torch.no_grad():
        for place, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
            differences = torch.zeros(leaf.numel(), dtype=torch.float64)
            for entry in range(leaf.numel()):
                ends = []
                for step in (STEP, -STEP):
                    moved = leaf.detach().clone()
                    moved.view(-1)[entry] += step
                    ends.append(function(*leaves[:place], moved, *leaves[place + 1 :]))
                differences[entry] = (ends[0] - ends[1]) / (2 * STEP)
            torch.testing.assert_close(gradient.reshape(-1), differences, atol=atol, rtol=1e-3)
