"""What every ambiguity set offers: the layout of its parameters, and its half of the worst-case formula."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from conelayers.internals import tensor
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.terms import Term
from drolayers.ambiguity.theta import Theta
from drolayers.amounts import Told
from drolayers.errors import ModelError, ShapeError
from drolayers.products import kron, tiled, times
from drolayers.support import Layout, Reals, Support
from drolayers.uncertainty import Uncertain

BEYOND = 1e-6
"""Distance from the support, relative to outcomes, that is put down to rounding, also in single precision."""

Combined = Callable[[cp.Expression], tuple[cp.Expression, Constraints]]
"""From the sums of all scenarios to what is to be summed instead, with its constraints."""


@dataclass(frozen=True)
class Rows:
    """Affine pieces ``a_r(x)ᵀy + b_r(x)``, flat: the cost of a block is the largest of its rows.

    Args:
        slope: all slopes one after another, ``(entries,)``.
        offset: ``(rows,)``.
        layout: which row and coordinate an entry of the slope belongs to.
        block: which block a row belongs to, numbered from 0.
        sign: the known signs of the slope, zero where unknown.
        owner: where rows are of several worst cases at once, whose they are, numbered from 0.
        lifted: what a row adds for each unit of a lifted component u_c ≥ g_c(y), by (row, component).
        scenarios: how many scenarios the rows are laid out for, where those of each differ; else one.
    """

    slope: cp.Expression
    offset: cp.Expression
    layout: Layout
    block: Labels
    sign: Sign = None
    owner: Labels | None = None
    lifted: Callable[[Labels, Labels], cp.Expression] | None = None
    scenarios: int = 1
    owners: int = field(init=False)
    """Number of worst cases."""
    several: tuple[int, ...] = field(init=False)
    """The shape of what every worst case has one of."""
    lone: NDArray[np.bool_] = field(init=False)
    """Which rows are alone in their block."""

    def __post_init__(self) -> None:
        owners = 1 if self.owner is None else int(self.owner.max(initial=-1)) + 1
        several = () if self.owner is None else (owners,)
        vars(self).update(owners=owners, several=several, lone=np.bincount(self.block)[self.block] == 1)


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

    Of several worst cases at once there are as many prices and sums.

    Where probabilities of scenarios may change, ``combined`` takes the sums of every scenario and returns what is to be
    summed instead of them, with its constraints.
    """

    rows: Rows
    price: cp.Expression
    terms: list[Term]
    constraints: Constraints
    unit: float = 1.0
    scenarios: int = 1
    combined: Combined | None = None


