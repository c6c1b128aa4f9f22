"""A decision problem under an ambiguity set, compiled once: solve it, evaluate a decision, ask for the worst case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import cvxpy as cp
import torch
from cvxpy.expressions.leaf import Leaf
from jaxtyping import Float, Int
from torch import Tensor

from conelayers import ConeProgram, Engine, Solution
from conelayers.internals import (
    Keyed,
    Numbered,
    OnFailure,
    check_leaves,
    default_engine,
    key_text,
    refuse_transforms,
    tensor,
    untraced,
)
from drolayers.adapting import Adaptation, lifting_for
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.nominal import Pair
from drolayers.ambiguity.sets import Sets, check_sets
from drolayers.cost.adaptive import Adaptive, adaptive_in
from drolayers.cost.lowering import shorten
from drolayers.cost.parse import PiecewiseCost, parse
from drolayers.cost.risk import Kind, Worst, always, check_labels, label_constraint
from drolayers.cost.rules import RULES, Part, Rule, has_worst_case, rule, separated
from drolayers.cost.second_stage import resolved
from drolayers.cost.torch_loss import TorchCost
from drolayers.cost.tree import walk
from drolayers.decisions import Decisions
from drolayers.diagnosis import Diagnosis, Given
from drolayers.errors import ModelError, ShapeError
from drolayers.evaluations import Chosen, Evaluations
from drolayers.known import Known, KnownData
from drolayers.notebook import code_block, table
from drolayers.reformulation.worst_distribution import WorstCaseDistribution
from drolayers.solution import ProblemSolution
from drolayers.uncertainty import Uncertain
from drolayers.written import Writer

Theta = Tensor | Mapping[str, Tensor]


class DecisionProblem(Numbered):
    """``min_x max_{P ∈ U(θ)} E_P[c(x, y)]`` subject to constraints on x, compiled once for every θ.

    Args:
        cost: c(x, y), ordinary CVXPY in the decision variables and in ``ambiguity.y``, bare or in ``cp.Minimize``; or
            ``cp.Maximize`` of a reward, which is the cost -reward: whatever is reported is a cost.
        constraints: CVXPY constraints on the decision variables; with ``dro.always``, ``dro.expected``, ``dro.cvar``
            and ``dro.chance`` also on uncertain outcomes, each under a worst distribution of its own. Any CVXPY
            parameter other than y, here, in the cost or in the support of y, is known data: calls take its values as
            ``known``.
        ambiguity: the set U(θ): of the cost, and of all constraints that have none of their own (``ambiguity=``).

    Attributes:
        sets: all sets, each with its part of θ; the cost's keeps the names of its parameters.
        known_data: the parameters that are known data, and what is checked of their values.
        program: the compiled cone program; integer variables are relaxed in it and can be fixed.
        variables: the decision variables (those that ``dro.cvar`` adds included).
        rules: the constraints that hold worst cases, taken apart.
        parts: all worst cases, that of the cost first; targets stand in the cost and among the rules.
        maximises: whether the cost is the negative of a reward.
    """

    def __init__(
        self,
        cost: cp.Expression | cp.Minimize | cp.Maximize,
        constraints: Sequence[cp.Constraint],
        ambiguity: AmbiguitySet,
    ) -> None:
        if not isinstance(ambiguity, AmbiguitySet):
            raise ModelError(
                f"ambiguity must be a set such as dro.MomentSet or dro.Wasserstein, not {type(ambiguity).__name__}."
            )
        # Once, since a generator can be gone through but once.
        listed = list(constraints) if isinstance(constraints, Iterable) else None
        if listed is None or not all(isinstance(c, cp.Constraint) for c in listed):
            raise ModelError(f"constraints must be a list of CVXPY constraints, not {listed or constraints!r}.")
        constraints = listed
        self.maximises = isinstance(cost, cp.Maximize)
        if isinstance(cost, cp.Minimize | cp.Maximize):
            cost = -cost.expr if self.maximises else cost.expr
        held = adaptive_in(
            [e for e in (cost, *(a for c in constraints for a in c.args)) if isinstance(e, cp.Expression)]
        )
        self.adaptive: tuple[Adaptive, ...] = held
        """The adaptive decisions; the coefficients of their rules stand in a decision behind ``variables``."""
        robust = [label_constraint(c) for c in constraints if has_worst_case(c)]
        check_labels(robust)
        robust += [always(v >= 0) for v in held if v.is_nonneg()]
        self._plain = [c for c in constraints if not has_worst_case(c)]
        rows = [c.expr for c in robust]
        if isinstance(cost, cp.Expression):
            cost, *rows = resolved([cost, *rows], self._plain)
        self.cost, self.constraints, self.ambiguity = cost, list(constraints), ambiguity
        if ambiguity.y.foreign:
            # Its other variables may have been numbered here.
            self.numbered_as(None)
        for constraint in self._plain:
            if named := adaptive_in(constraint.args):
                raise ModelError(
                    f"The constraint {constraint} is on the adaptive decision {named[0].name()}: say for which "
                    "outcomes it must hold, with dro.always, dro.expected, dro.cvar or dro.chance."
                )
            if any(isinstance(p, Uncertain) for p in constraint.parameters()):
                raise ModelError(
                    f"The constraint {constraint} uses {ambiguity.y.name()}: say for which outcomes it must hold, with "
                    "dro.always, dro.expected, dro.cvar or dro.chance; or put it into the cost, for example as "
                    "dro.recourse."
                )
        joint: cp.Expression = cost
        inner: tuple[Part, ...] = ()
        targets: tuple[Rule, ...] = ()
        lifting = None
        if isinstance(cost, cp.Expression):
            check_leaves(cost, self.constraints)
            worst = [node for node in walk([cost, *rows]) if isinstance(node, Worst)]
            check_sets([node.ambiguity for node in worst if node.ambiguity is not None], ambiguity.y)
            check_uses(ambiguity.y, [cost, *rows])
            lifting = lifting_for(ambiguity, cost, rows)
            joint, inner, targets = separated(cost, ambiguity.y, lifting)
        self.parsed: PiecewiseCost = parse(joint, ambiguity.y, lifting)
        assert lifting is not None
        self._cost, self._inner = Part(self.parsed), inner
        self.rules = (*(rule(c, row, ambiguity.y, lifting) for c, row in zip(robust, rows, strict=True)), *targets)
        self._of_cost = (self._cost, *inner)
        self.parts = list(dict.fromkeys((*self._of_cost, *(part for r in self.rules for part in r.parts))))
        priced = [part.ambiguity or ambiguity for part in self.parts if part.price is not None]
        own = [part.ambiguity for part in self.parts if part.price is None and part.ambiguity is not None]
        members, distances = ({id(s): s for s in some}.values() for some in ([ambiguity, *own], priced))
        self.sets = Sets(tuple(members), tuple(distances))
        costs = [parsed for part in self.parts for parsed in (part.parsed, *part.parsed.events)]
        told = (p for c in self.constraints for p in c.parameters())
        self.known_data = KnownData(
            [*(p for parsed in costs for p in parsed.known), *told, *self.sets.known],
            list({id(parsed.products): (parsed.known, parsed.products) for parsed in costs}.values()),
        ).numbered_as(self)
        found = {v.id: v for c in (cost, *self._plain) for v in c.variables()}
        found |= {v.id: v for r in self.rules for v in r.outcome.variables()}
        self.variables: tuple[cp.Variable, ...] = tuple(v for v in found.values() if not isinstance(v, Adaptive))
        self.integer_variables = tuple(
            v for v in self.variables if v.attributes.get("boolean") or v.attributes.get("integer")
        )
        self._loss, self._outcomes = TorchCost(cost), [TorchCost(r.outcome) for r in self.rules]
        self._tails = [[TorchCost(tail) for tail, _ in r.tails] for r in self.rules]
        self._adaptation = Adaptation.of(lifting, held, ambiguity, self._loss, self.rules)
        self._hidden = self._adaptation.hidden
        said = [*self._plain, *(r.holds for r in self.rules if r.holds.variables()), *self._adaptation.ties]
        self._writer = Writer(self._cost, self._inner, self.sets, self.known_data)
        program, _, limits = self._writer.compiled(self._cost, said, [part for r in self.rules for part in r.parts])
        self.program: ConeProgram = program.numbered_as(self)
        self._engine = default_engine()
        self._decisions = Decisions(
            self._plain,
            self.rules,
            limits,
            self.variables,
            [*self.sets.features, *self.known_data.features],
            self.program,
            self._engine,
        )
        # Where mass moves under a cost that is curved in y, a solver that gives up has proved nothing.
        proves = all(self._writer.set_of(part).pinned for part in self.parts if part.parsed.curves)
        # Sets that may be empty without the cost falling for ever: all but its own, or that too.
        used = any(part.ambiguity in (None, ambiguity) for r in self.rules for part in r.parts)
        unseen = [k for k in range(len(self.sets.members)) if k or (not len(self.parsed.pieces) and used)]
        self.diagnosis = Diagnosis(
            self.sets, unseen, self.known_data, self.program, self._decisions, self._engine, proves
        )
        bound = [r for r in self.rules if adaptive_in([r.outcome])]
        self._evaluations = Evaluations(self._writer, self.variables, bound, self.diagnosis, self._engine)

    @property
    def known(self) -> dict[str, tuple[int, ...]]:
        """The known data that every call needs: the name and shape of each CVXPY parameter other than y."""
        return self.known_data.shapes

    @property
    def conservative(self) -> bool:
        """Whether decision rules or chances make the worst case an upper bound, rather than exact."""
        return not all(self.exact.values())

    @property
    def exact(self) -> dict[cp.Constraint | str, bool]:
        """Whether the cost (``"cost"``) and each constraint with a worst case say what they mean, and no more."""
        found: dict[cp.Constraint | str, bool] = {"cost": not any(p.parsed.conservative for p in self._of_cost)}
        for r in self.rules:
            tight = r.kind is not Kind.CHANCE or (r.affine and self._writer.set_of(r.parts[0]).chebyshev)
            found[r.constraint] = tight and not any(part.parsed.conservative for part in r.parts)
        return Keyed(found, self, RULES)

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """The learnable parameters of all sets in the order of θ: name and shape."""
        return self.sets.parameters

    @property
    def size(self) -> int:
        """Length of θ."""
        return self.sets.size

    def pack(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, "batch theta"]:
        """The flat θ of a dict of ``(batch, *shape)`` tensors, by the names of ``parameters``."""
        return self.sets.pack(parameters)

    def unpack(self, theta: Float[Tensor, "batch theta"]) -> dict[str, Tensor]:
        """The parameters by name, each ``(batch, *shape)``."""
        return self.sets.unpack(theta)

    @property
    def neutral(self) -> bool:
        """Whether the mean of ``y`` tells the best decision on average: no rules, and a cost that is affine in it."""
        return not self.rules and all(part.parsed.affine and part.ambiguity is None for part in self._of_cost)

    def flat(self, theta: Theta) -> Float[Tensor, "batch theta"]:
        """θ as a flat tensor, checked: shape, type, no NaN or infinity."""
        return self.sets.flat(theta)

    def __deepcopy__(self, memo: dict[int, object]) -> DecisionProblem:
        # Compiled once and never changed; decisions are looked up by the very CVXPY variables of the model.
        return self

    def __repr__(self) -> str:
        size = f"{self.program.rows} rows, {self.program.columns} columns, {self.program.nonzeros} non-zeros"
        told = ", costs are negative rewards" if self.maximises else ""
        told += "" if self.exact["cost"] else ", the worst case is bounded by a decision rule"
        return f"DecisionProblem({len(self.variables)} variables, {self.sets}; {size}{told})"

    def _repr_html_(self) -> str:
        """Return the representation that notebooks show: the problem, its parameters and its constraints."""
        parameters = table(("parameter of θ", "shape"), list(self.parameters.items()))
        rules = [(key_text(r.constraint), r.kind.value) for r in self.rules]
        return code_block(repr(self)) + parameters + (table(("constraint", "kind"), rules) if rules else "")

    def given(self, theta: Theta, nominal: Pair | None = None, known: Known | None = None) -> Given:
        """What a user gave, checked; one θ serves all items of known data."""
        flat = self.flat(theta)
        refuse_transforms(flat)
        told = self.known_data.given(known, len(flat))
        if told and len(flat) == 1:
            flat = flat.expand(len(next(iter(told.values()))), -1)
        around = self.sets.around(nominal, flat) if self.sets.needs_nominal else None
        features = self.sets.feature_values(flat, around)
        entries, products = self.known_data.feature_values(told, features)
        by_parameter = self.known_data.values(entries)
        return Given(flat, around, entries, by_parameter, torch.cat([features, entries, products], 1))

    def features(
        self, theta: Theta, nominal: Pair | None = None, known: Known | None = None
    ) -> Float[Tensor, "batch feature"]:
        """What the compiled program is affine in."""
        return self.given(theta, nominal, known).features

    @untraced
    def solve(
        self,
        theta: Theta,
        nominal: Pair | None = None,
        fixed: Tensor | None = None,
        engine: Engine | None = None,
        on_failure: OnFailure = "mask",
        known: Known | None = None,
    ) -> Solution:
        """Solve the continuous problem for a batch of sets, with integer variables relaxed or fixed.

        Args:
            theta: ``(batch, problem.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
            fixed: values for the integer columns of ``program``.
            engine: how to solve; the default engine with exact gradients unless given.
            on_failure: "mask" (NaN, no gradient, a status) or "raise" (a ``SolveError``).
            known: values of ``problem.known`` by name or parameter, ``(batch, *shape)`` or one for all; differentiable.
        """
        given = self.given(theta, nominal, known)
        solution = (engine or self._engine).solve(self.program, given.features, fixed)
        advice = partial(self.advice, theta, nominal, known)
        return (
            ProblemSolution.of(solution).masked(self.diagnosis.of(solution, given, fixed)).checked(on_failure, advice)
        )

    @untraced
    def shortfalls(
        self, theta: Theta, nominal: Pair | None = None, known: Known | None = None
    ) -> dict[cp.Constraint, Float[Tensor, "batch row"]]:
        """By how much the constraints with worst cases must be relaxed for some decision to satisfy all of them.

        The least sum over all rows, with integer variables relaxed; inf where that does not help, since the other
        constraints admit no decision or a worst case is infinite for every one.
        """
        return Keyed(self._decisions.shortfalls(self.given(theta, nominal, known).features), self, RULES)

    @untraced
    def advice(self, theta: Theta, nominal: Pair | None, known: Known | None, status: Int[Tensor, "batch"]) -> str:
        """Which constraint or set stands in the way, where there is no decision or no distribution, and how far."""
        return self.diagnosis.advice(self.given(theta, nominal, known), status)

    def integer_points(self, limit: int | None) -> Float[Tensor, "point integer"] | None:
        """All integer points that the constraints admit, in the order of ``program.integers``.

        Where the constraints hold known data, all of the box: what an item admits is seen when it is solved.

        Args:
            limit: None asks for all of them; a number for None in return where there are more.
        """
        return self._decisions.integer_points(limit)

    def decision(self, primal: Tensor) -> dict[cp.Variable, Tensor]:
        """The decision variables' parts of primal points ``(..., column)``, and behind them what makes up rules."""
        return Keyed({v: self.program.variable(primal, v) for v in (*self.variables, *self._hidden)}, self)

    @property
    def coefficients(self) -> tuple[cp.Variable, ...]:
        """The coefficients of their rules."""
        return tuple(rule.variable for rule in self._adaptation.rules)

    def adapted(self, x: Chosen, y: Tensor, known: Known | None = None) -> dict[Adaptive, Tensor]:
        """The adaptive decisions at outcomes, by the rules of given decisions; differentiable.

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``, the rules' coefficients included.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of ``problem.known``.
        """
        leaves, *_ = self._leaves(x, y, known)
        return Keyed({v: leaves[v] for v in self.adaptive}, self, "problem.adaptive")

    def loss(self, x: Chosen, y: Tensor, known: Known | None = None) -> Tensor:
        """The cost c(x, y) itself, differentiable.

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of ``problem.known``.

        Returns:
            ``(batch,)`` or ``(batch, candidate)``.
        """
        leaves, _, wrong = self._leaves(x, y, known)
        return _at(self._loss, leaves, wrong)

    def violations(self, x: Chosen, y: Tensor, known: Known | None = None) -> dict[cp.Constraint, Tensor]:
        """How far every constraint with a worst case is from holding at an outcome: positive where it does not hold.

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of ``problem.known``.

        Returns:
            g(x, y) of g ≤ 0 by constraint, ``(batch, row)`` or ``(batch, candidate, row)``; what stands within
            ``dro.expected`` and ``dro.cvar`` is taken as it is.
        """
        leaves, _, wrong = self._leaves(x, y, known)
        by_rule = zip(self.rules, self._outcomes, strict=True)
        return Keyed({r.constraint: _at(e, leaves, wrong) for r, e in by_rule}, self, RULES)

    def terms(self, x: Chosen, y: Tensor, known: Known | None = None) -> dict[cp.Constraint, Tensor]:
        """How large the terms are that ``violations`` are made of: what is next to none beside them is rounding.

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of ``problem.known``.

        Returns:
            By constraint, ``(batch, row)`` or ``(batch, candidate, row)``; without a derivative.
        """
        leaves, lead, _ = self._leaves(x, y, known)
        sizes = self._adaptation.sizes(leaves, lead)
        by_rule = zip(self.rules, self._outcomes, strict=True)
        return Keyed({r.constraint: e.sized(leaves, sizes)[1] for r, e in by_rule}, self, RULES)

    def missed(
        self,
        x: Chosen,
        y: Tensor,
        known: Known | None = None,
        weights: Tensor | None = None,
        allowed: float | None = None,
    ) -> dict[cp.Constraint, Float[Tensor, ""]]:
        """What data say of every constraint with a worst case, over all items; differentiable.

        How often ``dro.always`` and ``dro.chance`` do not hold, by more than a millionth of the terms of a row; by how
        much the mean of ``dro.expected`` and the CVaR of ``dro.cvar`` exceed their bounds, each by itself where a
        constraint holds several (negative: room to spare).

        Args:
            x: tensors ``(batch, *shape)`` or ``(batch, candidate, *shape)``.
            y: outcomes ``(batch, *shape)``, or flat.
            known: values of ``problem.known``.
            weights: of the items, or of their candidates.
            allowed: a share in place of which the (1 - allowed)-quantile of the largest row is taken, which is positive
                where ``dro.always`` or ``dro.chance`` fail more often, and has a derivative.
        """
        leaves, lead, wrong = self._leaves(x, y, known)
        found, sizes = {}, self._adaptation.sizes(leaves, lead)
        flat = None if weights is None else weights.reshape(-1)
        for r, outcome, tails in zip(self.rules, self._outcomes, self._tails, strict=True):
            values, *parts = (_at(e, leaves, wrong).flatten(0, -2) for e in (outcome, *tails))
            size = outcome.sized(leaves, sizes)[1].flatten(0, -2) if r.counted else None
            found[r.constraint] = r.missed(values, parts, flat, allowed, size)
        return Keyed(found, self, RULES)

    def _leaves(self, x: Chosen, y: Tensor, known: Known | None) -> tuple[dict[Leaf, Tensor], int, Tensor | None]:
        """Values of all that an expression may hold, their dimensions in front, and the items of wrong known data."""
        values = self._checked(x, self._hidden)
        uncertain = self.ambiguity.y
        y = uncertain.rows(tensor("y", y))
        if y.dim() != 2 or y.shape[1] != uncertain.dim:
            shapes = f"{f'(batch, *{uncertain.shape}) or ' if uncertain.ndim > 1 else ''}(batch, {uncertain.dim})"
            raise ShapeError(f"Outcomes must have shape {shapes}, not {tuple(y.shape)}.")
        batches = {v.shape[0] for v in (*values.values(), y)} - {1}
        if len(batches) > 1:
            raise ShapeError(f"Decisions and outcomes must have one batch size, not {sorted(batches)}.")
        told = self.known_data.given(known, max(batches, default=1))
        told, wrong = self.known_data.usable(told) if told else (told, None)
        # Whole numbers are decisions too, but the cost is computed in floating point.
        given = [v for v in (*values.values(), y) if v.is_floating_point()]
        reference = given[0] if given else y.to(torch.get_default_dtype())
        candidates = any(v.dim() - len(k.shape) == 2 for k, v in values.items())
        parts: dict[Leaf, Tensor] = {**values, **told, uncertain: y.unflatten(-1, uncertain.shape)}
        parts = {k: v.to(reference) for k, v in parts.items()}
        if candidates:
            parts = {k: v.unsqueeze(1) if v.dim() == k.ndim + 1 else v for k, v in parts.items()}
        return self._adaptation.completed(parts, 1 + candidates), 1 + candidates, wrong

    @untraced
    def worst_case_cost(
        self, x: Chosen, theta: Theta, nominal: Pair | None = None, known: Known | None = None
    ) -> Float[Tensor, "batch"]:
        """f(x, θ) of given decisions, differentiable; inf where the worst case is, NaN where U(θ) is empty or x NaN."""
        return self._evaluations.value(self._cost, self._checked(x), self.given(theta, nominal, known))

    @untraced
    def worst_case(
        self,
        x: Chosen,
        theta: Theta,
        nominal: Pair | None = None,
        known: Known | None = None,
        *,
        of: cp.Constraint | str,
    ) -> Float[Tensor, "batch row"]:
        """The left-hand side g ≤ 0 of a constraint in its worst case, by row: it holds where this is not positive.

        Args:
            x: one decision an item of θ.
            theta: ``(batch, problem.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
            known: values of ``problem.known``.
            of: a constraint with a worst case, or its name.
        """
        found, given, chosen = self._rule(of), self.given(theta, nominal, known), self._checked(x)
        if adaptive_in([found.outcome]):
            raise ModelError(
                f"The constraint {shorten(of)} is on an adaptive decision, whose rule belongs to the whole problem: "
                "ask problem.violations at outcomes."
            )
        values = {part: self._evaluations.value(part, chosen, given) for part in found.parts}
        told = self.known_data.given(known, len(given.theta))
        like = given.theta.to(torch.promote_types(given.theta.dtype, torch.float32))
        above: dict[cp.Variable, Tensor] = {}
        for variable in found.above:
            mine = torch.stack([values[part] for part in found.parts if part.stands_for is variable], -1)
            # Entries are numbered column by column.
            shape = tuple(reversed(variable.shape))
            above[variable] = mine.reshape(len(mine), *shape).permute(0, *range(len(shape), 0, -1))
        leaves = {k: v.to(like) for k, v in (*chosen.items(), *told.items())}
        return TorchCost(found.left)({**leaves, **above})

    @untraced
    def worst_case_distribution(
        self,
        x: Chosen,
        theta: Theta,
        nominal: Pair | None = None,
        known: Known | None = None,
        of: cp.Constraint | str | None = None,
        row: int | None = None,
    ) -> WorstCaseDistribution:
        """Atoms and probabilities that attain f(x, θ), and directions where mass escapes to infinity.

        Args:
            x: one decision an item of θ.
            theta: ``(batch, problem.size)``, or a dict by name.
            nominal: atoms and weights, where the set needs them.
            known: values of ``problem.known``.
            of: a constraint with a worst case, or its name, whose distribution is asked for; the cost's unless given.
            row: of the constraint, where it has several.
        """
        if of is None and self._inner:
            raise ModelError("Every dro.expected of the cost has a distribution of its own: none attains their sum.")
        if any(p.parsed.conservative for p in ((self._cost,) if of is None else self._rule(of).parts)):
            raise ModelError(
                "A decision rule bounds the worst case without attaining it: write a second stage as dro.recourse with "
                "method='vertices'."
            )
        part = self._cost if of is None else self._rule(of).part(row)
        if part.parsed.curves and not self._writer.set_of(part).pinned:
            raise ModelError(
                f"The worst distribution of {part.parsed.curves[0].text}, which is curved in y, is shown where mass "
                "stays at the atoms (dro.Divergence, dro.Empirical): its worst-case cost is worst_case_cost."
            )
        return self._evaluations.distribution(part, self._checked(x), self.given(theta, nominal, known))

    def _rule(self, constraint: cp.Constraint | str) -> Rule:
        """Find a constraint with a worst case by itself or by its name."""
        if isinstance(constraint, str):
            return Keyed({r.constraint: r for r in self.rules}, self, RULES)[constraint]
        number = None if self.foreign else getattr(constraint, "id", None)
        found = next((r for r in self.rules if r.constraint is constraint or r.constraint.id == number), None)
        if found is None:
            raise ModelError(
                f"{constraint!r} is none of the problem's constraints with a worst case: see problem.rules."
            )
        return found

    def _checked(self, x: Chosen, hidden: Sequence[cp.Variable] = ()) -> dict[cp.Variable, Tensor]:
        """A decision with a tensor for every variable, and for others that are no variables of the user's."""
        if not isinstance(x, Mapping):
            raise ShapeError(f"A decision is a dict from CVXPY variables to tensors, not {type(x).__name__}.")
        # By CVXPY's number rather than by object, so that a problem that was pickled knows its variables; but not one
        # from another process, where others have these numbers.
        wanted = (*self.variables, *hidden)
        foreign, own = self.foreign, set(wanted)
        given = {getattr(v, "id", None): value for v, value in x.items() if not foreign or v in own}
        missing = [v.name() for v in wanted if v.id not in given]
        if missing:
            advice = ": unpickled from elsewhere, the problem knows its own problem.variables alone" if foreign else ""
            raise ShapeError(f"The decision has no values for {missing}{advice}.")
        values = {v: tensor(v.name(), given[v.id]) for v in wanted}
        for v, value in values.items():
            if tuple(value.shape[value.dim() - len(v.shape) :]) != v.shape or not 1 <= value.dim() - len(v.shape) <= 2:
                raise ShapeError(
                    f"{v.name()} must have shape (batch, *{v.shape}) or (batch, candidate, *{v.shape}), "
                    f"not {tuple(value.shape)}."
                )
        return values


def check_uses(y: Uncertain, expressions: Sequence[cp.Expression]) -> None:
    """Raise unless the uncertain vector, or a decision that adapts to it, stands in some expression."""
    used = any(isinstance(p, Uncertain) for expression in expressions for p in expression.parameters())
    if not used and not adaptive_in(expressions):
        raise ModelError(
            f"Neither the cost nor a constraint uses the uncertain {y.name()}, so that no set matters: write the cost "
            "in ambiguity.y, or solve the problem with CVXPY alone."
        )


def _at(expression: TorchCost, leaves: Mapping[Leaf, Tensor], wrong: Tensor | None) -> Tensor:
    """An expression of the decision and y at an outcome, NaN in items whose known data are wrong."""
    found = expression(leaves)
    # Without a derivative there: an item that is masked must not spoil that of others.
    return (
        found
        if wrong is None
        else found.masked_fill(wrong.to(found.device).view(-1, *[1] * (found.dim() - 1)), torch.nan)
    )
