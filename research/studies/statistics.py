"""Figures of a series of outcomes, and how far they can be trusted: the block bootstrap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conelayers.checks import whole
from conelayers.errors import ShapeError

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From series ``(..., time)`` to numbers ``(...)``."""


def tail_mean(losses: Array, level: float = 0.95) -> Array:
    """The mean of the worst ``1 - level`` of the losses (CVaR), with a fraction of the last one; over the last axis."""
    count = losses.shape[-1]
    share = (1.0 - level) * count
    worst = -np.sort(-losses, axis=-1)
    weights = np.clip(share - np.arange(count), 0.0, 1.0)
    return np.asarray(worst @ weights / share)


def drawdown(returns: Array) -> Array:
    """The largest fall of wealth from an earlier peak, as a share of the peak; over the last axis."""
    wealth = np.cumprod(1.0 + returns, axis=-1)
    peak = np.maximum(np.maximum.accumulate(wealth, axis=-1), 1.0)
    return np.asarray((1.0 - wealth / peak).max(-1))


def block_rows(count: int, block: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of the circular block bootstrap, ``(resample, count)``: blocks keep what follows on what."""
    whole("The length of a block", block)
    if block > count:
        raise ShapeError(f"Blocks of {block} do not fit a series of {count}: take shorter ones.")
    starts = rng.integers(count, size=(resamples, -(-count // block)))
    rows = (starts[:, :, None] + np.arange(block)) % count
    return rows.reshape(resamples, -1)[:, :count]


def estimate(series: Array, statistic: Statistic, rows: NDArray[np.int64], level: float = 0.95) -> dict[str, float]:
    """A statistic of series ``(seed, time)``, averaged over seeds, with its bootstrap interval.

    The seeds of one resample see the same days, so that the interval speaks of the period, not of the seeds.
    """
    drawn = np.mean([statistic(one[rows]) for one in series], axis=0)
    return _summary(float(statistic(series).mean()), drawn, level)


def difference(
    series: Array, reference: Array, statistic: Statistic, rows: NDArray[np.int64], level: float = 0.95
) -> dict[str, float]:
    """The same for the difference of a statistic to that of a reference, both on the same resampled days."""
    drawn = np.mean([statistic(one[rows]) for one in series], axis=0)
    drawn = drawn - np.mean([statistic(one[rows]) for one in reference], axis=0)
    return _summary(float(statistic(series).mean() - statistic(reference).mean()), drawn, level)


def _summary(value: float, drawn: Array, level: float) -> dict[str, float]:
    """A number with the percentiles of its resamples."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return {"value": value, "low": float(low), "high": float(high)}
