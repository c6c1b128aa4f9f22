"""The worst case of a constraint that binds is zero, the difference of terms that are not, and it is known."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro

BATCH, ATOMS = 24, 6
TURN = np.array([[1.0, 0.3], [-0.2, 1.0]])


@pytest.mark.parametrize(
    ("order", "norm", "unit"), [(1, 2, 1.0), (1, 1, 1.0), (1, np.inf, 1e6), (2, 1, 1.0), (2, 2, 1e-6)]
)
@pytest.mark.parametrize("kind", ["chance", "expected"])
def test_binding_constraints_have_worst_cases_and_distributions(
    kind: str, order: int, norm: float, unit: float
) -> None:
    rng = torch.Generator().manual_seed(0)
    y, x = dro.Uncertain(2), cp.Variable(2)
    rows = TURN @ y - x
    rule = dro.chance(rows <= 0, 0.7) if kind == "chance" else dro.expected(cp.max(rows)) <= 0
    problem = dro.DecisionProblem(cp.sum(x), [rule], dro.Wasserstein(y, ATOMS, order=order, norm=norm))
    theta = torch.full((BATCH, 1), 0.15 * unit, dtype=torch.float64)
    atoms = unit * torch.randn(BATCH, ATOMS, 2, generator=rng, dtype=torch.float64)
    nominal = atoms, torch.full((BATCH, ATOMS), 1 / ATOMS, dtype=torch.float64)
    decision = dro.DROLayer(problem)(theta, nominal)
    best = {x: decision.best[x].detach()}
    worst = problem.worst_case(best, theta, nominal, of=rule)[:, 0]
    np.testing.assert_allclose(worst, 0.0, atol=1e-8 * unit)
    # And the distribution proves it, with what escapes; by so much more where the decision is worse by so much.
    found = problem.worst_case_distribution(best, theta, nominal, of=rule)
    values = (found.atoms @ torch.as_tensor(TURN).T - best[x][:, None]).amax(2)
    if kind == "chance":
        above = (values[:, None, :] - values[:, :, None]).clamp(min=0.0)
        values = (values + (above * found.probabilities[:, None]).sum(2) / 0.3).amin(1, keepdim=True)
        attained = values[:, 0]
    else:
        attained = (found.probabilities * values).sum(1)
    np.testing.assert_allclose(attained + found.escaping_cost, worst, atol=1e-7 * unit)
    shifted = {x: best[x] - 0.05 * unit}
    np.testing.assert_allclose(problem.worst_case(shifted, theta, nominal, of=rule), 0.05 * unit, rtol=1e-6)


def test_what_is_infinite_stays_so() -> None:
    """An infinite worst case is not taken for one whose terms cancel."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    rule = dro.expected(cp.max(TURN @ y - x)) <= 0
    ambiguity = dro.MomentSet(y, [dro.moments.Linear([1.0, 0.0])])
    problem = dro.DecisionProblem(cp.sum(x), [rule], ambiguity)
    worst = problem.worst_case({x: torch.zeros(3, 2, dtype=torch.float64)}, torch.ones(3, ambiguity.size), of=rule)
    assert bool((worst == torch.inf).all())
