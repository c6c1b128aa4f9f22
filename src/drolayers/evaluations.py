"""Worst cases of given decisions: their values, and the distributions that attain them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.mixture import Mixture
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.theta import columns
from drolayers.amounts import Told
from drolayers.conic import ConeProgram, Engine, Solution, ValueKinkWarning
from drolayers.conic.elastic import endless
from drolayers.conic.transforms import refuse_transforms
from drolayers.cost.rules import Part, Rule
from drolayers.diagnosis import Diagnosis, Given
from drolayers.errors import ShapeError
from drolayers.reformulation.mixed import Probes
from drolayers.reformulation.worst_case import Probe
from drolayers.reformulation.worst_distribution import (
    WorstCaseDistribution,
    concentrated,
    mixture,
    reweighted,
    worst_distribution,
)
from drolayers.status import Status, usable
from drolayers.written import Writer

CANCELLED = 1e-9
"""Share of its terms' size to which a constraint's left-hand side is known: that of one that binds is zero."""

RARE = 1e-9
"""Probability of an event below which nothing is known of its distribution."""

Chosen = Mapping[cp.Variable, Tensor]
"""What was chosen for every decision variable, ``(batch, *shape)`` or ``(batch, candidate, *shape)``."""


class Evaluations:
    """One program for every worst case that is asked for, with the decision fixed; compiled when first used.

    Args:
        writer: of the programs.
        variables: the decision variables.
        bound: the constraints on adaptive decisions: evaluated is the cost under the best rules that obey them.
        diagnosis: what tells empty sets.
        engine: how to solve.
    """

    def __init__(
        self,
        writer: Writer,
        variables: Sequence[cp.Variable],
        bound: Sequence[Rule],
        diagnosis: Diagnosis,
        engine: Engine,
    ) -> None:
        self.bound = bound
        self.writer, self.variables, self.diagnosis, self.engine = writer, variables, diagnosis, engine
        # Distributions are read off derivatives of f, so an evaluation is worth a few more iterations.
        self.careful = engine.with_tolerance(1e-12)
        self._programs: dict[Part, tuple[ConeProgram, Probes]] = {}

    def value(self, part: Part, x: Chosen, given: Given) -> Float[Tensor, "batch"]:
        """A worst case at given decisions; inf where it is, NaN where it is not known."""
        solution, status = self._evaluate(part, x, given)
        value, flat = solution.objective, given.theta
        infinite = (status == int(Status.UNBOUNDED)).to(value.device)
        value = torch.where(usable(status).to(value.device), value, torch.full_like(value, torch.nan))
        value = torch.where(infinite, torch.full_like(value, torch.inf), value)
        return value.to(torch.promote_types(flat.dtype, torch.float32))

    def distribution(self, part: Part, x: Chosen, given: Given) -> WorstCaseDistribution:
        """The distribution that attains a worst case at given decisions."""
        refuse_transforms(*x.values())
        ambiguity = self.writer.set_of(part)
        _, probes = self._program(part)
        with torch.inference_mode(False), torch.enable_grad():
            zero = given.theta.detach().double().new_zeros(())
            moves = [zero.new_zeros(len(given.theta), p.size).requires_grad_() for p in probes.parameters]
            detached = {k: v.detach() for k, v in x.items()}
            solution, status = self._evaluate(part, detached, given, moves)
            ok = usable(status)
            total = torch.where(ok, solution.objective, torch.zeros_like(solution.objective)).sum()
            with warnings.catch_warnings():
                # At a kink several distributions attain the worst case, and any of them will do.
                warnings.simplefilter("ignore", ValueKinkWarning)
                found = torch.autograd.grad(total, moves)
        rates = [torch.where(ok[:, None], rate, zero + torch.nan) for rate in found]
        slopes = [probe.unit * solution.variable(probe.values).detach() for probe in probes.rows]
        if not isinstance(ambiguity, Mixture):
            return _attaining(ambiguity, part.everywhere, probes.rows[0], given.nominal, rates, slopes[0], given.told)
        # Relative to the event, whose probability is the derivative in its value.
        around, shares, parts = ambiguity.split(given.nominal), rates.pop(), []
        for s, event in enumerate(ambiguity.sets):
            own = [rate / shares[:, s : s + 1].clamp(min=RARE) for rate in rates[2 * s : 2 * s + 2]]
            parts.append(_attaining(event, part.everywhere, probes.rows[s], around[s], own, slopes[s], given.told))
        return mixture(parts, shares.cpu(), ambiguity.starts)

    def _program(self, part: Part) -> tuple[ConeProgram, Probes]:
        """The same reformulation with the decision fixed by equations and the rows open to perturbation."""
        if part not in self._programs:
            fixed = [cp.Parameter(v.shape, name=f"value of {v.name()}") for v in self.variables]
            ties = [v == p for v, p in zip(self.variables, fixed, strict=True)]
            bound = self.bound if part is self.writer.cost else ()
            rows = [*(r.holds for r in bound if r.holds.variables()), *ties]
            others = [other for r in bound for other in r.parts]
            found = self.writer.compiled(part, rows, others, probe=True, fixed=fixed, free=self.variables)
            self._programs[part] = found[:2]
        return self._programs[part]

    def _evaluate(
        self, part: Part, x: Chosen, given: Given, moves: Sequence[Tensor] | None = None
    ) -> tuple[Solution, Tensor]:
        """Solve the evaluation program: only an infinite worst case can make it infeasible."""
        program, probes = self._program(part)
        features = given.features
        batch = features.shape[0]
        parts = [features]
        for variable in self.variables:
            value = x[variable]
            if tuple(value.shape) != (batch, *variable.shape):
                raise ShapeError(
                    f"{variable.name()} must have shape {(batch, *variable.shape)}, one decision an item of theta, "
                    f"not {tuple(value.shape)}."
                )
            parts.append(columns(value.double()).to(features.device))
        moves = moves or [features.new_zeros(batch, p.size) for p in probes.parameters]
        asked = torch.cat([*parts, *(move.to(features) for move in moves)], 1)
        solution = self.careful.solve(program, asked)
        status = self.diagnosis.empty_sets(solution.status, solution.primal, solution.objective, given)
        unsolved = (status == int(Status.FAILED)) & asked.isfinite().all(1).to(status.device)
        failed = unsolved.nonzero()[:, 0]
        if failed.numel() and self.diagnosis.proves:
            with torch.no_grad():
                numbers = program.values(asked[failed.to(asked.device)])
                none = endless(program, numbers, self.engine.solver)
            status[failed[none.to(failed.device)]] = int(Status.INFEASIBLE)
        if part is not self.writer.cost:
            solution, status = self._binding(program, asked, solution, status)
        status[status == int(Status.INFEASIBLE)] = int(Status.UNBOUNDED)
        return solution, status

    def _binding(
        self, program: ConeProgram, asked: Tensor, solution: Solution, status: Tensor
    ) -> tuple[Solution, Tensor]:
        """What failed beside its own size is known beside its terms: they all but cancel where a constraint binds."""
        items = ((status == int(Status.FAILED)) & asked.isfinite().all(1).to(status.device)).nonzero()[:, 0]
        if not items.numel():
            return solution, status
        second = replace(self.careful, rounding=CANCELLED).solve(program, asked[items.to(asked.device)])
        primal, objective = (
            mine.index_put((items.to(mine.device),), found)
            for mine, found in ((solution.primal, second.primal), (solution.objective, second.objective))
        )
        told = torch.where(usable(second.status), second.status, status[items])
        return replace(solution, primal=primal, objective=objective), status.index_put((items,), told)


def _attaining(
    ambiguity: AmbiguitySet,
    everywhere: bool,
    probe: Probe,
    nominal: Nominal | None,
    rates: Sequence[Tensor],
    slopes: Float[Tensor, "batch entry"],
    told: Told | None,
) -> WorstCaseDistribution:
    """The distribution of one set, from the derivatives in its rows' slopes and offsets."""
    means, masses = rates
    around = None if everywhere and not ambiguity.local else nominal
    if ambiguity.pinned:
        assert around is not None
        return reweighted(probe.rows, ambiguity.y.shape, around, masses)
    weights = torch.ones(len(masses), 1) if around is None else around.weights
    if everywhere and around is not None:
        weights, masses, means = concentrated(probe.rows, weights, masses, means)
    found = worst_distribution(probe.rows, ambiguity.y.shape, weights, masses, means, slopes, ambiguity.escapes)
    return found.on(ambiguity.y.support, told)
