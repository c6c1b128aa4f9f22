"""The contract of solvers: what an engine asks of whatever solves its batches. There is no gradient in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.engine.solution import WarmStart
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status


@dataclass(frozen=True)
class Capabilities:
    """What a solver can do, as data.

    Args:
        cones: the cones that it solves over.
        quadratic: whether the objective may have a quadratic part.
        fixed_sizes: whether a new size of batch costs a new solver, so that few sizes should be asked for.
    """

    cones: frozenset[str]
    quadratic: bool = True
    fixed_sizes: bool = False


@dataclass(frozen=True, eq=False)
class Points:
    """What a solver reports: points and its own verdict, which is checked before use.

    ``verdict`` is OPTIMAL, INFEASIBLE, UNBOUNDED or FAILED (meaning: unfinished). For INFEASIBLE ``z`` holds the
    certificate, for UNBOUNDED ``x`` does. ``passed`` is where our own method left the central path at the level asked
    for; it saves the smoothed derivative most of its way. ``polished`` are the items whose points satisfy the
    optimality conditions to machine precision, on a face that they confirm; ``tried`` are all that were attempted, and
    ``rough`` the points x, z and s before.
    """

    x: Float[Tensor, "batch column"]
    z: Float[Tensor, "batch row"]
    s: Float[Tensor, "batch row"]
    verdict: Int[Tensor, "batch"]
    steps: Int[Tensor, "batch"]
    passed: Any = None
    polished: Bool[Tensor, "batch"] | None = None
    tried: Bool[Tensor, "batch"] | None = None
    rough: tuple[Tensor, Tensor, Tensor] | None = None

    def pick(self, items: Int[Tensor, "some"]) -> Points:
        """Select some items, without what the path and polishing need."""
        return Points(*(getattr(self, name)[items] for name in ("x", "z", "s", "verdict", "steps")))

    def merged(self, other: Points, at: Int[Tensor, "some"], rows: Int[Tensor, "some"]) -> Points:
        """The same with some items replaced by rows of another report."""

        def put(first: Tensor, second: Tensor) -> Tensor:
            return first.index_copy(0, at, second[rows].to(first))

        names = ("x", "z", "s", "verdict", "steps")
        merged: dict[str, Any] = {name: put(getattr(self, name), getattr(other, name)) for name in names}
        polished = self.polished
        if polished is not None:
            theirs = torch.zeros_like(rows) > 0 if other.polished is None else other.polished[rows]
            polished = polished.index_copy(0, at, theirs)
        return replace(self, **merged, polished=polished)

    @classmethod
    def none(cls, values: Values) -> Points:
        """Nothing found for any item."""
        unfinished = torch.full((len(values.q),), int(Status.FAILED), device=values.q.device)
        nothing = torch.zeros_like(values.b)
        return cls(torch.zeros_like(values.q), nothing, nothing, unfinished, torch.zeros_like(unfinished))


def panicked(error: BaseException) -> bool:
    """Whether a solver that is written in Rust broke off, as on numbers whose squares are none: no ``Exception``."""
    return type(error).__name__ == "PanicException"


class Solver(Protocol):
    """How a batch of programs is solved. Implementations are immutable and safe to share between threads."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def capabilities(self) -> Capabilities:
        """What this solver can do."""

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Solve finite data of at least one item; ``level`` asks for ``passed``, a warm start is a hint."""

    def with_tolerance(self, tolerance: float) -> Solver:
        """The same solver, asked for another accuracy."""
