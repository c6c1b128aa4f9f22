"""Sets of distributions on given atoms: the nominal distribution itself, and balls of reweightings of it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.internals import whole
from drolayers.ambiguity.base import (
    Along,
    AmbiguitySet,
    Combined,
    Mass,
    Rows,
    SetDual,
    at_atoms,
    largest,
    scenarios,
    weighted,
)
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outer import Constraints, Labels, Sign
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.terms import Contribution, Term
from drolayers.ambiguity.wasserstein import FLOOR
from drolayers.ambiguity.witness import at_least
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.products import tiled, times
from drolayers.support import Layout, Reals, Support
from drolayers.uncertainty import Uncertain

Kind = Literal["kl", "burg", "chi2", "tv", "hellinger"]

OUTSIDE = 1e-9
"""Distance from the support, relative to the atoms, beyond which an atom lies outside."""

LEAST_RADIUS = 1e-7
"""Smallest radius of a predicted ball of reweightings: probabilities differ by a few 1e-4 of themselves. At 1e-8 and
below solvers answer FAILED in some of 24 items for "chi2", "kl" and "hellinger"."""


class Reweighted(AmbiguitySet):
    """Distributions on the atoms of a nominal distribution, which travels beside θ.

    Every atom is a scenario in which ``y`` has nowhere to go, so that coordinates are never tied together and the
    support says nothing. Rows of atom n are multiplied by Nω_n: an atom of weight zero is padding, and gets no mass.
    """

    needs_nominal = pinned = local = bundles = True
    escapes = False

    def __init__(self, y: Uncertain, atoms: int) -> None:
        who = type(self).__name__
        if not isinstance(y, Uncertain):
            raise ModelError(f"{who} needs a dro.Uncertain, not {type(y).__name__}.")
        self.y, self.atoms = y, whole(f"The number of atoms of {who}", atoms)
        self.weights = cp.Parameter(self.atoms, nonneg=True, name="weights")
        # A product of parameters must be a parameter of its own for the program to be affine in it.
        self.weighted_centres = cp.Parameter((self.atoms, y.dim), name="weighted atoms")
        self.features = (self.weights, self.weighted_centres)

    @property
    def reach(self) -> Support:
        """What mass may reach is said by the atoms alone."""
        return Reals()

    def links(self) -> list[Labels]:
        """None."""
        return []

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """Every row once for every atom, at the atom."""
        expanded = scenarios(rows, self.weights)
        return SetDual(expanded, cp.Constant(0.0), [_AtAtoms(self, rows)], [], 1.0 / self.atoms, self.atoms)

    def outcomes(self, rows: Rows, share: bool = True) -> SetDual:
        """At all atoms of positive weight: the largest of their costs."""
        return replace(Reweighted.dual(self, rows), combined=largest(self.weights, rows.several))

    def along(self, rows: Rows) -> Along:
        """At the atoms."""
        expanded = scenarios(rows, self.weights)
        values = at_atoms(rows.slope, expanded.layout, self.weighted_centres) + expanded.offset
        return Along(values, self.weights, 1.0 / self.atoms)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Weights relative to their mean, and their products with the atoms."""
        assert nominal is not None
        weights = self.atoms * nominal.weights
        return torch.cat([weights, (weights[..., None] * nominal.atoms).flatten(1)], 1)

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Atoms outside the support."""
        return self.emptiness(theta, nominal, known) > 0

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """How far atoms of positive weight lie outside the support, relative to their size; else room to spare."""
        self.check(theta)
        around = self.around(nominal, theta)
        atoms, there = around.atoms.detach(), around.weights.detach() > 0
        size = (atoms.abs().amax(2) * there).amax(1).clamp(min=1e-300)
        beyond = (self.y.support.violation(atoms, known) * there).amax(1) / size
        return torch.where(beyond > OUTSIDE, beyond, -torch.ones_like(beyond))

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """Raise the radius, if there is one, to the least: the set always holds its nominal distribution."""
        return at_least(theta, torch.full_like(theta, LEAST_RADIUS))

    @abstractmethod
    def used(self, ratio: Tensor, weights: Tensor) -> Tensor:
        """What probabilities, as ratios to their weights, use of the bound."""

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """What a reweighting uses of the radius; mass that is not where its atom is, or escapes, uses all."""
        assert nominal is not None
        source = nominal.atoms.gather(1, mass.origin[..., None].expand(-1, -1, self.y.dim))
        size = nominal.atoms.abs().amax((1, 2)).clamp(min=1e-300)
        moved = ((mass.atoms - source).abs().amax(2) * mass.probabilities).sum(1) / size
        probabilities = torch.zeros_like(nominal.weights).scatter_add(1, mass.origin, mass.probabilities)
        positive = nominal.weights > 0
        ratio = torch.where(positive, probabilities / nominal.weights.clamp(min=1e-300), torch.ones_like(probabilities))
        stray = probabilities.masked_fill(positive, 0.0).sum(1) + mass.directions.abs().sum((1, 2)) / size + moved
        used = self.used(ratio, nominal.weights)
        return (used + torch.where(stray > 1e-6, torch.inf, 0.0))[:, None], theta.double()


@final
class Empirical(Reweighted):
    """The nominal distribution itself: no ambiguity, nothing to learn.

    Args:
        y: the uncertain vector.
        atoms: number of atoms of the nominal distribution.
    """

    def __init__(self, y: Uncertain, atoms: int) -> None:
        super().__init__(y, atoms)
        self.parameters: dict[str, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"Empirical(atoms={self.atoms})"

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Nothing to learn."""
        return {}

    def used(self, ratio: Tensor, weights: Tensor) -> Tensor:
        """Infinitely much, where there is a difference."""
        return torch.where(((ratio - 1.0).abs() * weights).sum(1) > 1e-6, torch.inf, 0.0)

    def usage(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, mass: Mass
    ) -> tuple[Float[Tensor, "batch bound"], Float[Tensor, "batch bound"]]:
        """Nothing, of nothing."""
        used, _ = super().usage(theta, nominal, mass)
        return used, torch.zeros_like(used)


