"""Mixtures of sets: an event happens with some probability, and each has a set of distributions of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from conelayers.internals import numbers
from drolayers.ambiguity.base import AmbiguitySet, Mass, Rows, SetDual
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.reweighted import (
    LEAST_RADIUS,
    OUTSIDE,
    ROOTED,
    Kind,
    check_kind,
    divergence,
    reweighing,
    weight_roots,
)
from drolayers.ambiguity.wasserstein import FLOOR
from drolayers.amounts import Told
from drolayers.errors import ModelError, ShapeError
from drolayers.products import times
from drolayers.uncertainty import Uncertain

RARE = 1e-11
"""A probability below this, unless it is zero, is lost in the cones of a ball of some kinds: nothing is answered."""

Around = Pair | Sequence[Pair | None] | None
"""One nominal distribution for all events, or one an event (None for sets that need none)."""


@final
class Mixture(AmbiguitySet):
    """All P = Σ_s p_s P_s with P_s in the s-th set: in event s, which has probability p_s, the s-th set is meant.

    An event that leaves y only a part of its support has a set over ``y.within(support)``. Parameters of the sets are
    named after their event: ``"0.radius"`` is that of the first, ``"rain.radius"`` that of the one called rain. An
    event of probability zero is one that cannot happen, under every kind, so that ``dro.always`` asks nothing of its
    outcomes; its set must hold a distribution all the same, under which the cost is finite, and leave what stands in
    ``dro.always`` a largest value. A weight of zero gets no gradient. In a ``"kl"``, ``"hellinger"`` or
    ``"chi2"`` ball a probability below 1e-11 that is not zero is lost beside the others: the item has FAILED.

    The worst case is Σ_s p_s f_s(x, θ_s), or the largest such sum over the probabilities in the ball.

    Args:
        sets: the sets, or a dict of them by the names of their events.
        weights: the probabilities; None learns them: a parameter ``weights`` of nonnegative numbers, of which only the
            proportions matter.
        kind: let the probabilities lie anywhere within a learnt ``radius`` of the weights, in the sense of this
            divergence (see :class:`Divergence`).
    """

    def __init__(
        self,
        sets: Sequence[AmbiguitySet] | Mapping[str, AmbiguitySet],
        weights: ArrayLike | None = None,
        kind: Kind | None = None,
    ) -> None:
        named = dict(sets) if isinstance(sets, Mapping) else {str(i): part for i, part in enumerate(sets)}
        self.names, self.sets = tuple(named), tuple(named.values())
        self.events = self.sets
        self.y, self.kind, count = _common(named), kind, len(named)
        if kind is not None:
            check_kind("Mixture", kind)
        # Relative to their mean, as the weights of atoms are.
        self.shares: cp.Expression = cp.Parameter(count, nonneg=True, name="shares")
        self.possible: cp.Expression = cp.Parameter(count, nonneg=True, name="possible")
        own: list[cp.Parameter] = []
        self.given = None if weights is None else _probabilities(weights, count)
        self.roots: cp.Expression | None = None
        if self.given is None:
            own += [self.shares, self.possible]
            if kind in ROOTED:
                self.roots = cp.Parameter(count, nonneg=True, name="share roots")
                own.append(self.roots)
        else:
            self.shares, self.possible = cp.Constant(count * self.given), cp.Constant(np.ones(count))
            self.roots = cp.Constant(np.sqrt(count * self.given))
        self.radius = cp.Parameter(1, nonneg=True, name="radius")
        own += [] if kind is None else [self.radius]
        shapes: dict[str, tuple[int, ...]] = {} if weights is not None else {"weights": (count,)}
        shapes |= {} if kind is None else {"radius": ()}
        self._own = sum(int(np.prod(shape)) for shape in shapes.values())
        for name, part in named.items():
            shapes |= {f"{name}.{inner}": shape for inner, shape in part.parameters.items()}
        self.parameters = shapes
        self.features = (*own, *(feature for part in self.sets for feature in part.features))
        ends = np.cumsum([self._own, *(part.size for part in self.sets)])
        self._columns = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        needy = {part.atoms for part in self.sets if part.needs_nominal}
        self.needs_nominal = bool(needy)
        self._atoms = [part.atoms if part.needs_nominal else 0 for part in self.sets]
        if len(needy) == 1:
            (self.atoms,) = needy

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}: {part}" for name, part in zip(self.names, self.sets, strict=True))
        return f"Mixture({inner}{'' if self.kind is None else f', kind={self.kind!r}'})"

    @property
    def known(self) -> tuple[cp.Parameter, ...]:
        """Those of all supports."""
        return tuple({p.id: p for part in self.sets for p in part.known}.values())

    def links(self) -> list[Labels]:
        """Those of all sets."""
        return [link for part in self.sets for link in part.links()]

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """There is one an event: see ``mixed``."""
        raise NotImplementedError("A mixture has a dual for every event.")

    def mixed(self, values: cp.Variable, everywhere: bool) -> tuple[cp.Expression, Constraints]:
        """The worst case as it follows from those of the events, with constraints.

        Args:
            values: above the worst case of every event.
            everywhere: whether those are over the outcomes that a set allows, not over its distributions.
        """
        if everywhere:
            largest = cp.Variable()
            return largest, [times(self.possible, values) <= self.possible * largest]
        totals = times(self.shares, values)
        if self.kind is None:
            return cp.sum(totals) / len(self.sets), []
        price, combined = reweighing(self.kind, self.radius[0], self.shares, self.roots)
        total, constraints = combined(totals)
        return price + total / len(self.sets), constraints

    def own(self, theta: Float[Tensor, "batch theta"]) -> Float[Tensor, "batch own"]:
        """The mixture's own parameters: weights and radius, where there are some."""
        return theta[:, : self._own]

    def possible_own(self, theta: Float[Tensor, "batch theta"], least: float) -> Float[Tensor, "batch own"]:
        """The same, no weight negative (all alike where none is positive), and a radius not below a number."""
        own = self.own(theta)
        floor = torch.zeros_like(own)
        if self.kind is not None:
            floor[:, -1] = least
        own = torch.where(own >= floor, own, floor)
        if self.given is not None:
            return own
        weights = own[:, : len(self.sets)]
        some = weights.sum(1, keepdim=True) > 0
        return torch.cat([torch.where(some, weights, torch.ones_like(weights)), own[:, len(self.sets) :]], 1)

    def theta_of(self, theta: Float[Tensor, "batch theta"], event: int) -> Float[Tensor, "batch own"]:
        """The parameters of one set."""
        return theta[:, self._columns[event]]

    def probabilities(self, theta: Float[Tensor, "batch theta"]) -> Float[Tensor, "batch event"]:
        """P, or where it may lie in a ball, the middle of that; in a weight of zero there is no derivative."""
        if self.given is not None:
            return torch.as_tensor(self.given).to(theta).expand(len(theta), -1)
        weights = theta[:, : len(self.sets)]
        weights = torch.where(weights > 0, weights, torch.zeros_like(weights))
        return weights / weights.sum(1, keepdim=True).clamp(min=1e-300)

    def each(self, nominal: Around, theta: Float[Tensor, "batch theta"]) -> list[Nominal | None]:
        """The nominal distribution of every event; of one that serves all, the part within the event's support."""
        batch = len(theta)
        if isinstance(nominal, Sequence) and not _pair(nominal):
            if len(nominal) != len(self.sets):
                raise ShapeError(f"There are {len(self.sets)} events, but {len(nominal)} nominal distributions.")
            return [None if one is None else self._checked(one, batch).to(theta.device) for one in nominal]
        one = self._checked(nominal, batch).to(theta.device)
        if np.count_nonzero(self._atoms) > 1 and one.atoms.shape[1] == sum(self._atoms):
            return self.split(one)
        return [_inside(part.y, one) for part in self.sets]

    def allowed(self, nominal: Nominal) -> Float[Tensor, "batch event"]:
        """How much of a nominal distribution each event allows."""
        outside = [_outside(part.y, nominal.atoms.detach(), nominal.weights.detach() > 0) for part in self.sets]
        return torch.stack([nominal.weights.masked_fill(out, 0.0).sum(1) for out in outside], 1)

    def _checked(self, nominal: Any, batch: int) -> Nominal:
        """One nominal distribution."""
        given = (self.y.rows(nominal[0], 2), nominal[1]) if _pair(nominal) else nominal
        return Nominal.of(given, self.y.dim, batch)

    def around(self, nominal: Around, theta: Float[Tensor, "batch theta"]) -> Nominal:
        """Those of the events that need one as a single distribution, one after another, all with the same mass."""
        if not self.needs_nominal:
            return super().around(nominal, theta)  # type: ignore[arg-type]
        found = self.each(nominal, theta)
        parts = []
        for name, part, one in zip(self.names, self.sets, found, strict=True):
            if part.needs_nominal:
                if one is None or one.atoms.shape[1] != part.atoms:
                    have = "none" if one is None else f"one of {one.atoms.shape[1]}"
                    raise ShapeError(
                        f"Event {name!r} needs a nominal distribution of {part.atoms} atoms, not {have}: give a list "
                        "with one distribution an event."
                    )
                parts.append(one)
        atoms, weights = (torch.cat(side, 1) for side in zip(*parts, strict=True))
        return Nominal(atoms, weights / len(parts))

    def split(self, joined: Nominal | None) -> list[Nominal | None]:
        """Take apart what ``around`` joined; None for events that need no nominal distribution.

        Args:
            joined: one distribution with the atoms of all events. It may belong to other sets of the problem.
        """
        if joined is None or not self.needs_nominal:
            return [None] * len(self.sets)
        parts = zip(joined.atoms.split(self._atoms, 1), joined.weights.split(self._atoms, 1), strict=True)
        return [Nominal(a, w / w.sum(1, keepdim=True)) if w.shape[1] else None for a, w in parts]

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Probabilities and the radius, then those of the sets."""
        self.check(theta)
        theta = theta.double()
        parts, p = [], self.probabilities(theta)
        shares = len(self.sets) * p
        if self.kind in ("kl", "hellinger", "chi2"):
            shares = shares.masked_fill(((p > 0) & (p < RARE)).any(1, keepdim=True), torch.nan)
        if self.given is None:
            parts += [shares, (shares > 0).double()]
            if self.kind in ROOTED:
                parts.append(weight_roots(shares))
        if self.kind is not None:
            parts.append(self._radius(theta).clamp(min=FLOOR))
        found = self.split(nominal)
        parts += [s.feature_values(self.theta_of(theta, i), found[i]) for i, s in enumerate(self.sets)]
        return torch.cat(parts, 1)

    def _radius(self, theta: Tensor) -> Float[Tensor, "batch 1"]:
        """Of the ball of probabilities."""
        return theta[:, self._own - 1 : self._own]

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Every set where the outcomes are that its event allows; as often as those occur."""
        y, count = self.points(y), len(self.sets)
        mine = [y[~_outside(part.y, y)] for part in self.sets]
        found: dict[str, Typical] = {}
        if self.given is None:
            often = torch.tensor([len(some) or 1 for some in mine]).double()
            centre = often / often.sum()
            found["weights"] = Typical(centre, torch.full_like(centre, 1.0 / count), positive=True, meaningful=False)
        if self.kind is not None:
            radius = torch.tensor(0.1, dtype=torch.float64)
            found["radius"] = Typical(radius, radius, positive=True, meaningful=False)
        for name, part, some in zip(self.names, self.sets, mine, strict=True):
            inner = part.typical(some if len(some) else y)
            found |= {f"{name}.{own}": value for own, value in inner.items()}
        return found

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Where a set is, a support may be empty, or weights or a radius are not positive."""
        found = self.split(nominal)
        look = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        for i, part in enumerate(self.sets):
            look |= part.suspect(self.theta_of(theta, i), found[i], known).to(look.device)
            doubtful = part.y.support.doubtful(known)
            look = look if doubtful is None else look | doubtful.to(look.device)
        if self.given is None:
            look |= (theta[:, : len(self.sets)] <= 0).any(1)
        return look if self.kind is None else look | (self._radius(theta)[:, 0] <= FLOOR)

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """That of the set that lacks most; weights and radius must not be negative."""
        self.check(theta)
        theta = theta.detach().double()
        found = self.split(self.around(nominal, theta) if self.needs_nominal else None)
        parts = [
            part.emptiness(self.theta_of(theta, i), found[i], known).to(theta.device)
            for i, part in enumerate(self.sets)
        ]
        if self.given is None:
            weights = theta[:, : len(self.sets)]
            bad = (weights < 0).any(1) | (weights.sum(1) <= 0)
            parts.append(torch.where(bad, torch.ones_like(parts[0]), -torch.ones_like(parts[0])))
        if self.kind is not None:
            parts.append(-self._radius(theta)[:, 0].sign())
        return torch.stack(parts).amax(0)

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Around = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Event by event, around the nominal distribution of the event; weights and radius become possible ones.

        A probability that the cones of a ball cannot resolve is raised to twice :data:`RARE`.
        """
        found = [None] * len(self.sets) if nominal is None else self.each(nominal, theta)
        own = self.possible_own(theta, LEAST_RADIUS)
        if self.given is None and self.kind in ("kl", "hellinger", "chi2"):
            weights, radius = own[:, : len(self.sets)], own[:, len(self.sets) :]
            least = 2.0 * RARE * weights.detach().sum(1, keepdim=True)
            own = torch.cat([torch.where((weights > 0) & (weights < least), least, weights), radius], 1)
        parts = [own]
        for i, part in enumerate(self.sets):
            mine = self.theta_of(theta, i)
            parts.append(part.ensure_nonempty(mine, found[i], known) if part.size else mine)
        return torch.cat(parts, 1)

    def event_of(self, origin: Int[Tensor, "batch atom"]) -> Int[Tensor, "batch atom"]:
        """The event in which an atom of a worst-case distribution has its mass, from ``mass.origin``."""
        return torch.bucketize(origin, self.starts[1:].to(origin.device), right=True)

    @property
    def starts(self) -> Int[Tensor, "event"]:
        """With which number the scenarios of every event begin."""
        return torch.tensor([0, *np.cumsum([max(1, count) for count in self._atoms])[:-1].tolist()])

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """How far the probabilities of the events are from theirs, and what each event uses of its own bounds."""
        theta, found = theta.double(), self.split(nominal)
        event, escaping = self.event_of(mass.origin), self.event_of(mass.direction_origin)
        count = len(self.sets)
        shares = torch.stack([(mass.probabilities * (event == s)).sum(1) for s in range(count)], 1)
        p = self.probabilities(theta)
        used, bounds = [self._probability_usage(shares, p)], [torch.zeros_like(p[:, :1])]
        if self.kind is not None:
            bounds = [self._radius(theta)]
        for s, part in enumerate(self.sets):
            share, start, last = shares[:, s : s + 1], int(self.starts[s]), max(1, self._atoms[s]) - 1
            there = share > 0
            given = torch.where(there, share, torch.ones_like(share))
            own = Mass(
                mass.atoms,
                mass.probabilities * (event == s) / given,
                (mass.origin - start).clamp(0, last),
                mass.directions * (escaping == s)[..., None] / given[..., None],
                (mass.direction_origin - start).clamp(0, last),
            )
            needed, bound = part.usage(self.theta_of(theta, s), found[s], own)
            # Of an event without mass nothing is known.
            used.append(torch.where(there, needed, bound))
            bounds.append(bound)
        return torch.cat(used, 1), torch.cat(bounds, 1)

    def _probability_usage(self, shares: Tensor, p: Tensor) -> Float[Tensor, "batch 1"]:
        """What probabilities of events use of the radius; without one, nothing or all."""
        if self.kind is None:
            return torch.where((shares - p).abs().sum(1, keepdim=True) > 1e-6, torch.inf, 0.0)
        ratio = torch.where(p > 0, shares / p.clamp(min=1e-300), torch.ones_like(p))
        stray = shares.masked_fill(p > 0, 0.0).sum(1)
        return (divergence(self.kind, ratio, p) + torch.where(stray > 1e-6, torch.inf, 0.0))[:, None]

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """θ of sets ``factor`` times as large, event by event, and of a radius likewise.

        Args:
            theta: flat.
            factor: one for all items or one an item, ``(batch,)``.
        """
        theta, factor = self.times(theta, factor)
        parts = [self.own(theta)]
        if self.kind is not None:
            parts = [theta[:, : self._own - 1], self._radius(theta) * factor[:, None]]
        for i, (name, part) in enumerate(zip(self.names, self.sets, strict=True)):
            scale = getattr(part, "scaled", None)
            if scale is None:
                raise ModelError(f"Event {name!r} has a set that cannot be scaled: {part}.")
            parts.append(scale(self.theta_of(theta, i), factor) if part.size else self.theta_of(theta, i))
        return torch.cat(parts, 1)


