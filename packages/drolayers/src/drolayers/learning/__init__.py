"""Learning sets from data, for decisions."""

from drolayers.extras import LEARNING, needs

needs("learning", *LEARNING)

from drolayers.learning.calibration import Calibration, Disappointment, Report, Share  # noqa: E402
from drolayers.learning.choice import Choice, choose  # noqa: E402
from drolayers.learning.clipping import ClippedInputsWarning  # noqa: E402
from drolayers.learning.data import ExampleData, Examples  # noqa: E402
from drolayers.learning.learner import DecisionFocusedLearner  # noqa: E402
from drolayers.learning.model import SetModel  # noqa: E402
from drolayers.learning.module import DecisionModule, PredictionModule  # noqa: E402
from drolayers.learning.pipeline import Pipeline  # noqa: E402
from drolayers.learning.pretraining import PredictionLoss  # noqa: E402
from drolayers.learning.settings import Annealed, Network, Stage, Trainer  # noqa: E402

__all__ = [
    "Annealed",
    "Calibration",
    "Choice",
    "ClippedInputsWarning",
    "DecisionFocusedLearner",
    "DecisionModule",
    "Disappointment",
    "ExampleData",
    "Examples",
    "Network",
    "Pipeline",
    "PredictionLoss",
    "PredictionModule",
    "Report",
    "SetModel",
    "Share",
    "Stage",
    "Trainer",
    "choose",
]
