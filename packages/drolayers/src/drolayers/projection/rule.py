"""How the parameters of one moment are moved: the part that all methods share.

The moments of a set share no parameters, so that

    min Σ_j w_j (θ_j - θ⁰_j)²   subject to   (1 + r) Σ_n ω_n g_i(y_n, α_i) + m ≤ σ_i for every i

falls apart into one problem a moment. A rule knows its minimiser α; σ is then what the nominal distribution needs at
that α, since the constraint is active wherever θ⁰ violates it. So a rule's σ is exact whatever the accuracy of its α.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from conelayers.internals import unwrapped
from drolayers.ambiguity.moment import Moment
from drolayers.ambiguity.nominal import Nominal
from drolayers.status import Status, gravest
from drolayers.statuses import Statuses

Values = dict[str, Tensor]
"""A moment's parameters by name, ``(batch, *shape)``."""


@dataclass(frozen=True, eq=False)
class Task:
    """One moment as the projection sees it.

    Args:
        moment: the moment.
        position: its place in the set.
        dim: number of coordinates of y.
        weights: the weight of every free parameter in the distance, by name; "sigma" among them where it is free.
        margin: r; zero for moments that can be negative.
        absolute: m.
    """

    moment: Moment
    position: int
    dim: int
    weights: Mapping[str, NDArray[np.float64]]
    margin: float
    absolute: float

    def require(self, expectation: Tensor) -> Tensor:
        """The bound that an expectation needs."""
        return (1.0 + self.margin) * expectation + self.absolute


@dataclass(frozen=True, eq=False)
class Move:
    """Where a rule moves α, and which items it could not move to where they must be."""

    alpha: Values
    infeasible: Bool[Tensor, "batch"] | None = None
    failed: Bool[Tensor, "batch"] | None = None


@dataclass(eq=False, repr=False)
class Report(Statuses):
    """What became of every item of a projection: one status an item, and a sentence for each that is not optimal.

    Attributes:
        status: ``(batch,)``. OPTIMAL: the projected set contains the nominal distribution. INACCURATE: it does, but θ
            is not the closest (the solver failed and the bound was raised instead). INFEASIBLE: no value of the free
            parameters makes the set contain the nominal distribution. FAILED: the solver broke down under a fixed
            bound. In the last two cases the parameters concerned are returned as they came.
    """

    status: Int[Tensor, "batch"]
    _remarks: list[tuple[Bool[Tensor, "batch"], str]] = field(default_factory=list)

    def note(self, where: Bool[Tensor, "batch"], status: Status, sentence: str) -> None:
        """Record what happened to some items; the worst status stands."""
        if bool(where.any()):
            self.status = torch.where(
                where, gravest(self.status, torch.full_like(self.status, int(status))), self.status
            )
            self._remarks.append((where, sentence))

    def join(self, other: Report, said: str) -> None:
        """Record what another report says of the same items, after a few words of where it is from."""
        self.status = gravest(self.status, other.status)
        self._remarks += [(where, f"{said}{sentence}") for where, sentence in other._remarks]

    def kept(self) -> Report:
        """The same, to be kept beyond a transform in which it was made."""
        return Report(unwrapped(self.status), [(unwrapped(where), sentence) for where, sentence in self._remarks])

    @property
    def sentences(self) -> dict[int, str]:
        """What is wrong with an item, and what to do; only items about which there is something to say."""
        said: dict[int, str] = {}
        for where, sentence in self._remarks:
            for item in where.nonzero()[:, 0].tolist():
                said[item] = f"{said[item]} {sentence}" if item in said else sentence
        return said


