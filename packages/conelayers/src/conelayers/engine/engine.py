"""The engine contract: solve a batch of cone programs, tell what became of each, and differentiate.

An :class:`Engine` composes a :class:`Solver` (how to solve) with a gradient rule (how to differentiate); neither knows
of the other. Everything that must be the same for all of them stands once, here or in ``verdict.py`` (classification by
our own residuals, the second route for unfinished items): scaling, masking, and the two theorems,

* implicit function theorem for ``x``: ``adjoints/theorem.py``;
* envelope theorem for the objective: its derivative is that of the Lagrangian at the fixed primal-dual point.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.derivative.ambiguous import Upstream, unambiguous
from conelayers.derivative.gradients import Exact, Smoothed
from conelayers.derivative.theorem import Found, Pulled, elsewhere, gradients
from conelayers.derivative.value import value_codes
from conelayers.engine.refinement import refine, violation
from conelayers.engine.solution import Solution, WarmStart, placeholders
from conelayers.engine.solvers.automatic import Automatic
from conelayers.engine.solvers.contract import Points, Solver
from conelayers.engine.solvers.interior import Interior
from conelayers.engine.verdict import Plainly, classify, second_route
from conelayers.errors import DifferentiationError, ModelError, ShapeError
from conelayers.interior.batch import AlgebraName, Batch
from conelayers.interior.polishing import polish_points
from conelayers.program import residuals
from conelayers.program.program import SYMMETRIC, ConeProgram, Values
from conelayers.scaling.units import Units
from conelayers.status import Derivative, Status, usable
from conelayers.transforms import refuse_transforms, untraced


class FlatGradientWarning(UserWarning):
    """Every exact gradient of a batch vanished."""


class MaskedGradientWarning(UserWarning):
    """Items of a batch have no derivative, or none that could be verified."""


class ValueKinkWarning(UserWarning):
    """Values of a batch have a kink: their gradient is one of the subgradients."""


@dataclass(frozen=True, eq=False)
class Engine:
    """Solves batches of cone programs and differentiates them; items that fail are masked, with a status.

    Args:
        solver: how to solve.
        rescue: the second route; None leaves unfinished items as they are, without refinement either.
        gradient: how to differentiate ``x``.
        about: the program that :meth:`explain` speaks of unless it is given another.
        rounding: share of its terms' size by which a value may be off where they cancel.
    """

    solver: Solver
    rescue: Solver | None = None
    gradient: Exact | Smoothed = field(default_factory=Exact)
    about: ConeProgram | None = field(default=None, repr=False)
    rounding: float = field(default=residuals.ROUNDING, repr=False)
    _warned: WeakSet[ConeProgram] = field(default_factory=WeakSet, repr=False)
    _kinked: WeakSet[ConeProgram] = field(default_factory=WeakSet, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Engine, (self.solver, self.rescue, self.gradient, self.about, self.rounding)

    @property
    def name(self) -> str:
        """The solver's name."""
        return self.solver.name

    def explain(self, program: ConeProgram | None = None) -> str:
        """Who solves a program and how it is differentiated, and why, in one sentence."""
        program = program or self.about
        if program is None:
            raise ModelError("Engine.explain needs a program: explain(program).")
        chosen = self.solver.why(program) if isinstance(self.solver, Automatic) else f"{self.name}, as asked for"
        if isinstance(self.gradient, Smoothed):
            how = f"on the central path at level {self.gradient.level:g}"
        else:
            how = "exactly, on the active face"
        return f"Solved by {chosen}; differentiated {how}."

    def with_tolerance(self, tolerance: float) -> Engine:
        """The same engine, asked for another accuracy."""
        return replace(self, solver=self.solver.with_tolerance(tolerance))

    def supports(self, program: ConeProgram) -> bool:
        """Whether this engine can solve a program and differentiate it as asked."""
        return not self._lacks(program)

    def _lacks(self, program: ConeProgram) -> list[str]:
        """What the program needs and the engine has not."""
        kinds, able = program.cones.kinds, self.solver.capabilities
        lacks = [f"{kind} cones" for kind in sorted(kinds - able.cones)]
        lacks += [f"smoothed gradients over {kind} cones" for kind in sorted(kinds - self.gradient.cones)]
        return lacks + (["a quadratic objective"] if program.quadratic and not able.quadratic else [])

    def solve(
        self,
        program: ConeProgram,
        features: Float[Tensor, "batch feature"],
        fixed: Float[Tensor, "batch integer"] | tuple[Tensor, Tensor] | None = None,
        warm_start: WarmStart | None = None,
        polish: bool = True,
    ) -> Solution:
        """Solve one program for every row of features.

        Args:
            program: the compiled program; its integrality is relaxed.
            features: what the program is affine in; any float type, any device. Rows with NaN or
                infinities come back as FAILED.
            fixed: values for the integer columns, or a pair (lower, upper) of boxes for them.
            warm_start: where to begin; a hint only.
            polish: whether points are taken to machine precision where the solution is unique and strictly
                complementary, so that they do not depend on the batch.
        """
        values = program.values(features)
        if fixed is not None:
            lower, upper = fixed if isinstance(fixed, tuple) else (fixed, fixed)
            values = program.within(values, lower, upper)
        solution = self.solve_values(program, values, warm_start, polish)
        return replace(
            solution,
            **{name: getattr(solution, name).to(features.dtype) for name in ("primal", "objective", "dual", "slack")},
        )

    def solve_values(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, polish: bool = True
    ) -> Solution:
        """Solve programs whose numbers are at hand already."""
        if lacks := self._lacks(program):
            # No engine has another path to smooth along.
            smooth = all(lack.startswith("smoothed") for lack in lacks)
            advice = 'use gradient="exact"' if smooth else "choose another engine"
            raise ModelError(f"Engine {self.name!r} cannot handle {', '.join(lacks)}: {advice}.")
        if not len(values.q):
            return _empty(program, values)
        if warm_start is not None:
            shapes = [tuple(t.shape) for t in (warm_start.primal, warm_start.dual, warm_start.slack)]
            expected = [tuple(t.shape) for t in (values.q, values.b, values.b)]
            if shapes != expected:
                raise ShapeError(f"The warm start must have shapes {expected}, not {shapes}.")
        return self._finish(program, values, warm_start, known=False, polish=polish)

    def adopt(
        self, program: ConeProgram, values: Values, primal: Tensor, dual: Tensor, polish: bool = True
    ) -> Solution:
        """Solutions found before, checked and made differentiable without being solved again.

        Args:
            program: the compiled program.
            values: its numbers.
            primal: an optimal point for every item.
            dual: its multipliers.
            polish: as for :meth:`solve`.
        """
        if not len(values.q):
            return _empty(program, values)
        detached = values.detach()
        _, Ax, _ = residuals.products(program, detached, primal, dual)
        return self._finish(program, values, WarmStart(primal, dual, detached.b - Ax), known=True, polish=polish)

    @untraced
    def _finish(
        self, program: ConeProgram, values: Values, point: WarmStart | None, known: bool, polish: bool
    ) -> Solution:
        """Solve, or take what is known, and attach both derivatives."""
        outcome: dict[str, Any] = {}
        matrices = (values.P, values.A, values.q, values.b)
        refuse_transforms(*matrices, values.constant)
        # Which items hold neither NaN nor infinities.
        finite = torch.stack([t.isfinite().all(1) for t in (*matrices, values.constant[:, None])]).all(0)
        x = _ImplicitSolve.apply(self, program, finite, point, known, polish, outcome, *matrices)
        z, s, status = outcome["z"], outcome["s"], outcome["status"]
        ok = usable(status)
        kept = outcome.get("kept")
        objective = _Envelope.apply(self, program, x.detach(), z, ok, outcome, *matrices, values.constant)
        if kept is not None:
            z = _ImplicitDual.apply(self, program, z, kept, outcome["dual_derivative"], *matrices)
        names = ("residual", "iterations", "derivative", "value_derivative", "dual_derivative")
        return Solution(program, x, z, s, objective, status, *(outcome[name] for name in names))

    def forward(
        self,
        program: ConeProgram,
        values: Values,
        finite: Bool[Tensor, "batch"],
        point: WarmStart | None,
        known: bool,
        polish: bool,
        differentiable: bool,
        own: tuple[Units, Values],
    ) -> tuple[Points, Int[Tensor, "batch"], Float[Tensor, "batch"]]:
        """Solve detached data and classify each item; points of items that are not ok are meaningless.

        ``own`` are the units of the data, and the data in the program's own units, in which solvers of others do better
        at times: what the second route leaves unfinished is tried there too.
        """
        batch = len(values.q)
        if not bool(finite.all()):
            if not bool(finite.any()):
                nothing = Points.none(values)
                return nothing, nothing.verdict, torch.full_like(values.q[:, :1].sum(1), torch.inf)
            # A NaN in one item must not reach the solver: a good item stands in for it.
            stand_in = torch.where(finite, torch.arange(batch, device=finite.device), finite.int().argmax())
            values = values[stand_in]
        if known and point is not None:
            claimed = torch.full((batch,), int(Status.OPTIMAL), device=finite.device)
            points = Points(point.primal, point.dual, point.slack, claimed, torch.zeros_like(claimed))
        else:
            points = self.solver.solve(program, values, point, self.gradient.level if differentiable else None)
        points, status, residual = self._polished(program, values, points, polish)
        if self.rescue is not None and not known:
            answer = points, torch.where(finite, status, int(Status.INFEASIBLE)), residual
            points, status, residual = refine(self.solver, program, values, *answer, self.rounding)
        for plainly in (False, True) if self.rescue is not None else ():
            unfinished = finite & ((status == int(Status.INACCURATE)) | (status == int(Status.FAILED)))
            items = unfinished.nonzero()[:, 0]
            if not items.numel():
                break
            assert self.rescue is not None
            route = Plainly(self.rescue, own[0][items], own[1][items]) if plainly else self.rescue
            told = (status, residual, items, self.rounding)
            points, status, residual = second_route(route, program, values, points, *told)
            if not plainly:
                answer = points, torch.where(finite, status, int(Status.INFEASIBLE)), residual
                points, status, residual = refine(self.rescue, program, values, *answer, self.rounding)
            if polish:
                better, *judged = self._polished(program, values[items], points.pick(items), polish)
                points = points.merged(better, items, torch.arange(len(items), device=items.device))
                status, residual = (t.index_copy(0, items, u) for t, u in zip((status, residual), judged, strict=True))
        failed = torch.full_like(status, int(Status.FAILED))
        return points, torch.where(finite, status, failed), residual

    def _polished(
        self, program: ConeProgram, values: Values, points: Points, polish: bool
    ) -> tuple[Points, Int[Tensor, "batch"], Float[Tensor, "batch"]]:
        """Take points to machine precision on their faces if asked to, and classify them; the better ones are kept."""
        if not polish or not program.cones.kinds <= SYMMETRIC:
            return points, *classify(program, values, points, self.rounding)
        before_x, before_z, before_s = points.rough or (points.x, points.z, points.s)
        rough = replace(points, x=before_x, z=before_z, s=before_s, rough=None)
        untried = usable(points.verdict) if points.tried is None else usable(points.verdict) & ~points.tried
        items, better = untried.nonzero()[:, 0], replace(points, rough=None)
        if items.numel():
            batch = Batch.of(program, values, self._algebra)
            # Copies: polishing works in place, and the transpose of a single item shares its memory.
            x, z, s = (t.T.clone(memory_format=torch.contiguous_format) for t in (points.x, points.z, points.s))
            done = polish_points(batch, x, z, s, items).done
            done = done if points.polished is None else done | points.polished
            better = replace(better, x=x.T.contiguous(), z=z.T.contiguous(), s=s.T.contiguous(), polished=done)
        status, residual = classify(program, values, better, self.rounding)
        if better.polished is None:
            return better, status, residual
        worse = (better.polished & (status != int(Status.OPTIMAL))).nonzero()[:, 0]
        if worse.numel():
            # Where terms of the value cancel, a point may solve all equations and still be off by more than before.
            some = rough.pick(worse)
            before, left = classify(program, values[worse], some, self.rounding)
            # A point that meets its equations better is kept all the same: its value is off by rounding alone.
            own, other = (violation(program, values[worse], p) for p in (better.pick(worse), some))
            rows = ((left < residual[worse]) & ~(own < other)).nonzero()[:, 0]
            chosen = worse[rows]
            better = better.merged(some, chosen, rows)
            status = status.index_copy(0, chosen, before[rows])
            residual = residual.index_copy(0, chosen, left[rows])
        return better, status, residual

    @property
    def _algebra(self) -> AlgebraName | None:
        """The algebra that the solver asks for."""
        return self.solver.algebra if isinstance(self.solver, Interior) else None

    def pull(
        self,
        program: ConeProgram,
        values: Values,
        found: Found,
        dx: Tensor,
        asked: Bool[Tensor, "batch"],
        upstream: Upstream | None = None,
        own: Values | None = None,
        dz: Tensor | None = None,
    ) -> Pulled:
        """The adjoint of the items that are asked about, from the first way that verifies it; who has none is told.

        What is ``upstream`` of the numbers says whether it matters that an adjoint is not unique. A level of smoothing
        counts in units without what never binds, for which the program's ``own`` numbers are asked.
        """
        ways = self.gradient.adjoints(program, self._algebra)

        def seeds(items: Tensor) -> tuple[Tensor, Tensor | None]:
            return dx[items], None if dz is None else dz[items]

        pulled, masked = Pulled.none(values), asked
        if own is not None and self.gradient.level is not None:
            items, units, beside = Units.near(program, own, values, found.x, found.z, asked)
            if items.numel():
                pulled = pulled.put(items, elsewhere(ways[0], program, beside, units, found[items], *seeds(items)))
                masked = masked.index_fill(0, items, False)
        for adjoint in ways:
            items = masked.nonzero()[:, 0]
            if len(items) == len(asked):
                # Usually all are asked about, and nothing needs to be copied.
                pulled = unambiguous(program, adjoint(program, values, found, dx, dz), found.units, items, upstream)
            elif items.numel():
                some = adjoint(program, values[items], found[items], *seeds(items))
                pulled = pulled.put(items, unambiguous(program, some, found.units[items], items, upstream))
            masked = asked & ~pulled.ok
        if bool(masked.any()) and program not in self._warned:
            self._warned.add(program)
            worst, share = Derivative(int(pulled.code[masked].mode().values)), f"{masked.sum()} of {asked.sum()}"
            advice = worst.advise("smoothed" if isinstance(self.gradient, Smoothed) else "exact")
            warnings.warn(
                f"{share} items got no gradient, most of them {worst}: {advice}",
                MaskedGradientWarning,
                stacklevel=2,
            )
        return pulled

    def judge_values(
        self,
        program: ConeProgram,
        values: Values,
        found: Found,
        asked: Bool[Tensor, "batch"],
        upstream: Upstream | None = None,
    ) -> Int[Tensor, "batch"]:
        """Classify the gradients of the values that are asked about, and warn once per program of kinks."""
        codes = value_codes(program, values, found, asked, upstream, self._algebra)
        self.warn_of_kinks(program, codes)
        return codes

    def warn_of_kinks(self, program: ConeProgram, codes: Int[Tensor, "batch"]) -> None:
        """Say once per program that values have kinks."""
        kinks, asked = int((codes == int(Derivative.KINK)).sum()), int((codes != int(Derivative.UNASKED)).sum())
        if kinks and program not in self._kinked:
            self._kinked.add(program)
            warnings.warn(
                f"The optimal value has a kink at {kinks} of {asked} items: the gradient there is one of the "
                "subgradients. Isolated kinks do no harm; value_derivative says where they are.",
                ValueKinkWarning,
                stacklevel=2,
            )

    def warn_if_flat(self, program: ConeProgram, dx: Tensor, pulled: Pulled) -> None:
        """Say once per program that every exact gradient of a batch vanished."""
        if not isinstance(self.gradient, Exact) or program in self._warned:
            return
        maps = (program.P_map, program.A_map, program.q_map, program.b_map)
        asked = dx.abs().amax(1) * pulled.ok
        answered = torch.zeros_like(asked)
        for gradient, affine in zip(gradients(program, pulled), maps, strict=True):
            if affine.varies:
                answered = torch.maximum(answered, gradient[:, affine.entry.to(gradient.device)].abs().amax(1))
        if bool((asked > 0).any()) and bool((answered <= 1e-6 * asked).all()):
            self._warned.add(program)
            warnings.warn(
                "Every exact gradient of this batch vanished: the solution map is flat here (a linear program whose "
                'parameters stand in the objective, for instance), so use gradient="smoothed".',
                FlatGradientWarning,
                stacklevel=2,
            )


