"""Vertices as proofs: they are the engine's solutions, and where they prove nothing the engine is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.engine.registry import default_engine
from conelayers.integer.boxes import Boxes, Solved
from conelayers.integer.simplex.certificate import certified
from conelayers.oracles import Simplex
from conelayers.program.program import Values


def planning(seed: int, batch: int) -> tuple[ConeProgram, Values]:
    """Production with set-ups: continuous columns with bounds, an equation, rows of both; a unique optimum."""
    rng = np.random.default_rng(seed)
    on, made, spare = cp.Variable(6, boolean=True), cp.Variable(6, nonneg=True), cp.Variable(2)
    price, need = cp.Parameter(6), cp.Parameter()
    rows = [cp.sum(made) + spare[0] == need, made <= 0.5 + 1.3 * on, made[:3] <= 1.5]
    rows += [rng.uniform(0.5, 1, 6) @ made <= 4.0]
    rows += [spare[1] >= made[0] - made[1], spare[1] >= made[1] - made[0], spare >= 0]
    cost = price @ made + rng.uniform(0.2, 0.6, 6) @ on + 9.0 * spare[0] + 0.3 * spare[1]
    program = compile_program(cp.Problem(cp.Minimize(cost), rows), [price, need])
    theta = np.concatenate([rng.uniform(0.5, 2, (batch, 6)), rng.uniform(3, 5, (batch, 1))], 1)
    return program, program.values(torch.as_tensor(theta))


@dataclass(frozen=True, eq=False)
class Watched(Boxes):
    """Boxes that tell which items were solved."""

    asked: list[int] = field(default_factory=list)

    def solve(self, item: Any, lower: Any, upper: Any) -> Solved:
        """As it was."""
        self.asked.extend(item.tolist())
        return super().solve(item, lower, upper)


@pytest.mark.parametrize("seed", [0, 1])
def test_vertices_are_the_solutions_of_the_engine(seed: int) -> None:
    program, values = planning(seed, 16)
    found = Simplex().best(program, values, 3)
    item = torch.arange(16).repeat_interleave(3)
    points = found.points.flatten(0, 1).long()
    solved = Boxes(default_engine(), program, values).solve(item, points, points)
    torch.testing.assert_close(found.objective.flatten(), solved.objective, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.primal.flatten(0, 1), solved.primal, rtol=1e-6, atol=1e-6)
    # Of the two bounds of an integer only the difference of their multipliers is determined.
    z = [t.clone() for t in (found.dual.flatten(0, 1), solved.dual)]
    for dual in z:
        dual[:, program.lower_rows] -= dual[:, program.upper_rows]
        dual[:, program.upper_rows] = 0.0
    torch.testing.assert_close(*z, rtol=1e-5, atol=1e-5)


def _vertex(program: ConeProgram, values: Values) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Items, the best point of each, its columns and its multipliers, without those of integers' bounds."""
    found = Simplex().best(program, values, 1)
    z = found.dual[:, 0].index_fill(1, torch.cat([program.lower_rows, program.upper_rows]), 0.0)
    return torch.arange(len(values.q)), found.points[:, 0].long(), found.primal[:, 0], z


def test_what_the_engine_does_not_confirm_it_solves() -> None:
    program, values = planning(2, 8)
    item, point, x, z = _vertex(program, values)
    boxes = Watched(default_engine(), program, values)
    free = torch.ones(program.columns, dtype=torch.bool).index_fill(0, program.integers, False)
    wrong = x.clone()
    wrong[3] += 1e-3 * free
    found = certified(boxes, item, point, wrong, z)
    assert boxes.asked == [3]
    torch.testing.assert_close(found.primal, x, rtol=1e-6, atol=1e-6)


def test_a_vertex_on_the_verge_is_the_engines() -> None:
    # Where both prices are the same every split is optimal, and a vertex, with a multiplier that is zero, is one end.
    on, made, price = cp.Variable(6, boolean=True), cp.Variable(2, nonneg=True), cp.Parameter(2)
    rows = [cp.sum(made) + cp.sum(on) == 2.5, made <= 3.0]
    program = compile_program(cp.Problem(cp.Minimize(price @ made + 5.0 * cp.sum(on)), rows), [price])
    values = program.values(torch.tensor([[1.0, 2.0], [1.0, 1.0]]).double())
    found = Simplex().best(program, values, 1)
    split = program.variable(found.primal[:, 0], made)
    torch.testing.assert_close(split, torch.tensor([[2.5, 0.0], [1.25, 1.25]]).double(), rtol=1e-5, atol=1e-5)
