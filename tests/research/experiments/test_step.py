"""One training step by stage: that it runs, and what is made of its numbers. How long it takes is not tested."""

from __future__ import annotations

import math

import pytest
import torch

from drolayers.learning.pipeline import STAGES
from research.experiments.step import Step, StepTime, growth

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def _time(assets: int, *seconds: float) -> StepTime:
    return StepTime(assets, 1, dict(zip(STAGES, seconds, strict=True)), 0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_reports_every_stage(device: str) -> None:
    step = Step(10, batch=4, device=device)
    before = [p.detach().clone() for p in step.pipeline.model.parameters()]
    found = step.measure(steps=2, warm_up=1)
    assert tuple(found.seconds) == STAGES
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in found.seconds.values())
    assert (found.assets, found.group, found.masked) == (10, 1, 0)
    assert found.memory > 0
    assert found.total == pytest.approx(sum(found.seconds.values()))
    assert any(not torch.equal(old, new) for old, new in zip(before, step.pipeline.model.parameters(), strict=True))


def test_the_gradient_reaches_every_weight() -> None:
    step = Step(10, batch=6)
    step.run(torch.arange(6))
    for weight in step.pipeline.model.parameters():
        assert bool(weight.grad.isfinite().all())
    assert all(bool((weight.grad != 0).any()) for weight in step.pipeline.model.parameters())


def test_assets_may_share_a_bound() -> None:
    seconds, masked = Step(10, group=5, batch=3).run(torch.arange(3))
    assert tuple(seconds) == STAGES
    assert masked == 0


def test_one_seed_gives_one_step() -> None:
    found = []
    for _ in range(2):
        step = Step(10, batch=4, seed=3)
        step.run(torch.arange(4))
        found.append(torch.cat([p.detach().reshape(-1) for p in step.pipeline.model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("power", "factor"), [(1.0, 10.0), (2.0, 100.0), (0.0, 1.0), (0.5, 10.0**0.5)])
def test_growth_is_the_power_of_the_number_of_assets(power: float, factor: float) -> None:
    first = _time(20, 1.0, 0.5, 0.25, 2.0, 0.25)
    # Only the total counts, however it is spread over the stages.
    last = _time(200, 0.0, 0.0, 0.0, 4.0 * factor, 0.0)
    assert growth(first, last) == pytest.approx(power, abs=1e-12)
    assert growth(last, first) == pytest.approx(power, abs=1e-12)