@final
class Divergence(Reweighted):
    """All reweightings p of the nominal distribution with ``Σ ω_n φ(p_n / ω_n) ≤ radius``.

    The kinds are those of Ben-Tal et al. (2013), https://doi.org/10.1287/mnsc.1120.1641:

    | kind | φ(t) |
    |---|---|
    | ``"kl"`` | t log t - t + 1 |
    | ``"burg"`` | -log t + t - 1 |
    | ``"chi2"`` | (t - 1)² |
    | ``"tv"`` | abs(t - 1), twice the total variation |
    | ``"hellinger"`` | (√t - 1)² |

    The first two need exponential cones, and so the engines of others; the rest is linear or second-order.

    Args:
        y: the uncertain vector.
        atoms: number of atoms of the nominal distribution.
        kind: which divergence.
    """

    def __init__(self, y: Uncertain, atoms: int, kind: Kind = "chi2") -> None:
        super().__init__(y, atoms)
        check_kind("Divergence", kind)
        self.kind, self.parameters = kind, {"radius": ()}
        self.radius = cp.Parameter(1, nonneg=True, name="radius")
        roots = (cp.Parameter(self.atoms, nonneg=True, name="weight roots"),) if kind in ROOTED else ()
        self.roots = roots[0] if roots else None
        self.features = (self.radius, *roots, *self.features)

    def __repr__(self) -> str:
        return f"Divergence(atoms={self.atoms}, kind={self.kind!r})"

    def dual(self, rows: Rows, share: bool = True) -> SetDual:
        """That of the ball, over the costs at the atoms."""
        price, combined = reweighing(self.kind, self.radius[0], self.weights, self.roots, rows.several)
        return replace(super().dual(rows, share), price=price, combined=combined)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """Return the radius, the roots of relative weights where the kind needs them, weights and weighted atoms."""
        base = super().feature_values(theta, nominal)
        roots = [] if self.roots is None else [weight_roots(base[:, : self.atoms])]
        return torch.cat([theta.double().clamp(min=FLOOR), *roots, base], 1)

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """A tenth: probabilities differ from their weights by a third on average, whatever y is counted in."""
        radius = torch.tensor(0.1, dtype=torch.float64)
        return {"radius": Typical(radius, radius, positive=True, meaningful=False)}

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """The radius, as the divergence counts it: that of ``"chi2"`` grows with the square of the difference."""
        return self.grown(theta, factor, {"radius": 1.0})

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """A radius of zero or below, besides."""
        return super().suspect(theta, nominal, known) | (theta[:, 0] <= FLOOR)

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """A negative radius, besides."""
        beyond, radius = super().emptiness(theta, nominal, known), theta.detach().double()[:, 0]
        return torch.where(beyond > 0, beyond, -radius.sign())

    def used(self, ratio: Tensor, weights: Tensor) -> Tensor:
        """Σ ω_n φ(p_n / ω_n)."""
        return divergence(self.kind, ratio, weights)


