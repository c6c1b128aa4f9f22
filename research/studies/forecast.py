"""A linear forecast with its residuals: the point around which sets are learnt, and the atoms of Q_z."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from conelayers.checks import whole
from conelayers.errors import ModelError
from drolayers.ambiguity.nominal import Nominal
from drolayers.learning.model import above_zero
from drolayers.nominal.base import NominalDistribution, distances, matrix

PENALTIES = tuple(10.0**k for k in range(-1, 4))
"""Ridge penalties, relative to standardised contexts; the best by leave-one-out error is taken."""


@final
class Ridge(nn.Module):
    """Ridge regression with the penalty that has the smallest leave-one-out error.

    With contexts X (standardised), G = XᵀX + aI and the hat matrix H = 1/n + XG⁻¹Xᵀ, the error at a point that was left
    out is e_n/(1 - H_nn): one factorisation gives them all.

    Args:
        contexts: their number.
        outcomes: their number.
    """

    shift: Tensor
    scale: Tensor
    slope: Tensor
    level: Tensor

    def __init__(self, contexts: int, outcomes: int) -> None:
        super().__init__()
        shapes = {"shift": (contexts,), "scale": (contexts,), "slope": (contexts, outcomes), "level": (outcomes,)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def fit(self, Z: Float[Tensor, "n dz"], Y: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Learn, and return the leave-one-out residuals."""
        spread = Z.std(0, unbiased=False)
        self.shift, self.scale = Z.mean(0), torch.where(spread > 1e-12, spread, torch.ones_like(spread))
        X, self.level = (Z - self.shift) / self.scale, Y.mean(0)
        best: tuple[float, Tensor, Tensor] | None = None
        for penalty in PENALTIES:
            inverse = torch.linalg.inv(X.T @ X + penalty * torch.eye(X.shape[1], dtype=X.dtype))
            slope = inverse @ X.T @ (Y - self.level)
            hat = 1.0 / len(X) + ((X @ inverse) * X).sum(1)
            left_out = (Y - self.level - X @ slope) / (1.0 - hat)[:, None]
            error = float(left_out.square().mean())
            if best is None or error < best[0]:
                best = (error, slope, left_out)
        assert best is not None
        self.slope = best[1]
        return best[2]

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch dim"]:
        """The forecast."""
        return ((z - self.shift) / self.scale) @ self.slope + self.level


@final
class ResidualAtoms(NominalDistribution):
    """Q_z made of the forecast at z plus the residuals of the k nearest training points, equally weighted.

    Neighbours by themselves cannot follow a season that the training data have not seen; a forecast can, and its
    residuals say how far to trust it. Residuals are leave-one-out ones, since those of the fit are too small.

    Args:
        k: number of neighbours; 0 gives the forecast alone, as if it were certain.
    """

    def __init__(self, k: int) -> None:
        whole("k", k, 0)
        super().__init__(max(k, 1), True)
        self.k = k
        self.forecast: Ridge | None = None

    def fit(self, Z: Any, Y: Any, sample_weight: Any = None) -> Self:
        """Fit the forecast, and keep its residuals in place of the outcomes."""
        if sample_weight is not None:
            raise ModelError("ResidualAtoms takes no sample_weight: its forecast counts all rows alike.")
        contexts, outcomes = matrix(Z, "Z"), matrix(Y, "Y")
        self.forecast = Ridge(contexts.shape[1], outcomes.shape[1])
        residuals = self.forecast.fit(contexts, outcomes)
        return super().fit(contexts, residuals if self.k else torch.zeros_like(residuals))

    def learn(self) -> None:
        """Nothing beyond the data."""

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """One for the nearest, zero for the others."""
        away = distances(z, self.covariates, exclude)
        nearest, index = away.topk(min(max(self.k, 1), away.shape[1]), dim=1, largest=False)
        return torch.zeros_like(away).scatter(1, index, nearest.isfinite().to(away))

    def forward(self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None = None) -> Nominal:
        """The residuals' atoms, moved to the forecast."""
        if self.forecast is None:
            raise ModelError("ResidualAtoms has no data yet: call fit(Z, Y) first.")
        residuals, weights = super().forward(z, exclude)
        # A load is never negative; nor does a forecast plus a residual come near it.
        return Nominal((self.forecast(z)[:, None] + residuals).clamp(min=0.0), weights)


@final
class AroundForecast(nn.Module):
    """θ = (μ, σ) of a set with one squared deviation bound a coordinate, around a linear forecast.

    μ is the forecast plus a learnt correction, σ the variance of the residuals times a learnt factor; both networks see
    the standardised context.

    Args:
        Z: training contexts.
        Y: training outcomes.
        hidden: width of the hidden layer.
        seed: of the initial weights.
    """

    deviation: Tensor

    def __init__(self, Z: Any, Y: Any, hidden: int, seed: int) -> None:
        super().__init__()
        contexts, outcomes = matrix(Z, "Z"), matrix(Y, "Y")
        self.forecast = Ridge(contexts.shape[1], outcomes.shape[1])
        residuals = self.forecast.fit(contexts, outcomes)
        self.register_buffer("deviation", residuals.square().mean(0).sqrt())
        generator = torch.Generator().manual_seed(seed)
        self.networks = nn.ModuleList()
        for _ in range(2):
            first, last = nn.Linear(contexts.shape[1], hidden), nn.Linear(hidden, outcomes.shape[1])
            with torch.no_grad():
                for layer, gain in ((first, 1.0), (last, 0.1)):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
                    layer.weight.mul_(gain)
                    layer.bias.zero_()
            self.networks.append(nn.Sequential(first, nn.ReLU(), last))

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch theta"]:
        """μ and σ."""
        inner = (z - self.forecast.shift) / self.forecast.scale
        correction, factor = (network(inner) for network in self.networks)
        # An output of zero gives the variance of the residuals.
        sigma = self.deviation**2 * above_zero(factor)
        return torch.cat([self.forecast(z) + self.deviation * correction, sigma], 1)
