"""The witness of a moment set, and the parameters that let the set hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import cvxpy as cp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, untraced
from drolayers.ambiguity.composite import Composite
from drolayers.ambiguity.conic_moment import Epigraph
from drolayers.ambiguity.image import Coordinates, Directions
from drolayers.ambiguity.moment import Elementary, Moment
from drolayers.ambiguity.nominal import Pair
from drolayers.ambiguity.parameters import Leaves
from drolayers.ambiguity.witness import LEAST_REL, ROOM_REL, at_least, known_of, outcome_size
from drolayers.amounts import Told
from drolayers.nearest import PROJECTION_TOLERANCE, is_curved, nearest_point
from drolayers.support import Ellipsoid

if TYPE_CHECKING:
    from drolayers.ambiguity.moment_set import MomentSet

CANDIDATES = 4
"""Locations from which witnesses are tried, at most; beyond, moments share the mean of their locations."""

FORBIDDEN = 1e100
"""Added to the excess of a candidate that a given bound forbids, so that every other candidate comes first."""

MET_REL = 1e-9
"""Excess over a given bound, relative to a change of the moment over the size of outcomes, that is rounding."""


@final
@dataclass(frozen=True, eq=False)
class MomentWitness:
    """Finds witnesses of a moment set, and raises its bounds to what they need.

    A witness is the support point next to a *location*: the centre of a moment, the mean of all centres, or the mean
    of the nominal distribution. Of several the one is used that asks for the least change. By Jensen's inequality a set
    that holds the nominal distribution holds its mean.

    A learnt bound σ becomes at least (1 + r)·g(w) + m with ``r = ROOM_REL``. Here m is the change of g over the size of
    an outcome, times ``LEAST_REL`` to the power of g's degree. A given bound stays: there the moment's learnt centre
    moves towards its value at the witness. A given bound without a learnt centre restricts the witness, by a cone
    program.

    Args:
        ambiguity: the set.
    """

    ambiguity: MomentSet

    def ensure(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None
    ) -> Float[Tensor, "batch theta"]:
        """Return the parameters of sets that hold their witness; those that hold it with room stay as they are."""
        if not len(theta) or not self.ambiguity.size:
            return theta
        double = theta.double()
        points, _ = self._candidates(double, nominal, known)
        with torch.no_grad():
            excess, best, restricted = self._excess(double.detach(), points.detach(), nominal)
            changed = excess > 0
        if not bool(changed.any()):
            return theta
        some = changed.nonzero()[:, 0]
        at = best[some, None, None].expand(-1, 1, points.shape[2])
        witness = points[some].gather(1, at)[:, 0]
        if bool(restricted[some].any()):
            witness = self._restricted(double[some], witness, restricted[some], known_of(known, changed))
        size = self._size(points.detach()[some], nominal, some)
        moved = self._moved(double[some], witness, size).to(theta.dtype)
        return theta.index_copy(0, some, moved)

    def holds(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None
    ) -> Bool[Tensor, "batch"]:
        """Return items whose set holds a witness with room."""
        if not len(theta):
            return theta.new_zeros(0, dtype=torch.bool)
        with torch.no_grad():
            double = theta.detach().double()
            points, exists = self._candidates(double, nominal, known)
            excess, best, _ = self._excess(double, points, nominal)
            return (excess <= 0) & exists.gather(1, best[:, None])[:, 0]

    def _candidates(
        self, theta: Tensor, nominal: Pair | None, known: Told | None
    ) -> tuple[Float[Tensor, "batch point dim"], Bool[Tensor, "batch point"]]:
        """Return support points next to the set's locations, and which of them exist."""
        ambiguity, batch = self.ambiguity, len(theta)
        middle = None
        if nominal is not None:
            atoms, weights = (part.to(theta) for part in nominal)
            middle = (weights[..., None] * atoms).sum(1)
        start = theta.new_zeros(batch, ambiguity.y.dim) if middle is None else middle
        if middle is None and isinstance(ambiguity.y.support, Ellipsoid):
            start = torch.as_tensor(ambiguity.y.support.centre).to(theta).expand(batch, -1)
        leaves = [ambiguity.leaf_values(theta, i) for i in range(len(ambiguity.moments))]
        centres = [part for m, own in zip(ambiguity.moments, leaves, strict=True) for part in _centres(m, own)]
        full = [mu.expand(batch, -1) for coordinates, mu in centres if len(coordinates) == ambiguity.y.dim]
        locations = full[:CANDIDATES]
        if len(centres) > 1 or not full:
            locations.append(_averaged(centres, start))
        if (fitted := self._fitted(theta, start)) is not None:
            locations.append(fitted)
        if middle is not None:
            locations.append(middle)
        points = torch.stack([self._inside(location, start, known) for location in locations], 1)
        # An empty support has no nearest point: its items stay empty, and must not spoil the gradient of others.
        exists = points.isfinite().all(2)
        return torch.where(exists[..., None], points, torch.stack(locations, 1).detach()), exists

    def _inside(
        self, location: Float[Tensor, "batch dim"], middle: Float[Tensor, "batch dim"], known: Told | None
    ) -> Float[Tensor, "batch dim"]:
        """Return the support points next to locations; of equations for the mean, a little inside the support.

        A mean on a curved boundary leaves a single distribution, and a multiplier without bound.
        """
        support = self.ambiguity.y.support
        point = nearest_point(support, location, known)
        if not is_curved(support) or not any(m.affine and m.sides == 2 for m in self.ambiguity.moments):
            return point
        inner = nearest_point(support, middle, known)
        far = (point - location).detach().abs().amax(1, keepdim=True)
        outside = (far > MET_REL * outcome_size(point, location)[:, None]) & inner.isfinite().all(1, keepdim=True)
        return torch.where(outside, point + ROOM_REL * (inner - point), point)

    def _fitted(self, theta: Tensor, start: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"] | None:
        """Return the point next to a start whose images under all matrices are nearest to their shifts."""
        rows, gaps = [], []
        for i, moment in enumerate(self.ambiguity.moments):
            for member, leaves in _elementary(moment, self.ambiguity.leaf_values(theta, i)):
                if isinstance(member.image, Coordinates) or member.affine:
                    continue
                matrix = leaves["mu"] if isinstance(member.image, Directions) else leaves["A"]
                matrix = matrix.reshape(len(matrix), -1, self.ambiguity.y.dim).expand(len(theta), -1, -1)
                rows.append(matrix)
                gaps.append(-member.image.at(start, leaves).expand(len(theta), -1))
        if not rows:
            return None
        matrix, gap = torch.cat(rows, 1), torch.cat(gaps, 1)
        step = torch.linalg.pinv(matrix.detach(), rtol=1e-6) @ gap[..., None]
        return start + step[..., 0]

    def _size(self, points: Tensor, nominal: Pair | None, some: Tensor | None = None) -> Float[Tensor, "batch"]:
        """Return the size of outcomes of every item."""
        usual = torch.where(points.isfinite(), points, torch.zeros_like(points))
        if nominal is None:
            return outcome_size(usual)
        atoms, weights = (part.detach().to(points) for part in nominal)
        atoms = atoms * (weights > 0)[..., None]
        return outcome_size(usual, atoms if some is None else atoms[some])

    def _changes(self, theta: Tensor, points: Float[Tensor, "batch point dim"], size: Tensor) -> Tensor:
        """Return by how much every moment changes from a point along a generic way of an outcome's size."""
        dim = points.shape[2]
        # No direction that a user writes is orthogonal to it.
        way = torch.arange(1.0, dim + 1.0, dtype=points.dtype, device=points.device).sqrt().cos() + 1.5
        way = way / way.norm()
        values = self.ambiguity.values
        return (values(theta, points + size[:, None, None] * way) - values(theta, points)).abs()

    def _needs(
        self, theta: Tensor, points: Float[Tensor, "batch point dim"], size: Float[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch point bound"], Float[Tensor, "batch point bound"]]:
        """Return the bounds that unit masses need, with room, and the unit in which an excess is counted."""
        used = self.ambiguity.values(theta, points)
        change = self._changes(theta.detach(), points.detach(), size)
        change = torch.where(change.isfinite(), change, torch.zeros_like(change))
        parts = []
        for moment, value, unit in zip(
            self.ambiguity.moments, *(part.split(self._widths, -1) for part in (used, change)), strict=True
        ):
            room, least = ROOM_REL, LEAST_REL**moment.degree
            if moment.signed:
                # One affine bound may be tight, as that of a projected set is: a point beside satisfies it strictly.
                room, least = 0.0, 0.0 if moment.affine else least
            parts.append(value + room * value.abs() + least * unit)
        return torch.cat(parts, -1), change + used.detach().abs()

    @property
    def _widths(self) -> list[int]:
        """The number of bounds of every moment."""
        return [moment.bounds for moment in self.ambiguity.moments]

    def _excess(
        self, theta: Tensor, points: Float[Tensor, "batch point dim"], nominal: Pair | None
    ) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"], Bool[Tensor, "batch"]]:
        """Judge candidates: the smallest excess of every item, whose it is, and whether a given bound forbids it.

        An excess is counted relative to the size of outcomes, over all bounds the largest.
        """
        size = self._size(points, nominal)
        needs, units = self._needs(theta, points, size)
        sigma = torch.cat(self.ambiguity.sigmas(theta), 1)[:, None]
        # Where nothing is learnt that could give way, a bound is met or not.
        firm = torch.cat([torch.full((m.bounds,), not _gives_way(m)) for m in self.ambiguity.moments]).to(sigma.device)
        used = self.ambiguity.values(theta, points)
        tight = torch.cat([torch.full((m.bounds,), m.affine and m.signed) for m in self.ambiguity.moments])
        rounding = MET_REL * units * (firm | tight.to(firm.device))
        missed = torch.where(firm, used, needs) - sigma - rounding
        given = torch.cat([torch.full((m.bounds,), m.sigma is not None) for m in self.ambiguity.moments])
        equal = given.to(sigma.device) & ~firm & (used <= sigma)
        missed = missed.masked_fill(equal, -1.0)
        degrees = torch.cat([torch.full((m.bounds,), m.degree) for m in self.ambiguity.moments]).to(units)
        share = (missed / units.clamp(min=1e-300)).clamp(min=0.0) ** (1.0 / degrees)
        share = torch.where(missed > 0, share.clamp(min=1e-300), share).nan_to_num(nan=torch.inf)
        forbidden = (firm & (share > 0)).any(2)
        total = share.amax(2)
        total = torch.where(forbidden, total + FORBIDDEN, total)
        least, best = total.min(1)
        return least, best, forbidden.gather(1, best[:, None])[:, 0]

    def _moved(
        self, theta: Tensor, witness: Float[Tensor, "batch dim"], size: Float[Tensor, "batch"]
    ) -> Float[Tensor, "batch theta"]:
        """Return the parameters of sets that hold the unit mass at a witness."""
        ambiguity = self.ambiguity
        values, point = ambiguity.unpack(theta), witness[:, None]
        needs = self._needs(theta, point, size)[0][:, 0].split(self._widths, 1)
        used = ambiguity.values(theta, point)[:, 0].split(self._widths, 1)
        for i, moment in enumerate(ambiguity.moments):
            prefix = ambiguity.prefixes[i]
            if moment.sigma is None:
                name = prefix + "sigma"
                need = needs[i].unflatten(1, (moment.sides, -1)).amax(1)
                values[name] = at_least(values[name], need.reshape(values[name].shape))
            if isinstance(moment, Epigraph):
                lost = ~used[i].isfinite()[:, 0]
                leaves = ambiguity.leaf_values(theta, i)
                limits = moment.limits
                bound = values[prefix + "sigma"] if limits is None else torch.as_tensor(limits[0]).to(theta)
                for name, vector in _opened(moment, leaves, witness, bound.expand(len(theta)), size).items():
                    values[prefix + name] = torch.where(lost[:, None], vector, values[prefix + name])
            elif moment.sigma is not None and _gives_way(moment):
                limit = torch.as_tensor(moment.limits).to(theta)
                share = _share(used[i], (1.0 - ROOM_REL) * limit, moment.degree)
                share = share.unflatten(1, (moment.sides, -1)).amin(1)
                for name, shift in _shifted(moment, ambiguity.leaf_values(theta, i), witness, share).items():
                    whole = values[prefix + name]
                    values[prefix + name] = torch.where(shift.isfinite(), shift.reshape(whole.shape), whole)
        return ambiguity.pack(values)

    @untraced
    def _restricted(
        self, theta: Tensor, witness: Float[Tensor, "batch dim"], items: Bool[Tensor, "batch"], known: Told | None
    ) -> Float[Tensor, "batch dim"]:
        """Move witnesses of some items to the nearest support points that meet the bounds which were given."""
        own = [theta[:, where] for group in self._firm for name, where in group.columns.items() if name != "sigma"]
        data = self.ambiguity.y.support.data(known, theta)
        engine = default_engine().with_tolerance(PROJECTION_TOLERANCE)
        solution = engine.solve(self._program, torch.cat([witness, *own, data], 1)[items])
        moved = solution.variable("witness")[:, 0].to(witness)
        # Where no point meets the given bounds there is no witness, and the set stays empty.
        moved = torch.where(solution.ok.to(moved.device)[:, None], moved, witness[items])
        return witness.masked_scatter(items[:, None], moved)

    @cached_property
    def _firm(self) -> list[Any]:
        """The groups of moments whose bound was given and whose centre is not learnt."""
        return [g for g in self.ambiguity._groups if g.moment.sigma is not None and not _gives_way(g.moment)]

    @cached_property
    def _program(self) -> ConeProgram:
        """Compile the projection onto the support points that meet the given bounds."""
        y = cp.Variable((1, self.ambiguity.y.dim), name="witness")
        point = cp.Parameter(self.ambiguity.y.dim, name="location")
        constraints = self.ambiguity.y.support.members(y)
        for group in self._firm:
            g, more = group.moment.expression(y, group.leaves, root=True)
            limit = torch.as_tensor(group.moment.limits).numpy()
            room = 1.0 if group.moment.signed else 1.0 - ROOM_REL
            size = abs(room * limit) ** (1.0 / group.moment.degree)
            constraints += [*more, g[0] <= size * (1.0 - 2.0 * (limit < 0))]
        own = [group.leaves[name] for group in self._firm for name in group.columns if name != "sigma"]
        problem = cp.Problem(cp.Minimize(cp.norm(y[0] - point, 2)), constraints)
        return compile_program(problem, [point, *own, *self.ambiguity.y.support.parameters])


def _elementary(moment: Moment, leaves: Leaves) -> Iterator[tuple[Elementary, Mapping[str, Tensor]]]:
    """Go through the elementary members of a moment with their own parameters."""
    if isinstance(moment, Composite):
        for member, own in moment.each(leaves):
            yield from _elementary(member, own)
    elif isinstance(moment, Elementary):
        yield moment, leaves


def _centres(moment: Moment, leaves: Leaves) -> list[tuple[list[int], Tensor]]:
    """Return the centres of a moment's members, and the coordinates that they are of."""
    return [
        (member.image.coordinates.tolist(), own["mu"])
        for member, own in _elementary(moment, leaves)
        if isinstance(member.image, Coordinates)
    ]


def _averaged(centres: list[tuple[list[int], Tensor]], start: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Return the mean centre coordinate by coordinate; a start where no moment has a centre."""
    total, count = torch.zeros_like(start), start.new_zeros(start.shape[1])
    for coordinates, mu in centres:
        at = torch.tensor(coordinates, device=start.device)
        total = total.index_add(1, at, mu.expand(len(start), -1))
        count = count.index_add(0, at, torch.ones_like(at, dtype=start.dtype))
    return torch.where(count > 0, total / count.clamp(min=1.0), start)


def _gives_way(moment: Moment) -> bool:
    """Return whether a moment can be made to hold any point: its bound is learnt, or all of its centres are."""
    if moment.sigma is None:
        return True
    if bool((moment.sigma < 0).any()):
        return False
    return _movable(moment)


def _movable(moment: Moment) -> bool:
    """Return whether all members of a moment have a learnt centre and none falls below zero."""
    if isinstance(moment, Composite):
        return all(_movable(member) for member in moment.members)
    if not isinstance(moment, Elementary) or (moment.affine and moment.sides == 1):
        return False
    return moment.image.shift in moment.shapes


def _share(
    used: Float[Tensor, "batch bound"], limit: Float[Tensor, "bound"], degree: float
) -> Float[Tensor, "batch bound"]:
    """Return the share of deviations from the centre at which a bound is met."""
    over = used > limit
    ratio = limit / torch.where(over, used, torch.ones_like(used))
    # The root of zero has no derivative.
    root = torch.where(over & (ratio > 0), ratio, torch.ones_like(ratio)) ** (1.0 / degree)
    return torch.where(over, torch.where(ratio > 0, root, torch.zeros_like(root)), torch.ones_like(root))


def _shifted(
    moment: Moment, leaves: Leaves, witness: Float[Tensor, "batch dim"], share: Float[Tensor, "batch bound"]
) -> dict[str, Tensor]:
    """Return the centres at which deviations of a witness are a share of what they were."""
    if isinstance(moment, Composite):
        found: dict[str, Tensor] = {}
        for j, (member, own) in enumerate(moment.each(leaves)):
            found |= {f"{j}.{name}": value for name, value in _shifted(member, own, witness, share).items()}
        return found
    assert isinstance(moment, Elementary)
    image = moment.image
    aim = image.at(witness, leaves, shifted=False)
    shift = leaves[image.shift].reshape(-1, aim.shape[1])
    mine = share if share.shape[1] == 1 else share[:, torch.as_tensor(image.label, device=share.device)]
    return {image.shift: aim - mine * (aim - shift)}


def _opened(
    moment: Epigraph,
    leaves: Leaves,
    witness: Float[Tensor, "batch dim"],
    bound: Float[Tensor, "batch"],
    size: Float[Tensor, "batch"],
) -> dict[str, Tensor]:
    """Return the learnt vectors b_j for which (witness, bound, 0) lies in every cone: only their heads fall."""
    point = torch.cat([witness, bound[:, None], witness.new_zeros(len(witness), moment.lifted)], 1)
    found = {}
    for j in range(len(moment.A)):
        A, b = leaves[f"A{j}"], leaves[f"b{j}"]
        if f"b{j}" in moment.shapes:
            image = (A @ point[..., None])[..., 0]
            tail = (image[:, :-1] - b[:, :-1]).norm(dim=1)
            head = image[:, -1] - (1.0 + ROOM_REL) * tail - LEAST_REL * size
            found[f"b{j}"] = torch.cat([b[:, :-1], torch.minimum(b[:, -1], head)[:, None]], 1)
    return found
