"""Worst cases subject to constraints as compiled programs: the worst case of the cost, and of every part by itself."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.conic import ConeProgram
from drolayers.conic.compile import compile_program
from drolayers.cost.rules import Part
from drolayers.known import KnownData
from drolayers.reformulation.mixed import Probes, worst_case_under


class Writer:
    """Writes programs of a problem.

    Args:
        cost: the worst case of the joint cost.
        inner: those that stand in the cost by themselves.
        ambiguity: the set.
        known_data: of the problem.
    """

    def __init__(self, cost: Part, inner: Sequence[Part], ambiguity: AmbiguitySet, known_data: KnownData) -> None:
        self.cost, self.inner, self.ambiguity, self.known_data = cost, inner, ambiguity, known_data

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
            value, own, found = worst_case_under(part.parsed, self.ambiguity, part.everywhere, probe, named)
            inner = self._limited(self.inner if part is self.cost else (), named)
            limits = self._limited(others, named)
            more = [*own, *inner, *limits]
            # What fixes a decision stands last: solvers know balls of radius 1e-12 better in this order.
            rows = [*more, *constraints] if fixed else [*constraints, *more]
            return cp.Problem(cp.Minimize(value), rows), found, limits

        written, found, limits = problem(named=False)
        if self.known_data.products and not written.is_dpp():
            # The set multiplies rows by parameters of its own: their products with known data get names.
            written, found, limits = problem(named=True)
        features = [*self.ambiguity.features, *self.known_data.features, *fixed, *found.parameters]
        return compile_program(written, features, free=free), found, limits

    def _limited(self, parts: Sequence[Part], named: bool) -> list[cp.Constraint]:
        """The variables above some worst cases are there."""
        limits: list[cp.Constraint] = []
        for part in parts:
            value, own, _ = worst_case_under(part.parsed, self.ambiguity, part.everywhere, named=named)
            limits += [*own, part.above >= value]
        return limits
