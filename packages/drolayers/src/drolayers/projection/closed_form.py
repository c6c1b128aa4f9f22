"""Moments whose projection comes down to a formula or to one scalar equation a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from drolayers.ambiguity import image
from drolayers.ambiguity.moment import Elementary
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.outer import Affine
from drolayers.projection.rule import Move, Rule, Task, ValueRule, Values

SLACK = 1e-12
"""Relative excess of a fixed bound that is put down to rounding."""

SETTLED, STEPS = 1e-13, 300
"""Relative length of a step towards a root after which there is no other, and how many there are at most."""

Function = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points to values and slopes, elementwise."""


def closed_form(task: Task) -> Rule | None:
    """The closed form of a moment's projection, where there is one."""
    if not task.moment.shapes:
        return Clip(task)
    moment = task.moment
    if not isinstance(moment, Elementary):
        return None
    if isinstance(moment.outer, Affine):
        return HalfSpace(task, moment.outer.signs[0] * moment.factor) if moment.sides == 1 else Interval(task)
    coordinates, outer, factor = _coordinates(moment), moment.outer, moment.factor
    if coordinates is None or outer.positive:
        return None
    single = coordinates.label.size == 1
    if outer.degree == 2 and (outer.p == 2 or single):
        return SquaredDeviation(task, factor, coordinates)
    if outer.degree == 1 and (outer.p == 1 or single) and moment.bounds == 1 and task.moment.sigma is None:
        return AbsoluteDeviation(task, factor, coordinates)
    return None


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates that a moment compares with its centre: those of ``y``, or one along a fixed direction.

    ``name`` is the centre's parameter; ``label`` the bound of every coordinate.
    """

    name: str
    index: NDArray[np.int64] | None
    direction: NDArray[np.float64] | None
    label: NDArray[np.int64]

    def of(self, nominal: Nominal) -> Float[Tensor, "batch atom coordinate"]:
        """The atoms in these coordinates."""
        if self.direction is not None:
            return nominal.atoms @ torch.as_tensor(self.direction).to(nominal.atoms)[:, None]
        whole = self.index is None or np.array_equal(self.index, np.arange(nominal.atoms.shape[-1]))
        return nominal.atoms if whole else nominal.atoms[..., self.index]


def _coordinates(moment: Elementary) -> Coordinates | None:
    """Those of a moment φ(u - centre) with a free centre."""
    of = moment.image
    if isinstance(of, image.Coordinates) and of.mu is None:
        return Coordinates("mu", of.coordinates, None, of.label)
    if isinstance(of, image.Directions) and of.mu is not None and of.h is None:
        return Coordinates("h", None, of.mu, of.label)
    return None


@final
@dataclass(frozen=True, eq=False)
class Clip(ValueRule):
    """Keep α and raise σ: the closest point where nothing else is free, a cheap one where something is."""

    task: Task

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Any
    ) -> Move:
        """α itself."""
        return Move({}, None if self.task.moment.sigma is None else ~valid.all(1))


@final
@dataclass(frozen=True, eq=False)
class HalfSpace(Rule):
    """μᵀy: all valid (μ, σ) form a half-space, since only the mean ȳ of the nominal distribution matters."""

    task: Task
    factor: float

    def summarise(self, nominal: Nominal) -> Float[Tensor, "batch dim"]:
        """The mean."""
        return self.factor * nominal.mean(nominal.atoms)

    def needed(self, alpha: Values, summary: Tensor) -> Float[Tensor, "batch bound"]:
        """μᵀȳ."""
        return self.task.require((alpha["mu"] * summary).sum(1, keepdim=True))

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Tensor
    ) -> Move:
        """μ - t ȳ/w with t = excess / (Σ ȳ²/w + 1/w_σ)."""
        weight = torch.as_tensor(self.task.weights["mu"]).to(summary)
        length = (summary**2 / weight).sum(1, keepdim=True)
        if self.task.moment.sigma is None:
            length = length + 1.0 / torch.as_tensor(self.task.weights["sigma"]).to(summary)
        stuck = length <= 0
        excess = self.needed(alpha, summary) - sigma
        moved = alpha["mu"] - excess / torch.where(stuck, torch.ones_like(length), length) * summary / weight
        kept = valid | stuck
        return Move({"mu": torch.where(kept, alpha["mu"], moved)}, (stuck & ~valid)[:, 0])


@final
@dataclass(frozen=True, eq=False)
class Interval(Rule):
    """|E y_i - μ_i| ≤ σ_i: coordinate by coordinate, c|μ - ȳ| + m ≤ σ with the mean ȳ and c = factor·(1 + r).

    Where d = μ⁰ - ȳ exceeds it by e = c|d| + m - σ⁰, μ comes closer by t = e c/w / (c²/w + 1/w_σ), but not past ȳ.
    """

    task: Task

    @property
    def _rate(self) -> float:
        """C."""
        return self.task.moment.factor * (1.0 + self.task.margin)

    def summarise(self, nominal: Nominal) -> Float[Tensor, "batch dim"]:
        """The mean."""
        return nominal.mean(nominal.atoms)

    def needed(self, alpha: Values, summary: Tensor) -> Float[Tensor, "batch bound"]:
        """The same from both sides."""
        used = self.task.moment.spread(self._rate * (summary - alpha["mu"]).abs())
        return used + self._margin(used)

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Tensor
    ) -> Move:
        """Each μ moved on its own."""
        size, c, weight = self.task.moment.size, self._rate, torch.as_tensor(self.task.weights["mu"]).to(sigma)
        away = alpha["mu"] - summary
        excess = (c * away.abs() + self._margin(sigma)[:, :size] - sigma[:, :size]).clamp(min=0.0)
        length = c**2 / weight
        if self.task.moment.sigma is None:
            length = length + 1.0 / torch.as_tensor(self.task.weights["sigma"]).to(sigma)
        step = torch.minimum(excess * c / weight / length, away.abs())
        return Move(
            {"mu": torch.where(valid.unflatten(1, (2, -1)).all(1), alpha["mu"], alpha["mu"] - away.sign() * step)}
        )

    def _margin(self, like: Tensor) -> Tensor:
        """M; where bounds are given, as much of it as there is room for: an equation has none, and needs none."""
        margin, limits = torch.full_like(like, self.task.absolute), self.task.moment.limits
        return margin if limits is None else torch.minimum(margin, torch.as_tensor(limits).to(like))


@final
@dataclass(frozen=True, eq=False)
class SquaredDeviation(Rule):
    """‖y_I - μ‖², one or several bounds: Σω_n‖y_n - μ‖² = ‖μ - ȳ‖² + v, with the mean ȳ and variance v.

    With d = μ⁰ - ȳ and the multiplier λ of a bound, μ = ȳ + d w/(w + λc) and σ = σ⁰ + λ/2w_σ, where c = 1 + r; λ is the
    root of  c(Σ d²(w/(w + λc))² + v) + m - σ⁰ - λ/2w_σ,  which is convex and decreasing (a cubic when multiplied out).
    """

    task: Task
    factor: float
    coordinates: Coordinates

    def summarise(self, nominal: Nominal) -> tuple[Tensor, Tensor]:
        """Mean, coordinate by coordinate, and variance, bound by bound."""
        points = self.coordinates.of(nominal)
        mean = nominal.mean(points)
        return mean, self._by_bound(nominal.mean((points - mean[:, None]) ** 2))

    def needed(self, alpha: Values, summary: tuple[Tensor, Tensor]) -> Float[Tensor, "batch bound"]:
        """‖μ - ȳ‖² + v."""
        mean, variance = summary
        return self.task.require(self.factor * (self._by_bound((self._centre(alpha) - mean) ** 2) + variance))

    def nearest(
        self,
        alpha: Values,
        sigma: Float[Tensor, "batch bound"],
        valid: Bool[Tensor, "batch bound"],
        summary: tuple[Tensor, Tensor],
    ) -> Move:
        """One multiplier a bound."""
        mean, variance = summary
        centre = self._centre(alpha)
        away = centre - mean
        members, bounds, weight = (torch.as_tensor(t, device=mean.device) for t in self._classes)
        c = self.factor * (1.0 + self.task.margin)
        # Mostly there is one class a bound, and then there is nothing to spread or to gather.
        plain = len(weight) == self.task.moment.bounds

        def spread(values: Tensor) -> Tensor:
            return values if plain else values[:, bounds]

        def gather(values: Tensor) -> Tensor:
            return values if plain else torch.zeros_like(variance).index_add(1, bounds, values)

        squares = self._by_bound(away**2) if plain else _sums(away**2, members, len(weight))
        # Half the inverse weight of σ: how fast the bound rises with the multiplier.
        rise = 0.5 / self._bound_weight(mean) if self.task.moment.sigma is None else torch.zeros_like(variance[0])
        room = sigma - self.task.absolute - c * variance
        infeasible = torch.zeros_like(valid)
        if self.task.moment.sigma is not None:
            infeasible = room < -SLACK * (sigma.abs() + c * variance)
            room = torch.maximum(room, 1e-24 * c * gather(squares).detach())

        def excess(multiplier: Tensor) -> tuple[Tensor, Tensor]:
            shrunk = weight / (weight + c * spread(multiplier))
            left = squares * shrunk * shrunk
            slope = gather(left * shrunk / weight)
            return c * gather(left) - room - rise * multiplier, -2.0 * c**2 * slope - rise

        with torch.no_grad():
            zero = torch.zeros_like(room)
            violation = excess(zero)[0]
            if self.task.moment.sigma is None:
                far = violation / rise
            else:
                far = weight.max() / c * ((violation + room) / room.clamp(min=1e-300)).clamp(min=1.0).sqrt()
            far = torch.where(valid | infeasible, zero, far.clamp(min=0.0))
            noise = 4e-16 * (c * gather(squares) + room.abs())
            found = decreasing_root(excess, zero, far, noise)
        multiplier = implicit(found, excess)
        shrunk = weight / (weight + c * spread(multiplier))
        kept = (valid | infeasible)[:, self._label(mean)]
        moved = torch.where(kept, centre, mean + shrunk[:, members] * away)
        name = self.coordinates.name
        return Move({name: moved.reshape(alpha[name].shape)}, (infeasible & ~valid).any(1))

    @cached_property
    def _classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Coordinates of one bound and one weight enter together: each one's class, the classes' bounds and weights."""
        label = self.coordinates.label
        weight = np.broadcast_to(self.task.weights[self.coordinates.name], label.shape)
        keys, member = np.unique(np.stack([label, weight]), axis=1, return_inverse=True)
        return member.ravel(), keys[0].astype(np.int64), keys[1]

    def _centre(self, alpha: Values) -> Float[Tensor, "batch coordinate"]:
        """The centre, also where it is a scalar."""
        centre = alpha[self.coordinates.name]
        return centre[:, None] if centre.dim() == 1 else centre

    def _label(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.coordinates.label, device=like.device)

    def _bound_weight(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.task.weights["sigma"]).to(like).reshape(-1).expand(self.task.moment.bounds)

    def _by_bound(self, values: Float[Tensor, "batch coordinate"]) -> Float[Tensor, "batch bound"]:
        """Sums over the coordinates of every bound."""
        if self.task.moment.bounds == 1:
            return values.sum(1, keepdim=True)
        return _sums(values, self._label(values), self.task.moment.bounds)


