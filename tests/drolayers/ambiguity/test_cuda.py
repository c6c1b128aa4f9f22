"""Every set on a GPU: values and gradients are those of the CPU."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import drolayers as dro
from tests.drolayers.ambiguity.sets import SETS, SetCase, stacked


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", SETS, ids=lambda kind: kind.name)
def test_cuda(kind: SetCase) -> None:
    y, x = dro.Uncertain(2, dro.support.Box(0.0, 3.0)), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [x <= 4], kind.make(y))
    theta = problem.ambiguity.pack(stacked(kind.parameters(8))).double()
    nominal = kind.nominal(8, 1) if kind.around else None
    found = []
    for device in ("cpu", "cuda"):
        leaf = theta.detach().to(device).requires_grad_()
        solution = problem.solve(leaf, None if nominal is None else nominal.to(device))
        (gradient,) = torch.autograd.grad(solution.objective.sum(), leaf)
        found.append((solution.objective, gradient))
    (value, gradient), (other, others) = found
    torch.testing.assert_close(other.cpu(), value, rtol=1e-7, atol=1e-9)
    # Multipliers are right to about the root of what values are: on the CPU, too, these gradients differ by 1e-5 from
    # those of a solve to 1e-12.
    size = torch.maximum(gradient.norm(dim=1), value.abs())
    assert bool(((others.cpu() - gradient).norm(dim=1) <= 1e-4 * size).all())
