"""Branch and bound for the T best integer points of a whole batch, in one tree: its settings; ``search.py`` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from conelayers.engine.engine import Engine
from conelayers.engine.registry import default_engine
from conelayers.errors import ModelError
from conelayers.integer.oracle import Candidates, check_positive
from conelayers.integer.tree.search import Search
from conelayers.program.program import ConeProgram, Values


@dataclass(frozen=True, eq=False)
class BranchAndBound:
    """Batched best-bound search.

    Args:
        engine: solves relaxations and certifies points.
        node_limit: relaxations of boxes for one item before its search ends with a gap; None for no limit.
        time_limit: seconds for the whole batch before the search ends with gaps; None for no limit.
        fill: boxes that a round should hold at least, so that the last few items do not go one by one.
        memory: bytes that one call of the engine may take.
    """

    engine: Engine = field(default_factory=default_engine)
    node_limit: int | None = 100_000
    time_limit: float | None = None
    fill: int = 32
    memory: float = 1e9
    name: str = "branch_and_bound"

    def __post_init__(self) -> None:
        if self.node_limit is not None and self.node_limit < 1:
            raise ModelError(f"node_limit must be at least 1, not {self.node_limit}.")
        check_positive("time_limit", self.time_limit)

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        return Search(self, program, values, count).run()
