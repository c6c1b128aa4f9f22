"""The implicit function theorem as a pullback: item by item, on request or where a faster one is found wanting.

A batched solver's own derivative was seen to be off by some per cent next to kinks, and by more on power cones. It can
be checked at little cost, since what it returns must solve Jᵀ(g, h) = (dx, 0) with the Jacobian of ``adjoint.py``:

    Pg + Aᵀh = dx,     D(Ag + h) = h,     D the derivative of the projection onto the dual cone at z - s.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.conic.adjoint import pull_back
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.residuals import products
from drolayers.conic.solvers.contract import Pullback

DEFECT = 1e-4
"""Relative defect of the adjoint equations from which an item is differentiated once more, by a factorisation."""

LARGE = 2000
"""Rows and columns from which a factorisation is so slow that ten times that defect is let pass."""


def implicit_pullback(program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor) -> Pullback:
    """Factor the items that are asked about, one after another."""

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = [np.zeros(t.shape) for t in (values.P, values.A, values.q, values.b)]
        for item in (dx != 0).any(1).nonzero()[:, 0].tolist():
            P, A = matrices(program, values, item)
            point = (v[item].detach().cpu().numpy() for v in (x, z, s, dx))
            for gradient, part in zip(found, pull_back(program.cones, P, A, *point), strict=True):
                gradient[item] = part
        dP, dA, dq, db = (torch.as_tensor(gradient).to(dx) for gradient in found)
        return dP, dA, dq, db

    return pullback


def checked_pullback(
    program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor, first: Pullback
) -> Pullback:
    """The first pullback where it satisfies the adjoint equations, the implicit one where that does better."""
    second = implicit_pullback(program, values, x, z, s)
    if not program.cones.kinds <= {"zero", "nonneg", "soc"}:
        return second

    allowed = DEFECT if program.rows + program.columns <= LARGE else 10.0 * DEFECT

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gradients = list(first(dx))
        defect = adjoint_defect(program, values, z - s, dx, -gradients[2], gradients[3])
        doubtful = ~(defect <= allowed) & (dx != 0).any(1)
        if bool(doubtful.any()):
            others = second(torch.where(doubtful[:, None], dx, torch.zeros_like(dx)))
            again = adjoint_defect(program, values, z - s, dx, -others[2], others[3])
            better = doubtful & (again < defect.nan_to_num(torch.inf))
            gradients = [torch.where(better[:, None], o, g) for o, g in zip(others, gradients, strict=True)]
        return gradients[0], gradients[1], gradients[2], gradients[3]

    return pullback


def completed_pullback(
    program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor, first: Pullback
) -> Pullback:
    """The first pullback, and the implicit one for items where its arithmetic broke down."""
    second = implicit_pullback(program, values, x, z, s)

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gradients = list(first(dx))
        whole = torch.stack([gradient.isfinite().all(1) for gradient in gradients]).all(0)
        broken = ~whole & (dx != 0).any(1)
        if bool(broken.any()):
            others = second(torch.where(broken[:, None], dx, torch.zeros_like(dx)))
            gradients = [torch.where(broken[:, None], o, g) for o, g in zip(others, gradients, strict=True)]
        return gradients[0], gradients[1], gradients[2], gradients[3]

    return pullback


def adjoint_defect(
    program: ConeProgram,
    values: Values,
    v: Float[Tensor, "batch row"],
    dx: Float[Tensor, "batch column"],
    g: Float[Tensor, "batch column"],
    h: Float[Tensor, "batch row"],
) -> Float[Tensor, "batch"]:
    """The largest violation of the adjoint equations, relative to dx."""
    Pg, Ag, Ah = products(program, values.detach(), g, h)
    first = (Pg + Ah - dx).abs().amax(1)
    second = (project_derivative(program, v, Ag + h) - h).abs().amax(1)
    return torch.maximum(first, second) / dx.abs().amax(1).clamp(min=1e-300)


def project_derivative(
    program: ConeProgram, v: Float[Tensor, "batch row"], u: Float[Tensor, "batch row"]
) -> Float[Tensor, "batch row"]:
    """D u for the zero, nonnegative and second-order cones (the formulas of ``adjoint.py``, for a batch)."""
    cones = program.cones
    out = u.clone()
    linear = cones.zero + cones.nonneg
    out[:, cones.zero : linear] = torch.where(v[:, cones.zero : linear] > 0, u[:, cones.zero : linear], 0.0)
    starts = np.cumsum([linear, *cones.soc])[:-1]
    for dimension in sorted(set(cones.soc)):
        at = torch.tensor([k for k, d in zip(starts, cones.soc, strict=True) if d == dimension], device=v.device)
        rows = at[:, None] + torch.arange(dimension, device=v.device)
        point, move = v[:, rows], u[:, rows]
        t, w, a, b = point[..., :1], point[..., 1:], move[..., :1], move[..., 1:]
        length = w.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        unit, ratio = w / length, t / length
        inner = (unit * b).sum(-1, keepdim=True)
        edge = 0.5 * torch.cat([a + inner, a * unit + (1.0 + ratio) * b - ratio * inner * unit], -1)
        result = torch.where(length <= t, move, torch.where(length <= -t, torch.zeros_like(move), edge))
        out[:, rows.reshape(-1)] = result.reshape(v.shape[0], -1)
    return out


def matrices(program: ConeProgram, values: Values, item: int) -> tuple[sp.csr_array, sp.csr_array]:
    """P and A of one item as sparse matrices that keep their structural zeros."""
    n = program.columns
    P_data, A_data = (M[item].detach().cpu().numpy() for M in (values.P, values.A))
    P = sp.csr_array((P_data, program.P_indices.numpy(), program.P_indptr.numpy()), shape=(n, n))
    A = sp.csr_array((A_data, program.A_indices.numpy(), program.A_indptr.numpy()), shape=(program.rows, n))
    return P, A
