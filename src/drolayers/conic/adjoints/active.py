"""Exact derivatives in the batch: on the active face, which is identified and polished to machine precision.

Where slack and multiplier of a row are both small, a point near the end of the central path is no proof of anything: so
the end itself is met (``interior/polish.py``), and its system, already factored, serves the adjoint equations of
``interior/face.py`` too; iterative refinement takes the difference back. An item whose face is confirmed by the
polished point, with room to spare, and whose adjoint equations are solved to the last digits, is verified. One whose
face changed is tried once more from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from drolayers.conic.adjoints.theorem import Found, Pulled
from drolayers.conic.interior.batch import AlgebraName, Batch
from drolayers.conic.interior.face import ConeRows, Face, cone_rows
from drolayers.conic.interior.method import Algebra
from drolayers.conic.interior.polish import MARGIN, ROUNDS, polish
from drolayers.conic.program import ConeProgram, Values
from drolayers.status import Derivative

Array = Any

REFINE = 6
"""Refinements of the adjoint system."""

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
        rows = cone_rows(program.cones, None if batch.algebra == "numba" else dx.device)
        x, v, seed = found.x.T.clone(), (found.z - found.s).T.clone(), dx.T
        pulled, items = Pulled.none(values), torch.arange(len(values), device=dx.device)

        def work(on: Algebra, x: Array, v: Array, seed: Array) -> tuple[Array, ...]:
            return on_face(on, rows, x, v, seed)

        for k in range(ROUNDS):
            fill = batch.filled(items)
            part = batch[fill]
            given = (t[:, fill].contiguous() for t in (x, v, seed))
            # Later rounds are of few items, and of every size: not worth a recording each.
            answer = part.each(work, *given, name=None if k else "active")
            next_x, next_v, *parts, code = (t[:, : len(items)] for t in answer)
            at_x, at_z, g, h = (t.T for t in parts)
            pulled = pulled.put(items, Pulled(at_x, at_z, g, h, code[0].long()))
            x[:, items], v[:, items] = next_x, next_v
            items = items[code[0] == int(Derivative.UNASKED)]
            if not items.numel():
                break
        lost = pulled.code == int(Derivative.UNASKED)
        return replace(pulled, code=torch.where(lost, int(Derivative.UNVERIFIED), pulled.code))


def on_face(on: Algebra, rows: ConeRows, x: Array, v: Array, seed: Array) -> tuple[Array, ...]:
    """One round: where the next begins, then x, z, g, h and a code, UNASKED where the face has changed."""
    xp, at = on.xp, polish(on, rows, x, v)
    g, h, dg, dh = _solved(on, at.system, at.face, seed)
    size_g, size_h = on.sizes(g), on.sizes(h)
    floor = ROUNDING * (size_g + size_h)
    settled = (on.sizes(dg) <= SETTLED * size_g + floor) & (on.sizes(dh) <= SETTLED * size_h + floor)
    missing, beside = seed - on.form(g) - on.columns(h), at.face.curve(h) - at.face.project(on.rows(g))
    left = xp.maximum(on.sizes(missing), on.sizes(beside))
    settled = settled & (left <= SETTLED * on.sizes(seed) + floor)
    clear = at.face.margin > MARGIN * (1.0 + on.sizes(at.v))
    code = xp.where(at.done, xp.full_like(left, float(Derivative.UNVERIFIED)), 0.0 * left)
    code = xp.where(at.done & clear & settled, xp.full_like(left, float(Derivative.FACE)), code)
    return at.next_x, at.next_v, at.x, at.z, g, h, code[None]


def _solved(on: Algebra, system: Any, face: Face, seed: Array) -> tuple[Array, Array, Array, Array]:
    """The g and h with Pg + Aᵀh = seed, E A g - H h = 0, h = E h, and by how much the last refinement moved them."""
    g, h = on.solve(system, seed, 0.0 * on.b, 0)
    h = face.project(h)
    dg, dh = g, h
    for _ in range(REFINE):
        missing = seed - on.form(g) - on.columns(h)
        beside = face.curve(h) - face.project(on.rows(g))
        dg, dh = on.solve(system, missing, beside, 0)
        dh = face.project(dh)
        g, h = g + dg, h + dh
        if on.enough((on.sizes(dg) <= ROUNDING * on.sizes(g)) & (on.sizes(dh) <= ROUNDING * on.sizes(h))):
            break
    return g, h, dg, dh
