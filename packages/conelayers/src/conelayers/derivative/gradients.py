"""How a decision is to be differentiated, as the user says it, and the adjoint that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from conelayers.derivative.active import Active
from conelayers.derivative.barrier import Barrier
from conelayers.derivative.factored import Factored
from conelayers.derivative.path import Path
from conelayers.derivative.theorem import Adjoint
from conelayers.errors import ModelError
from conelayers.interior.batch import AlgebraName
from conelayers.program.program import EVERY_CONE, SYMMETRIC, ConeProgram


@dataclass(frozen=True)
class Exact:
    """Differentiate the solution map as it is."""

    level: None = None
    cones: ClassVar[frozenset[str]] = EVERY_CONE

    def adjoints(self, program: ConeProgram, algebra: AlgebraName | None = None) -> tuple[Adjoint, ...]:
        """On the active face: in the batch over our cones, item by item where that is not verified, and over others."""
        return (Active(algebra), Factored()) if program.cones.kinds <= SYMMETRIC else (Factored(),)


@dataclass(frozen=True)
class Smoothed:
    """Differentiate the solution of the barrier problem at a fixed level.

    Args:
        level: barrier parameter of the program in units in which its numbers are about one (``conic/units.py``), so
            that one level means the same at every scale. Bounds and penalties that never bind count for none of these
            units where they are far beyond all other numbers; bounds of a support do.
    """

    level: float = 1e-3
    cones: ClassVar[frozenset[str]] = SYMMETRIC | {"psd"}

    def __post_init__(self) -> None:
        if not self.level > 0:
            raise ModelError(f"The level of smoothing must be positive, not {self.level}.")

    def adjoints(self, program: ConeProgram, algebra: AlgebraName | None = None) -> tuple[Adjoint, ...]:
        """On the central path: in the batch over our cones, item by item with semidefinite ones."""
        return (Path(self.level, algebra) if program.cones.kinds <= SYMMETRIC else Barrier(self.level),)
