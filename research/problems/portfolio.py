"""The portfolio problems of the paper (section 6.2 and appendix D.2) and their published synthetic returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from conelayers.errors import ModelError
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.cost.risk import cvar
from drolayers.problem import DecisionProblem
from drolayers.uncertainty import Uncertain

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PortfolioData:
    """Synthetic returns: contexts ``Z``, returns ``Y``, and the conditional mean of ``Y`` given ``Z``."""

    Z: Array
    Y: Array
    mean: Array

    @classmethod
    def generate(cls, assets: int, count: int = 4000, seed: int = 100) -> PortfolioData:
        """The recipe of the authors' published scripts, whose draws come from NumPy's legacy generator in this order.

        y = a + Bz + Ce + D flat(zzᵀ) + ‖z‖₁ s·g; the model sees 10 z.
        """
        rng = np.random.RandomState(seed)
        a = np.sort(rng.rand(assets) / 200) + 0.0005
        B = rng.randn(5, assets) / 4
        C = rng.randn(3, assets)
        D = rng.randn(25, assets) / 5
        s = np.sort(rng.rand(assets)) / 20 + 0.02
        z = rng.randn(count, 5) / 50
        e = rng.randn(count, 3) / 50
        products = 100 * (z[:, :, None] * z[:, None, :]).reshape(count, 25)
        products = products - products.mean(0)
        mean = a + z @ B + products @ D
        noise = s * rng.randn(count, assets) * np.abs(z).sum(1, keepdims=True)
        return cls(10 * z, mean + e @ C + noise, mean)

    def shifted(self, shift: Array | float = 0.0, scale: float = 1.0) -> PortfolioData:
        """The same contexts with returns moved away: y' = mean + shift + scale·(y - mean).

        Args:
            shift: of the means, one an asset or one for all.
            scale: of the noise.
        """
        return PortfolioData(self.Z, self.mean + shift + scale * (self.Y - self.mean), self.mean + shift)

    def split(self, *sizes: int) -> list[PortfolioData]:
        """Consecutive parts; the paper's are 2500, 500 and 1000."""
        if sum(sizes) > len(self.Z):
            raise ModelError(f"{sum(sizes)} points were asked for, but there are {len(self.Z)}.")
        ends = np.cumsum(sizes)
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return [PortfolioData(self.Z[part], self.Y[part], self.mean[part]) for part in parts]


class Portfolio:
    """Maximise the worst-case expected return of a long-only portfolio.

    Args:
        assets: number of assets.
        binaries: how many of them (the first) can only be bought in a fixed amount 1/assets or not at all.
        group: coordinates that share one squared deviation bound.
        risk: level of the CVaR of the loss that is minimised, such as 0.95; None for the expected return.

    Attributes:
        problem: the decision problem.
        holdings: CVXPY expression of the whole portfolio.
    """

    covariates = ("z1", "z2", "z3", "z4", "z5")

    def __init__(self, assets: int, binaries: int = 0, group: int = 1, risk: float | None = None) -> None:
        if not 0 <= binaries <= assets:
            raise ModelError(f"A portfolio of {assets} assets cannot have {binaries} binary ones.")
        y = Uncertain(assets)
        self.assets, self.binaries = assets, binaries
        self.free = cp.Variable(assets - binaries, nonneg=True, name="free")
        self.lots = cp.Variable(binaries, boolean=True, name="lots") if binaries else None
        self.holdings = self.free if self.lots is None else cp.hstack([self.lots / assets, self.free])
        loss = -(y @ self.holdings)
        cost = loss if risk is None else cvar(loss, risk)
        self.problem = DecisionProblem(cost, [cp.sum(self.holdings) == 1], MomentSet.grouped(y, group))

    def weights(self, decision: Mapping[cp.Variable, Array]) -> Array:
        """The whole portfolio ``(n, assets)`` of decisions."""
        free = np.asarray(decision[self.free])
        return free if self.lots is None else np.concatenate([np.asarray(decision[self.lots]) / self.assets, free], 1)

    def best_return(self, mean: Array) -> Array:
        """The largest expected return for known means ``(n, assets)``: the Bayes-optimal policy.

        A lot is worth buying where its mean beats the best free asset; if the lots do not exhaust the budget, the rest
        goes there.
        """
        free = mean[:, self.binaries :].max(1)
        lots = np.maximum(mean[:, : self.binaries] - free[:, None], 0.0).sum(1) / self.assets
        return free + lots

    def best_weights(self, mean: Array) -> Array:
        """The portfolios ``(n, assets)`` that attain :meth:`best_return`."""
        best = self.binaries + mean[:, self.binaries :].argmax(1)
        rows = np.arange(len(mean))
        weights = np.zeros_like(mean)
        weights[:, : self.binaries] = (mean[:, : self.binaries] > mean[rows, best][:, None]) / self.assets
        weights[rows, best] = 1.0 - weights.sum(1)
        return weights