class Rule(ABC):
    """A method for one moment."""

    task: Task

    @abstractmethod
    def summarise(self, nominal: Nominal) -> Any:
        """What the rule needs to know of the nominal distribution, computed once a call."""

    @abstractmethod
    def needed(self, alpha: Values, summary: Any) -> Float[Tensor, "batch bound"]:
        """The bounds that the nominal distribution needs under some α."""

    @abstractmethod
    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Any
    ) -> Move:
        """The minimising α; differentiable, and with the parameters of valid bounds returned as they came."""

    @final
    def apply(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], nominal: Nominal, dtype: torch.dtype, report: Report
    ) -> tuple[Values, Float[Tensor, "batch bound"]]:
        """Move one moment's parameters and raise its bounds.

        Args:
            alpha: all parameters of the moment, given ones included, in float64.
            sigma: its bounds, in float64.
            nominal: the nominal distribution.
            dtype: the type in which θ will be returned, so that rounding cannot undo the projection.
            report: where to say what could not be done.
        """
        summary = self.summarise(nominal)
        with torch.no_grad():
            found = self.needed(alpha, summary)
            valid, lost = found <= sigma, ~found.isfinite().all(1)
        if bool(valid.all()):
            return dict(alpha), sigma
        # An item whose bounds are no numbers is left alone; zeros stand in for it, so that no derivative is NaN.
        usual = {name: torch.where(_beside(lost, v), torch.zeros_like(v), v) for name, v in alpha.items()}
        move = self.nearest(usual, sigma, valid, summary)
        self._comment(move, report)
        moved = alpha | {n: torch.where(_beside(lost, v), alpha[n], rounded(v, dtype)) for n, v in move.alpha.items()}
        if self.task.moment.sigma is not None:
            return moved, sigma
        some = {name: torch.where(_beside(lost, v), torch.zeros_like(v), v) for name, v in moved.items()}
        needed = raised(self.needed(some, summary), dtype)
        unknown = ~needed.isfinite() | lost[:, None]
        report.note(unknown.any(1), Status.FAILED, f"{self._name} could not be evaluated at the nominal distribution.")
        return moved, torch.where(valid | unknown, sigma, needed)

    @property
    def _name(self) -> str:
        """The moment, in messages."""
        return f"Moment {self.task.position}, {self.task.moment},"

    def _comment(self, move: Move, report: Report) -> None:
        """Say which items were not projected."""
        if move.infeasible is not None:
            sentence = (
                f"{self._name} has a fixed bound that the nominal distribution exceeds for all values of its free "
                "parameters, which were left alone: raise the bound, or let it be learnt."
            )
            report.note(move.infeasible, Status.INFEASIBLE, sentence)
        if move.failed is not None:
            status = Status.INACCURATE if self.task.moment.sigma is None else Status.FAILED
            done = (
                "its bound was raised instead" if self.task.moment.sigma is None else "its parameters were left alone"
            )
            report.note(move.failed, status, f"{self._name}: the projection's cone program failed and {done}.")


class ValueRule(Rule):
    """A rule that needs the distribution itself, and bounds from the moment's values at its atoms."""

    @final
    def summarise(self, nominal: Nominal) -> Nominal:
        """The distribution itself."""
        return nominal

    @final
    def needed(self, alpha: Values, summary: Nominal) -> Float[Tensor, "batch bound"]:
        """Σ ω_n g(y_n, α), and the margins."""
        return self.task.require(expectation(self.task.moment, alpha, summary))


def _beside(items: Bool[Tensor, "batch"], value: Tensor) -> Bool[Tensor, "batch ..."]:
    """A mask of items, shaped to go with a value."""
    return items.reshape(-1, *[1] * (value.dim() - 1))


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A value as it will be returned."""
    return value if dtype == value.dtype else value.to(dtype).to(value.dtype)


def raised(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """A bound that is not below the given one after rounding, with the same gradient."""
    if dtype == bound.dtype:
        return bound
    limits, single = torch.finfo(dtype), bound.detach().to(dtype)
    above = torch.where(single.double() < bound, single + single.abs() * limits.eps + limits.tiny, single)
    return bound + (above.to(bound.dtype) - bound).detach()


def expectation(moment: Moment, alpha: Values, nominal: Nominal) -> Float[Tensor, "batch bound"]:
    """Σ ω_n g(y_n, α)."""
    leaves = {name: value.unsqueeze(1) for name, value in alpha.items()}
    return nominal.mean(moment.value(nominal.atoms, leaves))
