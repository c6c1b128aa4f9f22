"""What every ambiguity set offers: the layout of its parameters, and its half of the worst-case formula."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign
from drolayers.ambiguity.parameters import Typical, columns
from drolayers.ambiguity.terms import Term
from drolayers.amounts import Told
from drolayers.errors import ModelError, ShapeError
from drolayers.products import kron, tiled, times
from drolayers.support import Layout, Support
from drolayers.uncertainty import Uncertain


@dataclass(frozen=True)
class Rows:
    """Affine pieces ``a_r(x)ᵀy + b_r(x)``, flat: the cost of a block is the largest of its rows.

    Args:
        slope: all slopes one after another, ``(entries,)``.
        offset: ``(rows,)``.
        layout: which row and coordinate an entry of the slope belongs to.
        block: which block a row belongs to, numbered from 0.
        sign: the known signs of the slope, zero where unknown.
    """

    slope: cp.Expression
    offset: cp.Expression
    layout: Layout
    block: Labels
    sign: Sign = None

    @property
    def lone(self) -> NDArray[np.bool_]:
        """Which rows are alone in their block."""
        return np.bincount(self.block)[self.block] == 1


@dataclass(frozen=True, eq=False)
class Mass:
    """A distribution: atoms with probabilities, and what escapes to infinity as mass times distance.

    ``origin`` and ``direction_origin`` say from which nominal atom the mass came (zero where there is none).
    """

    atoms: Float[Tensor, "batch atom dim"]
    probabilities: Float[Tensor, "batch atom"]
    origin: Int[Tensor, "batch atom"]
    directions: Float[Tensor, "batch direction dim"]
    direction_origin: Int[Tensor, "batch direction"]


@dataclass(frozen=True)
class SetDual:
    """The dual of a set over some rows: ``min price + unit · Σ_blocks max_rows sup {slope - terms}``.

    Where probabilities of scenarios may change, ``combined`` takes the sums of every scenario and returns what is to be
    summed instead of them, with its constraints.
    """

    rows: Rows
    price: cp.Expression
    terms: list[Term]
    constraints: Constraints
    unit: float = 1.0
    scenarios: int = 1
    combined: Callable[[cp.Expression], tuple[cp.Expression, Constraints]] | None = None


def scenarios(rows: Rows, weights: cp.Parameter) -> Rows:
    """Every row once for every scenario, scenario by scenario, multiplied by its weight."""
    base, count = rows.layout, weights.size
    entry, row = (np.repeat(np.arange(count), size) for size in (base.row.size, base.rows))
    layout = Layout(np.tile(base.row, count) + entry * base.rows, np.tile(base.coordinate, count), base.rows * count)
    blocks = int(rows.block.max(initial=-1)) + 1
    block = np.tile(rows.block, count) + row * blocks
    return Rows(kron(weights, rows.slope), kron(weights, rows.offset), layout, block)


def at_atoms(slope: cp.Expression, layout: Layout, weighted: cp.Parameter) -> cp.Expression:
    """Σ_i (ω y)_ni a_ri for the rows of all scenarios, from the slopes of one."""
    count, dim = weighted.shape
    scenario = np.repeat(np.arange(count), layout.row.size // count)
    centres = cp.vec(weighted, order="C")[scenario * dim + layout.coordinate]
    return layout.sums() @ times(centres, tiled(slope, count))


def each(factor: float | Tensor, theta: Float[Tensor, "batch theta"]) -> Float[Tensor, "batch 1"]:
    """A factor for all items, or one an item, as a column beside θ."""
    return torch.as_tensor(factor).to(theta).expand(len(theta))[:, None]


class AmbiguitySet(ABC):
    """A set U(θ) of distributions of ``y``."""

    y: Uncertain
    parameters: Mapping[str, tuple[int, ...]]
    """The learnable parameters in the order of θ: name and shape."""
    features: tuple[cp.Parameter, ...]
    """Smooth functions of θ (and of the nominal distribution) in which the worst-case program is affine."""
    atoms: int
    """Number of atoms of the nominal distribution, where one travels beside θ."""

    @property
    def size(self) -> int:
        """Length of θ."""
        return sum(int(np.prod(shape)) for shape in self.parameters.values())

    @property
    def pinned(self) -> bool:
        """Whether mass is where the nominal atoms are, and nowhere else."""
        return False

    @property
    def reach(self) -> Support:
        """Where mass may be, besides what the set itself says."""
        return self.y.support

    @property
    def needs_nominal(self) -> bool:
        """Whether atoms and weights travel beside θ."""
        return False

    @property
    def chebyshev(self) -> bool:
        """Whether the worst CVaR of an affine function is its worst quantile too, as under one norm on all of space."""
        return False

    def around(self, nominal: Pair | None, theta: Float[Tensor, "batch theta"]) -> Nominal:
        """The nominal distributions of a batch, checked, where θ is."""
        count = self.atoms if self.needs_nominal else 0
        if isinstance(nominal, tuple | list) and len(nominal) == 2:
            nominal = self.y.rows(nominal[0], 2), nominal[1]
        return Nominal.of(nominal, self.y.dim, len(theta), count).to(theta.device)

    @abstractmethod
    def links(self) -> list[Labels]:
        """Groups of coordinates that the set ties together; across others its dual is a sum."""

    def outcome_links(self) -> list[Labels]:
        """The same where every outcome counts that the set allows; none unless said otherwise."""
        return []

    @abstractmethod
    def dual(self, rows: Rows, lifts: Sequence[cp.Expression] | None = None, share: bool = True) -> SetDual:
        """Multipliers, their price, and the terms that they bring into every row.

        Args:
            rows: the pieces.
            lifts: what a decision rule's cost takes off the multiplier of each of ``lifted_components``.
            share: whether what all scenarios have in common may be said once.
        """

    def outcomes(self, rows: Rows) -> SetDual:
        """The same over every outcome that the set allows: all of the support unless said otherwise."""
        return SetDual(rows, cp.Constant(0.0), [], [])

    def lifted_components(self) -> list[int]:
        """Number of components of every moment to which a decision rule can respond; none unless said otherwise."""
        return []

    def lifted_terms(self, rows: Rows, multipliers: Sequence[cp.Expression]) -> tuple[list[Term], Constraints]:
        """Terms over rows with multipliers of their own, one ``(rows, component)`` for each lifted moment."""
        return [], []

    @abstractmethod
    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """The features of a batch, differentiable, in float64 and in the order of ``features``."""

    @abstractmethod
    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Sensible values of all parameters for some outcomes, by name."""

    @abstractmethod
    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Items whose set may be empty although their program looks solvable."""

    @abstractmethod
    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """By how much, relatively, the bounds must be relaxed for the set to be non-empty; negative: room to spare.

        Infinite where the support, with an item's known data, is empty.
        """

    @abstractmethod
    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """What a distribution uses of every bound, and the bounds."""

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """θ of the same set, ``factor`` times as large about its centre; differentiable.

        Args:
            theta: flat.
            factor: one for all items or one an item, ``(batch,)``.

        Raises:
            ModelError: the set has no size that is learnt.
        """
        raise ModelError(f"{self!r} has no size to scale: use a set whose radius or bounds are learnt.")

    def scores(self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch"]:
        """The smallest t for which the set, scaled by t, holds an outcome by itself; differentiable.

        Raises:
            ModelError: the set has no scale by which to measure outcomes.
        """
        raise ModelError(f"{self!r} has no scale for single outcomes: calibrate its value, with disappointment=.")

    def pack(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, "batch theta"]:
        """The flat θ of a dict of ``(batch, *shape)`` tensors."""
        shapes = self.parameters
        unknown = set(parameters) - set(shapes)
        missing = set(shapes) - set(parameters)
        if unknown or missing:
            raise ShapeError(
                f"The set has parameters {list(shapes)}; unknown: {sorted(unknown)}, missing: {sorted(missing)}."
            )
        parts: list[Tensor] = []
        for name, shape in shapes.items():
            value = parameters[name]
            if not isinstance(value, Tensor):
                raise ShapeError(f"Parameter {name!r} must be a tensor, not {type(value).__name__}.")
            if shape == (self.y.dim,):
                value = self.y.rows(value)
            expected = (parts[0].shape[0] if parts else value.shape[:1].numel(), *shape)
            if tuple(value.shape) != expected:
                raise ShapeError(
                    f"Parameter {name!r} must have shape {expected} (batch first), not {tuple(value.shape)}."
                )
            parts.append(columns(value))
        return torch.cat(parts, 1) if parts else torch.zeros(1, 0)

    def unpack(self, theta: Float[Tensor, "batch theta"]) -> dict[str, Tensor]:
        """The parameters by name, each ``(batch, *shape)``."""
        self.check(theta)
        sizes = [int(np.prod(shape)) for shape in self.parameters.values()]
        parts = torch.split(theta, sizes, dim=1)
        return {
            name: part.reshape(theta.shape[0], *shape)
            for (name, shape), part in zip(self.parameters.items(), parts, strict=True)
        }

    def flat(self, theta: Tensor | Mapping[str, Tensor]) -> Float[Tensor, "batch theta"]:
        """θ as a flat tensor, checked: shape, type, no NaN or infinity."""
        if isinstance(theta, Mapping):
            theta = self.pack(theta)
        self.check(theta)
        bad = ~theta.isfinite().all(1)
        if bool(bad.any()):
            where = bad.nonzero()[:, 0].tolist()
            names = [n for n, v in self.unpack(theta).items() if not bool(v.isfinite().all())]
            raise ShapeError(
                f"theta holds NaN or infinity in items {where[:8]} (parameters {names}): check the model's output."
            )
        return theta

    def check(self, theta: Tensor) -> None:
        """Raise unless θ is a float tensor of shape (batch, size)."""
        if not isinstance(theta, Tensor) or not theta.is_floating_point():
            kind = getattr(theta, "dtype", type(theta).__name__)
            raise ShapeError(f"theta must be a floating-point tensor or a dict of them, not {kind}.")
        if theta.dim() != 2 or theta.shape[1] != self.size:
            raise ShapeError(f"theta must have shape (batch, {self.size}), not {tuple(theta.shape)}.")
