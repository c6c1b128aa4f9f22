"""Symmetric, semidefinite, diagonal and sparse parameters, and symmetric variables."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer
from conelayers.errors import ModelError
from tests.conelayers.checks import assert_gradients, assert_solves

RNG = np.random.default_rng(0)
ROOT = RNG.standard_normal((3, 3))
Q = ROOT @ ROOT.T + np.eye(3)
C = RNG.standard_normal(3)


def quadratic(sign: float, **structure: bool) -> tuple[cp.Problem, dict[cp.Parameter, object], cp.Variable]:
    """A quadratic form with a parameter, convex or concave."""
    x, form, c = cp.Variable(3), cp.Parameter((3, 3), **structure), cp.Parameter(3)
    sense = cp.Minimize if sign > 0 else cp.Maximize
    objective = sense(0.5 * cp.quad_form(x, form) + c @ x)
    return cp.Problem(objective, [x >= -0.1, cp.sum(x) == 1]), {form: sign * Q, c: C}, x


@pytest.mark.parametrize(("sign", "structure"), [(1.0, "PSD"), (-1.0, "NSD")])
def test_quadratic_forms(sign: float, structure: str) -> None:
    problem, values, x = quadratic(sign, **{structure: True})
    assert_solves(problem, values)
    layer, weights = ConeLayer(problem, list(values)), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)

    def total(*arguments: torch.Tensor) -> torch.Tensor:
        result = layer.solve(*arguments, solver_args={"eps": 1e-12})
        return result[x] @ weights + result.value

    # A value that is not symmetric counts as its symmetric part, so that the gradient is symmetric.
    assert_gradients(total, [torch.tensor(np.asarray(value)) for value in values.values()])


def test_symmetric_parameters_and_variables() -> None:
    M = cp.Parameter((3, 3), symmetric=True)
    for attributes in ({"symmetric": True}, {"PSD": True}, {}):
        X = cp.Variable((3, 3), **attributes)
        constraints = [cp.trace(X) == 1] + ([] if attributes.get("PSD") else [X >> 0])
        problem = cp.Problem(cp.Minimize(cp.trace(M @ X) + cp.sum_squares(X)), constraints)
        result = assert_solves(problem, {M: Q}, atol=2e-5)
        torch.testing.assert_close(result[X], result[X].T, atol=1e-6, rtol=0)
        layer = ConeLayer(problem, [M])
        weights = torch.tensor(ROOT)
        value = torch.tensor(Q, requires_grad=True)
        gradient = torch.autograd.grad((layer(value)[0] * weights).sum(), value)[0]
        direction = torch.tensor(ROOT + ROOT.T)
        ends = [(layer(torch.tensor(Q) + s * direction)[0] * weights).sum() for s in (1e-3, -1e-3)]
        assert (gradient * direction).sum().item() == pytest.approx((ends[0] - ends[1]).item() / 2e-3, abs=1e-2)


def test_diagonal_parameters() -> None:
    x, D, c = cp.Variable(3), cp.Parameter((3, 3), diag=True), cp.Parameter(3)
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.sum_squares(D @ x) + c @ x)), [D, c])
    diagonal = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (point,) = layer(torch.diag(diagonal), C)
    expected = -torch.tensor(C) / (2 * diagonal**2)
    torch.testing.assert_close(point, expected, atol=1e-7, rtol=0)
    gradients = [torch.autograd.grad(p.sum(), diagonal, retain_graph=True)[0] for p in (point, expected)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=0)


def test_sparse_parameters() -> None:
    rows, columns = (0, 1, 2), (1, 1, 0)
    x, S = cp.Variable(3), cp.Parameter((3, 3), sparsity=[rows, columns])
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.sum_squares(S @ x - 1) + cp.sum_squares(x))), [S])
    value = torch.zeros(3, 3, dtype=torch.float64)
    value[rows, columns] = torch.tensor([2.0, 3.0, -1.0], dtype=torch.float64)
    value.requires_grad_()
    expected = torch.linalg.solve(value.T @ value + torch.eye(3), value.T @ torch.ones(3, dtype=torch.float64))
    gradients = []
    for point in (layer(value)[0], expected):
        torch.testing.assert_close(point, expected, atol=1e-7, rtol=0)
        gradients.append(torch.autograd.grad(point.sum(), value, retain_graph=True)[0][rows, columns])
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=0)
    # Entries outside the pattern are not read.
    torch.testing.assert_close(layer(value.detach() + 7 * torch.eye(3) * (value == 0))[0], expected.detach())


def test_arrays_of_three_dimensions() -> None:
    x, p = cp.Variable((2, 3, 4)), cp.Parameter((2, 3, 4))
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [x >= 3.5]), [p])
    value = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4)
    torch.testing.assert_close(layer(value)[0], value.clamp(min=3.5), atol=1e-6, rtol=0)


def test_complex_parameters_are_refused() -> None:
    x, H = cp.Variable(2), cp.Parameter((2, 2), hermitian=True)
    with pytest.raises(ModelError, match="hermitian"):
        ConeLayer(cp.Problem(cp.Minimize(cp.sum_squares(x) + cp.real(cp.trace(H)))), [H])
