from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from conelayers.surrogate.proposal import ProposalInput
from drolayers import Energy
from drolayers.nominal import KNN
from research.experiments.protocols import PROTOCOLS
from research.experiments.published import Pretraining, PublishedEnergy, PublishedModel, pretrained
from research.problems import Newsvendor, Portfolio, PortfolioData


def proposal_input(binaries: int = 8, best: int = 3) -> ProposalInput:
    """The best points of a box with nearly equal energies, as at a temperature of ten."""
    points = torch.zeros(2, best, binaries, dtype=torch.float64)
    points[:, 1, 0] = points[:, 2, 1] = 1.0
    objective = torch.tensor([[0.0, 0.01, 0.02], [0.0, 1.0, 2.0]], dtype=torch.float64)
    zero = torch.zeros(binaries, dtype=torch.float64)
    temperature = torch.full((2,), 10.0, dtype=torch.float64)
    return ProposalInput(points, objective, torch.ones(2, best, dtype=torch.bool), zero, zero + 1, temperature)


def test_published_weights_leave_out_the_outside_mass() -> None:
    """Inside both agree; outside, the published intensity is the right one without its outside mass p."""
    at, right = proposal_input(), Energy(ratio=0.5, cap=0.2)
    outside = torch.ones(2, 1, 8, dtype=torch.float64)
    published = PublishedEnergy(right)
    assert torch.equal(published.log_intensity(at, at.points, 4), right.log_intensity(at, at.points, 4))
    # Capped: the outside mass is 0.2 of the inside mass, shared by all but three of 256 points.
    p = 0.2 / 1.2
    assert right.log_intensity(at, outside, 4)[:, 0].tolist() == pytest.approx([math.log(p / 253)] * 2)
    assert published.log_intensity(at, outside, 4)[:, 0].tolist() == pytest.approx([math.log(1 / 256)] * 2)


def test_published_draws_are_the_right_ones() -> None:
    at = proposal_input()
    right = Energy().sample(at, 50, np.random.default_rng(3))
    published = PublishedEnergy().sample(at, 50, np.random.default_rng(3))
    assert torch.equal(right.points, published.points)
    assert torch.equal(right.valid, published.valid)
    inside = at.is_best(right.points)
    assert 0 < int((~inside).sum()) < inside.numel()
    assert torch.equal(inside, (right.log_intensity - published.log_intensity).abs() < 1e-12)


def test_right_weights_are_unbiased_and_published_ones_are_not() -> None:
    """The mean of 1/q over draws counts the points of the box, if q is what was drawn with."""
    at, count = proposal_input(), 20000
    ratios = {}
    for name, proposal in (("right", Energy()), ("published", PublishedEnergy())):
        draws = proposal.sample(at, count, np.random.default_rng(0))
        ratios[name] = float((-draws.log_intensity[0]).exp().mean()) / 256
    assert ratios["right"] == pytest.approx(1.0, rel=0.05)
    assert ratios["published"] == pytest.approx(3 / 256 + 0.2 / 1.2, rel=0.05)


def test_pretraining_finds_the_neighbours_mean_and_deviation() -> None:
    """Without noise in the context there is one right answer: mean and mean squared deviation of all points."""
    rng = np.random.default_rng(0)
    Z, Y = np.zeros((40, 2)), np.array([1.0, -2.0]) + rng.standard_normal((40, 2))
    ambiguity = Portfolio(2).problem.ambiguity
    nominal = KNN(k=40).fit(Z, Y)
    settings = Pretraining(hidden=(8,), epochs=200, lr=0.05, divisor=5.0, every=80, batch_size=40)
    model = pretrained(ambiguity, nominal, Z, settings, seed=0)  # type: ignore[arg-type]
    with torch.no_grad():
        raw = model.raw(torch.zeros(1, 2, dtype=torch.float64))[0]
    np.testing.assert_allclose(raw[:2], Y.mean(0), atol=0.02)
    np.testing.assert_allclose(raw[2:], Y.var(0), atol=0.05)


def test_the_model_gives_sets_that_hold_the_neighbours() -> None:
    newsvendor = Newsvendor("SOC-III")
    Z, Y = newsvendor.draw(40, np.random.default_rng(0))
    nominal = KNN(k=5).fit(Z, Y)
    settings = PROTOCOLS["newsvendor"]["paper"].published
    assert settings is not None
    ambiguity = newsvendor.problem.ambiguity
    model = PublishedModel(ambiguity, nominal, 1, settings, seed=0)  # type: ignore[arg-type]
    z = torch.as_tensor(Z[:7])
    theta = model(z)
    atoms, weights = nominal(z)
    needed = (weights[..., None] * ambiguity.values(theta, atoms)).sum(1)  # type: ignore[attr-defined]
    bounds = torch.cat(ambiguity.sigmas(theta), 1)  # type: ignore[attr-defined]
    assert bool((needed <= bounds + 1e-6).all())
    # Widths of the appendix: 1-60-60-4 and 1-60-60-1, twice.
    shapes = [tuple(p.shape) for p in model.networks.parameters() if p.dim() == 2]
    assert shapes == [(60, 1), (60, 60), (4, 60), (60, 1), (60, 60), (1, 60)] * 2


def test_two_seeds_two_models_one_seed_one_model() -> None:
    data = PortfolioData.generate(4, 60)
    ambiguity = Portfolio(4).problem.ambiguity
    nominal = KNN(k=5).fit(data.Z, data.Y)
    settings = Pretraining(hidden=(3,), epochs=1, batch_size=20)
    first, again, other = (
        pretrained(ambiguity, nominal, data.Z, settings, seed).raw(torch.as_tensor(data.Z[:2]))  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
