"""Distributions whose mean lies in an ellipsoid and whose second moment is bounded in the semidefinite order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from drolayers.ambiguity.base import Mass, Rows, SetDual
from drolayers.ambiguity.centred import Centred, ellipsoid, shadow, spread, triangular, undone
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign
from drolayers.ambiguity.parameters import FLOOR, Typical
from drolayers.ambiguity.terms import Contribution, Term
from drolayers.ambiguity.theta import columns
from drolayers.ambiguity.witness import ROOM_REL, at_least
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.nearest import nearest_point
from drolayers.support import Layout, Reals, by_column, ellipsoid_conjugate
from drolayers.uncertainty import Uncertain

LEAST_GAMMA = 1e-10
"""Smallest learnt bound of a predicted set: its root, 1e-5 of a standard deviation, is what solvers resolve."""

GAMMA1 = 0.1
"""Where a model begins with gamma1: the mean is known to a third of a standard deviation."""


@final
class MeanCovariance(Centred):
    """All distributions on the support with mean near ``mu`` and covariance near ``Σ = factor factorᵀ``.

    With y = mu + factor ξ they have ‖E ξ‖² ≤ gamma1 and E ξξᵀ ⪯ gamma2 I (Delage and Ye, 2010,
    https://doi.org/10.1287/opre.1090.0741). Costs of several pieces need semidefinite cones, and so the engines of
    others; a single piece is second-order. All coordinates are tied together.

    Args:
        y: the uncertain vector.
        mu: ``(dim,)``; learnt unless given.
        factor: matrix ``(dim, dim)``; learnt unless given.
        gamma1: a number; learnt unless given. Zero asks for the mean ``mu`` itself.
        gamma2: a number, since a multiple of ``factor`` says the same; None to learn it all the same.
    """

    location, extent = "mu", "factor"

    def __init__(
        self,
        y: Uncertain,
        mu: ArrayLike | None = None,
        factor: ArrayLike | None = None,
        gamma1: float | None = None,
        gamma2: float | None = 1.0,
    ) -> None:
        dim = y.dim if isinstance(y, Uncertain) else 0
        shapes: dict[str, tuple[int, ...]] = {"mu": (dim,), "factor": (dim, dim), "gamma1": (), "gamma2": ()}
        self._declare(y, shapes, {"mu": mu, "factor": factor, "gamma1": gamma1, "gamma2": gamma2})
        for name, least in (("gamma1", 0.0), ("gamma2", FLOOR)):
            if float(self.given.get(name, np.ones(()))) < least:
                wanted = "a positive number" if least else "no negative number"
                raise ModelError(f"MeanCovariance's {name} must be {wanted}, not {self.given[name]}.")
        learnt = {n: cp.Parameter(shapes[n], name=n) for n in ("mu", "factor") if n in self.parameters}
        names = {"root1": ("gamma1",), "gamma2": ("gamma2",), "reach": ("gamma1", "gamma2")}
        learnt |= {
            n: cp.Parameter(nonneg=True, name=n) for n, of in names.items() if any(g in self.parameters for g in of)
        }
        fixed = {n: cp.Constant(v) for n, v in self.given.items() if n in ("mu", "factor")}
        nothing = torch.zeros(1, self.size, dtype=torch.float64)
        fixed |= {n: cp.Constant(float(v)) for n, v in self._bounds(nothing).items()}
        self.leaves, self.features = fixed | learnt, tuple(learnt.values())

    def _bounds(self, theta: Tensor) -> dict[str, Tensor]:
        """√γ₁, γ₂ and the smaller of their roots, ``(batch,)``."""
        parts = self.values(theta)
        first, second = (
            parts[n].clamp(min=FLOOR if n in self.parameters else 0.0).sqrt() for n in ("gamma1", "gamma2")
        )
        return {"root1": first, "gamma2": second.square(), "reach": torch.minimum(first, second)}

    @property
    def chebyshev(self) -> bool:
        """On all of space: every mean and covariance that the set allows has a worst quantile that is a worst CVaR."""
        return isinstance(self.y.support, Reals)

    def links(self) -> list[Labels]:
        """All coordinates."""
        return [np.arange(self.y.dim)]

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """``min γ₂ tr Q + √γ₁ ‖q‖ + max_k sup_y {a_kᵀy - qᵀξ - ξᵀQξ}``; of a single row, the best Q and q by hand."""
        entries = np.arange(rows.layout.row.size)
        if rows.layout.rows == 1:
            return SetDual(rows, cp.Constant(0.0), [_QuadraticTerm(self, None, None, entries)], [])
        Q, q = cp.Variable((self.y.dim, self.y.dim), symmetric=True, name="Q"), cp.Variable(self.y.dim, name="q")
        length, root = cp.Variable(name="length"), self.leaves["root1"]
        price, constraints = self.leaves["gamma2"] * cp.trace(Q), []
        if not _nothing(root):
            price, constraints = price + root * length, [cp.SOC(length, q)]
        return SetDual(rows, price, [_QuadraticTerm(self, Q, q, entries)], constraints)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Location and factor, and the bounds as their roots."""
        found = self.values(theta) | self._bounds(theta.double())
        parts = [columns(found[feature.name()]) for feature in self.features]
        return torch.cat(parts, 1) if parts else theta.new_zeros(len(theta), 0).double()

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Mean and covariance of the outcomes."""
        centre, scale, root = spread(self.points(y))
        one = torch.ones((), dtype=torch.float64)
        found = {
            "mu": centre,
            "factor": triangular(root, scale),
            "gamma1": Typical(GAMMA1 * one, GAMMA1 * one, positive=True, meaningful=False),
            "gamma2": Typical(one, one, positive=True, meaningful="factor" in self.given),
        }
        return {name: found[name] for name in self.parameters}

    def whitened(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> tuple[Float[Tensor, "batch point dim"], Float[Tensor, "batch"]]:
        """The normal distribution of mean mu and the largest covariance, γ₂Σ."""
        size = self._bounds(theta.double())["gamma2"]
        logs = torch.linalg.slogdet(self.values(theta)["factor"]).logabsdet + 0.5 * self.y.dim * size.log()
        return self.deviations(theta, y) / size.sqrt()[:, None, None], logs

    def deviations(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point dim"]:
        """The ξ with y = mu + factor ξ; infinite where there is none."""
        parts = self.values(theta)
        return undone(parts["factor"], y.to(parts["mu"]) - parts["mu"][:, None])

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """By how much the ellipsoid of means must grow: by Jensen, a set that holds a distribution holds its mean."""
        away, reach = self.least(theta, known), self._bounds(theta.detach().double())["reach"]
        # Relative to the bound; to what a solver can see where that is next to nothing.
        grown = torch.where(away > 0, (away - reach) / reach.clamp(min=1e-2), -torch.ones_like(away))
        return torch.where(self._negative(theta), grown.clamp(min=1.0), grown)

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Let the bounds allow the unit mass at the support point next to mu.

        It needs gamma1 and gamma2 of at least ‖ξ‖², with mu + factor ξ that point. A mu further away than both bounds
        (and one) allow moves towards the point; one that was given stays, and the factor grows. Learnt bounds are then
        raised.
        """
        parts, room = self.values(theta), 1.0 + ROOM_REL
        mu, factor = parts["mu"], parts["factor"]
        witness = nearest_point(self.y.support, mu, known)
        witness = torch.where(witness.isfinite().all(1, keepdim=True), witness, mu.detach())
        needed = self._distance(factor, witness - mu)
        given = {name: parts[name] / room for name in ("gamma1", "gamma2") if name in self.given}
        learnt = [parts[name].clamp(min=1.0) for name in ("gamma1", "gamma2") if name not in self.given]
        if "mu" in self.parameters:
            limit = torch.stack([*given.values(), *learnt]).amin(0)
            parts["mu"] = witness + _root_share(limit, needed)[:, None] * (mu - witness)
            parts["mu"] = torch.where((needed > limit)[:, None], parts["mu"], mu)
            needed = torch.minimum(needed, limit)
        elif "factor" in self.parameters and given:
            limit = torch.stack([*given.values()]).amin(0)
            over, near = needed > limit, needed.isfinite() & (limit > 0)
            size = torch.where(over & near, needed / limit.clamp(min=FLOOR), torch.ones_like(needed)).sqrt()
            grown = factor * size[:, None, None]
            reach = (witness - mu).norm(dim=1) / limit.clamp(min=FLOOR).sqrt()
            whole = torch.eye(self.y.dim).to(mu) * reach[:, None, None]
            parts["factor"] = torch.where((over & ~near & (limit > 0))[:, None, None], whole, grown)
            needed = torch.minimum(needed, limit)
        for name in ("gamma1", "gamma2"):
            if name in self.parameters:
                parts[name] = at_least(parts[name], room * needed + LEAST_GAMMA)
        return self.pack({name: parts[name].to(theta.dtype) for name in self.parameters}) if self.size else theta

    def _distance(self, factor: Tensor, away: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch"]:
        """Return ‖ξ‖² with factor ξ = away; zero where nothing is away, infinite where no ξ will do."""
        still = (away == 0).all(1)
        xi = undone(factor, away[:, None])[:, 0]
        square = xi.square().sum(1)
        return torch.where(still, torch.zeros_like(square), square.nan_to_num(nan=torch.inf))

    def _negative(self, theta: Tensor) -> Bool[Tensor, "batch"]:
        """Items of a negative bound."""
        parts = self.values(theta)
        return (parts["gamma1"] < 0) | (parts["gamma2"] <= 0)

    def outline(
        self, theta: Float[Tensor, "batch theta"], coordinates: Sequence[int]
    ) -> Float[Tensor, "batch point 2"]:
        """Where outcomes lie one standard deviation of the largest covariance from mu."""
        parts = self.values(theta)
        size = parts["gamma2"].clamp(min=0.0).sqrt()[:, None, None]
        return shadow(parts["mu"], size * parts["factor"], coordinates)

    def multiple(self, y: cp.Expression, size: cp.Expression) -> Constraints:
        """The ellipsoid of means."""
        return ellipsoid(y, self.leaves["mu"], self.leaves["factor"], size)

    def used(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"], weights: Tensor
    ) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
        """‖E ξ‖² and the largest eigenvalue of E ξξᵀ, differentiable."""
        xi = self.deviations(theta, y)
        xi = torch.where(weights[..., None] > 0, xi, torch.zeros_like(xi))
        mean, second = (weights[..., None] * xi).sum(1), xi.mT @ (weights[..., None] * xi)
        known = second.isfinite().all(2).all(1)
        # An item of no numbers is left to the caller.
        usual = torch.where(known[:, None, None], second, torch.zeros_like(second))
        largest = torch.linalg.eigvalsh(usual)[:, -1]
        return mean.square().sum(1), torch.where(known, largest, torch.inf)

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """‖E ξ‖² of γ₁, and the largest eigenvalue of E ξξᵀ of γ₂; what escapes uses all."""
        used = torch.stack(self.used(theta, mass.atoms, mass.probabilities), 1)
        escaped = mass.directions.abs().sum((1, 2)) > 0
        parts = self.values(theta)
        bounds = torch.stack([parts["gamma1"], parts["gamma2"]], 1)
        return torch.where(escaped[:, None], torch.inf, used), bounds


@final
@dataclass(frozen=True, eq=False)
class _QuadraticTerm(Term):
    """The penalty qᵀξ + ξᵀQξ of all rows; without Q and q, what the best ones give, for a single row.

    With u = Lᵀw - q its conjugate at w is μᵀw + t, where ¼uᵀQ⁻¹u ≤ t is [[Q, u/2], [uᵀ/2, t]] ⪰ 0. Minimised over Q,
    γ₂ tr Q + t is √γ₂‖u‖, and over q, √γ₁‖q‖ + √γ₂‖Lᵀw - q‖ is the smaller root times ‖Lᵀw‖.
    """

    set: MeanCovariance
    Q: cp.Variable | None
    q: cp.Variable | None
    owned: Labels | None

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """One cone a row."""
        w: cp.Expression = cp.Variable(layout.row.size) if remainder is None else remainder
        share, leaves = w if remainder is None else None, self.set.leaves
        stacked = by_column(w, layout)
        if (self.Q is None or self.q is None) and _nothing(leaves["reach"]):
            return Contribution(leaves["mu"] @ stacked, share, [])
        if self.Q is None or self.q is None:
            value, constraints = ellipsoid_conjugate(leaves["mu"], leaves["factor"], w, layout, leaves["reach"])
            return Contribution(value, share, constraints)
        t = cp.Variable((layout.rows, 1))
        u = 0.5 * (leaves["factor"].T @ stacked - cp.reshape(self.q, (self.q.size, 1), order="F"))
        cones: Constraints = [
            cp.bmat([[self.Q, u[:, k : k + 1]], [u[:, k : k + 1].T, t[k : k + 1]]]) >> 0 for k in range(layout.rows)
        ]
        return Contribution(leaves["mu"] @ stacked + t[:, 0], share, cones)


def _root_share(limit: Float[Tensor, "batch"], needed: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """Return the share t of a deviation with t²·needed = limit; one where that is not above the limit."""
    over = (needed > limit) & needed.isfinite() & (limit > 0)
    one = torch.ones_like(needed)
    root = (torch.where(over, limit, one) / torch.where(over, needed, one)).sqrt()
    return torch.where((needed > limit) & ~over, torch.zeros_like(root), root)


def _nothing(bound: cp.Expression) -> bool:
    """Whether a bound was given as zero: what it would multiply has no limit, and is left out."""
    return not isinstance(bound, cp.Parameter) and float(bound.value) == 0.0
