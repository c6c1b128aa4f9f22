"""Exact derivatives in the batch: the active face is identified, polished to machine precision, and differentiated.

At the end of the central path s and z are known to about the root of the tolerance, and where both are small a point
of the path is no proof of anything. So the end itself is met: Newton's method on the optimality conditions with the
face of ``face.py``, whose system is all but that of an interior-point step and is factored by the same algebra;
iterative refinement takes the difference back. An item whose face is confirmed by the polished point, with room to
spare, and whose adjoint equations are solved to the last digits, is verified. One whose face changed is tried once more
from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from drolayers.conic.adjoints.face import ConeRows, Face
from drolayers.conic.adjoints.theorem import Found, Pulled
from drolayers.conic.interior.batch import AlgebraName, Batch, rounded
from drolayers.conic.interior.method import SHIFT, Algebra
from drolayers.conic.program import ConeProgram, Cones, Values
from drolayers.status import Derivative

Array = Any

ROUNDS = 6
"""Faces that are tried for an item."""

NEWTON = 4
"""Newton steps on a face: linear rows need one or two, curved ones another two."""

SOFT = 1e-6
"""How far the factored system is from the face's. Where there are more active rows than unknowns, what curved ones
leave inconsistent moves multipliers by that much divided by this."""

REFINE = 6
"""Refinements of the adjoint system."""

POLISHED = 1e-9
"""What may be left of the optimality conditions, in equilibrated units, where numbers are about one."""

MARGIN = 1e-9
"""How far from a kink a solution must be, in the same units."""

SETTLED = 1e-7
"""By how much the last refinement may have moved the adjoint solution, relative to its size."""

ROUNDING = 1e-12
"""What counts as rounding, relative to the larger of g and h."""


@final
@dataclass(frozen=True)
class Active:
    """The derivative on the active face, over zero, nonnegative and second-order cones.

    Args:
        algebra: as for ``Interior``.
    """

    algebra: AlgebraName | None = None

    def __call__(self, program: ConeProgram, values: Values, found: Found, dx: Tensor) -> Pulled:
        """Pull gradients back."""
        batch = Batch.of(program, values, self.algebra)
        D, E = batch.data.D, batch.data.E
        x, v, seed = found.x.T / D, found.z.T / E - found.s.T * E, dx.T * D
        numpy = batch.algebra == "numba"
        rows = cone_rows(program.cones, None if numpy else values.q.device)
        pulled, items = Pulled.none(values), torch.arange(len(values), device=dx.device)

        def work(on: Algebra, x: Array, v: Array, seed: Array) -> tuple[Array, ...]:
            return on_face(on, rows, x, v, seed)

        for _ in range(ROUNDS):
            # On a GPU sizes are rounded up, so that few are recorded.
            fill = items if numpy else items[torch.arange(rounded(len(items)), device=dx.device) % len(items)]
            part = batch[fill]
            given = (t[:, fill].contiguous() for t in (x, v, seed))
            moved, after, *parts, code = part.each(work, *given, name="active")
            scale = (part.data.D, part.data.E, part.data.D, part.data.E)
            back = [(t * by).T[: len(items)] for t, by in zip(parts, scale, strict=True)]
            pulled = pulled.put(items, Pulled(back[0], back[1], back[2], back[3], code[0].long()[: len(items)]))
            x[:, items], v[:, items] = moved[:, : len(items)], after[:, : len(items)]
            items = items[code[0][: len(items)] == int(Derivative.UNASKED)]
            if not items.numel():
                break
        unsettled = (~pulled.ok) & (pulled.code == int(Derivative.UNASKED))
        code = torch.where(unsettled, torch.full_like(pulled.code, int(Derivative.UNVERIFIED)), pulled.code)
        return Pulled(pulled.x, pulled.z, pulled.g, pulled.h, code)


def on_face(on: Algebra, rows: ConeRows, x: Array, v: Array, seed: Array) -> tuple[Array, ...]:
    """One round: x and v after Newton's steps, then x, z, g, h and a code, UNASKED where the face has changed."""
    xp = on.xp
    first = face = Face.at(xp, rows, v)
    # Factored once: on a curved cone the face turns a little from step to step, and refinement follows it.
    system = on.factor(on.scale(*first.point(v, SOFT)), SHIFT)
    next_x, next_v = x, v
    for k in range(NEWTON):
        z, s = face.split(v)
        missing = -(on.form(x) + on.columns(z) + on.q)
        beside = on.rows(x) + s - on.b
        step, turn, *_ = _solved(on, system, face, missing, -face.project(beside), 0)
        x = x + step
        v = v + turn + on.rows(step) + beside
        face = Face.at(xp, rows, v)
        if k == 0:
            next_x, next_v = x, v
    z, s = face.split(v)
    left = xp.maximum(on.sizes(on.form(x) + on.columns(z) + on.q), on.sizes(on.rows(x) + s - on.b))
    polished = first.same(face) & (left <= POLISHED * (1.0 + xp.maximum(on.sizes(x), on.sizes(v))))
    g, h, dg, dh = _solved(on, system, face, seed, 0.0 * v, REFINE)
    size_g, size_h = on.sizes(g), on.sizes(h)
    floor = ROUNDING * (size_g + size_h)
    settled = (on.sizes(dg) <= SETTLED * size_g + floor) & (on.sizes(dh) <= SETTLED * size_h + floor)
    left = xp.maximum(on.sizes(seed - on.form(g) - on.columns(h)), on.sizes(face.curve(h) - face.project(on.rows(g))))
    settled = settled & (left <= SETTLED * on.sizes(seed) + floor)
    clear = face.margin > MARGIN * (1.0 + on.sizes(v))
    code = xp.where(polished, xp.full_like(left, float(Derivative.UNVERIFIED)), 0.0 * left)
    code = xp.where(polished & clear & settled, xp.full_like(left, float(Derivative.FACE)), code)
    # Where the face has changed, the next round begins after one whole Newton step.
    return xp.where(polished, x, next_x), xp.where(polished, v, next_v), x, z, g, h, code[None]


def _solved(
    on: Algebra, system: Any, face: Face, rx: Array, rz: Array, refine: int
) -> tuple[Array, Array, Array, Array]:
    """The g and h with Pg + Aᵀh = rx, E A g - H h = rz, h = E h, and by how much the last refinement moved them."""
    g, h = on.solve(system, rx, rz, 0)
    h = face.project(h)
    dg, dh = g, h
    for _ in range(refine):
        ex = rx - on.form(g) - on.columns(h)
        ez = rz - face.project(on.rows(g)) + face.curve(h)
        dg, dh = on.solve(system, ex, ez, 0)
        dh = face.project(dh)
        g, h = g + dg, h + dh
    return g, h, dg, dh


def cone_rows(cones: Cones, device: torch.device | None) -> ConeRows:
    """Where cones stand, as numpy arrays or as tensors on a device."""
    linear = cones.zero + cones.nonneg
    starts = linear + np.cumsum([0, *cones.soc])[:-1]
    groups = []
    for dimension in sorted(set(cones.soc)):
        mine = np.array([k for k, d in zip(starts, cones.soc, strict=True) if d == dimension])
        group = mine[:, None] + np.arange(dimension)
        groups.append(group if device is None else torch.as_tensor(group, device=device))
    return ConeRows(cones.zero, linear, tuple(groups))
