"""What the tables of the attack share: random numbers of a program, their text, and the numbers of its items.

All numbers are drawn at size one, where outcomes, decisions and costs are about one. The library receives them in other
units, as source text; the reference computes at size one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from research.attack.masses import Values

Array = Any
DIGITS = 4
"""Significant digits of drawn numbers: a reproduction is short, and both sides read the same number."""


def rounded(values: Array) -> Array:
    """Numbers with a few significant digits."""
    values = np.asarray(values, dtype=float)
    size = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(values), 1e-300))) - DIGITS + 1)
    return np.round(values / size) * size


def text(values: Array) -> str:
    """Source text of a number or an array."""
    values = np.asarray(values, dtype=float)
    source = repr(np.vectorize(lambda v: float(f"{v:.15g}"), otypes=[float])(values).tolist())
    source = source.replace("inf", "np.inf")
    return source if values.ndim == 0 else f"np.array({source})"


def with_prefix(values: Values, prefix: str) -> Values:
    """The values whose names have a prefix, by the names without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Item:
    """The numbers of one item, at size one.

    Attributes:
        theta: the parameters of all sets, by the library's names.
        atoms: ``(atom, dim)``, or None.
        weights: ``(atom,)``, or None.
        known: known data by name.
    """

    theta: Values
    atoms: Array = None
    weights: Array = None
    known: Values = field(default_factory=dict)

    def of(self, prefix: str) -> Values:
        """The parameters of one set, without its prefix."""
        return with_prefix(self.theta, prefix)

    def moved(self, way: Item, step: float) -> Item:
        """The item a step along a direction."""
        theta = {name: value + step * way.theta[name] for name, value in self.theta.items()}
        known = {name: value + step * way.known[name] for name, value in self.known.items()}
        if self.atoms is None:
            return Item(theta, None, None, known)
        return Item(theta, self.atoms + step * way.atoms, self.weights + step * way.weights, known)


@dataclass(frozen=True)
class Draw:
    """The random numbers from which sets, supports and costs are made.

    Attributes:
        rng: the generator.
        dim: number of coordinates of y.
        unit: unit of y.
        cost_unit: unit of the cost.
        atoms: number of atoms of nominal distributions.
        items: batch size.
        centre: a point with room of 1.3 around it in every support, ``(dim,)``.
        sample: outcomes, ``(point, dim)``.
        empty: whether bounds are drawn so small that sets may be empty.
        coarse: whether numbers are multiples of a quarter, so that many of them coincide.
        extreme: whether bounds, radii, weights and prices range over many powers of ten.
    """

    rng: np.random.Generator
    dim: int
    unit: float
    cost_unit: float
    atoms: int
    items: int
    centre: Array
    sample: Array
    empty: bool = False
    coarse: bool = False
    extreme: bool = False

    def rounded(self, values: Array) -> Array:
        """Numbers with a few digits."""
        return np.round(4 * np.asarray(values)) / 4 if self.coarse else rounded(values)

    def uniform(self, low: float, high: float, shape: Any = ()) -> Array:
        """Rounded uniform numbers."""
        numbers = self.rounded(self.rng.uniform(low, high, shape))
        # A positive number stays positive.
        return np.maximum(numbers, 0.25) if self.coarse and low > 0 else numbers

    def between(self, low: float, high: float, extremes: tuple[float, float], shape: Any = ()) -> Array:
        """Numbers whose logarithms are uniform, from a wider range in extreme programs."""
        low, high = extremes if self.extreme else (low, high)
        return rounded(np.exp(self.rng.uniform(np.log(low), np.log(high), shape)))

    def normal(self, shape: Any = ()) -> Array:
        """Rounded normal numbers."""
        return rounded(self.rng.normal(size=shape))

    def direction(self) -> Array:
        """A vector of length about one."""
        v = self.rng.normal(size=self.dim)
        return rounded(v / np.linalg.norm(v))

    def near(self) -> Array:
        """A point near the sample."""
        return self.rounded(self.sample.mean(0) + 0.15 * self.rng.normal(size=self.dim) / np.sqrt(self.dim))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.uniform() < probability)

    def choose(self, options: Any) -> Any:
        """One of several."""
        return options[int(self.rng.integers(len(options)))]

    def over(self, sample: Array) -> Draw:
        """The same with another sample."""
        return replace(self, sample=sample)
