"""Ready problems with their data generators."""

from typing import Any

from research.problems.newsvendor import Newsvendor
from research.problems.portfolio import Portfolio, PortfolioData

BUILT_IN: dict[str, Any] = {"newsvendor": Newsvendor, "portfolio": Portfolio}
"""Problems that a saved model can name."""

__all__ = ["BUILT_IN", "Newsvendor", "Portfolio", "PortfolioData"]
