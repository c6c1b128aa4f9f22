"""The differentiable layer: from the parameters of an ambiguity set to the decision that is best against its worst case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from drolayers.ambiguity.base import Nominal
from drolayers.conic import Engine, Exact, Smoothed, Values, make_engine
from drolayers.conic.engine import Backend
from drolayers.errors import ModelError, SolveError
from drolayers.integer import Candidates, Enumeration, Oracle, make_oracle
from drolayers.integer.enumeration import box_size
from drolayers.problem import DecisionProblem, Theta
from drolayers.status import Status
from drolayers.surrogate.energy import (
    RelativeTemperature,
    Temperature,
    absolute_temperature,
    check_temperature,
    effective_sample_size,
    energy_probabilities,
)
from drolayers.surrogate.proposal import Draws, Proposal, Stratified, Summit

SMALL = 32
"""Integer points up to which all are solved rather than sampled."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What the layer decided for a batch.

    Attributes:
        best: the optimal decision by CVXPY variable, ``(batch, *shape)``; NaN where not ``ok``.
        value: the worst-case expected cost at the optimum; NaN where not ``ok``.
        status: a ``dro.Status`` code an item.
        candidates: the points that the surrogate is made of, ``(batch, candidate, *shape)``, with finite placeholders
            where a slot holds none.
        objective: worst-case expected cost at each candidate.
        probabilities: of the candidates; zero where a slot holds none.
        effective_sample_size: 1/Σp²; a small one tells of a poor sample, a large one proves nothing.
        oracle: how the integer points were found; None without integer variables.
    """

    best: dict[cp.Variable, Tensor]
    value: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]
    candidates: dict[cp.Variable, Tensor]
    objective: Float[Tensor, "batch candidate"]
    probabilities: Float[Tensor, "batch candidate"]
    effective_sample_size: Float[Tensor, "batch"]
    oracle: Candidates | None = None

    @property
    def ok(self) -> Bool[Tensor, "batch"]:
        """Which items have a decision."""
        return self.status <= int(Status.INACCURATE)

    @property
    def statuses(self) -> list[Status]:
        """The statuses as an enumeration."""
        return [Status(s) for s in self.status.tolist()]

    def expected(self, loss: Callable[[dict[cp.Variable, Tensor]], Tensor]) -> Float[Tensor, "batch"]:
        """The surrogate loss Σ_k p_k l(x_k), differentiable in θ; zero, without gradient, where not ``ok``.

        Args:
            loss: called with ``(batch, candidate, *shape)`` tensors; returns ``(batch, candidate)``.
        """
        values = loss(self.candidates)
        if tuple(values.shape) != tuple(self.probabilities.shape):
            raise ModelError(
                f"The loss must return shape {tuple(self.probabilities.shape)} (batch, candidate), not {tuple(values.shape)}."
            )
        weighted = torch.where(self.probabilities > 0, self.probabilities * values, torch.zeros_like(values))
        total = weighted.sum(1)
        return torch.where(self.ok, total, torch.zeros_like(total))

    def mean(self, loss: Callable[[dict[cp.Variable, Tensor]], Tensor]) -> tuple[Float[Tensor, ""], int]:
        """The mean of ``expected`` over the items that are ``ok``, and their number."""
        count = int(self.ok.sum())
        return self.expected(loss).sum() / max(count, 1), count

    def __repr__(self) -> str:
        count = Counter(str(s) for s in self.statuses)
        return f"Decision(batch={len(self.status)}, {', '.join(f'{k}: {v}' for k, v in count.items())})"


class DROLayer(nn.Module):
    """``theta -> argmin_x max_{P ∈ U(theta)} E_P[c(x, y)]``, differentiable.

    Continuous decisions are differentiated as functions of θ. Integer ones are differentiated through the energy-based
    surrogate: ``decision.expected(loss)`` averages the loss over integer points with probabilities ∝ exp(-f/λ).

    Args:
        problem: the decision problem.
        candidates: T, the number of best integer points asked of the oracle.
        samples: S, the number of points drawn by the proposal; "all" enumerates every integer point.
        temperature: λ; a number is absolute, as in the paper, ``dro.RelativeTemperature`` (the default) is relative to
            the spread of the candidates' objectives. May be changed between steps.
        gradient: "exact", "smoothed" (where the solution map is flat), or a ``Smoothed(level)``.
        oracle: who finds integer points, by name or as an object.
        engine: who solves cone programs, by name or as an object.
        proposal: how points are drawn; ``Stratified`` unless given.
        on_failure: "mask" or "raise".
        seed: of the draws.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        *,
        candidates: int = 3,
        samples: int | Literal["all"] = 4,
        temperature: Temperature | None = None,
        gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
        oracle: str | Oracle = "auto",
        engine: str | Backend | Engine = "auto",
        proposal: Proposal | None = None,
        on_failure: Literal["mask", "raise"] = "mask",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(problem, DecisionProblem):
            raise ModelError(f"DROLayer needs a dro.DecisionProblem, not {type(problem).__name__}.")
        if candidates < 1 or (samples != "all" and (isinstance(samples, str) or samples < 0)):
            raise ModelError(
                f"DROLayer needs candidates >= 1 and samples >= 0 or 'all', not {candidates} and {samples!r}."
            )
        self.problem, self.candidates, self.samples = problem, int(candidates), samples
        self._temperature = check_temperature(RelativeTemperature() if temperature is None else temperature)
        self.engine: Engine = make_engine(engine, gradient, on_failure)
        self.on_failure = self.engine.on_failure
        self._solver = replace(self.engine, on_failure="mask")
        self.oracle: Oracle | None = make_oracle(oracle, self._solver) if self.mixed_integer else None
        self.proposal: Proposal = proposal or Stratified()
        self._rng = np.random.default_rng(seed)

    @property
    def mixed_integer(self) -> bool:
        """Whether the problem has integer variables."""
        return self.problem.program.integers.numel() > 0

    @property
    def temperature(self) -> Temperature:
        """λ, absolute or relative."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: Temperature) -> None:
        self._temperature = check_temperature(temperature)

    @property
    def gradient(self) -> Exact | Smoothed:
        """How continuous decisions are differentiated; may be changed between steps to anneal the smoothing."""
        return self.engine.gradient

    @gradient.setter
    def gradient(self, gradient: Literal["exact", "smoothed"] | Exact | Smoothed) -> None:
        rule = make_engine(self.engine.backend, gradient).gradient
        self.engine, self._solver = replace(self.engine, gradient=rule), replace(self._solver, gradient=rule)

    def forward(self, theta: Theta, nominal: Nominal | None = None) -> Decision:
        """Decide for a batch of ambiguity sets.

        Args:
            theta: ``(batch, ambiguity.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
        """
        decision = self._mixed_integer(theta, nominal) if self.mixed_integer else self._continuous(theta, nominal)
        if self.on_failure == "raise" and not bool(decision.ok.all()):
            raise SolveError(decision.statuses)
        return decision

    def _continuous(self, theta: Theta, nominal: Nominal | None) -> Decision:
        """One candidate, the optimum."""
        solution = self.problem.solve(theta, nominal, engine=self._solver)
        dtype = self.problem.ambiguity.flat(theta).dtype
        return self._decision(
            solution.primal[:, None],
            solution.objective[:, None],
            solution.ok[:, None].to(dtype),
            solution.primal,
            solution.objective,
            solution.status,
            dtype,
        )

    def _mixed_integer(self, theta: Theta, nominal: Nominal | None) -> Decision:
        """The T best points, draws around them, and their energies."""
        problem, program = self.problem, self.problem.program
        flat, features = problem.features(theta, nominal)
        values = program.values(features)
        assert self.oracle is not None
        with torch.no_grad():
            found, draws = self._points(values)
            status = problem.diagnose_integer(found, flat, nominal, self.oracle)
        ok = status <= int(Status.INACCURATE)
        # The optimum comes along, so that ``best`` is differentiable whatever the proposal drew.
        points = torch.cat([found.points[:, :1], draws.points], 1)
        wanted = torch.cat([found.valid[:, :1], draws.valid], 1) & ok[:, None]
        primal, objective, solved = self._solve_points(values, points, wanted, found)
        valid = solved[:, 1:]
        temperature = absolute_temperature(self._temperature, objective, solved)
        probabilities = energy_probabilities(objective[:, 1:], draws.log_prob, valid, temperature)
        status = torch.where(ok & ~solved[:, 0], torch.full_like(status, int(Status.FAILED)), status)
        return self._decision(
            primal[:, 1:], objective[:, 1:], probabilities, primal[:, 0], objective[:, 0], status, flat.dtype, found
        )

    def _points(self, values: Values) -> tuple[Candidates, Draws]:
        """The oracle's best points and the slots of the surrogate; without training, the optimum alone."""
        program = self.problem.program
        assert self.oracle is not None
        detached = values.detach()
        if not self.training:
            found = self.oracle.top_values(program, detached, 1)
            return found, Draws(found.points, torch.zeros_like(found.objective), found.valid)
        everything = box_size(program)
        drawn = 0 if self.samples == "all" else int(self.samples)
        if self.samples == "all" or everything <= max(SMALL, self.candidates + drawn):
            found = Enumeration(self._solver).top_values(program, detached, int(everything))
            return found, Draws(found.points, torch.zeros_like(found.objective), found.valid)
        found = self.oracle.top_values(program, detached, self.candidates)
        lower, upper = program.integer_bounds
        temperature = absolute_temperature(self._temperature, found.objective, found.valid)
        summit = Summit(found.points, found.objective, found.valid, lower, upper, temperature)
        return found, self.proposal.sample(summit, drawn, self._rng)

    def _solve_points(
        self,
        values: Values,
        points: Float[Tensor, "batch slot integer"],
        wanted: Bool[Tensor, "batch slot"],
        found: Candidates,
    ) -> tuple[Float[Tensor, "batch slot column"], Float[Tensor, "batch slot"], Bool[Tensor, "batch slot"]]:
        """Solve every distinct point once and spread the solutions over the slots; slots without one hold zeros."""
        program = self.problem.program
        batch, slots, integers = points.shape
        item = torch.arange(batch, device=points.device)[:, None].expand(batch, slots)
        rows = torch.cat([item[wanted][:, None].double(), points[wanted]], 1)
        distinct, position = torch.unique(rows, dim=0, return_inverse=True)
        primal = values.q.new_zeros(batch, slots, program.columns)
        objective = values.q.new_zeros(batch, slots)
        solved = torch.zeros_like(wanted)
        if not distinct.shape[0]:
            return primal, objective, solved
        index, at = distinct[:, 0].long(), distinct[:, 1:]
        solution = self._solver.solve_values(program, program.within(values[index], at, at))
        fine = solution.ok
        # Fixed columns are integral to the solver's accuracy only, and do not move with theta.
        exact = torch.where(fine[:, None], solution.primal, torch.zeros_like(solution.primal))
        exact = exact.index_copy(1, program.integers.to(at.device), at.to(exact))
        value = torch.where(fine, solution.objective, torch.zeros_like(solution.objective))
        where = wanted.nonzero(as_tuple=True)
        primal = primal.index_put(where, exact[position])
        objective = objective.index_put(where, value[position])
        solved = solved.index_put(where, fine[position])
        return primal, objective, solved

    def _decision(
        self,
        candidates: Float[Tensor, "batch candidate column"],
        objective: Float[Tensor, "batch candidate"],
        probabilities: Float[Tensor, "batch candidate"],
        best: Float[Tensor, "batch column"],
        value: Float[Tensor, "batch"],
        status: Int[Tensor, "batch"],
        dtype: torch.dtype,
        oracle: Candidates | None = None,
    ) -> Decision:
        """Split by variable, mask, and return in the caller's type."""
        problem = self.problem
        ok = status <= int(Status.INACCURATE)
        placeholders = torch.where(ok[:, None, None], candidates, torch.zeros_like(candidates)).to(dtype)
        masked = best.masked_fill(~ok[:, None], torch.nan).to(dtype)
        probabilities = torch.where(ok[:, None], probabilities, torch.zeros_like(probabilities)).to(dtype)
        return Decision(
            problem.decision(masked),
            value.masked_fill(~ok, torch.nan).to(dtype),
            status,
            problem.decision(placeholders),
            objective.to(dtype),
            probabilities,
            effective_sample_size(probabilities),
            oracle,
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Temperature and the state of the draws, as plain numbers and text."""
        relative = isinstance(self._temperature, RelativeTemperature)
        number = self._temperature.factor if isinstance(self._temperature, RelativeTemperature) else self._temperature
        return {"relative": relative, "temperature": number, "rng": json.dumps(self._rng.bit_generator.state)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` told."""
        self._temperature = RelativeTemperature(state["temperature"]) if state["relative"] else state["temperature"]
        self._rng.bit_generator.state = json.loads(state["rng"])
