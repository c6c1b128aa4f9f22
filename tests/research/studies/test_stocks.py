"""Weekly data of the portfolio study: what is known when."""

from __future__ import annotations

import numpy as np
import pytest

from conelayers.errors import ModelError, ShapeError
from research.studies.stocks import MOMENTUM, OF_ASSET, OF_MARKET, RECENT, Prices, load_prices, weeks
from tests.research.studies.markets import NAMES, changed_after, made_up


def test_contexts_do_not_see_later_prices() -> None:
    prices = made_up(400)
    data = weeks(prices)
    for week in (0, len(data) // 2, len(data) - 1):
        other = weeks(changed_after(prices, data.days[week]))
        np.testing.assert_array_equal(other.Z[: week + 1], data.Z[: week + 1])
        # The returns of that week are the first thing that the change touches, so the test can fail.
        np.testing.assert_array_equal(other.Y[:week], data.Y[:week])
        assert not np.allclose(other.Y[week], data.Y[week])


def test_returns_run_from_one_decision_to_the_next() -> None:
    prices = made_up(400)
    data = weeks(prices)
    assert data.Z.shape == (len(data), len(NAMES) * OF_ASSET + OF_MARKET)
    np.testing.assert_array_equal(data.until[:-1], data.days[1:])
    bought, sold = (np.searchsorted(prices.days, when) for when in (data.days, data.until))
    np.testing.assert_allclose(1.0 + data.Y, prices.values[sold] / prices.values[bought])
    # All business days are trading days here, so that every week ends on a Friday.
    assert set(((data.days.astype(np.int64) + 3) % 7).tolist()) == {4}


def test_a_last_week_that_is_not_over_is_left_out() -> None:
    """The fifth day of a week ends it, and no other one, unless the week after has begun."""
    prices = made_up(400)
    friday = int(np.searchsorted(prices.days, weeks(prices).until[-2]))
    for days in range(6):
        cut = slice(0, friday + 1 + days)
        found = weeks(Prices(prices.days[cut], prices.values[cut], NAMES)).until[-1]
        assert found == prices.days[friday + (5 if days == 5 else 0)]
    # Without its Friday a week ends on Thursday, once there is a Monday.
    kept = np.arange(friday + 2) != friday
    found = weeks(Prices(prices.days[: friday + 2][kept], prices.values[: friday + 2][kept], NAMES)).until[-1]
    assert found == prices.days[friday - 1]


def test_contexts_by_hand() -> None:
    """All business days are trading days here, five a week."""
    prices = made_up(400)
    data, week = weeks(prices), 20
    logs, at = np.log(prices.values), int(np.searchsorted(prices.days, data.days[week]))
    recent = np.diff(logs, axis=0)[at - RECENT : at]
    momentum = [logs[at] - logs[at - 5 * horizon] for horizon in MOMENTUM]
    features = np.stack([*momentum, recent.std(0)], 1)
    features = (features - features.mean(0)) / features.std(0)
    covariance = np.cov(recent.T, ddof=0)
    pairs = covariance[~np.eye(len(NAMES), dtype=bool)].mean()
    state = [momentum[0].mean(), momentum[1].mean(), recent.mean(1).std(), pairs / np.diag(covariance).mean()]
    np.testing.assert_allclose(data.Z[week], [*features.ravel(), *state], rtol=1e-9, atol=1e-12)


def test_assets_stand_out_relative_to_each_other() -> None:
    data = weeks(made_up(400))
    own = data.Z[:, :-OF_MARKET].reshape(len(data), len(NAMES), OF_ASSET)
    np.testing.assert_allclose(own.mean(1), 0.0, atol=1e-12)
    np.testing.assert_allclose(own.std(1), 1.0)


def test_correlation_of_equal_prices_is_one() -> None:
    prices = made_up(400)
    same = Prices(prices.days, np.repeat(prices.values[:, :1], len(NAMES), 1), NAMES)
    np.testing.assert_allclose(weeks(same).Z[:, -1], 1.0)


def test_between_keeps_weeks_that_are_over() -> None:
    data = weeks(made_up(400))
    first, last = data.days[5], data.until[20]
    part = data.between(str(first), str(last))
    np.testing.assert_array_equal(part.days, data.days[5:21])


def test_bad_prices_end_in_one_sentence() -> None:
    prices = made_up(100)
    with pytest.raises(ShapeError, match="positive"):
        Prices(prices.days, -prices.values, prices.names)
    with pytest.raises(ShapeError, match="increase"):
        Prices(prices.days[::-1], prices.values, prices.names)
    with pytest.raises(ModelError, match="NOPE"):
        Prices(prices.days, prices.values, ("NOPE", *prices.names[1:]))


def test_the_real_prices() -> None:
    prices = load_prices()
    assert prices.values.shape == (8313, 20)
    np.testing.assert_array_equal(prices.membership().sum(0), 1.0)
    assert len(weeks(prices)) > 1600
