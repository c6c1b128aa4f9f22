"""Whether the gradient of the optimal value is its derivative.

The gradient is that of the Lagrangian L = ½xᵀPx + qᵀx + zᵀ(Ax - b) at one solution (x, z),

    dP = ½xxᵀ,   dA = zxᵀ,   dq = x,   db = -z.

It is the derivative if and only if it is the same at all optimal x and z. On the face of a strictly complementary
solution, the null space of the face's system consists of the directions (g, h) along which x and z are not unique.
Noise projected on it is such a direction, unless nothing remains. The gradient then changes by

    ½(xgᵀ + gxᵀ),   zgᵀ + hxᵀ,   g,   -h,

and an item is at a kink of its value if this reaches whatever is differentiated (``ambiguous.py``). There the gradient
is one of the subgradients. The checks are those of the decision's derivative.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.derivative.active import noise
from conelayers.derivative.ambiguous import Upstream, depends
from conelayers.derivative.factored import BLURRED, left
from conelayers.derivative.newton import basis, gap, margin, polished
from conelayers.derivative.newton import items as each
from conelayers.derivative.theorem import FREE, Found, Pulled, gradients, sum_features
from conelayers.interior.batch import AlgebraName, Batch
from conelayers.interior.face import MARGIN, null_direction
from conelayers.program.program import SYMMETRIC, ConeProgram, Values
from conelayers.status import Derivative

LARGEST = 600
"""Unknowns and rows up to which an item over other cones is checked: its face's system is factored alone."""


def value_codes(
    program: ConeProgram,
    values: Values,
    found: Found,
    asked: Bool[Tensor, "batch"],
    upstream: Upstream | None,
    algebra: AlgebraName | None = None,
) -> Int[Tensor, "batch"]:
    """Classify the gradient of the value of every item, as ``Derivative`` codes.

    Args:
        program: the structure.
        values: its numbers, in the units of the solutions.
        found: the solutions.
        asked: the items whose value is differentiated; all others are UNASKED.
        upstream: of the batch; without it all features count.
        algebra: as for ``Interior``.
    """
    codes = torch.where(asked, int(Derivative.UNVERIFIED), int(Derivative.UNASKED))
    own = program.cones.kinds <= SYMMETRIC
    if own:
        sure = asked & found.polished if found.polished is not None else torch.zeros_like(asked)
    else:
        sure = asked & (program.columns + program.rows <= LARGEST)
    items = sure.nonzero()[:, 0]
    if not items.numel():
        return codes
    some = (values, found) if len(items) == len(asked) else (values[items], found[items])
    directions = _in_batch(program, *some, algebra) if own else _one_by_one(program, *some)
    if not program.feature_size:
        return codes.index_copy(0, items, directions.code)
    size = torch.maximum(some[1].x.abs().amax(1), some[1].z.abs().amax(1) if program.rows else 0.0 * some[1].x[:, 0])
    length = torch.maximum(directions.g.abs().amax(1), directions.h.abs().amax(1) if program.rows else 0.0 * size)
    # Noise is about one: smaller numbers are rounding. The rest is made as large as the solution.
    scale = (size / length.clamp(min=FREE))[:, None]
    least = FREE * length.clamp(min=1.0)[:, None]
    g, h = (torch.where(t.abs() > least, t * scale, torch.zeros_like(t)) for t in (directions.g, directions.h))
    kink = torch.zeros_like(directions.ok)
    if bool((g != 0).any() | (h != 0).any()):
        units = some[1].units
        x, z, _ = units.own(directions.x, directions.z, directions.z)
        direction = Pulled(directions.x, directions.z, g, h, directions.code)
        # The formulas are those of an adjoint solution, which is counted in other units than a point.
        change = [units.kappa * units.beta * piece for piece in gradients(program, direction, units)]
        kink = depends(program, value_pieces(program, x, z), change, directions.ok, items, upstream)
    return codes.index_copy(0, items, torch.where(kink, int(Derivative.KINK), directions.code))


def value_pieces(program: ConeProgram, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradient of the value in P, A, q and b, for points and multipliers ``(batch, ·)``."""
    row, column, P_row, P_column, *_ = program.on(x.device)
    return 0.5 * x[:, P_row] * x[:, P_column], z[:, row] * x[:, column], x, -z


def value_gradients(program: ConeProgram, x: Tensor, z: Tensor) -> Float[Tensor, "batch feature"]:
    """Compute the gradient of the value by feature, for points and multipliers ``(batch, ·)``."""
    gradient = sum_features(program, value_pieces(program, x, z))
    return gradient + program.constant_map.pull(torch.ones_like(gradient[:, :1]), program.feature_size)


def _in_batch(program: ConeProgram, values: Values, found: Found, algebra: AlgebraName | None) -> Pulled:
    """Find null directions on the faces of polished points, all at once; items near another face are UNVERIFIED."""
    batch = Batch.of(program, values, algebra)
    items = torch.arange(len(batch), device=found.x.device)
    fill = batch.filled(items)
    part = batch if len(fill) == len(batch) else batch[fill]
    points = [found.x.T[:, fill].contiguous(), (found.z - found.s).T[:, fill].contiguous()]
    inputs = [*points, *(t.expand(-1, len(fill)).contiguous() for t in noise(points))]
    answer = part.each(partial(null_direction, rows=part.cone_rows), *inputs, name="null direction")
    x, z, g, h, clear = (t[:, : len(items)].T for t in answer)
    return Pulled(x, z, g, h, torch.where(clear[:, 0] > 0, int(Derivative.FACE), int(Derivative.UNVERIFIED)))


def _one_by_one(program: ConeProgram, values: Values, found: Found) -> Pulled:
    """Find null directions item by item, over any cones."""
    cones = program.cones
    symmetric = not (cones.exp or cones.power)
    answer = [t.clone() for t in (found.x, found.z, torch.zeros_like(found.x), torch.zeros_like(found.z))]
    codes = torch.full((len(found.x),), int(Derivative.UNVERIFIED), device=found.x.device)
    for k, item in enumerate(each(program, values, found.x, found.z, found.s)):
        x, z, s, done = item.x, item.z, item.s, True
        if symmetric:
            x, z, s, done = polished(cones, item.P, item.A, item.q, item.b, x, z - s)
        size = 1.0 + np.abs(z - s).max(initial=0.0)
        far = margin(cones, z - s) > MARGIN * size if symmetric else gap(cones, z - s) > BLURRED * size
        if not (done and far):
            continue
        direction = left(item.P, item.A, *basis(cones, z, s, 0.0))
        codes[k] = int(Derivative.FACTORED)
        for target, value in zip(answer, (x, z, *direction), strict=True):
            target[k] = torch.as_tensor(value).to(target)
    return Pulled(answer[0], answer[1], answer[2], answer[3], codes)
