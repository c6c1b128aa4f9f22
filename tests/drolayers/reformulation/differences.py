"""Central differences of a batched function, all of them in one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STEP = 1e-3


def central(function: Callable[[Tensor], Tensor], at: Tensor, step: float = STEP) -> Tensor:
    """The Jacobian ``(output, input)`` of a function from ``(batch, input)`` to ``(batch, output)``, at one point."""
    moves = step * torch.eye(at.numel(), dtype=at.dtype)
    with torch.no_grad():
        values = function(torch.cat([at + moves, at - moves]))
    above, below = values.split(at.numel())
    return ((above - below) / (2 * step)).T


def analytic(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The same by automatic differentiation."""
    leaf = at[None].clone().requires_grad_()
    values = function(leaf)[0]
    return torch.stack([torch.autograd.grad(v, leaf, retain_graph=True)[0][0] for v in values])


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to one plus the largest entry."""
    return float((found - expected).abs().max() / (1.0 + expected.abs().max()))
