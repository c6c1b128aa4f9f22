"""Our own batched interior-point method as a back end: on the GPU, and on the CPU where items are many and independent.

Programs of one structure are stepped through together in torch. The linear systems are solved through their block-arrow
shape, so that time grows linearly with the number of items (assets, products, scenarios), and the last factorisation
serves the derivative.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drolayers.conic import ipm
from drolayers.conic.engine import Capabilities, Exact, Pullback, Raw, Smoothed
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import WarmStart
from drolayers.conic.system import Data, SystemPlan

EXACT = 1e-9
"""Level of the central path that stands for its end: low enough for gradients to be exact to about five digits, high
enough for the system to be solved."""


class PlanPool:
    """Plans by program and device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: WeakKeyDictionary[ConeProgram, dict[torch.device, SystemPlan]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanPool, ()

    def get(self, program: ConeProgram, device: torch.device) -> SystemPlan:
        """The plan of a program, made when first asked for."""
        with self._lock:
            known = self._plans.setdefault(program, {})
            if device not in known:
                known[device] = SystemPlan.of(program, device)
            return known[device]


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
        data = Data.of(self._plans.get(program, values.q.device), values.detach())
        level = 0.0 if gradient is None else _level(gradient)
        outcome = ipm.solve(data, self.tolerance, self.max_iter, level)
        at = outcome.iterate
        # A certificate needs no division by τ, and τ is next to nothing then.
        small = outcome.verdict <= 1
        tau = torch.where(small | (at.tau > 1e-8), at.tau, torch.ones_like(at.tau))
        x, z, s = at.x / tau, at.z / tau, at.s / tau
        pullback = None if gradient is None else self._pullback(data, level, outcome.anchor)
        return Raw(
            (x * data.D).T.contiguous(),
            (z * data.E).T.contiguous(),
            (s / data.E).T.contiguous(),
            outcome.verdict,
            outcome.steps,
            pullback,
        )

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """The central path has to be met anyway, so the method is run once more."""
        found = self.solve(program, values, gradient, point).pullback
        assert found is not None
        return found

    def with_tolerance(self, tolerance: float) -> Batched:
        """The same back end, asked for another accuracy."""
        return replace(self, tolerance=tolerance)

    @staticmethod
    def _pullback(data: Data, level: float, anchor: ipm.Iterate) -> Pullback:
        """The implicit function theorem on the central path (see ``adjoint.py``): K (g, h) = (dx, 0).

        dq = -g, db = h, dA = -(z gᵀ + h xᵀ), dP = -g xᵀ, taken back to the units of the program.
        """
        x, z, _, system = ipm.central(data, level, anchor)

        def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            g, h = system.solve(dx.T.to(x) * data.D, torch.zeros_like(data.b), refine=4)
            plan = data.plan
            dA = -(z[plan.row] * g[plan.column] + h[plan.row] * x[plan.column]) * data.E[plan.row] * data.D[plan.column]
            dP = -g[plan.P_row] * x[plan.P_column] * data.D[plan.P_row] * data.D[plan.P_column]
            return dP.T.to(dx), dA.T.to(dx), (-g * data.D).T.to(dx), (h * data.E).T.to(dx)

        return pullback


def _level(gradient: Exact | Smoothed) -> float:
    """The level of the central path at which a gradient is taken."""
    return gradient.level if isinstance(gradient, Smoothed) else EXACT
