"""Learning sets from data, for decisions."""

from drolayers.extras import needs

needs("learning", "lightning", "sklearn", "safetensors")

from drolayers.learning.data import OutcomeData, Outcomes  # noqa: E402
from drolayers.learning.learner import DecisionFocusedLearner  # noqa: E402
from drolayers.learning.model import SetModel  # noqa: E402
from drolayers.learning.module import DecisionModule, Pipeline, PredictionModule  # noqa: E402
from drolayers.learning.pretraining import PredictionLoss  # noqa: E402
from drolayers.learning.schedule import Annealed  # noqa: E402

__all__ = [
    "Annealed",
    "DecisionFocusedLearner",
    "DecisionModule",
    "OutcomeData",
    "Outcomes",
    "Pipeline",
    "PredictionLoss",
    "PredictionModule",
    "SetModel",
]
