"""The engine contract: solve a batch of cone programs, tell what became of each, and differentiate.

An :class:`Engine` composes a :class:`Backend` (how to solve) with a gradient rule (how to differentiate). Everything
that must be the same for every back end stands once, here or in ``verdict.py`` (classification by our own residuals,
the second route for unfinished items): scaling, masking, and the two theorems,

* implicit function theorem for ``x``: the back end's pullback;
* envelope theorem for the objective: its derivative is that of the Lagrangian at the fixed primal-dual point.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from drolayers.conic import residuals
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solution import Solution, WarmStart, placeholders
from drolayers.conic.solvers.contract import Backend, Exact, Raw, Rescue, Smoothed
from drolayers.conic.verdict import classify, second_route
from drolayers.errors import ModelError, ShapeError, SolveError
from drolayers.status import Status


class FlatGradientWarning(UserWarning):
    """Every exact gradient of a batch vanished."""


@dataclass(frozen=True, eq=False)
class Engine:
    """Solves batches of cone programs and differentiates them.

    Args:
        backend: how to solve.
        rescue: the second route; None leaves unfinished items as they are.
        gradient: how to differentiate ``x``.
        on_failure: "mask" (NaN, zero gradient, a status) or "raise" (:class:`drolayers.SolveError`).
    """

    backend: Backend
    rescue: Rescue | None = None
    gradient: Exact | Smoothed = field(default_factory=Exact)
    on_failure: Literal["mask", "raise"] = "mask"
    _warned: WeakSet[ConeProgram] = field(default_factory=WeakSet, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.gradient, Smoothed) and not self.backend.capabilities.smoothed:
            raise ModelError(f"Engine {self.backend.name!r} cannot differentiate with {self.gradient}.")
        if self.on_failure not in ("mask", "raise"):
            raise ModelError(f"on_failure must be 'mask' or 'raise', not {self.on_failure!r}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Engine, (self.backend, self.rescue, self.gradient, self.on_failure)

    @property
    def name(self) -> str:
        """The back end's name."""
        return self.backend.name

    def supports(self, program: ConeProgram) -> bool:
        """Whether this engine can solve a program and differentiate it as asked."""
        return not self._lacks(program)

    def _lacks(self, program: ConeProgram) -> list[str]:
        """What the program needs and the back end has not."""
        able = self.backend.capabilities
        kinds = sorted(program.cones.kinds)
        lacks = [f"{kind} cones" for kind in kinds if kind not in able.cones]
        if isinstance(self.gradient, Smoothed):
            lacks += [f"smoothed gradients over {kind} cones" for kind in kinds if kind not in able.smoothed]
        return lacks + (["a quadratic objective"] if program.quadratic and not able.quadratic else [])

    def solve(
        self,
        program: ConeProgram,
        theta: Float[Tensor, "batch theta"],
        fixed: Float[Tensor, "batch integer"] | tuple[Tensor, Tensor] | None = None,
        warm_start: WarmStart | None = None,
    ) -> Solution:
        """Solve one program for every row of theta.

        Args:
            program: the compiled program; its integrality is relaxed.
            theta: parameters; any float type, any device. Rows with NaN or infinities come back as FAILED.
            fixed: values for the integer columns, or a pair (lower, upper) of boxes for them.
            warm_start: where to begin; a hint only.
        """
        values = program.values(theta)
        if fixed is not None:
            lower, upper = fixed if isinstance(fixed, tuple) else (fixed, fixed)
            values = program.within(values, lower, upper)
        solution = self.solve_values(program, values, warm_start)
        return replace(
            solution,
            **{name: getattr(solution, name).to(theta.dtype) for name in ("primal", "objective", "dual", "slack")},
        )

    def solve_values(self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None) -> Solution:
        """Solve programs whose numbers are at hand already."""
        if lacks := self._lacks(program):
            raise ModelError(f"Engine {self.name!r} cannot handle {', '.join(lacks)}: choose another engine.")
        if not len(values):
            return _empty(program, values)
        if warm_start is not None:
            shapes = [tuple(t.shape) for t in (warm_start.primal, warm_start.dual, warm_start.slack)]
            expected = [tuple(t.shape) for t in (values.q, values.b, values.b)]
            if shapes != expected:
                raise ShapeError(f"The warm start must have shapes {expected}, not {shapes}.")
        return self._finish(program, values, warm_start, known=False)

    def adopt(self, program: ConeProgram, values: Values, primal: Tensor, dual: Tensor) -> Solution:
        """Solutions found before, checked and made differentiable without being solved again.

        Args:
            program: the compiled program.
            values: its numbers.
            primal: an optimal point for every item.
            dual: its multipliers.
        """
        if not len(values):
            return _empty(program, values)
        detached = values.detach()
        _, Ax, _ = residuals.products(program, detached, primal, dual)
        return self._finish(program, values, WarmStart(primal, dual, detached.b - Ax), known=True)

    def _finish(self, program: ConeProgram, values: Values, point: WarmStart | None, known: bool) -> Solution:
        """Solve, or take what is known, and attach both derivatives."""
        outcome: dict[str, Tensor] = {}
        matrices = (values.P, values.A, values.q, values.b)
        x = _ImplicitSolve.apply(self, program, values.finite, point, known, outcome, *matrices)
        z, s, status = outcome["z"], outcome["s"], outcome["status"]
        ok = status <= int(Status.INACCURATE)
        objective = _envelope(program, values, x.detach(), z, ok)
        solution = Solution(program, x, z, s, objective, status, outcome["residual"], outcome["iterations"])
        if self.on_failure == "raise" and not bool(ok.all()):
            raise SolveError(solution.statuses)
        return solution

    def forward(
        self,
        program: ConeProgram,
        values: Values,
        finite: Bool[Tensor, "batch"],
        point: WarmStart | None,
        known: bool,
        differentiable: bool,
    ) -> tuple[Raw, Int[Tensor, "batch"], Float[Tensor, "batch"]]:
        """Solve detached data and classify each item; points of items that are not ok are meaningless."""
        batch = len(values)
        if not bool(finite.any()):
            nothing = Raw(
                torch.zeros_like(values.q),
                torch.zeros_like(values.b),
                torch.zeros_like(values.b),
                torch.full((batch,), int(Status.FAILED), device=finite.device),
                torch.zeros(batch, dtype=torch.int64, device=finite.device),
                None,
            )
            return nothing, nothing.verdict, torch.full_like(values.q[:, :1].sum(1), torch.inf)
        if not bool(finite.all()):
            # A NaN in one item must not reach the solver: a good item stands in for it.
            stand_in = torch.where(finite, torch.arange(batch, device=finite.device), finite.int().argmax())
            values = values[stand_in]
        gradient = self.gradient if differentiable else None
        if known and point is not None:
            raw = self._known(program, values, point, gradient)
        else:
            raw = self.backend.solve(program, values, gradient, point)
        status, residual = classify(program, values, raw)
        unfinished = finite & ((status == int(Status.INACCURATE)) | (status == int(Status.FAILED)))
        if self.rescue is not None and bool(unfinished.any()):
            # Only exact derivatives can be had by the second route.
            exact = differentiable and isinstance(self.gradient, Exact)
            raw, status, residual = second_route(self.rescue, program, values, raw, status, residual, unfinished, exact)
        failed = torch.full_like(status, int(Status.FAILED))
        return raw, torch.where(finite, status, failed), residual

    def _known(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed | None) -> Raw:
        """Known points in the form of a back end's report."""
        count, device = len(values), values.q.device
        pullback = None if gradient is None else self.backend.adopt(program, values, point, gradient)
        claimed = torch.full((count,), int(Status.OPTIMAL), device=device)
        none = torch.zeros(count, dtype=torch.int64, device=device)
        return Raw(point.primal, point.dual, point.slack, claimed, none, pullback)

    def warn_if_flat(self, program: ConeProgram, incoming: Tensor, outgoing: list[tuple[Tensor, Tensor]]) -> None:
        """Say once per program that every exact gradient of a batch vanished."""
        if not isinstance(self.gradient, Exact) or program in self._warned:
            return
        asked = incoming.abs().amax(1)
        answered = torch.zeros_like(asked)
        for gradient, entries in outgoing:
            if entries.numel():
                answered = torch.maximum(answered, gradient[:, entries.to(gradient.device)].abs().amax(1))
        if bool((asked > 0).any()) and bool((answered <= 1e-6 * asked).all()):
            self._warned.add(program)
            warnings.warn(
                "Every exact gradient of this batch vanished: the solution map is flat here (a linear program whose "
                'parameters stand in the objective, for instance), so use gradient="smoothed".',
                FlatGradientWarning,
                stacklevel=2,
            )


