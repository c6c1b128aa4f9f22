"""The portfolio study: its decision problem, its walk forward, its accounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from conelayers.errors import ModelError
from drolayers.layer import DROLayer
from research.studies import portfolio
from research.studies.allocation import CAP, LEAST, LEVEL, MOST, PER_CENT, Allocation
from research.studies.stocks import Prices, Weeks, weeks
from tests.research.studies.markets import changed_after, made_up

TINY = replace(portfolio.Settings.quick(), window=40, refit=8, neighbours=10, pretrain_epochs=1, batch_size=16)


def test_worst_case_is_the_mean_and_the_deviation() -> None:
    """For a ball of variance σ around μ the worst loss and CVaR of w'r are known in closed form."""
    prices = made_up(500)
    data = weeks(prices)
    allocation = Allocation(data.Y, prices.membership())
    rng = np.random.default_rng(0)
    expected, sigma = 0.01 * rng.standard_normal((3, 20)), np.array([0.3, 1.0, 4.0])
    theta = torch.as_tensor(np.concatenate([allocation.whiten(expected), sigma[:, None]], 1))
    decision = DROLayer(allocation.problem).eval()(theta)
    assert bool(decision.ok.all())
    weights = decision.best[allocation.weights].numpy()
    deviation = PER_CENT * np.sqrt(sigma) * np.linalg.norm(weights @ allocation.root, axis=1)
    loss = -PER_CENT * (weights * expected).sum(1)
    # E l + CVaR(l) = sup E[(1 + ξ) l] over densities 0 ≤ ξ ≤ 1/(1 - a), E ξ = 1; with E(l - l₀)² ≤ s² the supremum over
    # l is 2 l₀ + s max ‖1 + ξ‖, and ‖1 + ξ‖² = 1 + 2 E ξ + E ξ² is greatest for the ξ that takes its bounds only.
    spread = np.sqrt(3.0 + 1.0 / (1.0 - LEVEL))
    np.testing.assert_allclose(decision.value.numpy(), 2.0 * loss + spread * deviation, rtol=1e-5)


def test_decisions_obey_the_sectors() -> None:
    prices = made_up(500)
    data = weeks(prices)
    allocation = Allocation(data.Y, prices.membership())
    rng = np.random.default_rng(1)
    theta = np.concatenate([rng.standard_normal((20, 20)), np.full((20, 1), 0.1)], 1)
    best = DROLayer(allocation.problem).eval()(torch.as_tensor(theta)).best
    weights, entered = best[allocation.weights].numpy(), best[allocation.entered].numpy()
    held = weights @ prices.membership().T
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
    assert weights.min() > -1e-7
    assert weights.max() < CAP + 1e-6
    assert (held[entered < 0.5] < 1e-6).all()
    assert (held[entered > 0.5] > LEAST - 1e-6).all()
    assert held.max() < MOST + 1e-6
    # Otherwise the binaries would not be tested.
    assert (entered < 0.5).any()


def test_walk_forward_does_not_see_later_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(portfolio.PERIODS, "test", ("2001-06-01", "2002-12-31"))
    prices = made_up(560)
    settings = replace(TINY, last=16)
    period, before = _walk(prices, prices.membership(), settings)
    _, after = _walk(changed_after(prices, period.days[8]), prices.membership(), settings)
    assert len(period) == 16
    for policy in (portfolio.PREDICTION, portfolio.DECISION):
        # The second fit is made on the day after which prices differ. Weeks of one run are solved as one batch, in
        # which an item feels the others within the solver's tolerance.
        np.testing.assert_array_equal(after[policy][:, :8], before[policy][:, :8])
        np.testing.assert_allclose(after[policy][:, 8], before[policy][:, 8], atol=1e-7)
        assert np.abs(after[policy][:, 9:] - before[policy][:, 9:]).max() > 1e-3


def _walk(prices: Prices, membership: np.ndarray, settings: portfolio.Settings) -> tuple[Weeks, dict[str, np.ndarray]]:
    policies = (portfolio.PREDICTION, portfolio.DECISION)
    return portfolio.walk_forward(weeks(prices), membership, settings, "test", jobs=1, policies=policies)


def test_a_past_that_is_not_over_is_refused() -> None:
    prices = made_up(500)
    data = weeks(prices)
    rows = np.arange(len(data))
    with pytest.raises(ModelError, match="over before"):
        portfolio.decide(portfolio.EQUAL, 0, data.rows(rows[:21]), data.rows(rows[20:25]), prices.membership(), TINY)


def test_annual_figures_by_hand() -> None:
    """Along the last axis, whatever stands before it."""
    returns = 0.02 * np.random.default_rng(0).standard_normal((2, 3, 10))
    grown = np.prod(1.0 + returns, axis=2) ** (52 / 10) - 1.0
    np.testing.assert_allclose(portfolio._annual_return(returns), grown, rtol=1e-9)
    deviation = np.sqrt(52 * ((returns - returns.mean(2, keepdims=True)) ** 2).sum(2) / 9)
    np.testing.assert_allclose(portfolio._volatility(returns), deviation, rtol=1e-9)


def test_accounts_by_hand() -> None:
    weights = np.array([[[0.5, 0.5], [0.5, 0.5]]])
    returns = np.array([[0.2, 0.0], [0.0, 0.1]])
    gross, net, turnover = portfolio.trade(weights, returns, 0.01)
    np.testing.assert_allclose(gross, [[0.1, 0.05]])
    # After the first week the weights are 0.6/1.1 and 0.5/1.1; half of the gap is sold and as much bought.
    np.testing.assert_allclose(turnover, [[0.0, 0.1 / 1.1]])
    np.testing.assert_allclose(net, [[0.1, 1.05 * (1.0 - 0.001 / 1.1) - 1.0]])
