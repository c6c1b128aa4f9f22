"""Worst cases cut out of costs and constraints: each gets a variable above it, and what is left is free of ``y``.

``dro.expected(a) + 2 * dro.cvar(b, 0.9) <= x`` says ``v + 2 w <= x`` with ``v >= sup E[a]`` and ``w >= sup CVaR(b)``.
Worst cases may be added, and multiplied by what is not negative, so that v and w can be as small as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import BinaryOperator
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.expressions.leaf import Leaf
from jaxtyping import Float
from torch import Tensor

from drolayers.cost.adaptive import Adaptive
from drolayers.cost.affine_rule import Lifting
from drolayers.cost.lowering import shorten
from drolayers.cost.parse import PiecewiseCost, parse, parse_entries
from drolayers.cost.risk import Kind, Worst
from drolayers.cost.torch_loss import TorchCost
from drolayers.cost.tree import replaced, walk
from drolayers.errors import ModelError
from drolayers.tails import cvar, quantile
from drolayers.uncertainty import Uncertain

RULES = "[rule.constraint for rule in problem.rules]"
"""Where a problem has its constraints with worst cases."""


ROUNDING = 1e-6
"""Excess that is none, relative to the terms of its row: decisions come from solvers that stop a little outside."""


NARROW = 0.02
"""Mass on either side of a quantile, at least, over which it is smoothed."""


def beyond(outcomes: Tensor, sizes: Tensor) -> Tensor:
    """g(x, y), and zero where that is rounding beside the terms that it is made of; its derivative is as it was."""
    none = outcomes.isfinite() & sizes.isfinite() & (outcomes.abs() <= ROUNDING * sizes)
    return torch.where(none, outcomes - outcomes.detach(), outcomes)


@dataclass(frozen=True, eq=False)
class Part:
    """One worst case of a problem.

    Attributes:
        parsed: the pieces of its integrand.
        everywhere: whether it is over single outcomes that the set allows rather than over its distributions.
        stands_for: the variable that holds the number above it, among others; None for the cost itself.
        above: that number.
        ambiguity: the set that it is over; None for the problem's.
        price: where distances have a price rather than a radius, the variable above it; else None.
    """

    parsed: PiecewiseCost
    everywhere: bool = False
    stands_for: cp.Variable | None = None
    above: cp.Expression | None = None
    ambiguity: Any = None
    price: cp.Variable | None = None


@dataclass(frozen=True, eq=False)
class Rule:
    """A constraint that holds under the worst distribution.

    Attributes:
        constraint: as the user wrote it.
        kind: of its worst cases, or the first of several in the order of :class:`Kind`.
        level: the largest of its CVaRs.
        left: the rows that must not be positive, in the variables above the worst cases.
        outcome: the same at one outcome, in the decision and ``y``.
        parts: the worst cases; of ``always`` and of sums by row, one for every row.
        tails: what each CVaR contributes to the rows at one outcome, and its level; a single one, with all the rest.
    """

    constraint: cp.Constraint
    kind: Kind
    level: float
    left: cp.Expression
    outcome: cp.Expression
    parts: tuple[Part, ...]
    tails: tuple[tuple[cp.Expression, float], ...] = ()

    @cached_property
    def holds(self) -> cp.Constraint:
        """What the decision must satisfy."""
        return self.left <= 0

    @property
    def above(self) -> list[cp.Variable]:
        """The variables that hold the numbers above the worst cases, each once."""
        found = {part.stands_for.id: part.stands_for for part in self.parts if part.stands_for is not None}
        return list(found.values())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.left.size)

    def part(self, row: int | None) -> Part:
        """The worst case of a row; of the only one unless given."""
        rows = range(self.rows) if row is None else [row] if 0 <= row < self.rows else []
        found = {k for r in rows for k in self._depends[r]}
        if len(found) != 1:
            raise ModelError(
                f"The constraint {shorten(self.constraint)} has {len(self.parts)} worst cases in {self.rows} rows, "
                "each with a distribution of its own: give row=, or write one constraint for each."
            )
        return self.parts[found.pop()]

    @cached_property
    def _depends(self) -> list[list[int]]:
        """The worst cases that each row depends on: where its derivative, which is constant in them, is not zero."""
        leaves = (*self.left.variables(), *self.left.parameters())
        generator = torch.Generator().manual_seed(0)
        at = {leaf: 0.5 + torch.rand(1, *leaf.shape, dtype=torch.float64, generator=generator) for leaf in leaves}
        numbers = [at[variable].requires_grad_() for variable in self.above]
        found = []
        for value in TorchCost(self.left)(at)[0]:
            slopes = torch.autograd.grad(value, numbers, retain_graph=True, materialize_grads=True)
            # Parts are numbered column by column.
            found.append(np.flatnonzero(np.concatenate([s[0].numpy().ravel(order="F") for s in slopes])).tolist())
        return found

    @property
    def counted(self) -> bool:
        """Whether data say how often it does not hold, rather than by how much."""
        return self.kind in (Kind.ALWAYS, Kind.CHANCE)

    def missed(
        self,
        outcomes: Float[Tensor, "point row"],
        tails: Sequence[Float[Tensor, "point row"]] = (),
        weights: Float[Tensor, "point"] | None = None,
        allowed: float | None = None,
        sizes: Float[Tensor, "point row"] | None = None,
    ) -> Float[Tensor, ""]:
        """What data say of g(x, y) ≤ 0: how often it does not hold, or the largest row's excess; differentiable.

        On data an expectation is the mean and a CVaR that of the points, each worst case by itself.

        Args:
            outcomes: g(x, y).
            tails: the values of ``tails``.
            weights: of the points; all alike unless given.
            allowed: a share is a step function, without a derivative. With this one, the (1 - allowed)-quantile of the
                largest row takes its place, which is positive where the share is larger.
            sizes: of the terms that g is made of, where data say how often; next to none beside them is none.
        """
        if not len(outcomes):
            return outcomes.new_full((), torch.nan)
        share = torch.full_like(outcomes[:, 0], 1.0 / len(outcomes)) if weights is None else weights / weights.sum()
        if self.counted:
            worst = (outcomes if sizes is None else beyond(outcomes, sizes)).amax(1)
            if allowed is not None:
                return quantile(worst, 1.0 - allowed, max(0.5 * allowed, NARROW), share)
            # What is not known has neither held nor failed.
            return share @ (worst > 0).to(share).masked_fill(worst.isnan() & (share > 0), torch.nan)
        found = share @ (outcomes - sum(tails, torch.zeros_like(outcomes)))
        for values, (_, level) in zip(tails, self.tails, strict=True):
            found = found + torch.stack([cvar(row, level, share) for row in values.unbind(1)])
        return found.max()

    @property
    def affine(self) -> bool:
        """Whether a chance is one of a single row that is affine in ``y``: it has two pieces, that row and none."""
        return len(self.parts[0].parsed.pieces) <= 2


def has_worst_case(constraint: cp.Constraint) -> bool:
    """Whether a worst case stands in a constraint."""
    return any(isinstance(node, Worst) for node in walk(constraint.args))


def over_one_set(expression: Any) -> Any:
    """An expression or a constraint whose worst cases are all over the set of the problem."""
    own = [node for node in walk([expression]) if isinstance(node, Worst) and node.ambiguity is not None]
    return replaced(expression, {id(node): node.over(None) for node in own}) if own else expression


def rule(constraint: cp.Constraint, expression: cp.Expression, y: Uncertain, lifting: Lifting) -> Rule:
    """A constraint with its worst cases cut out.

    Args:
        constraint: as the user wrote it.
        expression: what must not be positive, second stages in matrix form.
        y: the uncertain vector.
        lifting: what adaptive decisions may respond to.

    Raises:
        ModelError: ``y`` stands outside of a worst case, or a worst case where a larger one is no worse.
    """
    expression = _turned(expression, 1, lambda node: True)
    found = [node for node in walk([expression]) if isinstance(node, Worst)]
    if any(node.kind is Kind.FRAGILITY for node in found):
        raise ModelError(f"dro.fragility is a cost and no constraint: bound dro.expected instead of {constraint}.")
    if not _grows(expression, found):
        raise ModelError(
            f"The constraint {shorten(constraint)} is not convex <= concave with worst cases on the left: bound "
            "them from above, or for dro.expected of what is concave from below."
        )
    parts, stand_ins = _cut(found, y, lifting)
    left = cp.vec(replaced(expression, stand_ins), order="F")
    if any(isinstance(p, Uncertain) for p in left.parameters()):
        raise ModelError(
            f"The constraint {shorten(constraint)} uses {y.name()} outside of a worst case: say for which outcomes it "
            "must hold, with dro.always, dro.expected, dro.cvar or dro.chance around it."
        )
    outcome = replaced(expression, {id(node): node.expression for node in found})
    kind = min((node.kind for node in found), key=list(Kind).index)
    level, tails = max(node.level for node in found), _tails(expression, found, outcome)
    return Rule(constraint, kind, level, left, cp.vec(outcome, order="F"), parts, tails)


def _tails(
    expression: cp.Expression, found: Sequence[Worst], outcome: cp.Expression
) -> tuple[tuple[cp.Expression, float], ...]:
    """What each CVaR of an expression that is affine in its worst cases contributes at one outcome."""
    of = [node for node in found if node.kind is Kind.CVAR]
    if len(found) == 1:
        return tuple((cp.vec(outcome, order="F"), node.level) for node in of)
    zeros: dict[int, cp.Expression] = {id(node): cp.Constant(np.zeros(node.shape)) for node in found}
    alone = replaced(expression, dict(zeros))
    return tuple(
        (cp.vec(replaced(expression, {**zeros, id(node): node.expression}) - alone, order="F"), node.level)
        for node in of
    )


class Nominally(Wrap):
    """The mean under the nominal distribution, in the text of a target."""

    def name(self) -> str:
        """As it is meant."""
        return f"E[{self.args[0]}]"


def separated(
    cost: cp.Expression, y: Uncertain, lifting: Lifting
) -> tuple[cp.Expression, tuple[Part, ...], tuple[Rule, ...]]:
    """A cost with a variable in place of every ``dro.expected`` and ``dro.fragility``, their worst cases, and targets.

    A single expectation beside which nothing is uncertain is the worst case of the whole. A fragility is two things:
    the price of distances, in the cost, and the target, which is met at that price: a rule.
    """
    own = (Kind.EXPECTED, Kind.FRAGILITY)
    cost = _turned(cost, 1, lambda node: node.kind in own)
    everywhere = [node for node in walk([cost]) if isinstance(node, Worst)]
    found = [node for node in everywhere if node.kind in own]
    for node in everywhere:
        if node.kind is Kind.CVAR and node.ambiguity is not None:
            raise ModelError(
                f"In a cost {shorten(node)} has the worst distribution of the whole: for a set of its own write "
                "dro.expected(dro.cvar(...), ambiguity=...)."
            )
    if not found:
        return cost, (), ()
    if not _grows(cost, found):
        raise ModelError(
            f"The cost {shorten(cost)} is not convex by CVXPY's rules with its worst cases added, or multiplied by "
            "what is not negative: declare known data with cp.Parameter(nonneg=True)."
        )
    if len(found) == 1 and found[0].size == 1 and found[0].kind is Kind.EXPECTED and found[0].ambiguity is None:
        rest = replaced(cost, {id(found[0]): cp.Constant(np.zeros(found[0].shape))})
        if not any(isinstance(node, Worst | Uncertain) for node in walk([rest])):
            return replaced(cost, {id(found[0]): found[0].args[0]}), (), ()
    parts, stand_ins = _cut([node for node in found if node.kind is Kind.EXPECTED], y, lifting)
    targets = []
    for node in found:
        if node.kind is Kind.FRAGILITY:
            target, stand_ins[id(node)] = _target(node, y)
            targets.append(target)
    return replaced(cost, stand_ins), (*parts, *(target.parts[0] for target in targets)), tuple(targets)


def _target(node: Worst, y: Uncertain) -> tuple[Rule, cp.Variable]:
    """The target of a fragility, to be met at a price, and the price."""
    if named := _adaptive(node):
        raise ModelError(
            f"dro.fragility cannot hold the adaptive decision {named[0].name()}, whose rule belongs to the set of the "
            "cost: write a second stage with dro.recourse in it."
        )
    excess, price = cp.Variable(name="excess"), cp.Variable(nonneg=True, name=node.kind.value)
    part = Part(parse(node.afresh().args[0], y), False, excess, excess, node.ambiguity, price)
    if part.parsed.curves:
        raise ModelError(
            f"dro.fragility needs a cost of pieces that are affine in y, and {part.parsed.curves[0].text} is curved: "
            "bound it by some."
        )
    met = Nominally(node.args[0]) <= 0
    return Rule(met, node.kind, 0.0, cp.vec(excess, order="F"), cp.vec(node.args[0], order="F"), (part,)), price


def _adaptive(node: Worst) -> list[Adaptive]:
    """The adaptive decisions in a worst case."""
    return [v for v in node.variables() if isinstance(v, Adaptive)]


def _over(node: Worst, lifting: Lifting) -> Lifting:
    """What decision rules in a worst case may respond to: over a set of its own, second stages to that set's moments.

    Raises:
        ModelError: an adaptive decision responds to moments, or distances, of another set.
    """
    if node.ambiguity is None or node.ambiguity is lifting.owner:
        return lifting
    named = _adaptive(node)
    if not named:
        return Lifting.of(node.ambiguity)
    if lifting.components:
        raise ModelError(
            f"{shorten(node)} is over a set of its own, and the adaptive decision {named[0].name()} responds to "
            "moments or distances of the set of the cost: leave ambiguity= out there."
        )
    return lifting


def _grows(expression: cp.Expression, found: Sequence[Worst]) -> bool:
    """Whether an expression is convex, and grows with its worst cases: else it would not be so in something convex."""
    convex = {id(node): cp.maximum(cp.Variable(node.shape), cp.Variable(node.shape)) for node in found}
    return bool(expression.is_convex() and replaced(expression, convex).is_convex())


def _cut(found: Sequence[Worst], y: Uncertain, lifting: Lifting) -> tuple[tuple[Part, ...], dict[int, cp.Expression]]:
    """One part for every entry of every worst case, and the variables that stand for them."""
    parts: list[Part] = []
    stand_ins: dict[int, cp.Expression] = {}
    for node in found:
        above = cp.Variable(node.shape, name=node.kind.value)
        stand_ins[id(node)] = above
        # The threshold is its own: that of the same CVaR in a cost is a part of the decision.
        integrand, own = node.afresh().args[0], _over(node, lifting)
        everywhere, of_set = node.kind is Kind.ALWAYS, node.ambiguity
        adapts = everywhere and bool(_adaptive(node))
        if adapts and node.equation:
            # From both sides it would leave rules no room: all their coefficients are matched instead.
            stand_ins[id(node)] = cp.Constant(-np.ones(node.shape))
            both = cp.vec(integrand, order="F")
            matched = parse(cp.Constant(0.0), y, own, equations=[both[: both.size // 2]])
            parts.append(Part(matched, everywhere, ambiguity=of_set))
            continue
        if adapts and all(isinstance(inner, AffAtom | Leaf) for inner in walk([integrand])):
            # Nobody asks for the worst outcome of a rule's single row: all are said at once.
            below = parse(cp.Constant(0.0), y, own, [cp.vec(integrand - above, order="F")])
            parts.append(Part(below, everywhere, ambiguity=of_set))
            continue
        parts += [
            Part(parsed, everywhere, above, entry, of_set)
            for parsed, entry in zip(parse_entries(integrand, y, own), _entries(above), strict=True)
        ]
    return tuple(parts), stand_ins


def _entries(expression: cp.Expression) -> list[cp.Expression]:
    """The entries of an expression, in Fortran order."""
    if expression.shape == ():
        return [expression]
    flat = cp.vec(expression, order="F")
    return [flat[k] for k in range(flat.size)]


def _turned(node: cp.Expression, sign: int, wanted: Callable[[Worst], bool]) -> cp.Expression:
    """The same with ``-expected(-e)`` in place of ``expected(e)`` where a smaller one is worse."""
    if isinstance(node, Worst) and wanted(node):
        if any(isinstance(inner, Worst) and wanted(inner) for inner in walk(node.args)):
            raise ModelError(f"The worst case {shorten(node)} is of another one: take the inner one out of it.")
        if sign > 0 or node.kind is not Kind.EXPECTED:
            return node
        return -Worst(-node.args[0], node.kind, ambiguity=node.ambiguity)
    if not any(isinstance(inner, Worst) and wanted(inner) for inner in walk([node])):
        return node
    if not isinstance(node, AffAtom):
        raise ModelError(
            f"A worst case stands inside of {shorten(node)}: worst cases can be added to each other, and multiplied by "
            "what is not negative."
        )
    signs = [-sign if isinstance(node, NegExpression) else sign] * len(node.args)
    if isinstance(node, BinaryOperator):
        signs = [-sign if other.is_nonpos() and not other.is_nonneg() else sign for other in reversed(node.args)]
    args = [_turned(arg, s, wanted) for arg, s in zip(node.args, signs, strict=True)]
    return node if all(new is old for new, old in zip(args, node.args, strict=True)) else node.copy(args)
