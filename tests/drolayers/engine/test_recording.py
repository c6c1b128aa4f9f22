"""Recorded steps on a GPU: a replay takes its numbers from its own call, not from the one that was recorded."""

from __future__ import annotations

import pytest
import torch

from conelayers import Engine, Exact, Smoothed, Status
from conelayers.engine.solvers.interior import Interior
from conelayers.interior.torch_algebra import SystemPlan
from research.problems import Newsvendor
from tests.conelayers.interior.test_recording import CUDA, _budget


@CUDA
@pytest.mark.parametrize("gradient", [Exact(), Smoothed(1e-2)])
@pytest.mark.parametrize("items", [5, 6])
def test_two_solves_of_one_shape(items: int, gradient: Exact | Smoothed) -> None:
    """The newsvendor of the paper, whose systems need no pivots and so are recorded."""
    shop = Newsvendor("SOC-III")
    program = shop.problem.program
    engine = Engine(Interior(), gradient=gradient)
    for seed in (0, 1, 2):
        contexts = torch.rand(items, 1, generator=torch.Generator().manual_seed(seed)).double().numpy()
        packed = shop.problem.features(shop.full_knowledge(contexts))
        here, there = (packed.clone().to(device).requires_grad_() for device in ("cpu", "cuda"))
        expected, found = engine.solve(program, here), engine.solve(program, there)
        assert found.statuses == expected.statuses == [Status.OPTIMAL] * items
        torch.testing.assert_close(found.objective.cpu(), expected.objective, rtol=1e-7, atol=1e-7)
        expected.primal.sum().backward()
        found.primal.sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-3, atol=1e-3)


def test_these_programs_are_of_the_kind_that_is_recorded() -> None:
    for program in (Newsvendor("SOC-III").problem.program, _budget()):
        assert SystemPlan.of(program, torch.device("cpu")).arrow.pivot_free
