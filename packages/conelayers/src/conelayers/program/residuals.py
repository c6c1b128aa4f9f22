"""How far a primal-dual point is from optimality, or a ray from a certificate: our own word, not the solver's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.program.program import ConeProgram, Values, once
from conelayers.program.replay import replayed
from conelayers.program.semidefinite import smallest_eigenvalue

Array = Any

ROUNDING = 1e-12
"""Share of its terms' size by which an objective may be off whatever it is compared with: terms that cancel."""

NOTHING = 1e-15
"""The same where the terms themselves vanish, in the engine's units, where data are about one."""

ZERO = 1e-10
"""What an objective has to be below, in those units, to count as zero."""

EPSILON = torch.finfo(torch.float64).eps
"""What arithmetic leaves out of every product."""


def products(
    program: ConeProgram, values: Values, x: Float[Tensor, "batch column"], z: Float[Tensor, "batch row"]
) -> tuple[Float[Tensor, "batch column"], Float[Tensor, "batch row"], Float[Tensor, "batch column"]]:
    """``Px``, ``Ax`` and ``Aᵀz`` for a batch, by gather and scatter."""
    row, column, P_row, P_column, *_ = program.on(x.device)
    if len(x) and x.device.type == "cpu" and values.A.stride(0) == 0 and not torch.is_grad_enabled():
        # One matrix for all items: a sparse product takes a third of the time.
        entries, (indptr, indices, order, starts, rows) = values.A[0].numpy(), once(program, "sides", program.sides)
        Ax = _times(entries, indices, indptr, x, program.rows)
        Az = _times(entries[order], rows, starts, z, program.columns)
    else:
        Ax = torch.zeros_like(z).index_add(1, row, values.A * x[:, column])
        Az = torch.zeros_like(x).index_add(1, column, values.A * z[:, row])
    Px = torch.zeros_like(x)
    if program.quadratic:
        Px = Px.index_add(1, P_row, values.P * x[:, P_column])
    return Px, Ax, Az


def _times(entries: Array, indices: Array, indptr: Array, x: Tensor, rows: int) -> Float[Tensor, "batch row"]:
    """A compressed matrix times every item."""
    matrix = sp.csr_array((entries, indices, indptr), shape=(rows, x.shape[1]))
    return torch.from_numpy(matrix @ x.numpy().T).T.contiguous()


def value_error(
    xPx: Array,
    qx: Array,
    bz: Array,
    slip: Array,
    mass: Array,
    tolerance: float,
    hidden: Array | None = None,
    rounding: float = ROUNDING,
) -> Array:
    """How far an objective may be from the optimal one, relative to its own size.

    Feasible primal and dual points enclose the optimum, and what they lack in feasibility moves it by zᵀr and xᵀr at
    first order (``slip``: these sums, and the roots of their squares, since a few large terms must not cancel by luck).
    An objective that all but cancels is right, at any tolerance, if it is off by no more than its terms are rounded,
    whose sizes add up to ``mass``: by a share of ``rounding``. Numpy arrays and tensors alike.

    What rounding hides (``hidden``) counts as an error too, where a verdict is asked for, and an objective may then be
    zero, but is not small: one that is not zero is right to so much of itself.
    """
    size = 0.5 * (abs(0.5 * xPx + qx) + abs(0.5 * xPx + bz))
    error, floor = abs(xPx + qx + bz) + slip, NOTHING
    if hidden is not None:
        error, floor = error + hidden, ZERO * (size <= ZERO)
    return error / (size + (rounding * mass + floor) / tolerance)


def vanishing(program: ConeProgram, values: Values, x: Float[Tensor, "batch column"]) -> Bool[Tensor, "batch"]:
    """Objectives that count as zero above."""
    value = (values.q * x).sum(1)
    if program.quadratic:
        _, _, P_row, P_column, *_ = program.on(x.device)
        value = value + 0.5 * (values.P * x[:, P_row] * x[:, P_column]).sum(1)
    return value.abs() <= 2.0 * ZERO


def optimality(
    program: ConeProgram,
    values: Values,
    x: Float[Tensor, "batch column"],
    z: Float[Tensor, "batch row"],
    s: Float[Tensor, "batch row"],
    tolerance: float,
    rounding: float = ROUNDING,
) -> Float[Tensor, "batch"]:
    """The largest relative violation of primal and dual feasibility, cone membership and equality of objectives.

    Exponential and power cones are taken on the solver's word for membership; every other condition is measured.
    """

    def measured(A: Tensor, P: Tensor, *rest: Tensor) -> tuple[Tensor]:
        q, b, x, z, s = rest
        alike = Values(P.expand(len(q), -1), A.expand(len(q), -1), q, b, q.new_zeros(len(q)))
        return (_optimality(program, alike, x, z, s, tolerance, rounding),)

    given = (*(M[:1] if M.stride(0) == 0 else M for M in (values.A, values.P)), values.q, values.b, x, z, s)
    key = ("optimality", tolerance, rounding)
    # Eigenvalues make the host wait.
    work = measured(*given) if program.cones.psd else replayed(program, key, measured, *given)
    return work[0]


