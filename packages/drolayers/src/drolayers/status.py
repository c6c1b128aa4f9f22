"""The outcome of one item of a batch as a value whose text is advice: the engine's statuses and two of sets."""

from __future__ import annotations

from enum import IntEnum

import torch
from jaxtyping import Int
from torch import Tensor

from conelayers.internals import usable


class Status(IntEnum):
    """The outcome of one solve; ``status.advice`` says what to do about it.

    The first six codes are those of ``conelayers.Status``, so that codes of the engine need no translation. Codes are
    not ordered by how bad an outcome is: ``severity`` is.
    """

    OPTIMAL = 0
    INACCURATE = 1
    GAP = 2
    INFEASIBLE = 3
    UNBOUNDED = 4
    FAILED = 5
    EMPTY_SET = 6
    INFINITE_WORST_CASE = 7

    @property
    def ok(self) -> bool:
        """Whether the decision can be used."""
        return bool(usable(self))

    @property
    def advice(self) -> str:
        """One sentence: what happened and what to do."""
        return _ADVICE[self]

    def __str__(self) -> str:
        return self.name


_ADVICE = {
    Status.OPTIMAL: "Solved: the value is right to 1e-7 of itself.",
    Status.INACCURATE: (
        "The value is right to 1e-4 of itself only: the ambiguity set may have no Slater point, so add a margin to"
        " the projection."
    ),
    Status.GAP: (
        "The search for integers ended at its limit: the decision is feasible, and a better one may exist; raise "
        "the limit."
    ),
    Status.INFEASIBLE: (
        "No decision satisfies the constraints: relax them (problem.shortfalls tells which of the uncertain ones, "
        "and by how much)."
    ),
    Status.UNBOUNDED: "The cost falls for ever along some direction of the decision: bound your decisions.",
    Status.FAILED: (
        "Not even 1e-4 of the value can be promised: check the item's parameters for NaN, for a set that is next "
        "to a point, and for terms that cancel."
    ),
    Status.EMPTY_SET: "No distribution satisfies the moment bounds: put a dro.Projection before the layer.",
    Status.INFINITE_WORST_CASE: (
        "The worst-case cost is infinite for every decision: bound the support or bound a further moment."
    ),
}

SEVERITY = (
    Status.OPTIMAL,
    Status.INACCURATE,
    Status.GAP,
    Status.INFEASIBLE,
    Status.INFINITE_WORST_CASE,
    Status.UNBOUNDED,
    Status.EMPTY_SET,
    Status.FAILED,
)
"""From the best outcome to the gravest. An empty set is graver than a decision that does not exist: mend it first."""


def severity(status: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Rank status codes from 0, the best outcome, to the gravest."""
    ranks = torch.tensor([SEVERITY.index(one) for one in Status], device=status.device)
    return ranks[status]


def gravest(first: Int[Tensor, "*batch"], second: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Return the graver of two status codes, item by item."""
    return torch.where(severity(second) > severity(first), second, first)
