"""What a level of smoothing means: bounds and penalties that never bind do not move it, and neither do units."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import make_engine
from conelayers.scaling.units import Units
from tests.conelayers.derivative.test_level import WEIGHT
from tests.drolayers.engine.strangers import stranger

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
