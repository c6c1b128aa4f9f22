"""The energy study: the second stage against a linear program written out, contexts, forecasts, splits."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from conelayers.errors import ModelError, ShapeError
from drolayers.baselines.sibling import ExpectedCost
from research.studies import energy
from research.studies.commitment import NIGHT, Commitment
from research.studies.forecast import PENALTIES, AroundForecast, ResidualAtoms, Ridge
from research.studies.victoria import BLOCKS, HALF_HOURS, HOURS, Demand, day_ahead, load_demand


def made_up(days: int, seed: int = 0) -> Demand:
    rng = np.random.default_rng(seed)
    shape = (days, HALF_HOURS)
    return Demand(rng.uniform(3, 8, shape), rng.uniform(5, 40, shape), (np.arange(days) % 7 < 5).astype(float))


def dispatch(plant: Commitment, on: np.ndarray, contract: float, reserve: float, load: float) -> float:
    """The cost of one block on the day, in its own words: outputs between bounds that must meet the load."""
    least, greatest = plant.least * on, plant.greatest * on
    # Outputs of the stations, reserve, emergency, spill.
    prices = [*plant.fuel, plant.call_price, plant.emergency_price, plant.spill_price]
    bounds = [*zip(least, greatest, strict=True), (0, reserve), (0, None), (0, None)]
    balance = [[*np.ones(len(on)), 1.0, 1.0, -1.0]]
    found = linprog(prices, A_eq=balance, b_eq=[load - plant.must_run - contract], bounds=bounds)
    assert found.status == 0
    return HOURS * float(found.fun)


def ahead(plant: Commitment, night: np.ndarray, day: np.ndarray, contract: np.ndarray, reserve: np.ndarray) -> float:
    """What is paid whatever happens, fuel aside."""
    on_hours = HOURS * (NIGHT * night + (BLOCKS - NIGHT) * day)
    paid = HOURS * (plant.contract_price * contract.sum() + plant.reserve_price * reserve.sum())
    return float(paid + plant.idling @ on_hours + plant.start @ (day - night))


def test_cost_is_that_of_the_dispatch_written_out() -> None:
    plant = Commitment(1500.0)
    rng = np.random.default_rng(0)
    count = 12
    day = rng.integers(2, size=(count, 4)).astype(float)
    night = day * rng.integers(2, size=(count, 4))
    contract, reserve = rng.uniform(0, 2, (count, BLOCKS)), rng.uniform(0, 1, (count, BLOCKS))
    load = rng.uniform(2, 9, (count, BLOCKS))
    chosen = {plant.night: night, plant.day: day, plant.contract: contract, plant.reserve: reserve}
    tensors = {variable: torch.as_tensor(value) for variable, value in chosen.items()}
    found = plant.problem.loss(tensors, torch.as_tensor(load)).numpy()
    for k in range(count):
        direct = ahead(plant, night[k], day[k], contract[k], reserve[k])
        for block in range(BLOCKS):
            on = night[k] if block < NIGHT else day[k]
            direct += dispatch(plant, on, contract[k, block], reserve[k, block], load[k, block])
        assert found[k] == pytest.approx(direct, rel=1e-9)


def test_foresight_is_the_mixed_integer_program_written_out() -> None:
    plant = Commitment(500.0)
    load = np.random.default_rng(1).uniform(3, 8, (3, BLOCKS))
    weights = torch.ones(3, 1, dtype=torch.float64)
    chosen = ExpectedCost(plant.problem, 1).decide(torch.as_tensor(load)[:, None], weights)
    found = plant.problem.loss(chosen, torch.as_tensor(load)).numpy()
    for k in range(3):
        assert found[k] == pytest.approx(_written_out(plant, load[k]), rel=1e-6)


def _written_out(plant: Commitment, load: np.ndarray) -> float:
    """The least cost of a known day, by branching over all commitments of a plain model."""
    output, called = cp.Variable((4, BLOCKS), nonneg=True), cp.Variable(BLOCKS, nonneg=True)
    emergency, spill = cp.Variable(BLOCKS, nonneg=True), cp.Variable(BLOCKS, nonneg=True)
    contract, reserve = cp.Variable(BLOCKS, nonneg=True), cp.Variable(BLOCKS, nonneg=True)
    night, day = cp.Parameter(4), cp.Parameter(4)
    on = [night if block < NIGHT else day for block in range(BLOCKS)]
    constraints = [called <= reserve, reserve <= plant.most_reserve, contract <= plant.most_contract]
    constraints += [output[:, b] >= cp.multiply(plant.least, on[b]) for b in range(BLOCKS)]
    constraints += [output[:, b] <= cp.multiply(plant.greatest, on[b]) for b in range(BLOCKS)]
    constraints += [cp.sum(output, 0) + plant.must_run + contract + called + emergency - spill == load]
    paid = plant.contract_price * contract + plant.reserve_price * reserve + plant.call_price * called
    paid = paid + plant.emergency_price * emergency + plant.spill_price * spill + plant.fuel @ output
    problem = cp.Problem(cp.Minimize(HOURS * cp.sum(paid)), constraints)
    best = np.inf
    for code in range(3**4):
        state = np.array([code // 3**k % 3 for k in range(4)])
        night.value, day.value = (state == 2).astype(float), (state >= 1).astype(float)
        hours = HOURS * (NIGHT * night.value + (BLOCKS - NIGHT) * day.value)
        fixed = plant.idling @ hours + plant.start @ (day.value - night.value)
        best = min(best, problem.solve(solver=cp.CLARABEL) + fixed)
    return float(best)


def test_contexts_do_not_see_beyond_noon_of_the_day_before() -> None:
    demand = made_up(60)
    data = day_ahead(demand)
    rng = np.random.default_rng(1)
    for row in (0, 20, len(data) - 1):
        day = row + 7
        load, temperature = demand.load.copy(), demand.temperature.copy()
        for series in (load, temperature):
            series[day - 1, HALF_HOURS // 2 :] = rng.uniform(3, 8, HALF_HOURS // 2)
            series[day:] = rng.uniform(3, 8, series[day:].shape)
        other = day_ahead(Demand(load, temperature, demand.working))
        np.testing.assert_array_equal(other.Z[: row + 1], data.Z[: row + 1])
        np.testing.assert_array_equal(other.Y[: max(row - 1, 0)], data.Y[: max(row - 1, 0)])
        # Noon itself is the border: what was measured before it is seen.
        load[day - 1, HALF_HOURS // 2 - 1] += 1.0
        assert np.abs(day_ahead(Demand(load, temperature, demand.working)).Z[row] - data.Z[row]).max() > 1e-3


@pytest.mark.parametrize("part", ["development", "test"])
def test_held_out_weeks_are_not_trained_on(part: str) -> None:
    data = day_ahead(made_up(365))
    training, held_out = energy.split(data, part)  # type: ignore[arg-type]
    assert not set(training.days.tolist()) & set(held_out.days.tolist())
    tested = energy.split(data, "test")[1]
    if part == "development":
        assert not (set(training.days.tolist()) | set(held_out.days.tolist())) & set(tested.days.tolist())


def test_residuals_are_those_of_fits_without_the_point() -> None:
    rng = np.random.default_rng(0)
    Z, Y = torch.as_tensor(rng.standard_normal((30, 4))), torch.as_tensor(rng.standard_normal((30, 2)))
    ridge = Ridge(4, 2)
    found = ridge.fit(Z, Y)
    X = (Z - Z.mean(0)) / Z.std(0, unbiased=False)
    errors = {}
    for penalty in PENALTIES:
        rows = []
        for n in range(30):
            kept = torch.arange(30) != n
            ones = torch.ones(29, 1, dtype=torch.float64)
            design = torch.cat([X[kept], ones], 1)
            # The level is not penalised.
            gram = design.T @ design + torch.diag(torch.tensor([penalty] * 4 + [0.0], dtype=torch.float64))
            slope = torch.linalg.solve(gram, design.T @ Y[kept])
            rows.append(Y[n] - torch.cat([X[n], ones[0]]) @ slope)
        errors[penalty] = torch.stack(rows)
    best = min(errors.values(), key=lambda e: float(e.square().mean()))
    torch.testing.assert_close(found, best)


def test_atoms_are_residuals_around_the_forecast() -> None:
    rng = np.random.default_rng(0)
    Z, Y = torch.as_tensor(rng.standard_normal((50, 3))), 5.0 + torch.as_tensor(rng.standard_normal((50, 2)))
    forecast = Ridge(3, 2)
    residuals = forecast.fit(Z, Y)
    atoms, weights = ResidualAtoms(50).fit(Z, Y)(Z[:1])
    expected = (forecast(Z[:1]) + residuals).clamp(min=0.0)
    torch.testing.assert_close(atoms[0].sort(0).values, expected.sort(0).values)
    torch.testing.assert_close(weights, torch.full((1, 50), 1 / 50, dtype=torch.float64))
    alone, _ = ResidualAtoms(0).fit(Z, Y)(Z[:2])
    torch.testing.assert_close(alone[:, 0], forecast(Z[:2]))
    with pytest.raises(ModelError, match="fit"):
        ResidualAtoms(3)(Z)


def test_model_starts_near_the_forecast() -> None:
    rng = np.random.default_rng(0)
    Z, Y = rng.standard_normal((50, 3)), 5.0 + rng.standard_normal((50, 2))
    model = AroundForecast(Z, Y, 8, 0).double()
    theta = model(torch.as_tensor(Z)).detach()
    assert theta.shape == (50, 4)
    assert bool((theta[:, 2:] > 0).all())
    away = (theta[:, :2] - model.forecast(torch.as_tensor(Z))) / model.deviation
    assert float(away.abs().mean()) < 0.5


def test_bad_data_end_in_one_sentence() -> None:
    demand = made_up(20)
    with pytest.raises(ShapeError, match="positive"):
        replace(demand, load=-demand.load)
    with pytest.raises(ShapeError, match="one row a day"):
        replace(demand, load=demand.load[:-1])
    with pytest.raises(ModelError, match="exceed"):
        Commitment(100.0)


def test_the_real_loads() -> None:
    demand = load_demand()
    assert demand.load.shape == (365, HALF_HOURS)
    assert 9.0 < demand.load.max() < 10.0
    # Demand is lowest at night and the first of January was a holiday.
    assert demand.load.mean(0).argmin() in range(4, 11)
    assert demand.working[0] == 0.0