def _optimality(
    program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor, tolerance: float, rounding: float
) -> Float[Tensor, "batch"]:
    """As it says above."""
    Px, Ax, Az = products(program, values, x, z)
    xPx, qx, bz = (Px * x).sum(1), (values.q * x).sum(1), (values.b * z).sum(1)
    # Row by row: a bound of 1e12 that never binds excuses no other row.
    primal = _norm((Ax + s - values.b) / (1.0 + torch.maximum(values.b.abs(), s.abs())))
    dual = _norm((Px + values.q + Az) / (1.0 + torch.maximum(values.q.abs(), Az.abs())))
    slip = sum(_total(terms) for terms in ((Ax + s - values.b) * z, (Px + values.q + Az) * x))
    # What is left of Ax + s = b is known no better than its terms are rounded: a multiplier of 1e15 sees that.
    sizes = Values(*(getattr(values, f.name).abs() for f in fields(values)))
    Px, Ax, _ = products(program, sizes, x.abs(), z.abs())
    unseen = ((Ax + s.abs() + sizes.b) * z.abs()).sum(1) + ((Px + sizes.q) * x.abs()).sum(1)
    mass = (sizes.q * x.abs()).sum(1) + (sizes.b * z.abs()).sum(1)
    gap = value_error(xPx, qx, bz, slip, mass, tolerance, EPSILON * unseen, rounding)
    outside_primal = outside(program, s) / (1.0 + _norm(s))
    outside_dual = outside(program, z, dual=True) / (1.0 + _norm(z))
    worst = torch.stack([primal, dual, gap, outside_primal, outside_dual]).amax(0)
    return torch.where(worst.isfinite(), worst, torch.full_like(worst, torch.inf))


def infeasibility(program: ConeProgram, values: Values, z: Float[Tensor, "batch row"]) -> Float[Tensor, "batch"]:
    """How badly ``z`` fails as a proof that no point is feasible: ``Aᵀz = 0, z ∈ K*, bᵀz < 0``."""
    _, _, Az = products(program, values, torch.zeros_like(values.q), z)
    gain = -(values.b * z).sum(1)
    defect = torch.maximum(_norm(Az), outside(program, z, dual=True)) / gain.clamp(min=1e-300)
    return torch.where((gain > 0) & defect.isfinite(), defect, torch.full_like(defect, torch.inf))


def unboundedness(program: ConeProgram, values: Values, x: Float[Tensor, "batch column"]) -> Float[Tensor, "batch"]:
    """How badly ``x`` fails as a direction along which the objective falls for ever: ``Px = 0, -Ax ∈ K, qᵀx < 0``."""
    Px, Ax, _ = products(program, values, x, torch.zeros_like(values.b))
    gain = -(values.q * x).sum(1)
    defect = torch.maximum(_norm(Px), outside(program, -Ax)) / gain.clamp(min=1e-300)
    return torch.where((gain > 0) & defect.isfinite(), defect, torch.full_like(defect, torch.inf))


def outside(program: ConeProgram, s: Float[Tensor, "batch row"], dual: bool = False) -> Float[Tensor, "batch"]:
    """How far rows lie outside the zero, nonnegative, second-order and semidefinite cones (or their duals)."""
    cones = program.cones
    worst = s.new_zeros(s.shape[0])
    if cones.zero and not dual:
        worst = torch.maximum(worst, _norm(s[:, : cones.zero]))
    at = cones.zero + cones.nonneg
    if cones.nonneg:
        worst = torch.maximum(worst, (-s[:, cones.zero : at]).amax(1))
    if cones.soc:
        cone, heads = once(program, ("cones", s.device), lambda: _cones(cones.soc, s.device))
        block = s[:, at : at + len(cone)]
        squares = s.new_zeros(s.shape[0], len(cones.soc)).index_add(1, cone, block**2)
        tails = (squares - block[:, heads] ** 2).clamp(min=0.0).sqrt()
        worst = torch.maximum(worst, (tails - block[:, heads]).amax(1))
    if cones.psd:
        worst = torch.maximum(worst, -smallest_eigenvalue(cones, s))
    return worst


def _cones(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The cone of every row of second-order cones, and the first row of every cone."""
    dims = torch.tensor(sizes)
    cone, heads = torch.repeat_interleave(torch.arange(len(sizes)), dims), torch.cumsum(dims, 0) - dims
    return cone.to(device), heads.to(device)


def _total(terms: Float[Tensor, "batch entry"]) -> Float[Tensor, "batch"]:
    """The size of a sum, of which a few large terms must not cancel by luck: itself and the root of its squares."""
    return terms.sum(1).abs() + terms.norm(dim=1)


def _norm(values: Float[Tensor, "batch entry"]) -> Float[Tensor, "batch"]:
    """The largest absolute entry of each item, zero where there is none."""
    return values.abs().amax(1) if values.shape[1] else values.new_zeros(values.shape[0])
