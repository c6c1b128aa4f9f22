"""Solving many boxes of the integer columns of many programs: the one place where the search meets the engine.

Every solved box also yields *affine bounds*, valid for every integer point of that program. With its primal solution x̄
and dual z, of which the rows that bound integer columns are dropped, weak duality reads for all feasible y

    f(y) ≥ constant - ½x̄ᵀPx̄ - bᵀz + (q + Px̄ + Aᵀz)ᵀy.

The coefficients of continuous columns vanish at a dual solution; what the solver leaves of them is charged to the
constant with a multiple of x̄. What remains is ``constant + qᵀp + Σ_C (share_C + weight_Cᵀp)``, a sum over components;
over a box its minimum is the Lagrangian bound corrected by reduced costs, and it costs no solve. Of the multipliers of
a solution, those are used that say most about integers (``multipliers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from conelayers.engine.engine import Engine
from conelayers.integer.components import Components
from conelayers.integer.multipliers import Multipliers
from conelayers.program.program import ConeProgram, Values, once
from conelayers.program.residuals import products
from conelayers.status import Status, usable

ADOPTED = 1e-9
"""Residual up to which an integral relaxation is its point's solution: that of a solve."""


@dataclass(frozen=True, eq=False)
class Solved:
    """What became of a set of boxes, as tensors or as arrays; rows that are not ``ok`` hold zeros."""

    status: Any
    objective: Any
    mass: Any
    primal: Any
    dual: Any
    share: Any
    weight: Any

    def __getitem__(self, chosen: Any) -> Solved:
        if isinstance(chosen, Tensor) and chosen.dtype == torch.bool:
            chosen = chosen.nonzero()[:, 0]
        return self.each(lambda part: part[chosen])

    def each(self, change: Callable[[Any], Any]) -> Solved:
        """The same with all parts changed alike."""
        return Solved(*(change(getattr(self, f.name)) for f in fields(self)))

    @classmethod
    def cat(cls, parts: Sequence[Solved]) -> Solved:
        """Those of several calls as one."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    @property
    def ok(self) -> Any:
        """Which boxes have a solution."""
        return usable(self.status)


@dataclass(frozen=True, eq=False)
class Boxes:
    """A batch of programs whose integer columns are confined to boxes and solved, many at a time.

    Args:
        engine: solves; its gradient rule does not matter here.
        program: the structure.
        values: the numbers, one program an item.
        memory: bytes that one call of the engine may take, estimated from the size of the program.
        components: those whose affine bounds are wanted; by default all.
    """

    engine: Engine
    program: ConeProgram
    values: Values
    memory: float = 1e9
    components: Components | None = None
    chunk: int = field(init=False)
    """Boxes in one call: an interior-point method holds some two hundred numbers a row (measured)."""

    def __post_init__(self) -> None:
        program = self.program
        per_item = 8.0 * (200 * (program.rows + program.columns) + 20 * program.nonzeros)
        # A GPU is as fast with twice as many; with more, recordings of calls of all sizes take too much of it.
        memory, most = (self.memory, 9) if self.values.q.device.type == "cpu" else (4 * self.memory, 10)
        chunk = 1 << max(0, min(most, int(np.log2(max(1.0, memory / per_item)))))
        vars(self).update(
            values=self.values.detach(), components=self.components or Components.of(program), chunk=chunk
        )

    @cached_property
    def _multipliers(self) -> Multipliers:
        """Those that may be moved."""
        return Multipliers.of(self.program, self.values)

    def chunks(self, size: int) -> Iterator[slice]:
        """Cut a number of boxes into calls, so that little is lost by padding."""
        at = 0
        while at < size:
            rest = min(size - at, self.chunk)
            lost = padded(rest) - rest if self.engine.solver.capabilities.fixed_sizes else 0
            step = rest if lost <= max(4, rest // 16) else 1 << (rest.bit_length() - 1)
            yield slice(at, at + step)
            at += step

    def solve(self, item: Any, lower: Any, upper: Any) -> Solved:
        """Solve one box a row; the answer to arrays is arrays."""
        if isinstance(item, np.ndarray):
            device = self.values.q.device
            given = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (item, lower, upper))
            return self.solve(*given).each(lambda part: part.cpu().numpy())
        return Solved.cat([self._solve(item[c], lower[c], upper[c]) for c in [*self.chunks(len(item))] or [slice(0)]])

    def adopt(self, item: Int[Tensor, "box"], point: Int[Tensor, "box integer"], solved: Solved) -> Solved:
        """The points to which integral relaxations belong, with the same multipliers; FAILED if that is not accurate.

        A relaxation whose integers are whole solves its point as well: only the bounds of integers differ, and those
        that hold a multiplier are where the point is. What rounding changes is measured.
        """
        return Solved.cat([self._adopt(item[c], point[c], solved[c]) for c in [*self.chunks(len(item))] or [slice(0)]])

    @torch.no_grad()
    def _adopt(self, item: Tensor, point: Tensor, solved: Solved) -> Solved:
        """One call of the engine."""
        values = self.program.within(self.values[item], point, point)
        x = solved.primal.index_copy(1, self.program.on(item.device).integers, point.to(solved.primal.dtype))
        found = replace(self.engine, rescue=None).adopt(self.program, values, x, solved.dual, polish=False)
        sure = found.ok & (found.residual <= ADOPTED)
        status = torch.where(sure, found.status, int(Status.FAILED))
        return replace(solved, status=status, objective=found.objective, mass=(values.q * x).abs().sum(1), primal=x)

    @torch.no_grad()
    def _solve(self, item: Tensor, lower: Tensor, upper: Tensor) -> Solved:
        """One call of the engine, padded to one of a few sizes where a new size costs a new solver."""
        size, given = len(item), (item, lower, upper)
        if self.engine.solver.capabilities.fixed_sizes and padded(size) != size:
            fill = torch.arange(padded(size), device=item.device).clamp(max=size - 1)
            given = (item[fill], lower[fill], upper[fill])
        values = self.program.within(self.values[given[0]], *given[1:])
        solution = self.engine.solve_values(self.program, values, polish=False)
        ok = solution.ok[:, None]
        x, z = (torch.where(ok, t, torch.zeros_like(t)) for t in (solution.primal, solution.dual))
        share, weight = self._affine_bound(values, x, self._multipliers.enlarged(values, given[0], z))
        mass = (values.q * x).abs().sum(1)
        objective = torch.where(ok[:, 0], solution.objective, torch.zeros_like(solution.objective))
        return Solved(solution.status, objective, mass, x, z, share, weight)[:size]

    def _affine_bound(self, values: Values, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Share and weight of every component, by the formula at the top of this file."""
        program, parts, device = self.program, self.components, x.device
        assert parts is not None
        Px, _, Az = products(program, values, x, z)
        # The bounds of integer columns touch no continuous column.
        defect = (values.q + Px + Az).abs() * (2.0 * x.abs() + x.abs().amax(1, keepdim=True))
        inside, own, of_row, of_column, entry, pair, row = once(
            parts, ("bounds", device), lambda: _bound_index(program, parts, device)
        )
        share = x.new_zeros(x.shape[0], parts.count)
        share = share.index_add(1, of_row, -(values.b * z)[:, inside]).index_add(1, of_column, -defect[:, own])
        weight = x.new_zeros(x.shape[0], parts.pair[0].size).index_add(1, pair, values.A[:, entry] * z[:, row])
        if program.quadratic:
            share[:, 0] -= 0.5 * (Px * x).sum(1)
            weight += Px[:, program.on(device).integers]
        return share, weight


def _bound_index(program: ConeProgram, parts: Components, device: torch.device) -> tuple[Tensor, ...]:
    """Rows and columns of components, which those are, and the entries in integer columns with their pairs and rows."""
    sides = (parts.row, parts.column)
    arrays = (*(np.flatnonzero(s >= 0) for s in sides), *(s[s >= 0] for s in sides), parts.entry, parts.entry_pair)
    found = [torch.from_numpy(a).to(device) for a in arrays]
    return *found, program.on(device).row[found[4]]


def padded(size: int) -> int:
    """Sizes of calls are 0, 1, 2, 4, 6, 8, 12, 16, 24, 32 and so on."""
    power = 1 << max(size - 1, 0).bit_length()
    return 0 if size == 0 else power * 3 // 4 if power >= 8 and size <= power * 3 // 4 else power
