"""The constraints on the decision by themselves: which decisions there are, whatever the ambiguity set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import cvxpy as cp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers import ConeProgram, Engine, compile_program
from conelayers.internals import all_points, box_size, check_box, feasible_points
from conelayers.oracles import Oracle
from drolayers.cost.rules import Rule
from drolayers.status import Status

ENUMERABLE = 4096
"""Size of a box up to which its feasible points are counted, once, to see whether they are few."""

ALL = 65_536
"""Size of a box up to which all its points are solved when asked for."""


class Decisions:
    """What the constraints admit.

    Args:
        plain: the constraints on the decision variables alone.
        rules: the constraints with worst cases.
        limits: what says that the variables above those are there.
        variables: the decision variables.
        features: what the constraints may depend on: known data, and where they hold worst cases, θ.
        problem: the compiled problem; integer values are given and returned in the order of its integer columns.
        engine: how to solve.
    """

    def __init__(
        self,
        plain: Sequence[cp.Constraint],
        rules: Sequence[Rule],
        limits: Sequence[cp.Constraint],
        variables: Sequence[cp.Variable],
        features: Sequence[cp.Parameter],
        problem: ConeProgram,
        engine: Engine,
    ) -> None:
        check_box(problem)
        self.variables, self.problem, self.engine, self.features = variables, problem, engine, features
        self.plain, self.rules, self.limits = plain, rules, limits
        self._same = not rules and not any(c.parameters() for c in plain)
        self._some_integers: Bool[Tensor, "1"] | None = None
        self._points: Tensor | None = None

    @cached_property
    def program(self) -> ConeProgram:
        """The constraints without a cost."""
        # A variable that no constraint mentions must still occur for its integrality and bounds to be seen.
        constraints = [*self.plain, *(rule.holds for rule in self.rules if rule.holds.variables()), *self.limits]
        mentioned = {v.id for c in constraints for v in c.variables()}
        touch = [cp.Variable(v.shape) == v for v in self.variables if v.id not in mentioned]
        return compile_program(cp.Problem(cp.Minimize(0.0), [*constraints, *touch]), self.features)

    @cached_property
    def _relaxed(self) -> tuple[ConeProgram, list[cp.Variable]]:
        """The least sum by which the constraints with worst cases are missed."""
        missed = [cp.Variable(rule.rows, nonneg=True) for rule in self.rules]
        total = sum((cp.sum(m) for m in missed), start=cp.Constant(0.0))
        relaxed = [rule.left <= m for rule, m in zip(self.rules, missed, strict=True)]
        written = cp.Problem(cp.Minimize(total), [*self.plain, *self.limits, *relaxed])
        return compile_program(written, self.features), missed

    @torch.no_grad()
    def shortfalls(self, features: Float[Tensor, "item feature"]) -> dict[cp.Constraint, Float[Tensor, "item row"]]:
        """By how much each constraint with worst cases is missed; inf where no relaxation helps, NaN if not known."""
        program, missed = self._relaxed
        solution = self.engine.solve(program, features)
        none = (solution.status == int(Status.INFEASIBLE))[:, None]
        found = {}
        for rule, variable in zip(self.rules, missed, strict=True):
            value = solution.variable(variable).clamp(min=0.0).masked_fill(~solution.ok[:, None], torch.nan)
            found[rule.constraint] = value.masked_fill(none, torch.inf)
        return found

    @torch.no_grad()
    def exist(
        self, features: Float[Tensor, "item feature"], fixed: Float[Tensor, "item integer"] | None
    ) -> Bool[Tensor, "item"]:
        """Whether there is a decision, item by item: any, with integrality relaxed, or one with given integers."""
        if fixed is None and self._same:
            return self._some.expand(len(features))
        order = None if fixed is None else fixed[:, self._order]
        return self.engine.solve(self.program, features, order).status != int(Status.INFEASIBLE)

    @cached_property
    def _some(self) -> Bool[Tensor, "1"]:
        """Whether some decision satisfies constraints that are the same for all, checked once."""
        return self.engine.solve(self.program, self._nothing).status != int(Status.INFEASIBLE)

    @torch.no_grad()
    def integers_exist(self, features: Float[Tensor, "item feature"], oracle: Oracle) -> Bool[Tensor, "item"]:
        """Whether some integer decision satisfies the constraints; once for all where they are the same for all."""
        if not self._same:
            return oracle.best(self.program, self.program.values(features), 1).status != int(Status.INFEASIBLE)
        if self._some_integers is None:
            found = oracle.best(self.program, self.program.values(self._nothing), 1)
            self._some_integers = found.status != int(Status.INFEASIBLE)
        return self._some_integers.expand(len(features))

    def integer_points(self, limit: int | None) -> Float[Tensor, "point integer"] | None:
        """All integer points that some features may admit; None where there are more than the limit, if any."""
        if limit is not None and self._points is None and box_size(self.problem) > min(max(limit, ENUMERABLE), ALL):
            return None
        if self._points is None:
            box = torch.as_tensor(all_points(self.problem, ALL))
            if self._same:
                ours, values = box[None][:, :, self._order], self.program.values(self._nothing)
                box = box[feasible_points(self.engine, self.program, values, ours)[0]]
            self._points = box
        return None if limit is not None and self._points.shape[0] > limit else self._points

    @cached_property
    def _order(self) -> list[int]:
        """For every integer column of our program, its position among those of the problem."""
        position = {name: k for k, name in enumerate(self._named(self.problem))}
        return [position[name] for name in self._named(self.program)]

    def _named(self, program: ConeProgram) -> list[tuple[int, int]]:
        """Variable and entry of every integer column."""
        slots = {slot.key: slot for slot in program.variables}
        of_variables = [slots[v.id] for v in self.variables if v.id in slots]
        columns = {slot.offset + k: (slot.key, k) for slot in of_variables for k in range(slot.size)}
        return [columns[int(column)] for column in program.integers]

    @property
    def _nothing(self) -> Float[Tensor, "1 feature"]:
        """Features for constraints that depend on none."""
        return torch.zeros(1, self.program.feature_size, dtype=torch.float64)
