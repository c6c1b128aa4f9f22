"""Geometric programs: convex in the logarithms of their variables and positive parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cvxpy as cp

from conelayers.errors import ModelError
from conelayers.program.program import Slot


@dataclass(frozen=True, eq=False)
class LogProblem:
    """The convex problem of a geometric program.

    Args:
        problem: in the logarithms.
        parameters: in the order of the user's; logarithms if ``logarithmic``.
        logarithmic: which of the parameters are logarithms.
        variables: the user's variable whose logarithm a variable of the convex problem is, by the number of the latter.
    """

    problem: cp.Problem
    parameters: tuple[cp.Parameter, ...]
    logarithmic: tuple[bool, ...]
    variables: dict[int, cp.Variable]

    def rename(self, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        """Return the slots of the user's variables, from those of their logarithms."""
        own = [(slot, self.variables[slot.key]) for slot in slots if slot.key in self.variables]
        return tuple(replace(slot, name=leaf.name(), key=leaf.id, leaf=leaf) for slot, leaf in own)


def take_logarithms(problem: cp.Problem, parameters: Sequence[cp.Parameter]) -> LogProblem:
    """Turn a geometric program into a convex one."""
    if not problem.is_dgp(dpp=True):
        raise ModelError("The problem is not a geometric program in DPP form. Leave out gp=True, or see `is_dgp`.")
    for variable in problem.variables():
        if variable.attributes["boolean"] or variable.attributes["integer"]:
            raise ModelError(f"Variable {variable.name()} is integer, but gp=True needs continuous variables.")
    reduction = cp.reductions.Dgp2Dcp(problem)
    convex, _ = reduction.apply(problem)
    logarithms = {p.id: log for p, log in reduction.canon_methods._parameters.items()}
    own = {variable.id: variable for variable in problem.variables()}
    return LogProblem(
        convex,
        tuple(logarithms.get(p.id, p) for p in parameters),
        tuple(p.id in logarithms for p in parameters),
        {logs[0]: own[number] for number, logs in reduction.var_id_map.items() if number in own},
    )
