"""Which nodes the plan of the linear systems takes as coupling, and what is left without them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch

import drolayers as dro
from conelayers.interior.arrow import ArrowPlan, system_pattern
from research.problems import Newsvendor


def _items(count: int) -> ArrowPlan:
    """A newsvendor of so many items, under both moments."""
    y = dro.Uncertain(count, support=dro.support.Nonnegative())
    stock = cp.Variable(count, nonneg=True)
    cost = cp.sum(stock) + cp.sum(cp.maximum(4.0 * (y - stock), stock - y))
    both = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
    return ArrowPlan.of(system_pattern(dro.DecisionProblem(cost, [], both).program))


def test_the_newsvendor_is_tied_by_its_two_multipliers_alone() -> None:
    """One block an item, although in so small a program other nodes have as many neighbours."""
    plan = ArrowPlan.of(system_pattern(Newsvendor("SOC-III").problem.program))
    assert plan.coupling.numel() == 2
    assert [group.count for group in plan.groups] == [4]
    assert plan.pivot_free


def test_more_items_are_more_blocks_not_larger_ones() -> None:
    small, large = _items(50), _items(100)
    assert small.coupling.numel() == large.coupling.numel() == 2
    assert [group.count for group in small.groups] == [50]
    assert [group.count for group in large.groups] == [100]
    assert [group.size for group in small.groups] == [group.size for group in large.groups]
    corner = small.coupling.numel() ** 2
    assert large.length - corner == 2 * (small.length - corner)


def test_a_system_is_solved_through_its_plan() -> None:
    rng = np.random.default_rng(3)
    pattern = system_pattern(Newsvendor("SOC-III").problem.program).toarray() != 0
    half = rng.normal(size=pattern.shape) * pattern
    matrix = half + half.T + 60.0 * np.eye(len(half))
    plan = ArrowPlan.of(sp.csr_array(pattern.astype(float)))
    i, j = np.nonzero(pattern)
    at, stored = plan.place(i, j)
    flat = torch.zeros(plan.length, 1, dtype=torch.float64)
    flat[torch.as_tensor(at[stored]), 0] = torch.as_tensor(matrix[i, j][stored])
    rhs = rng.normal(size=len(half))
    found = plan.factor(flat).solve(torch.as_tensor(rhs)[:, None])[:, 0].numpy()
    np.testing.assert_allclose(matrix @ found, rhs, atol=1e-10)
