"""Worst cases as atoms: expectations, conditional values-at-risk and whole supports, in costs and in constraints."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.lin_ops.lin_utils import get_id

from conelayers.internals import number
from drolayers.cost.tree import replaced, walk
from drolayers.errors import ModelError

TAU = "cvar_tau"
"""How the names of thresholds begin."""


class Kind(Enum):
    """What is taken of an expression under the worst distribution."""

    EXPECTED = "expected"
    ALWAYS = "always"
    CVAR = "cvar"
    CHANCE = "chance"
    FRAGILITY = "fragility"


class Marked(Wrap):
    """The expression that a CVaR is of, as a node that can be found again."""


class Tail(Wrap):
    """What a CVaR is of, where its threshold is chosen with the worst distribution: as a number, the expression."""

    def __init__(self, expression: cp.Expression, level: float) -> None:
        self.level = level
        super().__init__(expression)

    def name(self) -> str:
        """As it is written."""
        return f"cvar({self.args[0]}, {self.level:g})"

    def get_data(self) -> list[Any]:
        """What the constructor takes after the argument."""
        return [self.level]


class Worst(Wrap):
    """The worst of what an uncertain expression can be, by entry: as a number, its integrand at one outcome.

    Args:
        integrand: whose worst expectation it is, or for ``always`` whose largest outcome.
        kind: which worst case.
        level: of a CVaR.
        ambiguity: the set that it is over; the problem's unless given.
        equation: whether the rows of ``always`` are those of an equation, from both sides.
        label: the name that a user gave to the constraint.
        written: the whole constraint as the user wrote it, for ``always`` and ``chance``.
    """

    def __init__(
        self,
        integrand: cp.Expression,
        kind: Kind,
        level: float = 0.0,
        ambiguity: Any = None,
        equation: bool = False,
        label: str | None = None,
        written: str | None = None,
    ) -> None:
        self.kind, self.level, self.ambiguity, self.equation = kind, level, ambiguity, equation
        self.constraint_label, self.written = label, written
        super().__init__(integrand)

    @staticmethod
    def tail(
        expression: cp.Expression,
        kind: Kind,
        level: float,
        ambiguity: Any = None,
        label: str | None = None,
        written: str | None = None,
    ) -> Worst:
        """That of ``tau + (expression - tau)^+ / (1 - level)`` with a fresh ``tau``; of several rows the largest."""
        tau, number = cp.Variable(name=f"{TAU}{get_id()}"), Marked(expression)
        largest = number if expression.shape == () else cp.max(number)
        integrand = tau + cp.pos(largest - tau) / (1.0 - level)
        return Worst(integrand, kind, level, ambiguity, label=label, written=written)

    @property
    def expression(self) -> cp.Expression:
        """What the user wrote."""
        if self.kind not in (Kind.CVAR, Kind.CHANCE):
            return self.args[0]
        return next(node for node in walk(self.args) if isinstance(node, Marked)).args[0]

    def afresh(self) -> Worst:
        """The same with a threshold of its own."""
        if self.kind in (Kind.CVAR, Kind.CHANCE):
            return Worst.tail(
                self.expression, self.kind, self.level, self.ambiguity, self.constraint_label, self.written
            )
        tails = [node for node in walk(self.args) if isinstance(node, Tail)]
        own = {id(node): Worst.tail(node.args[0], Kind.CVAR, node.level).args[0] for node in tails}
        return self.copy([replaced(self.args[0], own)]) if tails else self

    def over(self, ambiguity: Any) -> Worst:
        """The same over another set."""
        return Worst(self.args[0], self.kind, self.level, ambiguity, self.equation, self.constraint_label, self.written)

    def name(self) -> str:
        """As it is written."""
        return f"{self.kind.value}({self.expression}{f', {self.level:g}' if self.level else ''})"

    def is_atom_concave(self) -> bool:
        """A supremum of expectations is not, whatever the expression."""
        return False

    def get_data(self) -> list[Any]:
        """What the constructor takes after the argument."""
        return [self.kind, self.level, self.ambiguity, self.equation, self.constraint_label, self.written]


def cvar(cost: cp.Expression, level: float, *, ambiguity: Any = None, name: str | None = None) -> cp.Expression:
    """The conditional value-at-risk of a cost, ``min_tau tau + E[(cost - tau)^+] / (1 - level)``.

    Under the worst distribution the supremum over the distributions and the minimum over ``tau`` interchange (the
    ambiguity set is convex and the expression convex in ``tau``), so ``tau`` is one more decision, the same for all
    distributions. It is kept as a part of the decision, so that the loss of a decision can be evaluated. The result is
    one maximum over all pieces of the cost together: it does not separate by coordinates.

    In a constraint, ``dro.cvar(expression, level) <= b``, it is the worst CVaR over the set, with a threshold that is
    no part of the decision.

    Args:
        cost: a scalar piecewise cost.
        level: between 0 and 1, both excluded; 0.95 averages over the worst 5 %.
        ambiguity: in a constraint, a set of its own; the problem's unless given.
        name: in a constraint, the name of the constraint in results.

    Returns:
        A CVXPY expression with a fresh scalar variable named ``cvar_tau…``.

    Reference:
        Rockafellar and Uryasev, Optimization of conditional value-at-risk, Journal of Risk 2 (2000).
    """
    level = _share("cvar", "level", level)
    cost = cp.Expression.cast_to_const(cost)
    if not cost.is_scalar():
        raise ModelError(f"cvar needs a scalar cost, not one of shape {cost.shape}: sum its entries with cp.sum.")
    return Worst.tail(cost if cost.shape == () else cp.sum(cost), Kind.CVAR, level, ambiguity, _label("cvar", name))


def expected(expression: cp.Expression, *, ambiguity: Any = None, name: str | None = None) -> cp.Expression:
    """The worst expectation over the set, ``sup_P E_P[expression]``, by entry.

    In a constraint it bounds the mean, ``dro.expected(expression) <= b``; bounded from below, as in
    ``dro.expected(profit) >= b``, it is the least one. In a cost ``dro.expected(a) + dro.expected(b)`` has a worst
    distribution for each, where ``a + b`` has one for both.

    Args:
        expression: of the decision and of ``y``, as a cost may be.
        ambiguity: a set of its own over the same ``y``, with its own part of θ; the problem's unless given.
        name: in a constraint, the name of the constraint in results.
    """
    label = _label("expected", name)
    return Worst(cp.Expression.cast_to_const(expression), Kind.EXPECTED, ambiguity=ambiguity, label=label)


def fragility(expression: cp.Expression, target: float | cp.Expression, *, ambiguity: Any = None) -> cp.Expression:
    """Robust satisficing: a cost, the least k ≥ 0 with ``E_P[expression] ≤ target + k d(P, Q)`` for every P.

    Q is the nominal distribution and d the distance of a Wasserstein set, whose radius is not used; P is any
    distribution on the support. With ``order=2`` it is the square of the distance. Where not even Q meets the target
    there is no such k: the item is INFEASIBLE, and ``problem.shortfalls`` tells by how much. Of ``dro.cvar(e, level)``
    it is the CVaR of every P that is compared with the target. At a single outcome, as in ``problem.loss``, a
    fragility is the excess over its target.

    Args:
        expression: scalar, of the decision and of ``y``, as a cost may be.
        target: a number, or an expression in the decision and known data, concave in the decision.
        ambiguity: the :class:`drolayers.Wasserstein` that says what a distance is; the problem's set unless given.

    Reference:
        Long, Sim and Zhou, Robust satisficing, Operations Research 71 (2023).
    """
    less = -cp.Expression.cast_to_const(target)
    number = not less.variables() and not less.parameters()
    excess = cp.Expression.cast_to_const(expression) + (cp.Constant(less.value) if number else less)
    if not excess.is_scalar():
        raise ModelError(f"fragility needs a scalar expression and target, not one of shape {excess.shape}.")
    cvars = [node for node in walk([excess]) if isinstance(node, Worst)]
    if any(node.kind is not Kind.CVAR or node.ambiguity is not None for node in cvars):
        raise ModelError(f"No worst case but dro.cvar, over the same set, may stand in fragility({expression}, ...).")
    tails: dict[int, cp.Expression] = {id(node): Tail(node.expression, node.level) for node in cvars}
    excess = replaced(excess, tails)
    return Worst(excess if excess.shape == () else cp.sum(excess), Kind.FRAGILITY, ambiguity=ambiguity)


def always(constraint: cp.Constraint, *, ambiguity: Any = None, name: str | None = None) -> cp.Constraint:
    """The constraint for every outcome that the set allows, row by row.

    That is the support for moment sets and for Wasserstein balls of order 1 and 2, which hold mass anywhere; the balls
    around atoms of positive weight for order ∞, and these atoms themselves for reweightings.

    Args:
        constraint: an inequality or equation in the decision and in ``y``.
        ambiguity: a set of its own; the problem's unless given.
        name: the name of the constraint in results.
    """
    rows, equation = _rows("always", constraint, equations=True), isinstance(constraint, cp.constraints.Equality)
    written = f"always({constraint})"
    worst = Worst(rows, Kind.ALWAYS, ambiguity=ambiguity, equation=equation, written=written)
    return _labelled(worst <= 0, _label("always", name))


def chance(
    constraint: cp.Constraint, probability: float, *, ambiguity: Any = None, name: str | None = None
) -> cp.Constraint:
    """All rows of a constraint at once with a probability of at least so much, under every distribution of the set.

    It is replaced by the worst CVaR of the largest row, which must not be positive: this suffices always, and is
    necessary for one affine row where one norm or power of a norm is bounded on all of space (``problem.exact``).

    Args:
        constraint: an inequality in the decision and in ``y``.
        probability: between 0 and 1, both excluded.
        ambiguity: a set of its own; the problem's unless given.
        name: the name of the constraint in results.
    """
    level = _share("chance", "probability", probability)
    rows, written = _rows("chance", constraint, equations=False), f"chance({constraint}, {level:g})"
    worst = Worst.tail(rows, Kind.CHANCE, level, ambiguity, written=written)
    return _labelled(worst <= 0, _label("chance", name))


def label_constraint(constraint: cp.Constraint) -> cp.Constraint:
    """Give a constraint the ``name=`` of the worst case in it, unless it has a label."""
    if constraint.label is not None:
        return constraint
    names = (node.constraint_label for node in walk(constraint.args) if isinstance(node, Worst))
    labels = {label for label in names if label is not None}
    if len(labels) > 1:
        raise ModelError(f"The worst cases of one constraint have several names {sorted(labels)}: give it one.")
    return _labelled(constraint, labels.pop() if labels else None)


def check_labels(constraints: Sequence[cp.Constraint]) -> None:
    """Raise if two constraints have one label."""
    labels = [constraint.label for constraint in constraints if constraint.label is not None]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ModelError(f"Two constraints are named {twice[0]!r}: give each a name of its own.")


def _labelled(constraint: cp.Constraint, label: str | None) -> cp.Constraint:
    """Set a constraint's label."""
    return constraint if label is None else constraint.set_label(label)


