"""What a level of smoothing means: bounds and penalties that never bind do not move it, and neither do units."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import ConeProgram, Engine, Solution, compile_program, make_engine
from conelayers.engine.solvers.interior import Interior
from conelayers.scaling.units import Units
from tests.conic.strangers import stranger

WEIGHT = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
RETURNS = torch.tensor([[0.1, 0.12, 0.09]], dtype=torch.float64)
Answer = tuple[Tensor, Solution]


def asked(program: ConeProgram, features: Tensor, engine: Engine, x: cp.Variable) -> Answer:
    """The gradient of a weighted decision."""
    leaf = features.clone().requires_grad_()
    solution = engine.solve(program, leaf)
    (solution.variable(x) @ WEIGHT).sum().backward()
    return leaf.grad, solution


# --- Bounds and penalties that never bind -----------------------------------------------------------------------------


def stock(bound: float | None = None, penalty: float | None = None, level: float = 1e-2) -> tuple[Tensor, str]:
    """The gradient of a newsvendor's stock of two goods, and its code."""
    y, x, over = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True), 0.0
    cost = cp.sum(x) + 4 * cp.sum(cp.pos(y - x)) + cp.sum(cp.pos(x - y)) + 0.05 * cp.sum_squares(x)
    if penalty is not None:
        over = cp.Variable(nonneg=True)
        cost = cost + penalty * over
    room = [cp.sum(x) <= 7 + over] + ([] if bound is None else [x <= bound])
    problem = dro.DecisionProblem(cost, room, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[3, 3.3, 1.5]], dtype=torch.float64, requires_grad=True)
    decision = dro.DROLayer(problem, gradient=dro.Smoothed(level))(theta)
    assert bool(decision.ok.all())
    (decision.best[x] @ WEIGHT[:2]).sum().backward()
    return theta.grad[0], dro.Derivative(int(decision.derivative[0, 0])).name


@pytest.mark.parametrize("level", [1e-1, 1e-2])
@pytest.mark.parametrize("bound", [1e2, 1e4, 1e6, 1e8, 1e11])
def test_bounds_that_never_bind_leave_a_smoothed_gradient_as_it_is(bound: float, level: float) -> None:
    expected, _ = stock(level=level)
    found, code = stock(bound=bound, level=level)
    assert code == "PATH"
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("penalty", [1e4, 1e6, 1e8])
def test_penalties_that_are_not_paid_leave_a_smoothed_gradient_as_it_is(penalty: float) -> None:
    expected, _ = stock()
    found, code = stock(penalty=penalty)
    assert code == "PATH"
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("penalty", [1e11, 1e13])
def test_penalties_beyond_all_numbers_are_right_or_masked(penalty: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, code = stock(penalty=penalty)
    if code == "UNVERIFIED":
        assert float(found.abs().max()) == 0.0
    else:
        torch.testing.assert_close(found, stock()[0], rtol=1e-2, atol=1e-3)


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
    found, solution = asked(program, RETURNS, Engine(Interior(algebra=algebra), gradient=dro.Smoothed(level)), x)
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
    return asked(program, features, make_engine(gradient=dro.Smoothed(1e-2)), x)


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
        found, _ = asked(program, cost * RETURNS, make_engine(gradient=dro.Smoothed(1e-2)), x)
        return found * cost / size

    found = answer(bound, cost, size)
    torch.testing.assert_close(found, answer(None, cost, size), rtol=1e-4, atol=1e-6)
    # Units are not found to the last digit, with the bound or without it.
    torch.testing.assert_close(found, answer(None, 1.0, 1.0), rtol=3e-2, atol=1e-6)


# --- Item by item, and only where there is something to leave out -----------------------------------------------------


def test_items_with_a_far_bound_do_not_feel_those_beside_them() -> None:
    x, theta, bound = cp.Variable(3, nonneg=True), cp.Parameter(3), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(-theta @ x), [cp.sum(x) == 1, x <= bound])
    program, engine = compile_program(problem, [theta, bound]), make_engine(gradient=dro.Smoothed(1e-2))
    bounds = torch.tensor([[0.8], [1e6], [1.0], [50.0]], dtype=torch.float64).expand(-1, 3)
    features = torch.cat([RETURNS.expand(4, -1), bounds], 1)
    found, _ = asked(program, features, engine, x)
    alone = torch.cat([asked(program, one[None], engine, x)[0] for one in features])
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("costs", ["usual", "of either sign", "next to nothing on some ways"])
def test_nothing_is_left_out_of_a_shortest_path(costs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are what is learnt: none is a penalty because another way costs next to nothing."""
    counts, near = [], Units.near

    def counted(*given: object) -> tuple[Tensor, Units, object]:
        answer = near(*given)
        counts.append(len(answer[0]))
        return answer

    monkeypatch.setattr(Units, "near", counted)
    one = stranger("path")
    leaf = one.leaves(50, seed=1)
    noise = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(0), dtype=leaf.dtype)
    change: dict[str, Callable[[], Tensor]] = {
        "usual": lambda: leaf,
        "of either sign": lambda: noise,
        "next to nothing on some ways": lambda: torch.nn.functional.softplus(8 * noise),
    }
    for level in (1.0, 1e-1, 1e-2, 1e-3):
        moved = change[costs]().clone().requires_grad_()
        solution = one.solve(moved, make_engine(gradient=dro.Smoothed(level)))
        (solution.primal * one.weights(50, seed=2)).sum().backward()
        assert {d.name for d in solution.derivatives} == {"PATH"}
    assert counts == [0] * 4