class _ImplicitSolve(torch.autograd.Function):
    """x*(P, A, q, b) with the adjoint's gradient; unusable items are NaN going out and zero coming back."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Engine,
        program: ConeProgram,
        finite: Tensor,
        point: WarmStart | None,
        known: bool,
        polish: bool,
        outcome: dict[str, Any],
        P: Tensor,
        A: Tensor,
        q: Tensor,
        b: Tensor,
    ) -> Tensor:
        own = Values(P, A, q, b, q.new_zeros(q.shape[0]))

        def solved(whole: Tensor | None = None) -> tuple[Units, Values, Points, Tensor, Tensor]:
            units, values = Units.of(program, own, whole)
            near = None if point is None else WarmStart(*units.hats(point.primal, point.dual, point.slack))
            differentiable = any(ctx.needs_input_grad)
            told = engine.forward(program, values, finite, near, known, polish, differentiable, (units, own))
            return units, values, *told

        units, values, points, status, residual = solved()
        doubtful = usable(status) & residuals.vanishing(program, values, points.x)
        if bool(doubtful.any()):
            # Nothing is left of these objectives, maybe for want of numbers that were taken for rounding, or beside
            # bounds that never bind.
            far = doubtful & (Units.far(program, own) | Units.far(program, values))
            doubtful = far | (doubtful & Units.leave_out(program, own))
            if bool(doubtful.any()):
                first, told, left = points, status, residual
                units, values, points, status, residual = solved(doubtful)
                items = doubtful.nonzero()[:, 0]
                points = first.merged(points, items, items)
                status, residual = torch.where(doubtful, status, told), torch.where(doubtful, residual, left)
                # A point that was nearly feasible, and now a proof that there is none, or none that is best: neither.
                failed = torch.full_like(status, int(Status.FAILED))
                status = torch.where(far & ~usable(status), failed, status)
        ok = usable(status)[:, None]
        nan = torch.full((), torch.nan, dtype=q.dtype, device=q.device)
        x, z, s = units.own(points.x, points.z, points.s)
        outcome |= {
            "z": torch.where(ok, z, nan),
            "s": torch.where(ok, s, nan),
            "status": status,
            "residual": residual,
            "iterations": points.steps,
            "derivative": torch.zeros_like(status),
            "value_derivative": torch.zeros_like(status),
            "dual_derivative": torch.zeros_like(status),
        }
        ctx.engine, ctx.program, ctx.told = engine, program, outcome["derivative"]
        if any(ctx.needs_input_grad):
            ctx.kept = values, Found(points.x, points.z, points.s, units, points.passed, points.polished), ok
            outcome["kept"] = ctx.kept
            ctx.save_for_backward(P, A, q, b)
        return torch.where(ok, x, nan)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        refuse_transforms(dx)
        values, found, ok = ctx.kept
        # Since x = βDx̂.
        incoming = torch.where(ok, dx, torch.zeros_like(dx)) * found.units.D * found.units.beta
        with torch.no_grad():
            # Once: activation checkpoints hand them out no second time.
            numbers = ctx.saved_tensors
            asked = (incoming != 0).any(1)
            P, A, q, b = numbers
            own = Values(P, A, q, b, values.constant)
            pulled = ctx.engine.pull(ctx.program, values, found, incoming.detach(), asked, Upstream(numbers), own)
            ctx.told.copy_(pulled.code)
            pieces = gradients(ctx.program, pulled, found.units)
            ctx.engine.warn_if_flat(ctx.program, incoming, pulled)
        return None, None, None, None, None, None, None, *_once(pieces, (dx, *numbers))


class _ImplicitDual(torch.autograd.Function):
    """z*(P, A, q, b) with the adjoint's gradient; unusable items are NaN going out and zero coming back."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Engine,
        program: ConeProgram,
        z: Tensor,
        kept: tuple[Values, Found, Tensor],
        codes: Tensor,
        P: Tensor,
        A: Tensor,
        q: Tensor,
        b: Tensor,
    ) -> Tensor:
        ctx.engine, ctx.program, ctx.kept, ctx.codes = engine, program, kept, codes
        ctx.save_for_backward(P, A, q, b)
        return z.clone()

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        refuse_transforms(dz)
        values, solved, ok = ctx.kept
        seed = solved.units.dual_seed(torch.where(ok, dz, torch.zeros_like(dz))).detach()
        with torch.no_grad():
            # Once: activation checkpoints hand them out no second time.
            numbers = ctx.saved_tensors
            P, A, q, b = numbers
            own, asked, upstream = Values(P, A, q, b, values.constant), (seed != 0).any(1), Upstream(numbers)
            nothing = torch.zeros_like(solved.x)
            pulled = ctx.engine.pull(ctx.program, values, solved, nothing, asked, upstream, own, seed)
            ctx.codes.copy_(pulled.code)
            pieces = gradients(ctx.program, pulled, solved.units)
        return None, None, None, None, None, *_once(pieces, (dz, *numbers))


