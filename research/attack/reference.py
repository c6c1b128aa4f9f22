"""The reference: worst cases and optima of one item by programs over probabilities and probabilities times means.

The optimum is one program too. Under the worst distribution min and max interchange. The inner minimum over decisions
{Ax ≤ b} of a cost Sᵀx + xᵀQx/2, where S is linear in the masses, is replaced by its dual:

    max  constant - bᵀλ - wᵀQw/2   subject to   S + Qw + Aᵀλ = 0,  λ ≥ 0.

A constraint sup_P E_P[g] ≤ 0 adds masses of its own whose total, the multiplier of the constraint, is free. By weak
duality the value is a lower bound. The decision that comes with it is evaluated, and is the witness for the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from research.attack.costs import Worst
from research.attack.draw import Program
from research.attack.drawn import Item
from research.attack.masses import Constraints, Masses
from research.attack.pieces import Pieces

Array = Any
TOLERANCES = (1e-10, 1e-8)
"""Of the solver, tried in turn: values are compared to 1e-6."""

AGREE_REL = 1e-7
"""Largest difference of the values that both tolerances end at."""

CUTS = 60
"""Rounds of cutting planes before the reference gives up."""


@dataclass(frozen=True)
class Answer:
    """What the reference computed.

    Attributes:
        status: "optimal", "infinite", "infeasible" (of the program over masses) or "inaccurate".
        value: where optimal.
        x: the decision that comes with it, all columns.
        by_point: the answers of all feasible integer points, where they are enumerated.
    """

    status: str
    value: float = np.nan
    x: Array = None
    by_point: dict[tuple[float, ...], Answer] = field(default_factory=dict)

    @property
    def accurate(self) -> bool:
        """Whether the value can be compared with."""
        return self.status == "optimal"


def solve(problem: cp.Problem) -> str:
    """Solve with Clarabel; "inaccurate" unless the solver met its tolerance or has a certificate.

    A point that only meets the looser tolerance must agree with the point that the tighter one ended at: with small
    bounds, a gap of 1e-8 has hidden errors of 1e-5.
    """
    rough: float | None = None
    for tolerance in TOLERANCES:
        settings = {f"tol_{name}": tolerance for name in ("gap_abs", "gap_rel", "feas", "infeas_abs", "infeas_rel")}
        try:
            problem.solve(solver=cp.CLARABEL, **settings)
        except cp.SolverError:
            continue
        if problem.status == "optimal":
            value = float(problem.value)
            agrees = rough is None or abs(value - rough) <= AGREE_REL * (1.0 + abs(value))
            return "optimal" if agrees else "inaccurate"
        if problem.status == "optimal_inaccurate":
            rough = float(problem.value)
        if problem.status in ("infeasible", "unbounded"):
            return "infeasible" if problem.status == "infeasible" else "infinite"
    return "inaccurate"


def _unused(item: Item) -> Pieces:
    """Pieces of masses that have no cost."""
    raise NotImplementedError


class Reference:
    """Answer questions about one item.

    Args:
        program: the program.
        item: its numbers.
    """

    def __init__(self, program: Program, item: Item) -> None:
        self.program, self.item, self.cost = program, item, program.cost
        self.region = program.support.region(item)

    # --- Building blocks ----------------------------------------------------------------------------------------------

    def masses(self, worst: Worst, pieces: int, total: Any) -> tuple[Masses, Constraints]:
        """Masses of a worst case, and what its set, its support and its total ask of them."""
        prefix, part = self.program.sets[1 if worst.own else 0]
        rows = part.scenarios * pieces
        budget = 1.0 if worst.kind == "fragility" else None
        masses = Masses(
            cp.Variable(rows, nonneg=True), cp.Variable((rows, self.program.choices.dim)), pieces, total, budget
        )
        values = {k: v for k, v in self.item.of(prefix).items() if prefix or not k.startswith("set1.")}
        conditions = part.reach if worst.kind == "always" else part.conditions
        constraints = [cp.sum(masses.p) == total, *conditions(self.item, values, masses)]
        return masses, constraints + part.support(self.region, masses)

    def _terms(self, pieces: Pieces, masses: Masses) -> tuple[cp.Expression, cp.Expression]:
        """The constant of the expected cost, and its slope in the decision, ``(column,)``."""
        repeat, columns = masses.scenarios, self.program.columns
        pieces = pieces.wide(columns)
        F, g = np.tile(pieces.F, (repeat, 1, 1)), np.tile(pieces.g, (repeat, 1))
        constant = cp.sum(cp.multiply(np.tile(pieces.f, (repeat, 1)), masses.m)) + np.tile(pieces.h, repeat) @ masses.p
        slope = F.reshape(-1, columns).T @ cp.vec(masses.m, order="C") + g.T @ masses.p
        return constant, slope

    def _group(self, worst: Worst, total: Any) -> tuple[cp.Expression, cp.Expression, Constraints]:
        """Constant, slope and constraints of one worst case."""
        pieces = worst.pieces(self.item)
        masses, constraints = self.masses(worst, pieces.count, total)
        return *self._terms(pieces, masses), constraints

    # --- Questions ----------------------------------------------------------------------------------------------------

    def empty(self) -> list[str]:
        """Return the statuses of programs that look for a distribution in the problem's set and in a constraint's."""
        statuses = []
        for k in range(len(self.program.sets)):
            _, constraints = self.masses(Worst(_unused, own=k == 1), 1, 1.0)
            statuses.append(solve(cp.Problem(cp.Maximize(0.0), constraints)))
        return statuses

    def optimum(self, upper: bool = False, free: bool = False) -> Answer:
        """The best worst case.

        Args:
            upper: of the cost that is no smaller.
            free: without the cost, to see whether decisions exist.
        """
        if self.cost.curve is not None and not free:
            return self._curved_optimum()
        if self.cost.integers and not len(self.cost.points):
            return self._packed()
        points = self.cost.points if len(self.cost.points) else [None]
        columns, size = self.program.columns, self.cost.columns
        worst, robust = self.cost.worst, self.program.robust
        if upper:
            assert self.cost.upper is not None
            worst, robust = self.cost.upper[0], (*self.cost.upper[1], *robust)
        constant: cp.Expression = cp.Constant(0.0)
        slope: cp.Expression = cp.Constant(np.zeros(columns))
        constraints: Constraints = []
        totals = [(w, 1.0 if w.kind == "expected" else cp.Variable(nonneg=True)) for w in (() if free else worst)]
        for case, total in [*totals, *((w, cp.Variable(nonneg=True)) for w in robust)]:
            part, part_slope, conditions = self._group(case, total)
            constant, slope, constraints = constant + part, slope + part_slope, constraints + conditions
        A = np.pad(self.cost.A, ((0, 0), (0, columns - size)))
        if len(A):
            multiplier = cp.Variable(len(A), nonneg=True)
            constant, slope = constant - self.cost.b @ multiplier, slope + A.T @ multiplier
        if self.cost.quadratic.any() and not free:
            Q = np.pad(self.cost.quadratic, (0, columns - size))
            w = cp.Variable(columns)
            constant, slope = constant - 0.5 * cp.sum_squares(cp.multiply(np.sqrt(Q), w)), slope + cp.multiply(Q, w)
        point = None
        if self.cost.integers:
            point, price = cp.Parameter(len(self.cost.integers)), cp.Variable(len(self.cost.integers))
            place = np.eye(columns)[list(self.cost.integers)]
            constant, slope = constant - point @ price, slope + place.T @ price
        stationary = slope == 0
        problem = cp.Problem(cp.Maximize(constant), [*constraints, stationary])
        answers: list[Answer] = []
        by_point: dict[tuple[float, ...], Answer] = {}
        for z in points:
            if point is not None:
                point.value = np.asarray(z)
            status = solve(problem)
            if status == "optimal":
                # Without a slope every decision is best.
                x = np.zeros(columns) if stationary.dual_value is None else -np.asarray(stationary.dual_value)
                answers.append(Answer(status, float(problem.value), x))
                if point is not None:
                    by_point[tuple(np.asarray(z).tolist())] = answers[-1]
            elif status != "infinite" or point is None:
                # An integer point without continuous decisions is no reason to stop.
                return Answer(status)
        if not answers:
            return Answer("infinite")
        best = min(answers, key=lambda answer: answer.value)
        return replace(best, by_point=by_point)

    def rule(self) -> Answer:
        """The best affine rule of an adaptive decision, whose cost and constraints are evaluated once more."""
        best = self.optimum(upper=True)
        if not best.accurate or self.cost.upper is None:
            return best
        x, total = best.x[: self.cost.columns], 0.5 * float(self.cost.quadratic @ best.x[: self.cost.columns] ** 2)
        for worst in self.cost.upper[0]:
            answer = self.worst(worst, x)
            if not answer.accurate:
                return Answer("inaccurate")
            total += answer.value
        rows = [self.worst(worst, x) for worst in self.cost.upper[1]]
        feasible = all(row.accurate and row.value <= 1e-6 * (1 + np.abs(x).max()) for row in rows)
        feasible = feasible and self.violation(x[: self.cost.size])[0] <= 1e-6
        return Answer("optimal", total, x) if feasible else Answer("inaccurate")

    def value(self, x: Array) -> Answer:
        """The worst case of a decision, over the variables' columns; auxiliary columns are chosen best."""
        if self.cost.curve is not None:
            return self._curved_value(x)
        total: float = 0.5 * float(self.cost.quadratic[: len(x)] @ x**2)
        for worst in self.cost.worst:
            answer = self.worst(worst, x)
            if not answer.accurate:
                return answer
            total += answer.value
        return Answer("optimal", total)

    def worst(self, worst: Worst, x: Array) -> Answer:
        """One worst case of a decision."""
        constant, slope, constraints = self._group(worst, 1.0)
        size = len(x)
        objective = constant + x @ slope[:size]
        problem = cp.Problem(
            cp.Maximize(objective), [*constraints, slope[size:] == 0] if slope.size > size else constraints
        )
        status = solve(problem)
        return Answer(status, float(problem.value) if status == "optimal" else np.nan)

    def violation(self, x: Array) -> tuple[float, str]:
        """By how much a decision violates constraints, and where; infinite if a worst case is."""
        plain = float((self.cost.A[:, : len(x)] @ x - self.cost.b).max(initial=0.0))
        worst, where = plain, "a constraint without y"
        for k, case in enumerate(self.program.robust):
            answer = self.worst(case, x)
            if answer.status == "inaccurate":
                continue
            excess = answer.value if answer.accurate else np.inf
            if excess > worst:
                worst, where = excess, f"constraint {self.program.choices.constraints[k]!r}"
        if self.cost.integers:
            z = x[list(self.cost.integers)]
            worst = max(worst, float(np.abs(z - np.round(z)).max()))
        return worst, where

    # --- Costs that are curved in y -----------------------------------------------------------------------------------

    def _curved_worst(self, x: Array) -> tuple[str, Callable[[cp.Expression], cp.Expression]]:
        """The worst distribution of a decision, as the expected cost of any decision under it."""
        curve, (_, part) = self.cost.curve, self.program.sets[0]
        if part.groups:
            return self._worst_moments(x)
        masses, constraints = self.masses(Worst(_unused), 1, 1.0)
        costs = np.asarray(curve.at_atoms(self.item, cp.Constant(x)).value)
        status = solve(cp.Problem(cp.Maximize(costs @ masses.p), constraints))
        return status, lambda v: masses.p.value @ curve.at_atoms(self.item, v)

    def _worst_moments(self, x: Array) -> tuple[str, Callable[[cp.Expression], cp.Expression]]:
        """Bounds on squared deviations on all of space: second moments are all that squares see."""
        curve, (_, part), n = self.cost.curve, self.program.sets[0], self.program.choices.dim
        mu, sigma = self.item.theta["mu"], self.item.theta["sigma"]
        M = cp.Variable((n + 1, n + 1), PSD=True)
        square, mean = M[:n, :n], M[:n, n]
        deviations = cp.diag(square) - 2 * cp.multiply(mu, mean) + mu**2
        bounds = [cp.sum(deviations[list(g)]) <= s for g, s in zip(part.groups, sigma, strict=True)]
        status = solve(
            cp.Problem(cp.Maximize(curve.under_moments(square, mean, cp.Constant(x))), [*bounds, M[n, n] == 1])
        )
        return status, lambda v: curve.under_moments(square.value, mean.value, v)

    def _curved_value(self, x: Array) -> Answer:
        """The worst expectation for a decision."""
        if (ball := self.program.sets[0][1].ball) is not None:
            radius = float(self.item.theta["radius"])
            expected_cost = self.cost.curve.in_ball(self.item, cp.Constant(x), *ball, radius)
            return Answer("optimal", float(expected_cost.value)) if radius >= 0 else Answer("infeasible")
        status, expected = self._curved_worst(x)
        return Answer(status, float(expected(cp.Constant(x)).value) if status == "optimal" else np.nan)

    def _curved_optimum(self) -> Answer:
        """Cutting planes: the best decision against the distributions seen so far, then the worst one for it."""
        x = cp.Variable(self.cost.columns)
        rows = [self.cost.A @ x <= self.cost.b] if len(self.cost.b) else []
        if (ball := self.program.sets[0][1].ball) is not None:
            if (radius := float(self.item.theta["radius"])) < 0:
                return Answer("infeasible")
            problem = cp.Problem(cp.Minimize(self.cost.curve.in_ball(self.item, x, *ball, radius)), rows)
            return self._of_minimum(problem, x)
        start = np.zeros(self.cost.columns)
        status, expected = self._curved_worst(start)
        if status != "optimal":
            return Answer(status)
        cuts, below, upper, best = [expected(x)], -np.inf, np.inf, None
        for _ in range(CUTS):
            t = cp.Variable()
            answer = self._of_minimum(cp.Problem(cp.Minimize(t), [*rows, *(t >= cut for cut in cuts)]), x)
            if not answer.accurate:
                return answer
            below = max(below, answer.value)
            status, expected = self._curved_worst(answer.x)
            if status != "optimal":
                return Answer(status)
            if (value := float(expected(cp.Constant(answer.x)).value)) < upper:
                upper, best = value, answer.x
            if upper - below <= 1e-8 * (1 + abs(upper)):
                return Answer("optimal", upper, best)
            cuts.append(expected(x))
        return Answer("inaccurate")

    def _of_minimum(self, problem: cp.Problem, x: cp.Variable) -> Answer:
        """A minimum over decisions, in the words of the dual: no decision makes that unbounded."""
        status = solve(problem)
        if status == "optimal":
            return Answer(status, float(problem.value), np.asarray(x.value))
        return Answer({"infeasible": "infinite", "infinite": "infeasible"}.get(status, status))

    def _packed(self) -> Answer:
        """A linear integer program, by HiGHS: the nominal distribution leaves no choice."""
        pieces = self.cost.worst[0].pieces(self.item)
        slope = pieces.g[0] + pieces.F[0].T @ (self.item.weights @ self.item.atoms)
        result = milp(
            slope,
            constraints=LinearConstraint(self.cost.A, ub=self.cost.b),
            integrality=np.ones(len(slope)),
            bounds=Bounds(-np.inf),
        )
        if result.status == 2:
            return Answer("infinite")
        return Answer("optimal", float(result.fun), result.x) if result.status == 0 else Answer("inaccurate")


__all__ = ["Answer", "Reference", "solve"]
