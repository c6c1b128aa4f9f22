"""Sets around a centre that hold the nominal distribution: the closest box, or a multiple of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.mean_covariance import MeanCovariance
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.outcomes import Outcomes
from drolayers.projection.rule import Report, raised, rounded
from drolayers.status import Status


@final
@dataclass(frozen=True, eq=False)
class Cover:
    """From θ to one whose shape holds all atoms, (1 + r) times as far from its centre, and m more.

    Args:
        ambiguity: the set.
        weights: of the parameters in the distance, by name.
        relative: 1 + r.
        absolute: m; of a shape that grows as a whole, relative to its size.
        stays: whether the centre does.
    """

    ambiguity: Outcomes
    weights: Mapping[str, NDArray[np.float64]]
    relative: float
    absolute: float
    stays: bool

    def __call__(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal, report: Report
    ) -> Float[Tensor, "batch theta"]:
        """Project a batch; items that cannot be are left alone."""
        return (self._box if self.ambiguity.shape == "box" else self._grown)(theta, nominal, report)

    def _box(self, theta: Tensor, nominal: Nominal, report: Report) -> Tensor:
        """Coordinate by coordinate the point (c, d) closest to (c⁰, d⁰) with d ≥ k(M - c) + m and d ≥ k(c - M') + m.

        M and M' are the largest and the smallest atom. Two half-planes: either neither cuts the point off, or the
        projection onto one of their edges lies in the other, or the point is where the edges meet.
        """
        parts = self.ambiguity.values(theta)
        c0, d0 = parts["centre"], parts["radius"]
        there = nominal.weights[..., None] > 0
        high = nominal.atoms.masked_fill(~there, -torch.inf).amax(1)
        low = nominal.atoms.masked_fill(~there, torch.inf).amin(1)
        k, room = self.relative, self.absolute

        def needed(centre: Tensor) -> Tensor:
            return k * torch.maximum(high - centre, centre - low) + room

        valid, middle = needed(c0) <= d0, 0.5 * (high + low)
        if "radius" in self.ambiguity.given:
            reach = (d0 - room) / k
            centre = torch.maximum(torch.minimum(c0, low + reach), high - reach)
            lost = (needed(middle) > d0 * (1.0 + 1e-12)).any(1)
            self._refused(lost | ("centre" in self.ambiguity.given and ~valid.all(1)), report)
            centre = torch.where(valid | lost[:, None], c0, centre)
        elif self.stays or "centre" in self.ambiguity.given:
            centre = c0
        else:
            by_c, by_d = (1.0 / torch.as_tensor(self.weights[n]).to(c0) for n in ("centre", "radius"))
            step = by_c * k / (k**2 * by_c + by_d)
            above, below = k * (high - c0) + room - d0, k * (c0 - low) + room - d0
            up, down = c0 + step * above, c0 - step * below
            # On one edge, where the other half-plane holds that point.
            on_high, on_low = high - up >= up - low, down - low >= high - down
            alone = torch.where((above > 0) & on_high, up, torch.where((below > 0) & on_low, down, middle))
            centre = torch.where(valid, c0, alone)
        found = self.ambiguity.unpack(theta)
        if "centre" in found:
            found["centre"] = centre = rounded(centre, theta.dtype)
        if "radius" in found:
            found["radius"] = torch.where(needed(centre) <= d0, d0, raised(needed(centre), theta.dtype))
        return self.ambiguity.pack({name: part.to(theta.dtype) for name, part in found.items()}) if found else theta

    def _grown(self, theta: Tensor, nominal: Nominal, report: Report) -> Tensor:
        """The smallest multiple of the shape that holds all atoms, where that is larger."""
        scores = self.ambiguity.gauge(self.ambiguity.preimage(theta, nominal.atoms))
        largest = scores.masked_fill(nominal.weights <= 0, 0.0).amax(1)
        needed = self.relative * largest + self.absolute
        flat = ~needed.isfinite()
        sentence = "The shape of Outcomes is flat or of no numbers, so that no multiple of it holds the nominal atoms."
        report.note(flat, Status.FAILED, sentence)
        if self.ambiguity.extent in self.ambiguity.given:
            self._refused(needed > 1, report)
            return theta
        # Rounding must not undo it.
        needed = needed * (1.0 + 8.0 * torch.finfo(theta.dtype).eps)
        factor = torch.where((needed > 1) & ~flat, needed, torch.ones_like(needed))
        return torch.where(factor[:, None] > 1, self.ambiguity.scaled(theta.double(), factor), theta).to(theta.dtype)

    def _refused(self, items: Tensor, report: Report) -> None:
        """Items that a given size excludes."""
        sentence = (
            f"Outcomes was given a {self.ambiguity.extent} that does not hold all nominal atoms: "
            "raise it, or let it be learnt."
        )
        report.note(items, Status.INFEASIBLE, sentence)


@final
@dataclass(frozen=True, eq=False)
class MomentCover:
    """From θ to one that allows the nominal distribution's mean and second moment, with the same room.

    A given γ₁ that is too small moves mu towards the mean, a given γ₂ makes the factor grow; bounds that are learnt are
    raised.

    Args:
        ambiguity: the set.
        relative: 1 + r.
        absolute: m.
    """

    ambiguity: MeanCovariance
    relative: float
    absolute: float

    def __call__(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal, report: Report
    ) -> Float[Tensor, "batch theta"]:
        """Project a batch; items that cannot be are left alone."""
        given, found = self.ambiguity.given, self.ambiguity.unpack(theta.double())
        with torch.no_grad():
            flat = ~self._needed(found, nominal)[1].isfinite()
        sentence = "The factor of MeanCovariance is singular or of no numbers, so that no multiple of it will do."
        report.note(flat, Status.FAILED, sentence)
        if "gamma1" in given and "mu" not in given:
            needed, limit = self._needed(found, nominal)[0], float(given["gamma1"])
            # ‖E ξ‖ falls with the distance of mu from the mean.
            over = (needed > limit) & ~flat
            share = (max(limit - self.absolute, 0.0) / torch.where(over, needed - self.absolute, 1.0)).sqrt()
            mean = nominal.mean(nominal.atoms)
            moved = mean + share[:, None] * (found["mu"] - mean)
            found["mu"] = rounded(torch.where(over[:, None], moved, found["mu"]), theta.dtype)
        if "factor" not in given and "gamma2" in given:
            found["factor"] = self._grown(found, nominal, flat, theta.dtype)
        for position, name in enumerate(("gamma1", "gamma2")):
            if name in found:
                needed = raised(self._needed(found, nominal)[position], theta.dtype)
                found[name] = torch.where((needed > found[name]) & ~flat, needed, found[name])
        result = self.ambiguity.pack({name: part.to(theta.dtype) for name, part in found.items()})
        self._check(result, nominal, flat, report)
        return torch.where(flat[:, None], theta, result)

    def _needed(self, found: dict[str, Tensor], nominal: Nominal) -> tuple[Tensor, Tensor]:
        """What the nominal distribution needs of both bounds."""
        used = self.ambiguity.used(self.ambiguity.pack(found), nominal.atoms, nominal.weights)
        return self.relative * used[0] + self.absolute, self.relative * used[1] + self.absolute

    def _grown(self, found: dict[str, Tensor], nominal: Nominal, flat: Tensor, dtype: torch.dtype) -> Tensor:
        """The factor, as large as the given bounds need it; what is needed falls with the square of its size."""
        first, second = self.ambiguity.used(self.ambiguity.pack(found), nominal.atoms, nominal.weights)
        size = self._size(second, "gamma2")
        if "gamma1" in self.ambiguity.given:
            size = torch.maximum(size, self._size(first, "gamma1"))
        grows = (size > 1) & ~flat & size.isfinite()
        size = torch.where(grows, size, torch.ones_like(size)).sqrt()
        # Rounding must not undo it.
        size = torch.where(grows, size * (1.0 + 8.0 * torch.finfo(dtype).eps), size)
        return found["factor"] * size[:, None, None]

    def _size(self, used: Tensor, name: str) -> Tensor:
        """How many times what is used must shrink for a given bound; one where it needs no more."""
        limit = float(self.ambiguity.given[name]) - self.absolute
        return self.relative * used / limit if limit > 0 else torch.ones_like(used)

    def _check(self, theta: Tensor, nominal: Nominal, flat: Tensor, report: Report) -> None:
        """Remark upon items that given bounds exclude all the same."""
        with torch.no_grad():
            parts = self.ambiguity.values(theta)
            used = self.ambiguity.used(theta, nominal.atoms, nominal.weights)
            over = [u > parts[n] + 1e-9 * (1.0 + parts[n]) for u, n in zip(used, ("gamma1", "gamma2"), strict=True)]
        sentence = (
            f"MeanCovariance was given {', '.join(self.ambiguity.given)}, with which it does not hold the nominal "
            "distribution: let more be learnt."
        )
        report.note((over[0] | over[1]) & ~flat, Status.INFEASIBLE, sentence)
