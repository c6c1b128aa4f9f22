"""Balls of distributions around weighted atoms, with a learnable radius, and perhaps a learnable metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, untraced, whole
from drolayers.ambiguity.base import Along, AmbiguitySet, Mass, Rows, SetDual, at_atoms, largest, scenarios
from drolayers.ambiguity.image import whitening
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign, Still
from drolayers.ambiguity.parameters import Learn, Typical, deviation
from drolayers.ambiguity.terms import Contribution, OuterTerm, Parts, Term, to_rows
from drolayers.ambiguity.transport import Transport, Ways
from drolayers.ambiguity.witness import ROOM_REL, at_least
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.products import kron, times
from drolayers.status import Status
from drolayers.support import Box, Layout, Reals
from drolayers.uncertainty import Uncertain

FLOOR = 1e-12
"""A radius is raised to this, and to this share of atoms that are smaller than one: its multiplier stays bounded."""

NONE = 1e-100
"""The same where all atoms are zero, and a radius has nothing to be compared with."""

STRAY = 1e-6
"""Distance, relative to the atoms, by which mass may be off where it may not move at all."""


@final
class Wasserstein(AmbiguitySet):
    """All distributions on the support within ``radius`` of a nominal distribution, in Wasserstein distance.

    Order 1 bounds the mean length ``‖A(y - y_n)‖`` of the ways on which mass is moved, order 2 the root of its mean
    square, and order ∞ every one: mass stays in a ball around the atom that it comes from.

    The nominal atoms and weights travel beside θ: ``layer(theta, nominal(z))``, and a model may predict them, since
    gradients reach them. In the dual, atom n is a scenario of weight ω_n, and a scenario's rows are multiplied by ω_n,
    so that a zero weight leaves nothing undetermined; or rather by Nω_n, whose mean is one, so that each of many atoms
    is no smaller. Of a mean of squares under order 2 a weight of exactly zero has no derivative: it is padding.

    A learnt metric and the radius have one scale in common, since ``‖cA(y - y_n)‖ <= cε`` says the same for every
    c > 0. It is fixed: A is divided by the root of the mean square of its columns' lengths, so that the radius is
    counted in units of y. A given metric is taken as it is. Where A is singular, ways along which it vanishes cost
    nothing, and a cost that grows along one is INFINITE_WORST_CASE unless the support stops it.

    Args:
        y: the uncertain vector.
        atoms: number of atoms of the nominal distribution.
        norm: 1, 2 or inf.
        order: 1, 2 or inf.
        metric: A, a matrix or ``dro.Learn(m, n)``, with a column for every coordinate that may move; the identity
            unless given.
        fixed: coordinates that may not move (row by row where y is a matrix): contexts or labels that are known to be
            right.
    """

    needs_nominal = bundles = True

    def __init__(
        self,
        y: Uncertain,
        atoms: int,
        norm: float = 1,
        order: float = 1,
        metric: ArrayLike | Learn | None = None,
        fixed: Sequence[int] = (),
    ) -> None:
        if not isinstance(y, Uncertain):
            raise ModelError(f"Wasserstein needs a dro.Uncertain, not {type(y).__name__}.")
        self.transport = Transport.of(y.dim, norm, order, metric, fixed)
        atoms = whole("The number of atoms of Wasserstein", atoms)
        self.y, self.atoms, self.norm, self.order = y, atoms, self.transport.norm, self.transport.order
        given, size = self.transport.metric, self.transport.components
        self.escapes = not np.isinf(self.order)
        self.local = not self.escapes or self.transport.fixed.size > 0
        # Rules respond to distances of coordinates as they are, and that have a price; then there is one for every
        # atom: which one an outcome came from never matters to who sees all of it.
        self._liftable = self.escapes and given is None and not self.transport.fixed.size
        self.own_rules = atoms if self._liftable else 1
        self.parameters = {"radius": (), "metric": given.shape} if isinstance(given, Learn) else {"radius": ()}
        self.radius = cp.Parameter(1, nonneg=True, name="radius")
        self.weights = cp.Parameter(atoms, nonneg=True, name="weights")
        self.centres = cp.Parameter((atoms, y.dim), name="atoms")
        # Products of parameters must be parameters of their own for the program to be affine in them.
        self.weighted_centres = cp.Parameter((atoms, y.dim), name="weighted atoms")
        self.weighted_radius = cp.Parameter(atoms, nonneg=True, name="weighted radius")
        self.price = self.radius
        self.matrix = cp.Parameter(given.shape, name="metric") if isinstance(given, Learn) else None
        self.images = self.centres if given is None else cp.Parameter((atoms, size), name="images of atoms")
        # √(Nω_n), alone and times the atoms: of order 2, for means of squares.
        self.roots, self.rooted_centres = cp.Parameter(atoms, nonneg=True), cp.Parameter((atoms, y.dim))
        self.features = (self.radius, self.weights, self.centres, self.weighted_centres, self.weighted_radius)
        self.features += (self.roots, self.rooted_centres) if self.order == 2 else ()
        self.features += () if given is None else (self.images,)
        self.features += () if self.matrix is None else (self.matrix,)

    def __repr__(self) -> str:
        given, still = self.transport.metric, self.transport.fixed.tolist()
        told = "" if given is None else f", metric={'Learn' if isinstance(given, Learn) else 'matrix'}{given.shape}"
        told += f", fixed={still}" if still else ""
        return f"Wasserstein(atoms={self.atoms}, norm={self.norm:g}, order={self.order:g}{told})"

    def priced(self) -> Wasserstein:
        """The same without a radius: instead of its price stands the multiplier of distance^order itself.

        In place of the radius stands a size of the data, in which the multiplier is of a size that solvers like.

        Raises:
            ModelError: there is no such multiplier, or a metric is learnt, which takes a part of θ.
        """
        transport = self.transport
        if not self.escapes or isinstance(transport.metric, Learn):
            raise ModelError(
                f"dro.fragility needs a dro.Wasserstein of order 1 or 2 with a metric that is given, not {self}: else "
                "its distances have no price."
            )
        twin = Wasserstein(self.y, self.atoms, self.norm, self.order, transport.metric, transport.fixed.tolist())
        twin.parameters, twin.price = {}, cp.Parameter(1, nonneg=True, name="price")
        twin.features = (*twin.features, twin.price)
        return twin

    def links(self) -> list[Labels]:
        """None for (order 1, norm 1), (order 2, norm 2) and (order ∞, norm ∞), unless by a metric."""
        return self.transport.links()

    def outcome_links(self) -> list[Labels]:
        """Those of the balls."""
        return [] if self.escapes else self.links()

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """Every row once for every atom, and one multiplier for the distance; none under order ∞."""
        beta = cp.Variable(rows.owners, nonneg=True, name="beta") if self.escapes else None
        price = cp.Constant(0.0)
        if beta is not None:
            price = self.price[0] * (beta[0] if rows.owner is None else beta)
        if _responds(rows):
            expanded, term, constraints = self._ruled(rows, beta)
            return SetDual(expanded, price, [term], constraints, 1.0 / self.atoms)
        terms = self._terms(rows, beta, share, moves=True)
        return SetDual(scenarios(rows, self.weights), price, terms, [], 1.0 / self.atoms)

    def outcomes(self, rows: Rows, share: bool = True) -> SetDual:
        """All of the support under order 1 and 2; where the set is local, what each atom of positive weight reaches.

        Where rules respond to distances, row by row under multipliers of their own.
        """
        terms, constraints = list[Term](), Constraints()
        if _responds(rows):
            expanded, term, constraints = self._ruled(rows, None)
            terms = [term]
        elif self.local:
            expanded, terms = scenarios(rows, self.weights), self._terms(rows, None, share, moves=not self.escapes)
        else:
            return super().outcomes(rows, share)
        nothing, combined = cp.Constant(0.0), largest(self.weights, rows.several)
        return SetDual(expanded, nothing, terms, constraints, 1.0 / self.atoms, self.atoms, combined)

    def _ruled(self, rows: Rows, beta: cp.Variable | None) -> tuple[Rows, Term, Constraints]:
        """The rows of all atoms and their distances, times a multiplier less what the rows themselves add for them."""
        assert self._liftable
        # Centres multiply slopes once more: products of parameters are not DPP, so they are named.
        expanded = scenarios(rows, self.weights)
        named = cp.Variable(expanded.slope.shape)
        constraints: Constraints = [named == expanded.slope]
        expanded = replace(expanded, slope=named)
        layout, outer = expanded.layout, self.transport.outer
        scenario = np.arange(layout.row.size) // max(1, layout.row.size // self.atoms)
        split = rows.lifted is not None and outer.additive
        row = layout.row if split else np.arange(layout.rows)
        zeros = np.zeros_like(row)
        multiplier = cp.Constant(np.zeros(row.size)) if beta is None else cp.promote(beta[0], (row.size,))
        if rows.lifted is not None:
            multiplier = multiplier - rows.lifted(row, layout.coordinate if split else zeros)
        term = OuterTerm(
            outer,
            np.arange(layout.row.size),
            np.arange(row.size) if split else layout.row,
            Parts(row, zeros, zeros),
            cp.vec(self.centres, order="C")[scenario * self.y.dim + layout.coordinate],
            None,
            times(self.weights[row // (layout.rows // self.atoms)], multiplier),
            cp.promote(self.radius[0], (row.size,)) if self.order == 2 else None,
        )
        return expanded, term, constraints

    def lifted(self) -> list[Labels]:
        """The distance from the atom, by coordinate where it is additive."""
        if not self._liftable:
            return []
        return list(np.arange(self.y.dim)[:, None]) if self.transport.outer.additive else [np.arange(self.y.dim)]

    @property
    def lifted_features(self) -> tuple[cp.Parameter, ...]:
        """Weights, atoms and radius."""
        return (self.weights, self.centres, self.radius) if self._liftable else ()

    def lifted_values(
        self, features: Sequence[Tensor], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point rule component"]:
        """Distances in units of radius^(p-1)."""
        if not self._liftable:
            return super().lifted_values(features, y)
        _, centres, radius = features
        moved, outer = y[:, :, None] - centres[:, None], self.transport.outer
        label = np.arange(self.y.dim) if outer.additive else np.zeros(self.y.dim, dtype=np.int64)
        return outer.value(moved, label, int(label.max()) + 1) / radius[:, None, None] ** (self.order - 1.0)

    def _terms(self, rows: Rows, beta: cp.Variable | None, share: bool, moves: bool) -> list[Term]:
        """What ways cost in the rows of all scenarios, or without β how far they lead; nothing unless it ``moves``.

        Where that is the same for all scenarios, and may be said once, it is.
        """
        if share and isinstance(self.y.support, Reals):
            return [_SharedTerm(self, rows, beta, moves)]
        each, terms = rows.layout.rows, list[Term]()
        layout = scenarios(rows, self.weights).layout

        def centres(image: cp.Parameter, row: Labels, number: Labels) -> cp.Expression:
            return cp.vec(image, order="C")[row // each * image.shape[1] + number]

        if moves:
            ways = self.transport.ways(layout, self.matrix)
            parts, scale = ways.parts, None
            if beta is not None:
                scale = kron(self.weights, _of_rows(beta, rows, np.arange(each)))
                scale = scale if parts.count == layout.rows else scale[parts.row]
            rho = cp.promote(self.radius[0], (parts.count,)) if self.order != 1 else None
            shift = centres(self.images, ways.row, ways.number)
            outer = self.transport.outer
            terms.append(OuterTerm(outer, ways.entry, ways.part, parts, shift, ways.transpose, scale, rho))
        still = np.flatnonzero(np.isin(layout.coordinate, self.transport.fixed))
        if still.size:
            row, nothing = layout.row[still], np.zeros_like(still)
            shift = centres(self.centres, row, layout.coordinate[still])
            parts = Parts(row, nothing, nothing)
            terms.append(OuterTerm(Still(), still, np.arange(still.size), parts, shift, None, None, None))
        return terms

    def along(self, rows: Rows) -> Along | None:
        """On all of space a ball of the same order, of radius ε‖τ‖_* with Aᵀτ = a; not known for other supports."""
        if not isinstance(self.y.support, Reals):
            return None

        def at(weights: cp.Parameter, weighted: cp.Parameter) -> cp.Expression:
            expanded = scenarios(rows, weights)
            return at_atoms(rows.slope, expanded.layout, weighted) + expanded.offset

        radius, reach, roots, constraints = None, None, None, Constraints()
        if rows.layout.rows == 1:
            ways, tau, ties, sign = self._split(rows)
            least, more = self.transport.outer.gauge(tau, ways.part, ways.parts.count, sign)
            length = cp.Variable(1)
            constraints = [*ties, *more, length >= least]
            radius, reach = self.radius[0] * length[0], kron(self.weighted_radius, length)
            roots = at(self.roots, self.rooted_centres) if self.order == 2 else None
        values = at(self.weights, self.weighted_centres)
        return Along(values, self.weights, 1.0 / self.atoms, self.order, radius, reach, roots, constraints)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Radius, weights relative to their mean, atoms and their products; with a metric their images and A."""
        assert nominal is not None
        atoms, weights = self._placed(nominal), self.atoms * nominal.weights
        matrix = self._matrix(theta)
        radius = _size(atoms.detach())
        if self.parameters:
            radius = torch.maximum(theta[:, :1].double(), self._least(nominal, matrix))
        weighted = weights[..., None] * atoms
        parts = [radius, weights, atoms.flatten(1), weighted.flatten(1), weights * radius]
        if self.order == 2:
            # An atom without weight is padding: there the root has no derivative.
            there = weights > 0
            roots = torch.where(there, weights, torch.ones_like(weights)).sqrt() * there
            parts += [roots, (roots[..., None] * atoms).flatten(1)]
        if matrix is not None:
            parts.append(self.transport.image(atoms, matrix).flatten(1))
        if self.matrix is not None:
            assert matrix is not None
            parts.append(matrix.flatten(1))
        return torch.cat(parts if self.parameters else [*parts, radius ** (1 - self.order)], 1)

    def _split(self, rows: Rows) -> tuple[Ways, cp.Expression, Constraints, Sign]:
        """On all of space: τ with Aᵀτ = a for every row, and its known signs."""
        ways, slope = self.transport.ways(rows.layout, self.matrix), rows.slope
        whole = np.array_equal(ways.entry, np.arange(rows.layout.row.size))
        moving = slope if whole else slope[ways.entry]
        if ways.transpose is None:
            return ways, moving, [], None if rows.sign is None else rows.sign[ways.entry]
        tau = cp.Variable(ways.part.size)
        return ways, tau, [ways.transpose(tau) == moving], None

    def _placed(self, nominal: Nominal) -> Float[Tensor, "batch atom dim"]:
        """Atoms, padding outside of the support at the heaviest one: where nothing is near, nothing can be said."""
        if not self.local:
            return nominal.atoms
        idle = nominal.weights == 0
        if not bool(idle.any()):
            return nominal.atoms
        support = self.y.support
        if not support.parameters:
            idle = idle & (support.violation(nominal.atoms.detach()) > 0)
        heaviest = nominal.weights.argmax(1)[:, None, None].expand(-1, 1, self.y.dim)
        return torch.where(idle[..., None], nominal.atoms.gather(1, heaviest), nominal.atoms)

    def _least(self, nominal: Nominal, matrix: Float[Tensor, "batch row column"] | None) -> Float[Tensor, "batch 1"]:
        """To what radii are raised, in the units of the metric; padding may lie anywhere."""
        atoms = nominal.atoms.detach()
        heaviest = nominal.weights.argmax(1)[:, None, None].expand(-1, 1, self.y.dim)
        atoms = torch.where((nominal.weights > 0)[..., None], atoms, atoms.gather(1, heaviest))
        # Never more than as a number: one far atom, or one stiff coordinate, says nothing of the others.
        least = FLOOR * self._measured(_size(atoms)[:, 0], matrix)[:, None].clamp(max=1.0)
        return least.masked_fill((atoms == 0).all(2).all(1, keepdim=True), NONE)

    def _measured(self, size: Float[Tensor, "batch"], matrix: Tensor | None) -> Float[Tensor, "batch"]:
        """How long ways of a size are in the metric."""
        if matrix is None:
            return size
        return size * matrix.detach().to(size).square().sum((1, 2)).div(self.transport.moving.size).sqrt()

    def _matrix(self, theta: Float[Tensor, "batch theta"]) -> Float[Tensor, "batch row column"] | None:
        """A of every item."""
        return self.transport.matrix(self.unpack(theta).get("metric"))

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """A tenth of the mean distance from the mean as radius; the metric that whitens y."""
        y = self.points(y)
        given, moving = self.transport.metric, y[:, self.transport.moving]
        learnt = whitening(moving, *given.shape) if isinstance(given, Learn) else None
        matrix = self.transport.matrix(None if learnt is None else learnt[None])
        distance = self.transport.length((y - y.mean(0))[None], matrix).mean()
        distance = distance.clamp(min=1e-12 * float(y.abs().max()) or 1e-12)
        found = {"radius": Typical(0.1 * distance, 0.1 * distance, positive=True, meaningful=False)}
        if learnt is not None:
            assert matrix is not None
            size = matrix.norm() / learnt.norm()
            unit = size * (1.0 / deviation(moving)).expand_as(learnt) / moving.shape[1]
            found["metric"] = Typical(matrix[0], unit, meaningful=False)
        return found

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """The radius: mass may go so many times as far."""
        return self.grown(theta, factor, {"radius": 1.0})

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """A radius of zero or below; where the set is local, an atom outside of the support."""
        if nominal is None:
            return theta[:, 0] <= 0
        found = theta[:, 0].double() <= self._least(nominal, self._matrix(theta)).to(theta.device)[:, 0]
        if not self.local or isinstance(self.y.support, Reals):
            return found
        outside = (self.y.support.violation(nominal.atoms.detach(), known) > 0) & (nominal.weights > 0)
        return found | outside.any(1).to(found.device)

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """The least radius that will do against the radius, relative to the radius."""
        self.check(theta)
        theta, around = theta.detach(), self.around(nominal, theta)
        around = Nominal(around.atoms.detach(), around.weights.detach())
        radius, needed, matrix = theta.double()[:, 0], self.needed(theta, around, known), self._matrix(theta)
        # Relative to the radius; to what a solver can see where that is next to nothing beside the distances.
        size = self._measured(around.atoms.abs().amax((1, 2)), matrix)
        scale = torch.maximum(radius.abs(), 1e-2 * size)
        return torch.where(needed > 0, (needed - radius) / scale, -radius.sign())

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Raise the radius to the distance of the nominal distribution from the support, and some room."""
        double, around = theta.double(), self.around(nominal, theta)
        least = 2.0 * self._least(around, self._matrix(double)).to(double)[:, 0]
        radius = at_least(double[:, 0], (1.0 + ROOM_REL) * self.needed(double, around, known).to(double) + least)
        return torch.cat([radius[:, None], double[:, 1:]], 1).to(theta.dtype)

    def needed(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """The least radius whose ball is not empty, (Σ ω_n dist(y_n, Ξ)^p)^(1/p) or the largest of these distances.

        Differentiable; infinite where the support is empty, or coordinates that may not move lie outside.
        """
        there = nominal.weights > 0
        distance = self._distances(theta, nominal, there, known)
        if np.isinf(self.order):
            return distance.amax(1)
        moved = torch.where(there, nominal.weights * distance**self.order, 0.0).sum(1)
        if self.order == 1:
            return moved
        return torch.where(moved > 0, moved, torch.ones_like(moved)).sqrt() * (moved > 0)

    @untraced
    def _distances(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal, there: Tensor, known: Told | None
    ) -> Float[Tensor, "batch atom"]:
        """From atoms to the support, zero for padding; to a box coordinate by coordinate where the metric allows it."""
        atoms, support, transport = nominal.atoms, self.y.support, self.transport
        matrix, still = self._matrix(theta), list(transport.fixed)
        if isinstance(support, Box) and transport.diagonal:
            lo, hi = (end.to(atoms).reshape(-1, 1, atoms.shape[2]) for end in support.ends(atoms.shape[2], known))
            gap = (lo - atoms).clamp(min=0.0) + (atoms - hi).clamp(min=0.0)
            stuck = (gap[..., still] > 0).any(2) | (lo > hi).any(2)
            distance = transport.length(gap, matrix).masked_fill(stuck, torch.inf)
            return torch.where(there, distance, 0.0)
        distance = torch.zeros_like(nominal.weights)
        outside = (support.violation(atoms.detach(), known) > 0) & there
        if bool(outside.any()):
            engine, items = default_engine().with_tolerance(1e-11), outside.nonzero()[:, 0]
            parts = [transport.image(atoms, matrix)[outside], atoms[outside][:, still]]
            if self.matrix is not None:
                assert matrix is not None
                parts.append(matrix.to(atoms)[items].flatten(1))
            found = engine.solve(
                self._distance_program, torch.cat([*parts, support.data(known, nominal.weights)[items]], 1)
            )
            empty = (found.status == int(Status.INFEASIBLE)).to(distance.device)
            value = found.objective.clamp(min=0.0).masked_fill(empty, torch.inf).to(distance)
            distance = distance.masked_scatter(outside, value)
        return distance

    @cached_property
    def _distance_program(self) -> ConeProgram:
        """The distance from a point to the support."""
        transport, support, y = self.transport, self.y.support, cp.Variable((1, self.y.dim))
        image = cp.Parameter(transport.components, name="image of the centre")
        still = cp.Parameter(max(transport.fixed.size, 1), name="what may not move")
        matrix = self.matrix if self.matrix is not None else transport.metric
        moved = y[0, transport.moving]
        way = moved - image[transport.moving] if matrix is None else matrix @ moved - image
        held = [y[0, transport.fixed] == still] if transport.fixed.size else []
        parameters = [image, *([still] if held else []), *([self.matrix] if self.matrix is not None else [])]
        problem = cp.Problem(cp.Minimize(cp.norm(way, self.norm)), [*support.members(y), *held])
        return compile_program(problem, [*parameters, *support.parameters])

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """The cost of moving the nominal distribution to this one, and radius^p; under order ∞ the longest way."""
        assert nominal is not None
        transport, matrix, still = self.transport, self._matrix(theta), list(self.transport.fixed)
        ways = mass.atoms - nominal.atoms.gather(1, mass.origin[..., None].expand(-1, -1, self.y.dim))
        lengths, escaped = transport.length(ways, matrix), transport.length(mass.directions, matrix)
        size = nominal.atoms.abs().amax((1, 2)).clamp(min=1e-300)
        # Mass that may not move at all has nothing to spend, but rounds.
        stray = (ways[..., still].abs().sum(2) * mass.probabilities).sum(1) + mass.directions[..., still].abs().sum(
            (1, 2)
        )
        radius = theta.double()[:, :1]
        if np.isinf(self.order):
            used = torch.where(mass.probabilities > 0, lengths, 0.0).amax(1)
            bound = radius
        else:
            used, bound = (mass.probabilities * lengths**self.order).sum(1), radius**self.order
        if self.order != 1:
            escaped = torch.where(escaped > 0, torch.inf, 0.0).to(escaped)
        used = used + escaped.sum(1) + torch.where(stray > STRAY * size, torch.inf, 0.0)
        return used[:, None], bound


def _responds(rows: Rows) -> bool:
    """Whether rules stand in the rows that differ by atom, or respond to distances."""
    return rows.lifted is not None or rows.scenarios > 1


def _of_rows(beta: cp.Variable, rows: Rows, some: Labels) -> cp.Expression:
    """The multiplier of some rows."""
    return cp.promote(beta[0], some.shape) if rows.owner is None else beta[rows.owner[some]]


def _size(atoms: Float[Tensor, "batch atom dim"]) -> Float[Tensor, "batch 1"]:
    """How far atoms are apart; their size where they are one, and one where that vanishes too."""
    apart = (atoms - atoms.mean(1, keepdim=True)).abs().amax((1, 2))
    size = torch.where(apart > 0, apart, atoms.abs().amax((1, 2)))
    return torch.where(size > 0, size, torch.ones_like(size))[:, None]


@final
@dataclass(frozen=True, eq=False)
class _SharedTerm(Term):
    """Ways where the support is all of space: the slope has nowhere else to go, so w = a for every atom.

    With Aᵀτ_r = a_r, ‖τ_r‖_* ≤ β (or ‖τ_r‖_*² ≤ 4βt_r, or under order ∞ ‖τ_r‖_* itself) need be said once a row, not
    once a row and atom. Without β and order ∞ ways lead anywhere, and slopes along them must vanish.
    """

    ball: Wasserstein
    rows: Rows
    beta: cp.Variable | None
    moves: bool

    @property
    def owned(self) -> Labels:  # type: ignore[override]
        """All entries."""
        return np.arange(self.rows.layout.row.size * self.ball.atoms)

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """Σ_i (ω y)_ni a_ri, and ω_n ε t_r unless the order is 1, each N times."""
        base, ball, slope = self.rows.layout, self.ball, self.rows.slope
        value = at_atoms(slope, layout, ball.weighted_centres)
        if not self.moves:
            moving = np.flatnonzero(np.isin(base.coordinate, ball.transport.moving))
            return Contribution(value, None, [slope[moving] == 0])
        ways, tau, ties, known = ball._split(self.rows)
        outer, count = ball.transport.outer, ways.parts.count
        if self.beta is None:
            t, more = outer.gauge(tau, ways.part, count, known)
        else:
            t, more = outer.conjugate(tau, ways.part, _of_rows(self.beta, self.rows, ways.parts.row))
        if t is not None:
            value = value + kron(ball.weighted_radius, to_rows(t, ways.parts.row, base))
        return Contribution(value, None, ties + more)
