"""Oracles by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from conelayers.engine.engine import Engine
from conelayers.engine.registry import default_engine, make_engine
from conelayers.engine.solvers.contract import Solver
from conelayers.errors import ModelError
from conelayers.integer.enumeration import Enumeration, box_size
from conelayers.integer.external.gurobi import Gurobi
from conelayers.integer.external.highs import HiGHS
from conelayers.integer.external.scip import SCIP
from conelayers.integer.oracle import Candidates, Oracle
from conelayers.integer.simplex.linear import Simplex
from conelayers.integer.tree.branch_and_bound import BranchAndBound
from conelayers.interior.batch import system_plan
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status

LARGE = {"cuda": 300}
"""Linear programs of a batch from which the tree is asked first, by kind of device.

The tree is where the programs are, the simplex method on the host. Seconds of both searches for 800 assets with a bound
each on one H200, host and device, in one run (``benchmarks/gpu.py --search``): batches of 100 take 0.088 and 0.086, of
400 0.204 and 0.093, of 1,600 0.389 and 0.228, of 6,400 1.226 and 0.764.
"""

FEW = 4
"""Boxes of a program that the tree may solve then: where bounds are good one is enough, and where hundreds are needed
the simplex method takes a hundredth of the time (knapsacks on a CPU, ``benchmarks/README.md``)."""


@dataclass(frozen=True, eq=False)
class TreeFirst:
    """Branch and bound for what it settles in a few boxes, and a simplex method for the other programs of a batch.

    Args:
        engine: passed on.
    """

    engine: Engine = field(default_factory=default_engine)
    name: str = "branch_and_bound"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        found = BranchAndBound(self.engine, node_limit=FEW).best(program, values, count)
        settled = torch.tensor([Status.OPTIMAL, Status.INFEASIBLE, Status.UNBOUNDED], device=found.status.device)
        rest = (~torch.isin(found.status, settled)).nonzero()[:, 0]
        if not len(rest):
            return found
        others = Simplex(self.engine).best(program, values[rest], count)
        return replace(found.where(rest, others), oracle=f"{found.oracle}, {others.oracle}")


@dataclass(frozen=True, eq=False)
class Auto:
    """Enumeration where the box is small, a simplex method where the program is linear, branch and bound elsewhere.

    Large batches of linear programs that are on a GPU, and that our method records there, ask branch and bound first.
    ``choose`` and ``Candidates.oracle`` say which.

    Args:
        engine: passed on.
        small: integer points up to which all are solved.
        time_limit: seconds for the search of a whole batch, passed on; None for no limit.
    """

    engine: Engine = field(default_factory=default_engine)
    small: int = 32
    time_limit: float | None = None
    name: str = "auto"

    def choose(self, program: ConeProgram, values: Values | None = None) -> Oracle:
        """The oracle for a program, or for a batch of them."""
        if box_size(program) <= self.small:
            return Enumeration(self.engine)
        if not Simplex.suits(program):
            return BranchAndBound(self.engine, time_limit=self.time_limit)
        if self.time_limit is None and values is not None and _large(program, values):
            return TreeFirst(self.engine)
        return Simplex(self.engine, time_limit=self.time_limit)

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        return self.choose(program, values).best(program, values, count)


def _large(program: ConeProgram, values: Values) -> bool:
    """Whether a device has enough programs to gain, of a shape that our method records there."""
    device = values.q.device
    enough = len(values) >= LARGE.get(device.type, len(values) + 1)
    return enough and system_plan(program, device).arrow.pivot_free


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


def make_oracle(
    oracle: str | Oracle = "auto", engine: str | Solver | Engine = "auto", time_limit: float | None = None
) -> Oracle:
    """An oracle from its name, or an oracle as it is.

    Args:
        oracle: "auto", "branch_and_bound", "simplex", "enumeration", "scip", "gurobi", "highs" or an object.
        engine: what certifies points and solves relaxations; ignored for an object, which has its own.
        time_limit: seconds for the search of a whole batch; None for no limit.
    """
    if time_limit is not None and (not isinstance(oracle, str) or oracle == "enumeration"):
        raise ModelError(f"Oracle {oracle!r} takes no time_limit here. Set it on the oracle, or name a search.")
    if not isinstance(oracle, str):
        # A class is none either, although it has both.
        if isinstance(oracle, type) or not isinstance(oracle, Oracle) or not callable(oracle.best):
            raise ModelError(
                f"{oracle!r} is no oracle: it must be a name or an object with name and best(program, values, count)."
            )
        return oracle
    if oracle not in ORACLES:
        raise ModelError(f"There is no oracle {oracle!r}: choose one of {sorted(ORACLES)}.")
    limit = {} if time_limit is None else {"time_limit": time_limit}
    return ORACLES[oracle](engine=make_engine(engine), **limit)
