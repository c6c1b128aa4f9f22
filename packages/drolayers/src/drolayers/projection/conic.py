"""The projection of any moment as a cone program, compiled once and differentiated by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers import ConeProgram, Engine, compile_program
from conelayers.internals import untraced
from drolayers.ambiguity.nominal import Nominal
from drolayers.errors import ModelError
from drolayers.projection import units
from drolayers.projection.rule import Move, Task, ValueRule, Values
from drolayers.status import Status

NEGLIGIBLE = 1e-10
"""Weights below this leave their epigraph variable all but undetermined; such atoms are merged with the heaviest."""


class Compiled(NamedTuple):
    """A program, the variables to be read off it, and the powers of the item's unit that it needs.

    Its parameters are θ⁰, atoms, their weights, and s^(-e) for every power e; a variable is √w·θ.
    """

    program: ConeProgram
    variables: dict[str, cp.Variable]
    powers: tuple[float, ...]


@final
@dataclass(frozen=True, eq=False)
class ConeRule(ValueRule):
    """Any moment that is convex in its free parameters, through its CVXPY expression."""

    task: Task
    engine: Engine
    _compiled: dict[int, Compiled] = field(default_factory=dict, repr=False)

    def nearest(
        self, alpha: Values, sigma: Float[Tensor, "batch bound"], valid: Bool[Tensor, "batch bound"], summary: Nominal
    ) -> Move:
        """Solve for the items that need it."""
        items = (~valid.all(1)).nonzero()[:, 0]
        nominal = spread(summary.at(items))
        compiled = self.compiled(nominal.atoms.shape[1])
        mine = {name: value[items] for name, value in alpha.items()}
        unit = units.size(self.task.moment, mine, nominal)[:, None]
        free = {name: mine[name] for name in self.task.moment.shapes} | (
            {"sigma": sigma[items, : self.task.moment.size]} if self.task.moment.sigma is None else {}
        )
        given = [_rows(value * self._root(name, value)) for name, value in free.items()]
        powers = [unit**-e for e in compiled.powers]
        data = torch.cat([*given, nominal.atoms.flatten(1) / unit, nominal.weights, *powers], 1)
        solution = self.engine.solve(compiled.program, data)
        usable = solution.ok.to(sigma.device)
        moved = {}
        for name in self.task.moment.shapes:
            start = alpha[name]
            found = solution.variable(compiled.variables[name]).to(start.device) / self._root(name, start)
            chosen = usable.reshape(-1, *[1] * (start.dim() - 1))
            moved[name] = start.index_copy(0, items, torch.where(chosen, found, start[items]))
        certified = (solution.status == int(Status.INFEASIBLE)).to(sigma.device)
        nothing = torch.zeros_like(valid[:, 0])
        infeasible = nothing.index_copy(0, items, certified)
        return Move(moved, infeasible, nothing.index_copy(0, items, ~usable & ~certified))

    def _root(self, name: str, like: Tensor) -> Tensor:
        """√w of a parameter."""
        return torch.as_tensor(self.task.weights[name]).to(like).sqrt()

    @untraced
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
        shapes = moment.shapes | ({"sigma": (moment.size,)} if task.moment.sigma is None else {})
        variables = {name: cp.Variable(shape, name=name) for name, shape in shapes.items()}
        start = {name: cp.Parameter(shape, name=f"{name}0") for name, shape in shapes.items()}
        y, omega = cp.Parameter((atoms, task.dim), name="atoms"), cp.Parameter(atoms, nonneg=True, name="weights")
        powers: dict[float, cp.Parameter] = {}

        def power(e: float) -> cp.Expression:
            return powers.setdefault(e, cp.Parameter(nonneg=True, name=f"unit^-{e:g}"))

        def own(name: str, value: cp.Expression) -> cp.Expression:
            """A parameter in the item's units."""
            e = units.degree(moment) if name == "sigma" else units.leaf_degree(moment, name)
            return power(e) * value if e and units.known(moment) else value

        roots = {n: 1.0 / np.sqrt(np.broadcast_to(task.weights[n], shape)) for n, shape in shapes.items()}
        leaves = {name: own(name, cp.Constant(value)) for name, value in moment.constants.items()}
        leaves |= {name: own(name, cp.multiply(roots[name], v)) for name, v in variables.items()}
        bound = leaves.pop("sigma", None)
        bound = own("sigma", cp.Constant(moment.limits)) if bound is None else cp.hstack([bound] * moment.sides)
        g, constraints = units.written(moment, y, leaves, power)
        above = cp.Variable((atoms, moment.bounds))
        needed = (1.0 + task.margin) * (omega @ above) + own("sigma", cp.Constant(task.absolute))
        constraints = [*constraints, g <= above, needed <= bound]
        if self.engine.solver.capabilities.quadratic:
            # Expanded, so that θ⁰ enters the objective alone.
            objective = sum(cp.sum_squares(v) - 2 * cp.sum(cp.multiply(start[n], v)) for n, v in variables.items())
        else:
            objective = cp.norm(cp.hstack([cp.vec(v - start[n], order="C") for n, v in variables.items()]), 2)
        problem = cp.Problem(cp.Minimize(objective), constraints)
        try:
            program = compile_program(problem, [*start.values(), y, omega, *powers.values()])
        except ModelError as error:
            raise ModelError(
                f"Moment {task.position} has no cone program in its free parameters {list(shapes)} to compile "
                f"once for all items: use method='clip'. {error}"
            ) from error
        return Compiled(program, variables, tuple(powers))


def spread(nominal: Nominal) -> Nominal:
    """The same distributions without (nearly) weightless atoms: those share place and weight of the heaviest."""
    weights, atoms = nominal.weights, nominal.atoms
    light = weights <= NEGLIGIBLE
    if not bool(light.any()):
        return nominal
    heaviest = weights.argmax(1, keepdim=True)
    top = torch.zeros_like(light).scatter(1, heaviest, torch.ones_like(light[:, :1]))
    share = weights.gather(1, heaviest) / (1 + light.sum(1, keepdim=True))
    place = atoms.gather(1, heaviest[..., None].expand(-1, -1, atoms.shape[2]))
    return Nominal(torch.where(light[..., None], place, atoms), torch.where(light | top, share, weights))


def _rows(values: Tensor) -> Float[Tensor, "batch entry"]:
    """One row an item."""
    return values[:, None] if values.dim() == 1 else values.flatten(1)
