"""Constraints on data: held in training, told in history, on fresh data about what was promised."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from tests.drolayers.learning.small import learner, sales, shop


def stall(kind: str) -> tuple[dro.DecisionProblem, cp.Variable]:
    """The less that is ordered the cheaper; a set that may shrink to nothing promises nothing."""
    y, x = dro.Uncertain(1), cp.Variable(name="x")
    rule = {
        "chance": lambda: dro.chance(y[0] <= x, 0.8),
        "expected": lambda: dro.expected(cp.pos(y[0] - x)) <= 0.2,
        "cvar": lambda: dro.cvar(y[0] - x, 0.8) <= 0.0,
    }[kind]()
    return dro.DecisionProblem(x, [rule], dro.MomentSet(y, [dro.moments.SquaredNorm()])), x


def demand(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.uniform(size=(count, 1))
    return Z, 5.0 + 2.0 * Z + (0.5 + Z) * rng.normal(size=(count, 1))


def trained(
    kind: str, violations: float | None, epochs: int = 7, size: int = 20, **settings: Any
) -> dro.DecisionFocusedLearner:
    model = learner(
        stall(kind)[0],
        projection=None,
        pretraining__epochs=6,
        pretraining__batch_size=30,
        training=dro.Stage(epochs=epochs, rate=2e-2, batch_size=size, violations=violations),
        **settings,
    )
    return model.fit(*demand(180, 0), validation=demand(240, 1) if not settings else None)


# Shares are known to 0.02 from 240 points, means and CVaRs to 0.04 and 0.15; nothing is held without being asked for.
@pytest.mark.parametrize(
    ("kind", "low", "high"), [("chance", 0.05, 0.15), ("expected", -0.1, 0.1), ("cvar", -0.4, 0.4)]
)
def test_the_rate_on_fresh_data_is_about_what_was_allowed(kind: str, low: float, high: float) -> None:
    held, fresh = trained(kind, 0.1), demand(1000, 2)
    (rate,) = held.violations(*fresh).values()
    assert low <= rate <= high
    assert {"violations/0", "val_violations/0"} <= set(held.history_["decision"][-1])
    if kind == "chance":
        (free,) = trained(kind, None, epochs=3).violations(*fresh).values()
        assert free > 0.4


def test_multipliers_follow_the_training_data_where_there_are_no_others() -> None:
    held = trained("chance", 0.2, trainer=dro.Trainer(progress=False, validation_share=0.0))
    (rate,) = held.violations(*demand(1500, 2)).values()
    assert 0.08 <= rate <= 0.32


def test_what_is_missed_has_a_derivative() -> None:
    """By central differences, over candidates with weights; and a quantile is positive where a share is too large."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    rules = [
        dro.chance(y <= x, 0.8),
        dro.expected(cp.sum(cp.pos(y - x))) <= 0.2,
        dro.cvar(y[0] - x[0], 0.7) + 2 * dro.cvar(y[1] - x[1], 0.5) + dro.expected(x[0] * y[1]) <= x[1],
    ]
    problem = dro.DecisionProblem(cp.sum(x), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    rng = torch.Generator().manual_seed(0)
    point, step = (torch.randn(7, 3, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    outcome = torch.randn(7, 2, generator=rng, dtype=torch.float64)
    weights, tilt = (torch.rand(7, 3, generator=rng, dtype=torch.float64) for _ in range(2))

    def missed(at: float, allowed: float | None = 0.3) -> torch.Tensor:
        found = problem.missed({x: point + at * step}, outcome, weights=weights + at * tilt, allowed=allowed)
        return torch.stack(list(found.values()))

    along = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slopes = [float(torch.autograd.grad(value, along, retain_graph=True)[0]) for value in missed(along)]
    np.testing.assert_allclose(slopes, (missed(1e-6) - missed(-1e-6)) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(("order", "enough"), [(1.0, False), (1.6, True)])
def test_a_quantile_is_positive_where_a_share_is_too_large(order: float, enough: bool) -> None:
    problem, x = stall("chance")
    outcomes = torch.as_tensor(np.random.default_rng(0).normal(size=(2000, 1)))
    chosen = {x: torch.full((2000,), order, dtype=torch.float64)}
    (share,), (quantile,) = (problem.missed(chosen, outcomes, allowed=a).values() for a in (None, 0.1))
    assert (float(share) < 0.1) is enough
    assert (float(quantile) < 0.0) is enough


def test_violations_that_make_no_sense() -> None:
    with pytest.raises(dro.ModelError, match="violations must lie"):
        dro.Stage(violations=1.0)
    with pytest.raises(dro.ModelError, match="constraints with worst cases"):
        learner(shop().problem, training__violations=0.1).fit(*sales())
