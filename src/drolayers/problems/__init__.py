"""Ready problems with their data generators."""

from drolayers.problems.newsvendor import Newsvendor
from drolayers.problems.portfolio import Portfolio, PortfolioData

__all__ = ["Newsvendor", "Portfolio", "PortfolioData"]
