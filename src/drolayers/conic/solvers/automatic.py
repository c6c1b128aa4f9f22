"""The default back end: for every program the one that suits it best, among those that are installed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec

import torch

from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import WarmStart
from drolayers.conic.solvers.contract import Backend, Capabilities, Exact, Pullback, Raw, Smoothed
from drolayers.conic.solvers.diffcp import Diffcp
from drolayers.conic.solvers.interior import Batched
from drolayers.conic.solvers.moreau import Moreau

FILL = 50
"""Entries of the factored system for every row and column up to which our own method is the faster one."""


def general_backend() -> Moreau | Diffcp | None:
    """The first installed back end that takes every cone."""
    if find_spec("moreau"):
        return Moreau()
    return Diffcp() if find_spec("diffcp") else None


@dataclass(frozen=True, eq=False)
class Automatic:
    """Our own batched method where it is both faster and good enough, a general back end for the rest.

    Our method is for self-dual cones and systems of block-arrow shape. On the programs of the paper it is three to
    eight times faster forwards than Moreau, and more backwards; without the shape its dense systems are slower. It
    differentiates on the central path. Where gradients are smoothed that is the definition, and on a GPU there is no
    choice; but next to a kink the exact gradient is a per mille off where Moreau's, which is checked, is not, and in
    badly scaled programs the last digits of the optimum are missing. So without smoothing the CPU goes the careful way;
    ``engine="batched"`` asks for the quick one.

    Args:
        quick: whether our method is taken on the CPU as well.
        batched: our method.
        general: the other.
    """

    quick: bool = False

    batched: Batched = field(default_factory=Batched)
    general: Moreau | Diffcp | None = field(default_factory=general_backend)
    name: str = "auto"

    @property
    def capabilities(self) -> Capabilities:
        """What either can do."""
        own = self.batched.capabilities
        if self.general is None:
            return own
        other = self.general.capabilities
        return Capabilities(own.cones | other.cones, own.quadratic or other.quadratic, own.smoothed | other.smoothed)

    def choice(self, program: ConeProgram, device: torch.device) -> Backend:
        """Who takes a program."""
        if self.general is None:
            return self.batched
        wanted = device.type == "cuda" or (self.quick and self.batched.compiled)
        if not wanted or not program.cones.kinds <= self.batched.capabilities.cones:
            return self.general
        size = self.batched.plan(program, device).arrow.length
        return self.batched if size <= FILL * (program.rows + program.columns) else self.general

    def solve(
        self,
        program: ConeProgram,
        values: Values,
        gradient: Exact | Smoothed | None,
        warm_start: WarmStart | None,
    ) -> Raw:
        """Pass on."""
        return self.choice(program, values.q.device).solve(program, values, gradient, warm_start)

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """Pass on."""
        return self.choice(program, values.q.device).adopt(program, values, point, gradient)

    def with_tolerance(self, tolerance: float) -> Automatic:
        """Both asked for another accuracy."""
        general = None if self.general is None else self.general.with_tolerance(tolerance)
        return replace(self, batched=self.batched.with_tolerance(tolerance), general=general)
