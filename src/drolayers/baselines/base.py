"""What every policy that we compare with has in common: fit on contexts and outcomes, then decide."""

from __future__ import annotations

from typing import Any, Protocol, Self

import cvxpy as cp
import numpy as np
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor

from drolayers.checks import number
from drolayers.errors import ModelError, ShapeError
from drolayers.learning.data import Outcomes, matrix
from drolayers.problem import DecisionProblem


class Policy(Protocol):
    """From data to decisions, with the manners of :class:`drolayers.DecisionFocusedLearner`."""

    def fit(self, Z: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Learn from contexts ``Z (n, dz)`` and outcomes ``Y (n, dim)``.

        Args:
            Z: contexts; an array, a data frame or a tensor.
            Y: outcomes.
            validation: contexts and outcomes that decide which epoch is kept, for policies that are trained.
        """

    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """Decisions ``(n, *shape)`` by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists."""


def checked_problem(problem: Any, who: str) -> DecisionProblem:
    """A decision problem, or one sentence."""
    if not isinstance(problem, DecisionProblem):
        raise ModelError(f"{who} needs a dro.DecisionProblem, not {type(problem).__name__}.")
    return problem


def training_data(problem: DecisionProblem, Z: Any, Y: Any) -> Outcomes:
    """Contexts and outcomes of the right shapes."""
    data = Outcomes(matrix(Z, "Z"), matrix(Y, "Y"), True)
    if data.Y.shape[1] != problem.ambiguity.y.dim:
        raise ShapeError(f"Y must have {problem.ambiguity.y.dim} columns, not {data.Y.shape[1]}.")
    return data


def split(
    problem: DecisionProblem, Z: Any, Y: Any, validation: tuple[Any, Any] | None, share: float, seed: int
) -> tuple[Outcomes, Outcomes | None]:
    """Training and validation data: those that were given, or a share of the data."""
    everything = training_data(problem, Z, Y)
    if validation is not None:
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise ShapeError(f"validation must be a pair (Z, Y), not {type(validation).__name__}.")
        held_out = training_data(problem, *validation)
        if held_out.Z.shape[1] != everything.Z.shape[1]:
            raise ShapeError("Validation data must have the columns of the training data.")
        return everything, held_out
    if not 0 <= number("validation_share", share) < 1:
        raise ModelError(f"validation_share must lie in [0, 1), not {share}.")
    held = int(len(everything) * share)
    if not held:
        return everything, None
    order = torch.as_tensor(np.random.default_rng(seed).permutation(len(everything)))
    # In their own order: a policy may ask for the latest training points.
    kept, rest = order[held:].sort().values, order[:held].sort().values
    return (
        Outcomes(everything.Z[kept], everything.Y[kept], True),
        Outcomes(everything.Z[rest], everything.Y[rest], False),
    )


def contexts(policy: object, Z: Any) -> Tensor:
    """Contexts for a fitted policy, as many columns wide as in training."""
    width = getattr(policy, "n_features_in_", None)
    if width is None:
        raise NotFittedError(f"This {type(policy).__name__} is not fitted yet: call fit(Z, Y) first.")
    values = matrix(Z, "Z")
    if values.shape[1] != width:
        raise ShapeError(f"Z must have {width} columns, as in training, not {values.shape[1]}.")
    return values


def as_given(decision: dict[cp.Variable, Tensor], Z: Any) -> dict[cp.Variable, Any]:
    """Tensors for tensors, arrays otherwise."""
    if isinstance(Z, Tensor):
        return decision
    return {variable: value.detach().cpu().numpy() for variable, value in decision.items()}
