"""Our own batched interior-point method as a back end: on the GPU, and on the CPU where items are many and independent.

Programs of one structure are stepped through together in torch. The linear systems are solved through their block-arrow
shape, so that time grows linearly with the number of items (assets, products, scenarios), and the last factorisation
serves the derivative.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drolayers.conic import ipm
from drolayers.conic.implicit import completed_pullback
from drolayers.conic.interior.recording import Recordings
from drolayers.conic.interior.system import Data, SystemPlan
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import WarmStart
from drolayers.conic.solvers.contract import Capabilities, Exact, Pullback, Raw, Smoothed

EXACT = 1e-9
"""Level of the central path that stands for its end: low enough for gradients to be exact to about five digits, high
enough for the system to be solved."""


PIN = 1e7
"""Curvature with which the barrier holds a fixed column where gradients are taken: it is given room √(level/PIN). Much
less, and the column moves with the others; much more, and its width is lost to rounding."""


class PlanPool:
    """Plans by program and device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: WeakKeyDictionary[ConeProgram, dict[torch.device, SystemPlan]] = WeakKeyDictionary()
        self._structures: WeakKeyDictionary[ConeProgram, Any] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanPool, ()

    def get(self, program: ConeProgram, device: torch.device) -> SystemPlan:
        """The plan of a program, made when first asked for."""
        with self._lock:
            known = self._plans.setdefault(program, {})
            if device not in known:
                known[device] = SystemPlan.of(program, device)
            return known[device]

    def compiled(self, program: ConeProgram, plan: SystemPlan) -> Any:
        """The plan in the form that compiled code takes."""
        with self._lock:
            if program not in self._structures:
                from drolayers.conic.lanes import Structure

                self._structures[program] = Structure.of(plan)
            return self._structures[program]


@dataclass(frozen=True, eq=False)
class Batched:
    """The batched interior-point method.

    Args:
        tolerance: for feasibility and gap.
        max_iter: steps before an item is handed to the second route.
    """

    tolerance: float = 1e-9
    max_iter: int = 60
    name: str = "batched"
    _plans: PlanPool = field(default_factory=PlanPool, repr=False)
    _recordings: Recordings = field(default_factory=Recordings, repr=False)

    @property
    def compiled(self) -> bool:
        """Whether the CPU runs compiled code, without which the method is slow there."""
        return find_spec("numba") is not None

    def plan(self, program: ConeProgram, device: torch.device) -> SystemPlan:
        """How the systems of a program are laid out."""
        return self._plans.get(program, device)

    @property
    def capabilities(self) -> Capabilities:
        """Quadratic objectives over the self-dual cones."""
        symmetric = frozenset({"zero", "nonneg", "soc"})
        return Capabilities(symmetric, quadratic=True, smoothed=symmetric)

    def solve(
        self,
        program: ConeProgram,
        values: Values,
        gradient: Exact | Smoothed | None,
        warm_start: WarmStart | None,
    ) -> Raw:
        """Solve; a warm start is not used, since the method starts well inside the cones."""
        items, values = len(values), values.detach()
        given = values
        if values.q.device.type == "cuda":
            # A recording serves one size of batch, and branch-and-bound asks for many: they are rounded up.
            values = values[torch.arange(_rounded(items), device=values.q.device).clamp(max=items - 1)]
        data = Data.of(self._plans.get(program, values.q.device), values)
        level = 0.0 if gradient is None else _level(gradient)
        outcome = self._run(program, data, level)
        at = outcome.iterate
        # A certificate needs no division by τ, and τ is next to nothing then.
        small = outcome.verdict <= 1
        tau = torch.where(small | (at.tau > 1e-8), at.tau, torch.ones_like(at.tau))
        x, z, s = at.x / tau, at.z / tau, at.s / tau
        pullback = None if gradient is None else self._pullback(program, data, level, outcome.anchor)
        x, z, s = ((v * d).T[:items].contiguous() for v, d in ((x, data.D), (z, data.E), (s, 1.0 / data.E)))
        if pullback is not None and isinstance(gradient, Exact):
            pullback = completed_pullback(program, given, x, z, s, pullback)
        return Raw(
            x,
            z,
            s,
            outcome.verdict[:items],
            outcome.steps[:items],
            pullback,
        )

    def _run(self, program: ConeProgram, data: Data, level: float) -> ipm.Outcome:
        """Compiled, lane by lane, on the CPU; recorded on a GPU; in torch step by step otherwise."""
        structure = self._structure(program, data)
        if structure is None and data.q.device.type == "cuda" and data.plan.arrow.pivot_free:
            return self._recordings.solve(data, self.tolerance, self.max_iter, level)
        if structure is None:
            return ipm.solve(data, self.tolerance, self.max_iter, level)
        from drolayers.conic.lanes_ipm import solve_lanes

        return solve_lanes(structure, data, self.tolerance, self.max_iter, level)

    def _pull(
        self, program: ConeProgram, data: Data, level: float, anchor: ipm.Iterate, dx: Tensor
    ) -> tuple[Tensor, ...]:
        """The derivative on the central path, which is met only now that it is asked for."""
        structure = self._structure(program, data)
        if structure is not None:
            from drolayers.conic.lanes_ipm import pull_lanes

            return pull_lanes(structure, data, level, anchor, dx)
        if data.q.device.type == "cuda" and data.plan.arrow.pivot_free:
            return self._recordings.pull(data, level, anchor, dx)
        return ipm.pull(data, level, anchor, dx)

    def _mended(
        self, program: ConeProgram, data: Data, level: float, anchor: ipm.Iterate, dx: Tensor
    ) -> tuple[Tensor, ...]:
        """The same, a little further up the path for items whose arithmetic breaks down: some in a thousand.

        They have been seen to lie on the boundary of a second-order cone but for rounding.
        """
        found = self._pull(program, data, level, anchor, dx)
        for higher in (10.0 * level, 100.0 * level):
            broken = (~torch.stack([t.isfinite().all(0) for t in found]).all(0)).nonzero()[:, 0]
            if not len(broken):
                break
            padded = broken[torch.arange(_rounded(len(broken)), device=broken.device).clamp(max=len(broken) - 1)]
            inner = anchor.pick(padded).inward(data.plan.shape, higher)
            again = self._pull(program, data.of_items(padded), higher, inner, dx[:, padded].contiguous())
            found = tuple(t.index_copy(1, broken, part[:, : len(broken)]) for t, part in zip(found, again, strict=True))
        return found

    def _structure(self, program: ConeProgram, data: Data) -> Any:
        """What compiled code needs, where it can run."""
        usable = data.q.device.type == "cpu" and self.compiled
        return self._plans.compiled(program, data.plan) if usable else None

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """The central path has to be met anyway, so the method is run once more."""
        found = self.solve(program, values, gradient, point).pullback
        assert found is not None
        return found

    def with_tolerance(self, tolerance: float) -> Batched:
        """The same back end, asked for another accuracy."""
        return replace(self, tolerance=tolerance)

    def _pullback(self, program: ConeProgram, data: Data, level: float, anchor: ipm.Iterate) -> Pullback:
        """The implicit function theorem on the central path (see ``adjoint.py``): K (g, h) = (dx, 0).

        dq = -g, db = h, dA = -(z gᵀ + h xᵀ), dP = -g xᵀ, taken back to the units of the program.
        """
        plan = data.plan
        data, anchor = _opened(program, data, level, anchor)

        def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            items = len(dx)
            padded = torch.nn.functional.pad(dx.T.to(data.q), (0, data.q.shape[1] - items))
            scaled = (padded * data.D).contiguous()
            x, z, g, h = self._mended(program, data, level, anchor, scaled)
            dA = -(z[plan.row] * g[plan.column] + h[plan.row] * x[plan.column]) * data.E[plan.row] * data.D[plan.column]
            dP = -g[plan.P_row] * x[plan.P_column] * data.D[plan.P_row] * data.D[plan.P_column]
            dP, dA, dq, db = (t.T[:items].to(dx) for t in (dP, dA, -g * data.D, h * data.E))
            return dP, dA, dq, db

        return pullback