def scenarios(rows: Rows, weights: cp.Parameter) -> Rows:
    """Every row once for every scenario, scenario by scenario, multiplied by its weight."""
    count = weights.size
    if rows.scenarios > 1:
        entry, row = (np.arange(size) // (size // count) for size in (rows.layout.row.size, rows.layout.rows))
        return replace(
            rows, slope=times(weights[entry], rows.slope), offset=times(weights[row], rows.offset), sign=None
        )
    slope, offset = kron(weights, rows.slope), kron(weights, rows.offset)
    owner = None if rows.owner is None else np.tile(rows.owner, count)
    return Rows(slope, offset, *laid_out(rows.layout, rows.block, count), owner=owner)


def laid_out(base: Layout, block: Labels, count: int) -> tuple[Layout, Labels]:
    """The layout and blocks of rows that are repeated for every scenario."""
    entry, row = (np.repeat(np.arange(count), size) for size in (base.row.size, base.rows))
    layout = Layout(np.tile(base.row, count) + entry * base.rows, np.tile(base.coordinate, count), base.rows * count)
    blocks = int(block.max(initial=-1)) + 1
    return layout, np.tile(block, count) + row * blocks


def at_atoms(slope: cp.Expression, layout: Layout, weighted: cp.Parameter) -> cp.Expression:
    """Σ_i (ω y)_ni a_ri for the rows of all scenarios, from the slopes of one."""
    count, dim = weighted.shape
    rows, entries = layout.rows // count, layout.row.size // count
    if rows and entries == rows * dim:
        # Where every row sees all coordinates, one product of matrices: CVXPY's work is then a hundredth.
        place = layout.coordinate[:entries] + dim * layout.row[:entries]
        spread = sp.csr_array((np.ones(entries), (place, np.arange(entries))), shape=(entries, entries))
        return cp.vec(weighted @ cp.reshape(spread @ slope, (dim, rows), order="F"), order="C")
    scenario = np.repeat(np.arange(count), layout.row.size // count)
    centres = cp.vec(weighted, order="C")[scenario * dim + layout.coordinate]
    return layout.sums() @ times(centres, tiled(slope, count))


@dataclass(frozen=True)
class Along:
    """What a set says of affine functions u = aᵀy + b on all of space, one by one: a ball around weighted numbers.

    Args:
        values: Nω_n u_n, scenario by scenario.
        weights: Nω_n.
        unit: 1/N.
        order: of the ball.
        radius: of the ball, for a single function; None where mass stays at the atoms.
        reach: Nω_n times the radius.
        roots: √(Nω_n) u_n.
        constraints: what makes the radius one.
    """

    values: cp.Expression
    weights: cp.Expression
    unit: float
    order: float = 0.0
    radius: cp.Expression | None = None
    reach: cp.Expression | None = None
    roots: cp.Expression | None = None
    constraints: Constraints = field(default_factory=list)


def largest(weights: cp.Parameter, several: tuple[int, ...] = ()) -> Combined:
    """The largest of the sums of all scenarios, in place of their sum; each was multiplied by its weight."""

    def combined(totals: cp.Expression) -> tuple[cp.Expression, Constraints]:
        most = cp.Variable(several)
        return weights.size * most, [totals <= weighted(weights, most)]

    return combined


def weighted(weights: cp.Expression, value: cp.Expression) -> cp.Expression:
    """Every weight times a number, or times each of several."""
    return weights * value if value.shape == () else kron(weights, value)


class AmbiguitySet(Theta, ABC):
    """A set U(θ) of distributions of ``y``."""

    name: str = ""
    """By which its parameters are called where a problem has several sets."""
    features: tuple[cp.Parameter, ...]
    """Smooth functions of θ (and of the nominal distribution) in which the worst-case program is affine."""
    atoms: int
    """Number of atoms of the nominal distribution, where one travels beside θ."""
    needs_nominal: bool = False
    """Whether atoms and weights travel beside θ."""
    pinned: bool = False
    """Whether mass is where the nominal atoms are, and nowhere else."""
    bundles: bool = False
    """Whether ``dual`` and ``outcomes`` take the rows of several worst cases at once, by their owners."""
    local: bool = False
    """Whether the outcomes that the set allows are told atom by atom, since mass cannot go anywhere from each."""
    escapes: bool = True
    """Whether mass may go as far as it likes, if it is little enough."""
    events: tuple[AmbiguitySet, ...] = ()
    """The sets of events, where it is a mixture of such: second stages have a rule for each."""
    own_rules: int = 1
    """How many decision rules there are where all of ``y`` is seen: one for every atom, or one."""

    def named(self, name: str) -> Self:
        """The set itself, with a name: its parameters are ``name.…`` where it is not the set of the cost."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ModelError(f"The name of a set must be one word, such as 'service', not {name!r}.")
        self.name = name
        return self

    @property
    def reach(self) -> Support:
        """Where mass may be, besides what the set itself says."""
        return self.y.support

    @property
    def centred(self) -> bool:
        """Whether the worst mean square of an affine function is the square of its worst mean, of either sign."""
        return False

    @property
    def known(self) -> tuple[cp.Parameter, ...]:
        """The known data on which the support depends."""
        return self.y.support.parameters

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

    @abstractmethod
    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """Multipliers, their price, and the terms that they bring into every row.

        What a row adds for a unit of a lifted component is taken off the component's multiplier.

        Args:
            rows: the pieces.
            share: whether what all scenarios have in common may be said once.
        """

    def outcomes(self, rows: Rows, share: bool = True) -> SetDual:
        """The same over every outcome that the set allows: all of the support unless said otherwise.

        Moments are free there; what a row adds for a unit of a lifted component must be negative, and is a multiplier.
        """
        return SetDual(rows, cp.Constant(0.0), [], [])

    def along(self, rows: Rows) -> Along | None:
        """What the set says of affine functions of y, each a row over all coordinates; None where that is not known."""
        return None

    def outcome_links(self) -> list[Labels]:
        """Groups of coordinates that these outcomes tie together, besides the support's: none unless said otherwise."""
        return []

    def lifted(self) -> list[Labels]:
        """The coordinates of every component g_c of the moments to which a decision rule can respond."""
        return []

    @property
    def lifted_features(self) -> tuple[cp.Parameter, ...]:
        """The features that the components depend on."""
        return ()

    def lifted_values(
        self, features: Sequence[Tensor], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point rule component"]:
        """The components at outcomes, for each of ``own_rules``, in the units of their multipliers; differentiable.

        Args:
            features: the values of ``lifted_features``, ``(batch, *shape)``.
            y: outcomes.
        """
        return y.new_zeros(*y.shape[:2], self.own_rules, 0)

    @abstractmethod
    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """The features of a batch, differentiable, in float64 and in the order of ``features``."""

    @abstractmethod
    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Sensible values of all parameters for some outcomes, by name."""

    def aims(self, y: Float[Tensor, "batch dim"]) -> dict[str, Float[Tensor, "batch ..."]]:
        """The values of learnt locations that fit every outcome by itself, by name: those that are affine in it."""
        return {}

    @abstractmethod
    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Items whose set may be empty although their program looks solvable."""

    def settled(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Items whose set is seen not to be empty without solving anything; none unless said otherwise."""
        return theta.new_zeros(len(theta), dtype=torch.bool)

    @abstractmethod
    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """By how much, relatively, the bounds must be relaxed for the set to be non-empty; negative: room to spare.

        Infinite where the support, with an item's known data, is empty.
        """

    @abstractmethod
    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Change θ as little as it takes for every set to hold its witness, so that none is empty.

        The witness is the unit mass at a support point next to the set's location; a ball has its nominal distribution,
        moved onto the support. A θ whose set holds its witness with room is returned unchanged, with the identity as
        gradient. Only parameters that were given, and a support without points, can leave a set empty.

        Args:
            theta: flat, finite.
            nominal: atoms and weights; optional where the set needs none.
            known: values of the known data that the support depends on, by parameter.
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

    def grown(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor, powers: Mapping[str, float]) -> Tensor:
        """θ with some parameters multiplied by a power of a factor, one for all items or one an item."""
        theta, by = self.times(theta, factor)
        values = self.unpack(theta)
        for name, power in powers.items():
            values[name] = values[name] * (by**power).reshape(-1, *[1] * (values[name].dim() - 1))
        return self.pack(values)

    def times(
        self, theta: Float[Tensor, "batch theta"], factor: Any
    ) -> tuple[Float[Tensor, "batch theta"], Float[Tensor, "batch"]]:
        """θ and a factor an item, checked; one of either serves all of the other."""
        self.check(theta)
        by = tensor("factor", factor).to(theta)
        if by.dim() > 1 or (by.numel() != 1 and len(theta) not in (1, len(by))):
            raise ShapeError(
                f"factor must be one number, or one an item ({len(theta)},), not of shape {tuple(by.shape)}."
            )
        count = len(theta) if by.numel() == 1 else len(by)
        return theta.expand(count, -1), by.reshape(-1).expand(count)

    def points(self, y: Any) -> Float[Tensor, "point dim"]:
        """Some outcomes in float64, checked."""
        y = self.y.rows(tensor("y", y))
        if y.dim() != 2 or y.shape[1] != self.y.dim or not len(y):
            raise ShapeError(f"Outcomes must have shape (point, {self.y.dim}), not {tuple(y.shape)}.")
        return y.double()

    def beside(
        self, theta: Float[Tensor, "batch theta"], y: Any
    ) -> tuple[Float[Tensor, "batch theta"], Float[Tensor, "batch dim"]]:
        """θ and one outcome an item, checked; one row of θ serves all outcomes."""
        self.check(theta)
        y = self.y.rows(tensor("y", y)).to(theta)
        if y.dim() != 2 or y.shape[1] != self.y.dim or len(theta) not in (1, len(y)):
            raise ShapeError(
                f"Scores need theta and one outcome an item, of shape ({len(theta)}, {self.y.dim}), "
                f"not {tuple(y.shape)}."
            )
        return theta.expand(len(y), -1), y

    def scores(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"], known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """The smallest t for which the set, scaled by t, holds an outcome by itself; differentiable.

        Where this is at most t, the scaled set's worst case is not below the cost at y, whatever the cost.

        Args:
            theta: flat; one row serves all outcomes.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of the known data that the support depends on, by parameter.

        Returns:
            At most 1 where the set holds the outcome, infinite where no multiple of it does: outside of the support.

        Raises:
            ModelError: the set has no scale by which to measure outcomes.
        """
        found = self.scores_anywhere(theta, y)
        return found.masked_fill(beyond(self.y, y, known).to(found.device), torch.inf)

    def scores_anywhere(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch"]:
        """The scores of outcomes, wherever the support ends."""
        raise ModelError(f"{self!r} has no scale for single outcomes: calibrate its value, with disappointment=.")


@torch.no_grad()
def beyond(y: Uncertain, points: Any, known: Told | None = None) -> Bool[Tensor, "batch"]:
    """Outcomes that lie outside of the support of ``y`` by more than rounding."""
    outcomes = y.rows(tensor("y", points)).detach().double()
    if isinstance(y.support, Reals) or not len(outcomes):
        return torch.zeros(len(outcomes), dtype=torch.bool, device=outcomes.device)
    size = outcomes.abs().amax(1)
    # Where an outcome vanishes the others say what is small.
    allowed = BEYOND * torch.maximum(size, size.nanmedian())
    # NaN, too, is not inside.
    return ~(y.support.violation(outcomes[:, None], known)[:, 0] <= allowed)
