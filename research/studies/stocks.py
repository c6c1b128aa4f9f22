"""Twenty American stocks: daily prices, weekly returns, and contexts that look back only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conelayers.errors import ModelError, ShapeError
from drolayers.extras import require

Array = NDArray[np.float64]
Days = NDArray[np.datetime64]

SECTORS = {
    "technology and industry": ("AAPL", "AMD", "GE", "MSFT"),
    "finance": ("BAC", "JPM"),
    "consumer": ("BBY", "HD", "KO", "PEP", "PG", "WMT"),
    "energy": ("CVX", "RRC", "XOM"),
    "health": ("JNJ", "LLY", "MRK", "PFE", "UNH"),
}
"""The stocks of the data set by sector."""

MOMENTUM = (4, 12, 52)
"""Horizons of past returns, in weeks."""

RECENT = 60
"""Trading days over which volatility and correlation are measured."""

OF_ASSET = len(MOMENTUM) + 1
OF_MARKET = 4
"""Contexts of every asset (past returns, volatility) and of the market (two returns, volatility, correlation)."""


@dataclass(frozen=True)
class Prices:
    """Daily closing prices, adjusted for dividends and splits.

    Attributes:
        days: the trading days, increasing.
        values: ``(day, asset)``.
        names: of the assets.
    """

    days: Days
    values: Array
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.days), len(self.names)):
            raise ShapeError(f"Prices must have shape {(len(self.days), len(self.names))}, not {self.values.shape}.")
        if not (np.isfinite(self.values).all() and (self.values > 0).all()):
            raise ShapeError("Prices must be positive and finite: drop or fill the days that are not.")
        if not (np.diff(self.days) > np.timedelta64(0, "D")).all():
            raise ShapeError("The days of the prices must increase: sort them and drop duplicates.")
        unknown = sorted(set(self.names) ^ {name for sector in SECTORS.values() for name in sector})
        if unknown:
            raise ModelError(f"The stocks must be those of SECTORS; {unknown} are missing or unknown.")

    def membership(self) -> Array:
        """Which stock belongs to which sector: ``(sector, asset)`` of zeros and ones."""
        return np.array([[float(name in sector) for name in self.names] for sector in SECTORS.values()])


@dataclass(frozen=True)
class Weeks:
    """One row a week: what is known at its last close, and the returns of the week after.

    Attributes:
        days: the day of each decision, the last trading day of its week.
        until: the day at which the returns ``Y`` are known.
        Z: contexts ``(week, asset · OF_ASSET + OF_MARKET)``.
        Y: simple returns from ``days`` to ``until``, ``(week, asset)``.
    """

    days: Days
    until: Days
    Z: Array
    Y: Array

    def between(self, first: str, last: str) -> Weeks:
        """The weeks that are decided from ``first`` on and whose returns are known by ``last``."""
        rows = (self.days >= np.datetime64(first)) & (self.until <= np.datetime64(last))
        return self.rows(rows)

    def rows(self, rows: NDArray) -> Weeks:
        """Some of the weeks."""
        return Weeks(self.days[rows], self.until[rows], self.Z[rows], self.Y[rows])

    def __len__(self) -> int:
        return len(self.days)


def load_prices() -> Prices:
    """The data set that comes with skfolio: 20 stocks of the S&P 500 from 1990 to 2022."""
    frame = require("skfolio.datasets", "studies").load_sp500_dataset()
    return Prices(
        frame.index.to_numpy().astype("datetime64[D]"),
        frame.to_numpy(dtype=float),
        tuple(str(name) for name in frame.columns),
    )


def weeks(prices: Prices) -> Weeks:
    """Weekly decisions, with contexts from prices up to the day of the decision and returns from those after it."""
    ends = _week_ends(prices.days)
    daily = np.diff(np.log(prices.values), axis=0, prepend=np.log(prices.values[:1]))
    closes = np.log(prices.values[ends])
    # The first context needs the longest horizon; the last week has no return yet.
    known = [t for t in range(max(MOMENTUM), len(ends) - 1) if ends[t] >= RECENT]
    Z = np.array([_context(closes[: t + 1], daily[: ends[t] + 1]) for t in known])
    now, later = ends[known], ends[np.array(known) + 1]
    Y = prices.values[later] / prices.values[now] - 1.0
    return Weeks(prices.days[now], prices.days[later], Z, Y)


def _week_ends(days: Days) -> NDArray[np.int64]:
    """The last trading day of every calendar week; a last week that stops before Friday is left out."""
    week = (days.astype(np.int64) + 3) // 7  # 1970-01-01 was a Thursday: weeks begin on Monday
    ends = np.flatnonzero(np.diff(week, append=week[-1] + 1))
    complete = (days[-1].astype(np.int64) + 3) % 7 >= 4
    return ends if complete else ends[:-1]


def _context(closes: Array, daily: Array) -> Array:
    """The context after the last row of weekly log prices and of daily log returns.

    Contexts of assets are standardised across the assets, so that they say which assets stand out and one network can
    read them all; those of the market say in which state it is.
    """
    momentum = [closes[-1] - closes[-1 - horizon] for horizon in MOMENTUM]
    recent = daily[-RECENT:]
    volatility = recent.std(0)
    features = np.stack([*momentum, volatility], 1)
    spread = features.std(0)
    features = (features - features.mean(0)) / np.where(spread > 0, spread, 1.0)
    # With n assets, Var(mean) = (1/n) mean variance + (1 - 1/n) mean covariance.
    market, count = recent.mean(1), len(volatility)
    own = float((volatility**2).mean())
    shared = (float(market.var()) - own / count) / (1.0 - 1.0 / count)
    state = [momentum[0].mean(), momentum[1].mean(), market.std(), shared / own if own > 0 else 0.0]
    return np.concatenate([features.ravel(), state])
