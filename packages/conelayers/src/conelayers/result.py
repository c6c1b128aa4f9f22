"""The answer of a layer for a batch: solutions, values, duals, statuses and derivative codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cvxpy as cp
import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.engine.solution import Solution
from conelayers.errors import ModelError
from conelayers.integer.oracle import Candidates
from conelayers.numbering import Keyed
from conelayers.program.duals import DualSlot
from conelayers.program.program import Slot
from conelayers.status import Statuses, solve_error


@dataclass(frozen=True, eq=False, repr=False)
class ConeResult(Statuses):
    """The solution of a batch of problems.

    Tensors have a leading batch dimension if any argument of the call had one; ``status`` always has. Unsolved items
    are NaN with a zero gradient.

    Attributes:
        status: a ``Status`` code for each item.
        candidates: the points of the surrogate of an integer problem by variable, ``(batch, candidate, *shape)``; of a
            continuous problem, the optimum alone.
        objective: the optimal value with the integers fixed at each candidate.
        probabilities: of the candidates; zero if a candidate was not solved.
        oracle: the search of the integer points; None for a continuous problem, or if all points were solved.
    """

    status: Int[Tensor, "batch"]
    objective: Float[Tensor, "batch candidate"]
    probabilities: Float[Tensor, "batch candidate"]
    oracle: Candidates | None
    _solution: Solution
    _candidates: Float[Tensor, "batch candidate column"]
    _duals: Mapping[cp.Constraint | str, tuple[DualSlot, ...] | None]
    _batched: bool
    _geometric: bool

    def __getitem__(self, variable: cp.Variable | str) -> Tensor:
        """Return the optimal value of a variable, by object or name; ``(batch, *shape)``."""
        return self._drop(self._read(self._solution.primal, variable))

    @property
    def value(self) -> Float[Tensor, "batch"]:
        """The optimal value of the problem, of a maximisation too; differentiable."""
        return self._drop(self._solution.objective)

    @property
    def gap(self) -> Float[Tensor, "batch"]:
        """By how much the optimum of an integer problem may be better than ``value``.

        It is zero if the optimum is proven or the problem is continuous, and NaN if the item is unsolved.
        """
        gap = torch.zeros_like(self._solution.objective) if self.oracle is None else self.oracle.gap
        return self._drop(gap.to(self._solution.objective).masked_fill(~self.ok, torch.nan))

    @property
    def derivative(self) -> Int[Tensor, "batch"]:
        """A ``Derivative`` code for each item; UNASKED before the backward pass."""
        return self._solution.derivative

    @property
    def value_derivative(self) -> Int[Tensor, "batch"]:
        """The same for ``value``; KINK if its gradient is one of several subgradients."""
        return self._solution.value_derivative

    @property
    def dual_derivative(self) -> Int[Tensor, "batch"]:
        """The same for the duals; LOOSE if they are not unique, though the solution may be."""
        return self._solution.dual_derivative

    @property
    def candidates(self) -> dict[cp.Variable | str, Tensor]:
        """The points of the surrogate by variable, ``(batch, candidate, *shape)``; finite if not solved."""
        program = self._solution.program
        keys = [slot.name if slot.leaf is None else slot.leaf for slot in program.variables]
        return Keyed({key: self._read(self._candidates, key) for key in keys}, program, "the layer's variables")

    def dual(self, constraint: cp.Constraint | str, position: int = 0) -> Tensor:
        """Return the dual variable of a constraint with CVXPY's sign, ``(batch, *shape)``.

        The duals of an integer problem are those of the problem with its integers fixed at the optimum. Bounds that
        are declared with a variable (``nonneg=``, ``bounds=``) have no dual variable.

        Args:
            constraint: of the problem; "z" for all multipliers of a program from matrices.
            position: which one, if the constraint has several, as ``cp.SOC`` has.
        """
        slots = self._duals[constraint]
        if slots is None:
            raise ModelError(f"The constraint {constraint} has no dual variable, because it holds constants only.")
        if not 0 <= position < len(slots):
            raise ModelError(
                f"The constraint {constraint} has {len(slots)} dual variables, so `position` must be below "
                f"{len(slots)}, got {position}."
            )
        return self._read_slot(slots[position])

    def expected(self, loss: Callable[[dict[cp.Variable | str, Tensor]], Tensor]) -> Float[Tensor, "batch"]:
        """Return the surrogate loss Σ_k p_k l(x_k), differentiable in the parameters.

        Args:
            loss: takes the candidates, ``(batch, candidate, *shape)`` by variable, and returns ``(batch, candidate)``.

        Returns:
            A loss for each item; NaN with a zero gradient if the item is unsolved.
        """
        losses = loss(self.candidates)
        shape = tuple(self.probabilities.shape)
        if not isinstance(losses, Tensor) or tuple(losses.shape) != shape:
            received = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ModelError(f"The loss must return a tensor of shape {shape} (batch, candidate), got {received}.")
        # Masked before the product: zero times an infinite loss is NaN, and so is its derivative.
        losses = torch.where(self.probabilities > 0, losses, torch.zeros_like(losses))
        total = (self.probabilities * losses).sum(1)
        return self._drop(torch.where(self.ok, total, torch.full_like(total, torch.nan)))

    def mean(self, loss: Callable[[dict[cp.Variable | str, Tensor]], Tensor]) -> tuple[Float[Tensor, ""], int]:
        """Return the mean of ``expected`` over the solved items, and their number.

        Raises:
            SolveError: no item was solved.
        """
        if not bool(self.ok.any()):
            raise solve_error(self.statuses)
        losses = self.expected(loss).reshape(-1)[self.ok]
        return losses.mean(), len(losses)

    def _read_slot(self, slot: Slot | DualSlot) -> Tensor:
        """Return the variable or the dual variable of a slot."""
        if isinstance(slot, DualSlot):
            return self._drop(slot.read(self._solution.dual))
        return self[slot.name if slot.leaf is None else slot.leaf]

    def _read(self, points: Tensor, variable: cp.Variable | str) -> Tensor:
        """Return a variable's part of points; of a geometric program, from its logarithm."""
        part = self._solution.program.variable(points, variable)
        return part.exp() if self._geometric else part

    def _drop(self, tensor: Tensor) -> Tensor:
        """Drop the batch dimension if no argument had one."""
        return tensor if self._batched else tensor[0]
