"""Points at machine precision: finite differences see no noise, and a row is decided the same in every batch."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import drolayers as dro


def newsvendor(size: int) -> tuple[dro.DecisionProblem, cp.Variable]:
    """Build the plainest newsvendor."""
    y, x = dro.Uncertain(size, support=dro.support.Nonnegative()), cp.Variable(size, nonneg=True)
    moments = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    return dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [], moments), x


def bounds(size: int, batch: int) -> Tensor:
    """Draw means and deviations."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(batch, size + 1, generator=generator, dtype=torch.float64)
    return torch.cat([2.0 + 3.0 * draws[:, :-1], 0.5 + draws[:, -1:]], 1)


@pytest.mark.parametrize("engine", ["batched", "torch", "clarabel"])
@pytest.mark.parametrize("size", [1, 3])
def test_gradcheck_passes_at_torch_s_defaults(engine: str, size: int) -> None:
    problem, x = newsvendor(size)
    layer, theta = dro.DROLayer(problem, engine=engine), bounds(size, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda theta: layer(theta).best[x], (theta,))
    assert torch.autograd.gradcheck(lambda theta: layer(theta).value, (theta,))


@pytest.mark.parametrize("engine", ["batched", "torch"])
@pytest.mark.parametrize("gradient", ["exact", "smoothed"])
def test_a_row_is_decided_the_same_in_every_batch(engine: str, gradient: str) -> None:
    problem, x = newsvendor(3)
    layer, theta = dro.DROLayer(problem, engine=engine, gradient=gradient), bounds(3, 40)
    with torch.no_grad():
        whole = layer(theta)
        for width in (1, 7):
            parts = [layer(some) for some in theta.split(width)]
            assert torch.allclose(whole.best[x], torch.cat([p.best[x] for p in parts]), rtol=1e-9, atol=1e-9)
            assert torch.allclose(whole.value, torch.cat([p.value for p in parts]), rtol=1e-9, atol=1e-9)


def test_integer_decisions_agree_too() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    lots = cp.Variable(2, boolean=True)
    cost = cp.sum(x) + 2.5 * cp.sum(lots) + 4 * cp.sum(cp.pos(y - x - 3 * lots))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = bounds(2, 8)
    for few in (0, 32):
        layer = dro.DROLayer(problem, enumerate_up_to=few)
        with torch.no_grad():
            whole, alone = layer(theta), dro.Decision.cat([layer(row) for row in theta.split(1)])
        assert torch.allclose(whole.best[x], alone.best[x], rtol=1e-9, atol=1e-9)
        assert torch.allclose(whole.value, alone.value, rtol=1e-9, atol=1e-9)
