"""Sets of all distributions on a support whose moments obey bounds: E g_i(y, α_i) ≤ σ_i."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, untraced
from drolayers.ambiguity.base import AmbiguitySet, Mass, Rows, SetDual
from drolayers.ambiguity.image import Coordinates, Directions
from drolayers.ambiguity.moment import Elementary, Moment
from drolayers.ambiguity.moment_witness import MomentWitness
from drolayers.ambiguity.moments import Variance
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, NormPower
from drolayers.ambiguity.parameters import FLOOR, Typical, deviation
from drolayers.ambiguity.terms import Charge, Multiplier, Term
from drolayers.ambiguity.theta import columns
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.products import kron
from drolayers.status import Status
from drolayers.support import Reals
from drolayers.uncertainty import Uncertain

EDGE = 1e-7
"""Relative room below which a set has no Slater point."""

ROOM = 1e-3
"""Relative room with which a point is seen to satisfy a bound."""


@final
class MomentSet(AmbiguitySet):
    """All distributions of ``y`` on its support with E g_i(y, α_i) ≤ σ_i for every moment.

    Listing the moments of two sets gives their intersection.

    Args:
        y: the uncertain vector.
        moments: the moment functions; every parameter that was not given a value is learnable.
    """

    bundles = True

    def __init__(self, y: Uncertain, moments: Sequence[Moment]) -> None:
        if not isinstance(y, Uncertain):
            raise ModelError(f"MomentSet needs a dro.Uncertain, not {type(y).__name__}.")
        listed = tuple(moments) if isinstance(moments, Iterable) else ()
        if not listed or not all(isinstance(m, Moment) for m in listed):
            raise ModelError("MomentSet needs a non-empty list of moments such as dro.moments.SquaredNorm().")
        self.y, self.moments = y, tuple(m.over(y.dim) for m in listed)
        self._build([f"{i}." for i in range(len(listed))])

    @classmethod
    def grouped(cls, y: Uncertain, size: int) -> MomentSet:
        """One squared deviation bound for every ``size`` coordinates in turn, with parameters ``mu`` and ``sigma``."""
        if not isinstance(size, int) or not 1 <= size <= y.dim:
            raise ModelError(f"Groups of {size} do not fit the {y.dim} coordinates of y.")
        made = cls(y, [Variance(size=size)])
        made._build([""])
        return made

    def _build(self, prefixes: list[str]) -> None:
        """Name the parameters, each moment's own and then its bound, and the features: they, and ρ_i = σ_i^(1/p)."""
        self.prefixes = prefixes
        shapes: dict[str, tuple[int, ...]] = {}
        for i, moment in enumerate(self.moments):
            shapes |= {self.prefixes[i] + name: shape for name, shape in moment.shapes.items()}
            if moment.sigma is None:
                shapes[self.prefixes[i] + "sigma"] = (moment.size,) if moment.vector else ()
            elif moment.sigma.size not in (1, moment.size):
                raise ModelError(f"Moment {i} has {moment.size} bounds, but sigma has {moment.sigma.size} values.")
            elif not moment.signed and np.any(moment.sigma < 0):
                raise ModelError(f"Moment {i} is nonnegative, so its bound cannot be {moment.sigma.tolist()}.")
        self.parameters = shapes
        self._groups = self._grouped()
        self.features = tuple(feature for group in self._groups for feature in group.features)

    def _grouped(self) -> list[_Group]:
        """Moments of one kind together, in the order of the first of them."""
        kinds: dict[Any, list[int]] = {}
        for i, moment in enumerate(self.moments):
            kinds.setdefault(i if (same := _kind(moment)) is None else same, []).append(i)
        ends = np.cumsum([int(np.prod(shape)) for shape in self.parameters.values()])
        where = {
            name: np.arange(end - int(np.prod(s)), end)
            for (name, s), end in zip(self.parameters.items(), ends, strict=True)
        }
        bounds = np.split(np.arange(sum(m.bounds for m in self.moments)), np.cumsum([m.bounds for m in self.moments]))
        groups = []
        for positions in kinds.values():
            first = self.moments[positions[0]]
            moment = first if len(positions) == 1 else _stacked([self.moments[i] for i in positions])
            learnt = [*moment.shapes, *(["sigma"] if moment.sigma is None else [])]
            columns = {name: np.concatenate([where[self.prefixes[i] + name] for i in positions]) for name in learnt}
            label = self.prefixes[positions[0]] + "{}" + (f" and {len(positions) - 1} more" if positions[1:] else "")
            groups.append(_Group.of(moment, label, columns, np.concatenate([bounds[i] for i in positions])))
        return groups

    def __repr__(self) -> str:
        return f"MomentSet({', '.join(f'{n}: {s}' for n, s in self.parameters.items())})"

    @property
    def chebyshev(self) -> bool:
        """Where one norm, or power of a norm, is bounded on all of space."""
        moment = self.moments[0]
        if not isinstance(moment, Elementary) or not isinstance(moment.outer, NormPower) or moment.outer.positive:
            return False
        return len(self.moments) == moment.bounds == 1 and isinstance(self.y.support, Reals)

    @property
    def centred(self) -> bool:
        """Where squared deviations alone are bounded on all of space, no coordinate's twice."""
        seen: list[int] = []
        for moment in self.moments:
            if not isinstance(moment, Elementary) or not isinstance(moment.image, Coordinates):
                return False
            if moment.outer != NormPower(2.0, 2.0):
                return False
            seen += moment.image.coordinates.tolist()
        return len(seen) == len(set(seen)) and isinstance(self.y.support, Reals)

    def links(self) -> list[Labels]:
        """Those of the moments."""
        return [link for moment in self.moments for link in moment.links]

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """One multiplier a bound, priced at ρ; where a single row sees it, the best one is put in by hand."""
        price: cp.Expression = cp.Constant(0.0)
        terms: list[Term] = []
        constraints: Constraints = []
        for group, lift in zip(self._groups, self._lifts(rows), strict=True):
            moment = group.moment
            multiplier: Multiplier | None = None
            if lift is not None or not (moment.eliminable and rows.layout.rows == rows.owners):
                beta: cp.Expression = cp.Variable((*rows.several, moment.bounds), nonneg=True, name="beta")
                if moment.sides == 2 and moment.sigma is not None and not moment.sigma.any():
                    # The two sides of an equation have one multiplier, of either sign.
                    shape = (*rows.several, moment.size)
                    beta = cp.hstack([cp.Variable(shape, name="beta"), np.zeros(shape)])
                price = price + beta @ group.price
                multiplier = _broadcast(beta) if rows.owner is None else _owned(beta, rows.owner)
                multiplier = multiplier if lift is None else _difference(multiplier, lift)
            more, others = moment.terms(rows.layout, group.leaves, Charge(multiplier, group.rho, lift is not None))
            terms, constraints = terms + more, constraints + others
        return SetDual(rows, price, terms, constraints)

    def outcomes(self, rows: Rows, share: bool = True) -> SetDual:
        """All of the support, with what the rows take off moments as multipliers; scaled, as in ``dual``."""
        terms: list[Term] = []
        constraints: Constraints = []
        for group, lift in zip(self._groups, self._lifts(rows), strict=True):
            if lift is not None:
                multiplier = _difference(None, lift)
                more, others = group.moment.terms(rows.layout, group.leaves, Charge(multiplier, group.rho, True))
                terms, constraints = terms + more, constraints + others
        return SetDual(rows, cp.Constant(0.0), terms, constraints)

    def lifted(self) -> list[Labels]:
        """Those of the moments."""
        return [part for group in self._groups for part in group.moment.components]

    @property
    def lifted_features(self) -> tuple[cp.Parameter, ...]:
        """Those of moments that have components."""
        return tuple(f for group in self._groups if group.moment.components for f in group.features)

    def lifted_values(
        self, features: Sequence[Tensor], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point rule component"]:
        """Those of the moments."""
        left = list(features)
        found = [y[..., :0]]
        for group in self._groups:
            if group.moment.components:
                values = group.lifted_values([left.pop(0) for _ in group.features], y)
                found.append(values.expand(max(len(values), len(y)), *values.shape[1:]))
        batch = max(len(part) for part in found)
        return torch.cat([part.expand(batch, *part.shape[1:]) for part in found], -1)[:, :, None]

    def _lifts(self, rows: Rows) -> list[Multiplier | None]:
        """What the rows add for the components of every group of moments; None where there are none."""
        found: list[Multiplier | None] = []
        first = 0
        for group in self._groups:
            parts = group.moment.components
            found.append(
                _component(rows, first, group.moment, self.y.dim) if rows.lifted is not None and parts else None
            )
            first += len(parts)
        return found

    def sigmas(self, theta: Float[Tensor, "batch theta"]) -> list[Float[Tensor, "batch bound"]]:
        """The bounds of every moment, learnt or given."""
        values, batch = self.unpack(theta), theta.shape[0]
        return [
            moment.spread(columns(values[self.prefixes[i] + "sigma"]))
            if moment.sigma is None
            else torch.as_tensor(moment.limits).to(theta).expand(batch, -1)
            for i, moment in enumerate(self.moments)
        ]

    def leaf_values(self, theta: Float[Tensor, "batch theta"], position: int) -> dict[str, Tensor]:
        """A moment's parameters as tensors ``(batch, *shape)``, learnt or given."""
        moment = self.moments[position]
        given = {name: value[None] for name, value in moment.given(theta).items()}
        if not moment.shapes:
            return given
        values = self.unpack(theta)
        return given | {name: values[self.prefixes[position] + name] for name in moment.shapes}

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Parameters as they are, bounds as their roots."""
        self.check(theta)
        theta = theta.double()
        parts = []
        for group in self._groups:
            parts += group.values(theta)
        return torch.cat(parts, 1) if parts else theta.new_zeros(theta.shape[0], 0)

    def values(self, theta: Float[Tensor, "batch theta"], y: Tensor, recession: bool = False) -> Tensor:
        """All moments at points ``(batch, point, dim)``: ``(batch, point, bound)``; or their recession functions."""
        found = []
        for i, moment in enumerate(self.moments):
            leaves = {name: value.unsqueeze(1) for name, value in self.leaf_values(theta, i).items()}
            found.append(moment.value(y, leaves, recession))
        return torch.cat(found, -1)

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """The moments' own parameters, and the mean of each moment there as its bound."""
        y = self.points(y)
        found: dict[str, Typical] = {}
        for i, moment in enumerate(self.moments):
            own = moment.typical(y)
            found |= {self.prefixes[i] + name: value for name, value in own.items()}
            if moment.sigma is None:
                values = moment.value(y, moment.given(y) | {name: value.centre for name, value in own.items()})
                values = values if moment.sides == 1 else values.abs()[:, : moment.size]
                mean = values.mean(0).reshape(self.parameters[self.prefixes[i] + "sigma"])
                least = 1e-12 * float(y.abs().max()) ** moment.degree or 1e-12
                spread = deviation(values).reshape(mean.shape) if moment.signed else mean.abs().clamp(min=least)
                found[self.prefixes[i] + "sigma"] = Typical(mean, spread, positive=not moment.signed)
        return {name: found[name] for name in self.parameters}

    def aims(self, y: Float[Tensor, "batch dim"]) -> dict[str, Float[Tensor, "batch ..."]]:
        """The images of outcomes, whose shifts are the locations; where an image is learnt too, it has no one shift."""
        found, y = {}, y.double()
        for prefix, moment in zip(self.prefixes, self.moments, strict=True):
            if isinstance(moment, Elementary) and [*moment.shapes] == [moment.image.shift]:
                ((name, shape),) = moment.shapes.items()
                u = moment.image.at(y, moment.given(y) | {name: y.new_zeros(shape)}, shifted=False)
                found[prefix + name] = u.reshape(len(y), *shape)
        return found

    @cached_property
    def _powers(self) -> dict[int, float]:
        """The degree of every moment whose bound is a size that is learnt."""
        return {i: m.degree for i, m in enumerate(self.moments) if m.sigma is None and not m.signed}

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """Every learnt bound of a nonnegative moment of degree p times factorᵖ, each about its own centre.

        So deviations from the centre may be ``factor`` times as large. Sets grow with the factor, one inside the other.
        Bounds that were given stay as they are, and so do those that may be negative (``Linear``): they have no centre.
        Where degrees are mixed in one moment, its bound grows with the factor itself.
        """
        if not self._powers:
            raise ModelError(f"{self!r} has no size to scale: let the bound of a nonnegative moment be learnt.")
        return self.grown(theta, factor, {self.prefixes[i] + "sigma": degree for i, degree in self._powers.items()})

    def scores_anywhere(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch"]:
        """The smallest t for which the set, scaled by t, holds the distribution that is certain of y; differentiable.

        That is max (g_i(y)/σ_i)^(1/p_i), and infinite where a bound that does not scale forbids it. For a box or an
        ellipsoid of the mean, ``Mean(sigma=None)`` or ``Norm(2, A=...)``, and a cost that is affine in y the worst case
        of the set scaled by t is that over the outcomes of that box or ellipsoid itself, as for ``dro.Outcomes``; for
        other costs it is more cautious.
        """
        theta, y = (part.double() for part in self.beside(theta, y))
        values = self.values(theta, y[:, None])[:, 0].split([m.bounds for m in self.moments], 1)
        found = []
        for i, (moment, value, sigma) in enumerate(zip(self.moments, values, self.sigmas(theta), strict=True)):
            if i in self._powers:
                share = value.clamp(min=FLOOR) / sigma.clamp(min=FLOOR)
                found.append(share ** (1.0 / moment.degree))
            else:
                room = 1e-9 * torch.maximum(value.abs(), sigma.abs()).detach()
                found.append(torch.where(value <= sigma + room, 0.0, torch.inf))
        return torch.cat(found, 1).amax(1)

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """A bound of a nonnegative function at zero or below; an equation is none."""
        pairs = zip(self.sigmas(theta), self.moments, strict=True)
        low = [s < 0 if m.affine else s <= FLOOR for s, m in pairs if not m.signed]
        return torch.cat(low, 1).any(1) if low else torch.zeros(theta.shape[0], dtype=torch.bool, device=theta.device)

    def settled(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """All mass at the location of some moment, or at a witness, satisfies all bounds with room to spare."""
        theta = theta.detach().double()
        return self._at_locations(theta, known) | self._witness.holds(theta, nominal, known)

    def _at_locations(self, theta: Float[Tensor, "batch theta"], known: Told | None) -> Bool[Tensor, "batch"]:
        """The same for all mass at the location of some moment, however small the bounds are."""
        offsets = [v for i, m in enumerate(self.moments) for v in m.offsets(self.leaf_values(theta, i))]
        points = [v.expand(len(theta), -1) for v in offsets if v.shape[1:] == (self.y.dim,)]
        if not points:
            return theta.new_zeros(len(theta), dtype=torch.bool)
        where = torch.stack(points, 1)
        used, bounds = self.values(theta, where), torch.cat(self.sigmas(theta), 1)[:, None]
        inside = (bounds - used >= ROOM * (bounds.abs() + used.abs())) & (bounds != 0)
        return (inside.all(2) & (self.y.support.violation(where, known) <= 0)).any(1)

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Raise bounds to what the unit mass at a support point needs: see :class:`MomentWitness`."""
        return self._witness.ensure(theta, nominal, known)

    @cached_property
    def _witness(self) -> MomentWitness:
        """What finds witnesses."""
        return MomentWitness(self)

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """Min over y ∈ Ξ of max (ρ_i(y) - ρ_i)/scale_i: by Jensen, a set that holds a distribution holds its mean.

        Here ρ_i(y) = g_i(y)^(1/p) and ρ_i = σ_i^(1/p), so that everything scales with the data.
        """
        self.check(theta)
        theta = theta.detach().double().cpu()
        bounds = [s.sign() * s.abs() ** (1.0 / m.degree) for s, m in zip(self.sigmas(theta), self.moments, strict=True)]
        rho = torch.cat(bounds, 1)
        offsets = [columns(v) for i, m in enumerate(self.moments) for v in m.offsets(self.leaf_values(theta, i))]
        size = torch.cat([v.expand(len(theta), -1) for v in (*offsets, rho)], 1).abs().amax(1, keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
        # Relative to the bound; to what a solver can see where the bound is next to nothing beside the data.
        scale = torch.maximum(rho.abs() / size, torch.full_like(rho, 1e-2))
        data = self.y.support.data(known, theta)
        excess = self._excess(theta, rho, scale, size, data)
        # Affine bounds may be tight (two of them make an equality): only the others need room to spare.
        affine = torch.cat([torch.full((m.bounds,), m.affine) for m in self.moments])
        tight = (excess.abs() <= EDGE) & affine.any() & ~affine.all()
        if bool(tight.any()):
            room = torch.where(affine, rho + EDGE * scale * size, rho)
            unscaled = torch.where(affine, 0.0, scale)
            again = self._excess(theta[tight], room[tight], unscaled[tight], size[tight], data[tight])
            excess[tight] = torch.where(again < -EDGE, again, excess[tight])
        # Beside bounds of 1e-100 a solver sees less than one who looks at the centre.
        return torch.where(self.settled(theta, None, known) & ~(excess <= 0), 0.0, excess)

    @untraced
    def _excess(self, theta: Tensor, rho: Tensor, scale: Tensor, size: Tensor, data: Tensor) -> Float[Tensor, "batch"]:
        """The smallest v with ρ_i(y) ≤ ρ_i + v·scale_i·size for some y of the support; infinite where that is empty."""
        engine = default_engine().with_tolerance(1e-11)
        own = [theta[:, where] for group in self._groups for name, where in group.columns.items() if name != "sigma"]
        found = engine.solve(self._emptiness_program, torch.cat([*own, rho, scale, size, data], 1))
        return (found.objective / size[:, 0]).masked_fill(found.status == int(Status.INFEASIBLE), torch.inf)

    @cached_property
    def _emptiness_program(self) -> ConeProgram:
        """The program of ``emptiness``, compiled when first needed."""
        y = cp.Variable((1, self.y.dim))
        excess = cp.Variable(1)
        total = sum(m.bounds for m in self.moments)
        bounds, scale = cp.Parameter(total, name="bounds"), cp.Parameter(total, nonneg=True, name="scale")
        size = cp.Parameter(1, nonneg=True, name="size")
        room, constraints = bounds + kron(scale, excess), self.y.support.members(y)
        for group in self._groups:
            g, more = group.moment.expression(y, group.leaves, root=True)
            constraints += [*more, g[0] <= room[group.bounds]]
        own = [group.leaves[name] for group in self._groups for name in group.columns if name != "sigma"]
        # Minus one is room to spare: without a floor a Linear bound alone would let the excess fall for ever.
        problem = cp.Problem(cp.Minimize(excess[0]), [*constraints, excess >= -size])
        return compile_program(problem, [*own, bounds, scale, size, *self.y.support.parameters])

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """Σ p g(y) + Σ g^∞(d), and σ."""
        theta = theta.double()
        # An atom without mass may lie anywhere, even where a moment overflows.
        weighted = mass.probabilities[..., None] * self.values(theta, mass.atoms)
        used = torch.where(mass.probabilities[..., None] > 0, weighted, torch.zeros_like(weighted)).sum(1)
        escaped = self.values(theta, mass.directions, recession=True).sum(1)
        return used + escaped, torch.cat(self.sigmas(theta), 1)


@dataclass(frozen=True, eq=False)
class _Group:
    """Moments that are dualised together, their parameters stacked.

    Args:
        moment: they, as one.
        leaves: the parameters of all, apart from the bounds.
        scales: the moment's ``scales`` of their bounds.
        features: those of the leaves and ``scales`` that are learnt.
        columns: where each of them stands in θ, a bound by the name ``sigma``.
        bounds: the numbers of their bounds among those of the set.
        given: the parameters whose values were given.
    """

    moment: Moment
    leaves: dict[str, Any]
    scales: cp.Expression
    features: tuple[cp.Parameter, ...]
    columns: dict[str, Labels]
    bounds: Labels
    given: dict[str, Tensor]

    @property
    def price(self) -> cp.Expression:
        """Of the multipliers."""
        return self.scales[: self.moment.bounds]

    @property
    def rho(self) -> cp.Expression:
        """The size of deviations, and what else the moment's terms are scaled by."""
        return self.scales[self.moment.bounds :] if self.moment.width > self.moment.bounds else self.scales

    def values(self, theta: Tensor) -> list[Tensor]:
        """The features of a batch."""
        batch, learnt = theta.shape[0], {name: theta[:, where] for name, where in self.columns.items()}
        parts = [value for name, value in learnt.items() if name != "sigma"]
        if isinstance(self.scales, cp.Parameter):
            leaves = {n: v.reshape(batch, *self.leaves[n].shape) for n, v in learnt.items() if n != "sigma"}
            given = {name: value.to(theta) for name, value in self.given.items()}
            sigma = self.moment.spread(learnt["sigma"]) if "sigma" in learnt else given["sigma"]
            parts.append(self.moment.scales(sigma, {**given, **leaves}).expand(batch, -1))
        return parts

    def lifted_values(self, features: list[Tensor], y: Tensor) -> Tensor:
        """The lifted components at outcomes ``(batch, point, dim)``, in the units of their multipliers."""
        learnt = [name for name in self.columns if name != "sigma"]
        leaves = {name: value.to(y) for name, value in self.given.items()} | dict(zip(learnt, features, strict=False))
        scales = features[-1] if isinstance(self.scales, cp.Parameter) else self.moment.scales(leaves["sigma"], leaves)
        own = {name: value.unsqueeze(1) for name, value in leaves.items() if name != "sigma"}
        units = self.moment.component_units(scales, leaves)
        return self.moment.component_values(y, own) / units[:, None]

    @classmethod
    def of(cls, moment: Moment, label: str, columns: dict[str, Labels], bounds: Labels) -> _Group:
        """With fresh parameters, named by a label."""
        learnt = {name: cp.Parameter(shape, name=label.format(name)) for name, shape in moment.shapes.items()}
        given = {name: cp.Constant(value) for name, value in moment.constants.items()}
        numbers = {name: torch.as_tensor(np.array(v))[None] for name, v in moment.constants.items()}
        numbers["sigma"] = torch.as_tensor(np.ones(moment.bounds) if moment.sigma is None else moment.limits)[None]
        scales: cp.Expression
        if moment.sigma is None or (moment.mixed and learnt):
            scales = cp.Parameter(moment.width, name=label.format("rho"), nonneg=not moment.signed)
            return cls(moment, given | learnt, scales, (*learnt.values(), scales), columns, bounds, numbers)
        scales = cp.Constant(moment.scales(numbers["sigma"], numbers)[0].numpy())
        return cls(moment, given | learnt, scales, tuple(learnt.values()), columns, bounds, numbers)


def _broadcast(beta: cp.Expression) -> Multiplier:
    """A multiplier that all rows share."""

    def multiplier(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        return beta[bound] if beta.size > 1 else cp.promote(beta[0], (row.size,))

    return multiplier


def _owned(beta: cp.Expression, owner: Labels) -> Multiplier:
    """Multipliers ``(owner, bound)`` that the rows of one owner share."""
    bounds = beta.shape[1]

    def multiplier(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        return cp.vec(beta, order="C")[owner[row] * bounds + (bound if bounds > 1 else 0)]

    return multiplier


def _difference(beta: Multiplier | None, lift: Multiplier) -> Multiplier:
    """β, or nothing, less what rows add for a component."""

    def multiplier(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        taken = lift(row, bound, coordinate)
        return -taken if beta is None else beta(row, bound, coordinate) - taken

    return multiplier


def _component(rows: Rows, first: int, moment: Moment, dim: int) -> Multiplier:
    """What rows add for the components of a moment: one a coordinate, or one a bound."""
    parts = moment.components
    place = np.zeros(dim, dtype=np.int64)
    if moment.separate:
        place[np.concatenate(parts)] = np.arange(len(parts))

    def multiplier(row: Labels, bound: Labels, coordinate: Labels) -> cp.Expression:
        assert rows.lifted is not None
        return rows.lifted(row, first + (place[coordinate] if moment.separate else bound))

    return multiplier


def _kind(moment: Moment) -> Hashable | None:
    """What moments along one direction must have in common to be taken together."""
    if not (isinstance(moment, Elementary) and isinstance(moment.image, Directions)):
        return None
    return moment.outer, moment.factor, moment.image.kind, moment.sigma is None


def _stacked(moments: Sequence[Moment]) -> Moment:
    """Moments of one kind as one, each with its own direction and bound."""
    members = [moment for moment in moments if isinstance(moment, Elementary)]
    sigma = [moment.sigma for moment in members if moment.sigma is not None]
    images = [moment.image for moment in members if isinstance(moment.image, Directions)]
    return replace(members[0], image=Directions.stacked(images), sigma=np.concatenate(sigma) if sigma else None)
