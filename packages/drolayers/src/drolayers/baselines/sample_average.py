"""Sample average approximation, over all outcomes or over those of similar contexts."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, final

import cvxpy as cp
import torch

from conelayers.internals import keyed_as
from drolayers.baselines.base import as_given, checked_problem, contexts
from drolayers.baselines.sibling import ExpectedCost
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.learning.data import check_in_support, examples
from drolayers.learning.policy import Decider
from drolayers.nominal import KNN, NominalDistribution
from drolayers.problem import DecisionProblem


@final
class SampleAverage(Decider):
    """Minimises the mean cost over all training outcomes: one decision, whatever the context.

    Args:
        problem: the decision problem; its set is not used.
        seed: nothing is random here; every policy takes one.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(self, problem: DecisionProblem, seed: int = 0, *, oracle: Any = "auto", engine: Any = "auto") -> None:
        self.problem, self.seed, self.oracle, self.engine = problem, seed, oracle, engine

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Solve for the decision; validation data are not needed."""
        data = examples(checked_problem(self.problem, "SampleAverage"), Z, Y, known, sample_weight=sample_weight)
        check_in_support(self.problem, data)
        self._take_columns(Z, Y, data.Z.shape[1])
        count = len(data)
        self.model_ = ExpectedCost(self.problem, count, oracle=self.oracle, engine=self.engine)
        weights = torch.ones(count, dtype=torch.float64) if data.weights is None else data.weights
        self.atoms_, self.weights_ = data.Y[None], weights[None] / weights.sum()
        # With known data there is a decision for each of them.
        self.decision_ = None if self.problem.known else self.model_.decide(self.atoms_, self.weights_)
        return self

    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """The one decision, for every context."""
        count = len(contexts(self, Z, known))
        table = self.problem.known_data.table(known, count)
        if self.decision_ is None:
            atoms, weights = (part.expand(count, *part.shape[1:]) for part in (self.atoms_, self.weights_))
            return as_given(self.model_.decide(atoms, weights, table), Z)
        repeated = {v: value.expand(count, *value.shape[1:]).clone() for v, value in self.decision_.items()}
        return as_given(keyed_as(self.decision_, repeated), Z)


@final
class WeightedSampleAverage(Decider):
    """Minimises the cost under the nominal distribution Q_z of each context.

    Args:
        problem: the decision problem; its set is not used.
        nominal: Q_z; the 20 nearest neighbours unless given.
        seed: nothing is random here; every policy takes one.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        nominal: NominalDistribution | None = None,
        seed: int = 0,
        *,
        oracle: Any = "auto",
        engine: Any = "auto",
    ) -> None:
        self.problem, self.nominal, self.seed, self.oracle, self.engine = problem, nominal, seed, oracle, engine

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Take in the data; validation data are not needed."""
        data = examples(
            checked_problem(self.problem, "WeightedSampleAverage"), Z, Y, known, sample_weight=sample_weight
        )
        check_in_support(self.problem, data)
        if self.nominal is not None and not isinstance(self.nominal, NominalDistribution):
            raise ModelError(f"nominal must be an object such as dro.nominal.KNN(k=20), not {self.nominal!r}.")
        nominal = KNN(k=min(20, len(data))) if self.nominal is None else deepcopy(self.nominal)
        weighted = {} if data.weights is None else {"sample_weight": data.weights}
        self.nominal_ = nominal.fit(data.Z, data.Y, **weighted)
        self._take_columns(Z, Y, data.Z.shape[1])
        self.model_ = ExpectedCost(self.problem, self.nominal_.atoms, oracle=self.oracle, engine=self.engine)
        return self

    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """The best decision for each context's own distribution."""
        values = contexts(self, Z, known)
        table = self.problem.known_data.table(known, len(values))
        atoms, weights = self.nominal_(values)
        return as_given(self.model_.decide(atoms, weights, table), Z)
