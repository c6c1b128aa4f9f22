"""A weekly portfolio by sectors as a robust decision problem, with the model and the neighbours that it is given."""

from __future__ import annotations

from typing import final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from torch import Tensor, nn

from conelayers.checks import whole
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.cost.risk import cvar
from drolayers.learning.model import above_zero
from drolayers.nominal.base import NominalDistribution, distances
from drolayers.problem import DecisionProblem
from drolayers.uncertainty import Uncertain
from research.studies.stocks import OF_ASSET, OF_MARKET

Array = NDArray[np.float64]

LEVEL = 0.9
"""Level of the CVaR in the cost."""

LEAST, MOST = 0.1, 0.4
"""A sector that is entered holds between a tenth and four tenths of the wealth."""

CAP = 0.2
"""No stock holds more than a fifth."""

PER_CENT = 100.0


class Allocation:
    """Minimise the worst-case expected loss plus CVaR of a long-only portfolio, in per cent a week.

    Sectors are entered in earnest or not at all: a binary for each. With the covariance Σ = RRᵀ of past returns, the
    uncertain vector is y = R⁻¹r, returns in units in which they were uncorrelated and of variance one. One bound
    E‖y - μ‖² ≤ σ in these units is a ball of distributions with the shape of Σ: the risk that it adds to a portfolio is
    proportional to √(wᵀΣw).

    Args:
        returns: past weekly returns ``(week, asset)``, for the covariance.
        membership: of stocks in sectors, ``(sector, asset)``.

    Attributes:
        problem: the decision problem, in y.
        weights: the continuous decision.
        entered: the binary decision.
        root: R.
    """

    def __init__(self, returns: Array, membership: Array) -> None:
        sectors, assets = membership.shape
        self.root: Array = np.linalg.cholesky(LedoitWolf().fit(returns).covariance_)
        y = Uncertain(assets)
        self.weights = cp.Variable(assets, nonneg=True, name="weights")
        self.entered = cp.Variable(sectors, boolean=True, name="entered")
        held = membership @ self.weights
        constraints = [
            cp.sum(self.weights) == 1,
            self.weights <= CAP,
            held >= LEAST * self.entered,
            held <= MOST * self.entered,
        ]
        loss = -(y @ (PER_CENT * self.root.T @ self.weights))
        self.problem = DecisionProblem(loss + cvar(loss, LEVEL), constraints, MomentSet.grouped(y, assets))

    def whiten(self, returns: Array) -> Array:
        """Returns as outcomes of the problem."""
        return np.asarray(np.linalg.solve(self.root, returns.T).T, dtype=np.float64)


@final
class AssetModel(nn.Module):
    """θ from context, with one small network for all assets.

    The network reads an asset's own contexts and those of the market, and gives its expected return around the mean
    of all training returns: what it learns of one asset holds for the others. A second network gives σ from the state
    of the market.

    Args:
        allocation: whose units the model speaks.
        Z: training contexts, for their units.
        returns: training returns.
        hidden: width of the hidden layers.
        seed: of the initial weights.
    """

    root: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, allocation: Allocation, Z: Array, returns: Array, hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.assets = returns.shape[1]
        self.expected = _network(OF_ASSET + OF_MARKET, hidden, generator)
        self.spread = _network(OF_MARKET, hidden, generator)
        market = Z[:, -OF_MARKET:]
        self.register_buffer("root", torch.as_tensor(np.linalg.inv(allocation.root)))
        self.register_buffer("shift", torch.as_tensor(market.mean(0)))
        self.register_buffer("scale", torch.as_tensor(market.std(0)))
        self.centre = float(returns.mean())
        # Expected returns vary far less than returns; the network's output of size one is a tenth of their deviation.
        self.unit = 0.1 * float(returns.std(0).mean())

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch theta"]:
        """μ in the units of y, and σ."""
        market = (z[:, -OF_MARKET:] - self.shift) / self.scale
        own = z[:, :-OF_MARKET].reshape(len(z), self.assets, OF_ASSET)
        seen = torch.cat([own, market[:, None].expand(-1, self.assets, -1)], 2)
        expected = self.centre + self.unit * self.expected(seen)[..., 0]
        # An output of zero gives the variance of uncorrelated coordinates.
        sigma = self.assets * above_zero(self.spread(market))
        return torch.cat([expected @ self.root.T, sigma], 1)


@final
class MarketNeighbours(NominalDistribution):
    """The k weeks whose state of the market was nearest, equally weighted; contexts of single assets are ignored.

    Args:
        k: number of neighbours.
    """

    def __init__(self, k: int) -> None:
        super().__init__(whole("k", k), True)
        self.k = k

    def learn(self) -> None:
        """Nothing beyond the data."""

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """One for the nearest, zero for the others."""
        away = distances(z[:, -OF_MARKET:], self.covariates[:, -OF_MARKET:], exclude)
        nearest, index = away.topk(min(self.k, away.shape[1]), dim=1, largest=False)
        return torch.zeros_like(away).scatter(1, index, nearest.isfinite().to(away))


def _network(inputs: int, hidden: int, generator: torch.Generator) -> nn.Sequential:
    """One hidden layer; the last one starts small, so that training starts at typical values."""
    first, last = nn.Linear(inputs, hidden), nn.Linear(hidden, 1)
    with torch.no_grad():
        for layer, gain in ((first, 1.0), (last, 0.1)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            layer.weight.mul_(gain)
            layer.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)
