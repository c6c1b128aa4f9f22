"""Small problems and data for the baselines."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import drolayers as dro


class Shop:
    """Two items, each bought in any amount or, where there are lots, in a lot of two."""

    def __init__(self, lots: bool = False, support: Any = None) -> None:
        y = dro.Uncertain(2, support=dro.support.Nonnegative() if support is None else support)
        self.retail = cp.Variable(2, nonneg=True, name="retail")
        self.lots = cp.Variable(2, boolean=True, name="lots") if lots else None
        self.problem = dro.DecisionProblem(self.cost(y), [cp.sum(self.retail) <= 5.5], ambiguity=set_of(y))

    def cost(self, y: Any) -> cp.Expression:
        stock = self.retail if self.lots is None else self.retail + 2.0 * self.lots
        paid = cp.sum(self.retail) if self.lots is None else cp.sum(self.retail) + 1.8 * cp.sum(self.lots)
        return paid + cp.sum(cp.maximum(4.0 * (y - stock), stock - y))


def set_of(y: dro.Uncertain) -> dro.MomentSet:
    return dro.MomentSet(y, [dro.moments.SquaredNorm()])


def sales(count: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Contexts (count, 2) and demands (count, 2) with a mean of 2 + z."""
    rng = np.random.default_rng(seed)
    Z = rng.uniform(size=(count, 2))
    return Z, 2.0 + Z + 0.3 * np.abs(rng.standard_normal((count, 2)))
