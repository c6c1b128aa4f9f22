"""What training on decisions minimises.

With integers every cost is averaged over the surrogate's candidates, x_k with probabilities p_k. Objectives of a batch
are those of the items that have a decision, and NaN for the others. With several processes, each takes those of its own
share.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import number
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.layer import Decision
from drolayers.problem import DecisionProblem
from drolayers.tails import cvar, excess, threshold, worst_weights

__all__ = ["CVaR", "Mean", "Objective", "Shift", "WorstCaseQuantile"]


def __dir__() -> list[str]:
    return sorted(__all__)


@runtime_checkable
class Objective(Protocol):
    """A loss of decisions at outcomes; immutable."""

    def __call__(
        self, problem: DecisionProblem, decision: Decision, y: Float[Tensor, "batch dim"], known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """Return one loss an item, differentiable in θ.

        An item without a decision may have any loss, such as the NaN of ``decision.expected``: training leaves it out
        by ``decision.ok``. Sums over a batch must do the same. An objective that couples the items of a batch may take
        ``weights``, one nonnegative number an item. Its losses are averaged by these weights.
        """


@runtime_checkable
class Criterion(Protocol):
    """What is wanted of the costs of decisions: less is better."""

    def of(self, costs: Float[Tensor, "point"]) -> float:
        """One number of all costs."""


@final
@dataclass(frozen=True)
class Mean:
    """E_p[c(x, y)]: the realised cost, averaged over the surrogate's candidates (the paper's decision loss)."""

    def __call__(
        self, problem: DecisionProblem, decision: Decision, y: Float[Tensor, "batch dim"], known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """The surrogate loss."""
        return decision.expected(lambda x: problem.loss(x, y, known))

    def of(self, costs: Float[Tensor, "point"]) -> float:
        """Their mean."""
        return float(costs.mean())


@final
@dataclass(frozen=True)
class CVaR:
    """The CVaR of the realised cost over a batch: the mean of its worst 1 - ``level``.

    ``min_τ τ + E[(c - τ)⁺] / (1 - level)`` with τ at its best for every batch anew: there is no auxiliary τ to be
    learnt. The CVaR of a few points is smaller than that of many: let a batch hold several times 1/(1 - level) items.
    Validation data are one batch.

    Reference:
        Rockafellar and Uryasev, Optimization of conditional value-at-risk, Journal of Risk 2 (2000).

    Args:
        level: from 0, the mean, to 1, excluded.
    """

    level: float

    def __post_init__(self) -> None:
        _check_level("CVaR", self.level)

    def __call__(
        self,
        problem: DecisionProblem,
        decision: Decision,
        y: Float[Tensor, "batch dim"],
        known: Known | None = None,
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch"]:
        """τ + (c - τ)⁺ / (1 - level)."""
        costs = problem.loss(decision.candidates, y, known)
        mass = decision.probabilities.detach()
        mass = mass if weights is None else mass * weights.to(mass)[:, None]
        tau = threshold(costs[mass > 0], mass[mass > 0], self.level)
        return decision.expected(lambda x: excess(costs, tau, self.level))

    def of(self, costs: Float[Tensor, "point"]) -> float:
        """The mean of the worst of them."""
        return float(cvar(costs, self.level))


@final
@dataclass(frozen=True)
class Shift:
    """The mean cost under the worst reweighting of a batch, ``max_q Σ q_i c_i`` with ``(1/n) Σ (n q_i - 1)² ≤ radius``.

    The items that matter are those that are dear: the ball of ``dro.Divergence(kind="chi2")`` around the data
    themselves, whatever the set. Differentiable by Danskin's theorem.

    Reference:
        Namkoong and Duchi, Variance-based regularization with convex objectives, NeurIPS 2017.

    Args:
        radius: zero is the mean; n - 1 or more, for n items, the largest cost.
    """

    radius: float

    def __post_init__(self) -> None:
        if not 0.0 <= number("radius", self.radius) < float("inf"):
            raise ModelError(f"Shift needs a radius that is not negative, not {self.radius!r}.")

    def __call__(
        self,
        problem: DecisionProblem,
        decision: Decision,
        y: Float[Tensor, "batch dim"],
        known: Known | None = None,
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch"]:
        """Every cost times n q_i, or with weights times q_i / p_i, p_i = w_i / Σ w."""
        costs, ok = Mean()(problem, decision, y, known), decision.ok
        share = torch.ones_like(costs[ok]) if weights is None else weights.to(costs)[ok]
        share = share / share.sum()
        ratios = torch.zeros_like(costs)
        ratios[ok] = worst_weights(costs.detach()[ok], self.radius, share) / share
        return ratios * costs

    def of(self, costs: Float[Tensor, "point"]) -> float:
        """Their mean under the worst weights."""
        return float(worst_weights(costs, self.radius) @ costs)


@final
@dataclass(frozen=True)
class WorstCaseQuantile:
    """``f + (c - f)⁺ / (1 - level)``, where f is the layer's own worst-case expected cost of the decision.

    Rockafellar and Uryasev's formula with f in place of τ: over all decisions and numbers f its mean is least at the
    conditional CVaR, with f the conditional quantile. So the set is rewarded for a worst-case cost that is not exceeded
    with probability ``level``, and does not shrink to nothing as it may under the mean. With integers every
    candidate has its own f.

    Args:
        level: from 0 to 1, excluded; near 1 the gradients are those of few items, and noisy.
    """

    level: float

    def __post_init__(self) -> None:
        _check_level("WorstCaseQuantile", self.level)

    def __call__(
        self, problem: DecisionProblem, decision: Decision, y: Float[Tensor, "batch dim"], known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """The score of every item's worst-case cost."""
        check_cost_value(problem)
        return decision.expected(lambda x: excess(problem.loss(x, y, known), decision.objective, self.level))


def checked_objective(objective: Objective | str | None) -> Objective:
    """An objective, of which the mean has a name."""
    if objective is None or objective == "mean":
        return Mean()
    if isinstance(objective, str | type) or not isinstance(objective, Objective):
        raise ModelError(f"objective must be 'mean' or an object of dro.objectives, not {objective!r}.")
    return objective


def takes_weights(objective: Objective) -> bool:
    """Whether an objective couples the items of a batch and takes their weights."""
    return "weights" in inspect.signature(objective.__call__).parameters


def has_cost_value(problem: DecisionProblem) -> bool:
    """Whether the value of a decision is a cost that can be compared with what comes."""
    return all(part.price is None for part in problem.parts)


def check_cost_value(problem: DecisionProblem) -> None:
    """Raise unless the value of a decision is a cost that can be compared with realised costs."""
    if not has_cost_value(problem):
        raise ModelError(
            "The cost holds dro.fragility, whose value is a cost per distance and not comparable with realised costs: "
            "learner.violations returns by how much the mean exceeds its target."
        )


def _check_level(who: str, level: float) -> None:
    """A share that leaves something."""
    if not 0.0 <= number("level", level) < 1.0:
        raise ModelError(f"{who} needs a level from 0 to 1, excluded, not {level!r}.")
