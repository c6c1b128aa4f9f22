"""Roots of many decreasing scalar functions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points to values and slopes, elementwise."""

_TOLERANCE = 4e-15
_STEPS = 300


def decreasing_root(function: Function, lower: Tensor, upper: Tensor) -> Tensor:
    """The root of every function within its bracket, f(lower) ≥ 0 ≥ f(upper), to machine precision.

    Newton's method from the left end (which never overshoots where f is convex), kept in the bracket by bisection.
    """
    x = lower
    for step in range(_STEPS):
        value, slope = function(x)
        lower, upper = torch.where(value >= 0, x, lower), torch.where(value <= 0, x, upper)
        newton = x - value / slope
        middle = 0.5 * (lower + upper)
        # Newton's steps may creep along a kinked function; a bisection now and then bounds their number.
        inside = (newton >= lower) & (newton <= upper)
        ahead = torch.where(inside, newton, middle) if step % 5 < 4 else middle
        settled = inside & ((newton - x).abs() <= _TOLERANCE * x.abs())
        settled |= (value == 0) | (upper - lower <= _TOLERANCE * upper.abs())
        if bool(settled.all()):
            return torch.where(inside, newton, x)
        x = torch.where(settled, x, ahead)
    return x


def implicit(root: Tensor, function: Function) -> Tensor:
    """The same root with its gradient: one Newton step, whose slope is a constant (implicit function theorem)."""
    value, slope = function(root)
    slope = slope.detach()
    return root - value / torch.where(slope == 0, -torch.ones_like(slope), slope)
