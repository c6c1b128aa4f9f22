"""Statuses of the items of a batch and of their derivatives, with advice; and how failures are reported."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, ClassVar, Literal, Self

from jaxtyping import Bool, Int
from torch import Tensor

from conelayers.errors import ModelError, SolveError

OnFailure = Literal["mask", "raise"]
"""Return NaN with a zero gradient for unsolved items ("mask"), or raise a ``SolveError`` ("raise")."""

LISTED_ITEMS = 8
"""Positions of unsolved items that a message lists per status."""

_WARN_UNSOLVED: ContextVar[bool] = ContextVar("warn_unsolved", default=True)
"""Whether layers warn of unsolved items; callers that report them in another way switch it off."""


class Status(IntEnum):
    """The outcome of one solve; ``status.advice`` says what to do about it.

    ``UNBOUNDED``: the objective has no minimum. ``GAP``: a search ended at its limit with a feasible point.
    """

    OPTIMAL = 0
    INACCURATE = 1
    GAP = 2
    INFEASIBLE = 3
    UNBOUNDED = 4
    FAILED = 5

    @property
    def ok(self) -> bool:
        """Whether the solution can be used."""
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
        "The value is right to 1e-4 of itself only: relax the constraints a little, or rescale the data."
    ),
    Status.GAP: ("The search ended at its limit: the point is feasible, and a better one may exist; raise the limit."),
    Status.INFEASIBLE: "No point satisfies the constraints: relax them.",
    Status.UNBOUNDED: "The objective falls without end along some direction: bound the variables.",
    Status.FAILED: (
        "Not even 1e-4 of the value can be promised: check the parameters for NaN, and the data for terms that cancel."
    ),
}


def usable(status: Any) -> Any:
    """Select the codes, of a tensor or an array, with a solution that can be used."""
    return status <= int(Status.GAP)


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


class Statuses(ABC):
    """An answer for a batch, with a ``Status`` code an item.

    Attributes:
        status: the codes.
    """

    codes: ClassVar[type[IntEnum]] = Status
    """The enumeration that the codes are of."""

    status: Int[Tensor, "batch"]

    @property
    def ok(self) -> Bool[Tensor, "batch"]:
        """Which items can be used."""
        return usable(self.status)

    @property
    def statuses(self) -> list[Any]:
        """The statuses as an enumeration."""
        return [self.codes(code) for code in self.status.tolist()]

    @property
    def counted(self) -> str:
        """How many items have which status, as text."""
        return ", ".join(f"{name}: {count}" for name, count in Counter(map(str, self.statuses)).items())

    def checked(self, on_failure: OnFailure = "raise", advice: Callable[[Tensor], str] | None = None) -> Self:
        """Return this answer, or raise if an item is unsolved.

        Args:
            on_failure: "raise" returns it only if every item is ``ok``, "mask" in any case.
            advice: makes further advice from the status codes.

        Raises:
            SolveError: some items are not ``ok``.
        """
        if check_on_failure(on_failure) == "raise" and not bool(self.ok.all()):
            raise solve_error(self.statuses, "" if advice is None else advice(self.status))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch={len(self.status)}, {self.counted})"


def check_on_failure(on_failure: OnFailure) -> OnFailure:
    """Validate and return ``on_failure``."""
    if on_failure not in ("mask", "raise"):
        raise ModelError(f"on_failure must be 'mask' or 'raise', not {on_failure!r}.")
    return on_failure


def describe_unsolved(statuses: Sequence[Any], items: str = "items", positions: bool = True) -> str:
    """Count unsolved items by status, list their first positions, and append the advice of each status.

    Args:
        statuses: of all items.
        items: what one entry is called, in the plural.
        positions: whether to list positions, which mean nothing to a caller who did not order the items.
    """
    places: dict[Any, list[int]] = {}
    for place, status in enumerate(statuses):
        if not status.ok:
            places.setdefault(status, []).append(place)
    parts = []
    for status, listed in sorted(places.items()):
        more = ", ..." if len(listed) > LISTED_ITEMS else ""
        name = items if len(listed) > 1 else items.removesuffix("s")
        where = f" ({name} {', '.join(map(str, listed[:LISTED_ITEMS]))}{more})" if positions else ""
        parts.append(f"{len(listed)} {status}{where}")
    count = sum(map(len, places.values()))
    advice = " ".join(status.advice for status in sorted(places))
    return f"{count} of {len(statuses)} {items} were not solved{': ' * bool(parts)}{', '.join(parts)}. {advice}".strip()


def solve_error(statuses: Sequence[Any], more_advice: str = "") -> SolveError:
    """Make the error for a batch with unsolved items."""
    message = f"{describe_unsolved(statuses)} {more_advice}".strip()
    return SolveError(message, {i: status for i, status in enumerate(statuses) if not status.ok})


@contextmanager
def no_unsolved_warnings() -> Iterator[None]:
    """Keep layers from warning of unsolved items, for callers that report them in another way."""
    token = _WARN_UNSOLVED.set(False)
    try:
        yield
    finally:
        _WARN_UNSOLVED.reset(token)


def warns_unsolved() -> bool:
    """Whether unsolved items are to be warned of here."""
    return _WARN_UNSOLVED.get()
