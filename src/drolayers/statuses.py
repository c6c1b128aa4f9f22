"""What became of every item of a batch: what all answers have in common, and what is done about failures."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Callable
from typing import Literal, Self

from jaxtyping import Bool, Int
from torch import Tensor

from drolayers.errors import ModelError, SolveError
from drolayers.status import Status, usable

OnFailure = Literal["mask", "raise"]
"""Whether items that failed are masked (NaN, no gradient, a status) or raise a ``SolveError``."""


class Statuses(ABC):
    """An answer for a batch, with a ``dro.Status`` code an item.

    Attributes:
        status: the codes.
    """

    status: Int[Tensor, "batch"]

    @property
    def ok(self) -> Bool[Tensor, "batch"]:
        """Which items can be used."""
        return usable(self.status)

    @property
    def statuses(self) -> list[Status]:
        """The statuses as an enumeration."""
        return [Status(code) for code in self.status.tolist()]

    @property
    def counted(self) -> str:
        """How many items have which status, as text."""
        return ", ".join(f"{name}: {count}" for name, count in Counter(map(str, self.statuses)).items())

    def checked(self, on_failure: OnFailure = "raise", advice: Callable[[Tensor], str] | None = None) -> Self:
        """The same answer.

        Args:
            on_failure: "raise" passes it on only if every item is ``ok``, "mask" in any case.
            advice: what else there is to say of these statuses.

        Raises:
            SolveError: some items are not ``ok``.
        """
        if check_on_failure(on_failure) == "raise" and not bool(self.ok.all()):
            raise SolveError(self.statuses, "" if advice is None else advice(self.status))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch={len(self.status)}, {self.counted})"


def check_on_failure(on_failure: OnFailure) -> OnFailure:
    """What to do about failures, or an error."""
    if on_failure not in ("mask", "raise"):
        raise ModelError(f"on_failure must be 'mask' or 'raise', not {on_failure!r}.")
    return on_failure