class _ImplicitSolve(torch.autograd.Function):
    """x*(P, A, q, b) with the back end's pullback; unusable items are NaN going out and zero coming back."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Engine,
        program: ConeProgram,
        finite: Tensor,
        point: WarmStart | None,
        known: bool,
        outcome: dict[str, Tensor],
        P: Tensor,
        A: Tensor,
        q: Tensor,
        b: Tensor,
    ) -> Tensor:
        values, q_scale, b_scale = _scaled(Values(P, A, q, b, q.new_zeros(q.shape[0])))
        if point is not None:
            point = WarmStart(point.primal / b_scale, point.dual / q_scale, point.slack / b_scale)
        # A back end's own graph is no part of the caller's, whose hooks (activation checkpoints, say) must not see it.
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            raw, status, residual = engine.forward(program, values, finite, point, known, any(ctx.needs_input_grad))
        ok = (status <= int(Status.INACCURATE))[:, None]
        nan = torch.full((), torch.nan, dtype=q.dtype, device=q.device)
        outcome |= {
            "z": torch.where(ok, raw.z * q_scale, nan),
            "s": torch.where(ok, raw.s * b_scale, nan),
            "status": status,
            "residual": residual,
            "iterations": raw.iterations,
        }
        ctx.saved = (engine, program, raw.pullback, ok, q_scale, b_scale)
        ctx.shapes = [tuple(t.shape) for t in (P, A, q, b)]
        return torch.where(ok, raw.x * b_scale, nan)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        engine, program, pullback, ok, q_scale, b_scale = ctx.saved
        if pullback is None:
            # No item was usable.
            return None, None, None, None, None, None, *(dx.new_zeros(shape) for shape in ctx.shapes)
        incoming = torch.where(ok, dx, torch.zeros_like(dx)) * b_scale
        pulled = pullback(incoming)
        # A derivative that broke down in one item must not reach the parameters that all items share.
        ok = ok & torch.stack([g.isfinite().all(1) for g in pulled]).all(0)[:, None]
        dP, dA, dq, db = (torch.where(ok, g, torch.zeros_like(g)) for g in pulled)
        maps = (program.P_map, program.A_map, program.q_map, program.b_map)
        engine.warn_if_flat(program, incoming, [(g, m.entry) for g, m in zip((dP, dA, dq, db), maps, strict=True)])
        return None, None, None, None, None, None, dP * (b_scale / q_scale), dA, dq / q_scale, db / b_scale


def _scaled(values: Values) -> tuple[Values, Float[Tensor, "batch 1"], Float[Tensor, "batch 1"]]:
    """Divide q and b by their largest entries, item by item.

    With x = βx̂, s = βŝ, z = κẑ the program in hats has q/κ, b/β and P·β/κ: solvers test residuals against absolute
    numbers, so without this returns of 1e-3 are solved a thousand times less accurately than demands of 1.
    """

    def size(vector: Tensor) -> Tensor:
        largest = vector.abs().amax(1, keepdim=True) if vector.shape[1] else vector.new_zeros(vector.shape[0], 1)
        return torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))

    q_scale, b_scale = size(values.q), size(values.b)
    P = values.P if values.P.shape[1] == 0 else values.P * (b_scale / q_scale)
    return Values(P, values.A, values.q / q_scale, values.b / b_scale, values.constant), q_scale, b_scale


def _envelope(
    program: ConeProgram, values: Values, x: Tensor, z: Tensor, ok: Bool[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """The objective; its gradient is that of L = ½xᵀPx + qᵀx + constant + zᵀ(Ax - b) at the fixed solution."""
    x, z = placeholders(x, ok), placeholders(z, ok)
    linear = (values.q * x).sum(1) + values.constant
    feasibility = -(values.b * z).sum(1)
    if program.A_map.varies and values.A.requires_grad:
        A_rows = residuals.row_index(program.A_indptr).to(x.device)
        feasibility = feasibility + (values.A * z[:, A_rows] * x[:, program.A_indices.to(x.device)]).sum(1)
    objective = linear
    if program.quadratic:
        P_rows = residuals.row_index(program.P_indptr).to(x.device)
        objective = objective + 0.5 * (values.P * x[:, P_rows] * x[:, program.P_indices.to(x.device)]).sum(1)
    lagrangian = objective + feasibility
    value = objective.detach() + lagrangian - lagrangian.detach()
    return torch.where(ok, value, torch.full_like(value, torch.nan))


def _empty(program: ConeProgram, values: Values) -> Solution:
    """The solution of no programs at all."""
    none = torch.zeros(0, dtype=torch.int64, device=values.q.device)
    return Solution(program, values.q, values.b, values.b, values.constant, none, values.constant, none)
