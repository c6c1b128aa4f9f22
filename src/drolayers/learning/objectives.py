"""What training on decisions minimises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from drolayers.known import Known
from drolayers.layer import Decision
from drolayers.problem import DecisionProblem


@runtime_checkable
class Objective(Protocol):
    """A loss of decisions at outcomes; immutable."""

    def __call__(
        self, problem: DecisionProblem, decision: Decision, y: Float[Tensor, "batch dim"], known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """One loss an item, differentiable in θ; zero, without gradient, where an item has no decision."""


@final
@dataclass(frozen=True)
class Mean:
    """E_p[c(x, y)]: the realised cost, averaged over the surrogate's candidates (the paper's decision loss)."""

    def __call__(
        self, problem: DecisionProblem, decision: Decision, y: Float[Tensor, "batch dim"], known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """The surrogate loss."""
        return decision.expected(lambda x: problem.loss(x, y, known))
