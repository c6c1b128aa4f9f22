"""The multi-item newsvendor of the paper (section 6.1 and appendix D.1): retail in any amount, wholesale in lots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from conelayers.errors import ModelError
from drolayers.ambiguity import moments
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.cost.risk import cvar
from drolayers.layer import DROLayer
from drolayers.problem import DecisionProblem
from drolayers.support import Nonnegative
from drolayers.uncertainty import Uncertain

Array = NDArray[np.float64]

SETS = {
    "SOC-I": (moments.Norm(1),),
    "SOC-II": (moments.SquaredNorm(),),
    "SOC-III": (moments.Norm(1), moments.SquaredNorm()),
}
"""The paper's three ambiguity sets: E‖y - μ‖₁ ≤ σ, E‖y - μ‖² ≤ σ, and both."""


class Newsvendor:
    """Four items, each bought at retail (price ``a_c``) or in one wholesale lot of size ``v`` (price ``a_d``).

    Demand beyond the stock costs ``b`` a unit, stock beyond it ``d``. Given z ~ U[0, 1], demand i is normal, with
    mean ``base_i + 6(z - c_i)²`` and standard deviation ``1/(1 + 8|z - c_i|)``.

    Args:
        ambiguity: "SOC-I", "SOC-II" or "SOC-III".
        risk: level of the CVaR of the cost that is minimised, such as 0.95; None for the expected cost.

    Attributes:
        problem: the decision problem.
        retail: the continuous decision.
        wholesale: the binary decision.
    """

    covariates = ("z",)
    retail_price = np.array([0.25, 0.5, 0.75, 1.0])
    wholesale_price = 0.95 * retail_price
    lot = np.array([10.0, 13.0, 16.0, 19.0])
    shortage = np.array([2.0, 4.0, 6.0, 8.0])
    holding = np.array([0.5, 1.0, 1.5, 2.0])
    base = np.array([8.0, 11.0, 14.0, 17.0])
    centre = np.array([0.2, 0.4, 0.6, 0.8])

    def __init__(self, ambiguity: Literal["SOC-I", "SOC-II", "SOC-III"] = "SOC-III", risk: float | None = None) -> None:
        if ambiguity not in SETS:
            raise ModelError(f"There is no set {ambiguity!r} for the newsvendor: choose one of {sorted(SETS)}.")
        y = Uncertain(4, support=Nonnegative())
        self.retail = cp.Variable(4, nonneg=True, name="retail")
        self.wholesale = cp.Variable(4, boolean=True, name="wholesale")
        stock = self.retail + cp.multiply(self.lot, self.wholesale)
        cost = (
            self.retail_price @ self.retail
            + (self.wholesale_price * self.lot) @ self.wholesale
            + cp.sum(cp.maximum(cp.multiply(self.shortage, y - stock), cp.multiply(self.holding, stock - y)))
        )
        self.ambiguity = ambiguity
        cost = cost if risk is None else cvar(cost, risk)
        self.problem = DecisionProblem(cost, [], MomentSet(y, SETS[ambiguity]))

    def conditional(self, Z: Array) -> tuple[Array, Array]:
        """Means and standard deviations of the demands given contexts ``(n, 1)``."""
        gap = np.asarray(Z, dtype=float).reshape(-1, 1) - self.centre
        return self.base + 6.0 * gap**2, 1.0 / (1.0 + 8.0 * np.abs(gap))

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Contexts ``(count, 1)`` and demands ``(count, 4)``."""
        Z = rng.uniform(size=(count, 1))
        mean, deviation = self.conditional(Z)
        return Z, mean + deviation * rng.standard_normal(mean.shape)

    def demands(self, Z: Array, count: int, rng: np.random.Generator, shift: float = 0.0, scale: float = 1.0) -> Array:
        """Demands ``(n, count, 4)`` for contexts, also from conditional distributions moved away from the usual ones.

        Args:
            Z: contexts ``(n, 1)``.
            count: demands for each.
            rng: the source of noise.
            shift: added to the means.
            scale: of the standard deviations.
        """
        mean, deviation = self.conditional(Z)
        return mean[:, None] + shift + scale * deviation[:, None] * rng.standard_normal((len(mean), count, 4))

    def full_knowledge(self, Z: Array) -> Float[Tensor, "n theta"]:
        """θ of the prediction-focused benchmark: the true conditional mean and moments."""
        mean, deviation = self.conditional(Z)
        first = np.sqrt(2.0 / np.pi) * deviation.sum(1, keepdims=True)
        second = (deviation**2).sum(1, keepdims=True)
        bounds = {"SOC-I": (first,), "SOC-II": (second,), "SOC-III": (first, second)}[self.ambiguity]
        return torch.as_tensor(np.concatenate([part for bound in bounds for part in (mean, bound)], 1))

    @property
    def _fractile(self) -> Array:
        """The share of demands that the best stock at retail covers."""
        return (self.shortage - self.retail_price) / (self.shortage + self.holding)

    def expected_cost(self, Z: Array, retail: Array, wholesale: Array) -> Array:
        """The expected cost of decisions under the true conditional distribution, in closed form; ``(n,)``."""
        return self._item_costs(*self.conditional(Z), retail, wholesale).sum(1)

    def optimal(self, Z: Array) -> tuple[Array, Array]:
        """The decisions that are best under the true conditional distribution: item by item, lot or no lot."""
        mean, deviation = self.conditional(Z)
        # At retail the best stock is a quantile; a lot can only be topped up.
        target = mean + deviation * norm.ppf(self._fractile)
        choices = [(np.maximum(target - self.lot * lot, 0.0), np.full_like(mean, lot)) for lot in (0.0, 1.0)]
        costs = [self._item_costs(mean, deviation, retail, wholesale) for retail, wholesale in choices]
        lot_wins = costs[1] < costs[0]
        return np.where(lot_wins, choices[1][0], choices[0][0]), lot_wins.astype(float)

    def benchmark(self, Z: Array) -> tuple[Array, Array]:
        """The robust decisions for the sets of :meth:`full_knowledge`: the best that fitting sets to data can do."""
        layer = DROLayer(self.problem).eval()
        with torch.no_grad():
            parts = [layer(theta).best for theta in self.full_knowledge(Z).split(512)]
        return (
            torch.cat([part[self.retail] for part in parts]).numpy(),
            torch.cat([part[self.wholesale] for part in parts]).numpy(),
        )

    def realised_cost(self, retail: Array, wholesale: Array, Y: Array) -> Array:
        """The cost of decisions ``(n, 4)`` for demands ``(n, 4)``, or ``(n, m, 4)`` for m demands each."""
        stock = retail + self.lot * wholesale
        paid = (retail * self.retail_price + wholesale * self.lot * self.wholesale_price).sum(-1)
        if Y.ndim == 3:
            stock, paid = stock[:, None], paid[:, None]
        mismatch = np.maximum(self.shortage * (Y - stock), self.holding * (stock - Y)).sum(-1)
        return np.asarray(paid + mismatch)

    def sampled_optimum(self, rng: np.random.Generator, contexts: int = 400, demands: int = 200) -> float:
        """The optimal expected cost as the paper estimates it: for every context the best decision for a sample.

        That decision is fitted to the sample that it is judged by, so the estimate is a little too low on average.

        Args:
            rng: for contexts and demands.
            contexts: how many.
            demands: drawn for each.
        """
        mean, deviation = self.conditional(rng.uniform(size=(contexts, 1)))
        Y = np.sort(mean[:, None] + deviation[:, None] * rng.standard_normal((contexts, demands, 4)), axis=1)
        # The best stock at retail is a quantile of the sample, and costs are convex, so a lot is topped up to it.
        position = np.ceil(demands * self._fractile - 1e-9).astype(int) - 1
        target = np.stack([Y[:, position[item], item] for item in range(4)], 1)
        costs = []
        for lot in (0.0, 1.0):
            retail = np.maximum(target - self.lot * lot, 0.0)
            stock = (retail + self.lot * lot)[:, None]
            mismatch = np.maximum(self.shortage * (Y - stock), self.holding * (stock - Y)).mean(1)
            costs.append(retail * self.retail_price + lot * self.lot * self.wholesale_price + mismatch)
        return float(np.minimum(*costs).sum(1).mean())

    def mean_cost(self, policy: Callable[[Array], tuple[Array, Array]], points: int = 1000) -> float:
        """The expected cost of a policy over contexts and demands.

        Demands are integrated in closed form, the context (uniform, one-dimensional) by the midpoint rule, which is far
        more accurate than as many random contexts.

        Args:
            policy: from contexts ``(n, 1)`` to retail and wholesale decisions ``(n, 4)``.
            points: of the midpoint rule.
        """
        Z = (np.arange(points)[:, None] + 0.5) / points
        return float(self.expected_cost(Z, *policy(Z)).mean())

    def _item_costs(
        self,
        mean: Array,
        deviation: Array,
        retail: Array,
        wholesale: Array,
    ) -> Array:
        """Expected costs item by item."""
        stock = retail + self.lot * wholesale
        gap = (stock - mean) / deviation
        over = deviation * (gap * norm.cdf(gap) + norm.pdf(gap))
        paid = retail * self.retail_price + wholesale * self.lot * self.wholesale_price
        return np.asarray(paid + self.shortage * (over - (stock - mean)) + self.holding * over)
