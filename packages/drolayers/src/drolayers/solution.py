"""The solution of a problem's program: that of the engine, with statuses that speak of sets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar, Self, final

from conelayers import Solution
from drolayers.status import Status


@final
@dataclass(frozen=True, eq=False, repr=False)
class ProblemSolution(Solution):
    """A solution whose status codes are ``dro.Status``."""

    codes: ClassVar[type[IntEnum]] = Status

    @classmethod
    def of(cls, solution: Solution) -> Self:
        """Return the same solution; codes of the engine keep their meaning."""
        return cls(**{field.name: getattr(solution, field.name) for field in fields(solution)})
