"""Roots of many decreasing scalar functions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points to values and slopes, elementwise."""

_TOLERANCE = 1e-13
_STEPS = 300


def decreasing_root(function: Function, lower: Tensor, upper: Tensor, noise: Tensor) -> Tensor:
    """The root of every function within its bracket, f(lower) ≥ 0 ≥ f(upper).

    Newton's method from the left end (which never overshoots where f is convex), kept in the bracket by bisection. It
    ends where |f| is within the rounding ``noise`` of its terms, or where one more step makes no difference.
    """
    x = lower
    for step in range(_STEPS):
        value, slope = function(x)
        newton = x - value / slope
        settled = (value.abs() <= noise) | ((newton - x).abs() <= _TOLERANCE * x)
        lower, upper = torch.where(value >= 0, x, lower), torch.where(value <= 0, x, upper)
        if bool((settled | (upper <= lower)).all()):
            return x
        middle = 0.5 * (lower + upper)
        # Newton's steps may creep along a kinked function; a bisection now and then bounds their number.
        ahead = torch.where((newton >= lower) & (newton <= upper), newton, middle) if step % 8 < 7 else middle
        x = torch.where(settled, x, ahead)
    return x


def implicit(root: Tensor, function: Function) -> Tensor:
    """The same root with its gradient: one Newton step, whose slope is a constant (implicit function theorem)."""
    value, slope = function(root)
    slope = slope.detach()
    return root - value / torch.where(slope == 0, -torch.ones_like(slope), slope)
