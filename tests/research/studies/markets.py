"""Made-up prices with the names of the data set."""

from __future__ import annotations

import numpy as np

from research.studies.stocks import SECTORS, Prices

NAMES = tuple(sorted(name for sector in SECTORS.values() for name in sector))


def made_up(days: int, seed: int = 0) -> Prices:
    rng = np.random.default_rng(seed)
    calendar = np.arange(np.datetime64("2000-01-03"), np.datetime64("2000-01-03") + 2 * days)
    trading = calendar[np.is_busday(calendar)][:days]
    moves = 0.01 * rng.standard_normal((days, 1)) + 0.02 * rng.standard_normal((days, len(NAMES)))
    return Prices(trading, 50.0 * np.exp(np.cumsum(moves, 0)), NAMES)


def changed_after(prices: Prices, day: np.datetime64, seed: int = 1) -> Prices:
    """The same prices up to a day, others after it."""
    rng = np.random.default_rng(seed)
    values = prices.values.copy()
    later = prices.days > day
    values[later] *= rng.uniform(0.5, 2.0, size=values[later].shape)
    return Prices(prices.days, values, prices.names)
