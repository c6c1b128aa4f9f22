"""Sets fitted to data without a look at decisions: the paper's prediction-focused learning, and its best case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, final

import cvxpy as cp
import torch
from torch import Tensor

from conelayers.internals import check_same_index, keyed_as
from drolayers.baselines.base import as_given, checked_problem
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.layer import DROLayer
from drolayers.learning import DecisionFocusedLearner
from drolayers.learning.data import matrix
from drolayers.learning.policy import Decider
from drolayers.problem import DecisionProblem


def PredictionFocused(problem: DecisionProblem, **settings: Any) -> DecisionFocusedLearner:  # noqa: N802
    """Prediction-focused learning: the learner that stops after its first training.

    Args:
        problem: the decision problem.
        settings: those of :class:`drolayers.DecisionFocusedLearner`, but ``training``.
    """
    if "training" in settings:
        raise ModelError("PredictionFocused is not trained on decisions: use DecisionFocusedLearner with training=.")
    return DecisionFocusedLearner(problem, training=None, **settings)


@final
class FullKnowledge(Decider):
    """Robust decisions for sets that somebody who knows the distribution names: nothing is learnt.

    With the true conditional moments (``Newsvendor.full_knowledge``) this is the paper's benchmark, the best that
    prediction-focused learning can come to.

    Args:
        problem: the decision problem.
        theta: from contexts ``(n, dz)``, an array, to the parameters of the sets: ``(n, problem.size)``, or a dict by
            name.
        seed: nothing is random here; every policy takes one.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        theta: Callable[[Any], Any],
        seed: int = 0,
        *,
        oracle: Any = "auto",
        engine: Any = "auto",
    ) -> None:
        self.problem, self.theta, self.seed, self.oracle, self.engine = problem, theta, seed, oracle, engine

    def fit(
        self,
        Z: Any = None,
        Y: Any = None,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """There is nothing to learn."""
        if checked_problem(self.problem, "FullKnowledge").sets.needs_nominal:
            raise ModelError("FullKnowledge needs a set that is all in θ; a ball around data is not.")
        return self

    @torch.no_grad()
    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """The robust decisions for the sets that are named."""
        self.fit()
        check_same_index({"Z": Z, "known": known})
        given = self.theta(matrix(Z, "Z").numpy())
        if isinstance(given, dict):
            given = {name: torch.as_tensor(value).double() for name, value in given.items()}
        theta: Tensor = self.problem.flat(given if isinstance(given, dict) else torch.as_tensor(given))
        layer = DROLayer(self.problem, oracle=self.oracle, engine=self.engine).eval()
        table = self.problem.known_data.table(known, len(theta))
        parts = [
            layer(part.double(), None, self.problem.known_data.values(told)).best
            for part, told in zip(theta.split(512), table.split(512), strict=True)
        ]
        return as_given(keyed_as(parts[0], {v: torch.cat([part[v] for part in parts]) for v in parts[0]}), Z)
