"""Nadaraya-Watson weights."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from drolayers.checks import number
from drolayers.errors import ModelError
from drolayers.nominal.base import NominalDistribution, distances


@final
class Kernel(NominalDistribution):
    """Training outcomes weighted by a kernel of the distance ‖z - z_n‖ = d.

    ``"gaussian"`` is exp(-d²/2h²), ``"epanechnikov"`` is (1 - d²/h²)⁺. A point with nothing in reach of the kernel gets
    its nearest neighbour.

    Args:
        kind: the kernel.
        bandwidth: h, in units of the standardised covariates; or a rule, ``"silverman"`` (the default) or ``"scott"``.
            For Epanechnikov's kernel a rule's h is widened by √(dz + 4), so that both kernels have one variance.
        max_atoms: keep the heaviest atoms only; None keeps every training point.
        standardize: whether covariates are standardised before distances are taken.
    """

    width: Tensor

    def __init__(
        self,
        kind: Literal["gaussian", "epanechnikov"] = "gaussian",
        bandwidth: float | Literal["silverman", "scott"] = "silverman",
        max_atoms: int | None = 50,
        standardize: bool = True,
    ) -> None:
        super().__init__(max_atoms, standardize)
        if kind not in ("gaussian", "epanechnikov"):
            raise ModelError(f"kind must be 'gaussian' or 'epanechnikov', not {kind!r}.")
        if isinstance(bandwidth, str):
            if bandwidth not in ("silverman", "scott"):
                raise ModelError(f"bandwidth must be a number, 'silverman' or 'scott', not {bandwidth!r}.")
        elif not 0 < number("bandwidth", bandwidth) < np.inf:
            raise ModelError(f"bandwidth must be positive and finite, not {bandwidth!r}.")
        self.kind, self.bandwidth = kind, bandwidth
        self.register_buffer("width", torch.ones((), dtype=torch.float64))

    def learn(self) -> None:
        """The bandwidth h = c N^(-1/(dz+4)) times the deviation of the covariates, c of the rule."""
        if not isinstance(self.bandwidth, str):
            self.width = torch.full_like(self.width, self.bandwidth)
            return
        count, dz = self.covariates.shape
        factor = (4.0 / (dz + 2.0)) ** (1.0 / (dz + 4.0)) if self.bandwidth == "silverman" else 1.0
        if self.kind == "epanechnikov":
            factor *= float(np.sqrt(dz + 4.0))
        spread = self.covariates.var(0, correction=0).mean().sqrt()
        # Without any spread all points are equally near, whatever the width.
        self.width = torch.where(spread > 0, spread, torch.ones_like(spread)) * factor * count ** (-1.0 / (dz + 4.0))

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """The kernel of the distances."""
        squared = (distances(z, self.covariates, exclude) / self.width).square()
        if self.kind == "gaussian":
            # Relative to the nearest point, so that a far z does not underflow.
            return torch.exp(-0.5 * (squared - squared.amin(1, keepdim=True)))
        weights = (1.0 - squared).clamp(min=0.0)
        nearest = torch.zeros_like(weights).scatter(1, squared.argmin(1, keepdim=True), 1.0)
        return torch.where(weights.sum(1, keepdim=True) > 0, weights, nearest)
