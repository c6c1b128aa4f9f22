"""Small mixed-integer problems with a batch of sets and outcomes, and the surrogate of each written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro

PRICE = np.array([0.25, 0.5, 0.75, 1.0])
LOT = np.array([10.0, 13.0, 16.0, 19.0])
SHORT = np.array([2.0, 4.0, 6.0, 8.0])
HOLD = np.array([0.5, 1.0, 1.5, 2.0])


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, parameters of a batch of its sets, outcomes, and a temperature of the size of its objectives."""

    problem: dro.DecisionProblem
    theta: Tensor
    y: Tensor
    temperature: float
    nominal: tuple[Tensor, Tensor] | None = None

    def loss(self, x: dict[cp.Variable, Tensor]) -> Tensor:
        """The cost of decisions at the outcomes."""
        return self.problem.loss(x, self.y)

    def decide(self, layer: dro.DROLayer, theta: Tensor) -> dro.Decision:
        """What a layer decides."""
        return layer(theta, self.nominal)

    def surrogate(self, layer: dro.DROLayer, theta: Tensor) -> Tensor:
        """The surrogate loss of every item."""
        return self.decide(layer, theta).expected(self.loss)

    def gradient(self, layer: dro.DROLayer) -> Tensor:
        """Derivative of every item's surrogate by its own parameters."""
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(self.surrogate(layer, theta).sum(), theta)[0]


@dataclass(frozen=True, eq=False)
class Table:
    """Everything the surrogate of one item is made of, at every feasible integer point.

    ``f_slope`` and ``l_slope`` are derivatives by θ, the latter through the continuous decision alone.
    """

    points: Tensor
    f: Tensor
    l: Tensor
    f_slope: Tensor
    l_slope: Tensor

    def value(self, temperature: float) -> Tensor:
        """r_λ = Σ p l, with p ∝ exp(-f/λ)."""
        return self.probabilities(temperature) @ self.l

    def probabilities(self, temperature: float) -> Tensor:
        """p ∝ exp(-f/λ)."""
        energy = torch.exp(-(self.f - self.f.min()) / temperature)
        return energy / energy.sum()

    def gradient(self, temperature: float) -> Tensor:
        """The three terms of theorem 4.14, with E'/E = -f'/λ."""
        p, ratio = self.probabilities(temperature), -self.f_slope / temperature
        return (p * self.l) @ ratio - (p @ self.l) * (p @ ratio) + p @ self.l_slope


def table(case: Case, item: int) -> Table:
    """Solve one item at every feasible integer point, each by itself."""
    points = case.problem.integer_points(None)
    assert points is not None
    count = points.shape[0]
    theta = case.theta[item].expand(count, -1).clone().requires_grad_()
    nominal = None
    if case.nominal is not None:
        nominal = (case.nominal[0][item].expand(count, -1, -1), case.nominal[1][item].expand(count, -1))
    solution = case.problem.solve(theta, nominal, fixed=points)
    assert bool(solution.ok.all())
    x = case.problem.decision(solution.primal)
    l = case.problem.loss(x, case.y[item].expand(count, -1))
    f_slope = torch.autograd.grad(solution.objective.sum(), theta, retain_graph=True)[0]
    moves = len(case.problem.variables) > len(case.problem.integer_variables)
    l_slope = torch.autograd.grad(l.sum(), theta)[0] if moves else torch.zeros_like(f_slope)
    return Table(points, solution.objective.detach(), l.detach(), f_slope, l_slope)


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Three items with one bound E(y-μ)² ≤ σ each, for which everything can be written down.

    With u the stock less μ, the worst case of b(y-s)⁺ + d(s-y)⁺ is min_β βσ + max(b²/4β - bu, d²/4β + du): one term
    alone for very small or very large u, both between. With the price a per unit and κ = a(b-d) + bd the best u is
    (b-d)√σ/(2√κ).
    """

    price: Tensor
    lot: Tensor
    short: Tensor
    hold: Tensor

    def case(self) -> Case:
        """As a problem of the library."""
        y = dro.Uncertain(3)
        retail, wholesale = cp.Variable(3, nonneg=True, name="retail"), cp.Variable(3, boolean=True, name="wholesale")
        price, lot, short, hold = (t.numpy() for t in (self.price, self.lot, self.short, self.hold))
        stock = retail + cp.multiply(lot, wholesale)
        cost = price @ retail + (0.9 * price * lot) @ wholesale
        cost += cp.sum(cp.maximum(cp.multiply(short, y - stock), cp.multiply(hold, stock - y)))
        problem = dro.DecisionProblem(cost, [], dro.MomentSet.grouped(y, 1))
        theta = torch.tensor([[2.2, 3.1, 1.4, 0.5, 0.9, 0.2]], dtype=torch.float64)
        return Case(problem, theta, torch.tensor([[2.9, 2.2, 1.2]], dtype=torch.float64), 1.5)

    def value(self, theta: Tensor, y: Tensor, temperature: float) -> Tensor:
        """r_λ for one item, differentiable as far as torch goes."""
        mu, sigma = theta[:3], theta[3:]
        wholesale = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=theta.dtype)] * 3)
        a, b, d, root = self.price, self.short, self.hold, sigma.sqrt()
        target = mu + (b - d) * root / (2 * (a * (b - d) + b * d).sqrt())
        retail = (target - self.lot * wholesale).clamp(min=0.0)
        stock = retail + self.lot * wholesale
        paid = retail @ a + wholesale @ (0.9 * a * self.lot)
        u = stock - mu
        both = (b - d) * sigma / (4 * u.clamp(min=1e-3)) + d * u + d**2 * u / (b - d)
        worst = torch.where(u > (b - d) * root / (2 * d), d * (u + root), both)
        worst = torch.where(u < (b - d) * root / (2 * b), b * (root - u), worst)
        f = paid + worst.sum(1)
        l = paid + torch.maximum(b * (y - stock), d * (stock - y)).sum(1)
        return torch.softmax(-f / temperature, 0) @ l


def closed_form() -> ClosedForm:
    return ClosedForm(*torch.tensor([[0.4, 0.6, 0.5], [1.5, 2.4, 1.0], [2.0, 3.0, 2.5], [0.5, 0.8, 0.6]]).double())


def newsvendor(moments: list[dro.moments.Moment], theta: list[list[float]]) -> Case:
    """The paper's four items: retail in any amount, wholesale in lots."""
    y = dro.Uncertain(4, support=dro.support.Nonnegative())
    retail, wholesale = cp.Variable(4, nonneg=True, name="retail"), cp.Variable(4, boolean=True, name="wholesale")
    stock = retail + cp.multiply(LOT, wholesale)
    cost = (
        PRICE @ retail
        + (0.95 * PRICE * LOT) @ wholesale
        + cp.sum(cp.maximum(cp.multiply(SHORT, y - stock), cp.multiply(HOLD, stock - y)))
    )
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, moments))
    outcome = torch.tensor([[9.3, 11.8, 14.6, 18.9], [7.7, 12.4, 16.4, 16.1]], dtype=torch.float64)
    return Case(problem, torch.tensor(theta, dtype=torch.float64), outcome, 5.0)


