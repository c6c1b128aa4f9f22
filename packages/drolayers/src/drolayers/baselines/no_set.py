"""Decision-focused learning without a set: the model predicts a point, trained on what the decision at it costs."""

from __future__ import annotations

import warnings
from typing import Any, Self, final

import cvxpy as cp

from conelayers.internals import number
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.moments import Norm
from drolayers.baselines.base import checked_problem, contexts
from drolayers.baselines.regression import fit_mean
from drolayers.baselines.sibling import sibling
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.learning import DecisionFocusedLearner, Network, Stage, Trainer
from drolayers.learning.data import check_in_support, examples, split
from drolayers.learning.policy import Decider
from drolayers.learning.settings import RATE, check_places
from drolayers.nominal import KNN, TiedAtomsWarning
from drolayers.problem import DecisionProblem

SIGMA = 1e-6
"""Bound of E‖y - μ‖₁ that makes the set a point, relative to the spread of the outcomes.

``Empirical`` would be the point itself, but its atom travels beside θ, and θ is what the learner trains. Here the point
is θ, and the decision loss changes by the slope of the cost times this, far below its noise, while the price of the
multiplier still stands a thousand times above the tolerance of the solver (1e-9); at zero the set would have no Slater
point. In the 1-norm the program stays linear, so that the learner sees by itself where its solution map is flat (a
portfolio: the point is in the objective alone, and gradients are smoothed) and where it is not (a newsvendor: dx*/dμ =
1)."""


@final
class NoSet(Decider):
    """The learner of the library on sets that are single points, pre-trained on the conditional mean.

    What holds always, ``dro.always`` and second stages that must be feasible, holds on the whole support of ``y``, as
    under moment sets. No cost may be curved in ``y``.

    Args:
        problem: the decision problem; its set is not used.
        model: widths of the network.
        pretraining: on squared errors.
        training: on decisions.
        trainer: where and on which part of the data it trains.
        seed: of everything random.
        learner: further settings of :class:`drolayers.DecisionFocusedLearner`.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        model: Network = Network(),  # noqa: B008 (immutable)
        *,
        pretraining: Stage = Stage(epochs=100, rate=3e-3),  # noqa: B008
        training: Stage = Stage(),  # noqa: B008
        trainer: Trainer = Trainer(),  # noqa: B008
        seed: int = 0,
        learner: dict[str, Any] | None = None,
    ) -> None:
        self.problem, self.model, self.pretraining, self.training = problem, model, pretraining, training
        self.trainer, self.seed, self.learner = trainer, seed, learner

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train on squared errors, then on decisions; validation data decide which epochs are kept."""
        for curve in (c for part in checked_problem(self.problem, "NoSet").parts for c in part.parsed.curves):
            raise ModelError(
                f"NoSet knows no cost such as {curve.text}, which is curved in y: bound it by pieces that are affine "
                "in y, or compare with MeanPrediction."
            )
        check_places(pretraining=self.pretraining, training=self.training)
        everything = examples(self.problem, Z, Y, known, sample_weight=sample_weight)
        check_in_support(self.problem, everything)
        training, held_out = split(self.problem, everything, validation, self.trainer.validation_share, self.seed)
        self._take_columns(Z, Y, training.Z.shape[1])
        rate = self.pretraining.rate
        model, first = fit_mean(
            training,
            held_out,
            hidden=self.model.hidden,
            degree=self.model.degree,
            epochs=self.pretraining.epochs,
            lr=RATE if rate == "auto" else number("The rate of NoSet's pretraining", rate),
            batch_size=self.pretraining.items(len(training)),
            seed=self.seed,
        )
        spread = float((training.Y - training.Y.mean(0)).abs().sum(1).mean())
        sigma = SIGMA * (spread if spread > 0 else 1.0)
        self.point_problem_ = sibling(self.problem, lambda y: MomentSet(y, [Norm(1, sigma=sigma)]))
        # A point needs no nominal distribution: the cheapest one stands in.
        settings = {"nominal": KNN(k=1), "projection": None, "pretraining": None, **(self.learner or {})}
        self.learner_ = DecisionFocusedLearner(
            self.point_problem_,
            model,
            training=self.training,
            trainer=self.trainer.but(validation_share=0.0),
            seed=self.seed,
            **settings,
        )
        told = self.problem.known_data.values
        validation = None if held_out is None else (held_out.Z, held_out.Y, told(held_out.known), held_out.weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TiedAtomsWarning)
            known = told(training.known)
            self.learner_.fit(training.Z, training.Y, validation, known, sample_weight=training.weights)
        self.history_ = {"mean": first, **self.learner_.history_}
        return self

    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """The decisions at the predicted points."""
        contexts(self, Z, known)
        return self.learner_.decide(Z, known)
