"""Worst cases of given decisions: their values, and the distributions that attain them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers import ConeProgram, Engine, Solution
from conelayers.internals import ValueKinkWarning, endless, refuse_transforms, usable
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.mixture import Mixture
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.theta import columns
from drolayers.cost.rules import Part, Rule
from drolayers.diagnosis import Diagnosis, Given
from drolayers.errors import ShapeError
from drolayers.reformulation.mixed import Probes
from drolayers.reformulation.worst_case import Probe
from drolayers.reformulation.worst_distribution import (
    WorstCaseDistribution,
    concentrated,
    mixture,
    no_distribution,
    reweighted,
    worst_distribution,
)
from drolayers.status import Status
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

    def value(self, part: Part, x: Chosen, inputs: Given) -> Float[Tensor, "batch"]:
        """Evaluate a worst case at fixed decisions; inf if it is infinite, NaN if it is unknown.

        Args:
            part: the worst case.
            x: the decision by variable, ``(batch, *shape)``.
            inputs: theta, nominal distribution and known data, checked.
        """
        solution, status = self._evaluate(part, x, inputs)
        value, flat = solution.objective, inputs.theta
        infinite = (status == int(Status.INFINITE_WORST_CASE)).to(value.device)
        value = torch.where(usable(status).to(value.device), value, torch.full_like(value, torch.nan))
        value = torch.where(infinite, torch.full_like(value, torch.inf), value)
        return value.to(torch.promote_types(flat.dtype, torch.float32))

    def distribution(self, part: Part, x: Chosen, inputs: Given) -> WorstCaseDistribution:
        """Return a distribution that attains a worst case at fixed decisions.

        Args:
            part: the worst case.
            x: the decision by variable, ``(batch, *shape)``.
            inputs: theta, nominal distribution and known data, checked.

        Returns:
            Atoms and probabilities. An item has NaN probabilities if it is unsolved or its mass is not one.
        """
        refuse_transforms(*x.values())
        ambiguity = self.writer.set_of(part)
        _, probes = self._program(part)
        if not len(inputs.theta):
            return no_distribution(ambiguity.y.shape)
        with torch.inference_mode(False), torch.enable_grad():
            zero = inputs.theta.detach().double().new_zeros(())
            moves = [zero.new_zeros(len(inputs.theta), p.size).requires_grad_() for p in probes.parameters]
            detached = {k: v.detach() for k, v in x.items()}
            solution, status = self._evaluate(part, detached, inputs, moves)
            ok = usable(status)
            total = torch.where(ok, solution.objective, torch.zeros_like(solution.objective)).sum()
            with warnings.catch_warnings():
                # At a kink several distributions attain the worst case, and any of them will do.
                warnings.simplefilter("ignore", ValueKinkWarning)
                derivatives = torch.autograd.grad(total, moves)
        rates = [torch.where(ok[:, None], rate, zero + torch.nan) for rate in derivatives]
        slopes = [probe.unit * solution.variable(probe.values).detach() for probe in probes.rows]
        events, nominals = [ambiguity], [inputs.nominal]
        shares = None
        if isinstance(ambiguity, Mixture):
            # Masses are relative to the event, whose probability is the derivative in its value.
            events, nominals, shares = list(ambiguity.sets), ambiguity.split(inputs.nominal), rates.pop()
        distributions = []
        for s, (event, nominal, slope) in enumerate(zip(events, nominals, slopes, strict=True)):
            event_rates = rates[2 * s : 2 * s + 2]
            if shares is not None:
                event_rates = [rate / shares[:, s : s + 1].clamp(min=RARE) for rate in event_rates]
            distribution = _attaining_distribution(event, part.everywhere, probes.rows[s], nominal, event_rates, slope)
            distributions.append(distribution.on(event.y.support, inputs.told))
        if shares is None or not isinstance(ambiguity, Mixture):
            return distributions[0].verified()
        return mixture(distributions, shares.cpu(), ambiguity.starts).verified()

    def _program(self, part: Part) -> tuple[ConeProgram, Probes]:
        """The same reformulation with the decision fixed by equations and the rows open to perturbation."""
        if part not in self._programs:
            fixed = [cp.Parameter(v.shape, name=f"value of {v.name()}") for v in self.variables]
            ties = [v == p for v, p in zip(self.variables, fixed, strict=True)]
            bound = self.bound if part is self.writer.cost else ()
            rows = [*(r.holds for r in bound if r.holds.variables()), *ties]
            others = [other for r in bound for other in r.parts]
            compiled = self.writer.compiled(part, rows, others, probe=True, fixed=fixed, free=self.variables)
            self._programs[part] = compiled[:2]
        return self._programs[part]

    def _evaluate(
        self, part: Part, x: Chosen, inputs: Given, moves: Sequence[Tensor] | None = None
    ) -> tuple[Solution, Tensor]:
        """Solve the evaluation program: only an infinite worst case can make it infeasible."""
        program, probes = self._program(part)
        features = inputs.features
        batch = features.shape[0]
        columns_of_x = [features]
        for variable in self.variables:
            value = x[variable]
            if tuple(value.shape) != (batch, *variable.shape):
                raise ShapeError(
                    f"{variable.name()} must have shape {(batch, *variable.shape)}, one decision an item of theta, "
                    f"not {tuple(value.shape)}."
                )
            columns_of_x.append(columns(value.double()).to(features.device))
        moves = moves or [features.new_zeros(batch, p.size) for p in probes.parameters]
        entries = torch.cat([*columns_of_x, *(move.to(features) for move in moves)], 1)
        solution = self.careful.solve(program, entries)
        status = self.diagnosis.empty_sets(solution.status, solution.primal, solution.objective, inputs)
        unsolved = (status == int(Status.FAILED)) & entries.isfinite().all(1).to(status.device)
        failed = unsolved.nonzero()[:, 0]
        if failed.numel() and self.diagnosis.proves:
            with torch.no_grad():
                numbers = program.values(entries[failed.to(entries.device)])
                infinite = endless(program, numbers, self.engine.solver)
            status[failed[infinite.to(failed.device)]] = int(Status.INFEASIBLE)
        if part is not self.writer.cost:
            solution, status = self._binding(program, entries, solution, status)
        status[status == int(Status.INFEASIBLE)] = int(Status.INFINITE_WORST_CASE)
        return solution, status

    def _binding(
        self, program: ConeProgram, entries: Tensor, solution: Solution, status: Tensor
    ) -> tuple[Solution, Tensor]:
        """Solve failed items again with an accuracy relative to their terms, which cancel if a constraint binds."""
        items = ((status == int(Status.FAILED)) & entries.isfinite().all(1).to(status.device)).nonzero()[:, 0]
        if not items.numel():
            return solution, status
        second = replace(self.careful, rounding=CANCELLED).solve(program, entries[items.to(entries.device)])
        primal, objective = (
            first.index_put((items.to(first.device),), again)
            for first, again in ((solution.primal, second.primal), (solution.objective, second.objective))
        )
        statuses = torch.where(usable(second.status), second.status, status[items])
        return replace(solution, primal=primal, objective=objective), status.index_put((items,), statuses)


def _attaining_distribution(
    ambiguity: AmbiguitySet,
    everywhere: bool,
    probe: Probe,
    nominal: Nominal | None,
    rates: Sequence[Tensor],
    slopes: Float[Tensor, "batch entry"],
) -> WorstCaseDistribution:
    """Assemble the distribution of one set from the derivatives of its worst case.

    Args:
        ambiguity: the set.
        everywhere: whether the worst case is over outcomes, not over distributions.
        probe: the rows of the program that were perturbed.
        nominal: the nominal distribution of the problem. It may belong to another set.
        rates: derivatives in slopes ``(batch, entry)`` and offsets ``(batch, row)``.
        slopes: the slopes themselves.
    """
    means, masses = rates
    # A set without nominal distribution has one scenario, even if another set of the problem brings atoms.
    by_atom = ambiguity.needs_nominal and (ambiguity.local or not everywhere)
    around = nominal if by_atom else None
    if ambiguity.pinned:
        assert around is not None
        return reweighted(probe.rows, ambiguity.y.shape, around, masses)
    weights = torch.ones(len(masses), 1) if around is None else around.weights
    if everywhere and around is not None:
        weights, masses, means = concentrated(probe.rows, weights, masses, means)
    return worst_distribution(probe.rows, ambiguity.y.shape, weights, masses, means, slopes, ambiguity.escapes)
