"""Published methods with solvers of their own, with the manners of :mod:`drolayers.baselines`."""

from research.baselines.costa_iyengar import CostaIyengar
from research.baselines.pyepo import Pyepo

__all__ = ["CostaIyengar", "Pyepo"]
