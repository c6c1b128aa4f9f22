"""The entrance: a CVXPY problem as a differentiable PyTorch module, solved in batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from conelayers.arguments import BatchedValues, batch_values
from conelayers.derivative.gradients import Exact, Smoothed
from conelayers.engine.engine import Engine
from conelayers.engine.registry import make_engine
from conelayers.engine.solution import Solution
from conelayers.engine.solvers.contract import Solver
from conelayers.errors import IntegerGradientWarning, ModelError, UnsolvedItemsWarning
from conelayers.integer.enumeration import all_points, box_size
from conelayers.integer.oracle import Candidates, Oracle, check_positive
from conelayers.integer.registry import Auto, make_oracle
from conelayers.numbering import Keyed
from conelayers.program.compile import compile_with_duals
from conelayers.program.duals import DualSlot
from conelayers.program.geometric import take_logarithms
from conelayers.program.matrices import program_from_matrices
from conelayers.program.program import ConeProgram, Cones, Slot, Values
from conelayers.result import ConeResult
from conelayers.settings import apply_solver_args, choose_engine
from conelayers.status import OnFailure, check_on_failure, describe_unsolved, usable
from conelayers.surrogate.energy import RelativeTemperature, Temperature, check_temperature
from conelayers.surrogate.proposal import Proposal, Stratified
from conelayers.surrogate.sampler import ENUMERATE_UP_TO, CandidateSampler
from conelayers.transforms import untraced

LARGEST_ENUMERATION = 65_536
"""Points of the box up to which ``samples="all"`` solves every one."""


class ConeLayer(nn.Module):
    """Solve a parametrised CVXPY problem for a batch, and differentiate its solutions.

    ::

        layer = ConeLayer(problem, parameters=[A, b], variables=[x])
        (x_star,) = layer(A_batch, b_batch)

    Each argument of a call is ``(*shape)`` or ``(batch, *shape)``; both may be mixed. Unsolved items return NaN with a
    zero gradient, and the layer warns once. Variables may be boolean or integer: then continuous variables are
    differentiated at fixed integers, and :meth:`solve` has the surrogate loss that trains through the integers.

    Args:
        problem: DCP and DPP, a minimisation or a maximisation; quadratic forms may have a PSD parameter.
        parameters: all parameters of the problem, in the order of a call's arguments.
        variables: what a call returns: variables, or ``constraint.dual_variables[k]``. All variables unless given.
        solver: as of cvxpylayers: "CLARABEL" or "MOREAU" names that engine; its other solvers leave the choice to the
            layer, and a warning says so.
        gp: whether the problem is a geometric program, which is solved in logarithms; its duals are theirs.
        verbose: accepted for cvxpylayers; a warning says that it has no meaning.
        canon_backend: accepted for cvxpylayers; a warning says that it has no meaning.
        solver_args: as of cvxpylayers: a smaller tolerance or more iterations are used; settings of its solvers that
            have no meaning here are named in a warning.
        gradient: "exact", "smoothed" (if the solution map is flat), or a ``Smoothed(level)``.
        engine: solves the cone programs; a name, a solver or an ``Engine``, which brings its own gradient.
        oracle: finds integer points; a name or an object.
        candidates: T, the number of best integer points asked of the oracle in training.
        samples: S, the number of further points drawn in training; "all" enumerates all points.
        temperature: λ of the surrogate; absolute, or relative to the spread of the candidates' objectives.
        proposal: draws the further points.
        enumerate_up_to: integer points up to which all are solved rather than sampled; 0 always samples.
        time_limit: seconds for the search of the integer points of a batch; items that it leaves open have a ``gap``.
        on_failure: "mask" (NaN, a zero gradient, a status) or "raise" (a ``SolveError``).
        seed: of the draws; None follows torch's global generator.
    """

    _logarithmic: tuple[bool, ...] | None
    _returned: tuple[Slot | DualSlot, ...]

    def __init__(
        self,
        problem: cp.Problem,
        parameters: Sequence[cp.Parameter],
        variables: Sequence[cp.Variable] | None = None,
        solver: str | None = None,
        gp: bool = False,
        verbose: bool = False,
        canon_backend: str | None = None,
        solver_args: Mapping[str, Any] | None = None,
        *,
        gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
        engine: str | Solver | Engine = "auto",
        oracle: str | Oracle = "auto",
        candidates: int = 3,
        samples: int | Literal["all"] = 4,
        temperature: Temperature | None = None,
        proposal: Proposal | None = None,
        enumerate_up_to: int = ENUMERATE_UP_TO,
        time_limit: float | None = None,
        on_failure: OnFailure = "mask",
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        if not isinstance(problem, cp.Problem):
            raise ModelError(f"`problem` must be a cp.Problem, got {type(problem).__name__}.")
        ordered, convex = _check_parameters(problem, parameters), problem
        engine = choose_engine(engine, solver, verbose, canon_backend)
        logarithms = take_logarithms(problem, ordered) if gp else None
        if logarithms is not None:
            convex = logarithms.problem
        program, duals = compile_with_duals(convex, ordered if logarithms is None else logarithms.parameters)
        slots = zip(program.parameters, ordered, strict=True)
        program = replace(
            program,
            parameters=tuple(replace(slot, name=p.name(), key=p.id, leaf=p) for slot, p in slots),
            variables=program.variables if logarithms is None else logarithms.rename(program.variables),
        )
        by_constraint = Keyed(zip(problem.constraints, duals, strict=True), program, "`problem.constraints`")
        sign = -1.0 if isinstance(convex.objective, cp.Maximize) else 1.0
        sampler = CandidateSampler(
            candidates,
            samples,
            RelativeTemperature() if temperature is None else temperature,
            Stratified() if proposal is None else proposal,
            enumerate_up_to,
            seed,
        )
        self._set(program, by_constraint, sign, gradient, engine, oracle, sampler, time_limit, on_failure, solver_args)
        self._logarithmic = None if logarithms is None else logarithms.logarithmic
        self._returned = _locate(problem.variables() if variables is None else variables, program, by_constraint)

    def _set(
        self,
        program: ConeProgram,
        duals: Mapping[Any, tuple[DualSlot, ...] | None],
        sign: float,
        gradient: Literal["exact", "smoothed"] | Exact | Smoothed,
        engine: str | Solver | Engine,
        oracle: str | Oracle,
        sampler: CandidateSampler,
        time_limit: float | None,
        on_failure: OnFailure,
        solver_args: Mapping[str, Any] | None,
    ) -> None:
        """Keep a compiled program and the settings of the layer."""
        if isinstance(engine, Engine) and gradient != "exact":
            raise ModelError("An Engine brings its own gradient. Set `gradient` there, not on the layer.")
        check_positive("time_limit", time_limit)
        self.program, self.sign, self._duals = program, sign, duals
        base = replace(make_engine(engine, gradient), about=program)
        self.engine: Engine = apply_solver_args(base, solver_args)
        self.oracle: Oracle = make_oracle(oracle, self.engine, time_limit)
        self.sampler, self.on_failure = sampler, check_on_failure(on_failure)
        self._warned: set[str] = set()
        self._logarithmic, self._returned = None, program.variables

    @classmethod
    def from_matrices(
        cls,
        P: Any,
        q: Any,
        A: Any,
        b: Any,
        cones: Mapping[str, Any] | Cones,
        parameters: Sequence[str] | None = None,
        *,
        gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
        engine: str | Solver | Engine = "auto",
        on_failure: OnFailure = "mask",
        solver_args: Mapping[str, Any] | None = None,
    ) -> ConeLayer:
        """Make a layer for  minimise ½xᵀPx + qᵀx  subject to  Ax + s = b, s ∈ K.

        The variable is called "x", and ``layer(...)`` returns it. The multipliers ``result.dual("z")`` are the z with
        Px + q + Aᵀz = 0 in the dual cone of K.

        Args:
            P: symmetric positive semidefinite ``(n, n)``, dense or sparse; None for a linear objective.
            q: ``(n,)``.
            A: ``(m, n)``, dense or sparse.
            b: ``(m,)``.
            cones: K, as ``{"zero": 2, "nonneg": 3, "soc": [4]}``, in the order of the rows.
            parameters: which of "P", "q", "A", "b" a call takes, in this order; all by default, but for a P of None.
                The others stay as they are here. The values of a sparse matrix are its stored entries by rows,
                ``(nonzeros,)`` or ``(batch, nonzeros)``.
            gradient: as of the class.
            engine: as of the class.
            on_failure: as of the class.
            solver_args: as of the class.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        program = program_from_matrices(P, q, A, b, cones, parameters)
        multipliers = DualSlot(np.arange(program.rows), np.ones(program.rows), (program.rows,))
        duals = Keyed({"z": (multipliers,)}, program, "the multipliers")
        layer._set(program, duals, 1.0, gradient, engine, "auto", CandidateSampler(), None, on_failure, solver_args)
        return layer

    @property
    def mixed_integer(self) -> bool:
        """Whether the problem has integer variables."""
        return self.program.integers.numel() > 0

    @property
    def temperature(self) -> Temperature:
        """λ of the surrogate; may be changed between steps."""
        return self.sampler.temperature

    @temperature.setter
    def temperature(self, temperature: Temperature) -> None:
        self.sampler.temperature = check_temperature(temperature)

    @property
    def gradient(self) -> Exact | Smoothed:
        """How continuous variables are differentiated; may be changed between steps."""
        return self.engine.gradient

    @gradient.setter
    def gradient(self, gradient: Literal["exact", "smoothed"] | Exact | Smoothed) -> None:
        rule = make_engine(self.engine.solver, gradient).gradient
        self.engine = replace(self.engine, gradient=rule)

    def explain(self) -> str:
        """Say which solver, gradient and oracle the layer uses, and why."""
        text = self.engine.explain(self.program)
        if not self.mixed_integer:
            return text
        oracle = self.oracle.choose(self.program) if isinstance(self.oracle, Auto) else self.oracle
        return f"{text} Integer points are found by {oracle.name}; in training, {self._describe_candidates()}."

    def _describe_candidates(self) -> str:
        """Say which candidates the surrogate has."""
        size, sampler = box_size(self.program), self.sampler
        if self._enumerates():
            return f"all {size:.0f} of them are solved"
        return f"the {sampler.candidates} best and {sampler.samples} draws of {size:.3g} are solved"

    def extra_repr(self) -> str:
        """Parameters, variables and size of the program."""
        shown = {slot.name: slot.shape for slot in self.program.parameters}
        return f"parameters={shown}, {self.program.rows} rows, {self.program.columns} columns"

    def forward(
        self, *arguments: Any, solver_args: Mapping[str, Any] | None = None, warm_start: bool = False, **keywords: Any
    ) -> tuple[Tensor, ...]:
        """Solve, and return the variables that the layer was made for.

        Args:
            arguments: values of the parameters in their order, or one dict by parameter or name.
            solver_args: settings of this call, as of the class.
            warm_start: accepted for cvxpylayers, and without effect.
            keywords: values of parameters by name, in place of ``arguments``.

        Returns:
            One tensor for each variable, ``(*shape)``, or ``(batch, *shape)`` if any argument has a batch dimension.
        """
        result = self._solve(arguments, keywords, solver_args, training=False)
        integer = any(slot in self._returned for slot in self._integer_slots())
        if integer and "integers" not in self._warned and result.value.requires_grad:
            self._warned.add("integers")
            warnings.warn(
                "Integer variables carry no gradient. Train on `layer.solve(...).expected(loss)`, the surrogate loss.",
                IntegerGradientWarning,
                stacklevel=2,
            )
        return tuple(result._read_slot(slot) for slot in self._returned)

    def solve(self, *arguments: Any, solver_args: Mapping[str, Any] | None = None, **keywords: Any) -> ConeResult:
        """Solve, and return values, duals, statuses and, in training, the candidates of the surrogate.

        Args:
            arguments: values of the parameters in their order, or one dict by parameter or name.
            solver_args: settings of this call, as of the class.
            keywords: values of parameters by name, in place of ``arguments``.
        """
        return self._solve(arguments, keywords, solver_args, training=self.training)

    @untraced
    def _solve(
        self,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        solver_args: Mapping[str, Any] | None,
        training: bool,
    ) -> ConeResult:
        """Solve a batch; only in training are candidates beside the optimum solved."""
        inputs = batch_values(self.program.parameters, arguments, keywords)
        if self._logarithmic is not None:
            inputs = inputs.take_logarithms(self.program.parameters, self._logarithmic)
        engine = apply_solver_args(self.engine, solver_args)
        values = self.program.values(inputs.features)
        make = self._solve_integer if self.mixed_integer else self._solve_continuous
        result = make(values, inputs, engine, training).checked(self.on_failure)
        if "unsolved" not in self._warned and not bool(result.ok.all()):
            self._warned.add("unsolved")
            warnings.warn(
                f"{describe_unsolved(result.statuses)} Unsolved items return NaN with a zero gradient. This layer does "
                "not warn again: see `layer.solve(...).status`, or use on_failure='raise'.",
                UnsolvedItemsWarning,
                stacklevel=3,
            )
        return result

    def _solve_continuous(self, values: Values, inputs: BatchedValues, engine: Engine, training: bool) -> ConeResult:
        """Solve; the optimum is the only candidate."""
        solution = engine.solve_values(self.program, values)
        primal, objective = solution.primal[:, None], solution.objective[:, None]
        return self._result(inputs, solution, primal, objective, solution.ok[:, None].double())

    def _solve_integer(self, values: Values, inputs: BatchedValues, engine: Engine, training: bool) -> ConeResult:
        """Find the best integer points, solve and weight them, and differentiate the best at its integers."""
        enumerates = training and self._enumerates()
        points = torch.as_tensor(all_points(self.program, LARGEST_ENUMERATION)) if enumerates else None
        weighted = self.sampler.weigh(self.program, values, points, self.oracle, engine, training)
        solved = weighted.solved
        integers = self.program.on(values.q.device).integers
        best = solved.best.detach()[:, integers].round()
        solution = engine.solve_values(self.program, self.program.within(values, best, best))
        # Of a search that ended early the optimum is not proven, however well its point is solved.
        status = torch.where(usable(solved.outcome), torch.maximum(solution.status, solved.outcome), solved.outcome)
        solution = solution.masked(status)
        # Fixed columns are integral to the solver's accuracy only, and do not move with the parameters.
        best = best.masked_fill(~solution.ok[:, None], torch.nan)
        solution = replace(solution, primal=solution.primal.index_copy(1, integers, best))
        probabilities = weighted.probabilities * solution.ok[:, None]
        return self._result(inputs, solution, solved.primal, solved.objective, probabilities, weighted.oracle)

    def _result(
        self,
        inputs: BatchedValues,
        solution: Solution,
        candidates: Float[Tensor, "batch candidate column"],
        objective: Float[Tensor, "batch candidate"],
        probabilities: Float[Tensor, "batch candidate"],
        oracle: Candidates | None = None,
    ) -> ConeResult:
        """Convert an answer to the caller's type, and to the user's objective."""
        geometric, used = self._logarithmic is not None, (probabilities > 0)[:, :, None]

        def convert(tensor: Tensor) -> Tensor:
            return inputs.connect(tensor).to(inputs.dtype)

        # If x depends on the parameters, so do the multipliers: a zero gradient would be wrong.
        dual = solution.dual if solution.primal.requires_grad else inputs.connect(solution.dual)

        def restore(objective: Tensor) -> Tensor:
            return convert((self.sign * objective).exp() if geometric else self.sign * objective)

        return ConeResult(
            status=solution.status,
            objective=restore(objective),
            probabilities=convert(probabilities),
            oracle=oracle,
            _solution=replace(
                solution,
                primal=convert(solution.primal),
                dual=dual.to(inputs.dtype),
                objective=restore(solution.objective),
            ),
            _candidates=convert(torch.where(used, candidates, torch.zeros_like(candidates))),
            _duals=self._duals,
            _batched=inputs.batched,
            _geometric=geometric,
        )

    def _enumerates(self) -> bool:
        """Whether all integer points are solved in training."""
        limit = self.sampler.enumeration_limit
        return limit is None or box_size(self.program) <= limit

    def _integer_slots(self) -> list[Slot]:
        """Return the slots of variables with integer columns."""
        columns = set(self.program.integers.tolist())
        slots = self.program.variables
        return [slot for slot in slots if columns & set(range(slot.offset, slot.offset + slot.size))]


