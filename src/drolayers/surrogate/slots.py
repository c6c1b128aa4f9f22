"""The points of the surrogate, solved: the oracle's keep their solutions, any other distinct one is solved once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from drolayers.conic import ConeProgram, Engine, Solution, Values
from drolayers.conic.solution import placeholders
from drolayers.integer import Candidates
from drolayers.status import Status
from drolayers.surrogate.proposal import Draws


@dataclass(frozen=True, eq=False)
class Slots:
    """The points of the surrogate, solved: one slot a point, finite placeholders where a slot holds none.

    ``best`` and ``value`` are the optimum, ``outcome`` what became of the item; ``derivative`` tells, after the
    backward pass, which derivative each slot got.
    """

    primal: Float[Tensor, "batch slot column"]
    objective: Float[Tensor, "batch slot"]
    valid: Bool[Tensor, "batch slot"]
    best: Float[Tensor, "batch column"]
    value: Float[Tensor, "batch"]
    outcome: Int[Tensor, "batch"]
    derivative: Callable[[], Int[Tensor, "batch slot"]]

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
        return cls(primal, objective, valid, best, value, outcome, lambda: solution.derivative.reshape(batch, slots))

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

        valid = ok[lines] & wanted
        return cls(primal[lines], objective[lines], valid, primal[top], objective[top], outcome, derivative)


def _usable(program: ConeProgram, solution: Solution, points: Tensor) -> tuple[Tensor, Tensor]:
    """Primal points and objectives with zeros where there is no solution, and integers exactly as fixed."""
    primal, objective = placeholders(solution.primal, solution.ok), placeholders(solution.objective, solution.ok)
    # Fixed columns are integral to the solver's accuracy only, and do not move with the features.
    return primal.index_copy(1, program.on(points.device).integers, points.to(primal)), objective
