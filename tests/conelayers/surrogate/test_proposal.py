"""Proposals: what is drawn, how often, and with which intensity."""

from __future__ import annotations

import itertools
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers.errors import ModelError
from conelayers.surrogate.proposal import Draws, Energy, Proposal, ProposalInput, Stratified

PROPOSALS: list[Proposal] = [Stratified(), Energy(), Energy(ratio=0.9, cap=2.0)]


def proposal_input(batch: int = 2, temperature: float = 0.5) -> ProposalInput:
    """Three best points in a box of 3·2·4 = 24, the last slot of the second item empty."""
    points = torch.tensor([[[0, 1, 2], [1, 0, 0], [-1, 1, 3]], [[1, 1, 1], [0, 0, 0], [0, 0, 0]]], dtype=torch.float64)
    objective = torch.tensor([[1.0, 1.2, 1.9], [-3.0, -2.5, torch.inf]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True], [True, True, False]])
    lower, upper = torch.tensor([-1.0, 0, 0], dtype=torch.float64), torch.tensor([1.0, 1, 3], dtype=torch.float64)
    pick = torch.arange(2).repeat(batch // 2)
    heat = torch.full((batch,), temperature, dtype=torch.float64)
    return ProposalInput(points[pick], objective[pick], valid[pick], lower, upper, heat)


def box(batch: int = 2) -> Tensor:
    grid = list(itertools.product(range(-1, 2), range(2), range(4)))
    return torch.tensor(grid, dtype=torch.float64).expand(batch, -1, -1)


def counts(draws: Draws, points: Tensor) -> Tensor:
    """How often every point of the box was drawn, item by item."""
    same = (draws.points[:, :, None] == points[:, None]).all(-1) & draws.valid[:, :, None]
    assert bool((same.sum(-1) == draws.valid).all()), "a draw is outside the box"
    return same.sum(1)


@pytest.mark.parametrize("proposal", [Energy(), Energy(ratio=0.9, cap=2.0), Energy(ratio=1e-3)], ids=repr)
def test_energy_is_a_distribution_over_the_box(proposal: Energy) -> None:
    total = proposal.log_intensity(proposal_input(), box(), 5).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("count", [1, 5, 64])
def test_stratified_intensities_count_the_best_and_the_draws(count: int) -> None:
    intensity = Stratified().log_intensity(proposal_input(), box(), count).exp()
    torch.testing.assert_close(intensity.sum(1), torch.tensor([3.0, 2.0], dtype=torch.float64) + count)
    best = proposal_input().is_best(box())
    assert bool((intensity[best] == 1).all())


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_intensities_match_frequencies(proposal: Proposal) -> None:
    drawn, batch = 40, 4000
    here = proposal_input(batch)
    found = counts(proposal.sample(here, drawn, np.random.default_rng(0)), box(batch))
    scale = drawn if isinstance(proposal, Energy) else 1
    for item in (0, 1):
        expected = scale * proposal.log_intensity(proposal_input(), box(), drawn)[item].exp()
        mean = found[item::2].double().mean(0)
        error = (expected / (batch // 2)).sqrt()
        assert bool(((mean - expected).abs() <= 5 * error).all())


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_draws_carry_their_own_intensity(proposal: Proposal) -> None:
    draws = proposal.sample(proposal_input(), 30, np.random.default_rng(1))
    torch.testing.assert_close(
        draws.log_intensity, proposal.log_intensity(proposal_input(), draws.points, 30), rtol=0, atol=0
    )
    again = proposal.sample(proposal_input(), 30, np.random.default_rng(1))
    assert torch.equal(draws.points, again.points)


def test_stratified_has_the_best_and_never_draws_them_again() -> None:
    draws = Stratified().sample(proposal_input(), 200, np.random.default_rng(2))
    assert torch.equal(draws.points[:, :3], proposal_input().points)
    assert torch.equal(draws.valid[:, :3], proposal_input().valid)
    assert not bool(proposal_input().is_best(draws.points[:, 3:]).any())


def test_constant_is_half_the_last_energy_under_a_cap() -> None:
    energy = torch.exp(-torch.tensor([1.0, 1.2, 1.9], dtype=torch.float64) / 0.5)
    inside, outside = float(energy.sum()), 21
    capped = 0.2 * inside / outside
    assert capped < 0.5 * float(energy[2])
    for proposal, constant in ((Energy(), capped), (Energy(cap=100.0), 0.5 * float(energy[2]))):
        total = inside + outside * constant
        log_intensity = proposal.log_intensity(proposal_input(), box(), 7)[0]
        best = proposal_input().is_best(box())[0]
        torch.testing.assert_close(log_intensity[~best].exp(), torch.full((21,), constant / total, dtype=torch.float64))
        torch.testing.assert_close(log_intensity[best].exp().sort().values, (energy / total).sort().values)


def exact_logarithms(binaries: int, count: int) -> tuple[float, float, float]:
    """log of the stratified intensity outside, and of the energy proposal's q at the best point and outside."""
    getcontext().prec = 1200
    outside = Decimal(2) ** binaries - 3
    energy = [(-Decimal(f) / 2).exp() for f in (1, 2, 4)]
    inside = sum(energy)
    constant = min(energy[2] / 2, inside / 5 / outside)
    total = inside + outside * constant
    return float((Decimal(count) / outside).ln()), float((energy[0] / total).ln()), float((constant / total).ln())


@pytest.mark.parametrize("binaries", [61, 80, 1500])
def test_boxes_beyond_two_to_the_sixty(binaries: int) -> None:
    rng = np.random.default_rng(3)
    points = torch.as_tensor(rng.integers(0, 2, (1, 3, binaries))).double()
    ends = torch.zeros(binaries, dtype=torch.float64), torch.ones(binaries, dtype=torch.float64)
    objective, two = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    here = ProposalInput(points, objective, torch.ones(1, 3, dtype=torch.bool), *ends, two)
    other = torch.as_tensor(rng.integers(0, 2, (1, 1, binaries))).double()
    stratified, best, outside = exact_logarithms(binaries, 8)
    log_intensity = Stratified().log_intensity(here, torch.cat([points[:, :1], other], 1), 8)[0]
    assert log_intensity[0] == 0
    assert float(log_intensity[1]) == pytest.approx(stratified, rel=1e-14)
    log_intensity = Energy().log_intensity(here, torch.cat([points[:, :1], other], 1), 8)[0]
    assert log_intensity.tolist() == pytest.approx([best, outside], rel=1e-13)
    for proposal in PROPOSALS:
        draws = proposal.sample(here, 16, rng)
        assert bool(draws.log_intensity.isfinite().all())
        assert bool(((draws.points == 0) | (draws.points == 1)).all())


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_an_item_without_points_draws_nothing_and_holds_no_nan(proposal: Proposal) -> None:
    here = proposal_input()
    none = ProposalInput(
        here.points,
        here.objective.index_fill(0, torch.tensor([1]), torch.inf),
        here.valid & torch.tensor([[True], [False]]),
        here.lower,
        here.upper,
        here.temperature,
    )
    draws = proposal.sample(none, 6, np.random.default_rng(4))
    assert not bool(draws.valid[1].any())
    assert bool(draws.valid[0].any())
    assert bool(draws.log_intensity[0].isfinite().all())
    assert not bool(draws.log_intensity.isnan().any())


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_a_box_whose_points_are_all_among_the_best(proposal: Proposal) -> None:
    points = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    here = ProposalInput(
        points, torch.tensor([[0.0, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool), zero, one, one
    )
    draws = proposal.sample(here, 5, np.random.default_rng(5))
    assert bool(here.is_best(draws.points)[draws.valid].all())
    intensity = proposal.log_intensity(here, points, 5).exp()
    expected = torch.softmax(torch.tensor([[0.0, -1.0]]).double(), 1)
    torch.testing.assert_close(intensity, expected if isinstance(proposal, Energy) else torch.ones_like(expected))


@pytest.mark.parametrize(("ratio", "cap"), [(0.0, 0.2), (0.5, -1.0)])
def test_masses_are_positive(ratio: float, cap: float) -> None:
    with pytest.raises(ModelError, match="positive"):
        Energy(ratio, cap)