@cache
def soc2() -> Case:
    return newsvendor([dro.moments.SquaredNorm()], [[8.2, 11.1, 14.3, 17.2, 1.7], [8.9, 12.7, 15.1, 16.6, 2.6]])


@cache
def soc3() -> Case:
    first, second = [8.2, 11.1, 14.3, 17.2, 1.9], [8.9, 12.7, 15.1, 16.6, 2.3]
    other = [8.0, 11.3, 14.1, 17.4, 1.6], [9.1, 12.5, 15.3, 16.4, 2.5]
    return newsvendor([dro.moments.Norm(1), dro.moments.SquaredNorm()], [first + other[0], second + other[1]])


@cache
def two_stage() -> Case:
    """Capacity in lots and in any amount; shortage is bought, surplus sold, and one good replaces the other."""
    y = dro.Uncertain(2)
    lots, extra = cp.Variable(3, boolean=True, name="lots"), cp.Variable(2, nonneg=True, name="extra")
    size = np.array([[1.0, 0.5, 0.0], [0.0, 0.7, 1.2]])
    q = np.array([3.0, 2.5, -0.3, -0.2, 0.6])
    W = np.array([[1.0, 0, -1, 0, -1], [0, 1, 0, -1, 1]])
    cost = (
        np.array([0.9, 1.1, 1.0]) @ lots
        + np.array([1.3, 1.2]) @ extra
        + 0.05 * cp.sum_squares(extra)
        + dro.recourse(q, W, y - size @ lots - extra)
    )
    problem = dro.DecisionProblem(cost, [extra <= 5], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[1.4, 1.9, 0.3], [2.2, 0.8, 0.5]], dtype=torch.float64)
    return Case(problem, theta, torch.tensor([[1.9, 1.5], [1.6, 1.3]], dtype=torch.float64), 0.5)


@cache
def ball() -> Case:
    """Three items under a Wasserstein ball of order 2 around five atoms."""
    y = dro.Uncertain(3)
    lot, extra = cp.Variable(3, boolean=True, name="lot"), cp.Variable(3, nonneg=True, name="extra")
    stock = extra + 1.5 * lot
    cost = 0.4 * cp.sum(extra) + 0.5 * cp.sum(lot) + 0.1 * cp.sum_squares(extra)
    cost += cp.sum(cp.maximum(2.0 * (y - stock), 0.7 * (stock - y)))
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, atoms=5, norm=2, order=2))
    rng = np.random.default_rng(3)
    atoms = torch.as_tensor(rng.uniform(0.8, 2.6, (2, 5, 3)))
    weights = torch.as_tensor(rng.dirichlet(np.full(5, 2.0), 2))
    theta, outcome = torch.tensor([[0.4], [0.7]]), torch.tensor([[1.4, 2.3, 1.1], [1.9, 0.9, 2.2]])
    return Case(problem, theta.double(), outcome.double(), 0.8, (atoms, weights))


