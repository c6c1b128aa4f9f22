"""How large the terms of a value are, against their derivatives and by hand."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from drolayers.cost.recourse import recourse
from drolayers.cost.torch_loss import TorchCost

RNG = np.random.default_rng(0)
A, P = RNG.normal(size=(4, 3)), np.diag([1.0, 2.0, 3.0])

ATOMS: dict[str, Callable[[cp.Variable], cp.Expression]] = {
    "matrix": lambda x: A @ x,
    "negative": lambda x: -x,
    "product": lambda x: cp.multiply([1.0, -2.0, 3.0], x),
    "quotient": lambda x: x / 4.0,
    "convolution": lambda x: cp.conv([1.0, -2.0], x),
    "cumulative": lambda x: cp.cumsum(x),
    "order": lambda x: cp.hstack([x[2], x[0]]),
    "positive": lambda x: cp.pos(x),
    "maximum": lambda x: cp.maximum(x, 0.3, cp.Constant([0.0, 1.0, -1.0])),
    "maximum of all": lambda x: cp.max(x),
    "exponential": lambda x: cp.exp(x),
    "square": lambda x: cp.square(x),
    "huber": lambda x: cp.huber(x, 0.5),
    "norm": lambda x: cp.norm(x, 2),
    "largest": lambda x: cp.sum_largest(x, 2),
    "quadratic": lambda x: cp.quad_form(x, P),
    "by row": lambda x: cp.max(cp.reshape(A @ x, (2, 2), order="C"), axis=1),
    "squares over": lambda x: cp.quad_over_lin(x, 2.0),
}


@pytest.mark.parametrize("name", ATOMS)
def test_sizes_are_what_derivatives_say(name: str) -> None:
    x = cp.Variable(3)
    expression = ATOMS[name](x)
    loss, at = TorchCost(expression), torch.as_tensor(RNG.normal(size=(5, 3)))
    value, size = loss.sized({x: at})
    torch.testing.assert_close(value, loss({x: at}))
    slopes = torch.autograd.functional.jacobian(lambda v: loss({x: v[None]})[0].reshape(-1), at[0])
    moves = (slopes.abs() * at[0].abs()).sum(-1).reshape(expression.shape)
    torch.testing.assert_close(size[0], torch.maximum(moves, value[0].abs()), rtol=1e-12, atol=1e-12)
    assert bool((size >= value.abs()).all())


def test_constants_and_what_cancels_are_terms() -> None:
    x, y = cp.Variable(2), cp.Parameter(2)
    at = {x: torch.tensor([[2.0, 1e-3]], dtype=torch.float64), y: torch.tensor([[3.0, 4.0]], dtype=torch.float64)}
    value, size = TorchCost(3.0 * x[0] - 2.0 * y[0] + x[1] * y[1] - 5.0).sized(at)
    assert float(value) == pytest.approx(-4.996)
    assert float(size) == pytest.approx(6.0 + 6.0 + 0.004 + 5.0)
    _, size = TorchCost(cp.pos(y[0] - 1.5 * x[0]) + x[1]).sized(at)
    assert float(size) <= 6.001
    told = {x: torch.tensor([[9.0, 1.0]], dtype=torch.float64)}
    assert float(TorchCost(x[0] + x[1]).sized(at, told)[1]) == 10.0


def test_candidates_and_second_stages() -> None:
    x, y = cp.Variable(1), cp.Parameter(1)
    worth = recourse(np.array([3.0, 1.0]), np.array([[1.0, -1.0]]), y - x)
    at = {x: torch.tensor([[[1.0], [4.0]]], dtype=torch.float64), y: torch.tensor([[[3.0]]], dtype=torch.float64)}
    loss = TorchCost(worth)
    value, size = loss.sized(at)
    torch.testing.assert_close(value, torch.tensor([[6.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(size, torch.tensor([[12.0, 7.0]], dtype=torch.float64))
    with torch.inference_mode():
        torch.testing.assert_close(loss.sized({leaf: 1.0 * v for leaf, v in at.items()})[1], size)
