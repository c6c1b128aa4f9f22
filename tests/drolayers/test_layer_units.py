"""A layer with integer decisions in other units: probabilities, decisions and gradients follow."""

from __future__ import annotations

from functools import cache

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from tests.drolayers.units import CHANGES, Units

THETA = torch.tensor([[1.0, 0.8, 0.3], [0.4, 1.2, 0.5], [0.2, 0.3, 0.2]], dtype=torch.float64)
OUTCOME = torch.tensor([[1.2, 0.7], [0.3, 1.1], [0.4, 0.2]], dtype=torch.float64)


@cache
def lots(units: Units) -> tuple[dro.DecisionProblem, cp.Variable, cp.Variable]:
    """Lots of given sizes and extras in any amount."""
    y = dro.Uncertain(2, dro.support.Nonnegative())
    chosen, extra = cp.Variable(4, boolean=True), cp.Variable(2)
    size = np.array([[0.2, 0.4, 0.6, 0.0], [0.1, 0.0, 0.0, 0.7]])
    stock = size @ chosen + extra / units.decision
    short, over = 2 * (y / units.outcomes - stock), stock - y / units.outcomes
    cost = 0.1 * cp.sum(chosen) + cp.sum_squares(extra / units.decision) + cp.sum(cp.maximum(short, over))
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    return dro.DecisionProblem(units.cost * cost, [], ambiguity), chosen, extra


def learn(units: Units, samples: int | str, temperature: float | dro.RelativeTemperature) -> dict[str, Tensor]:
    """What a step of training sees, in units of one."""
    problem, chosen, extra = lots(units)
    if not isinstance(temperature, dro.RelativeTemperature):
        temperature = temperature * units.cost
    layer = dro.DROLayer(problem, samples=samples, temperature=temperature, enumerate_up_to=0)  # type: ignore[arg-type]
    theta = THETA.clone().requires_grad_()
    u = units.outcomes
    decision = layer(theta * torch.tensor([u, u, u**2], dtype=torch.float64))
    assert bool(decision.ok.all()), decision
    loss = decision.expected(lambda x: problem.loss(x, u * OUTCOME)) / units.cost
    (gradient,) = torch.autograd.grad(loss.sum(), theta)
    return {
        "value": decision.value.detach() / units.cost,
        "chosen": decision.best[chosen].detach(),
        "extra": decision.best[extra].detach() / units.decision,
        "probabilities": decision.probabilities.detach(),
        "loss": loss.detach(),
        "gradient": gradient,
        "verified": verified(decision),
    }


def verified(decision: dro.Decision) -> Tensor:
    """Items whose candidates all have a derivative that was verified."""
    ok = torch.tensor([[dro.Derivative(code).ok for code in row] for row in decision.derivative.tolist()])
    return (ok | (decision.probabilities == 0)).all(1)


@pytest.mark.parametrize("k", [-6, -3, 3, 6])
@pytest.mark.parametrize("change", CHANGES)
def test_an_integer_layer(change: str, k: int) -> None:
    for samples, temperature in (("all", dro.RelativeTemperature(0.5)), (4, 0.3)):
        expected = learn(Units(), samples, temperature)
        found = learn(CHANGES[change](k), samples, temperature)
        both = expected.pop("verified") & found.pop("verified")
        # Far from one an item may say that it has no derivative.
        assert bool(both.any()) or (abs(k) > 3 and change != "all")
        expected["gradient"], found["gradient"] = expected["gradient"][both], found["gradient"][both]
        for name, value in expected.items():
            digits = 1e-6 if name in ("value", "chosen") else 1e-4
            torch.testing.assert_close(found[name], value, rtol=digits, atol=digits, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_a_relative_temperature_has_no_floor(size: float) -> None:
    """Objectives that differ in their last digits only, at any size; and those that do not differ at all."""
    from conelayers.surrogate.energy import compute_temperature

    objective = size * torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    every = torch.ones(3, 3, dtype=torch.bool)
    same = torch.zeros_like(objective)
    found = compute_temperature(dro.RelativeTemperature(), objective, objective.amin(1), same, every) / size
    torch.testing.assert_close(found[:2], torch.tensor([4 / 3, 1.0], dtype=torch.float64))
    assert float(found[2]) > 0
