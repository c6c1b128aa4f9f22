"""Oracles by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from drolayers.conic import ConeProgram, Engine, Values, default_engine, make_engine
from drolayers.conic.solvers.contract import Solver
from drolayers.errors import ModelError
from drolayers.integer.branch_and_bound import BranchAndBound
from drolayers.integer.enumeration import Enumeration, box_size
from drolayers.integer.gurobi import Gurobi
from drolayers.integer.highs import HiGHS
from drolayers.integer.linear import Simplex
from drolayers.integer.oracle import Candidates, Oracle
from drolayers.integer.scip import SCIP


@dataclass(frozen=True, eq=False)
class Auto:
    """Enumeration where the box is small, a simplex method where the program is linear, branch and bound elsewhere.

    ``choose`` and ``Candidates.oracle`` say which.

    Args:
        engine: passed on.
        small: integer points up to which all are solved.
    """

    engine: Engine = field(default_factory=default_engine)
    small: int = 32
    name: str = "auto"

    def choose(self, program: ConeProgram) -> Oracle:
        """The oracle for a program."""
        if box_size(program) <= self.small:
            return Enumeration(self.engine)
        return Simplex(self.engine) if Simplex.suits(program) else BranchAndBound(self.engine)

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        return self.choose(program).best(program, values, count)


ORACLES: dict[str, Callable[..., Oracle]] = {
    "auto": Auto,
    "branch_and_bound": BranchAndBound,
    "simplex": Simplex,
    "enumeration": Enumeration,
    "scip": SCIP,
    "gurobi": Gurobi,
    "highs": HiGHS,
}
"""What makes each oracle; packages of others are imported when they are used."""


def make_oracle(oracle: str | Oracle = "auto", engine: str | Solver | Engine = "auto") -> Oracle:
    """An oracle from its name, or an oracle as it is.

    Args:
        oracle: "auto", "branch_and_bound", "simplex", "enumeration", "scip", "gurobi", "highs" or an object.
        engine: what certifies points and solves relaxations; ignored for an object, which has its own.
    """
    if not isinstance(oracle, str):
        # A class is none either, although it has both.
        if isinstance(oracle, type) or not isinstance(oracle, Oracle) or not callable(oracle.best):
            raise ModelError(
                f"{oracle!r} is no oracle: it must be a name or an object with name and best(program, values, count)."
            )
        return oracle
    if oracle not in ORACLES:
        raise ModelError(f"There is no oracle {oracle!r}: choose one of {sorted(ORACLES)}.")
    return ORACLES[oracle](engine=make_engine(engine))
