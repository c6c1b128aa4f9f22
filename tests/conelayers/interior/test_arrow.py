"""Which nodes the plan of the linear systems takes as coupling, and what is left without them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from conelayers.interior.arrow import ArrowPlan


@pytest.mark.parametrize("count", [40, 700])
def test_a_hub_is_found_however_many_nodes_there_are(count: int) -> None:
    """Below 500 nodes by the pairs that a node ties together, above by its degree."""
    pattern = sp.lil_array((count, count))
    pattern.setdiag(1.0)
    pattern[count // 2, :] = 1.0
    pattern[:, count // 2] = 1.0
    plan = ArrowPlan.of(sp.csr_array(pattern))
    assert plan.coupling.tolist() == [count // 2]
    assert [(group.size, group.count) for group in plan.groups] == [(1, count - 1)]


def test_ties_count_more_than_neighbours() -> None:
    """A node in a clique has many neighbours, but they meet without it: the bridge between two cliques goes first."""
    size = 8
    pattern = np.zeros((2 * size + 1, 2 * size + 1))
    pattern[:size, :size] = pattern[size:-1, size:-1] = 1.0
    pattern[-1, :] = pattern[:, -1] = 1.0
    plan = ArrowPlan.of(sp.csr_array(pattern))
    assert plan.coupling.tolist() == [2 * size]
    assert [(group.size, group.count) for group in plan.groups] == [(size, 2)]
