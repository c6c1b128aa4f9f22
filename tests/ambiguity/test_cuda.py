"""Every set on a GPU: values and gradients are those of the CPU."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import drolayers as dro
from tests.ambiguity.sets import SETS, SetCase, stacked


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
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-6)
