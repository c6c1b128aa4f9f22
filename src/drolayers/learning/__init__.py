"""Learning sets from data, for decisions."""

from drolayers.learning.data import OutcomeData, Outcomes
from drolayers.learning.learner import DecisionFocusedLearner
from drolayers.learning.model import SetModel
from drolayers.learning.module import DecisionModule, Pipeline, PredictionModule
from drolayers.learning.pretraining import PredictionLoss
from drolayers.learning.schedule import Annealed

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
