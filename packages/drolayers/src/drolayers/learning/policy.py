"""What learners and baselines share as estimators of scikit-learn: decisions as one table."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from conelayers.internals import check_same_index, row_weights, warns_unsolved, weighted_mean
from drolayers.errors import ModelError, UnsolvedItemsWarning
from drolayers.known import Known
from drolayers.learning.data import column_names, examples, same_columns, warn_outside_support
from drolayers.problem import DecisionProblem

Missing = Literal["worst", "skip"]
"""Rule for rows without a decision: they make a mean as bad as it can be, or are left out of it."""

EXPECTED_FAILED_CHECKS = {
    "check_do_not_raise_errors_in_init_or_set_params": "a setting that does not exist is refused at once",
    "check_parameters_default_constructible": "a decision problem must be given, and stages are immutable objects",
    "check_fit1d": "a single covariate may be given as a vector",
    "check_fit2d_predict1d": "the sentence is ours: it names the columns that were expected",
    "check_n_features_in_after_fitting": "the sentence is ours: it names the columns that were expected",
    "check_estimators_empty_data_messages": "the sentence is ours: it tells the shape",
    "check_dtype_object": "what is no number is a ShapeError, which is a ValueError, rather than a TypeError",
    "check_sample_weight_equivalence_on_dense_data": "outcomes are called Y here, and scikit-learn passes them as y",
}
"""The checks of scikit-learn's ``check_estimator`` that fail, and why that is meant."""


class Decider(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator that decides."""

    problem: DecisionProblem
    n_features_in_: int
    feature_names_in_: list[str] | None
    outcome_names_in_: list[str] | None

    def _take_columns(self, Z: Any, Y: Any, width: int) -> None:
        """Remember how many covariates there are, and what they and the outcomes are called."""
        self.n_features_in_ = width
        self.feature_names_in_, self.outcome_names_in_ = column_names(Z), column_names(Y)

    @abstractmethod
    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """Decisions ``(n, *shape)`` by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists."""

    def predict(self, Z: Any, known: Known | None = None) -> Any:
        """What :meth:`decide` says as one table, a row per context, so that scikit-learn's pipelines can use it.

        Its columns are those of all variables in the order of ``problem.variables``, each variable row by row.
        """
        # What makes up rules says nothing by itself.
        shown = {v.id for v in self.problem.variables}
        return side_by_side({v: value for v, value in self.decide(Z, known).items() if v.id in shown})

    def score(
        self, Z: Any, Y: Any, known: Known | None = None, sample_weight: Any = None, missing: Missing = "worst"
    ) -> float:
        """Return the negative mean cost, so that greater is better.

        Args:
            Z: contexts.
            Y: their outcomes.
            known: values of ``problem.known``, one row a context.
            sample_weight: one nonnegative number a row; equal unless given. A row of weight zero counts as absent.
            missing: if a row has no decision, "worst" returns minus infinity and warns, and "skip" averages the other
                rows.
        """
        check_missing(missing)
        data, told = examples(self.problem, Z, Y, known), self.problem.known_data
        values = told.values(data.known)
        same_columns(Y, "Y", getattr(self, "outcome_names_in_", None))
        check_same_index({"Z": Z, "sample_weight": sample_weight})
        warn_outside_support(self.problem, data.Y, values)
        weights = row_weights(sample_weight, len(data))
        decision = {v: torch.as_tensor(value) for v, value in self.decide(Z, known).items()}
        solved = torch.stack([~value.reshape(len(data), -1).isnan().any(1) for value in decision.values()]).all(0)
        if lacks_rows(solved, weights, missing):
            count = f"{int((~solved).sum())} of {len(solved)} rows have no decision"
            warn_unsolved_rows(count, "The score is minus infinity", missing)
            return -math.inf
        return -mean_cost(self.problem.loss(decision, data.Y, values), solved, weights)


def lacks_rows(solved: Tensor, weights: Tensor | None, missing: Missing) -> bool:
    """Whether a mean over the rows must not be taken: a row lacks a decision, or with "skip" all rows do.

    Args:
        solved: which rows have a decision, ``(n,)``.
        weights: of the rows; rows of weight zero do not count. None for equal weights.
        missing: the rule.
    """
    counted = solved if weights is None else solved[weights > 0]
    return not bool(counted.all() if missing == "worst" else counted.any())


def mean_cost(costs: Tensor, solved: Tensor, weights: Tensor | None) -> float:
    """Average the costs ``(n,)`` of the rows that have a decision, by the weights of the rows."""
    if weights is None:
        return float(costs[solved].mean())
    # A row of weight zero may cost infinitely much.
    counted = solved & (weights > 0)
    return float(weighted_mean(costs[counted], weights[counted]))


def check_missing(missing: Missing) -> None:
    """Raise unless ``missing`` is a known rule for rows without a decision."""
    if missing not in ("worst", "skip"):
        raise ModelError(f"missing must be 'worst' or 'skip', not {missing!r}.")


def warn_unsolved_rows(count: str, consequence: str, missing: Missing | None = None) -> None:
    """Warn the caller of a public method that rows have no decision.

    Args:
        count: a sentence without its point, or with the advice of statuses.
        consequence: what the method returns for that reason, as the beginning of a sentence.
        missing: the rule of the method; None if it has none.
    """
    if not warns_unsolved():
        return
    rule = "; missing='skip' averages the other rows" if missing == "worst" else ""
    warnings.warn(f"{count.removesuffix('.')}. {consequence}{rule}.", UnsolvedItemsWarning, stacklevel=3)


def side_by_side(decision: Mapping[cp.Variable, Any]) -> Any:
    """A decision as one table, its variables side by side, each row by row."""
    values = [value.reshape(len(value), -1) for value in decision.values()]
    return torch.cat(values, 1) if isinstance(values[0], Tensor) else np.concatenate(values, 1)


def column_titles(decision: Mapping[cp.Variable, Any]) -> list[str]:
    """The names of its columns: ``x`` for a number, ``x_1`` for the first entry of anything else."""
    return [f"{v.name()}_{k + 1}" if v.ndim else v.name() for v in decision for k in range(v.size)]
