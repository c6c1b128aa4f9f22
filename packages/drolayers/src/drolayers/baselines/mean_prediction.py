"""Predict, then optimise: a network for the conditional mean, and the decision that is best for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import cvxpy as cp
import torch

from drolayers.baselines.base import as_given, checked_problem, contexts
from drolayers.baselines.regression import fit_mean
from drolayers.baselines.sibling import ExpectedCost
from drolayers.known import Known
from drolayers.learning.data import check_in_support, examples, split
from drolayers.learning.policy import Decider
from drolayers.problem import DecisionProblem


@final
class MeanPrediction(Decider):
    """Two stages: a network is trained on squared errors, and the decision is taken as if its prediction were certain.

    Args:
        problem: the decision problem; its set is not used.
        seed: of everything random.
        hidden: widths of the network.
        degree: of the polynomials of the covariates that the network sees.
        epochs: passes over the training data.
        lr: learning rate of Adam, which falls to zero along a half cosine.
        batch_size: items a step.
        validation_share: share of the data held out where no validation data are given.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        seed: int = 0,
        *,
        hidden: Sequence[int] = (64, 64),
        degree: int = 1,
        epochs: int = 100,
        lr: float = 3e-3,
        batch_size: int = 50,
        validation_share: float = 0.2,
        oracle: Any = "auto",
        engine: Any = "auto",
    ) -> None:
        self.problem, self.seed, self.hidden, self.degree = problem, seed, hidden, degree
        self.epochs, self.lr, self.batch_size = epochs, lr, batch_size
        self.validation_share, self.oracle, self.engine = validation_share, oracle, engine

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train the network; validation data decide which epoch is kept."""
        checked_problem(self.problem, "MeanPrediction")
        everything = examples(self.problem, Z, Y, known, sample_weight=sample_weight)
        check_in_support(self.problem, everything)
        training, held_out = split(self.problem, everything, validation, self.validation_share, self.seed)
        self._take_columns(Z, Y, training.Z.shape[1])
        self.model_, self.history_ = fit_mean(
            training,
            held_out,
            hidden=self.hidden,
            degree=self.degree,
            epochs=self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        self.expected_ = ExpectedCost(self.problem, 1, oracle=self.oracle, engine=self.engine)
        return self

    @torch.no_grad()
    def predict_mean(self, Z: Any) -> Any:
        """The predicted means ``(n, dim)``."""
        values = contexts(self, Z)
        mean = self.model_(values)
        return mean if isinstance(Z, torch.Tensor) else mean.numpy()

    @torch.no_grad()
    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """The decisions that are best for the predicted means."""
        values = contexts(self, Z, known)
        mean = self.model_(values)[:, None]
        table = self.problem.known_data.table(known, len(values))
        return as_given(self.expected_.decide(mean, torch.ones_like(mean[..., 0]), table), Z)
