"""Worst distributions hold no mass outside of the support, however little."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro

PIECES, DIM = 4, 2


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", ["ball", "moments"])
def test_noise_is_no_mass(kind: str, known: bool) -> None:
    """Costs of several pieces, whose rows have next to no mass where they do not attain the worst case."""
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    for _ in range(4):
        end = cp.Parameter(DIM, nonneg=True, name="end") if known else 5.0
        y, x = dro.Uncertain(DIM, support=dro.support.Box(0.0, end)), cp.Variable(DIM)
        cost = cp.max(rng.normal(size=(PIECES, DIM)) @ y + rng.normal(size=(PIECES, DIM)) @ x + rng.normal(size=PIECES))
        around = 5 * uniform(20, 5, DIM), torch.full((20, 5), 0.2, dtype=torch.float64)
        if kind == "ball":
            cost = cost + 0.5 * cp.sum(cp.pos(y - x))
            problem, nominal = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 5)), around
            theta = 10 ** (3 * uniform(20, 1) - 3)
        else:
            shapes = [dro.moments.Norm(1), dro.moments.SquaredNorm()]
            problem, nominal = dro.DecisionProblem(cost, [], dro.MomentSet(y, shapes)), None
            mean = 1 + 3 * uniform(20, DIM)
            theta = torch.cat([mean, 0.1 + uniform(20, 1), mean, 0.1 + uniform(20, 1)], 1)
        told = {"end": torch.full((20, DIM), 5.0, dtype=torch.float64)} if known else None
        chosen = {x: 5 * uniform(20, DIM)}
        found = problem.worst_case_distribution(chosen, theta, nominal, told)
        there = found.atoms[found.probabilities > 0]
        assert float(there.min()) >= -1e-5
        assert float(there.max()) <= 5 + 1e-5
        losses = problem.loss(
            {x: chosen[x][:, None].expand(*found.atoms.shape).flatten(0, 1)},
            found.atoms.flatten(0, 1),
            None if told is None else {"end": told["end"].repeat_interleave(found.atoms.shape[1], 0)},
        )
        attained = (losses.reshape(20, -1) * found.probabilities).sum(1) + found.escaping_cost
        np.testing.assert_allclose(attained, problem.worst_case_cost(chosen, theta, nominal, told), rtol=1e-6)
        np.testing.assert_allclose(found.probabilities.sum(1), 1.0, rtol=1e-8)
