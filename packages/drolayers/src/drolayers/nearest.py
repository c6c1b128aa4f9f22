"""The point of a support next to another point, in closed form where there is one and by a small program elsewhere."""

from __future__ import annotations

from functools import lru_cache

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, untraced
from drolayers.amounts import Told
from drolayers.support import Box, Conic, Ellipsoid, Intersection, Reals, Support

PROJECTION_TOLERANCE = 1e-11
"""Relative residual of the projection programs: minimisers are less accurate than minima."""


def nearest_point(
    support: Support, points: Float[Tensor, "batch dim"], known: Told | None = None
) -> Float[Tensor, "batch dim"]:
    """Move points to the nearest point of a support; differentiable almost everywhere.

    Boxes clamp every coordinate. An ellipsoid moves a point towards its centre, which is nearest in its own norm.
    Every other support takes a cone program for each point outside, which is nearest in the Euclidean norm.

    Args:
        support: the support.
        points: in float64.
        known: values of the known data that the support depends on, by parameter.

    Returns:
        Points of the support; NaN in items whose support is empty or whose program failed.
    """
    if isinstance(support, Reals):
        return points
    if isinstance(support, Box):
        low, high = (end.to(points) for end in support.ends(points.shape[1], known))
        crossed = (low > high).any(-1, keepdim=True)
        return torch.minimum(torch.maximum(points, low), high).masked_fill(crossed, torch.nan)
    if isinstance(support, Ellipsoid):
        centre, root = torch.as_tensor(support.centre).to(points), torch.as_tensor(support.L).to(points)
        direction = (points - centre) @ torch.linalg.pinv(root).T
        length = direction.norm(dim=1, keepdim=True)
        return centre + direction / length.clamp(min=1.0) @ root.T
    return _by_program(support, points, known)


@untraced
def _by_program(support: Support, points: Tensor, known: Told | None) -> Tensor:
    """Project the points that lie outside by the program of their support."""
    if _contains_cones(support):
        # Seeing whether a point lies inside takes a program too, point by point.
        outside = torch.ones(len(points), dtype=torch.bool, device=points.device)
    else:
        outside = ~(support.violation(points.detach()[:, None], known)[:, 0] <= 0)
    if not bool(outside.any()):
        return points
    program = _nearest_program(support, points.shape[1])
    values = torch.cat([points, support.data(known, points)], 1)[outside]
    solution = default_engine().with_tolerance(PROJECTION_TOLERANCE).solve(program, values)
    moved = solution.variable("nearest")[:, 0].to(points)
    return points.masked_scatter(outside[:, None], moved)


def is_curved(support: Support) -> bool:
    """Return whether the boundary of a support may be curved."""
    if isinstance(support, Intersection):
        return any(is_curved(part) for part in support.parts)
    return isinstance(support, Ellipsoid | Conic)


def _contains_cones(support: Support) -> bool:
    """Return whether it takes programs to see that a point lies in the support."""
    if isinstance(support, Intersection):
        return any(_contains_cones(part) for part in support.parts)
    return isinstance(support, Conic)


@lru_cache(maxsize=64)
def _nearest_program(support: Support, dim: int) -> ConeProgram:
    """Compile ``min ‖y - point‖₂`` over the support; its parameters are the point and the support's known data."""
    y, point = cp.Variable((1, dim), name="nearest"), cp.Parameter(dim, name="point")
    problem = cp.Problem(cp.Minimize(cp.norm(y[0] - point, 2)), support.members(y))
    return compile_program(problem, [point, *support.parameters])
