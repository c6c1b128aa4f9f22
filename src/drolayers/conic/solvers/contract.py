"""The contract of back ends: what an engine asks of whatever solves its batches, and what it gets in return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import WarmStart
from drolayers.errors import ModelError

Pullback = Callable[[Float[Tensor, "batch column"]], tuple[Tensor, Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Exact:
    """Differentiate the solution map as it is."""


@dataclass(frozen=True)
class Smoothed:
    """Differentiate the solution of the barrier problem at a fixed level.

    Args:
        level: barrier parameter of the program after its objective was divided by its largest coefficient, so that one
            level means the same at every scale.
    """

    level: float = 1e-3

    def __post_init__(self) -> None:
        if not self.level > 0:
            raise ModelError(f"The level of smoothing must be positive, not {self.level}.")


@dataclass(frozen=True)
class Capabilities:
    """What a back end can do, as data.

    Args:
        cones: the cones that it solves over, with exact gradients.
        quadratic: whether the objective may have a quadratic part.
        smoothed: the cones over which it also offers smoothed gradients.
        fixed_sizes: whether a new size of batch costs a new solver, so that few sizes should be asked for.
    """

    cones: frozenset[str]
    quadratic: bool
    smoothed: frozenset[str]
    fixed_sizes: bool = False


@dataclass(frozen=True, eq=False)
class Raw:
    """What a back end reports: points, its own verdict, and how to pull gradients back.

    ``verdict`` is OPTIMAL, INFEASIBLE, NO_MINIMUM or FAILED (meaning: unfinished), and is checked before use.
    For INFEASIBLE ``z`` holds the certificate, for NO_MINIMUM ``x`` does.
    """

    x: Float[Tensor, "batch column"]
    z: Float[Tensor, "batch row"]
    s: Float[Tensor, "batch row"]
    verdict: Int[Tensor, "batch"]
    iterations: Int[Tensor, "batch"]
    pullback: Pullback | None


class Backend(Protocol):
    """How a batch of programs is solved. Implementations are immutable and safe to share between threads."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def capabilities(self) -> Capabilities:
        """What this back end can do."""

    def solve(
        self,
        program: ConeProgram,
        values: Values,
        gradient: Exact | Smoothed | None,
        warm_start: WarmStart | None,
    ) -> Raw:
        """Solve finite data of at least one item; with a gradient rule, return a pullback as well."""

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """How to pull gradients back at solutions that are known already."""

    def with_tolerance(self, tolerance: float) -> Backend:
        """The same back end, asked for another accuracy."""


class Rescue(Protocol):
    """A second route for items that the first left unfinished."""

    def __call__(self, program: ConeProgram, values: Values, differentiable: bool) -> Raw:
        """Solve again, slowly and carefully."""