@cache
def knapsack() -> Case:
    """Integers alone: choose at most three of six, return against risk."""
    y = dro.Uncertain(6)
    x = cp.Variable(6, boolean=True, name="x")
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) <= 3], dro.MomentSet.grouped(y, 2))
    rng = np.random.default_rng(4)
    theta = torch.as_tensor(np.concatenate([rng.uniform(0.2, 1.0, (2, 6)), rng.uniform(0.02, 0.2, (2, 3))], 1))
    return Case(problem, theta, torch.as_tensor(rng.uniform(0.0, 1.2, (2, 6))), 0.3)


@cache
def cardinality() -> Case:
    """At most three of seven assets, of which one alone cannot meet the budget: 56 of 128 points are feasible."""
    y = dro.Uncertain(7)
    held, chosen = cp.Variable(7, nonneg=True, name="held"), cp.Variable(7, boolean=True, name="chosen")
    constraints = [cp.sum(held) == 1, held <= 0.6 * chosen, cp.sum(chosen) <= 3]
    cost = -y @ held + 0.3 * cp.sum_squares(held)
    problem = dro.DecisionProblem(cost, constraints, dro.MomentSet.grouped(y, 7))
    rng = np.random.default_rng(5)
    theta = torch.as_tensor(np.concatenate([rng.uniform(0.0, 0.6, (2, 7)), rng.uniform(0.05, 0.3, (2, 1))], 1))
    return Case(problem, theta, torch.as_tensor(rng.uniform(-0.2, 0.8, (2, 7))), 0.1)


@cache
def assignment() -> Case:
    """Three jobs to three workers, and overtime, of which some is useful: 6 of 512 points are feasible."""
    y = dro.Uncertain(9)
    x, over = cp.Variable((3, 3), boolean=True, name="x"), cp.Variable(nonneg=True, name="over")
    time = cp.sum(cp.multiply(np.array([[1.0, 1.4, 1.2], [1.6, 1.0, 1.1], [1.3, 1.5, 0.9]]), x))
    cost = y @ cp.vec(x, order="C") + 0.8 * cp.square(over) - 1.2 * y[0] * over
    constraints = [cp.sum(x, 0) == 1, cp.sum(x, 1) == 1, time <= 2.5 + over]
    problem = dro.DecisionProblem(cost, constraints, dro.MomentSet.grouped(y, 3))
    rng = np.random.default_rng(6)
    theta = torch.as_tensor(np.concatenate([rng.uniform(0.5, 2.0, (2, 9)), rng.uniform(0.1, 0.5, (2, 3))], 1))
    return Case(problem, theta, torch.as_tensor(rng.uniform(0.5, 2.0, (2, 9))), 0.7)


@cache
def integers() -> Case:
    """General integers of either sign beside a continuous part."""
    y = dro.Uncertain(2)
    steps = cp.Variable(2, integer=True, bounds=[np.array([-1, 0]), np.array([2, 3])], name="steps")
    rest = cp.Variable(2, name="rest")
    cost = cp.sum(cp.maximum(1.5 * (y - steps - rest), 0.5 * (steps + rest - y))) + cp.sum_squares(rest)
    problem = dro.DecisionProblem(cost, [cp.sum(steps) >= 0], dro.MomentSet.grouped(y, 1))
    theta = torch.tensor([[0.6, 1.3, 0.2, 0.4], [-0.7, 2.2, 0.5, 0.1]], dtype=torch.float64)
    return Case(problem, theta, torch.tensor([[0.8, 1.1], [-0.2, 2.6]], dtype=torch.float64), 0.6)


@cache
def portfolio() -> Case:
    """Twelve lots and four free assets, with objectives of size 1e-2."""
    y = dro.Uncertain(16)
    lots, free = cp.Variable(12, boolean=True, name="lots"), cp.Variable(4, nonneg=True, name="free")
    held = cp.hstack([lots / 16, free])
    cost = -y @ held + 0.01 * cp.sum_squares(free)
    problem = dro.DecisionProblem(cost, [cp.sum(held) == 1], dro.MomentSet.grouped(y, 4))
    rng = np.random.default_rng(7)
    mean, spread = rng.normal(0.0, 0.02, (1, 16)), rng.uniform(0.02, 0.04, (1, 4)) ** 2
    theta = torch.as_tensor(np.concatenate([mean, spread], 1))
    return Case(problem, theta, torch.as_tensor(mean + rng.normal(0.0, 0.03, (1, 16))), 10.0)


CASES: dict[str, Callable[[], Case]] = {
    "SOC-II": soc2,
    "SOC-III": soc3,
    "two-stage": two_stage,
    "Wasserstein": ball,
    "knapsack": knapsack,
    "cardinality": cardinality,
    "assignment": assignment,
    "integers": integers,
}