def _check_parameters(problem: cp.Problem, parameters: Sequence[cp.Parameter]) -> list[cp.Parameter]:
    """Return the parameters as a list that holds exactly those of the problem."""
    if isinstance(parameters, cp.Expression) or any(not isinstance(p, cp.Parameter) for p in parameters):
        raise ModelError(f"`parameters` must be a list of cp.Parameters, got {parameters!r}.")
    ordered = list(parameters)
    own, supplied = {p.id: p for p in problem.parameters()}, {p.id: p for p in ordered}
    missing = [p.name() for number, p in own.items() if number not in supplied]
    foreign = [p.name() for number, p in supplied.items() if number not in own]
    if missing or foreign or len(supplied) < len(ordered):
        raise ModelError(
            "`parameters` must list every parameter of the problem once; "
            f"missing: {missing}, not in the problem: {foreign}."
        )
    return ordered


def _locate(
    variables: Sequence[cp.Variable],
    program: ConeProgram,
    duals: Mapping[cp.Constraint, tuple[DualSlot, ...] | None],
) -> tuple[Slot | DualSlot, ...]:
    """Return the slots of variables, and of dual variables of the problem's constraints."""
    if isinstance(variables, cp.Expression):
        raise ModelError(f"`variables` must be a list of cp.Variables. Use [{variables}].")
    places: dict[int, Slot | DualSlot] = {id(slot.leaf): slot for slot in program.variables}
    for constraint, slots in duals.items():
        places |= {id(dual): slot for dual, slot in zip(constraint.dual_variables, slots or (), strict=False)}
    unknown = [str(variable) for variable in variables if id(variable) not in places]
    if unknown:
        raise ModelError(f"{unknown} are neither variables of the problem nor dual variables of its constraints.")
    return tuple(places[id(variable)] for variable in variables)
