"""A decision problem under an ambiguity set, compiled once: solve it, evaluate a decision, ask for the worst case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet, Rows
from drolayers.ambiguity.moment import columns
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.conic import ConeProgram, Engine, Solution, default_engine
from drolayers.conic.compile import check_constants, compile_program
from drolayers.conic.elastic import endless
from drolayers.cost.parse import PiecewiseCost, parse
from drolayers.cost.second_stage import resolved
from drolayers.cost.torch_loss import TorchCost
from drolayers.decisions import Decisions
from drolayers.errors import ModelError, ShapeError
from drolayers.integer import Oracle, make_oracle
from drolayers.reformulation.decision_rule import decision_rules
from drolayers.reformulation.separability import block_rows
from drolayers.reformulation.worst_case import Probe, supremum, worst_case
from drolayers.reformulation.worst_distribution import WorstCaseDistribution, worst_distribution
from drolayers.status import Status, usable
from drolayers.statuses import OnFailure
from drolayers.support import Layout

Chosen = Mapping[cp.Variable, Tensor]
"""What was chosen for every decision variable, ``(batch, *shape)`` or ``(batch, candidate, *shape)``."""

Theta = Tensor | Mapping[str, Tensor]

EMPTY = 1e-7
"""Relative excess beyond which a set is empty; within it, it has no Slater point."""

LARGE = 1e3
"""Size of a price relative to the objective from which a multiplier is suspect."""


class DecisionProblem:
    """``min_x max_{P ∈ U(θ)} E_P[c(x, y)]`` subject to constraints on x, compiled once for every θ.

    Args:
        cost: c(x, y), ordinary CVXPY in the decision variables and in ``ambiguity.y``, bare or in ``cp.Minimize``; or
            ``cp.Maximize`` of a reward, which is the cost -reward: whatever is reported is a cost.
        constraints: CVXPY constraints on the decision variables alone.
        ambiguity: the set U(θ).

    Attributes:
        program: the compiled cone program; integer variables are relaxed in it and can be fixed.
        variables: the decision variables (those that ``dro.cvar`` adds included).
        conservative: whether a decision rule makes the worst case an upper bound.
        maximises: whether the cost is the negative of a reward.
    """

    def __init__(
        self,
        cost: cp.Expression | cp.Minimize | cp.Maximize,
        constraints: Sequence[cp.Constraint],
        ambiguity: AmbiguitySet,
    ) -> None:
        if not isinstance(ambiguity, AmbiguitySet):
            raise ModelError(f"ambiguity must be a dro.MomentSet or dro.Wasserstein, not {type(ambiguity).__name__}.")
        if not isinstance(constraints, Iterable) or not all(isinstance(c, cp.Constraint) for c in constraints):
            raise ModelError(f"constraints must be a list of CVXPY constraints, not {constraints!r}.")
        self.maximises = isinstance(cost, cp.Maximize)
        if isinstance(cost, cp.Minimize | cp.Maximize):
            cost = -cost.expr if self.maximises else cost.expr
        if isinstance(cost, cp.Expression):
            cost = resolved(cost, constraints)
        self.cost, self.constraints, self.ambiguity = cost, list(constraints), ambiguity
        for constraint in self.constraints:
            if constraint.parameters():
                names = [p.name() for p in constraint.parameters()]
                raise ModelError(
                    f"The constraint {constraint} uses {names}: constraints may hold decision variables only; put what "
                    "must hold for uncertain outcomes into the cost, for example as dro.recourse."
                )
        if isinstance(cost, cp.Expression):
            check_constants(cost, self.constraints)
        self.parsed: PiecewiseCost = parse(cost, ambiguity.y)
        auxiliary = {v.id for v in self.parsed.auxiliary}
        found = {v.id: v for c in (cost, *self.constraints) for v in c.variables() if v.id not in auxiliary}
        self.variables: tuple[cp.Variable, ...] = tuple(found.values())
        self.integer_variables = tuple(
            v for v in self.variables if v.attributes.get("boolean") or v.attributes.get("integer")
        )
        objective, constraints_all, _ = self._formulate(probe=False)
        problem = cp.Problem(cp.Minimize(objective), [*self.constraints, *constraints_all])
        self.program: ConeProgram = compile_program(problem, ambiguity.features)
        self._loss = TorchCost(cost)
        self._engine = default_engine()
        self._decisions = Decisions(self.constraints, self.variables, self.program, self._engine)
        # Distributions are read off derivatives of f, so an evaluation is worth a few more iterations.
        self._careful = self._engine.with_tolerance(1e-12)

    @property
    def conservative(self) -> bool:
        """Whether the worst case is an upper bound (decision rules) rather than exact."""
        return self.parsed.conservative

    def __deepcopy__(self, memo: dict[int, object]) -> DecisionProblem:
        # Compiled once and never changed; decisions are looked up by the very CVXPY variables of the model.
        return self

    def __repr__(self) -> str:
        size = f"{self.program.rows} rows, {self.program.columns} columns, {self.program.nonzeros} non-zeros"
        told = ", costs are negative rewards" if self.maximises else ""
        told += ", the worst case is bounded by a decision rule" if self.conservative else ""
        return f"DecisionProblem({len(self.variables)} variables, {self.ambiguity}; {size}{told})"

    def _formulate(self, probe: bool) -> tuple[cp.Expression, list[cp.Constraint], Probe | None]:
        """c₀(x) + sup E[…] and what comes with it; the constraints of the decision are not included."""
        parsed, ambiguity = self.parsed, self.ambiguity
        stack, support = parsed.stack, ambiguity.y.support
        blocks = block_rows(parsed, [*ambiguity.links(), *support.links(ambiguity.y.dim)])
        rows = blocks.rows(parsed, stack)
        constraints = list(parsed.constraints)
        fixed = parsed.deterministic + blocks.remainder(parsed, stack)
        lifts = None
        if parsed.recourses:
            rule = decision_rules(parsed.recourses, ambiguity, stack)
            rows, fixed, lifts = rule.added_to(rows), fixed + rule.offset, rule.lifts or None
            constraints += rule.constraints
        if len(parsed.forbidden):
            never = _forbidden_rows(parsed, stack)
            bound, more = supremum(never, support, [])
            constraints += [*more, never.offset + bound <= 0]
        worst = worst_case(rows, ambiguity, lifts, probe)
        return fixed + worst.value, [*constraints, *worst.constraints], worst.probe

    def given(self, theta: Theta, nominal: Pair | None) -> tuple[Tensor, Nominal | None, Tensor]:
        """What a user gave, checked: θ, flat; the nominal distribution, where the set needs one; their features."""
        flat = self.ambiguity.flat(theta)
        around = self.ambiguity.around(nominal, flat) if self.ambiguity.needs_nominal else None
        return flat, around, self.ambiguity.feature_values(flat, around)

    def features(self, theta: Theta, nominal: Pair | None = None) -> Float[Tensor, "batch feature"]:
        """What the compiled program is affine in."""
        return self.given(theta, nominal)[2]

    def solve(
        self,
        theta: Theta,
        nominal: Pair | None = None,
        fixed: Tensor | None = None,
        engine: Engine | None = None,
        on_failure: OnFailure = "mask",
    ) -> Solution:
        """Solve the continuous problem for a batch of sets, with integer variables relaxed or fixed.

        Args:
            theta: ``(batch, ambiguity.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
            fixed: values for the integer columns of ``program``.
            engine: how to solve; the default engine with exact gradients unless given.
            on_failure: "mask" (NaN, no gradient, a status) or "raise" (a ``SolveError``).
        """
        flat, around, features = self.given(theta, nominal)
        solution = (engine or self._engine).solve(self.program, features, fixed)
        return solution.masked(self.diagnose(solution, flat, around, fixed)).checked(on_failure)

    def diagnose(
        self, solution: Solution, theta: Tensor, nominal: Nominal | None, fixed: Tensor | None = None
    ) -> Tensor:
        """Tell failures apart: empty set, no decision, infinite worst case, no minimum; one status an item."""
        status = self._empty_sets(solution.status, solution.primal, solution.objective, theta, nominal)
        status = self._infeasible(status, theta, nominal, fixed)
        items = (status == int(Status.INFEASIBLE)).nonzero()[:, 0]
        if items.numel():
            # Where there is a decision it is the worst case that is infinite.
            exist = self._decisions.exist(len(items), None if fixed is None else fixed[items])
            status[items[exist.to(items.device)]] = int(Status.UNBOUNDED)
        return status

    def diagnose_integer(
        self,
        status: Int[Tensor, "batch"],
        primal: Float[Tensor, "batch column"],
        objective: Float[Tensor, "batch"],
        theta: Tensor,
        nominal: Nominal | None,
        oracle: Oracle | None,
    ) -> Int[Tensor, "batch"]:
        """The same for the best integer points of a batch."""
        status = self._empty_sets(status, primal, objective, theta, nominal)
        infeasible = status == int(Status.INFEASIBLE)
        if bool(infeasible.any()) and self._decisions.integers_exist(oracle or make_oracle()):
            status[infeasible] = int(Status.UNBOUNDED)
        return status

    def integer_points(self, limit: int | None) -> Float[Tensor, "point integer"] | None:
        """All integer points that the constraints admit, in the order of ``program.integers``.

        Args:
            limit: None asks for all of them; a number for None in return where there are more.
        """
        return self._decisions.integer_points(limit)

    def _empty_sets(
        self, status: Tensor, primal: Tensor, objective: Tensor, theta: Tensor, nominal: Nominal | None
    ) -> Int[Tensor, "batch"]:
        """Look at every item that is not cleanly optimal, or whose set is suspect."""
        status, ok = status.clone(), usable(status)
        look = (status != int(Status.OPTIMAL)) | self.ambiguity.suspect(theta.detach())
        price = primal.detach().abs().amax(1)
        look |= (price > LARGE * (1.0 + objective.detach().abs())) & ok
        if not bool(look.any()):
            return status
        items = look.nonzero()[:, 0]
        mine = None if nominal is None else nominal.at(items)
        excess = self.ambiguity.emptiness(theta[items], mine).to(status.device)
        empty, edge = excess > EMPTY, excess.abs() <= EMPTY
        status[items[empty]] = int(Status.EMPTY_SET)
        fine = status[items] == int(Status.OPTIMAL)
        status[items[edge & fine]] = int(Status.INACCURATE)
        return status

    def _infeasible(self, status: Tensor, theta: Tensor, nominal: Nominal | None, fixed: Tensor | None) -> Tensor:
        """A direction along which the cost falls proves nothing where there is no point: look with a zero objective."""
        doubtful = (status == int(Status.NO_MINIMUM)) | (status == int(Status.FAILED))
        items = doubtful.nonzero()[:, 0]
        if not items.numel():
            return status
        mine = None if nominal is None else nominal.at(items)
        with torch.no_grad():
            values = self.program.values(self.ambiguity.feature_values(theta[items], mine))
            if fixed is not None:
                values = self.program.within(values, fixed[items], fixed[items])
            nothing = replace(values, P=torch.zeros_like(values.P), q=torch.zeros_like(values.q))
            found = self._engine.solve_values(self.program, nothing).status
        status[items[(found == int(Status.INFEASIBLE)).to(items.device)]] = int(Status.INFEASIBLE)
        # What is left may have no feasible point without a ray that proves it.
        left = status[items] == int(Status.FAILED)
        if bool(left.any()):
            rows = left.nonzero()[:, 0].to(values.q.device)
            none = endless(self.program, values[rows], self._engine.solver)
            status[items[left][none.to(items.device)]] = int(Status.INFEASIBLE)
        return status

    def decision(self, primal: Tensor) -> dict[cp.Variable, Tensor]:
        """The decision variables' parts of primal points ``(..., column)``."""
        return {v: self.program.variable(primal, v) for v in self.variables}

    def loss(self, x: Chosen, y: Tensor) -> Tensor:
        """The cost c(x, y) itself, differentiable.

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``.
            y: outcomes ``(batch, *shape)``, or flat.

        Returns:
            ``(batch,)`` or ``(batch, candidate)``.
        """
        values = self._checked(x)
        uncertain = self.ambiguity.y
        y = uncertain.rows(torch.as_tensor(y))
        if y.dim() != 2 or y.shape[1] != uncertain.dim:
            shapes = f"{f'(batch, *{uncertain.shape}) or ' if uncertain.ndim > 1 else ''}(batch, {uncertain.dim})"
            raise ShapeError(f"Outcomes must have shape {shapes}, not {tuple(y.shape)}.")
        batches = {v.shape[0] for v in (*values.values(), y)} - {1}
        if len(batches) > 1:
            raise ShapeError(f"Decisions and outcomes must have one batch size, not {sorted(batches)}.")
        # Whole numbers are decisions too, but the cost is computed in floating point.
        given = [v for v in (*values.values(), y) if v.is_floating_point()]
        reference = given[0] if given else y.to(torch.get_default_dtype())
        candidates = any(v.dim() - len(k.shape) == 2 for k, v in values.items())

        def aligned(value: Tensor, ndim: int) -> Tensor:
            value = value.to(reference)
            return value.unsqueeze(1) if candidates and value.dim() == ndim + 1 else value

        parts = {k: aligned(v, len(k.shape)) for k, v in values.items()}
        return self._loss({**parts, uncertain: aligned(y, 1).unflatten(-1, uncertain.shape)})

    def worst_case_cost(self, x: Chosen, theta: Theta, nominal: Pair | None = None) -> Float[Tensor, "batch"]:
        """f(x, θ) of given decisions, differentiable; inf where the worst case is, NaN where U(θ) is empty or x NaN."""
        solution, flat, status = self._evaluate(x, theta, nominal)
        value = solution.objective
        infinite = (status == int(Status.UNBOUNDED)).to(value.device)
        value = torch.where(usable(status).to(value.device), value, torch.full_like(value, torch.nan))
        value = torch.where(infinite, torch.full_like(value, torch.inf), value)
        return value.to(torch.promote_types(flat.dtype, torch.float32))

    def worst_case_distribution(self, x: Chosen, theta: Theta, nominal: Pair | None = None) -> WorstCaseDistribution:
        """Atoms and probabilities that attain f(x, θ), and directions where mass escapes to infinity."""
        if self.conservative:
            raise ModelError("A decision rule bounds the worst case without attaining it: use method='vertices'.")
        _, probe = self._evaluation
        with torch.enable_grad():
            rows, entries = probe.rows.layout.rows, probe.rows.layout.row.size
            flat, around, _ = self.given(theta, nominal)
            batch = flat.shape[0]
            zero = flat.detach().double().new_zeros(())
            da, db = (zero.new_zeros(batch, size).requires_grad_() for size in (entries, rows))
            detached = {k: v.detach() for k, v in self._checked(x).items()}
            solution, _, status = self._evaluate(detached, flat, around, (da, db))
            ok = usable(status)
            total = torch.where(ok, solution.objective, torch.zeros_like(solution.objective)).sum()
            means, masses = torch.autograd.grad(total, (da, db))
        masses = torch.where(ok[:, None], masses, zero + torch.nan)
        weights = torch.ones(batch, 1) if around is None else around.weights
        slopes = probe.unit * solution.variable(probe.values).detach()
        return worst_distribution(probe.rows, self.ambiguity.y.shape, weights, masses, means, slopes)

    @cached_property
    def _evaluation(self) -> tuple[ConeProgram, Probe]:
        """The same reformulation with the decision fixed by equations and the rows open to perturbation."""
        objective, constraints, probe = self._formulate(probe=True)
        assert probe is not None
        fixed = [cp.Parameter(v.shape, name=f"value of {v.name()}") for v in self.variables]
        ties = [v == p for v, p in zip(self.variables, fixed, strict=True)]
        problem = cp.Problem(cp.Minimize(objective), [*constraints, *ties])
        listed = [*self.ambiguity.features, *fixed, probe.slope, probe.offset]
        return compile_program(problem, listed, free=self.variables), probe

    def _evaluate(
        self, x: Chosen, theta: Theta, nominal: Pair | None, probes: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Solution, Tensor, Tensor]:
        """Solve the evaluation program: only an infinite worst case can make it infeasible."""
        program, probe = self._evaluation
        flat, around, features = self.given(theta, nominal)
        values = self._checked(x)
        batch = features.shape[0]
        parts = [features]
        for variable in self.variables:
            value = values[variable]
            if tuple(value.shape) != (batch, *variable.shape):
                raise ShapeError(
                    f"{variable.name()} must have shape {(batch, *variable.shape)}, one decision an item of theta, "
                    f"not {tuple(value.shape)}."
                )
            parts.append(columns(value.double()).to(features.device))
        layout = probe.rows.layout
        da, db = probes or (features.new_zeros(batch, layout.row.size), features.new_zeros(batch, layout.rows))
        given = torch.cat([*parts, da.to(features), db.to(features)], 1)
        solution = self._careful.solve(program, given)
        status = self._empty_sets(solution.status, solution.primal, solution.objective, flat, around)
        failed = (status == int(Status.FAILED)).nonzero()[:, 0]
        if failed.numel():
            with torch.no_grad():
                numbers = program.values(given[failed.to(given.device)])
                none = endless(program, numbers, self._engine.solver)
            status[failed[none.to(failed.device)]] = int(Status.INFEASIBLE)
        status[status == int(Status.INFEASIBLE)] = int(Status.UNBOUNDED)
        return solution, flat, status

    def _checked(self, x: Chosen) -> dict[cp.Variable, Tensor]:
        """A decision with a tensor for every variable."""
        if not isinstance(x, Mapping):
            raise ShapeError(f"A decision is a dict from CVXPY variables to tensors, not {type(x).__name__}.")
        # By CVXPY's number rather than by object, so that a problem that was pickled knows its variables.
        given = {getattr(v, "id", None): value for v, value in x.items()}
        missing = [v.name() for v in self.variables if v.id not in given]
        if missing:
            raise ShapeError(f"The decision has no values for {missing}.")
        values = {
            v: given[v.id] if isinstance(given[v.id], Tensor) else torch.as_tensor(np.asarray(given[v.id]))
            for v in self.variables
        }
        for v, value in values.items():
            if tuple(value.shape[value.dim() - len(v.shape) :]) != v.shape or not 1 <= value.dim() - len(v.shape) <= 2:
                raise ShapeError(
                    f"{v.name()} must have shape (batch, *{v.shape}) or (batch, candidate, *{v.shape}), "
                    f"not {tuple(value.shape)}."
                )
        return values


def _forbidden_rows(parsed: PiecewiseCost, stack: cp.Expression) -> Rows:
    """Rows that must not be positive for any y of the support, each over all coordinates."""
    count, dim = len(parsed.forbidden), parsed.y.dim
    layout = Layout(np.repeat(np.arange(count), dim), np.tile(np.arange(dim), count), count)
    slope = cp.vec(parsed.forbidden.slope(stack), order="C")
    return Rows(slope, parsed.forbidden.offset(stack), layout, np.arange(count))