def _common(named: Mapping[str, AmbiguitySet]) -> Uncertain:
    """The uncertain vector of all sets."""
    if not named or not all(isinstance(part, AmbiguitySet) for part in named.values()):
        raise ModelError("Mixture needs a non-empty list of sets such as dro.MomentSet, or a dict of them by event.")
    if any(isinstance(part, Mixture) for part in named.values()):
        raise ModelError("A mixture cannot be an event of another: list all of its sets, with products of the weights.")
    if len({id(part) for part in named.values()}) < len(named):
        raise ModelError("Every event needs a set of its own: one set was listed twice.")
    found = {id(part.y.whole): part.y.whole for part in named.values()}
    if len(found) > 1:
        raise ModelError("The sets of a mixture are over different vectors: make all of them over one y or y.within.")
    (y,) = found.values()
    return y


def _probabilities(weights: ArrayLike, count: int) -> np.ndarray:
    """Given probabilities, checked."""
    given = numbers("The weights of Mixture", weights)
    if given.shape != (count,):
        raise ModelError(f"Mixture has {count} events, so weights must have shape ({count},), not {given.shape}.")
    if not (np.all(given > 0) and abs(given.sum() - 1.0) < 1e-6):
        raise ModelError(f"The weights of Mixture must be positive and add up to one, not {given.tolist()}.")
    return np.asarray(given / given.sum())


