"""The algebra of the interior-point method on the CPU: a few programs at a time, compiled with numba.

In torch every small operation on a batch costs microseconds and a pass through memory; here the data of a handful of
programs stay in the cache. The whole system [P, Aᵀ; A, -H] is factored, sparse, in the order of ``elimination.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from drolayers.conic.interior import kernels
from drolayers.conic.interior.elimination import Elimination
from drolayers.conic.program import ConeProgram
from drolayers.conic.residuals import row_index

Floats = NDArray[np.float64]

LEAST = 1e-13
"""The least size of a pivot."""


@final
@dataclass(frozen=True, eq=False)
class Structure:
    """What all programs of one structure share, as arrays."""

    plan: Elimination
    rows: int
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    P_row: NDArray[np.int64]
    P_column: NDArray[np.int64]
    cones: tuple[Any, ...]

    @classmethod
    def of(cls, program: ConeProgram) -> Structure:
        """From a program."""
        plan, cones = Elimination.of(program), program.cones
        return cls(
            plan,
            program.rows,
            row_index(program.A_indptr).numpy(),
            program.A_indices.numpy(),
            row_index(program.P_indptr).numpy(),
            program.P_indices.numpy(),
            (cones.zero, cones.zero + cones.nonneg, plan.cone_start, plan.cone_size),
        )

    @property
    def numbers(self) -> int:
        """How many numbers a step touches, about."""
        return self.plan.length + 12 * self.rows + self.row.size


@final
class NumbaAlgebra:
    """A few programs of one structure, ``(entries, lanes)``; keeps the contract of ``method.Algebra``."""

    xp: Any = np

    def __init__(self, on: Structure, A: Floats, P: Floats, q: Floats, b: Floats) -> None:
        self.on, self.A, self.P, self.q, self.b = on, A, P, q, b
        self.zero, self.linear, cone_start, _ = on.cones
        self.quadratic, self.lanes = P.shape[0] > 0, q.shape[1]
        self.unit = np.zeros((on.rows, 1))
        self.unit[self.zero : self.linear] = 1.0
        self.unit[cone_start] = 1.0
        self.degree = int(self.unit.sum())
        self._factored = np.empty((on.plan.length, self.lanes))
        self._room = np.empty((on.plan.nodes + 1, self.lanes))
        self._spare = (np.empty_like(b), np.empty_like(b))
        self._ends = np.array([self.zero, self.linear])

    def rows(self, x: Floats) -> Floats:
        """A x."""
        out = np.zeros_like(self.b)
        kernels.add_products(out, self.on.row, self.on.column, self.A, x, 1.0)
        return out

    def columns(self, z: Floats) -> Floats:
        """Aᵀz."""
        out = np.zeros_like(self.q)
        kernels.add_products(out, self.on.column, self.on.row, self.A, z, 1.0)
        return out

    def form(self, x: Floats) -> Floats:
        """P x."""
        out = np.zeros_like(self.q)
        if self.quadratic:
            kernels.add_products(out, self.on.P_row, self.on.P_column, self.P, x, 1.0)
        return out

    def dots(self, u: Floats, v: Floats) -> Floats:
        """Inner products."""
        out = np.empty(self.lanes)
        kernels.dots(u, v, out)
        return out

    def masses(self, u: Floats, v: Floats) -> Floats:
        """Sums of absolute products."""
        out = np.empty(self.lanes)
        kernels.masses(u, v, out)
        return out

    def sizes(self, v: Floats) -> Floats:
        """Largest absolute entries."""
        out = np.empty(self.lanes)
        kernels.sizes(v, out)
        return out

    def combine(self, a: Floats, u: Floats, b: Floats, v: Floats) -> Floats:
        """a·u + b·v."""
        out = np.empty_like(u)
        kernels.combine(a, u, b, v, out)
        return out

    def move(self, v: Floats, d: Floats, length: Floats) -> None:
        """V += length·d, in place."""
        kernels.move(v, d, length)

    def keep(self, target: Floats, source: Floats, chosen: NDArray[np.bool_]) -> None:
        """Copy some items, in place."""
        kernels.keep(target, source, chosen)

    def enough(self, done: NDArray[np.bool_]) -> bool:
        """Whether all items are done."""
        return bool(done.all())

    def margin(self, v: Floats) -> Floats:
        """The smallest eigenvalue over all cones."""
        out = np.empty(self.lanes)
        kernels.margin(*self.on.cones, v, out)
        return out

    def reach(self, v: Floats, d: Floats) -> Floats:
        """The largest step that stays in the cones."""
        out = np.empty(self.lanes)
        kernels.reach(*self.on.cones, v, d, out)
        return out

    def scale(self, s: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
        """H on the orthant, w and η² of the cones."""
        found = (np.empty_like(s), np.empty_like(s), np.empty((self.on.plan.cone_start.size, self.lanes)))
        kernels.scale(*self.on.cones, s, z, *found)
        return found

    def factor(self, scaling: tuple[Floats, Floats, Floats], shift: float) -> tuple[Floats, Floats, Floats]:
        """Assemble and factor; there is room for one factorisation, and a new one takes the place of the last."""
        plan, F = self.on.plan, self._factored
        places = (plan.A, plan.P, plan.diagonal, plan.square, plan.extra, plan.edge, plan.soft)
        kernels.assemble(*self.on.cones, *scaling, self.A, self.P, plan.nodes, *places, shift, F)
        rows = (plan.row_start, plan.row_entry, plan.row_column)
        kernels.factor(plan.nodes, plan.start, plan.below, *rows, plan.sign, LEAST, F, self._room)
        return scaling

    def solve(
        self, system: tuple[Floats, Floats, Floats], rx: Floats, rz: Floats, refine: int
    ) -> tuple[Floats, Floats]:
        """The solution of a factored system."""
        on, plan, x, z = self.on, self.on.plan, np.empty_like(self.q), np.empty_like(self.b)
        pattern = (on.row, on.column, on.P_row, on.P_column)
        places = (plan.nodes, plan.start, plan.below, plan.position)
        numbers = (self._factored, self._room, rx, rz)
        kernels.solve(self._ends, *on.cones[2:], *system, self.A, self.P, *pattern, *places, *numbers, refine, x, z)
        return x, z

    def slack(self, scaling: tuple[Floats, Floats, Floats], dz: Floats, offset: Floats) -> Floats:
        """-(H dz + offset), zero on the rows of the zero cone."""
        out = np.empty_like(dz)
        kernels.square(*self.on.cones, *scaling, dz, offset, -1.0, out)
        out[: self.zero] = 0.0
        return out

    def correct(
        self, scaling: tuple[Floats, Floats, Floats], z: Floats, ds: Floats, dz: Floats, target: Floats
    ) -> Floats:
        """Mehrotra's offset."""
        out = np.empty_like(z)
        kernels.correct(*self.on.cones, *scaling, z, ds, dz, target, *self._spare, out)
        return out
