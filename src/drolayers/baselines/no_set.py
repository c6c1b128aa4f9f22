"""Decision-focused learning without a set: the model predicts a point, trained on what the decision at it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import cvxpy as cp
from sklearn.base import BaseEstimator

from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.moments import Norm
from drolayers.baselines.base import checked_problem, contexts, split
from drolayers.baselines.regression import fit_mean
from drolayers.baselines.sibling import sibling
from drolayers.learning import DecisionFocusedLearner
from drolayers.nominal import KNN
from drolayers.problem import DecisionProblem

SIGMA = 1e-6
"""Bound of E‖y - μ‖₁ that makes the set a point, relative to the spread of the outcomes.

The decision loss changes by the slope of the cost times this, far below its noise, while the price of the multiplier
still stands a thousand times above the tolerance of the solver (1e-9); at zero the set would have no Slater point. In
the 1-norm the program stays linear, so that the learner sees by itself where its solution map is flat (a portfolio: the
point is in the objective alone, and gradients are smoothed) and where it is not (a newsvendor: dx*/dμ = 1)."""


@final
class NoSet(BaseEstimator):  # type: ignore[misc]
    """The learner of the library on sets that are single points, pre-trained on the conditional mean.

    Args:
        problem: the decision problem; its set is not used.
        seed: of everything random.
        hidden: widths of the network.
        degree: of the polynomials of the covariates that the network sees.
        pretrain_epochs: epochs of training on squared errors.
        pretrain_lr: its learning rate.
        epochs: epochs of training on decisions.
        lr: its learning rate.
        batch_size: items a step.
        validation_share: share of the data held out where no validation data are given.
        progress: whether to show a progress bar.
        learner: further settings of :class:`drolayers.DecisionFocusedLearner`.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        seed: int = 0,
        *,
        hidden: Sequence[int] = (64, 64),
        degree: int = 1,
        pretrain_epochs: int = 100,
        pretrain_lr: float = 3e-3,
        epochs: int = 30,
        lr: float = 1e-3,
        batch_size: int = 50,
        validation_share: float = 0.2,
        progress: bool = True,
        learner: dict[str, Any] | None = None,
    ) -> None:
        self.problem, self.seed, self.hidden, self.degree = problem, seed, hidden, degree
        self.pretrain_epochs, self.pretrain_lr, self.epochs, self.lr = pretrain_epochs, pretrain_lr, epochs, lr
        self.batch_size, self.validation_share, self.progress = batch_size, validation_share, progress
        self.learner = learner

    def fit(self, Z: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on squared errors, then on decisions; validation data decide which epochs are kept."""
        checked_problem(self.problem, "NoSet")
        training, held_out = split(self.problem, Z, Y, validation, self.validation_share, self.seed)
        self.n_features_in_ = training.Z.shape[1]
        model, first = fit_mean(
            training,
            held_out,
            hidden=self.hidden,
            degree=self.degree,
            epochs=self.pretrain_epochs,
            lr=self.pretrain_lr,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        spread = float((training.Y - training.Y.mean(0)).abs().sum(1).mean())
        sigma = SIGMA * (spread if spread > 0 else 1.0)
        self.point_problem_ = sibling(self.problem, lambda y: MomentSet(y, [Norm(1, sigma=sigma)]))
        settings = {
            # A point needs no nominal distribution: the cheapest one stands in.
            "nominal": KNN(k=1),
            "projection": None,
            "pretrain_epochs": 0,
            "epochs": self.epochs,
            "lr": self.lr,
            "batch_size": self.batch_size,
            "validation_share": 0.0,
            "progress": self.progress,
            **(self.learner or {}),
        }
        self.learner_ = DecisionFocusedLearner(self.point_problem_, model, seed=self.seed, **settings)
        self.learner_.fit(training.Z, training.Y, None if held_out is None else (held_out.Z, held_out.Y))
        self.history_ = {"mean": first, **self.learner_.history_}
        return self

    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """The decisions at the predicted points."""
        contexts(self, Z)
        return self.learner_.decide(Z)
