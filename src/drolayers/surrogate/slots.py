"""The points of the surrogate, solved: the oracle's keep their solutions, any other distinct one is solved once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from drolayers.conic import ConeProgram, Engine, Solution, Values
from drolayers.conic.adjoints.theorem import AGREE
from drolayers.conic.adjoints.value import value_gradients
from drolayers.conic.solution import placeholders
from drolayers.integer import Candidates
from drolayers.status import Derivative, Status
from drolayers.surrogate.proposal import Draws

TIE = 1e-9
"""Relative difference of objectives up to which two integer points are equally good; polished values are as exact."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The points of the surrogate, solved: one slot a point, finite placeholders where a slot holds none.

    ``best`` and ``value`` are the optimum, ``outcome`` what became of the item; ``derivative`` tells, after the
    backward pass, which derivative each slot got, and ``value_derivative`` which the value got.
    """

    primal: Float[Tensor, "batch slot column"]
    objective: Float[Tensor, "batch slot"]
    valid: Bool[Tensor, "batch slot"]
    best: Float[Tensor, "batch column"]
    value: Float[Tensor, "batch"]
    outcome: Int[Tensor, "batch"]
    derivative: Callable[[], Int[Tensor, "batch slot"]]
    value_derivative: Callable[[], Int[Tensor, "batch"]]

    @classmethod
    def all(cls, program: ConeProgram, values: Values, points: Float[Tensor, "slot integer"], engine: Engine) -> Slots:
        """Every feasible integer point: the same for all items."""
        batch, slots, columns = len(values.q), points.shape[0], program.columns
        index = torch.arange(batch, device=values.q.device).repeat_interleave(slots)
        at = points.to(values.q).repeat(batch, 1)
        solution = engine.solve_values(program, program.within(values[index], at, at))
        primal, objective = _usable(program, solution, at)
        primal, objective = primal.reshape(batch, slots, columns), objective.reshape(batch, slots)
        valid, status = solution.ok.reshape(batch, slots), solution.status.reshape(batch, slots)
        first = objective.detach().masked_fill(~valid, torch.inf).argmin(1)
        rows = torch.arange(batch, device=first.device)
        # Solved somewhere: fine, or not proven where another point failed. Nowhere: the gravest of what was said.
        grave = torch.where(status == int(Status.FAILED), status, status.amin(1, keepdim=True)).amax(1)
        failed = (status == int(Status.FAILED)).any(1)
        solved = torch.where(failed, int(Status.INACCURATE), int(Status.OPTIMAL))
        outcome = torch.where(valid.any(1), solved, grave)
        outcome[(status == int(Status.NO_MINIMUM)).any(1)] = int(Status.NO_MINIMUM)
        best, value = primal[rows, first], objective[rows, first]
        primal_table = primal.detach().reshape(batch * slots, columns)
        lines = rows * slots + first
        table = torch.arange(batch * slots, device=first.device).reshape(batch, slots)
        ties = Ties(program, primal_table, solution.dual, objective.detach(), valid, lines, table)
        ties.warn(engine, value)

        def derivative() -> Tensor:
            return solution.derivative.reshape(batch, slots)

        def value_derivative() -> Tensor:
            return ties.flag(solution.value_derivative[lines])

        return cls(primal, objective, valid, best, value, outcome, derivative, value_derivative)

    @classmethod
    def around(cls, program: ConeProgram, values: Values, found: Candidates, draws: Draws, engine: Engine) -> Slots:
        """The draws of a proposal: the oracle's points keep their solutions, any other is solved once."""
        batch, count = draws.valid.shape
        known = found.valid & found.ok[:, None]
        item, slot = known.nonzero(as_tuple=True)
        adopted = engine.adopt(
            program,
            program.within(values[item], found.points[item, slot], found.points[item, slot]),
            found.primal[item, slot],
            found.dual[item, slot],
        )
        best = torch.zeros(found.valid.shape, dtype=torch.int64, device=item.device)
        best[item, slot] = torch.arange(item.numel(), device=item.device)
        same = (draws.points[:, :, None, :] == found.points[:, None, :, :]).all(-1) & known[:, None, :]
        is_best = same.any(-1)
        wanted = draws.valid & found.ok[:, None]
        other = (wanted & ~is_best).nonzero(as_tuple=True)
        rows = torch.cat([other[0][:, None].double(), draws.points[other]], 1)
        distinct, position = torch.unique(rows, dim=0, return_inverse=True)
        at = distinct[:, 1:]
        solved = engine.solve_values(program, program.within(values[distinct[:, 0].long()], at, at))

        # One table of solutions, the adopted first, and for every slot its line in it.
        lines = torch.zeros(batch, count, dtype=torch.int64, device=item.device)
        lines = torch.where(is_best, best.gather(1, same.int().argmax(-1)), lines)
        lines[other] = item.numel() + position
        parts = [_usable(program, adopted, found.points[item, slot]), _usable(program, solved, at)]
        primal, objective = (torch.cat(pair) for pair in zip(*parts, strict=True))
        ok = torch.cat([adopted.ok, solved.ok])
        if not ok.numel():
            primal, objective = values.q.new_zeros(1, program.columns), values.q.new_zeros(1)
            ok = torch.zeros(1, dtype=torch.bool, device=item.device)
        top = best[:, 0]
        outcome = torch.where(found.ok & ~(ok[top] & known[:, 0]), int(Status.FAILED), found.status)

        def derivative() -> Tensor:
            codes = torch.cat([adopted.derivative, solved.derivative])
            return codes[lines] if codes.numel() else lines

        valid, value = ok[lines] & wanted, objective[top]
        duals = (
            torch.cat([adopted.dual, solved.dual])
            if adopted.ok.numel() + solved.ok.numel()
            else values.b.new_zeros(1, program.rows)
        )
        ties = Ties(program, primal.detach(), duals, objective[lines].detach(), valid, top, lines)
        ties.warn(engine, value)

        def value_derivative() -> Tensor:
            codes = torch.cat([adopted.value_derivative, solved.value_derivative])
            return ties.flag(codes[top] if codes.numel() else top)

        results = (primal[top], value, outcome, derivative, value_derivative)
        return cls(primal[lines], objective[lines], valid, *results)


