"""Robust outcomes that hold all atoms of the nominal distribution: the closest box, or a multiple of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

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
