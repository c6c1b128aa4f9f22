"""CVXPY numbers its leaves anew in every process: what was unpickled must not be taken for what was made here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from types import SimpleNamespace
from typing import Any, Self, TypeVar
from uuid import uuid4

from torch.utils._pytree import register_pytree_node

from conelayers.errors import ModelError

K = TypeVar("K")
V = TypeVar("V")


@cache
def _token(process: int) -> str:
    """A process, among all."""
    return uuid4().hex


def _counter() -> Any:
    """CVXPY's, which counts leaves; saved programs need none."""
    try:
        from cvxpy.lin_ops.lin_utils import ID_COUNTER
    except ImportError:
        return SimpleNamespace(count=0)
    return ID_COUNTER


class Numbered:
    """What holds leaves of CVXPY: when unpickled, it keeps their numbers from being given to others.

    Attributes:
        foreign: whether it was unpickled from another process, whose numbers may be those of others here.
    """

    foreign: bool = False
    _made: str

    def __getstate__(self) -> dict[str, Any]:
        return {"_made": _token(os.getpid()), **self.__dict__, "_numbers": _counter().count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        counter = _counter()
        counter.count = max(counter.count, state.pop("_numbers", 0))
        foreign = state.get("_made") != _token(os.getpid())
        self.__dict__.update(state, foreign=foreign)

    def numbered_as(self, other: Numbered | None) -> Self:
        """The same, whose leaves were numbered where another's were; None says in several processes, or it is unknown.

        That of several is foreign in each.
        """
        told = {"foreign": True, "_made": ""} if other is None else vars(other)
        self.__dict__.update({name: told[name] for name in ("foreign", "_made") if name in told})
        return self


class UnknownKeyError(ModelError, KeyError):
    """A variable, parameter or constraint that is none of a problem's; the message says how to take its own."""

    def __str__(self) -> str:
        # That of a KeyError would be in quotes.
        return str(self.args[0])


LONGEST_TEXT = 160
"""Characters of an expression that are printed. Longer ones lose their middle."""


BROADCAST = re.compile(r"Promote\(([^()]*), \([\d, ]*\)\)")
"""How CVXPY prints a number that stands for a vector."""


def key_names(key: object) -> tuple[str, ...]:
    """Return the names by which a variable, parameter or constraint can be looked up."""
    label = getattr(key, "label", None)
    if callable(label) or label is None:
        return (key.name(),) if hasattr(key, "name") and hasattr(key, "attributes") else ()
    return (str(label),)


def key_text(key: object) -> str:
    """Return a variable's name, a constraint's label, or the constraint as it was written, shortened."""
    names = key_names(key)
    if names:
        return names[0]
    # ``dro.always`` and ``dro.chance`` keep the constraint that they were called with.
    written = getattr(next(iter(getattr(key, "args", ())), None), "written", None)
    text = BROADCAST.sub(r"\1", str(written or key))
    text = text.replace("Sum(", "sum(").replace(", None, False)", ")")
    return text if len(text) <= LONGEST_TEXT else f"{text[:120]} … {text[-30:]}"


class Keyed(Numbered, dict[K, V]):
    """A dict by the variables, parameters or constraints of a problem.

    A problem that is pickled has copies of them. Where they were numbered, one is found by another of its number, as
    problems find them; elsewhere by itself alone. A copy of the dict has the same keys, since they are what they are.

    Args:
        entries: as of any dict.
        owner: the problem; None finds keys by themselves alone.
        where: how they are listed.
    """

    def __init__(
        self,
        entries: Mapping[K, V] | Iterable[tuple[K, V]] = (),
        owner: Numbered | None = None,
        where: str = "problem.variables",
    ) -> None:
        super().__init__(entries)
        self.where = where
        self.numbered_as(owner)

    def __repr__(self) -> str:
        entries = ", ".join(f"{key_text(key)}: {value!r}" for key, value in self.items())
        return f"{{{entries}}}"

    def __missing__(self, key: Any) -> V:
        own = self._matches(key)
        if len(own) == 1:
            return self[own[0]]
        if own:
            raise UnknownKeyError(f"{len(own)} of {self.where} are called {key!r}: use the object itself as the key.")
        name, names = key_text(key), [key_text(own) for own in self]
        if name not in names or isinstance(key, str):
            raise UnknownKeyError(f"{name} is none of {self.where}: here are {names}.")
        raise UnknownKeyError(
            f"{name} is not the {name} of this problem: unpickled from elsewhere, or beside a copy, a problem knows "
            f"its own alone; pickle {name} together with it, or take them by name: "
            f"{{v.name(): v for v in {self.where}}}."
        )

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or bool(self._matches(key))

    def get(self, key: Any, default: Any = None) -> Any:
        """The entry of a key; the default where there is none."""
        return self[key] if key in self else default  # noqa: SIM401 (dict.get finds no names)

    def __deepcopy__(self, memo: dict[int, Any]) -> Keyed[K, V]:
        return Keyed({key: deepcopy(value, memo) for key, value in self.items()}, self, self.where)

    def _matches(self, key: object) -> list[K]:
        """Return the keys with the name that is given, or with the number of a copy if numbers are comparable."""
        if isinstance(key, str):
            return [own for own in self if key in key_names(own)]
        number = None if self.foreign else getattr(key, "id", None)
        return [] if number is None else [own for own in self if getattr(own, "id", None) == number]


def keyed_as(first: Mapping[K, Any], entries: Mapping[K, V]) -> dict[K, V]:
    """Other entries by the keys of a dict, found as they are there."""
    return Keyed(entries, first, first.where) if isinstance(first, Keyed) else dict(entries)


# PyTorch's transforms look into dicts, but not into what extends them unless told how.
register_pytree_node(
    Keyed,
    lambda found: (list(found.values()), keyed_as(found, dict.fromkeys(found))),
    lambda values, keys: keyed_as(keys, dict(zip(keys, values, strict=True))),
)
