"""The contract of an integer oracle: the T best integer points of every program of a batch, each with its proof.

Whoever proposes a point, its objective is that of a conic solve with the integer columns fixed there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.checks import number
from conelayers.errors import ModelError
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Statuses

LARGEST = 10_000_000
"""Size of integers up to which a conic solve, accurate to some 1e-8, tells one from the next."""


@dataclass(frozen=True, eq=False, repr=False)
class Candidates(Statuses):
    """The best integer points of a batch, best first; slots beyond the feasible points are masked.

    Args:
        points: integral values of ``program.integers``; arbitrary, but in the box, where not ``valid``.
        objective: optimal value with the integers fixed there; +inf where not ``valid``.
        valid: which slots hold a point.
        status: OPTIMAL (proven), INACCURATE (a limit or an unsolved point left a ``gap``), INFEASIBLE (no integer point
            is feasible), UNBOUNDED or FAILED, for each item.
        gap: how much better than the last slot an unexplored point could be at most; zero when proven.
        nodes: relaxations of boxes explored, for each item.
        primal: the solution at each point; zero where not ``valid``.
        dual: its multipliers; zero where not ``valid``.
        rounds: calls of the engine that followed one another.
        relaxations: cone programs solved in all, points included.
        time: seconds.
        oracle: name of the oracle that found them.
    """

    points: Float[Tensor, "batch candidate integer"]
    objective: Float[Tensor, "batch candidate"]
    valid: Bool[Tensor, "batch candidate"]
    status: Int[Tensor, "batch"]
    gap: Float[Tensor, "batch"]
    nodes: Int[Tensor, "batch"]
    primal: Float[Tensor, "batch candidate column"]
    dual: Float[Tensor, "batch candidate row"]
    rounds: int = 0
    relaxations: int = 0
    time: float = 0.0
    oracle: str = ""

    @classmethod
    def cat(cls, parts: Sequence[Candidates]) -> Candidates:
        """Those of several batches as one; numbers of rounds and seconds are added up."""
        joined = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls) if f.name != "oracle"}
        numbers: dict[str, Any] = {n: (torch.cat if isinstance(v[0], Tensor) else sum)(v) for n, v in joined.items()}
        return cls(**numbers, oracle=parts[0].oracle)

    def where(self, items: Int[Tensor, "item"], others: Candidates) -> Candidates:
        """The same with some items answered by others; numbers of rounds and seconds are added up."""
        numbers: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "oracle"}
        for name, mine in numbers.items():
            theirs = getattr(others, name)
            numbers[name] = mine.index_copy(0, items, theirs) if isinstance(mine, Tensor) else mine + theirs
        return replace(self, **numbers)

    def __repr__(self) -> str:
        batch, count, _ = self.points.shape
        return (
            f"Candidates(batch={batch}, count={count}, {self.counted}; {self.oracle}: {int(self.nodes.sum())} nodes, "
            f"{self.rounds} rounds, {self.relaxations} relaxations, {self.time:.3g} s)"
        )


@runtime_checkable
class Oracle(Protocol):
    """Finds the best integer points of a batch of programs. Implementations are immutable."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program, those of equal objective in lexicographic order.

        Which of several points that tie for the last slots are among them is the oracle's choice.

        Args:
            program: the structure that all programs share.
            values: their numbers, ``program.values(features)``.
            count: T.
        """


def check_positive(name: str, setting: float | None) -> None:
    """Raise unless a setting is a positive number, or left out."""
    if setting is not None and not number(name, setting) > 0:
        raise ModelError(f"{name} must be positive, not {setting}.")


def check_cones(name: str, program: ConeProgram, cones: Collection[str], quadratic: bool) -> None:
    """Refuse a program that an oracle cannot represent."""
    missing = sorted(program.cones.kinds.difference(cones))
    if program.quadratic and not quadratic:
        missing.append("a quadratic objective")
    if missing:
        raise ModelError(f"Oracle {name!r} cannot handle {', '.join(missing)}: use oracle='branch_and_bound'.")


def check_box(program: ConeProgram) -> None:
    """Raise where an integer has no value within its bounds, or so many that solves do not tell them apart."""
    bounds = torch.stack(program.integer_bounds)
    for wrong, said in (
        (bounds[0] > bounds[1], "has no integer between its bounds: widen them"),
        (
            bounds.abs().amax(0) > LARGEST,
            f"may exceed {LARGEST:,} in size: count in larger units, or narrow its bounds",
        ),
    ):
        if bool(wrong.any()):
            column = int(program.integers[int(wrong.int().argmax())])
            name = next((s.name for s in program.variables if 0 <= column - s.offset < s.size), f"of column {column}")
            raise ModelError(f"Integer variable {name} {said}.")


def usable_items(values: Values) -> tuple[Values, Bool[Tensor, "batch"]]:
    """The programs outside any graph, a good one standing in for each with a NaN or an infinity; which are good."""
    values = values.detach()
    finite = torch.ones(len(values.q), dtype=torch.bool, device=values.q.device)
    for part in (values.P, values.A, values.q, values.b, values.constant[:, None]):
        # Matrices that all items share are looked at once.
        shared = part.stride(0) == 0 and len(values.q) > 0
        finite &= part[:1].isfinite().all() if shared else part.isfinite().all(1)
    if bool(finite.all()) or not bool(finite.any()):
        return values, finite
    return values[torch.where(finite, torch.arange(len(values.q), device=finite.device), finite.int().argmax())], finite
