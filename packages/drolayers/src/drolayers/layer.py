"""The differentiable layer: from the parameters of an ambiguity set to the decision that is best against it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from conelayers import Engine, Exact, RelativeTemperature, Smoothed, make_engine
from conelayers.internals import (
    Draws,
    Keyed,
    Numbered,
    OnFailure,
    Proposal,
    ProposalInput,
    SolvedCandidates,
    Solver,
    Stratified,
    Temperature,
    Values,
    check_on_failure,
    check_temperature,
    compute_temperature,
    describe_unsolved,
    effective_sample_size,
    energy_probabilities,
    key_text,
    keyed_as,
    solve_error,
    untraced,
    usable,
    warns_unsolved,
    whole,
)
from conelayers.oracles import Candidates, Oracle, make_oracle
from drolayers.ambiguity.nominal import Pair
from drolayers.cost.adaptive import Adaptive
from drolayers.errors import DifferentiationError, ModelError, UnsolvedItemsWarning
from drolayers.evaluations import Chosen
from drolayers.known import Known
from drolayers.notebook import code_block, table
from drolayers.problem import DecisionProblem, Theta
from drolayers.statuses import Statuses

CALLER = 5
"""Frames from ``forward`` to the code that calls a layer: two of ours and two of ``torch.nn.Module``."""

SMALL = 32
"""Integer points up to which all are solved rather than sampled."""


@dataclass(frozen=True, eq=False, repr=False)
class Decision(Numbered, Statuses):
    """What the layer decided for a batch.

    Attributes:
        best: the optimal decision by CVXPY variable, ``(batch, *shape)``; NaN where not ``ok``.
        value: the worst-case expected cost at the optimum; NaN where not ``ok``.
        status: a ``dro.Status`` code an item.
        candidates: the points that the surrogate is made of, ``(batch, candidate, *shape)``, with finite placeholders
            where a slot holds none; those of an item that is not ``ok`` repeat the decision of one that is.
        objective: worst-case expected cost at each candidate; NaN where not ``ok``.
        probabilities: of the candidates; zero where a slot holds none, and where not ``ok``.
        temperature: the λ of ``probabilities``, one per item, in float64 and without a graph; 1 without integer
            variables, where no probability depends on it. A layer with ``temperature=decision.temperature`` and the
            same draws returns the same values and gradients.
        oracle: how the integer points were found; None where there are none, or where all were solved.
        known: the known data that it was taken with, by parameter, ``(batch, *shape)``.
    """

    best: dict[cp.Variable, Tensor]
    value: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]
    candidates: dict[cp.Variable, Tensor]
    objective: Float[Tensor, "batch candidate"]
    probabilities: Float[Tensor, "batch candidate"]
    temperature: Float[Tensor, "batch"]
    oracle: Candidates | None = None
    known: dict[cp.Parameter, Tensor] = field(default_factory=dict)
    _derivative: Callable[[], Int[Tensor, "batch candidate"]] | None = None
    _value_derivative: Callable[[], Int[Tensor, "batch"]] | None = None
    _problem: DecisionProblem | None = None

    @property
    def rule(self) -> dict[Adaptive, Callable[..., Tensor]]:
        """The adaptive decisions as functions of what is seen: ``rule[v](y)`` is ``(batch, *shape)``, differentiable.

        They take outcomes ``(batch, *shape)``, or flat; known data are those of the decision, unless others are given
        as ``known``. Where atoms have rules of their own, the cheapest of those that obey all constraints with
        ``dro.always`` is evaluated.
        """
        problem = self._problem
        if problem is None:
            return {}

        def of(v: Adaptive) -> Callable[..., Tensor]:
            return lambda y, known=None: problem.adapted(self.best, y, self.known if known is None else known)[v]

        return Keyed({v: of(v) for v in problem.adaptive}, problem, "problem.adaptive")

    def _repr_html_(self) -> str:
        rows = [(key_text(v), tuple(value.shape)) for v, value in self.best.items()]
        return code_block(repr(self)) + table(("variable", "shape"), rows)

    @property
    def effective_sample_size(self) -> Float[Tensor, "batch"]:
        """1/Σp²; a small one tells of a poor sample, a large one proves nothing. NaN where not ``ok``."""
        return effective_sample_size(self.probabilities).masked_fill(~self.ok, torch.nan)

    @property
    def derivative(self) -> Int[Tensor, "batch candidate"]:
        """Which derivative each candidate got, as ``dro.Derivative`` codes; UNASKED before the backward pass."""
        if self._derivative is None:
            return torch.zeros(self.probabilities.shape, dtype=torch.int64, device=self.probabilities.device)
        return self._derivative()

    @property
    def value_derivative(self) -> Int[Tensor, "batch"]:
        """Classify the gradient of ``value``, as ``dro.Derivative`` codes; UNASKED before the backward pass.

        At a KINK the gradient stays, as one of the subgradients; where it is UNVERIFIED, it could not be checked.
        """
        if self._value_derivative is None:
            return torch.zeros(len(self.status), dtype=torch.int64, device=self.status.device)
        return self._value_derivative()

    def __getstate__(self) -> dict[str, Any]:
        # Solvers stay where they are; what they say by now goes along.
        codes = {"_derivative": self.derivative, "_value_derivative": self.value_derivative}
        return {**super().__getstate__(), **{name: partial(torch.clone, code) for name, code in codes.items()}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Decision:
        numbers = [self.value, self.objective, self.probabilities]
        numbers += [v for part in (self.best, self.candidates, self.known) for v in part.values()]
        if any(v.grad_fn is not None for v in numbers):
            raise DifferentiationError(
                "A decision with a graph has no deep copy: take it under torch.no_grad(), or copy.copy(decision), "
                "which shares its tensors."
            )
        made = object.__new__(type(self))
        made.__setstate__(deepcopy(self.__getstate__(), memo))
        return made

    @classmethod
    def cat(cls, parts: Sequence[Decision]) -> Decision:
        """The decisions of several batches as those of one; ``oracle`` is None unless every part has one."""

        def joined(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            if isinstance(values[0], Tensor):
                return torch.cat(values)
            found = {variable: torch.cat([value[variable] for value in values]) for variable in values[0]}
            return keyed_as(values[0], found)

        found = [part.oracle for part in parts if part.oracle is not None]
        # What has no graph is never asked for a derivative, and stays plain data.
        graph = any(value.requires_grad for part in parts for value in part.candidates.values())
        return cls(
            **{f.name: joined(f.name) for f in fields(cls) if not (f.name.startswith("_") or f.name == "oracle")},
            _problem=parts[0]._problem,
            oracle=Candidates.cat(found) if len(found) == len(parts) else None,
            _derivative=(lambda: torch.cat([part.derivative for part in parts])) if graph else None,
            _value_derivative=(lambda: torch.cat([part.value_derivative for part in parts])) if graph else None,
        )

    def expected(self, loss: Callable[[Chosen], Tensor]) -> Float[Tensor, "batch"]:
        """Compute the surrogate loss Σ_k p_k l(x_k), differentiable in θ; NaN, with a zero gradient, where not ``ok``.

        Args:
            loss: called with ``(batch, candidate, *shape)`` tensors; returns ``(batch, candidate)``. It must be finite
                and differentiable at the placeholders of ``candidates`` if its gradient reaches further parameters.
        """
        values = loss(self.candidates)
        shape = tuple(self.probabilities.shape)
        if not isinstance(values, Tensor) or tuple(values.shape) != shape:
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ModelError(f"The loss must return a tensor of shape {shape} (batch, candidate), not {found}.")
        # Masked before the product: zero times an infinite loss would be NaN, and so would its derivative.
        used = torch.where(self.probabilities > 0, values, torch.zeros_like(values))
        return (self.probabilities * used).sum(1).masked_fill(~self.ok, torch.nan)

    def mean(self, loss: Callable[[Chosen], Tensor]) -> tuple[Float[Tensor, ""], int]:
        """Average ``expected`` over the items that are ``ok``.

        Args:
            loss: as for :meth:`expected`.

        Returns:
            The mean and the number of items that it is over.

        Raises:
            SolveError: no item is ``ok``.
        """
        count = int(self.ok.sum())
        if not count:
            raise solve_error(self.statuses, "There is no mean loss: skip a batch without a solved item.")
        return self.expected(loss).masked_fill(~self.ok, 0.0).sum() / count, count


class DROLayer(nn.Module):
    """``theta -> argmin_x max_{P ∈ U(theta)} E_P[c(x, y)]``, differentiable.

    Continuous decisions are differentiated as functions of θ. Integer ones are differentiated through the energy-based
    surrogate: ``decision.expected(loss)`` averages the loss over integer points with probabilities ∝ exp(-f/λ).

    Args:
        problem: the decision problem.
        candidates: T, the number of best integer points asked of the oracle.
        samples: S, the number of points drawn by the proposal; 0 takes the T best alone, "all" enumerates every integer
            point.
        temperature: λ; a number is absolute, as in the paper, ``dro.RelativeTemperature`` (the default) is a multiple
            of the mean gap of the objectives, a tensor ``(batch,)`` is absolute for each item. No gradient flows
            through λ. May be changed between steps.
        gradient: "exact", "smoothed" (where the solution map is flat), or a ``Smoothed(level)``.
        oracle: who finds integer points, by name or as an object.
        engine: who solves cone programs, by name or as an object; an ``Engine`` brings its own ``gradient``.
            ``layer.engine.explain()`` says what was chosen, and why.
        proposal: how points are drawn; ``Stratified`` unless given.
        enumerate_up_to: integer points up to which all are solved rather than sampled; 0 always samples.
        on_failure: "mask" returns NaN with a zero gradient and a status for unsolved items, and warns once per layer
            (``dro.UnsolvedItemsWarning``); "raise" raises a ``SolveError``.
        seed: of the draws; None follows torch's global generator, which ``torch.utils.checkpoint`` restores.
    """

    _warned_unsolved = False

    def __init__(
        self,
        problem: DecisionProblem,
        *,
        candidates: int = 3,
        samples: int | Literal["all"] = 4,
        temperature: Temperature | None = None,
        gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
        oracle: str | Oracle = "auto",
        engine: str | Solver | Engine = "auto",
        proposal: Proposal | None = None,
        enumerate_up_to: int = SMALL,
        on_failure: OnFailure = "mask",
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        if not isinstance(problem, DecisionProblem):
            raise ModelError(f"DROLayer needs a dro.DecisionProblem, not {type(problem).__name__}.")
        drawn, integral = 0 if samples == "all" else samples, int | np.integer
        if not (isinstance(candidates, integral) and isinstance(drawn, integral) and candidates >= 1 and drawn >= 0):
            raise ModelError(
                f"DROLayer needs whole numbers candidates >= 1 and samples >= 0 or 'all', "
                f"not {candidates!r} and {samples!r}."
            )
        if proposal is not None and not (hasattr(proposal, "sample") and hasattr(proposal, "log_intensity")):
            raise ModelError(f"A proposal needs the methods sample and log_intensity, but {proposal!r} lacks them.")
        if isinstance(engine, Engine) and gradient != "exact":
            raise ModelError("An Engine brings its own gradient: set it there, not on the layer.")
        self.problem, self.candidates, self.samples = problem, int(candidates), samples
        mixed_integer = self.mixed_integer
        self._temperature = check_temperature(RelativeTemperature() if temperature is None else temperature)
        self.engine: Engine = replace(make_engine(engine, gradient), about=problem.program)
        self.on_failure = check_on_failure(on_failure)
        # Made in any case: a name that is none is one also where there are no integers.
        made = make_oracle(oracle, self.engine)
        self.oracle: Oracle | None = made if mixed_integer else None
        self.proposal: Proposal = proposal or Stratified()
        self.enumerate_up_to = whole("enumerate_up_to", enumerate_up_to, 0)
        self._rng = None if seed is None else np.random.default_rng(seed)

    def extra_repr(self) -> str:
        """Return what ``repr`` prints in brackets: problem, gradient, and the surrogate if there are integers."""
        parts = [repr(self.problem), f"gradient={self.gradient!r}"]
        if self.oracle is not None:
            parts += [f"oracle={self.oracle.name!r}", f"candidates={self.candidates}", f"samples={self.samples!r}"]
            parts += [f"temperature={self.temperature!r}"]
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        return code_block(repr(self))

    def twin(self) -> DROLayer:
        """A layer with the same settings, whose temperature, gradient and draws are its own."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__getstate__())
        made._rng = deepcopy(self._rng)
        return made

    def __getstate__(self) -> dict[str, Any]:
        # A copy warns of its own unsolved items.
        return {name: value for name, value in self.__dict__.items() if name != "_warned_unsolved"}

    @property
    def mixed_integer(self) -> bool:
        """Whether the problem has integer variables."""
        return self.problem.program.integers.numel() > 0

    @property
    def temperature(self) -> Temperature:
        """λ as set: relative, absolute, or absolute for each item; ``decision.temperature`` is the λ of a call."""
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
        rule = make_engine(self.engine.solver, gradient).gradient
        self.engine = replace(self.engine, gradient=rule)

    @untraced
    def forward(self, theta: Theta, nominal: Pair | None = None, known: Known | None = None) -> Decision:
        """Decide for a batch of ambiguity sets.

        Args:
            theta: ``(batch, problem.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
            known: values of ``problem.known`` by name or parameter, ``(batch, *shape)`` or one for all; differentiable.
        """
        decide = self._mixed_integer if self.mixed_integer else self._continuous
        advice = partial(self.problem.advice, theta, nominal, known)
        decision = decide(theta, nominal, known).checked(self.on_failure, advice)
        if not self._warned_unsolved and warns_unsolved() and not bool(decision.ok.all()):
            self._warned_unsolved = True
            warnings.warn(
                f"{describe_unsolved(decision.statuses)} Unsolved items return NaN with a zero gradient. This layer "
                "does not warn again: see decision.status, or use on_failure='raise'.",
                UnsolvedItemsWarning,
                stacklevel=CALLER,
            )
        told = self.problem.known_data.given(known, len(decision.status))
        return replace(decision, known=Keyed(told, self.problem, "problem.known_data.parameters"))

    def _continuous(self, theta: Theta, nominal: Pair | None, known: Known | None) -> Decision:
        """One candidate, the optimum."""
        solution = self.problem.solve(theta, nominal, engine=self.engine, known=known)
        dtype = self.problem.flat(theta).dtype
        return self._decision(
            solution.primal[:, None],
            solution.objective[:, None],
            solution.ok[:, None].to(dtype),
            torch.ones_like(solution.objective, requires_grad=False),
            solution.primal,
            solution.objective,
            solution.status,
            dtype,
            derivative=lambda: solution.derivative[:, None],
            value_derivative=lambda: solution.value_derivative,
        )

    def _mixed_integer(self, theta: Theta, nominal: Pair | None, known: Known | None) -> Decision:
        """Solve every candidate and weight it by its energy: Σ_s softmax(-f/λ - log q)_s l(x_s) is the surrogate."""
        problem, program = self.problem, self.problem.program
        points = self._every_point() if self.training else None
        given = problem.given(theta, nominal, known)
        flat, values = given.theta, program.values(given.features)
        if points is not None:
            oracle = None
            solved = SolvedCandidates.enumerate_points(program, values, points, self.engine)
            log_intensity = torch.zeros_like(solved.objective)
        else:
            oracle, draws = self._sample(values.detach())
            solved = SolvedCandidates.solve_draws(program, values, oracle, draws, self.engine)
            log_intensity = draws.log_intensity
        status = problem.diagnosis.of_integer(solved.outcome, solved.best, solved.value, given, self.oracle)
        terms = solved.measure_terms(values)
        temperature = self._compute_temperature(solved.objective, solved.value, log_intensity, solved.valid, terms)
        # Where nothing was solved the loss still depends on θ, with a derivative of zero.
        objective = solved.objective + (0.0 * flat.double()).sum(1, keepdim=True)
        probabilities = energy_probabilities(objective, log_intensity, solved.valid, temperature)
        return self._decision(
            solved.primal,
            solved.objective,
            probabilities,
            temperature,
            solved.best,
            solved.value,
            status,
            flat.dtype,
            oracle,
            solved.derivative,
            solved.value_derivative,
        )

    def _compute_temperature(
        self,
        objective: Float[Tensor, "batch candidate"],
        optimum: Float[Tensor, "batch"],
        log_intensity: Float[Tensor, "batch candidate"] | None,
        valid: Bool[Tensor, "batch candidate"],
        term_size: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch"]:
        """Compute the λ of this call; ``log_intensity=None`` weights all valid candidates alike."""
        if log_intensity is None:
            log_intensity = torch.zeros_like(objective)
        return compute_temperature(self._temperature, objective, optimum, log_intensity, valid, term_size)

    def _every_point(self) -> Float[Tensor, "point integer"] | None:
        """All feasible integer points, where they are few or were asked for, and there are any."""
        if self.samples != "all" and not self.enumerate_up_to:
            return None
        limit = None if self.samples == "all" else max(self.enumerate_up_to, self.candidates + int(self.samples))
        points = self.problem.integer_points(limit)
        return points if points is not None and len(points) else None

    @torch.no_grad()
    def _sample(self, values: Values) -> tuple[Candidates, Draws]:
        """Find the T best points and draw S others; in evaluation mode, find the optimum alone."""
        program = self.problem.program
        assert self.oracle is not None
        best = self.oracle.best(program, values, self.candidates if self.training else 1)
        count = 0 if self.samples == "all" else int(self.samples)
        if not self.training or not count:
            return best, Draws(best.points, torch.zeros_like(best.objective), best.valid)
        lower, upper = program.integer_bounds
        temperature = self._compute_temperature(best.objective, best.objective[:, 0], None, best.valid)
        inputs = ProposalInput(best.points, best.objective, best.valid, lower, upper, temperature)
        rng = self._rng or np.random.default_rng(int(torch.randint(2**62, ())))
        return best, self.proposal.sample(inputs, count, rng)

    def _decision(
        self,
        candidates: Float[Tensor, "batch candidate column"],
        objective: Float[Tensor, "batch candidate"],
        probabilities: Float[Tensor, "batch candidate"],
        temperature: Float[Tensor, "batch"],
        best: Float[Tensor, "batch column"],
        value: Float[Tensor, "batch"],
        status: Int[Tensor, "batch"],
        dtype: torch.dtype,
        oracle: Candidates | None = None,
        derivative: Callable[[], Tensor] | None = None,
        value_derivative: Callable[[], Tensor] | None = None,
    ) -> Decision:
        """Split by variable, mask, and return in the caller's type."""
        problem, ok = self.problem, usable(status)
        masked = best.masked_fill(~ok[:, None], torch.nan).to(dtype)
        probabilities = torch.where(ok[:, None], probabilities, torch.zeros_like(probabilities)).to(dtype)
        # A loss may have no derivative at a placeholder, so none is passed on to θ from there. Parameters within the
        # loss receive its derivative, times zero: so a placeholder is a point at which losses usually have one.
        used = (probabilities > 0)[:, :, None]
        solved = best.detach()[ok][:1].repeat(len(ok), 1) if bool(ok.any()) else torch.zeros_like(best)
        placeholder = torch.where(ok[:, None, None], candidates.detach(), solved[:, None])
        finite = torch.where(used, candidates, placeholder).to(dtype)
        return Decision(
            problem.decision(masked),
            value.masked_fill(~ok, torch.nan).to(dtype),
            status,
            problem.decision(finite),
            objective.masked_fill(~ok[:, None], torch.nan).to(dtype),
            probabilities,
            temperature,
            oracle,
            _derivative=derivative,
            _value_derivative=value_derivative,
            _problem=problem if problem.adaptive else None,
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Return temperature and the state of the draws, as plain numbers, tensors and text."""
        relative = isinstance(self._temperature, RelativeTemperature)
        value = self._temperature.factor if isinstance(self._temperature, RelativeTemperature) else self._temperature
        rng = None if self._rng is None else json.dumps(self._rng.bit_generator.state)
        return {"relative": relative, "temperature": value if isinstance(value, Tensor) else float(value), "rng": rng}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_extra_state`."""
        self._temperature = RelativeTemperature(state["temperature"]) if state["relative"] else state["temperature"]
        self._rng = None if state["rng"] is None else np.random.default_rng()
        if self._rng is not None:
            self._rng.bit_generator.state = json.loads(state["rng"])