class _Envelope(torch.autograd.Function):
    """The objective; its gradient is that of L = ½xᵀPx + qᵀx + constant + zᵀ(Ax - b) at the fixed solution."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Engine,
        program: ConeProgram,
        x: Tensor,
        z: Tensor,
        ok: Tensor,
        outcome: dict[str, Any],
        P: Tensor,
        A: Tensor,
        q: Tensor,
        b: Tensor,
        constant: Tensor,
    ) -> Tensor:
        x, z = placeholders(x, ok), placeholders(z, ok)
        Px, _, _ = residuals.products(program, Values(P, A, q, b, constant), x, z)
        value = 0.5 * (x * Px).sum(1) + (q * x).sum(1) + constant
        ctx.engine, ctx.program, ctx.point = engine, program, (x, z, ok)
        ctx.kept, ctx.told = outcome.pop("kept", None), outcome["value_derivative"]
        ctx.save_for_backward(P, A, q, b, constant)
        return torch.where(ok, value, torch.full_like(value, torch.nan))

    @staticmethod
    def backward(ctx: Any, df: Tensor) -> tuple[Tensor | None, ...]:
        refuse_transforms(df)
        (x, z, ok), program = ctx.point, ctx.program
        with torch.no_grad():
            by = torch.where(ok, df, torch.zeros_like(df))[:, None]
            row, column, P_row, P_column, *_ = program.on(x.device)
            dA = by * z[:, row] * x[:, column] if ctx.needs_input_grad[7] else torch.zeros_like(by)
            pieces = (0.5 * by * x[:, P_row] * x[:, P_column], dA, by * x, -by * z, by[:, 0])
            # Once: activation checkpoints hand them out no second time.
            numbers = ctx.saved_tensors
            if ctx.kept is not None:
                values, solved, _ = ctx.kept
                ctx.told.copy_(ctx.engine.judge_values(program, values, solved, by[:, 0] != 0, Upstream(numbers[:4])))
        return None, None, None, None, None, None, *_once(pieces, (df, *numbers))


class _Once(torch.autograd.Function):
    """A first derivative that says so when it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        raise DifferentiationError(
            "Solutions and objectives can be differentiated once only: second derivatives are not implemented, "
            "so leave create_graph out, or detach the gradient before it is used."
        )


def _once(found: tuple[Tensor, ...], on: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients that cannot be differentiated; only with create_graph there is anything to refuse."""
    return tuple(_Once.apply(g, *on) for g in found) if torch.is_grad_enabled() else found


def _empty(program: ConeProgram, values: Values) -> Solution:
    """The solution of no programs at all."""
    none = torch.zeros(0, dtype=torch.int64, device=values.q.device)
    # The objective keeps the graph of the features, so that a backward pass through an empty batch works.
    graph = sum(part.sum() for part in (values.A, values.b, values.q))
    objective = values.constant + 0.0 * graph
    codes = (none.clone(), none.clone(), none.clone())
    return Solution(program, values.q, values.b, values.b, objective, none, values.constant, none, *codes)
