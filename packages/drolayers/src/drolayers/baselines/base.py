"""What every policy that we compare with has in common: fit on contexts and outcomes, then decide."""

from __future__ import annotations

from typing import Any, Protocol, Self

import cvxpy as cp
from sklearn.exceptions import NotFittedError
from torch import Tensor

from conelayers.internals import check_same_index, keyed_as
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.learning.data import check_width, matrix, same_columns
from drolayers.learning.policy import Missing
from drolayers.problem import DecisionProblem


class Policy(Protocol):
    """From data to decisions, with the manners of :class:`drolayers.DecisionFocusedLearner`."""

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Learn from contexts ``Z (n, dz)`` and outcomes ``Y (n, dim)``.

        Args:
            Z: contexts; an array, a data frame or a tensor.
            Y: outcomes.
            validation: contexts and outcomes (and known data, and weights) that decide which epoch is kept, for
                policies that are trained.
            known: values of ``problem.known``, one row a context.
            sample_weight: nonnegative weights of the rows ``(n,)``; a row of weight zero counts as absent.
        """

    def predict(self, Z: Any, known: Known | None = None) -> Any:
        """The same decisions as one table, the variables side by side."""

    def score(
        self, Z: Any, Y: Any, known: Known | None = None, sample_weight: Any = None, missing: Missing = "worst"
    ) -> float:
        """Return the negative mean cost, weighted; if a row has no decision, minus infinity unless "skip"."""

    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """Decisions ``(n, *shape)`` by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists."""


def checked_problem(problem: Any, who: str) -> DecisionProblem:
    """A decision problem, or one sentence."""
    if not isinstance(problem, DecisionProblem):
        raise ModelError(f"{who} needs a dro.DecisionProblem, not {type(problem).__name__}.")
    return problem


def contexts(policy: object, Z: Any, known: Known | None = None) -> Tensor:
    """Contexts for a fitted policy, as many columns wide as in training; known data must have their index."""
    width = getattr(policy, "n_features_in_", None)
    if width is None:
        raise NotFittedError(f"This {type(policy).__name__} is not fitted yet: call fit(Z, Y) first.")
    check_same_index({"Z": Z, "known": known})
    values = matrix(Z, "Z")
    check_width(Z, values, width)
    same_columns(Z, "Z", getattr(policy, "feature_names_in_", None))
    return values


def as_given(decision: dict[cp.Variable, Tensor], Z: Any) -> dict[cp.Variable, Any]:
    """Tensors for tensors, arrays otherwise."""
    if isinstance(Z, Tensor):
        return decision
    return keyed_as(decision, {variable: value.detach().cpu().numpy() for variable, value in decision.items()})
