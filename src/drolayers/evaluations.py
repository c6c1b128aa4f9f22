"""Worst cases of given decisions: their values, and the distributions that attain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.ambiguity.parameters import columns
from drolayers.conic import ConeProgram, Engine, Solution
from drolayers.conic.elastic import endless
from drolayers.cost.rules import Part
from drolayers.diagnosis import Diagnosis, Given
from drolayers.errors import ShapeError
from drolayers.reformulation.worst_case import Probe
from drolayers.reformulation.worst_distribution import (
    WorstCaseDistribution,
    concentrated,
    reweighted,
    worst_distribution,
)
from drolayers.status import Status, usable
from drolayers.written import Writer

Chosen = Mapping[cp.Variable, Tensor]
"""What was chosen for every decision variable, ``(batch, *shape)`` or ``(batch, candidate, *shape)``."""


class Evaluations:
    """One program for every worst case that is asked for, with the decision fixed; compiled when first used.

    Args:
        writer: of the programs.
        variables: the decision variables.
        diagnosis: what tells empty sets.
        engine: how to solve.
    """

    def __init__(self, writer: Writer, variables: Sequence[cp.Variable], diagnosis: Diagnosis, engine: Engine) -> None:
        self.writer, self.variables, self.diagnosis, self.engine = writer, variables, diagnosis, engine
        # Distributions are read off derivatives of f, so an evaluation is worth a few more iterations.
        self.careful = engine.with_tolerance(1e-12)
        self._programs: dict[Part, tuple[ConeProgram, Probe]] = {}

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
        ambiguity = self.writer.ambiguity
        _, probe = self._program(part)
        with torch.enable_grad():
            rows, entries = probe.rows.layout.rows, probe.rows.layout.row.size
            batch = len(given.theta)
            zero = given.theta.detach().double().new_zeros(())
            da, db = (zero.new_zeros(batch, size).requires_grad_() for size in (entries, rows))
            detached = {k: v.detach() for k, v in x.items()}
            solution, status = self._evaluate(part, detached, given, (da, db))
            ok = usable(status)
            total = torch.where(ok, solution.objective, torch.zeros_like(solution.objective)).sum()
            means, masses = torch.autograd.grad(total, (da, db))
        masses = torch.where(ok[:, None], masses, zero + torch.nan)
        around = None if part.everywhere and not ambiguity.local else given.nominal
        if ambiguity.pinned:
            assert around is not None
            return reweighted(probe.rows, ambiguity.y.shape, around, masses)
        weights = torch.ones(batch, 1) if around is None else around.weights
        if part.everywhere and around is not None:
            weights, masses, means = concentrated(probe.rows, weights, masses, means)
        slopes = probe.unit * solution.variable(probe.values).detach()
        return worst_distribution(probe.rows, ambiguity.y.shape, weights, masses, means, slopes, ambiguity.escapes)

    def _program(self, part: Part) -> tuple[ConeProgram, Probe]:
        """The same reformulation with the decision fixed by equations and the rows open to perturbation."""
        if part not in self._programs:
            fixed = [cp.Parameter(v.shape, name=f"value of {v.name()}") for v in self.variables]
            ties = [v == p for v, p in zip(self.variables, fixed, strict=True)]
            program, probe, _ = self.writer.compiled(part, ties, probe=True, fixed=fixed, free=self.variables)
            assert probe is not None
            self._programs[part] = program, probe
        return self._programs[part]

    def _evaluate(
        self, part: Part, x: Chosen, given: Given, probes: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Solution, Tensor]:
        """Solve the evaluation program: only an infinite worst case can make it infeasible."""
        program, probe = self._program(part)
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
        layout = probe.rows.layout
        da, db = probes or (features.new_zeros(batch, layout.row.size), features.new_zeros(batch, layout.rows))
        asked = torch.cat([*parts, da.to(features), db.to(features)], 1)
        solution = self.careful.solve(program, asked)
        status = self.diagnosis.empty_sets(solution.status, solution.primal, solution.objective, given)
        unsolved = (status == int(Status.FAILED)) & asked.isfinite().all(1).to(status.device)
        failed = unsolved.nonzero()[:, 0]
        if failed.numel() and self.diagnosis.proves:
            with torch.no_grad():
                numbers = program.values(asked[failed.to(asked.device)])
                none = endless(program, numbers, self.engine.solver)
            status[failed[none.to(failed.device)]] = int(Status.INFEASIBLE)
        status[status == int(Status.INFEASIBLE)] = int(Status.UNBOUNDED)
        return solution, status
