"""What became of one item of a batch, as a value whose text is advice."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The outcome of one solve; ``status.advice`` says what to do about it."""

    OPTIMAL = 0
    INACCURATE = 1
    INFEASIBLE = 2
    UNBOUNDED = 3
    NO_MINIMUM = 4
    EMPTY_SET = 5
    FAILED = 6

    @property
    def ok(self) -> bool:
        """Whether the decision can be used."""
        return self <= Status.INACCURATE

    @property
    def advice(self) -> str:
        """One sentence: what happened and what to do."""
        return _ADVICE[self]

    def __str__(self) -> str:
        return self.name


_ADVICE = {
    Status.OPTIMAL: "Solved to the requested accuracy.",
    Status.INACCURATE: (
        "Solved, but short of the requested accuracy: the ambiguity set may have no Slater point, "
        "so add a margin to the projection or rescale the data."
    ),
    Status.INFEASIBLE: "No decision satisfies the constraints: relax them.",
    Status.UNBOUNDED: (
        "The worst-case cost is infinite for every decision: bound the support or bound a further moment."
    ),
    Status.NO_MINIMUM: "The cost falls for ever along some direction of the decision: bound your decisions.",
    Status.EMPTY_SET: "No distribution satisfies the moment bounds: put a dro.Projection before the layer.",
    Status.FAILED: "The solver broke down on this item: check its parameters for NaN and extreme scales.",
}
