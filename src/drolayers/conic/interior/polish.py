"""The end of the central path, met: the active face of a solution is identified and the solution polished on it.

An interior-point method knows s and z to about the root of its tolerance, and the minimiser of a curved program no
better. Newton's method on the optimality conditions with the face of ``face.py``, whose system is all but that of an
interior-point step and is factored by the same algebra, takes both to machine precision. A point whose slacks and
multipliers confirm the face is a solution, since the program is convex; if they do not, the next face is theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drolayers.conic.interior.batch import Batch
from drolayers.conic.interior.face import ConeRows, Face, cone_rows
from drolayers.conic.interior.method import MOVED, SHIFT, Algebra

Array = Any

ROUNDS = 6
"""Faces that are tried for an item."""

NEWTON = 4
"""Newton steps on a face: linear rows need one or two, curved ones another two."""

SOFT = 1e-6
"""How far the factored system is from the face's. Where there are more active rows than unknowns, what curved ones
leave inconsistent moves multipliers by that much divided by this."""

POLISHED = 1e-9
"""What may be left of the optimality conditions, in equilibrated units, where numbers are about one."""

MARGIN = 1e-9
"""How far from another face a solution must be to be differentiated on its own alone, in the same units."""


class Polish(NamedTuple):
    """A point after Newton's steps on a face, and where to begin if that was not the face (``done`` is false)."""

    x: Array
    v: Array
    z: Array
    s: Array
    done: Array
    next_x: Array
    next_v: Array
    face: Face
    system: Any


def polish(on: Algebra, rows: ConeRows, x: Array, v: Array) -> Polish:
    """Newton's method on the face of v = z - s."""
    xp = on.xp
    first = face = Face.at(xp, rows, v)
    # Factored once: on a curved cone the face turns a little from step to step, which costs only digits of each step.
    system = on.factor(on.scale(*first.point(v, SOFT)), SHIFT)
    next_x, next_v = x, v
    for k in range(NEWTON):
        z, s = face.split(v)
        missing = -(on.form(x) + on.columns(z) + on.q)
        beside = on.rows(x) + s - on.b
        step, turn = on.solve(system, missing, -face.project(beside), 0)
        x = x + step
        v = v + face.project(turn) + on.rows(step) + beside
        face = Face.at(xp, rows, v)
        if k == 0:
            next_x, next_v = x, v
        if on.enough((on.sizes(step) <= MOVED) & (on.sizes(turn) <= MOVED)):
            break
    z, s = face.split(v)
    left = xp.maximum(on.sizes(on.form(x) + on.columns(z) + on.q), on.sizes(on.rows(x) + s - on.b))
    done = first.same(face) & (left <= POLISHED * (1.0 + xp.maximum(on.sizes(x), on.sizes(v))))
    return Polish(x, v, z, s, done, next_x, next_v, face, system)


def polished(batch: Batch, x: Tensor, z: Tensor, s: Tensor, items: Tensor) -> Tensor:
    """Take some points to machine precision, in place, batch last, in equilibrated units; which of them were."""
    rows = cone_rows(batch.program.cones, None if batch.algebra == "numba" else x.device)
    at, v, done_at_all = x.clone(), z - s, torch.zeros(len(batch), dtype=torch.bool, device=x.device)

    def work(on: Algebra, x: Array, v: Array) -> tuple[Array, ...]:
        found = polish(on, rows, x, v)
        return found.x, found.z, found.s, found.next_x, found.next_v, found.done[None] + 0.0

    for k in range(ROUNDS):
        if not items.numel():
            break
        fill = batch.filled(items)
        given = (t[:, fill].contiguous() for t in (at, v))
        # Later rounds are of few items, and of every size: not worth a recording each.
        found = batch[fill].each(work, *given, name=None if k else "polish")
        *points, next_x, next_v, done = (t[:, : len(items)] for t in found)
        chosen = done[0] > 0
        for target, value in zip((x, z, s), points, strict=True):
            target[:, items[chosen]] = value[:, chosen]
        at[:, items], v[:, items] = next_x, next_v
        done_at_all[items[chosen]] = True
        items = items[~chosen]
    return done_at_all
