"""What became of every item: an empty set, no decision, an infinite worst case, no minimum, told apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.nominal import Nominal
from drolayers.conic import ConeProgram, Engine, Solution
from drolayers.conic.elastic import endless
from drolayers.decisions import Decisions
from drolayers.integer import Oracle, make_oracle
from drolayers.known import KnownData
from drolayers.status import Status, usable

EMPTY = 1e-7
"""Relative excess beyond which a set is empty; within it, it has no Slater point."""

LARGE = 1e3
"""Size of a price relative to the objective from which a multiplier is suspect."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a call was given, checked: θ, flat; the nominal distribution, if the set needs one; known data; features."""

    theta: Float[Tensor, "batch theta"]
    nominal: Nominal | None
    known: Float[Tensor, "batch entry"]
    features: Float[Tensor, "batch feature"]


class Diagnosis:
    """Looks at items whose solve did not end well, or whose set is suspect.

    Args:
        ambiguity: the set.
        known_data: of the problem.
        program: the compiled problem.
        decisions: what the constraints admit.
        engine: how to solve.
        proves: whether a program that is not solved may be asked for a proof that it has no solution.
    """

    def __init__(
        self,
        ambiguity: AmbiguitySet,
        known_data: KnownData,
        program: ConeProgram,
        decisions: Decisions,
        engine: Engine,
        proves: bool,
    ) -> None:
        self.ambiguity, self.known_data, self.program = ambiguity, known_data, program
        self.decisions, self.engine, self.proves = decisions, engine, proves

    def of(self, solution: Solution, given: Given, fixed: Tensor | None = None) -> Tensor:
        """Tell failures apart: empty set, no decision, infinite worst case, no minimum; one status an item."""
        status = self.empty_sets(solution.status, solution.primal, solution.objective, given)
        status = self._infeasible(status, given, fixed)
        items = (status == int(Status.INFEASIBLE)).nonzero()[:, 0]
        if items.numel():
            # Where there is a decision it is the worst case that is infinite.
            exist = self.decisions.exist(given.features[items], None if fixed is None else fixed[items])
            status[items[exist.to(items.device)]] = int(Status.UNBOUNDED)
        return status

    def of_integer(
        self,
        status: Int[Tensor, "batch"],
        primal: Float[Tensor, "batch column"],
        objective: Float[Tensor, "batch"],
        given: Given,
        oracle: Oracle | None,
    ) -> Int[Tensor, "batch"]:
        """The same for the best integer points of a batch."""
        status = self.empty_sets(status, primal, objective, given)
        items = (status == int(Status.INFEASIBLE)).nonzero()[:, 0]
        if items.numel():
            exist = self.decisions.integers_exist(given.features[items], oracle or make_oracle())
            status[items[exist.to(items.device)]] = int(Status.UNBOUNDED)
        return status

    def empty_sets(self, status: Tensor, primal: Tensor, objective: Tensor, given: Given) -> Int[Tensor, "batch"]:
        """Look at every item that is not cleanly optimal, or whose set is suspect."""
        status, ok = status.clone(), usable(status)
        told = self.known_data.values(given.known)
        look = (status != int(Status.OPTIMAL)) | self.ambiguity.suspect(given.theta.detach(), given.nominal, told)
        price = primal.detach().abs().amax(1)
        look |= (price > LARGE * (1.0 + objective.detach().abs())) & ok
        doubtful = self.ambiguity.y.support.doubtful(told)
        look = look if doubtful is None else look | doubtful.to(look.device)
        if not bool(look.any()):
            return status
        items = look.nonzero()[:, 0]
        mine = None if given.nominal is None else given.nominal.at(items)
        told = self.known_data.values(given.known[items.to(given.known.device)])
        excess = self.ambiguity.emptiness(given.theta[items], mine, told).to(status.device)
        empty, edge = excess > EMPTY, excess.abs() <= EMPTY
        status[items[empty]] = int(Status.EMPTY_SET)
        fine = status[items] == int(Status.OPTIMAL)
        status[items[edge & fine]] = int(Status.INACCURATE)
        return status

    def _infeasible(self, status: Tensor, given: Given, fixed: Tensor | None) -> Tensor:
        """A direction along which the cost falls proves nothing where there is no point: look with a zero objective."""
        doubtful = (status == int(Status.NO_MINIMUM)) | (status == int(Status.FAILED))
        # Known data that is no number says nothing about the others.
        items = (doubtful & given.features.isfinite().all(1).to(doubtful.device)).nonzero()[:, 0]
        if not items.numel():
            return status
        with torch.no_grad():
            values = self.program.values(given.features[items.to(given.features.device)])
            if fixed is not None:
                values = self.program.within(values, fixed[items], fixed[items])
            nothing = replace(values, P=torch.zeros_like(values.P), q=torch.zeros_like(values.q))
            found = self.engine.solve_values(self.program, nothing).status
        status[items[(found == int(Status.INFEASIBLE)).to(items.device)]] = int(Status.INFEASIBLE)
        # What is left may have no feasible point without a ray that proves it.
        left = status[items] == int(Status.FAILED)
        if bool(left.any()) and self.proves:
            rows = left.nonzero()[:, 0].to(values.q.device)
            none = endless(self.program, values[rows], self.engine.solver)
            status[items[left][none.to(items.device)]] = int(Status.INFEASIBLE)
        return status
