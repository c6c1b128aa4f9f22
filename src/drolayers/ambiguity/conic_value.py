"""The value of a moment that is given by the cones of its epigraph: a small cone program for every point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import cvxpy as cp
import torch
from torch import Tensor

from drolayers.conic import default_engine
from drolayers.conic.compile import compile_program
from drolayers.conic.program import ConeProgram
from drolayers.status import Status

if TYPE_CHECKING:
    from drolayers.ambiguity.conic_moment import Conic


def epigraph_value(moment: Conic, y: Tensor, leaves: Mapping[str, Tensor]) -> Tensor:
    """The smallest u with (y, u) in the epigraph, ``(..., 1)``; differentiable by the envelope theorem."""
    program, names = _program(moment, y.shape[-1])
    tensors = {"y": y, **{name: leaves[name] for name in names if name != "y"}}
    own = {"y": 1, **{f"A{j}": 2 for j in range(len(moment.A))}, **{f"b{j}": 1 for j in range(len(moment.b))}}
    batch = torch.broadcast_shapes(*[t.shape[: t.dim() - own[n]] for n, t in tensors.items()])
    if not batch.numel():
        return y.new_zeros(*batch, 1)
    flat = [
        tensors[n].expand(*batch, *tensors[n].shape[tensors[n].dim() - own[n] :]).reshape(batch.numel(), -1)
        for n in names
    ]
    solution = default_engine().solve(program, torch.cat([f.to(y) for f in flat], 1))
    # Where no u will do g is infinite, as is the recession of what grows faster than linearly.
    infinite = torch.full_like(solution.objective, torch.inf)
    value = torch.where(solution.status == int(Status.INFEASIBLE), infinite, solution.objective)
    return value.reshape(*batch, 1)


@lru_cache(maxsize=32)
def _program(moment: Conic, dim: int) -> tuple[ConeProgram, list[str]]:
    """Min u over the epigraph, with the point and all matrices as parameters."""
    y = cp.Parameter(dim, name="y")
    leaves = {name: cp.Parameter(value.shape, name=name) for name, value in moment.parts(dim).items()}
    # The point enters through a variable, since the matrices are parameters too.
    point = cp.Variable((1, dim))
    u, constraints = moment.expression(point, leaves)
    problem = cp.Problem(cp.Minimize(u[0, 0]), [*constraints, point[0] == y])
    return compile_program(problem, [y, *leaves.values()]), ["y", *leaves]
