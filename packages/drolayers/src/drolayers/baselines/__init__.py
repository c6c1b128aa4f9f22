"""Policies to compare with, all with ``fit(Z, Y, validation=None)`` and ``decide(Z)``."""

from drolayers.extras import needs

needs("learning", "sklearn")

from drolayers.baselines.base import Policy  # noqa: E402
from drolayers.baselines.mean_prediction import MeanPrediction  # noqa: E402
from drolayers.baselines.no_set import NoSet  # noqa: E402
from drolayers.baselines.prediction_focused import FullKnowledge, PredictionFocused  # noqa: E402
from drolayers.baselines.sample_average import SampleAverage, WeightedSampleAverage  # noqa: E402

__all__ = [
    "FullKnowledge",
    "MeanPrediction",
    "NoSet",
    "Policy",
    "PredictionFocused",
    "SampleAverage",
    "WeightedSampleAverage",
]


def __dir__() -> list[str]:
    return sorted(__all__)
