"""The supports of the attack: source text, and the region written as half-spaces and ellipsoids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.attack.drawn import Draw, Item, text
from research.attack.masses import Region, box, everywhere

Array = Any


@dataclass(frozen=True)
class SupportPart:
    """A support.

    Attributes:
        code: source text.
        region: the region of an item, at size one.
        lines: source lines before it.
        known: values of known data, by name and item.
    """

    code: str
    region: Callable[[Item], Region]
    lines: tuple[str, ...] = ()
    known: tuple[tuple[str, tuple[Array, ...]], ...] = ()


def _constant(code: str, region: Region) -> SupportPart:
    return SupportPart(code, lambda item: region)


def reals(draw: Draw) -> SupportPart:
    """All of space."""
    return _constant("s.Reals()", everywhere(draw.dim))


def nonnegative(draw: Draw) -> SupportPart:
    """The nonnegative orthant."""
    return _constant("s.Nonnegative()", box(np.zeros(draw.dim), np.full(draw.dim, np.inf)))


def bounded_box(draw: Draw) -> SupportPart:
    """A box with two finite ends."""
    low, high = draw.centre - draw.uniform(1.35, 2.0, draw.dim), draw.centre + draw.uniform(1.35, 2.5, draw.dim)
    return _constant(f"s.Box({text(draw.unit * low)}, {text(draw.unit * high)})", box(low, high))


def half_box(draw: Draw) -> SupportPart:
    """A box some ends of which are infinite."""
    low = np.where(draw.rng.uniform(size=draw.dim) < 0.5, -np.inf, draw.centre - 1.5)
    high = np.where(draw.rng.uniform(size=draw.dim) < 0.5, np.inf, draw.centre + 1.5)
    return _constant(f"s.Box({text(draw.unit * low)}, {text(draw.unit * high)})", box(low, high))


def polyhedron(draw: Draw) -> SupportPart:
    """Random half-spaces, not always bounded."""
    C = draw.normal((draw.dim + 1, draw.dim))
    d = C @ draw.centre + 1.5 * np.linalg.norm(C, axis=1)
    return _constant(f"s.Polyhedron({text(C)}, {text(draw.unit * d)})", Region(C, d))


def ellipsoid(draw: Draw) -> SupportPart:
    """An ellipsoid with axes that are not the coordinates'."""
    L = 1.6 * np.eye(draw.dim) + 0.3 * np.tril(np.ones((draw.dim, draw.dim)), -1)
    region = Region(np.zeros((0, draw.dim)), np.zeros(0), ((draw.centre, np.linalg.inv(L)),))
    return _constant(f"s.Ellipsoid({text(draw.unit * draw.centre)}, {text(draw.unit * L)})", region)


def cone(draw: Draw) -> SupportPart:
    """A ball, by the cone that defines it: (y - c, r) lies in the second-order cone."""
    radius = draw.uniform(1.4, 2.0)
    A = np.vstack([np.eye(draw.dim), np.zeros((1, draw.dim))])
    b = np.append(draw.centre, -radius)
    region = Region(np.zeros((0, draw.dim)), np.zeros(0), ((draw.centre, np.eye(draw.dim) / radius),))
    return _constant(f"s.Conic([{text(A)}], [{text(draw.unit * b)}])", region)


def _both(first: Callable[[Draw], SupportPart], second: Callable[[Draw], SupportPart]) -> Callable[[Draw], SupportPart]:
    def intersection(draw: Draw) -> SupportPart:
        one, other = first(draw), second(draw)
        return SupportPart(f"{one.code} & {other.code}", lambda item: one.region(item).both(other.region(item)))

    return intersection


def known_box(draw: Draw) -> SupportPart:
    """A box whose upper ends are known data."""
    low = draw.centre - 1.5
    tops = tuple(draw.centre + draw.uniform(1.35, 2.0, draw.dim) for _ in range(draw.items))
    return SupportPart(
        f"s.Box({text(draw.unit * low)}, top)",
        lambda item: box(low, item.known["top"]),
        (f"top = cp.Parameter({draw.dim}, name='top')",),
        (("top", tops),),
    )


SUPPORTS: dict[str, Callable[[Draw], SupportPart]] = {
    "reals": reals,
    "nonnegative": nonnegative,
    "box": bounded_box,
    "half box": half_box,
    "polyhedron": polyhedron,
    "ellipsoid": ellipsoid,
    "cone": cone,
    "nonnegative and ellipsoid": _both(nonnegative, ellipsoid),
    "box and polyhedron": _both(bounded_box, polyhedron),
    "half box and cone": _both(half_box, cone),
    "known box": known_box,
}
