"""What became of one item of a batch, and of its derivative, as values whose text is advice."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal


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
    Status.OPTIMAL: "Solved: the value is right to 1e-7 of itself.",
    Status.INACCURATE: (
        "The value is right to 1e-4 of itself only: the ambiguity set may have no Slater point, "
        "so add a margin to the projection."
    ),
    Status.INFEASIBLE: (
        "No decision satisfies the constraints: relax them (problem.shortfalls tells which of the uncertain ones, and "
        "by how much)."
    ),
    Status.UNBOUNDED: (
        "The worst-case cost is infinite for every decision: bound the support or bound a further moment."
    ),
    Status.NO_MINIMUM: "The cost falls for ever along some direction of the decision: bound your decisions.",
    Status.EMPTY_SET: "No distribution satisfies the moment bounds: put a dro.Projection before the layer.",
    Status.FAILED: (
        "Not even 1e-4 of the value can be promised: check the item's parameters for NaN, for a set that is next to a "
        "point, and for terms that cancel."
    ),
}


def usable(status: Any) -> Any:
    """Which codes of a tensor or an array tell of an answer that can be used."""
    return status <= int(Status.INACCURATE)


class Derivative(IntEnum):
    """Which derivative of its decision an item got; ``derivative.advice`` says what it means and what to do."""

    UNASKED = 0
    FACE = 1
    FACTORED = 2
    PATH = 3
    KINK = 4
    LOOSE = 5
    UNVERIFIED = 6

    @property
    def ok(self) -> bool:
        """Whether there is one that was verified; otherwise the gradient of the item is zero."""
        return Derivative.UNASKED < self <= Derivative.PATH

    @property
    def advice(self) -> str:
        """One sentence: what it is and what to do."""
        return _DERIVATIVES[self]

    def advise(self, rule: Literal["exact", "smoothed"]) -> str:
        """Return the advice for the gradient rule in use: never to use the one that is in use."""
        if self != Derivative.UNVERIFIED:
            return self.advice
        other = "smoothed" if rule == "exact" else "exact"
        first, _ = self.advice.split(", or use the other rule")
        return f'{first}, or use gradient="{other}".'

    def __str__(self) -> str:
        return self.name


_DERIVATIVES = {
    Derivative.UNASKED: "No gradient of this decision has been asked for.",
    Derivative.FACE: "Exact: that of the active face, in the batch, verified.",
    Derivative.FACTORED: "Exact: that of the active face, by a factorisation of its own, verified.",
    Derivative.PATH: "That of the barrier problem at the level asked for.",
    Derivative.KINK: (
        "None exists: the set of active constraints changes here; isolated ones do no harm, "
        'for many use gradient="smoothed".'
    ),
    Derivative.LOOSE: (
        "None exists: the decision is not unique; add a small strictly convex term to the cost, "
        'or use gradient="smoothed".'
    ),
    Derivative.UNVERIFIED: (
        "A derivative was found but could not be verified, and is not used: rescale the data, "
        'or use the other rule, gradient="smoothed" instead of "exact" or the reverse.'
    ),
}
