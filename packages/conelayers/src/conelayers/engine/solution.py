"""What an engine returns for a batch of programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.program.program import ConeProgram
from conelayers.status import Derivative, Statuses, usable


@dataclass(frozen=True, eq=False)
class WarmStart:
    """A primal, dual and slack point to begin from, one a batch item."""

    primal: Float[Tensor, "batch column"]
    dual: Float[Tensor, "batch row"]
    slack: Float[Tensor, "batch row"]


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Statuses):
    """Primal and dual solutions of a batch; items that are not ``ok`` hold NaN and pass no gradient.

    ``primal`` and ``dual`` are differentiated by the implicit function theorem, ``objective`` by the envelope theorem;
    ``slack`` is a constant. ``residual`` is the largest relative violation of the optimality conditions. ``derivative``
    is filled in by the backward pass: a ``Derivative`` code an item tells which derivative of ``primal`` it got.
    ``value_derivative`` does the same for ``objective``, whose gradient stays at a KINK, as one of the subgradients.
    """

    program: ConeProgram
    primal: Float[Tensor, "batch column"]
    dual: Float[Tensor, "batch row"]
    slack: Float[Tensor, "batch row"]
    objective: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]
    residual: Float[Tensor, "batch"]
    iterations: Int[Tensor, "batch"]
    derivative: Int[Tensor, "batch"]
    value_derivative: Int[Tensor, "batch"]
    dual_derivative: Int[Tensor, "batch"]

    @property
    def derivatives(self) -> list[Derivative]:
        """Which derivative each item got, as an enumeration; UNASKED before the backward pass."""
        return [Derivative(code) for code in self.derivative.tolist()]

    @property
    def warm_start(self) -> WarmStart:
        """This solution as a point to begin from."""
        return WarmStart(self.primal.detach(), self.dual.detach(), self.slack)

    def variable(self, key: Any) -> Tensor:
        """The values of a CVXPY variable (or of its name), ``(batch, *shape)``."""
        return self.program.variable(self.primal, key)

    def masked(self, status: Int[Tensor, "batch"]) -> Solution:
        """The same with new statuses: items that are no longer ok become NaN without a gradient."""
        gone = self.ok & ~usable(status)
        if not bool(gone.any()):
            return replace(self, status=status)

        def mask(tensor: Tensor) -> Tensor:
            return tensor.masked_fill(gone.reshape(-1, *[1] * (tensor.dim() - 1)), torch.nan)

        return replace(
            self,
            status=status,
            primal=mask(self.primal),
            dual=mask(self.dual),
            slack=mask(self.slack),
            objective=mask(self.objective),
        )


def placeholders(values: Tensor, ok: Bool[Tensor, "batch"]) -> Tensor:
    """Replace the rows of items that are not ok by zeros, so that no NaN enters later arithmetic."""
    return torch.where(ok.reshape(-1, *[1] * (values.dim() - 1)), values, torch.zeros_like(values))
