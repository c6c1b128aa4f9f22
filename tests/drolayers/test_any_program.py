"""What anybody may write in CVXPY beside ``y``: the program is the one written, or one sentence says why not."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import Status

MU, SIGMA = np.array([3.0, 4.0]), 1.0
THETA = torch.tensor([[*MU, SIGMA]], dtype=torch.float64)

Build = Callable[[cp.Variable], cp.Expression]


def shop() -> tuple[cp.Expression, cp.Variable, dro.MomentSet]:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True, name="x")
    return cp.sum(x) + 4 * cp.pos(y[0] - x[0]), x, dro.MomentSet(y, [dro.moments.SquaredNorm()])


def written(x: cp.Variable, beside: cp.Expression, constraints: list[cp.Constraint]) -> float:
    """The worst case of 4(y₁ - x₁)⁺ is that of its dual, min over β of σβ + (4(μ₁ - x₁) + 4/β)⁺."""
    beta = cp.Variable(pos=True)
    short = SIGMA * beta + cp.pos(4 * (MU[0] - x[0]) + 4 * cp.inv_pos(beta))
    return float(cp.Problem(cp.Minimize(cp.sum(x) + short + beside), constraints).solve(solver=cp.CLARABEL))


BESIDE: dict[str, Build] = {
    "holding cost": lambda x: 0.2 * cp.sum(cp.cumsum(x)),
    "level at the end": lambda x: 0.3 * cp.cumsum(x)[1] + cp.max(cp.cumsum(cp.cumsum(x) - 5)),
    "utility of both": lambda x: -cp.geo_mean(x),
    "information": lambda x: -cp.log_det(cp.diag(x) + np.eye(2)),
    "largest eigenvalue": lambda x: cp.lambda_max(cp.bmat([[x[0], 1.0], [1.0, x[1]]])),
    "kron": lambda x: cp.norm(cp.kron(np.ones((2, 2)), cp.diag(x)), "fro"),
    "ordered weights": lambda x: cp.dotsort(x, np.array([1.0, 0.5])),
}


@pytest.mark.parametrize("name", BESIDE)
def test_any_convex_function_of_the_decision_beside_y(name: str) -> None:
    cost, x, ambiguity = shop()
    beside = BESIDE[name](x)
    problem = dro.DecisionProblem(cost + beside, [cp.sum(x) >= 2], ambiguity)
    solution = problem.solve(THETA)
    assert solution.statuses == [Status.OPTIMAL]
    assert float(solution.objective) == pytest.approx(written(x, beside, [cp.sum(x) >= 2]), abs=1e-6)


def test_a_loss_that_torch_cannot_say_is_refused_when_it_is_asked_for() -> None:
    cost, x, ambiguity = shop()
    problem = dro.DecisionProblem(cost + cp.dotsort(x, np.array([1.0, 0.5])), [], ambiguity)
    with pytest.raises(dro.ModelError, match=r"dotsort.*torch loss of your own"):
        problem.loss({x: torch.ones(1, 2)}, torch.ones(1, 2))


def test_constraints_that_can_be_gone_through_but_once() -> None:
    cost, x, ambiguity = shop()
    for constraints in ([x <= 1], (x[i] <= 1 for i in range(2)), map(lambda i: x[i] <= 1, range(2))):
        problem = dro.DecisionProblem(cost, constraints, ambiguity)
        assert float(problem.solve(THETA).variable(x)[0, 0]) == pytest.approx(1.0, abs=1e-6)


def test_finite_sets_are_refused_in_a_sentence() -> None:
    cost, x, ambiguity = shop()
    with pytest.raises(dro.ModelError, match=r"FiniteSet.*by booleans"):
        dro.DecisionProblem(cost, [cp.FiniteSet(x[0], [1.0, 2.0])], ambiguity)
