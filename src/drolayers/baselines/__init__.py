"""Policies to compare with, all with ``fit(Z, Y, validation=None)`` and ``decide(Z)``."""

from drolayers.baselines.base import Policy
from drolayers.baselines.costa_iyengar import CostaIyengar
from drolayers.baselines.mean_prediction import MeanPrediction
from drolayers.baselines.no_set import NoSet
from drolayers.baselines.prediction_focused import FullKnowledge, PredictionFocused
from drolayers.baselines.pyepo import Pyepo
from drolayers.baselines.sample_average import SampleAverage, WeightedSampleAverage

__all__ = [
    "CostaIyengar",
    "FullKnowledge",
    "MeanPrediction",
    "NoSet",
    "Policy",
    "PredictionFocused",
    "Pyepo",
    "SampleAverage",
    "WeightedSampleAverage",
]
