"""Recorded steps on a GPU: a replay takes its numbers from its own call, not from the one that was recorded."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

from conelayers import ConeProgram, Engine, Status, compile_program
from conelayers.engine.solvers.interior import Interior
from conelayers.program.replay import rounded

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_sizes_of_batches_are_rounded_up_to_few() -> None:
    for width, most in ((100, 16), (100_000, 30)):
        sizes = [rounded(items, width) for items in range(1, 1001)]
        assert all(size >= items for items, size in enumerate(sizes, 1))
        assert len(set(sizes)) <= most
    assert [rounded(n, 100) for n in (1, 8, 9, 33, 100, 129, 200)] == [8, 8, 32, 128, 100, 512, 200]
    # Where numbers are many, padding costs what it adds.
    assert [rounded(n, 100_000) for n in (1, 2, 3, 5, 9, 17, 100, 101, 129)] == [1, 2, 3, 6, 12, 24, 100, 128, 192]


def _budget() -> ConeProgram:
    """Twenty amounts up to one, tied by a budget: no more than twenty can be spent."""
    x, c, h = cp.Variable(20, nonneg=True), cp.Parameter(20), cp.Parameter()
    return compile_program(cp.Problem(cp.Minimize(c @ x), [x <= 1, cp.sum(x) == h]), [c, h])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_statuses_are_those_of_the_call(device: str) -> None:
    """A solvable batch, then one with an infeasible item at the same place, then the first again."""
    program, engine = _budget(), Engine(Interior())
    good = torch.cat([torch.randn(4, 20, generator=torch.Generator().manual_seed(0)), torch.full((4, 1), 5.5)], 1)
    bad = good.clone()
    bad[2, -1] = 21.0
    for theta, wanted in ((good, Status.OPTIMAL), (bad, Status.INFEASIBLE), (good, Status.OPTIMAL)):
        statuses = engine.solve(program, theta.double().to(device)).statuses
        assert statuses == [Status.OPTIMAL, Status.OPTIMAL, wanted, Status.OPTIMAL]
