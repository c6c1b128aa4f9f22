"""Figures of the studies and their bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from conelayers.errors import ShapeError
from research.studies.statistics import block_rows, difference, drawdown, estimate, tail_mean


def test_tail_mean_is_the_minimum_over_the_threshold() -> None:
    rng = np.random.default_rng(0)
    for count in (7, 20, 91):
        losses = rng.standard_t(3, size=count)
        # CVaR is min over t of t + E(loss - t)⁺ / 5 %, attained at one of the losses.
        direct = min(t + np.maximum(losses - t, 0.0).mean() / 0.05 for t in losses)
        np.testing.assert_allclose(tail_mean(losses), direct)


def test_tail_mean_works_along_the_last_axis() -> None:
    losses = np.random.default_rng(1).standard_normal((3, 4, 50))
    direct = [[tail_mean(losses[i, j]) for j in range(4)] for i in range(3)]
    np.testing.assert_allclose(tail_mean(losses), direct)


def test_drawdown() -> None:
    assert drawdown(np.array([0.5, -0.5, 0.2])) == pytest.approx(0.5)
    assert drawdown(np.array([-0.1, 0.5])) == pytest.approx(0.1)
    assert drawdown(np.array([0.1, 0.2])) == 0.0


def test_blocks_hold_consecutive_rows() -> None:
    rows = block_rows(20, 5, 30, np.random.default_rng(0))
    assert rows.shape == (30, 20)
    steps = np.diff(rows.reshape(30, 4, 5), axis=2) % 20
    np.testing.assert_array_equal(steps, 1)
    with pytest.raises(ShapeError, match="shorter"):
        block_rows(3, 5, 1, np.random.default_rng(0))


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered, widths = 0, []
    for trial in range(200):
        series = rng.standard_normal((1, 80))
        found = estimate(series, lambda x: x.mean(-1), block_rows(80, 4, 300, np.random.default_rng(trial)))
        covered += found["low"] <= 0.0 <= found["high"]
        widths.append(found["high"] - found["low"])
    # Five standard errors of a binomial around 93 %: block intervals are a little short.
    assert covered / 200 >= 0.84
    # The mean of 80 normal numbers is known to ±1.96/√80; blocks of four make it a twentieth less, to 1 %.
    assert np.mean(widths) == pytest.approx(0.95 * 2 * 1.96 / np.sqrt(80), rel=0.05)


def test_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    series = rng.standard_normal((1, 60))
    rows = block_rows(60, 5, 200, rng)
    found = difference(series + 2.0, series, lambda x: x.mean(-1), rows)
    assert found == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0})
    alone = estimate(series + 2.0, lambda x: x.mean(-1), rows)
    assert alone["high"] - alone["low"] > 0.1
