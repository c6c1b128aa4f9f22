"""Balls of distributions around weighted atoms, with a learnable radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet, Mass, Rows, SetDual, at_atoms, each, scenarios
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Labels, NormPower, Sign
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.terms import Contribution, OuterTerm, Parts, Term
from drolayers.amounts import Told
from drolayers.checks import whole
from drolayers.conic import default_engine
from drolayers.conic.compile import compile_program
from drolayers.conic.program import ConeProgram
from drolayers.errors import ModelError
from drolayers.products import kron
from drolayers.status import Status
from drolayers.support import Layout, Reals
from drolayers.uncertainty import Uncertain

FLOOR = 1e-12
"""A radius is raised to this, so that its multiplier stays bounded."""


@final
class Wasserstein(AmbiguitySet):
    """All distributions on the support within ``radius`` of a nominal distribution, in Wasserstein distance.

    The nominal atoms and weights travel beside θ: ``layer(theta, nominal(z))``. In the dual, atom n is a scenario of
    weight ω_n with the penalty ‖y - y_n‖ or ‖y - y_n‖², and a scenario's rows are multiplied by ω_n, so that a zero
    weight leaves nothing undetermined; or rather by Nω_n, whose mean is one, so that each of many atoms is no smaller.

    Args:
        y: the uncertain vector.
        atoms: number of atoms of the nominal distribution.
        norm: 1, 2 or inf.
        order: 1 or 2.
    """

    def __init__(self, y: Uncertain, atoms: int, norm: float = 1, order: int = 1) -> None:
        if not isinstance(y, Uncertain):
            raise ModelError(f"Wasserstein needs a dro.Uncertain, not {type(y).__name__}.")
        if norm not in (1, 2, np.inf) or order not in (1, 2):
            raise ModelError(f"Wasserstein needs norm 1, 2 or inf and order 1 or 2, not norm={norm}, order={order}.")
        atoms = whole("The number of atoms of Wasserstein", atoms)
        self.y, self.atoms, self.norm, self.order = y, atoms, float(norm), order
        self.parameters, self.outer = {"radius": ()}, NormPower(self.norm, order)
        shape = (atoms, y.dim)
        self.radius = cp.Parameter(1, nonneg=True, name="radius")
        self.weights = cp.Parameter(atoms, nonneg=True, name="weights")
        self.centres = cp.Parameter(shape, name="atoms")
        # Products of parameters must be parameters of their own for the program to be affine in them.
        self.weighted_centres = cp.Parameter(shape, name="weighted atoms")
        self.weighted_radius = cp.Parameter(atoms, nonneg=True, name="weighted radius")
        self.features = (self.radius, self.weights, self.centres, self.weighted_centres, self.weighted_radius)

    def __repr__(self) -> str:
        return f"Wasserstein(atoms={self.atoms}, norm={self.norm:g}, order={self.order})"

    @property
    def needs_nominal(self) -> bool:
        """Yes."""
        return True

    def links(self) -> list[Labels]:
        """None for (order 1, norm 1) and (order 2, norm 2), whose penalties are additive."""
        return [] if self.outer.additive else [np.arange(self.y.dim)]

    def dual(self, rows: Rows, lifts: Sequence[cp.Expression] | None = None, share: bool = True) -> SetDual:
        """Every row once for every atom, and one multiplier for the distance."""
        expanded, base = scenarios(rows, self.weights), rows.layout
        layout, entry_scenario = expanded.layout, np.repeat(np.arange(self.atoms), base.row.size)
        beta = cp.Variable(1, nonneg=True, name="beta")
        price = self.radius[0] * beta[0]
        term: Term
        if share and isinstance(self.y.support, Reals):
            term = _SharedTerm(self, rows, beta)
        else:
            parts = np.arange(layout.rows)
            term = OuterTerm(
                self.outer,
                np.arange(layout.row.size),
                layout.row,
                Parts(parts, np.zeros_like(parts), np.zeros_like(parts)),
                cp.vec(self.centres, order="C")[entry_scenario * self.y.dim + layout.coordinate],
                None,
                kron(self.weights, cp.promote(beta[0], (base.rows,))),
                cp.promote(self.radius[0], (layout.rows,)) if self.order == 2 else None,
            )
        return SetDual(expanded, price, [term], [], 1.0 / self.atoms)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Radius, weights relative to their mean, atoms and their products."""
        assert nominal is not None
        atoms, weights = nominal.atoms, self.atoms * nominal.weights
        radius = theta.double().clamp(min=FLOOR)
        weighted = weights[..., None] * atoms
        return torch.cat([radius, weights, atoms.flatten(1), weighted.flatten(1), weights * radius], 1)

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """A tenth of the mean distance from the mean as radius."""
        y = y.double()
        distance = (y - y.mean(0)).norm(p=self.norm, dim=-1).mean().clamp(min=1e-12 * float(y.abs().max()) or 1e-12)
        return {"radius": Typical(0.1 * distance, 0.1 * distance, positive=True, meaningful=False)}

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """The radius: mass may go so many times as far."""
        return theta * each(factor, theta)

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """A radius of zero or below."""
        return theta[:, 0] <= FLOOR

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """Σ ω_n dist(y_n, Ξ)^p against radius^p, relative to the radius."""
        around = self.around(nominal, theta)
        radius, needed = theta.detach().double()[:, 0], self.needed(around, known)
        # Relative to the radius; to what a solver can see where that is next to nothing beside the distances.
        scale = torch.maximum(radius.abs(), 1e-2 * around.atoms.detach().abs().amax((1, 2)))
        return torch.where(needed > 0, (needed - radius) / scale, -radius.sign())

    def needed(self, nominal: Nominal, known: Told | None = None) -> Float[Tensor, "batch"]:
        """(Σ ω_n dist(y_n, Ξ)^p)^(1/p), the least radius whose ball is not empty; one an item, without gradients."""
        atoms, weights = nominal.atoms.detach(), nominal.weights.detach()
        distance = torch.zeros_like(weights)
        outside = (self.y.support.violation(atoms, known) > 0) & (weights > 0)
        if bool(outside.any()):
            engine = default_engine().with_tolerance(1e-11)
            data = self.y.support.data(known, weights)[outside.nonzero()[:, 0]]
            found = engine.solve(self._distance_program, torch.cat([atoms[outside], data], 1))
            empty = (found.status == int(Status.INFEASIBLE)).to(distance.device)
            distance[outside] = found.objective.clamp(min=0.0).masked_fill(empty, torch.inf)
        return (weights * distance**self.order).sum(1) ** (1.0 / self.order)

    @cached_property
    def _distance_program(self) -> ConeProgram:
        """The distance from a point to the support."""
        centre, y = cp.Parameter(self.y.dim, name="centre"), cp.Variable((1, self.y.dim))
        distance, support = cp.norm(y[0] - centre, self.norm), self.y.support
        return compile_program(cp.Problem(cp.Minimize(distance), support.members(y)), [centre, *support.parameters])

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """The cost of moving the nominal distribution to this one, and radius^p."""
        assert nominal is not None
        source = nominal.atoms.gather(1, mass.origin[..., None].expand(-1, -1, self.y.dim))
        lengths = (mass.atoms - source).norm(p=self.norm, dim=-1) ** self.order
        used = (mass.probabilities * lengths).sum(1)
        escaped = mass.directions.norm(p=self.norm, dim=-1)
        if self.order == 2:
            escaped = torch.where(escaped > 0, torch.full_like(escaped, torch.inf), escaped)
        return (used + escaped.sum(1))[:, None], theta.double() ** self.order


@final
@dataclass(frozen=True, eq=False)
class _SharedTerm(Term):
    """The penalty where the support is all of space: the slope has nowhere else to go, so w = a for every atom.

    Then ‖a_r‖_* ≤ β (or ‖a_r‖_*² ≤ 4βt_r) need be said once a row, not once a row and atom.
    """

    ball: Wasserstein
    rows: Rows
    beta: cp.Variable

    @property
    def owned(self) -> Labels:  # type: ignore[override]
        """All entries."""
        return np.arange(self.rows.layout.row.size * self.ball.atoms)

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """Σ_i (ω y)_ni a_ri, and ω_n ε t_r for order 2, each N times."""
        base, ball = self.rows.layout, self.ball
        multiplier = cp.promote(self.beta[0], (base.rows,))
        t, constraints = ball.outer.conjugate(self.rows.slope, base.row, multiplier)
        value = at_atoms(self.rows.slope, layout, ball.weighted_centres)
        if t is not None:
            value = value + kron(ball.weighted_radius, t)
        return Contribution(value, None, constraints)
