"""Recorded steps on a GPU: a replay takes its numbers from its own call, not from the one that was recorded."""

from __future__ import annotations

import pytest
import torch

from drolayers.conic.engine import Engine, Exact, Smoothed
from drolayers.conic.gpu import Batched, _rounded
from drolayers.problems import Newsvendor
from drolayers.status import Status
from tests.conic.families import family

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_sizes_of_batches_are_rounded_up_to_few() -> None:
    sizes = [_rounded(items) for items in range(1, 1001)]
    assert all(size >= items for items, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert [_rounded(n) for n in (1, 2, 3, 4, 5, 7, 9, 17, 100, 101, 129)] == [1, 2, 3, 4, 6, 8, 12, 24, 100, 128, 192]
    assert len(set(sizes)) < 30


@CUDA
@pytest.mark.parametrize("gradient", [Exact(), Smoothed(1e-2)])
@pytest.mark.parametrize("items", [5, 6])
def test_two_solves_of_one_shape(items: int, gradient: Exact | Smoothed) -> None:
    """The newsvendor of the paper, whose systems need no pivots and so are recorded."""
    shop = Newsvendor("SOC-III")
    program = shop.problem.program
    engine = Engine(Batched(), gradient=gradient)
    torch.manual_seed(0)
    for seed in (0, 1, 2):
        contexts = torch.rand(items, 1, generator=torch.Generator().manual_seed(seed)).double().numpy()
        packed = program.pack(shop.problem.ambiguity.unpack(shop.full_knowledge(contexts)))
        here, there = packed.clone().requires_grad_(), packed.cuda().requires_grad_()
        expected, found = engine.solve(program, here), engine.solve(program, there)
        assert found.statuses == expected.statuses == [Status.OPTIMAL] * items
        torch.testing.assert_close(found.objective.cpu(), expected.objective, rtol=1e-7, atol=1e-7)
        expected.primal.sum().backward()
        found.primal.sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-3, atol=1e-3)


@CUDA
def test_statuses_are_those_of_the_call() -> None:
    """A solvable batch, then one with an infeasible item at the same place, then the first again."""
    member = family("fragile_lp")
    engine = Engine(Batched())
    good = member.theta(4, seed=0)
    bad = good.clone()
    bad[2, -1] = -1.0
    for theta, wanted in ((good, Status.OPTIMAL), (bad, Status.INFEASIBLE), (good, Status.OPTIMAL)):
        statuses = engine.solve(member.program, theta.cuda()).statuses
        assert statuses == [Status.OPTIMAL, Status.OPTIMAL, wanted, Status.OPTIMAL]
