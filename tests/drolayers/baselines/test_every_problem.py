"""Sample averages are the layer on the data themselves, whatever is uncertain in costs and constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.baselines import SampleAverage, WeightedSampleAverage
from drolayers.baselines.sibling import affine

COUNT, NEAR = 12, 5
Model = tuple[Any, list[cp.Constraint]]
ON_AVERAGE = ("portfolio", "choice", "mean bounded")
"""Where the mean of the outcomes tells all."""


def two_stages(y: dro.Uncertain, x: cp.Variable, *more: Callable[[cp.Variable], cp.Constraint]) -> cp.Expression:
    """A second stage that buys what is missing, five times as dear."""
    v = cp.Variable(2, nonneg=True)
    return dro.recourse(cp.Minimize(5 * cp.sum(v)), [v >= y - x, *(made(v) for made in more)])


def few(v: cp.Variable) -> cp.Constraint:
    return cp.sum(v) <= 1.5


PROBLEMS: dict[str, Callable[..., Model]] = {
    "portfolio": lambda y, x, n, p: (cp.Maximize(y @ x), [cp.sum(x) == 1]),
    "choice": lambda y, x, n, p: (cp.Maximize(y @ n), [cp.sum(n) <= 1]),
    "mean bounded": lambda y, x, n, p: (cp.sum(x), [dro.expected(y @ x) >= 1]),
    "newsvendor": lambda y, x, n, p: (cp.sum(x) + 3 * cp.sum(cp.pos(y - x)), []),
    "profit": lambda y, x, n, p: (cp.Maximize(3 * cp.sum(cp.minimum(y, x)) - cp.sum(x)), []),
    "cvar": lambda y, x, n, p: (dro.cvar(-y @ x, 0.7), [cp.sum(x) == 1]),
    "always": lambda y, x, n, p: (cp.sum(x), [dro.always(x >= y)]),
    "always, integers": lambda y, x, n, p: (cp.sum(n), [dro.always(n >= y), n <= 9]),
    "always, affine cost": lambda y, x, n, p: (cp.Maximize(y @ x), [dro.always(y @ x <= 1)]),
    "always, curved": lambda y, x, n, p: (cp.sum(x), [dro.always(cp.max(y - x) <= 0.1)]),
    "always, own set": lambda y, x, n, p: (cp.sum(x), [dro.always(x >= y, ambiguity=dro.Divergence(y, COUNT, "tv"))]),
    "shortage bounded": lambda y, x, n, p: (cp.sum(x), [dro.expected(cp.sum(cp.pos(y - x))) <= 0.2]),
    "tail bounded": lambda y, x, n, p: (cp.sum(x), [dro.cvar(-y @ x, 0.7) <= -0.5]),
    "chance": lambda y, x, n, p: (cp.sum(x), [dro.chance(x >= y, 0.7)]),
    "square": lambda y, x, n, p: (cp.square(y @ x - 1) + 0.1 * cp.sum_squares(x), []),
    "square, maximised": lambda y, x, n, p: (cp.Maximize(y @ x - cp.square(y @ x)), []),
    "squares, integers": lambda y, x, n, p: (cp.sum_squares(y - n), [n <= 5]),
    "logistic": lambda y, x, n, p: (cp.logistic(-y @ x) + 0.1 * cp.sum_squares(x), []),
    "huber": lambda y, x, n, p: (cp.sum(cp.huber(y - x, 0.3)), []),
    "square bounded": lambda y, x, n, p: (cp.sum_squares(x), [dro.expected(cp.square(y @ x - 1)) <= 0.4]),
    "logistic bounded": lambda y, x, n, p: (cp.sum_squares(x), [dro.expected(cp.logistic(-y @ x)) <= 0.4]),
    "second stage": lambda y, x, n, p: (cp.sum(x) + two_stages(y, x), []),
    "second stage, tight": lambda y, x, n, p: (cp.sum(x) + two_stages(y, x, few), []),
    "second stage, equation": lambda y, x, n, p: (cp.sum(x) + two_stages(y, x, lambda v: v == x - y), []),
    "second stage bounded": lambda y, x, n, p: (cp.sum(x), [dro.expected(two_stages(y, x)) <= 1]),
    "known price": lambda y, x, n, p: (p @ x + 3 * cp.sum(cp.pos(y - x)), []),
    "known, always": lambda y, x, n, p: (cp.sum(x), [dro.always(x >= y - p)]),
    "known, square": lambda y, x, n, p: (cp.square(y @ x - 1) + cp.sum_squares(x - p), []),
}
"""Of outcomes y, amounts x, whole numbers n and known prices p."""


@pytest.mark.parametrize("policy", [SampleAverage, WeightedSampleAverage])
@pytest.mark.parametrize("name", PROBLEMS)
def test_sample_averages_are_the_layer_on_the_data(name: str, policy: Any) -> None:
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    n, price = cp.Variable(2, integer=True, bounds=[0, 9]), cp.Parameter(2, nonneg=True, name="price")
    cost, constraints = PROBLEMS[name](y, x, n, price)
    problem = dro.DecisionProblem(cost, constraints, dro.Divergence(y, COUNT))
    assert affine(problem) == (name in ON_AVERAGE)
    rng = np.random.default_rng(0)
    Z, Y = np.linspace(0, 1, COUNT)[:, None], rng.uniform(0.5, 3.0, size=(COUNT, 2))
    known = {"price": np.full((COUNT, 2), 0.4)} if problem.known else None
    some = COUNT if policy is SampleAverage else NEAR
    fitted = policy(problem) if policy is SampleAverage else policy(problem, dro.nominal.KNN(k=NEAR))
    decision = fitted.fit(Z, Y, known=known).decide(torch.as_tensor(Z[:1]), known and {"price": known["price"][:1]})

    constraints = [dro.always(x >= y)] if name == "always, own set" else constraints
    exact = dro.DecisionProblem(cost, constraints, dro.Empirical(y, some))
    told = known and {"price": torch.as_tensor(known["price"])}
    outcomes, none = torch.as_tensor(Y[:some]), torch.zeros(1, 0, dtype=torch.float64)
    nominal = (outcomes[None], torch.full((1, some), 1 / some, dtype=torch.float64))
    best = dro.DROLayer(exact).eval()(none, nominal, told and {"price": told["price"][:1]})
    assert best.status.item() == 0
    chosen = {v: value.expand(some, *v.shape) for v, value in decision.items()}
    found = exact.loss(chosen, outcomes, told and {"price": told["price"][:some]})
    assert float(found.mean()) == pytest.approx(float(best.value), abs=1e-5)
    held = exact.missed(chosen, outcomes, told and {"price": told["price"][:some]})
    assert all(float(missed) <= (0.3 if name == "chance" else 1e-6) for missed in held.values())


@pytest.mark.parametrize("policy", [SampleAverage, WeightedSampleAverage])
def test_what_holds_always_holds_at_every_outcome(policy: Any) -> None:
    y, x = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(1, nonneg=True)
    v, Y, Z = cp.Variable(1, nonneg=True), np.array([[1.0], [2.0], [3.0], [10.0]]), np.zeros((4, 1))
    moments = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    for problem in (
        dro.DecisionProblem(cp.sum(x), [dro.always(x >= y)], moments),
        dro.DecisionProblem(cp.sum(x) + dro.recourse(cp.Minimize(5 * cp.sum(v)), [v == x - y]), [], moments),
    ):
        np.testing.assert_allclose(policy(problem).fit(Z, Y).decide(Z)[x], 10.0, rtol=1e-6)


def test_least_squares_with_a_ridge_are_those_of_the_textbook() -> None:
    y, w = dro.Uncertain(2), cp.Variable(2)
    Y, Z = np.random.default_rng(0).normal(size=(40, 2)), np.zeros((40, 1))
    problem = dro.DecisionProblem(cp.square(y @ w - 1) + 0.1 * cp.sum_squares(w), [], dro.Divergence(y, 40))
    expected = np.linalg.solve(Y.T @ Y / 40 + 0.1 * np.eye(2), Y.mean(0))
    np.testing.assert_allclose(SampleAverage(problem).fit(Z, Y).decide(Z)[w][0], expected, rtol=1e-6)
    bound = 0.97
    problem = dro.DecisionProblem(
        cp.sum_squares(w), [dro.expected(cp.square(y @ w - 1)) <= bound], dro.Divergence(y, 40)
    )
    chosen = SampleAverage(problem).fit(Z, Y).decide(Z)[w][0]
    assert ((Y @ chosen - 1) ** 2).mean() == pytest.approx(bound, abs=1e-6)
