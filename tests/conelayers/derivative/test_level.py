"""What a level of smoothing means: bounds and penalties that never bind do not move it, and neither do units."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Engine, Smoothed, Solution, compile_program, make_engine
from conelayers.engine.solvers.interior import Interior

WEIGHT = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
RETURNS = torch.tensor([[0.1, 0.12, 0.09]], dtype=torch.float64)
Answer = tuple[Tensor, Solution]


def asked(program: ConeProgram, features: Tensor, engine: Engine, x: cp.Variable) -> Answer:
    """The gradient of a weighted decision."""
    leaf = features.clone().requires_grad_()
    solution = engine.solve(program, leaf)
    (solution.variable(x) @ WEIGHT).sum().backward()
    return leaf.grad, solution


# --- Against the barrier problem itself -------------------------------------------------------------------------------


def portfolio(bound: float | None) -> tuple[ConeProgram, cp.Variable]:
    """Max θᵀx, Σx = 1, 0 ≤ x ≤ bound."""
    x, theta = cp.Variable(3, nonneg=True), cp.Parameter(3)
    room = [cp.sum(x) == 1] + ([] if bound is None else [x <= bound])
    return compile_program(cp.Problem(cp.Minimize(-theta @ x), room), [theta]), x


def literal(theta: np.ndarray, bound: float | None, level: float) -> float:
    """The weighted argmin of -θᵀx - level (Σ log x + Σ log(bound - x)), Σx = 1, by bisection, twice."""

    def at(price: float) -> np.ndarray:
        low, high = np.zeros(3), np.full(3, min(bound or np.inf, 1e3))
        for _ in range(70):
            x = (low + high) / 2
            slope = price - theta - level / x + (0.0 if bound is None else level / (bound - x))
            low, high = np.where(slope > 0, low, x), np.where(slope > 0, x, high)
        return (low + high) / 2

    low, high = -1e3, 1e3
    for _ in range(70):
        price = (low + high) / 2
        low, high = (price, high) if at(price).sum() > 1 else (low, price)
    return float(WEIGHT.numpy() @ at((low + high) / 2))


@pytest.mark.parametrize("level", [1e-1, 1e-2])
@pytest.mark.parametrize("algebra", ["numba", "torch"])
@pytest.mark.parametrize("bound", [None, 10.0, 1e2, 1e3, 1e5, 1e8])
def test_a_level_is_one_beside_the_largest_cost_that_counts(bound: float | None, algebra: str, level: float) -> None:
    program, x = portfolio(bound)
    found, solution = asked(program, RETURNS, Engine(Interior(algebra=algebra), gradient=Smoothed(level)), x)
    assert [d.name for d in solution.derivatives] == ["PATH"]
    theta, cost = RETURNS[0].numpy(), level * float(RETURNS.max())
    moved = 1e-4 * np.eye(3)
    expected = [(literal(theta + d, bound, cost) - literal(theta - d, bound, cost)) / 2e-4 for d in moved]
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-3)


# --- Units ------------------------------------------------------------------------------------------------------------


def curved(bound: float | None, unit: float) -> Answer:
    """Min Σx² - 2θᵀx, 0 ≤ x ≤ bound, in units of x: no right-hand side but the bound's."""
    x, theta = cp.Variable(3), cp.Parameter(3)
    room = [x >= 0] + ([] if bound is None else [x <= bound * unit])
    program = compile_program(cp.Problem(cp.Minimize(cp.sum_squares(x) - 2 * theta @ x), room), [theta])
    features = unit * torch.tensor([[1.0, 0.02, -0.5]], dtype=torch.float64)
    return asked(program, features, make_engine(gradient=Smoothed(1e-2)), x)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
@pytest.mark.parametrize("bound", [None, 10.0, 1e2, 1e4, 1e8])
def test_a_level_needs_no_right_hand_side(bound: float | None, unit: float) -> None:
    expected, _ = curved(None, 1.0)
    found, solution = curved(bound, unit)
    assert [d.name for d in solution.derivatives] == ["PATH"]
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("cost", "size"), [(1.0, 1.0), (1e3, 1.0), (1e-6, 1e5)])
@pytest.mark.parametrize("bound", [1e2, 1e5])
def test_a_far_bound_is_left_out_in_all_units(bound: float, cost: float, size: float) -> None:
    def answer(bound: float | None, cost: float, size: float) -> Tensor:
        x, theta = cp.Variable(3, nonneg=True), cp.Parameter(3)
        room = [cp.sum(x) == size, x[0] <= 0.7 * size] + ([] if bound is None else [x <= bound * size])
        program = compile_program(cp.Problem(cp.Minimize(-theta @ x), room), [theta])
        found, _ = asked(program, cost * RETURNS, make_engine(gradient=Smoothed(1e-2)), x)
        return found * cost / size

    found = answer(bound, cost, size)
    torch.testing.assert_close(found, answer(None, cost, size), rtol=1e-4, atol=1e-6)
    # Units are not found to the last digit, with the bound or without it.
    torch.testing.assert_close(found, answer(None, 1.0, 1.0), rtol=3e-2, atol=1e-6)


# --- Item by item, and only where there is something to leave out -----------------------------------------------------


def test_items_with_a_far_bound_do_not_feel_those_beside_them() -> None:
    x, theta, bound = cp.Variable(3, nonneg=True), cp.Parameter(3), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(-theta @ x), [cp.sum(x) == 1, x <= bound])
    program, engine = compile_program(problem, [theta, bound]), make_engine(gradient=Smoothed(1e-2))
    bounds = torch.tensor([[0.8], [1e6], [1.0], [50.0]], dtype=torch.float64).expand(-1, 3)
    features = torch.cat([RETURNS.expand(4, -1), bounds], 1)
    found, _ = asked(program, features, engine, x)
    alone = torch.cat([asked(program, one[None], engine, x)[0] for one in features])
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-14)
