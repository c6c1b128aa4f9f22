"""The projection of any moment as a cone program, compiled once and differentiated by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.conic import ConeProgram, Engine
from drolayers.conic.compile import compile_program
from drolayers.errors import ModelError
from drolayers.projection.rule import Cloud, Move, Rule, Task, Values, expectation
from drolayers.status import Status

NEGLIGIBLE = 1e-10
"""Weights below this leave their epigraph variable all but undetermined; such atoms are merged with the heaviest."""


class Compiled(NamedTuple):
    """A program and the variables to be read off it; its parameters are θ⁰, the atoms and their weights."""

    program: ConeProgram
    variables: dict[str, cp.Variable]


@final
@dataclass(frozen=True, eq=False)
class ConeRule(Rule):
    """Any moment that is convex in its free parameters, through its CVXPY expression."""

    task: Task
    engine: Engine
    _compiled: dict[int, Compiled] = field(default_factory=dict, repr=False)

    def summarise(self, cloud: Cloud) -> Cloud:
        """The distribution itself."""
        return cloud

    def needed(self, alpha: Values, summary: Cloud) -> Float[Tensor, "batch bound"]:
        """From the moment's values at the atoms."""
        return self.task.require(expectation(self.task.moment, alpha, summary))

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Cloud
    ) -> Move:
        """Solve for the items that need it."""
        items = (~valid.all(1)).nonzero()[:, 0]
        cloud = spread(summary[items])
        compiled = self.compiled(cloud.atoms.shape[1])
        given = [_rows(alpha[name][items]) for name in self.task.free]
        bound = [sigma[items]] if self.task.free_bound else []
        data = torch.cat([*given, *bound, cloud.atoms.flatten(1), cloud.weights], 1)
        solution = self.engine.solve(compiled.program, data)
        usable = solution.ok.to(sigma.device)
        moved = {}
        for name in self.task.free:
            start = alpha[name]
            found = solution.variable(compiled.variables[name]).to(start.device)
            chosen = usable.reshape(-1, *[1] * (start.dim() - 1))
            moved[name] = start.index_copy(0, items, torch.where(chosen, found, start[items]))
        certified = (solution.status == int(Status.INFEASIBLE)).to(sigma.device)
        nothing = torch.zeros_like(valid[:, 0])
        infeasible = nothing.index_copy(0, items, certified)
        return Move(moved, infeasible, nothing.index_copy(0, items, ~usable & ~certified))

    def compiled(self, atoms: int) -> Compiled:
        """The program for a number of atoms.

        Raises:
            ModelError: the moment is not convex in its free parameters.
        """
        if atoms not in self._compiled:
            self._compiled[atoms] = self._compile(atoms)
        return self._compiled[atoms]

    def _compile(self, atoms: int) -> Compiled:
        """Min Σ w(θ - θ⁰)², with an epigraph variable for every atom, since weights and atoms are both parameters."""
        task, moment = self.task, self.task.moment
        shapes = moment.shapes(task.dim) | ({"sigma": (moment.bounds,)} if task.free_bound else {})
        variables = {name: cp.Variable(shape, name=name) for name, shape in shapes.items()}
        start = {name: cp.Parameter(shape, name=f"{name}0") for name, shape in shapes.items()}
        y, omega = cp.Parameter((atoms, task.dim), name="atoms"), cp.Parameter(atoms, nonneg=True, name="weights")
        leaves = {name: cp.Constant(value) for name, value in moment.constants(task.dim).items()} | variables
        g, constraints = moment.expression(y, leaves)
        above = cp.Variable((atoms, moment.bounds))
        bound = variables["sigma"] if task.free_bound else np.broadcast_to(moment.sigma, moment.bounds)  # type: ignore[arg-type]
        constraints = [*constraints, g <= above, task.require(omega @ above) <= bound]
        weights = {n: np.broadcast_to(task.weights[n], shape) for n, shape in shapes.items()}
        if self.engine.solver.capabilities.quadratic:
            # Expanded, so that θ⁰ enters the objective alone.
            objective = sum(
                cp.sum(cp.multiply(weights[n], cp.square(v)))
                - 2 * cp.sum(cp.multiply(weights[n], cp.multiply(start[n], v)))
                for n, v in variables.items()
            )
        else:
            parts = [cp.vec(cp.multiply(np.sqrt(weights[n]), v - start[n]), order="C") for n, v in variables.items()]
            objective = cp.norm(cp.hstack(parts), 2)
        problem = cp.Problem(cp.Minimize(objective), constraints)
        try:
            program = compile_program(problem, [*start.values(), y, omega])
        except ModelError as error:
            raise ModelError(
                f"Moment {task.position} is not convex in its free parameters {list(shapes)}, so that it can only be "
                f"projected with method='clip'. {error}"
            ) from error
        return Compiled(program, variables)


def spread(cloud: Cloud) -> Cloud:
    """The same distributions without (nearly) weightless atoms: those share place and weight of the heaviest."""
    weights, atoms = cloud.weights, cloud.atoms
    light = weights <= NEGLIGIBLE
    if not bool(light.any()):
        return cloud
    heaviest = weights.argmax(1, keepdim=True)
    top = torch.zeros_like(light).scatter(1, heaviest, torch.ones_like(light[:, :1]))
    share = weights.gather(1, heaviest) / (1 + light.sum(1, keepdim=True))
    place = atoms.gather(1, heaviest[..., None].expand(-1, -1, atoms.shape[2]))
    return Cloud(torch.where(light[..., None], place, atoms), torch.where(light | top, share, weights))


def _rows(values: Tensor) -> Float[Tensor, "batch entry"]:
    """One row an item."""
    return values[:, None] if values.dim() == 1 else values.flatten(1)
