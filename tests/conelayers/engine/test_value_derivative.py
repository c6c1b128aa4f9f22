"""Gradients of values: verified where the value has a derivative, flagged where it has a kink."""

from __future__ import annotations

import warnings

import cvxpy as cp
import pytest
import torch

from conelayers import Derivative, compile_program, make_engine
from conelayers.engine.engine import ValueKinkWarning
from tests.helpers.programs import family


@pytest.mark.parametrize("engine", ["batched", "torch", "clarabel"])
def test_the_maximum_of_a_parameter_and_zero(engine: str) -> None:
    t, theta = cp.Variable(), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(t), [t >= theta, t >= 0]), [theta])
    given = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine(engine).solve(program, given)
    assert solution.value_derivative.tolist() == [0, 0, 0]
    with pytest.warns(ValueKinkWarning, match="1 of 3 items"):
        solution.objective.sum().backward()
    assert solution.value_derivative.tolist() == [Derivative.FACE, Derivative.KINK, Derivative.FACE]
    assert 0.0 <= float(given.grad[1]) <= 1.0
    assert [round(float(g), 9) for g in given.grad[[0, 2], 0]] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["lp", "qp", "socp", "portfolio", "sdp", "entropy"])
def test_regular_values_are_verified(name: str) -> None:
    made = family(name)
    theta = made.theta(6).requires_grad_()
    solution = make_engine("auto").solve(made.program, theta)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ValueKinkWarning)
        solution.objective.sum().backward()
    codes = solution.value_derivative
    assert ((codes == int(Derivative.FACE)) | (codes == int(Derivative.FACTORED))).all(), codes


def test_data_that_nobody_differentiates_make_no_kink() -> None:
    t, theta, data = cp.Variable(), cp.Parameter(), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(t + theta), [t >= data, t >= 0]), [theta, data])
    leaf = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine("auto").solve(program, torch.cat([leaf, torch.zeros(1, 1, dtype=torch.float64)], 1))
    solution.objective.sum().backward()
    assert solution.value_derivative.tolist() == [Derivative.FACE]
    assert float(leaf.grad) == 1.0