def _label(function: str, name: Any) -> str | None:
    """Check a name: text that is not empty."""
    if name is not None and not (isinstance(name, str) and name):
        raise ModelError(f"{function}(name={name!r}) needs a non-empty text such as 'budget'.")
    return name


def _share(function: str, name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    value = number(name, value)
    if not 0.0 < value < 1.0:
        raise ModelError(f"{function}({name}={value!r}) needs a {name} between 0 and 1, both excluded.")
    return value


def _rows(function: str, constraint: cp.Constraint, equations: bool) -> cp.Expression:
    """What must not be positive; an equation from both sides, as a vector."""
    kinds = (cp.constraints.Equality, cp.constraints.Inequality) if equations else (cp.constraints.Inequality,)
    if not isinstance(constraint, kinds):
        raise ModelError(
            f"dro.{function} needs {'a <= b or a == b' if equations else 'a <= b'} in the decision and y, not "
            f"{constraint!r}."
        )
    if any(isinstance(node, Worst) for node in walk(constraint.args)):
        raise ModelError(f"dro.{function} holds for single outcomes, so that no worst case may stand in {constraint}.")
    if isinstance(constraint, cp.constraints.Inequality):
        return constraint.expr
    rows = cp.vec(constraint.expr, order="F")
    return cp.hstack([rows, -rows])
