"""Statuses of the robust half: answers for a batch, whose codes are ``dro.Status``."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from conelayers import internals
from drolayers.status import Status


class Statuses(internals.Statuses):
    """An answer for a batch, with a ``dro.Status`` code an item.

    Attributes:
        status: the codes.
    """

    codes: ClassVar[type[IntEnum]] = Status