def _pair(nominal: Any) -> bool:
    """Whether this is one nominal distribution."""
    return isinstance(nominal, tuple | list) and len(nominal) == 2 and all(isinstance(part, Tensor) for part in nominal)


def _outside(y: Uncertain, points: Tensor, there: Bool[Tensor, "..."] | None = None) -> Bool[Tensor, "..."]:
    """Which points an event does not allow, by the size of those beside it in an item (that are ``there``).

    Where it depends on known data that is not asked.
    """
    if y.support.parameters:
        return torch.zeros(points.shape[:-1], dtype=torch.bool, device=points.device)
    sizes = points.abs().amax(-1)
    size = (sizes if there is None else sizes * there).amax(-1, keepdim=True).clamp(min=1e-300)
    return y.support.violation(points) > OUTSIDE * size


def _inside(y: Uncertain, nominal: Nominal) -> Nominal:
    """The nominal distribution, given that the event happens; as it is where it does not allow for the event."""
    if y.whole is y:
        return nominal
    outside = _outside(y, nominal.atoms.detach(), nominal.weights.detach() > 0)
    weights = nominal.weights.masked_fill(outside, 0.0)
    total = weights.sum(1, keepdim=True)
    return Nominal(nominal.atoms, torch.where(total > 0, weights / total.clamp(min=1e-300), nominal.weights))