@dataclass(frozen=True, eq=False)
class Ties:
    """Other points as good as the best one: where their values have other gradients, the best value has a kink.

    All features count here, whether they are differentiated or not.

    Args:
        program: the structure.
        primal: a table of solutions.
        dual: their multipliers.
        objective: of every slot.
        valid: which slots hold a point.
        best: line of the best point in the table.
        lines: lines of the slots.
    """

    program: ConeProgram
    primal: Float[Tensor, "line column"]
    dual: Float[Tensor, "line row"]
    objective: Float[Tensor, "batch slot"]
    valid: Bool[Tensor, "batch slot"]
    best: Int[Tensor, "batch"]
    lines: Int[Tensor, "batch slot"]

    @torch.no_grad()
    def flag(self, codes: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        """Replace codes of verified gradients by KINK where an equal point has another gradient."""
        objective = torch.where(self.valid, self.objective, torch.full_like(self.objective, torch.inf))
        least = objective.amin(1, keepdim=True)
        tied = self.valid & (objective - least <= TIE * least.abs()) & (self.lines != self.best[:, None])
        item, slot = tied.nonzero(as_tuple=True)
        if not item.numel():
            return codes
        one, other = self.best[item], self.lines[item, slot]
        gradient, second = (value_gradients(self.program, self.primal[k], self.dual[k]) for k in (one, other))
        differ = (gradient - second).abs().amax(1) > AGREE * gradient.abs().amax(1)
        kink = torch.zeros_like(codes).index_add(0, item, differ.to(codes)) > 0
        verified = (codes > int(Derivative.UNASKED)) & (codes <= int(Derivative.PATH))
        return torch.where(kink & verified, int(Derivative.KINK), codes)

    def warn(self, engine: Engine, value: Float[Tensor, "batch"]) -> None:
        """Let the backward pass of the best value warn of ties."""
        if not value.requires_grad or not self.program.feature_size:
            return

        def look(gradient: Tensor) -> None:
            asked = gradient != 0
            codes = self.flag(torch.where(asked, int(Derivative.FACE), int(Derivative.UNASKED)))
            engine.warn_of_kinks(self.program, codes)

        value.register_hook(look)


def _usable(program: ConeProgram, solution: Solution, points: Tensor) -> tuple[Tensor, Tensor]:
    """Primal points and objectives with zeros where there is no solution, and integers exactly as fixed."""
    primal, objective = placeholders(solution.primal, solution.ok), placeholders(solution.objective, solution.ok)
    # Fixed columns are integral to the solver's accuracy only, and do not move with the features.
    return primal.index_copy(1, program.on(points.device).integers, points.to(primal)), objective