class Steps(NamedTuple):
    """The functions h_i(u) = Σ_n ω_n|y_ni - u| of a batch, by their kinks in ascending order.

    Between two kinks h_i(u) = slope·u + offset; there is one more piece than kinks, and the last has no kink ahead.
    """

    centre: Float[Tensor, "batch coordinate"]
    kink: Float[Tensor, "batch coordinate piece"]
    slope: Float[Tensor, "batch coordinate piece"]
    offset: Float[Tensor, "batch coordinate piece"]

    @classmethod
    def of(cls, points: Float[Tensor, "batch atom coordinate"], nominal: Nominal) -> Steps:
        """Sorted, with cumulative weights; relative to the mean, so that large offsets cost no digits."""
        centre = nominal.mean(points)
        kink, order = (points - centre[:, None]).transpose(1, 2).contiguous().sort(dim=2)
        weight = nominal.weights[:, None].expand_as(kink).gather(2, order)
        left = pad(weight.cumsum(2), (1, 0))
        moment = pad((weight * kink).cumsum(2), (1, 0))
        slope = 2.0 * left - left[..., -1:]
        return cls(centre, pad(kink, (0, 1), value=torch.inf), slope, moment[..., -1:] - 2.0 * moment)

    def prox(self, u: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The minimiser of (v - u)²/2 + step·h(v), h there, and h's slope where the minimiser moves (0 at a kink).

        v + step·∂h(v) is increasing: on piece j it is v + step·slope_j, so the piece is found by counting the kinks
        whose image lies below u, and v is the solution on that piece, or the kink ahead where it would pass it.
        """
        with torch.no_grad():
            behind = self.kink[..., :-1] + step[..., None] * self.slope[..., 1:] < u[..., None]
            piece = behind.sum(2, keepdim=True)
        slope, offset, kink = (t.gather(2, piece)[..., 0] for t in (self.slope, self.offset, self.kink))
        free = u - step * slope
        sticks = free >= kink
        v = torch.where(sticks, kink, free)
        return v, slope * v + offset, torch.where(sticks, torch.zeros_like(slope), slope)


@final
@dataclass(frozen=True, eq=False)
class AbsoluteDeviation(ValueRule):
    """Σ_i |y_i - μ_i|, with a free bound.

    Given the multiplier λ, every μ_i minimises w_i(μ_i - μ⁰_i)² + λc h_i(μ_i): a proximal step of a weighted sum of
    absolute values, exact by sorting. λ is the root of  c Σ h_i(μ_i(λ)) + m - σ⁰ - λ/2w_σ,  which is decreasing and
    piecewise linear, so that Newton's method ends on the exact piece.
    """

    task: Task
    factor: float
    coordinates: Coordinates

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Nominal
    ) -> Move:
        """One multiplier an item."""
        name = self.coordinates.name
        steps = Steps.of(self.coordinates.of(summary), summary)
        start = alpha[name].reshape(steps.centre.shape) - steps.centre
        c = self.factor * (1.0 + self.task.margin)
        rate = 0.5 * c / torch.as_tensor(self.task.weights[name]).to(start).reshape(-1)
        rise = 0.5 / torch.as_tensor(self.task.weights["sigma"]).to(start).reshape(-1)

        def excess(multiplier: Tensor) -> tuple[Tensor, Tensor]:
            _, value, slope = steps.prox(start, rate * multiplier)
            total = c * value.sum(1, keepdim=True) + self.task.absolute
            return total - sigma - rise * multiplier, -c * (rate * slope**2).sum(1, keepdim=True) - rise

        with torch.no_grad():
            zero = torch.zeros_like(sigma)
            # The bound alone could take up the whole violation: the multiplier is no larger than that needs.
            violation = excess(zero)[0]
            far = torch.where(valid, zero, (violation / rise).clamp(min=0.0))
            found = decreasing_root(excess, zero, far, 4e-15 * (violation.abs() + sigma.abs()))
        multiplier = implicit(found, excess)
        moved = steps.prox(start, rate * multiplier)[0] + steps.centre
        moved = torch.where(valid, alpha[name].reshape(moved.shape), moved)
        return Move({name: moved.reshape(alpha[name].shape)})


def _sums(values: Float[Tensor, "batch value"], label: Tensor, count: int) -> Float[Tensor, "batch label"]:
    """Sums by label."""
    return values.new_zeros(len(values), count).index_add(1, label, values)


def decreasing_root(function: Function, lower: Tensor, upper: Tensor, noise: Tensor) -> Tensor:
    """The root of every function within its bracket, f(lower) ≥ 0 ≥ f(upper).

    Newton's method from the left end (which never overshoots where f is convex), kept in the bracket by bisection. It
    ends where |f| is within the rounding ``noise`` of its terms, or where one more step makes no difference.
    """
    x = lower
    for step in range(STEPS):
        value, slope = function(x)
        newton = x - value / slope
        settled = (value.abs() <= noise) | ((newton - x).abs() <= SETTLED * x)
        lower, upper = torch.where(value >= 0, x, lower), torch.where(value <= 0, x, upper)
        if bool((settled | (upper <= lower)).all()):
            return x
        middle = 0.5 * (lower + upper)
        # Newton's steps may creep along a kinked function; a bisection now and then bounds their number.
        ahead = torch.where((newton >= lower) & (newton <= upper), newton, middle) if step % 8 < 7 else middle
        x = torch.where(settled, x, ahead)
    return x


def implicit(root: Tensor, function: Function) -> Tensor:
    """The same root with its gradient: one Newton step, whose slope is a constant (implicit function theorem)."""
    value, slope = function(root)
    slope = slope.detach()
    return root - value / torch.where(slope == 0, -torch.ones_like(slope), slope)
