"""Smoothed derivatives: those of the barrier problem, taken on the central path at the level asked for.

The factorisation of the last Newton step towards the path serves the adjoint equations, and refinement takes back what
the step has changed. None of the forward pass could: that keeps the last iterate above the level, from which the path's
point is relative distances of 0.03 to 1 away (portfolios of 100 and 400 assets), another point with another scaling,
and fixed columns are given room besides. What a factorisation costs would not be worth its memory either: a tenth of a
Newton step on the CPU, where solves and refinements take most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from conelayers.derivative.theorem import Found, Pulled
from conelayers.interior.batch import SHARED, AlgebraName, Batch
from conelayers.interior.method import Algebra, Goal, central
from conelayers.program.program import ConeProgram, Values, once
from conelayers.status import Derivative

Array = Any

PIN = 1e7
"""Curvature with which the barrier holds a fixed column: it is given room √(level/PIN). Much less, and the column moves
with the others; much more, and its width is lost to rounding."""

REFINE = 3
"""Refinements of the adjoint system."""

ROUNDS = 8
"""Times that Newton's method is called for an item that has not met the path."""

MET = 1e-4
"""By how much the path may be missed: the derivative is that of a level so much higher or lower, row by row."""


@final
@dataclass(frozen=True)
class Path:
    """The derivative on the central path, over zero, nonnegative and second-order cones.

    Args:
        level: of the barrier.
        algebra: as for ``Interior``.
    """

    level: float
    algebra: AlgebraName | None = None

    def __call__(
        self, program: ConeProgram, values: Values, found: Found, dx: Tensor, dz: Tensor | None = None
    ) -> Pulled:
        """Pull gradients back."""
        batch, passed, items = (
            Batch.of(program, values, self.algebra),
            found.passed,
            torch.arange(len(dx), device=dx.device),
        )
        if passed is None:
            goal = Goal(level=self.level, stop=True)
            fill = batch.filled(items)
            passed = batch[fill].solve(goal).passed
            assert passed is not None
            passed = passed.pick(items)
        at = [v / passed.tau for v in (passed.x, passed.z, passed.s)]
        b, at = opened(program, batch.A, batch.b, self.level, at)
        batch, pulled = replace(batch, b=b), Pulled.none(values)
        seeds = dx.T, (torch.zeros_like(found.z) if dz is None else dz).T

        def work(on: Algebra, x: Array, z: Array, s: Array, seed: Array, dual_seed: Array) -> tuple[Array, ...]:
            at = central(on, self.level, x, z, s)
            g, h = on.solve(at.system, seed, dual_seed, REFINE)
            return at.x, at.z, at.s, g, h, (at.missed + 0.0 * (on.sizes(g) + on.sizes(h)))[None]

        least = min(len(items), SHARED)
        for k in range(ROUNDS):
            left = []
            # Later rounds are of few items, and of every size: not worth a recording each, so they share one.
            for some in items.split(SHARED) if k else (items,):
                fill = batch.filled(some, least)
                given = (t[:, fill].contiguous() for t in (*at, *seeds))
                answer = batch[fill].each(work, *given, name=("path", self.level))
                x, z, s, g, h, missed = (t[:, : len(some)] for t in answer)
                for target, value in zip(at, (x, z, s), strict=True):
                    target[:, some] = value
                met = missed[0] <= MET
                code = torch.where(met, int(Derivative.PATH), int(Derivative.UNVERIFIED))
                pulled = pulled.put(some, Pulled(x.T, z.T, g.T, h.T, code))
                left.append(some[~met])
            items = torch.cat(left)
            if not items.numel():
                break
        return pulled


def opened(program: ConeProgram, A: Tensor, b: Tensor, level: float, at: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Right-hand sides that give fixed columns a little room, and points inside them, all batch last.

    A column that is fixed by two equal bounds leaves no interior, and so no central path to differentiate along. With
    room δ the barrier pins the column with curvature level/δ², and the others follow the path that they would have
    without it.
    """
    delta = (level / PIN) ** 0.5
    *_, below, above = program.on(b.device)
    if not below.numel():
        return b, at
    # Such rows have one entry, in which alone their scale shows.
    start = once(program, ("start", b.device), lambda: program.A_indptr.to(b.device))
    lower, upper = A[start[below]].abs(), A[start[above]].abs()
    width = b[below] / lower + b[above] / upper
    fixed = width < 2.0 * delta
    if not bool(fixed.any()):
        return b, at
    x, z, s = (t.clone() for t in at)
    b = b.clone()
    for rows, scale in ((below, lower), (above, upper)):
        room = torch.where(fixed, delta - 0.5 * width, torch.zeros_like(width)) * scale
        b[rows] += room
        s[rows] = torch.where(fixed, (delta * scale).expand_as(width), s[rows])
        # The pair's difference is the multiplier of the column; what both have in common is the barrier's.
        z[rows] = torch.where(fixed, (level / (delta * scale)).expand_as(width), z[rows])
    return b, [x, z, s]
