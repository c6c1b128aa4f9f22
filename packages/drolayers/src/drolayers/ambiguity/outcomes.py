"""Robust optimization: all distributions on a shape around a centre, within the support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import chdtri, ndtri
from torch import Tensor

from conelayers.internals import number
from drolayers.ambiguity.base import Mass, Rows, SetDual
from drolayers.ambiguity.centred import Centred, circle, ellipsoid, shadow, spread, triangular, undone
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign, magnitude
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.terms import Contribution, Term
from drolayers.ambiguity.theta import columns
from drolayers.ambiguity.witness import LEAST_REL, ROOM_REL, at_least, outcome_size
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.nearest import nearest_point
from drolayers.products import times
from drolayers.support import Layout, ellipsoid_conjugate
from drolayers.uncertainty import Uncertain

Shape = Literal["box", "ellipsoid", "budget"]

COVERED = 0.9
"""Share of a normal distribution that a typical shape holds."""

GROWN_MOST = 1e3
"""Multiple of itself to which an ellipsoid or a budget grows to meet the support; beyond, its centre moves instead."""

DUST = 1e-7
"""Mass that solvers leave where there is none, with no place of its own."""


@final
class Outcomes(Centred):
    """All distributions on a shape Ω around a centre, within the support of ``y``: robust optimization.

    The worst case is that of a single outcome, and ``dro.always`` means every outcome of the shape that lies in the
    support.

    | shape | Ω |
    |---|---|
    | ``"box"`` | centre + radius ∘ u, all abs(u_i) ≤ 1 |
    | ``"ellipsoid"`` | centre + factor u, ‖u‖₂ ≤ 1 |
    | ``"budget"`` | centre + radius ∘ u, all abs(u_i) ≤ 1 and ‖u‖₁ ≤ budget (Bertsimas and Sim) |

    Args:
        y: the uncertain vector.
        shape: which of them.
        budget: how many coordinates may be at an end at once; the root of their number unless given.
        centre: ``(dim,)``; learnt unless given.
        radius: half widths ``(dim,)`` of a box or a budget; learnt unless given.
        factor: matrix ``(dim, dim)`` of an ellipsoid; learnt unless given.
    """

    location = "centre"

    def __init__(
        self,
        y: Uncertain,
        shape: Shape = "box",
        budget: float | None = None,
        *,
        centre: ArrayLike | None = None,
        radius: ArrayLike | None = None,
        factor: ArrayLike | None = None,
    ) -> None:
        if shape not in ("box", "ellipsoid", "budget"):
            raise ModelError(f"Outcomes needs one of the shapes ['box', 'ellipsoid', 'budget'], not {shape!r}.")
        self.shape, self.extent = shape, "factor" if shape == "ellipsoid" else "radius"
        own = (self.extent, "budget") if shape == "budget" else (self.extent,)
        for name, value in {"radius": radius, "factor": factor, "budget": budget}.items():
            if value is not None and name not in own:
                raise ModelError(f"The shape {shape!r} of Outcomes has no {name}.")
        dim = y.dim if isinstance(y, Uncertain) else 0
        shapes = {"centre": (dim,), self.extent: (dim, dim) if shape == "ellipsoid" else (dim,)}
        self._declare(y, shapes, {"centre": centre, "radius": radius, "factor": factor})
        if np.any(self.given.get("radius", np.zeros(1)) < 0):
            raise ModelError(f"Outcomes's radius cannot be negative, as in {self.given['radius'].tolist()}.")
        self.budget = dim**0.5 if budget is None else number("Outcomes's budget", budget)
        if not 0 < self.budget < np.inf:
            raise ModelError(f"Outcomes's budget must be a positive number, not {budget!r}.")
        learnt = {n: cp.Parameter(s, name=n, nonneg=n == "radius") for n, s in self.parameters.items()}
        self.leaves = {n: cp.Constant(v) for n, v in self.given.items()} | learnt
        self.features = tuple(learnt.values())

    def __repr__(self) -> str:
        told = f", budget={self.budget:g}" if self.shape == "budget" else ""
        return f"Outcomes({self.shape!r}{told}, {', '.join(f'{n}: {s}' for n, s in self.parameters.items())})"

    @property
    def chebyshev(self) -> bool:
        """Yes: a set that holds every distribution on some outcomes leaves no probability for others."""
        return True

    def links(self) -> list[Labels]:
        """None for a box."""
        return [] if self.shape == "box" else [np.arange(self.y.dim)]

    def outcome_links(self) -> list[Labels]:
        """The same."""
        return self.links()

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """No multipliers: the shape's support function stands beside that of the support."""
        return SetDual(rows, cp.Constant(0.0), [_ShapeTerm(self, np.arange(rows.layout.row.size))], [])

    def outcomes(self, rows: Rows, share: bool = True) -> SetDual:
        """The same."""
        return self.dual(rows)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """The parameters; a negative radius, whose set is empty, as none."""
        parts = self.unpack(theta.double())
        found = [columns(part.clamp(min=0.0) if name == "radius" else part) for name, part in parts.items()]
        return torch.cat(found, 1) if found else theta.new_zeros(len(theta), 0).double()

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """What holds nine tenths of a normal distribution with the mean and covariance of the outcomes."""
        centre, scale, root = spread(self.points(y))
        size = self._multiple * scale
        shape = (
            triangular(self._multiple * root, size) if self.shape == "ellipsoid" else Typical(size, size, positive=True)
        )
        return {name: value for name, value in (("centre", centre), (self.extent, shape)) if name in self.parameters}

    @cached_property
    def _multiple(self) -> float:
        """How many standard deviations a shape reaches that holds nine tenths of a normal distribution."""
        dim = self.y.dim
        if self.shape == "ellipsoid":
            return float(chdtri(dim, 1.0 - COVERED)) ** 0.5
        ends = float(ndtri(0.5 + 0.5 * COVERED ** (1.0 / dim)))
        # The mean of ‖u‖₁ is dim √(2/π).
        return ends if self.shape == "box" else max(ends, dim * (2.0 / np.pi) ** 0.5 / self.budget)

    def preimage(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point dim"]:
        """U with y = centre + radius ∘ u, or centre + factor u; infinite where there is none."""
        return self._preimage(self.values(theta), y)

    def _preimage(
        self, parts: dict[str, Tensor], y: Float[Tensor, "batch point dim"]
    ) -> Float[Tensor, "batch point dim"]:
        """``preimage`` from all parameters by name."""
        away = y.to(parts["centre"]) - parts["centre"][:, None]
        if self.shape == "ellipsoid":
            return undone(parts["factor"], away)
        width = parts["radius"][:, None].clamp(min=0.0)
        wide = width > 0
        ratio = away / torch.where(wide, width, torch.ones_like(width))
        return torch.where(wide | (away == 0), ratio, torch.inf)

    def gauge(self, u: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
        """The smallest t for which u lies in t times the unit shape."""
        if self.shape == "ellipsoid":
            return u.norm(dim=-1)
        largest = u.abs().amax(-1)
        return largest if self.shape == "box" else torch.maximum(largest, u.abs().sum(-1) / self.budget)

    def scores_anywhere(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch"]:
        """The smallest t for which y lies in t·Ω(θ), scaled about its centre; infinite where a flat shape has none."""
        theta, y = self.beside(theta, y)
        return self.gauge(self.preimage(theta, y[:, None]))[:, 0].to(theta.dtype)

    def whitened(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> tuple[Float[Tensor, "batch point dim"], Float[Tensor, "batch"]]:
        """The normal distribution of which the shape holds nine tenths; coordinates of no width in their own unit."""
        parts = self.values(theta)
        if self.shape == "ellipsoid":
            return self._multiple * self.preimage(theta, y), torch.linalg.slogdet(parts["factor"]).logabsdet
        width = torch.where(parts["radius"] > 0, parts["radius"], torch.ones_like(parts["radius"]))
        away = y.to(width) - parts["centre"][:, None]
        return self._multiple * away / width[:, None], width.log().sum(1)

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """By how much the shape must grow about its centre for it to meet the support."""
        grown = self.least(theta, known) - 1.0
        return torch.where(self._negative(theta), grown.clamp(min=1.0), grown)

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Let the shape hold the support point next to its centre: a learnt size grows, else the centre moves.

        An ellipsoid or a budget that would have to grow beyond :data:`GROWN_MOST` moves, too.
        """
        parts = self.values(theta)
        centre, own = parts["centre"], [name for name in (*parts,) if name in self.parameters]
        witness = nearest_point(self.y.support, centre, known)
        witness = torch.where(witness.isfinite().all(1, keepdim=True), witness, centre.detach())
        if "radius" in own:
            gap = (witness - centre).abs()
            least = LEAST_REL * outcome_size(witness, centre)[:, None]
            parts["radius"] = at_least(parts["radius"], (1.0 + ROOM_REL) * gap + least)
        grown = moved = centre.new_zeros(len(theta), dtype=torch.bool)
        if self.shape != "box" or "radius" not in own:
            needed = self.gauge(self._preimage(parts, witness[:, None]))[:, 0]
            needed = torch.where((witness == centre).all(1), torch.zeros_like(needed), needed)
            over = (1.0 + ROOM_REL) * needed > 1.0
            grown = over & (needed <= GROWN_MOST) & (self.extent in own)
            moved = over & ~grown & ("centre" in own)
            factor = torch.where(grown, (1.0 + ROOM_REL) * needed, torch.ones_like(needed))
            parts[self.extent] = parts[self.extent] * factor.reshape(-1, *[1] * (parts[self.extent].dim() - 1))
            parts["centre"] = torch.where(moved[:, None], self._towards(parts, witness, needed), centre)
            if self.shape == "ellipsoid":
                round_shape = (1.0 + ROOM_REL) * (witness - centre).norm(dim=1)[:, None, None]
                lost = over & ~grown & ~moved & (self.extent in own)
                round_shape = round_shape * torch.eye(self.y.dim).to(centre)
                parts["factor"] = torch.where(lost[:, None, None], round_shape, parts["factor"])
        return self.pack({name: parts[name].to(theta.dtype) for name in own}) if own else theta

    def _towards(
        self, parts: dict[str, Tensor], witness: Float[Tensor, "batch dim"], needed: Float[Tensor, "batch"]
    ) -> Float[Tensor, "batch dim"]:
        """Return centres whose shapes hold a witness with room."""
        away = parts["centre"] - witness
        if self.shape == "box":
            reach = (1.0 - ROOM_REL) * parts["radius"]
            return witness + torch.minimum(torch.maximum(away, -reach), reach)
        near = (needed > 0) & needed.isfinite()
        share = (1.0 - ROOM_REL) / torch.where(near, needed, torch.ones_like(needed))
        return witness + torch.where(near, share, torch.zeros_like(share))[:, None] * away

    def _negative(self, theta: Tensor) -> Bool[Tensor, "batch"]:
        """Items of a negative radius."""
        if "radius" not in self.parameters:
            return torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        return (self.unpack(theta)["radius"] < 0).any(1)

    def outline(
        self, theta: Float[Tensor, "batch theta"], coordinates: Sequence[int]
    ) -> Float[Tensor, "batch point 2"]:
        """The edge of Ω's shadow."""
        parts = self.values(theta)
        if self.shape == "ellipsoid":
            return shadow(parts["centre"], parts["factor"], coordinates)
        u = circle().to(parts["centre"])
        at = list(coordinates)
        return parts["centre"][:, None, at] + parts["radius"][:, None, at] * (u / self.gauge(u)[:, None])

    def multiple(self, y: cp.Expression, size: cp.Expression) -> Constraints:
        """Through the preimage in the unit shape."""
        centre = self.leaves["centre"]
        if self.shape == "ellipsoid":
            return ellipsoid(y, centre, self.leaves["factor"], size)
        u = cp.Variable(self.y.dim)
        rows = [cp.abs(y - centre) <= times(self.leaves["radius"], u), u <= size]
        return rows + ([cp.sum(u) <= self.budget * size] if self.shape == "budget" else [])

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """The largest score of an atom, of 1; what escapes uses all."""
        scores = self.gauge(self.preimage(theta, mass.atoms))
        used = torch.where(mass.probabilities > DUST, scores, torch.zeros_like(scores)).amax(1)
        escaped = mass.directions.abs().sum((1, 2)) > 0
        used = torch.where(escaped, torch.inf, used)[:, None]
        return used, torch.ones_like(used)


@final
@dataclass(frozen=True, eq=False)
class _ShapeTerm(Term):
    """``y`` lies in the shape: its support function, at whatever share of the slope."""

    set: Outcomes
    owned: Labels | None

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """``cᵀw + dᵀ|w|``; ``cᵀw + ‖Lᵀw‖``; or ``cᵀw + min Γλ + Σ (d_i|w_i| - λ)⁺``."""
        w: cp.Expression = cp.Variable(layout.row.size) if remainder is None else remainder
        share = w if remainder is None else None
        leaves: dict[str, Any] = self.set.leaves
        if self.set.shape == "ellipsoid":
            value, constraints = ellipsoid_conjugate(leaves["centre"], leaves["factor"], w, layout)
            return Contribution(value, share, constraints)
        middle = layout.sums() @ times(leaves["centre"][layout.coordinate], w)
        size, constraints = self._size(w, layout, sign if share is None else None)
        return Contribution(middle + size, share, constraints)

    def _size(self, w: cp.Expression, layout: Layout, sign: Sign) -> tuple[cp.Expression, Constraints]:
        """What is beyond the centre."""
        widths = self.set.leaves["radius"][layout.coordinate]
        if self.set.shape == "box":
            return layout.sums() @ times(widths, magnitude(w, sign)), []
        most, more = cp.Variable(layout.rows, nonneg=True), cp.Variable(layout.row.size, nonneg=True)
        room, length = more + layout.sums().T @ most, times(widths, w)
        return self.set.budget * most + layout.sums() @ more, [room >= length, room >= -length]
