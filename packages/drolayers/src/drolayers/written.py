"""Worst cases subject to constraints as compiled programs: the worst case of the cost, and of every part by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import cvxpy as cp

from conelayers import ConeProgram, compile_program
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.sets import Sets
from drolayers.cost.rules import Part
from drolayers.known import KnownData
from drolayers.reformulation.mixed import Probes, worst_case_under
from drolayers.reformulation.worst_case import WorstCase


class Writer:
    """Writes programs of a problem.

    Args:
        cost: the worst case of the joint cost.
        inner: those that stand in the cost by themselves.
        sets: of the problem, that of the cost first.
        known_data: of the problem.
    """

    def __init__(self, cost: Part, inner: Sequence[Part], sets: Sets, known_data: KnownData) -> None:
        self.cost, self.inner, self.sets, self.known_data = cost, inner, sets, known_data

    def set_of(self, part: Part) -> AmbiguitySet:
        """The set that a worst case is over."""
        found: AmbiguitySet = part.ambiguity or self.sets.members[0]
        return found if part.price is None else self.sets.priced(found)

    def compiled(
        self,
        part: Part,
        constraints: Sequence[cp.Constraint],
        others: Sequence[Part] = (),
        probe: bool = False,
        fixed: Sequence[cp.Parameter] = (),
        free: Sequence[cp.Variable] = (),
    ) -> tuple[ConeProgram, Probes, list[cp.Constraint]]:
        """A worst case, subject to constraints, as a program whose last features are ``fixed`` and the probe's.

        With it comes what says that the variables above the worst cases ``others`` are there.
        """

        def problem(named: bool) -> tuple[cp.Problem, Probes, list[cp.Constraint]]:
            worst, found = self._formulated([part], probe, named)
            mine = [p for p in self.inner if p not in others] if part is self.cost else []
            # The targets of the problem itself are among its rules.
            met = [p.above <= 0 for p in mine if p.above is not None and p.price is not None]
            inner = [*self._limited(mine, named), *met]
            limits = self._limited(others, named)
            more = [*worst.constraints, *inner, *limits]
            # What fixes a decision stands last: solvers know balls of radius 1e-12 better in this order.
            rows = [*more, *constraints] if fixed else [*constraints, *more]
            return cp.Problem(cp.Minimize(worst.value), rows), found, limits

        written, found, limits = problem(named=False)
        if self.known_data.products and not written.is_dpp():
            # The set multiplies rows by parameters of its own: their products with known data get names.
            written, found, limits = problem(named=True)
        features = [*self.sets.features, *self.known_data.features, *fixed, *found.parameters]
        return compile_program(written, features, free=free), found, limits

    def _limited(self, parts: Sequence[Part], named: bool) -> list[cp.Constraint]:
        """The variables above some worst cases are there."""
        limits: list[cp.Constraint] = []
        for _, some in groupby(parts, key=lambda part: id(part.stands_for)):
            mine = list(some)
            for bundle in [mine] if self._alike(mine) else [[part] for part in mine]:
                part, above = bundle[0], bundle[0].above if len(bundle) == 1 else cp.vec(mine[0].stands_for, order="F")
                worst, _ = self._formulated(bundle, False, named)
                limits += worst.constraints
                limits += [] if above is None else [above >= worst.value]
                limits += [] if part.price is None else [part.price >= worst.price]
        return limits

    def _alike(self, parts: Sequence[Part]) -> bool:
        """Whether the entries of one worst case can be written together: over one stack, for a set that bundles."""
        first = parts[0].parsed
        plain = not any(part.parsed.conservative or part.parsed.curves for part in parts)
        shared = plain and all(part.parsed.variables is first.variables for part in parts)
        return len(parts) > 1 and shared and self.set_of(parts[0]).bundles

    def _formulated(self, parts: Sequence[Part], probe: bool, named: bool) -> tuple[WorstCase, Probes]:
        """A worst case over its set, or the entries of one."""
        part, costs = parts[0], [part.parsed for part in parts]
        return worst_case_under(costs, self.set_of(part), part.everywhere, probe, named, part.price is not None)
