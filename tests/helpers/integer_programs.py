"""Random families of mixed-integer programs, small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch

from conelayers import ConeProgram, compile_program
from conelayers.program.program import Values


@dataclass(frozen=True, eq=False)
class Family:
    """A compiled program and parameters for a batch."""

    program: ConeProgram
    theta: torch.Tensor

    @property
    def values(self) -> Values:
        """The numbers of every program."""
        return self.program.values(self.theta)


def portfolio(rng: np.random.Generator, batch: int, assets: int = 24, group: int = 4, mixed: bool = False) -> Family:
    """The mixed-integer portfolio of the paper; ``mixed`` spreads the binaries over all groups."""
    binaries = assets // 4
    held, lots = cp.Variable(assets - binaries, nonneg=True), cp.Variable(binaries, boolean=True)
    share = np.full(binaries, 1.0 / assets)
    x = cp.hstack([cp.multiply(share, lots), held])
    order = rng.permutation(assets) if mixed else np.arange(assets)
    groups = cp.reshape(x[order], (group, assets // group), order="F")
    mu, root = cp.Parameter(assets, name="mu"), cp.Parameter(assets // group, nonneg=True, name="root")
    t = cp.Variable(assets // group)
    problem = cp.Problem(cp.Minimize(-mu @ x + root @ t), [cp.sum(held) + share @ lots == 1, cp.SOC(t, groups, axis=0)])
    returns = 1e-2 * rng.standard_normal((batch, assets))
    variances = (5e-2 * np.exp(0.3 * rng.standard_normal((batch, assets)))) ** 2
    roots = np.sqrt(variances.reshape(batch, -1, group).sum(2))
    return _family(problem, [mu, root], [returns, roots])


def newsvendor(rng: np.random.Generator, batch: int, items: int = 6) -> Family:
    """Retail and wholesale; worst case over mean and variance (Scarf), one cone an item, a joint budget."""
    lot = rng.uniform(0.5, 2.0, items)
    retail, wholesale = cp.Variable(items, nonneg=True), cp.Variable(items, boolean=True)
    stock = retail + cp.multiply(lot, wholesale)
    mean, deviation = cp.Parameter(items), cp.Parameter(items, nonneg=True)
    short, hold = rng.uniform(3, 5, items), rng.uniform(0.2, 1, items)
    t = cp.Variable(items)
    worst = 0.5 * (short - hold) @ (mean - stock) + 0.5 * (short + hold) @ t
    cost = 2.0 * cp.sum(retail) + (1.5 * lot) @ wholesale + worst
    constraints = [cp.SOC(t, cp.vstack([deviation, mean - stock]), axis=0), cp.sum(retail) <= 3.0]
    values = [rng.uniform(0.5, 2, (batch, items)), rng.uniform(0.1, 0.6, (batch, items))]
    return _family(cp.Problem(cp.Minimize(cost), constraints), [mean, deviation], values)


def knapsack(rng: np.random.Generator, batch: int, items: int = 7) -> Family:
    """Pure integer, with a risk term over all items and capacity."""
    x, t = cp.Variable(items, boolean=True), cp.Variable()
    worth, risk = cp.Parameter(items), cp.Parameter(nonneg=True)
    weight = rng.uniform(1, 3, items)
    spread = rng.standard_normal((3, items))
    problem = cp.Problem(
        cp.Minimize(-worth @ x + risk * t), [weight @ x <= 0.4 * weight.sum(), cp.norm(spread @ x) <= t]
    )
    return _family(problem, [worth, risk], [rng.uniform(0, 2, (batch, items)), rng.uniform(0, 1, (batch, 1))])


def assignment(rng: np.random.Generator, batch: int, size: int = 3) -> Family:
    """Each job to one worker; the longest time counts as well."""
    x, span = cp.Variable((size, size), boolean=True), cp.Variable()
    cost = cp.Parameter((size, size))
    times = rng.uniform(1, 2, (size, size))
    rows = cp.sum(cp.multiply(times, x), axis=1)
    problem = cp.Problem(
        cp.Minimize(cp.sum(cp.multiply(cost, x)) + span), [cp.sum(x, 0) == 1, cp.sum(x, 1) == 1, rows <= span]
    )
    return _family(problem, [cost], [rng.standard_normal((batch, size * size))])


def cardinality(rng: np.random.Generator, batch: int, assets: int = 7) -> Family:
    """At most three assets, quadratic risk; a point with no asset is infeasible."""
    x, chosen = cp.Variable(assets, nonneg=True), cp.Variable(assets, boolean=True)
    mu = cp.Parameter(assets)
    factor = rng.standard_normal((assets, assets)) / np.sqrt(assets)
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(factor @ x) - mu @ x), [cp.sum(x) == 1, x <= chosen, cp.sum(chosen) <= 3]
    )
    return _family(problem, [mu], [0.3 * rng.standard_normal((batch, assets))])


def covering(rng: np.random.Generator, batch: int, items: int = 6) -> Family:
    """A demand that some items of the batch cannot meet: those are infeasible."""
    x, extra = cp.Variable(items, boolean=True), cp.Variable(nonneg=True)
    cost, demand = cp.Parameter(items), cp.Parameter()
    size = rng.uniform(1, 2, items)
    problem = cp.Problem(cp.Minimize(cost @ x + 3 * extra), [size @ x + extra >= demand, extra <= 1])
    values = [rng.uniform(0.5, 1.5, (batch, items)), rng.uniform(0.3, 1.4, (batch, 1)) * (size.sum() + 1)]
    return _family(problem, [cost, demand], values)


def integers(rng: np.random.Generator, batch: int) -> Family:
    """General integers of either sign, a continuous part and a norm."""
    x, y = cp.Variable(3, integer=True, bounds=[np.array([-2, 0, -1]), np.array([2, 3, 1])]), cp.Variable(2)
    target, price = cp.Parameter(3), cp.Parameter(2)
    A, B = rng.standard_normal((3, 3)), rng.standard_normal((3, 2))
    problem = cp.Problem(
        cp.Minimize(cp.norm(A @ x + B @ y - target) + price @ y), [cp.norm(y, "inf") <= 1, cp.sum(x) >= 0]
    )
    values = [2 * rng.standard_normal((batch, 3)), 0.3 * rng.standard_normal((batch, 2))]
    return _family(problem, [target, price], values)


def pure(rng: np.random.Generator, batch: int) -> Family:
    """Linear, integer only, with an equation."""
    x = cp.Variable(4, integer=True, bounds=[0, 3])
    cost = cp.Parameter(4)
    problem = cp.Problem(cp.Minimize(cost @ x), [np.array([1, 2, 1, 3]) @ x == 6, x[0] + x[1] <= 4])
    return _family(problem, [cost], [rng.standard_normal((batch, 4))])


def ties(rng: np.random.Generator, batch: int, items: int = 6) -> Family:
    """Identical items: only how many are taken matters."""
    x, t = cp.Variable(items, boolean=True), cp.Variable()
    level = cp.Parameter()
    problem = cp.Problem(cp.Minimize(t), [cp.abs(cp.sum(x) - level) <= t])
    return _family(problem, [level], [rng.uniform(0, items, (batch, 1))])


def prices(rng: np.random.Generator, batch: int, items: int = 5) -> Family:
    """A matrix for every item of the batch, with zeros where others have none: each has feasible points of its own."""
    x, extra = cp.Variable(items, boolean=True), cp.Variable(2, nonneg=True)
    price, room, worth = cp.Parameter(items, nonneg=True), cp.Parameter(nonneg=True), cp.Parameter(items)
    problem = cp.Problem(
        cp.Minimize(cp.sum(extra) - worth @ x), [price @ x <= room + extra[0], extra <= 0.5, cp.sum(x) + extra[1] >= 2]
    )
    asked = rng.uniform(0.5, 2, (batch, items)) * (rng.uniform(size=(batch, items)) < 0.8)
    return _family(problem, [price, room, worth], [asked, rng.uniform(0, 2, (batch, 1)), rng.normal(size=asked.shape)])


def deviations(rng: np.random.Generator, batch: int, items: int = 5) -> Family:
    """A cone for every item of the batch."""
    x, t = cp.Variable(items, boolean=True), cp.Variable()
    deviation, worth = cp.Parameter(items, nonneg=True), cp.Parameter(items)
    problem = cp.Problem(
        cp.Minimize(t - worth @ x), [cp.norm(cp.multiply(deviation, x)) <= t, cp.sum(x) >= 1, t <= 1.5]
    )
    values = [rng.uniform(0.5, 2, (batch, items)), rng.uniform(0, 1, (batch, items))]
    return _family(problem, [deviation, worth], values)


FAMILIES: dict[str, Callable[[np.random.Generator, int], Family]] = {
    "portfolio": portfolio,
    "portfolio_single": lambda rng, batch: portfolio(rng, batch, 20, 1),
    "portfolio_mixed": lambda rng, batch: portfolio(rng, batch, 24, 4, mixed=True),
    "newsvendor": newsvendor,
    "knapsack": knapsack,
    "assignment": assignment,
    "cardinality": cardinality,
    "covering": covering,
    "integers": integers,
    "pure": pure,
    "ties": ties,
    "prices": prices,
    "deviations": deviations,
}

LINEAR = ("assignment", "covering", "pure", "ties", "prices")


def _family(problem: cp.Problem, parameters: list[cp.Parameter], values: list[np.ndarray]) -> Family:
    batch = values[0].shape[0]
    theta = np.concatenate([v.reshape(batch, -1) for v in values], 1)
    return Family(compile_program(problem, parameters), torch.from_numpy(theta))
