"""What became of every item: an empty set, no decision, an infinite worst case, no minimum, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers import ConeProgram, Engine, Solution
from conelayers.internals import endless, usable
from conelayers.oracles import Oracle, make_oracle
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.sets import Sets
from drolayers.amounts import Told
from drolayers.cost.lowering import shorten
from drolayers.decisions import Decisions
from drolayers.known import KnownData
from drolayers.status import Status

EMPTY = 1e-7
"""Relative excess beyond which a set is empty; within it, it has no Slater point."""

LARGE = 1e3
"""Size of a price relative to the objective from which a multiplier is suspect."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a call was given, checked: θ, flat; the nominal distribution, if the set needs one; known data; features.

    ``told`` are the known data by parameter; None where there are none.
    """

    theta: Float[Tensor, "batch theta"]
    nominal: Nominal | None
    known: Float[Tensor, "batch entry"]
    told: Told | None
    features: Float[Tensor, "batch feature"]


class Diagnosis:
    """Looks at items whose solve did not end well, or whose set is suspect.

    Args:
        sets: of the problem.
        unseen: the numbers of those that the cost does not look at.
        known_data: of the problem.
        program: the compiled problem.
        decisions: what the constraints admit.
        engine: how to solve.
        proves: whether a program that is not solved may be asked for a proof that it has no solution.
    """

    def __init__(
        self,
        sets: Sets,
        unseen: Sequence[int],
        known_data: KnownData,
        program: ConeProgram,
        decisions: Decisions,
        engine: Engine,
        proves: bool,
    ) -> None:
        self.sets, self.unseen, self.known_data, self.program = sets, unseen, known_data, program
        self.decisions, self.engine, self.proves = decisions, engine, proves

    def of(self, solution: Solution, given: Given, fixed: Tensor | None = None) -> Tensor:
        """Tell failures apart: empty set, no decision, infinite worst case, no minimum; one status an item."""
        status = self.empty_sets(solution.status, solution.primal, solution.objective, given)
        status = self._infeasible(status, given, fixed)
        items = (status == int(Status.INFEASIBLE)).nonzero()[:, 0]
        if items.numel():
            # Where there is a decision it is the worst case that is infinite.
            exist = self.decisions.exist(given.features[items], None if fixed is None else fixed[items])
            status[items[exist.to(items.device)]] = int(Status.INFINITE_WORST_CASE)
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
            status[items[exist.to(items.device)]] = int(Status.INFINITE_WORST_CASE)
        return status

    def empty_sets(self, status: Tensor, primal: Tensor, objective: Tensor, given: Given) -> Int[Tensor, "batch"]:
        """Look at every item that is not cleanly optimal, or whose set is suspect."""
        status, ok = status.clone(), usable(status)
        told, theta = given.told, given.theta.detach()
        look = (status != int(Status.OPTIMAL)) | self.sets.suspect(theta, given.nominal, told).to(status.device)
        price = primal.detach().abs().amax(1)
        look |= (price > LARGE * (1.0 + objective.detach().abs())) & ok
        doubtful = self.sets.y.support.doubtful(told)
        look = look if doubtful is None else look | doubtful.to(look.device)
        # Over an empty set every constraint holds, and nothing of that is seen in the solution.
        unseen = self.sets.unsettled(theta, given.nominal, told, self.unseen) if self.unseen else torch.zeros_like(look)
        items = (look | unseen.to(look.device)).nonzero()[:, 0]
        if not items.numel():
            return status
        mine = None if given.nominal is None else given.nominal.at(items)
        told = self.known_data.values(given.known[items.to(given.known.device)])
        excess = self.sets.emptiness(given.theta[items], mine, told).to(status.device)
        empty, edge = (excess > EMPTY).any(1), (excess.abs() <= EMPTY).any(1) & look[items]
        status[items[empty]] = int(Status.EMPTY_SET)
        fine = status[items] == int(Status.OPTIMAL)
        status[items[edge & fine]] = int(Status.INACCURATE)
        return status

    def _infeasible(self, status: Tensor, given: Given, fixed: Tensor | None) -> Tensor:
        """A direction along which the cost falls proves nothing where there is no point: look with a zero objective."""
        doubtful = (status == int(Status.UNBOUNDED)) | (status == int(Status.FAILED))
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

    def advice(self, given: Given, status: Int[Tensor, "batch"]) -> str:
        """Which constraint with a worst case is missed most, or which of several sets is empty, and by how much."""
        empty, infeasible = (
            (status == int(kind)).nonzero()[:, 0].tolist() for kind in (Status.EMPTY_SET, Status.INFEASIBLE)
        )
        if infeasible and self.decisions.rules:
            found = self.decisions.shortfalls(given.features)
            worst = {c: m[infeasible].amax(1).nan_to_num(nan=-1.0, posinf=torch.inf) for c, m in found.items()}
            constraint = max(worst, key=lambda c: float(worst[c].max()))
            missed, item = worst[constraint].max(), infeasible[int(worst[constraint].argmax())]
            if missed > 0:
                return f"In item {item}, {shorten(constraint)} is missed by {float(missed):.3g}."
        return self._which_set(given, empty) if empty and len(self.sets.members) > 1 else ""

    def _which_set(self, given: Given, items: list[int]) -> str:
        """Whose set is empty, and by how much its bounds are missed."""
        mine = None if given.nominal is None else given.nominal.at(items)
        told = self.known_data.values(given.known[items])
        excess = self.sets.emptiness(given.theta[items], mine, told).nan_to_num(nan=-1.0)
        item, k = divmod(int(excess.argmax()), excess.shape[1])
        rules = [r for r in self.decisions.rules if any(part.ambiguity is self.sets.members[k] for part in r.parts)]
        of = shorten(rules[0].constraint) if rules else "an expectation in the cost"
        whose = f"{self.sets.names[k]}, the set of {of}," if k else "the cost's set"
        missed = float(excess[item, k])
        return f"In item {items[item]}, {whose} is empty: its bounds are missed by {missed:.3g} of themselves."
