"""Gradients of values: verified where the value has a derivative, flagged where it has a kink."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Derivative
from conelayers.engine.engine import ValueKinkWarning

STEP = 1e-6


def one_sided(value: object, theta: Tensor, row: int, entry: int) -> tuple[float, float]:
    """Differences of a value to the left and to the right."""
    step = torch.zeros_like(theta)
    step[row, entry] = STEP
    with torch.no_grad():
        before, here, after = (float(value(t)[row]) for t in (theta - step, theta, theta + step))
    return (here - before) / STEP, (after - here) / STEP


@pytest.mark.filterwarnings("ignore::conelayers.engine.engine.ValueKinkWarning")
def test_a_learnt_centre_on_a_given_mean() -> None:
    """The worst-case cost depends on the distance of two centres, whose norm has a kink at zero."""
    y, x = dro.Uncertain(1), cp.Variable()
    sets = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.Mean(mu=[1.0], sigma=0.0)])
    problem = dro.DecisionProblem(x + 3 * cp.sum(cp.pos(y - x)), [x == 1], sets)
    layer = dro.DROLayer(problem)
    theta = torch.tensor([[1.0, 0.5], [1.2, 0.5]], dtype=torch.float64, requires_grad=True)
    decision = layer(theta)
    decision.value.sum().backward()
    assert decision.value_derivative.tolist() == [Derivative.KINK, Derivative.FACE]
    left, right = one_sided(lambda t: layer(t).value, theta.detach(), 0, 0)
    assert abs(left - right) > 1e-3
    assert min(left, right) - 1e-4 <= float(theta.grad[0, 0]) <= max(left, right) + 1e-4
    left, right = one_sided(lambda t: layer(t).value, theta.detach(), 1, 0)
    assert left == pytest.approx(right, abs=1e-4) == float(theta.grad[1, 0])


@pytest.mark.parametrize("few", [0, 32])
def test_two_integer_points_of_one_value(few: int) -> None:
    """One lot serves either of two products: where both are alike, the value falls with the mean of either."""
    y, lots = dro.Uncertain(2), cp.Variable(2, boolean=True)
    moments = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(4 * cp.sum(cp.pos(y - 3 * lots)), [cp.sum(lots) == 1], moments)
    layer = dro.DROLayer(problem, candidates=2, enumerate_up_to=few)
    theta = torch.tensor([[2.0, 2.0, 0.5], [2.0, 2.5, 0.5]], dtype=torch.float64, requires_grad=True)
    decision = layer(theta)
    assert decision.value_derivative.tolist() == [Derivative.UNASKED] * 2
    with pytest.warns(ValueKinkWarning, match="1 of 2 items"):
        decision.value.sum().backward()
    assert decision.value_derivative.tolist() == [Derivative.KINK, Derivative.FACE]
    left, right = one_sided(lambda t: layer(t).value, theta.detach(), 0, 0)
    assert abs(left - right) > 1e-3
    assert min(left, right) - 1e-4 <= float(theta.grad[0, 0]) <= max(left, right) + 1e-4
    assert dro.Decision.cat([decision, decision]).value_derivative.tolist() == 2 * decision.value_derivative.tolist()
