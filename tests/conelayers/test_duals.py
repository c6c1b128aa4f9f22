"""Dual variables: those of CVXPY for every kind of constraint, and their derivatives."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer
from tests.conelayers.checks import assert_gradients, assert_solves

RNG = np.random.default_rng(0)
C3 = RNG.standard_normal(3)
C34 = RNG.standard_normal((3, 4))
M3 = np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.5]])


def linear(sense: type) -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Equalities and inequalities in both directions, minimised or maximised."""
    x, c, b = cp.Variable(3), cp.Parameter(3), cp.Parameter()
    sign = 1 if sense is cp.Minimize else -1
    constraints = [cp.sum(x) == b, x >= 0, x <= 0.6]
    return cp.Problem(sense(c @ x + sign * cp.sum_squares(x)), constraints), {c: C3, b: 1.0}


def matrices() -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Constraints of matrices."""
    X, C = cp.Variable((3, 4)), cp.Parameter((3, 4))
    objective = cp.Minimize(cp.sum(cp.multiply(C, X)) + cp.sum_squares(X))
    return cp.Problem(objective, [X >= -0.3, X[:, :2] == X[:, 2:]]), {C: C34}


def cones(shape: tuple[int, ...], axis: int) -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Second-order cones along an axis, one for each entry of the other."""
    heads = cp.Variable(shape[1 - axis]) if len(shape) == 2 else cp.Variable()
    X, C = cp.Variable(shape), cp.Parameter(shape)
    objective = cp.Minimize(cp.sum(cp.multiply(C, X)) + cp.sum_squares(heads))
    value = C34[: shape[0], : shape[1]] if len(shape) == 2 else C3
    return cp.Problem(objective, [cp.SOC(heads, X, axis=axis), heads <= 0.4]), {C: value}


def norm() -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """A norm below a bound, whose dual variable is a number."""
    x, c, t = cp.Variable(3), cp.Parameter(3), cp.Parameter(nonneg=True)
    return cp.Problem(cp.Minimize(c @ x + 0.1 * cp.sum_squares(x)), [cp.norm(x) <= t]), {c: C3, t: 2.0}


def semidefinite() -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Semidefinite constraints in both directions."""
    S, M = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3), symmetric=True)
    objective = cp.Minimize(cp.trace(M @ S) + cp.sum_squares(S))
    return cp.Problem(objective, [S >> 0, cp.trace(S) == 1, 0.6 * np.eye(3) >> S]), {M: M3}


def exponential() -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Exponential cones of matrices."""
    x, y, z = (cp.Variable((2, 2)) for _ in range(3))
    p = cp.Parameter((2, 2), nonneg=True)
    objective = cp.Minimize(-cp.sum(z) + 0.1 * (cp.sum_squares(x) + cp.sum_squares(y) + cp.sum_squares(z)))
    return cp.Problem(objective, [cp.ExpCone(x, y, z), y >= 0.1, z <= p]), {p: np.array([[4.0, 3.5], [3.0, 2.0]])}


def power() -> tuple[cp.Problem, dict[cp.Parameter, object]]:
    """Power cones with different exponents."""
    x, y, z, p = cp.Variable(2), cp.Variable(2), cp.Variable(2), cp.Parameter(nonneg=True)
    objective = cp.Minimize(-cp.sum(z) + 0.1 * (cp.sum_squares(x) + cp.sum_squares(y)))
    return cp.Problem(objective, [cp.PowCone3D(x, y, z, [0.3, 0.6]), x >= 0.1, x + y <= p]), {p: 4.0}


CASES = {
    "minimise": lambda: linear(cp.Minimize),
    "maximise": lambda: linear(cp.Maximize),
    "matrices": matrices,
    "norm": norm,
    "one cone": lambda: cones((3,), 0),
    "cones by columns": lambda: cones((3, 4), 0),
    "cones by rows": lambda: cones((3, 4), 1),
    "a column": lambda: cones((3, 1), 0),
    "a row": lambda: cones((1, 3), 1),
    "cones of one tail": lambda: cones((1, 3), 0),
    "semidefinite": semidefinite,
    "exponential": exponential,
    "power": power,
}


@pytest.mark.parametrize("case", CASES)
def test_duals_are_those_of_cvxpy(case: str) -> None:
    problem, values = CASES[case]()
    assert_solves(problem, values, atol=2e-5)


@pytest.mark.parametrize("case", ["minimise", "maximise", "matrices", "norm", "one cone", "cones by columns"])
def test_duals_are_differentiated(case: str) -> None:
    problem, values = CASES[case]()
    layer = ConeLayer(problem, list(values))

    def total(*arguments: torch.Tensor) -> torch.Tensor:
        result = layer.solve(*arguments, solver_args={"eps": 1e-12})
        duals = [result.dual(c, k) for c in problem.constraints for k in range(len(c.dual_variables))]
        return sum((dual * (1 + torch.arange(dual.numel()).reshape(dual.shape))).sum() for dual in duals)

    assert_gradients(total, [torch.tensor(np.asarray(value, dtype=float)) for value in values.values()], atol=2e-3)


def test_layers_return_dual_variables() -> None:
    x, c, b = cp.Variable(2), cp.Parameter(2), cp.Parameter()
    total, signs = cp.sum(x) == b, x >= 0
    problem = cp.Problem(cp.Minimize(c @ x), [total, signs])
    layer = ConeLayer(problem, [c, b], [total.dual_variables[0], x, signs.dual_variables[0]])
    price, point, reduced = layer(torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor(1.0))
    torch.testing.assert_close(price, -torch.tensor([1.0, 1.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(point, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(reduced, torch.tensor([[0.0, 1.0], [2.0, 0.0]]), atol=1e-5, rtol=0)


def test_constraints_of_parameters_alone() -> None:
    x, c = cp.Variable(2), cp.Parameter(2)
    constraints = [c >= 0, x >= 2]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - c)), constraints)
    result = ConeLayer(problem, [c]).solve(torch.ones(2))
    torch.testing.assert_close(result.dual(constraints[0]), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(result.dual(constraints[1]), 2 * torch.ones(2), atol=1e-5, rtol=0)
