"""The candidates of the surrogate with their conic solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.engine.engine import Engine
from conelayers.engine.solution import Solution, placeholders
from conelayers.integer.oracle import Candidates
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status
from conelayers.surrogate.proposal import Draws
from conelayers.surrogate.ties import Ties


@dataclass(frozen=True, eq=False)
class SolvedCandidates:
    """The candidates of every item, each solved with its integers fixed; differentiable in the program's values.

    Args:
        primal: solutions; finite placeholders where not ``valid``.
        objective: f of each candidate; zero where not ``valid``.
        valid: which candidates were solved.
        best: the optimum of each item over all feasible integer points.
        value: its objective.
        outcome: a ``Status`` code for each item.
        derivative: returns, after the backward pass, a ``Derivative`` code for each candidate.
        value_derivative: the same for ``value``, one code for each item.
    """

    primal: Float[Tensor, "batch candidate column"]
    objective: Float[Tensor, "batch candidate"]
    valid: Bool[Tensor, "batch candidate"]
    best: Float[Tensor, "batch column"]
    value: Float[Tensor, "batch"]
    outcome: Int[Tensor, "batch"]
    derivative: Callable[[], Int[Tensor, "batch candidate"]]
    value_derivative: Callable[[], Int[Tensor, "batch"]]

    def measure_terms(self, values: Values) -> Float[Tensor, "batch"]:
        """Return the size of the terms of each item's objectives: max|q| · max|x| over its candidates."""
        sizes = self.primal.detach().abs().amax(2)
        largest = torch.where(self.valid, sizes, torch.zeros_like(sizes)).amax(1)
        return values.q.detach().abs().amax(1) * largest + values.constant.detach().abs()

    @classmethod
    def enumerate_points(
        cls, program: ConeProgram, values: Values, points: Float[Tensor, "candidate integer"], engine: Engine
    ) -> SolvedCandidates:
        """Solve every item at each of the given points, the same for all items.

        Args:
            program: the structure that all items share.
            values: its numbers, one row per item.
            points: all feasible integer points.
            engine: solves the cone programs.
        """
        batch, count, columns = len(values.q), points.shape[0], program.columns
        item = torch.arange(batch, device=values.q.device).repeat_interleave(count)
        fixed = points.to(values.q).repeat(batch, 1)
        solution = engine.solve_values(program, program.within(values[item], fixed, fixed))
        primal, objective = _fill_unsolved(program, solution, fixed)
        primal, objective = primal.reshape(batch, count, columns), objective.reshape(batch, count)
        valid, status = solution.ok.reshape(batch, count), solution.status.reshape(batch, count)
        first = objective.detach().masked_fill(~valid, torch.inf).argmin(1)
        rows = torch.arange(batch, device=first.device)
        # Solved at some point: OPTIMAL, or INACCURATE if another point failed. Solved at none: the most severe status.
        severest = torch.where(status == int(Status.FAILED), status, status.amin(1, keepdim=True)).amax(1)
        failed = (status == int(Status.FAILED)).any(1)
        solved = torch.where(failed, int(Status.INACCURATE), int(Status.OPTIMAL))
        outcome = torch.where(valid.any(1), solved, severest)
        outcome[(status == int(Status.UNBOUNDED)).any(1)] = int(Status.UNBOUNDED)
        best, value = primal[rows, first], objective[rows, first]
        place = rows * count + first
        table = torch.arange(batch * count, device=first.device).reshape(batch, count)
        points_table = primal.detach().reshape(batch * count, columns)
        ties = Ties(program, points_table, solution.dual.detach(), objective.detach(), valid, place, table)
        ties.warn(engine, value)

        def derivative() -> Tensor:
            return solution.derivative.reshape(batch, count)

        def value_derivative() -> Tensor:
            return ties.flag(solution.value_derivative[place])

        return cls(primal, objective, valid, best, value, outcome, derivative, value_derivative)

    @classmethod
    def solve_draws(
        cls, program: ConeProgram, values: Values, oracle: Candidates, draws: Draws, engine: Engine
    ) -> SolvedCandidates:
        """Solve every item at its draws: the oracle's points reuse their solutions, other distinct points one solve.

        Args:
            program: the structure that all items share.
            values: its numbers, one row per item.
            oracle: the T best points with their solutions.
            draws: the points of the surrogate.
            engine: solves the cone programs.
        """
        batch, count = draws.valid.shape
        reusable = oracle.valid & oracle.ok[:, None]
        item, rank = reusable.nonzero(as_tuple=True)
        best_points = oracle.points[item, rank]
        adopted = engine.adopt(
            program,
            program.within(values[item], best_points, best_points),
            oracle.primal[item, rank],
            oracle.dual[item, rank],
        )
        best_row = torch.zeros(oracle.valid.shape, dtype=torch.int64, device=item.device)
        best_row[item, rank] = torch.arange(item.numel(), device=item.device)
        same = (draws.points[:, :, None, :] == oracle.points[:, None, :, :]).all(-1) & reusable[:, None, :]
        is_best = same.any(-1)
        wanted = draws.valid & oracle.ok[:, None]
        other = (wanted & ~is_best).nonzero(as_tuple=True)
        item_points = torch.cat([other[0][:, None].double(), draws.points[other]], 1)
        distinct, position = torch.unique(item_points, dim=0, return_inverse=True)
        fixed = distinct[:, 1:]
        solved = engine.solve_values(program, program.within(values[distinct[:, 0].long()], fixed, fixed))

        # One table of solutions, the adopted first; `row` is the row of each draw in it.
        row = torch.zeros(batch, count, dtype=torch.int64, device=item.device)
        row = torch.where(is_best, best_row.gather(1, same.int().argmax(-1)), row)
        row[other] = item.numel() + position
        parts = [_fill_unsolved(program, adopted, best_points), _fill_unsolved(program, solved, fixed)]
        primal, objective = (torch.cat(pair) for pair in zip(*parts, strict=True))
        ok = torch.cat([adopted.ok, solved.ok])
        if not ok.numel():
            primal, objective = values.q.new_zeros(1, program.columns), values.q.new_zeros(1)
            ok = torch.zeros(1, dtype=torch.bool, device=item.device)
        top = best_row[:, 0]
        outcome = torch.where(oracle.ok & ~(ok[top] & reusable[:, 0]), int(Status.FAILED), oracle.status)

        def derivative() -> Tensor:
            codes = torch.cat([adopted.derivative, solved.derivative])
            return codes[row] if codes.numel() else row

        valid, value = ok[row] & wanted, objective[top]
        dual = torch.cat([adopted.dual, solved.dual]).detach()
        if not len(dual):
            dual = values.b.new_zeros(1, program.rows)
        ties = Ties(program, primal.detach(), dual, objective[row].detach(), valid, top, row)
        ties.warn(engine, value)

        def value_derivative() -> Tensor:
            codes = torch.cat([adopted.value_derivative, solved.value_derivative])
            return ties.flag(codes[top] if codes.numel() else top)

        results = (primal[top], value, outcome, derivative, value_derivative)
        return cls(primal[row], objective[row], valid, *results)


def _fill_unsolved(
    program: ConeProgram, solution: Solution, points: Float[Tensor, "solve integer"]
) -> tuple[Float[Tensor, "solve column"], Float[Tensor, "solve"]]:
    """Return primal points and objectives, with placeholders where unsolved and integers exactly as fixed."""
    primal, objective = placeholders(solution.primal, solution.ok), placeholders(solution.objective, solution.ok)
    # Fixed columns are integral to the solver's accuracy only, and do not move with the features.
    return primal.index_copy(1, program.on(points.device).integers, points.to(primal)), objective
