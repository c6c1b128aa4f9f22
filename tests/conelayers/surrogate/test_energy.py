"""Energies, temperatures, and how good a sample is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from conelayers import RelativeTemperature
from conelayers.errors import ModelError
from conelayers.surrogate.energy import (
    Temperature,
    check_temperature,
    compute_temperature,
    effective_sample_size,
    energy_probabilities,
)

F = torch.tensor([[3.0, 3.5, 5.0, 4.0], [-1.0, 2.0, 0.0, 7.0]], dtype=torch.float64)
ALL = torch.ones_like(F, dtype=torch.bool)
NONE = torch.zeros_like(F)


def enumerated(temperature: Temperature, f: Tensor, valid: Tensor) -> Tensor:
    """λ with all points enumerated."""
    lowest = f.masked_fill(~valid, torch.inf).amin(1)
    return compute_temperature(temperature, f, lowest, torch.zeros_like(f), valid)


def temperature(value: float) -> Tensor:
    return torch.full((2,), value, dtype=torch.float64)


def test_probabilities_are_a_boltzmann_distribution() -> None:
    p = energy_probabilities(F, NONE, ALL, temperature(2.0))
    energy = torch.exp(-F / 2.0)
    torch.testing.assert_close(p, energy / energy.sum(1, keepdim=True), rtol=1e-14, atol=0)


def test_duplicates_keep_their_multiplicity() -> None:
    twice = torch.cat([F, F[:, :1]], 1)
    p = energy_probabilities(twice, torch.zeros_like(twice), torch.ones_like(twice, dtype=torch.bool), temperature(1.0))
    # A point that stands twice with half the weight counts once.
    log_intensity = torch.zeros_like(twice)
    log_intensity[:, [0, 4]] = math.log(2.0)
    merged = energy_probabilities(twice, log_intensity, torch.ones_like(twice, dtype=torch.bool), temperature(1.0))
    once = energy_probabilities(F, NONE, ALL, temperature(1.0))
    torch.testing.assert_close(merged[:, 0] + merged[:, 4], once[:, 0])
    assert bool((p[:, 0] == p[:, 4]).all())
    assert bool((p[:, 0] + p[:, 4] > once[:, 0]).all())


def test_invalid_points_have_no_weight_whatever_they_hold() -> None:
    f = F.clone()
    f[:, 2] = torch.nan
    valid = ALL.clone()
    valid[:, 2] = False
    f.requires_grad_()
    p = energy_probabilities(f, NONE, valid, temperature(1.0))
    assert bool((p[:, 2] == 0).all())
    torch.testing.assert_close(p.sum(1), torch.ones(2, dtype=torch.float64))
    (p[:, 0]).sum().backward()
    assert f.grad is not None
    assert bool(f.grad.isfinite().all())
    assert bool((f.grad[:, 2] == 0).all())


def test_an_item_without_points_has_zeros_and_no_gradient() -> None:
    f = F.clone().requires_grad_()
    valid = ALL.clone()
    valid[1] = False
    p = energy_probabilities(f, NONE, valid, temperature(1.0))
    assert bool((p[1] == 0).all())
    p[:, 0].sum().backward()
    assert f.grad is not None
    assert bool((f.grad[1] == 0).all())
    assert bool((f.grad[0] != 0).any())


def test_extreme_temperatures_stay_finite() -> None:
    for value in (1e-12, 1e12):
        f = F.clone().requires_grad_()
        p = energy_probabilities(f, NONE, ALL, temperature(value))
        (p * F).sum().backward()
        assert f.grad is not None
        assert bool(p.isfinite().all())
        assert bool(f.grad.isfinite().all())
    cold = energy_probabilities(F, NONE, ALL, temperature(1e-12))
    assert bool((cold.amax(1) == 1).all())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_relative_temperature_knows_no_scale(scale: float) -> None:
    relative = RelativeTemperature(0.7)
    unit = enumerated(relative, F, ALL)
    torch.testing.assert_close(enumerated(relative, scale * F, ALL), scale * unit, rtol=1e-12, atol=0)
    p = energy_probabilities(scale * F, NONE, ALL, scale * unit)
    torch.testing.assert_close(p, energy_probabilities(F, NONE, ALL, unit), rtol=1e-12, atol=0)


def test_relative_temperature_is_the_mean_distance_from_the_best() -> None:
    valid = ALL.clone()
    valid[0, 2] = False
    expected = torch.tensor([(0.0 + 0.5 + 1.0) / 3, (0.0 + 3.0 + 1.0 + 8.0) / 4], dtype=torch.float64)
    torch.testing.assert_close(enumerated(RelativeTemperature(2.0), F, valid), 2.0 * expected)


@pytest.mark.parametrize("multiplicity", [[1, 1, 1, 1], [5, 1, 2, 1], [1, 3, 1, 7]])
def test_relative_temperature_is_the_same_for_every_intensity(multiplicity: list[int]) -> None:
    """A point that stands m times in the sample, with intensity proportional to m, counts once."""
    repeats = torch.tensor(multiplicity)
    sample = F.repeat_interleave(repeats, 1)
    log_intensity = (3.7 * repeats.double()).log().repeat_interleave(repeats).expand_as(sample)
    sampled = compute_temperature(
        RelativeTemperature(2.0), sample, F.amin(1), log_intensity, torch.ones_like(sample, dtype=torch.bool)
    )
    torch.testing.assert_close(sampled, enumerated(RelativeTemperature(2.0), F, ALL), rtol=1e-14, atol=0)


def test_relative_temperature_measures_gaps_from_the_optimum_even_if_it_was_not_drawn() -> None:
    drawn = ALL.clone()
    drawn[0, 0] = False
    sampled = compute_temperature(RelativeTemperature(), F, F.amin(1), NONE, drawn)
    assert sampled[0].item() == pytest.approx((0.5 + 2.0 + 1.0) / 3, rel=1e-14)


def test_temperatures_are_constants() -> None:
    f = F.clone().requires_grad_()
    own = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    for value in (RelativeTemperature(), 3.0, own):
        assert not compute_temperature(check_temperature(value), f, f.amin(1), NONE, ALL).requires_grad


def test_an_item_without_points_has_a_positive_temperature() -> None:
    f, valid = F.clone(), ALL.clone()
    f[1], valid[1] = torch.inf, False
    heat = compute_temperature(RelativeTemperature(), f, f.amin(1), NONE, valid)
    assert bool((heat > 0).all())
    assert bool(heat.isfinite().all())


@pytest.mark.parametrize("wrong", [[1.0, 0.0], [1.0, float("nan")], [[1.0, 1.0]]])
def test_temperatures_of_items_are_checked(wrong: list) -> None:
    with pytest.raises(ModelError, match=r"shape \(batch,\) and positive"):
        check_temperature(torch.tensor(wrong))


def test_equal_objectives_are_equally_likely() -> None:
    for level in (0.0, -3.0, 1e5):
        f = torch.full_like(F, level)
        p = energy_probabilities(f, NONE, ALL, enumerated(RelativeTemperature(), f, ALL))
        torch.testing.assert_close(p, torch.full_like(p, 0.25))


def test_absolute_temperature_is_taken_as_it_is() -> None:
    assert enumerated(10.0, F, ALL).tolist() == [10.0, 10.0]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_temperatures_are_positive(wrong: float) -> None:
    with pytest.raises(ModelError, match="positive"):
        check_temperature(wrong)
    with pytest.raises(ModelError, match="positive"):
        RelativeTemperature(wrong)


def test_effective_sample_size() -> None:
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert effective_sample_size(p).tolist() == [4.0, 1.0, 2.0, 0.0]


def test_objectives_that_cancel_up_to_rounding_are_equal() -> None:
    """Gaps of 1e-17 beside terms of one are no gaps; exact zeros are equal as well."""
    objective = torch.tensor([[1.3e-17, -3.4e-17, 8e-18], [0.0, 0.0, 0.0]], dtype=torch.float64)
    alike, valid = torch.zeros_like(objective), torch.ones_like(objective, dtype=torch.bool)
    optimum, terms = objective.amin(1), torch.tensor([1.0, 0.0], dtype=torch.float64)
    temperature = compute_temperature(RelativeTemperature(), objective, optimum, alike, valid, terms)
    probabilities = energy_probabilities(objective, alike, valid, temperature)
    torch.testing.assert_close(probabilities, torch.full_like(objective, 1 / 3), rtol=1e-3, atol=0)