def check_kind(who: str, kind: str) -> None:
    """Raise unless there is such a divergence."""
    if kind not in _CONJUGATES:
        raise ModelError(f"{who} needs one of the kinds {list(_CONJUGATES)}, not {kind!r}.")


def divergence(
    kind: Kind, ratio: Float[Tensor, "batch n"], weights: Float[Tensor, "batch n"]
) -> Float[Tensor, "batch"]:
    """Σ ω_n φ(p_n / ω_n), from the ratios and the weights."""
    t = ratio.clamp(min=0.0)
    phi = {
        "kl": torch.xlogy(t, t) - t + 1.0,
        "burg": -t.clamp(min=1e-300).log() + t - 1.0,
        "chi2": (t - 1.0) ** 2,
        "tv": (t - 1.0).abs(),
        "hellinger": (t.sqrt() - 1.0) ** 2,
    }[kind]
    return (weights * phi).sum(1)


def weight_roots(weights: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
    """Return the square roots of weights; a weight of zero gets no gradient through its root.

    Args:
        weights: nonnegative.
    """
    positive = weights > 0
    return torch.where(positive, torch.where(positive, weights, torch.ones_like(weights)).sqrt(), 0.0)


@dataclass(frozen=True)
class Reweighing:
    """The dual of a ball of reweightings, scenario by scenario.

    Args:
        residual: r_n = Nω_n (v_n - η), one a scenario (and worst case).
        scale: λ, one a worst case.
        weights: Nω_n.
        roots: √(Nω_n), for the kinds in ``ROOTED``.
    """

    residual: cp.Expression
    scale: cp.Variable
    weights: cp.Expression
    roots: cp.Expression | None

    @property
    def scaled(self) -> cp.Expression:
        """Nω_n λ."""
        return weighted(self.weights, self.scale)

    @property
    def scales(self) -> cp.Expression:
        """λ, once for every scenario."""
        return tiled(cp.reshape(self.scale, (self.scale.size,), order="F"), self.weights.size)

    def times_weight(self, factor: cp.Expression) -> cp.Expression:
        """Nω_n times one factor a scenario (and worst case)."""
        return times(self._each(self.weights), factor)

    def rooted(self, factor: cp.Expression) -> cp.Expression:
        """√(Nω_n) times one factor a scenario (and worst case)."""
        assert self.roots is not None
        return times(self._each(self.roots), factor)

    def _each(self, values: cp.Expression) -> cp.Expression:
        """One value a scenario, once for every worst case."""
        scenario = np.repeat(np.arange(values.size), self.scale.size)
        return values[scenario] if self.scale.size > 1 else values


def reweighing(
    kind: Kind,
    radius: cp.Expression,
    weights: cp.Expression,
    roots: cp.Expression | None,
    several: tuple[int, ...] = (),
) -> tuple[cp.Expression, Combined]:
    """Write ``min λρ + η + Σ ω_n λφ*((v_n - η)/λ)`` over λ ≥ 0 and η (Ben-Tal et al., 2013, theorem 4.1).

    Args:
        kind: the divergence φ.
        radius: ρ.
        weights: Nω_n, N of them.
        roots: their square roots, for the kinds in ``ROOTED``.
        several: the shape of λ and η, of several worst cases at once.

    Returns:
        The price λρ + η, and a function from all Nω_n v_n to N times the sum, with its constraints.
    """
    scale, level = cp.Variable(several, nonneg=True, name="lambda"), cp.Variable(several, name="eta")

    def combined(totals: cp.Expression) -> tuple[cp.Expression, Constraints]:
        ball = Reweighing(totals - weighted(weights, level), scale, weights, roots)
        bound, constraints = _CONJUGATES[kind](ball)
        total = cp.sum(cp.reshape(bound, (weights.size, *several), order="C"), axis=0) if several else cp.sum(bound)
        return total, constraints

    return radius * scale + level, combined


def _kl(ball: Reweighing) -> tuple[cp.Expression, Constraints]:
    """λ(e^{r/λ} - 1)."""
    t = cp.Variable(ball.residual.size)
    return t, [cp.ExpCone(ball.residual, ball.scaled, t + ball.scaled)]


def _burg(ball: Reweighing) -> tuple[cp.Expression, Constraints]:
    """-λ log(1 - r/λ)."""
    t = cp.Variable(ball.residual.size)
    return t, [cp.ExpCone(-t, ball.scaled, ball.scaled - ball.residual)]


def _chi2(ball: Reweighing) -> tuple[cp.Expression, Constraints]:
    """((r/2 + λ)⁺)²/λ - λ.

    With w = Nω and u = (r/2 + wλ)⁺/√w the term is u²/λ - wλ. A reweighting has p ≤ ω + √(ρω), so the multiplier of u is
    of the size of √ρ for every weight. Cones in units of w lose atoms with ω = 1e-9.
    """
    top, u = cp.Variable(ball.residual.size), cp.Variable(ball.residual.size)
    # u ≥ 0 follows at the optimum. As a row it would have no multiplier at zero.
    rows: Constraints = [ball.rooted(u) >= times(0.5, ball.residual) + ball.scaled]
    # u² ≤ top λ.
    cone = cp.SOC(top + ball.scales, cp.vstack([top - ball.scales, 2.0 * u]), axis=0)
    return top - ball.scaled, [*rows, cone]


def _tv(ball: Reweighing) -> tuple[cp.Expression, Constraints]:
    """max(r, -λ), and r ≤ λ."""
    t = cp.Variable(ball.residual.size)
    return t, [t >= ball.residual, t >= -ball.scaled, ball.residual <= ball.scaled]


def _hellinger(ball: Reweighing) -> tuple[cp.Expression, Constraints]:
    """λ²/(λ - r) - λ.

    With w = Nω and s = λ - r/w the term is (√w λ)²/s - wλ. All three entries of its cone have the size of √w.
    """
    top, s = cp.Variable(ball.residual.size), cp.Variable(ball.residual.size)
    rows: Constraints = [ball.times_weight(s) <= ball.scaled - ball.residual]
    # (√w λ)² ≤ top s.
    cone = cp.SOC(top + s, cp.vstack([top - s, 2.0 * ball.rooted(ball.scales)]), axis=0)
    return top - ball.scaled, [*rows, cone]


_CONJUGATES = {"kl": _kl, "burg": _burg, "chi2": _chi2, "tv": _tv, "hellinger": _hellinger}
"""An upper bound t on λφ*(r/λ), entry by entry, with its constraints. All of it is multiplied by Nω."""

ROOTED = ("chi2", "hellinger")
"""The kinds whose cones hold √(Nω_n)."""


@final
@dataclass(frozen=True, eq=False)
class _AtAtoms(Term):
    """``y`` is the atom: what multiplies it, the slopes of one scenario's rows, has nowhere else to go."""

    ball: Reweighted
    rows: Rows

    @property
    def owned(self) -> Labels:  # type: ignore[override]
        """All entries."""
        return np.arange(self.rows.layout.row.size * self.ball.atoms)

    def contribute(self, layout: Layout, remainder: cp.Expression | None, sign: Sign = None) -> Contribution:
        """Σ_i (ω y)_ni a_ri, N times."""
        return Contribution(at_atoms(self.rows.slope, layout, self.ball.weighted_centres), None, [])
