"""Both algebras of the interior-point method, held to the same operations and the same answers on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conelayers import Engine
from conelayers.engine.solvers.interior import Interior
from conelayers.interior.elimination import Elimination
from research.problems import Newsvendor, Portfolio
from tests.conelayers.interior.test_algebras import _long_cone, _program


@pytest.mark.parametrize("threads", [1, 2])
def test_an_item_does_not_feel_those_beside_it(threads: int) -> None:
    """Among others, and among copies of itself: the same to the last bit, whoever stands in the next lane."""
    shop, engine = Newsvendor("SOC-III"), Engine(Interior())
    rng = np.random.default_rng(3)
    theta = shop.full_knowledge(rng.uniform(size=(16, 1))) * torch.as_tensor(10.0 ** rng.uniform(-2, 2, (16, 1)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = shop.problem.solve(theta, engine=engine)
        assert len(set(together.iterations.tolist())) > 2
        for k in range(16):
            alone = shop.problem.solve(theta[k].expand(16, -1), engine=engine)
            assert torch.equal(together.primal[k], alone.primal[0]), k
    finally:
        torch.set_num_threads(before)


PROGRAMS = {
    "newsvendor": lambda: Newsvendor("SOC-III").problem.program,
    "portfolio": lambda: Portfolio(50, 10, 5).problem.program,
    "qp": lambda: _program("qp"),
    "short cone": lambda: _long_cone(12),
    "long cone": lambda: _long_cone(94),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_fills_in_is_foreseen(name: str) -> None:
    """Eliminating a column ties everything below it together: all of that must have a place."""
    plan = Elimination.of(PROGRAMS[name]())
    below = [set(plan.below[plan.start[j] : plan.start[j + 1]].tolist()) for j in range(plan.nodes)]
    for column in below:
        if column:
            first = min(column)
            assert column - {first} <= below[first]
    places = np.concatenate([plan.A, plan.P[plan.P >= 0], plan.diagonal, plan.square, plan.edge])
    assert places.min(initial=0) >= 0
    assert places.max(initial=0) < plan.length
    assert sorted(plan.position.tolist()) == list(range(plan.nodes))


def test_blocks_and_budgets_fill_in_linearly() -> None:
    small, large = (Elimination.of(Portfolio(n, n // 5, 5).problem.program).length for n in (100, 200))
    assert large < 2.1 * small