def _rounded(items: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 …, or a multiple of 100 near by, as the sizes of batches are."""
    power = 1 << max(items - 1, 0).bit_length()
    size = power * 3 // 4 if power >= 4 and items <= power * 3 // 4 else power
    hundreds = -(-items // 100) * 100
    return min(size, hundreds) if hundreds >= items else size


def _opened(program: ConeProgram, data: Data, level: float, anchor: ipm.Iterate) -> tuple[Data, ipm.Iterate]:
    """Programs whose fixed columns are given a little room, and points inside them.

    A column that is fixed by two equal bounds leaves no interior, and so no central path to differentiate along. With
    room δ the barrier pins the column with curvature level/δ², and the others follow the path that they would have
    without it.
    """
    delta = (level / PIN) ** 0.5
    below, above = (rows.to(data.b.device) for rows in (program.lower_rows, program.upper_rows))
    if not below.numel():
        return data, anchor
    lower, upper = data.E[below], data.E[above]
    width = data.b[below] / lower + data.b[above] / upper
    fixed = width < 2.0 * delta
    if not bool(fixed.any()):
        return data, anchor
    b, z, s = data.b.clone(), anchor.z / anchor.tau, anchor.s / anchor.tau
    for rows, scale in ((below, lower), (above, upper)):
        room = torch.where(fixed, delta - 0.5 * width, torch.zeros_like(width)) * scale
        b[rows] += room
        s[rows] = torch.where(fixed, delta * scale, s[rows])
        # The pair's difference is the multiplier of the column; what both have in common is the barrier's.
        z[rows] = torch.where(fixed, level / (delta * scale), z[rows])
    one = torch.ones_like(anchor.tau)
    return replace(data, b=b), ipm.Iterate(anchor.x / anchor.tau, z, s, one, one)


def _level(gradient: Exact | Smoothed) -> float:
    """The level of the central path at which a gradient is taken."""
    return gradient.level if isinstance(gradient, Smoothed) else EXACT
