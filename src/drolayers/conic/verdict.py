"""What became of each item: statuses by our own residuals, and the second route for those that are unfinished."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from drolayers.conic import residuals
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solvers.contract import Pullback, Raw, Rescue
from drolayers.status import Status

ACCEPT = 1e-7
"""Relative residual up to which an item is called OPTIMAL."""

TOLERATE = 1e-4
"""Relative residual up to which an item is called INACCURATE; beyond it has FAILED."""

CERTIFY = 1e-6
"""Relative defect up to which a ray counts as a certificate."""


def classify(program: ConeProgram, values: Values, raw: Raw) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Status by our own residuals: a verdict is believed only with its certificate."""
    residual = residuals.optimality(program, values, raw.x, raw.z, raw.s)
    status = torch.full_like(raw.verdict, int(Status.FAILED))
    status[residual <= TOLERATE] = int(Status.INACCURATE)
    status[residual <= ACCEPT] = int(Status.OPTIMAL)
    for verdict, proof in (
        (Status.INFEASIBLE, lambda v, r: residuals.infeasibility(program, v, r.z)),
        (Status.NO_MINIMUM, lambda v, r: residuals.unboundedness(program, v, r.x)),
    ):
        claimed = raw.verdict == int(verdict)
        if bool(claimed.any()):
            proven = claimed & (proof(values, raw) <= CERTIFY)
            status[claimed] = int(Status.FAILED)
            status[proven] = int(verdict)
    return status, residual


def second_route(
    rescue: Rescue,
    program: ConeProgram,
    values: Values,
    raw: Raw,
    status: Tensor,
    residual: Tensor,
    unfinished: Tensor,
    differentiable: bool,
) -> tuple[Raw, Tensor, Tensor]:
    """Solve the unfinished items by the second route and keep whichever answer is the better."""
    items = unfinished.nonzero()[:, 0]
    second = rescue(program, values[items], differentiable)
    second_status, second_residual = classify(program, values[items], second)
    certified = (second_status == int(Status.INFEASIBLE)) | (second_status == int(Status.NO_MINIMUM))
    better = certified | (second_residual < residual[items])
    chosen, rows = items[better], better.nonzero()[:, 0]
    if second.pullback is not None:
        pullback = _mixed_pullback(raw.pullback, second.pullback, chosen, rows, items.numel())
    else:
        # The second route cannot smooth: the first one's gradient stands, where its point was usable.
        pullback = _masked_pullback(raw.pullback, items[status[items] == int(Status.FAILED)])

    def merged(first: Tensor, other: Tensor) -> Tensor:
        return first.index_copy(0, chosen, other[rows].to(first))

    mixed = Raw(
        merged(raw.x, second.x),
        merged(raw.z, second.z),
        merged(raw.s, second.s),
        merged(raw.verdict, second.verdict),
        merged(raw.iterations, second.iterations),
        pullback,
    )
    return mixed, merged(status, second_status), merged(residual, second_residual)


def _mixed_pullback(
    first: Pullback | None, second: Pullback, chosen: Tensor, rows: Tensor, count: int
) -> Pullback | None:
    """Pull the rescued items back by the second route, the others by the first."""
    if first is None:
        return None

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kept = dx.index_fill(0, chosen, 0.0)
        gradients = list(first(kept))
        inner = dx.new_zeros(count, dx.shape[1]).index_copy(0, rows, dx[chosen])
        others = second(inner)
        merged = [g.index_copy(0, chosen, other[rows].to(g)) for g, other in zip(gradients, others, strict=True)]
        return merged[0], merged[1], merged[2], merged[3]

    return pullback


def _masked_pullback(first: Pullback | None, items: Tensor) -> Pullback | None:
    """The same pullback with nothing for some items."""
    if first is None:
        return None

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dP, dA, dq, db = (g.index_fill(0, items, 0.0) for g in first(dx.index_fill(0, items, 0.0)))
        return dP, dA, dq, db

    return pullback
