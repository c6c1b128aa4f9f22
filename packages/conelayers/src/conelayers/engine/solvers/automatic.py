"""The default solver: for every program the one that suits it, among those that are installed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import ClassVar, final

from conelayers.engine.solution import WarmStart
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.contract import Capabilities, Points
from conelayers.engine.solvers.interior import Interior
from conelayers.engine.solvers.moreau import Moreau
from conelayers.program.program import EVERY_CONE, ConeProgram, Values


def general_solver() -> Moreau | Clarabel:
    """The first installed solver that takes every cone."""
    return Moreau() if find_spec("moreau") else Clarabel()


@final
@dataclass(frozen=True, eq=False)
class Automatic:
    """Our own method wherever its cones suffice, a general solver for the rest.

    Args:
        own: our method, for zero, nonnegative and second-order cones.
        general: the other, for semidefinite, exponential and power cones.
    """

    own: Interior = field(default_factory=Interior)
    general: Moreau | Clarabel = field(default_factory=general_solver)
    name: str = "auto"
    capabilities: ClassVar[Capabilities] = Capabilities(EVERY_CONE)

    def choice(self, program: ConeProgram) -> Interior | Moreau | Clarabel:
        """Who takes a program."""
        return self.general if self._foreign(program) else self.own

    def why(self, program: ConeProgram) -> str:
        """The reason, in words."""
        foreign, chosen = self._foreign(program), self.choice(program).name
        if foreign:
            return f"{chosen}, since {' and '.join(foreign)} cones are not among those of our own method"
        kinds = ", ".join(sorted(program.cones.kinds)) or "none"
        return f"{chosen}, since all cones ({kinds}) are those of our own method"

    def _foreign(self, program: ConeProgram) -> list[str]:
        """The cones that our method does not know."""
        return sorted(program.cones.kinds - self.own.capabilities.cones)

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Pass on."""
        return self.choice(program).solve(program, values, warm_start, level)

    def with_tolerance(self, tolerance: float) -> Automatic:
        """Both asked for another accuracy."""
        return replace(self, own=self.own.with_tolerance(tolerance), general=self.general.with_tolerance(tolerance))
