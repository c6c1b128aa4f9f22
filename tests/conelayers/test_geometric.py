"""Geometric programs."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer, Status
from conelayers.errors import ModelError, UnsolvedItemsWarning
from tests.conelayers.checks import assert_gradients, assert_solves


class Box:
    """The box of cvxpylayers' README: the largest volume under a bound on its walls."""

    def __init__(self) -> None:
        self.x, self.y, self.z = (cp.Variable(pos=True, name=name) for name in "xyz")
        self.a, self.b = cp.Parameter(pos=True, name="a"), cp.Parameter(pos=True, name="b")
        self.c = cp.Parameter(name="c")
        x, y, z = self.x, self.y, self.z
        self.constraints = [self.a * (x * y + x * z + y * z) <= self.b, x >= y**self.c]
        self.problem = cp.Problem(cp.Minimize(1 / (x * y * z)), self.constraints)


VALUES = [torch.tensor(value, dtype=torch.float64) for value in (2.0, 1.0, 0.5)]


def test_solutions_and_duals_are_those_of_cvxpy() -> None:
    box = Box()
    assert_solves(box.problem, dict(zip((box.a, box.b, box.c), (2.0, 1.0, 0.5), strict=True)), gp=True)
    V, p = cp.Variable((2, 2), pos=True), cp.Parameter(pos=True)
    problem = cp.Problem(cp.Minimize(cp.sum(V)), [cp.prod(V) >= p, V[0, 0] >= 2 * V[0, 1]])
    assert_solves(problem, {p: 2.0}, gp=True, atol=3e-5)


def test_any_order_of_parameters_and_gradients() -> None:
    box = Box()
    first = ConeLayer(box.problem, [box.a, box.b, box.c], [box.x, box.y, box.z], gp=True)
    last = ConeLayer(box.problem, [box.c, box.b, box.a], [box.x, box.y, box.z], gp=True)
    for left, right in zip(first(*VALUES), last(*VALUES[::-1]), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=0)

    def total(*values: torch.Tensor) -> torch.Tensor:
        result = first.solve(*values, solver_args={"eps": 1e-12})
        return result["x"] + 2 * result["y"] + 3 * result[box.z] + result.value

    assert_gradients(total, VALUES, atol=1e-2)


def test_maximisation_with_its_closed_form() -> None:
    x, y = cp.Variable(pos=True), cp.Variable(pos=True)
    a, b = cp.Parameter(pos=True), cp.Parameter(pos=True)
    layer = ConeLayer(cp.Problem(cp.Maximize(x * y), [a * x + b * y <= 1]), [a, b], [x, y], gp=True)
    values = [torch.tensor([2.0, 1.0, 4.0], dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)]
    for value in values:
        value.requires_grad_()
    result = layer.solve(*values)
    expected = {"x": 1 / (2 * values[0]), "y": 1 / (2 * values[1]).expand(3), "value": 1 / (4 * values[0] * values[1])}
    for name, ours in (("x", result[x]), ("y", result[y]), ("value", result.value)):
        torch.testing.assert_close(ours, expected[name], atol=1e-5, rtol=0)
        settings = {"retain_graph": True, "allow_unused": True}
        gradients = [torch.autograd.grad(tensor.sum(), values, **settings) for tensor in (ours, expected[name])]
        for left, right in zip(*gradients, strict=True):
            torch.testing.assert_close(left, torch.zeros_like(left) if right is None else right, atol=1e-4, rtol=0)
    torch.testing.assert_close(result.objective[:, 0], result.value)
    torch.testing.assert_close(result.candidates[x][:, 0], result[x])


def test_values_that_are_not_positive_are_unsolved() -> None:
    box = Box()
    layer = ConeLayer(box.problem, [box.a, box.b, box.c], [box.x], gp=True)
    b = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    with pytest.warns(UnsolvedItemsWarning):
        (x,) = layer(2.0, b, 0.5)
    assert layer.solve(2.0, b, 0.5).statuses == [Status.OPTIMAL, Status.FAILED, Status.FAILED]
    assert x[1:].isnan().all()
    x[0].backward()
    assert b.grad is not None
    np.testing.assert_array_equal(b.grad[1:], 0.0)
    assert b.grad[0] > 0


def test_wrong_programs() -> None:
    x, c = cp.Variable(), cp.Parameter()
    with pytest.raises(ModelError, match="not a geometric program"):
        ConeLayer(cp.Problem(cp.Minimize(cp.square(x - c))), [c], gp=True)
    n, y, p = cp.Variable(pos=True, integer=True, name="n"), cp.Variable(pos=True), cp.Parameter(pos=True)
    with pytest.raises(ModelError, match="n is integer"):
        ConeLayer(cp.Problem(cp.Minimize(y / n), [n <= p, y >= 1]), [p], gp=True)
