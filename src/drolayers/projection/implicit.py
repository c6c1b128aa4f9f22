"""Any back end's solution with the derivative of the optimality conditions, solved directly.

Projections end on kinks (a residual that is exactly zero) and on power cones, where the batched solver's own derivative
was seen to be off by some per cent; their programs are small enough for a factorisation of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from drolayers.conic.implicit import implicit_pullback
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import WarmStart
from drolayers.conic.solvers.contract import Backend, Capabilities, Exact, Pullback, Raw, Smoothed


@final
@dataclass(frozen=True, eq=False)
class Implicit:
    """Solve by ``inner``, differentiate by the implicit function theorem, item by item."""

    inner: Backend

    @property
    def name(self) -> str:
        """That of the solver."""
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        """Those of the solver, without smoothing."""
        return replace(self.inner.capabilities, smoothed=frozenset())

    def with_tolerance(self, tolerance: float) -> Implicit:
        """The same with another accuracy."""
        return Implicit(self.inner.with_tolerance(tolerance))

    def solve(
        self, program: ConeProgram, values: Values, gradient: Exact | Smoothed | None, warm_start: WarmStart | None
    ) -> Raw:
        """Solve without the solver's derivative."""
        raw = self.inner.solve(program, values, None, warm_start)
        return (
            raw if gradient is None else replace(raw, pullback=implicit_pullback(program, values, raw.x, raw.z, raw.s))
        )

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """The derivative at a known solution."""
        return implicit_pullback(program, values, point.primal, point.dual, point.slack)
