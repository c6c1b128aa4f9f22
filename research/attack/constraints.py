"""Constraints on uncertain outcomes: source text and the worst cases that must not be positive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.attack.costs import CostPart, Worst
from research.attack.drawn import Draw, Item, text
from research.attack.pieces import Pieces

Array = Any


@dataclass(frozen=True)
class ConstraintPart:
    """A constraint.

    Attributes:
        code: source text with a place ``{own}`` for the argument ``ambiguity=``.
        worst: what must not be positive.
        thresholds: number of auxiliary columns that it adds.
    """

    code: str
    worst: Worst
    thresholds: int = 0


def _row(draw: Draw, part: CostPart) -> tuple[str, str, Pieces]:
    """aᵀy ≤ cᵀx + b as two sides of source text, and their difference as a piece."""
    count = part.names[0][1]
    a, c, b = draw.uniform(0.2, 1.0, draw.dim), draw.uniform(0.5, 1.5, count), draw.uniform(0.0, 3.0)
    lhs = f"{text(a)} @ y"
    rhs = f"{text(c * draw.unit / part.unit)} @ x + {text(b * draw.unit)}"
    g = np.pad(-c, (0, part.columns - count))
    return lhs, rhs, Pieces.of(draw.dim, part.columns, f=a, g=g, h=-float(b))


def _fixed(pieces: Pieces) -> Callable[[Item], Pieces]:
    return lambda item: pieces


def always(draw: Draw, part: CostPart, column: int) -> ConstraintPart:
    """For every outcome."""
    lhs, rhs, row = _row(draw, part)
    return ConstraintPart(f"dro.always({lhs} <= {rhs}{{own}})", Worst(_fixed(row), "always"))


def expected(draw: Draw, part: CostPart, column: int) -> ConstraintPart:
    """On average."""
    lhs, rhs, row = _row(draw, part)
    return ConstraintPart(f"dro.expected({lhs} - ({rhs}){{own}}) <= 0", Worst(_fixed(row)))


def expected_excess(draw: Draw, part: CostPart, column: int) -> ConstraintPart:
    """The mean excess."""
    lhs, rhs, row = _row(draw, part)
    most = draw.uniform(0.05, 0.6)
    pieces = Pieces.total(
        [
            Pieces.largest([row, Pieces.of(draw.dim, part.columns)]),
            Pieces.of(draw.dim, part.columns, h=-float(most)),
        ]
    )
    return ConstraintPart(
        f"dro.expected(cp.pos({lhs} - ({rhs})){{own}}) <= {text(most * draw.unit)}", Worst(_fixed(pieces))
    )


def cvar(draw: Draw, part: CostPart, column: int) -> ConstraintPart:
    """The worst conditional value-at-risk."""
    lhs, rhs, row = _row(draw, part)
    level = float(draw.choose((0.5, 0.8, 0.95)))
    pieces = row.tail(level, column)
    return ConstraintPart(f"dro.cvar({lhs} - ({rhs}), {level}{{own}}) <= 0", Worst(_fixed(pieces)), 1)


def chance(draw: Draw, part: CostPart, column: int) -> ConstraintPart:
    """With a probability, by the worst conditional value-at-risk that replaces it."""
    lhs, rhs, row = _row(draw, part)
    level = float(draw.choose((0.5, 0.8, 0.95)))
    pieces = row.tail(level, column)
    return ConstraintPart(f"dro.chance({lhs} <= {rhs}, {level}{{own}})", Worst(_fixed(pieces)), 1)


CONSTRAINTS: dict[str, Callable[[Draw, CostPart, int], ConstraintPart]] = {
    "always": always,
    "expected": expected,
    "expected excess": expected_excess,
    "cvar": cvar,
    "chance": chance,
}
