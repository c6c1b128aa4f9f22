"""From a CVXPY tree to expressions that are affine in ``x`` and in ``y``, and the maxima between them.

Four kinds of nodes are cut out of the tree and replaced by fresh variables:

* a maximum that sees ``y`` (also a minimum, an absolute value, a 1- or infinity-norm), whose arguments become rows;
* a subtree that does not see ``y`` and is not affine, ``c(x)``, which becomes an epigraph variable ``e >= c(x)``: by
  CVXPY's rules the cost is nondecreasing in it (hypographs of concave ones likewise);
* a two-stage cost, which becomes the maximum over the vertices of its dual, or the cost of a decision rule;
* a loss that is curved in ``y``, such as a square, which becomes a marker, its argument rows.

What remains is bilinear in ``x`` and ``y``, and CVXPY itself computes its coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.promote import promote
from cvxpy.expressions.leaf import Leaf

from conelayers.internals import key_text
from drolayers.cost.adaptive import Adaptive
from drolayers.cost.losses import Loss, loss_of
from drolayers.cost.recourse import Recourse
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain


@dataclass(frozen=True)
class Maximum:
    """A fresh variable whose entries are maxima of rows; ``owner[r]`` is the entry that row ``r`` belongs to."""

    node: cp.Expression
    variable: cp.Variable
    rows: tuple[cp.Expression, ...]
    owner: np.ndarray


@dataclass(frozen=True)
class Epigraph:
    """A fresh variable that stands for a non-affine expression of ``x`` alone."""

    variable: cp.Variable
    expression: cp.Expression

    @property
    def constraint(self) -> cp.Constraint:
        """What ties the variable to its expression."""
        if self.expression.is_convex():
            return self.variable >= self.expression
        return self.variable <= self.expression


@dataclass(frozen=True)
class Curve:
    """A fresh variable that stands for the losses of some rows, entry by entry."""

    node: cp.Expression
    variable: cp.Variable
    loss: Loss
    rows: cp.Expression


@dataclass
class Lowered:
    """The affine remainder of a cost, and what was cut out of it; inner maxima come before outer ones.

    ``forbidden`` must not be positive and ``equations`` must vanish for every ``y``; ``stages`` are the actions of
    second stages that are left to decision rules. ``rays`` tells what members of ``forbidden`` are combinations of, by
    their numbers.
    """

    remainder: cp.Expression
    maxima: list[Maximum] = field(default_factory=list)
    epigraphs: list[Epigraph] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    forbidden: list[cp.Expression] = field(default_factory=list)
    equations: list[cp.Expression] = field(default_factory=list)
    stages: list[Adaptive] = field(default_factory=list)
    rays: dict[int, tuple[sp.csr_array, cp.Expression]] = field(default_factory=dict)


def lower(
    cost: cp.Expression,
    y: Uncertain,
    forbidden: Sequence[cp.Expression] = (),
    equations: Sequence[cp.Expression] = (),
) -> Lowered:
    """Cuts a convex cost, and what must not be positive or must vanish beside it, into affine expressions and maxima.

    Raises:
        ModelError: some node is neither affine nor piecewise affine in ``y``.
    """
    worker = _Lowering(y)
    worker.result.remainder = worker.lower(cost)
    worker.result.forbidden += [worker.lower(expression) for expression in forbidden]
    worker.result.equations += [worker.lower(expression) for expression in equations]
    return worker.result


def shorten(expression: cp.Expression) -> str:
    """The text of an expression, short enough for a message."""
    return key_text(expression)


class _Lowering:
    """One walk over the tree; each node is visited once, however often it is used."""

    def __init__(self, y: Uncertain) -> None:
        self.y = y
        self.result = Lowered(cp.Constant(0.0))
        # Keyed by id; the nodes are kept alive by the tree, the results by the table.
        self._sees: dict[int, bool] = {}
        self._done: dict[int, cp.Expression] = {}

    def sees(self, node: cp.Expression) -> bool:
        """Whether the walk has to enter this node: it holds ``y``, what depends on it, or a two-stage cost."""
        if id(node) not in self._sees:
            self._sees[id(node)] = (
                node is self.y or isinstance(node, Recourse | Adaptive) or any(self.sees(arg) for arg in node.args)
            )
        return self._sees[id(node)]

    def lower(self, node: cp.Expression) -> cp.Expression:
        """The node without maxima and without non-affine parts."""
        if id(node) not in self._done:
            self._done[id(node)] = self._lower(node)
        return self._done[id(node)]

    def _lower(self, node: cp.Expression) -> cp.Expression:
        if not self.sees(node):
            return self._blind(node)
        if isinstance(node, Leaf):
            return self.y.entries if node is self.y else node
        if isinstance(node, Recourse):
            return self._recourse(node)
        if isinstance(node, cp.maximum):
            return self._maximum(node, [self.lower(arg) for arg in node.args])
        if isinstance(node, cp.minimum):
            return -self._maximum(node, [-self.lower(arg) for arg in node.args])
        if isinstance(node, cp.max):
            return self._reduce(node, [self.lower(node.args[0])])
        if isinstance(node, cp.min):
            return -self._reduce(node, [-self.lower(node.args[0])])
        if isinstance(node, cp.abs):
            sides = self._sides(node)
            return sides[0] if len(sides) == 1 else self._maximum(node, sides)
        if isinstance(node, cp.norm1):
            sides = self._sides(node)
            entries = sides[0] if len(sides) == 1 else self._maximum(node, sides, shape=node.args[0].shape)
            return cp.sum(entries, axis=node.axis, keepdims=node.keepdims)
        if isinstance(node, cp.norm_inf):
            return self._reduce(node, self._sides(node))
        if isinstance(node, cp.cumsum):
            return _cumsum(node, self.lower(node.args[0]))
        if isinstance(node, AffAtom):
            return self._affine(node)
        if (loss := loss_of(node)) is not None:
            return self._curve(node, loss)
        raise ModelError(
            f"The part {shorten(node)} of the cost is not piecewise affine in {self.y.name()}, as far as can be seen: "
            "write it with sums, cp.maximum, cp.max, cp.abs, cp.pos or the 1- and infinity-norms of affine "
            "expressions, or with cp.square, cp.huber, cp.logistic or cp.exp of them."
        )

    def _blind(self, node: cp.Expression) -> cp.Expression:
        """A node that does not see ``y``: as it is where it is affine, a fresh variable where it is not."""
        with cp.utilities.scopes.dpp_scope():
            if node.is_affine():
                return _summed(node)
            whole = node.is_convex() or node.is_concave()
        # Known data may multiply a convex function of known data, fee * cp.norm1(x - holdings): then that is cut out.
        return self._affine(node) if isinstance(node, AffAtom) and not whole else self._epigraph(node)

    def _affine(self, node: AffAtom) -> cp.Expression:
        """The same affine atom of lowered arguments."""
        args = [self.lower(arg) for arg in node.args]
        if all(new is old for new, old in zip(args, node.args, strict=True)):
            return node
        return node.copy(args)

    def _sides(self, node: cp.Expression) -> list[cp.Expression]:
        """The arguments ``a, -a`` of an absolute value, or the one that is known to be the larger."""
        arg, lowered = node.args[0], self.lower(node.args[0])
        if arg.is_nonneg():
            return [lowered]
        return [-lowered] if arg.is_nonpos() else [lowered, -lowered]

    def _maximum(
        self, node: cp.Expression, args: list[cp.Expression], shape: tuple[int, ...] | None = None
    ) -> cp.Expression:
        """The elementwise maximum of the arguments."""
        shape = node.shape if shape is None else shape
        args = [arg if arg.shape == shape else _spread(arg, shape) for arg in args]
        size = int(np.prod(shape))
        return self._cut(node, shape, args, np.tile(np.arange(size), len(args)))

    def _reduce(self, node: cp.Expression, args: list[cp.Expression]) -> cp.Expression:
        """The maximum of the arguments along the axes of the node."""
        kept = np.arange(node.size).reshape(np.zeros(args[0].shape).max(node.axis, keepdims=True).shape, order="F")
        owner = np.broadcast_to(kept, args[0].shape).ravel(order="F")
        return self._cut(node, node.shape, args, np.tile(owner, len(args)))

    def _cut(
        self, node: cp.Expression, shape: tuple[int, ...], rows: list[cp.Expression], owner: np.ndarray
    ) -> cp.Variable:
        """A fresh variable for a maximum of rows."""
        variable = cp.Variable(shape)
        self.result.maxima.append(Maximum(node, variable, tuple(rows), owner))
        return variable

    def _epigraph(self, node: cp.Expression) -> cp.Variable:
        """A fresh variable for a non-affine function of the decision."""
        if node.is_affine():
            # CVXPY takes it for a constant, or a multiple of one, whose sign and slope it does not ask for.
            names = " and ".join(p.name() for p in node.parameters())
            raise ModelError(
                f"The part {shorten(node)} of the cost is not affine in {names}: make what it computes from known data "
                "alone (a product, a quotient, a function) a parameter of its own."
            )
        variable = cp.Variable(node.shape, name=f"epigraph_{len(self.result.epigraphs)}")
        self.result.epigraphs.append(Epigraph(variable, node))
        return variable

    def _curve(self, node: cp.Expression, loss: Loss) -> cp.Expression:
        """Markers for the losses of all entries; a sum of squares is one of them."""
        rows = self.lower(node.args[0])
        marker = cp.Variable(node.args[0].shape)
        self.result.curves.append(Curve(node, marker, loss, rows))
        return cp.sum(marker) / node.args[1] if isinstance(node, cp.quad_over_lin) else marker

    def _recourse(self, node: Recourse) -> cp.Expression:
        """The maximum over dual vertices with the rays forbidden, or the cost of a decision rule."""
        rhs = self.lower(node.args[0])
        vertices, forbidden = node.stage.vertices, node.stage.forbidden
        if forbidden is not None:
            self.result.rays[len(self.result.forbidden)] = forbidden, rhs
            self.result.forbidden.append(cp.Constant(forbidden) @ rhs)
        if vertices is not None:
            rows = [cp.Constant(vertices.points) @ rhs]
            return cp.sum(self._cut(node, (vertices.blocks,), rows, vertices.block))
        q, W = node.ruled()
        actions = Adaptive(q.size, to=self.y)
        self.result.stages.append(actions)
        self.result.forbidden.append(-actions)
        self.result.equations.append(W @ actions - rhs)
        # A maximum of the same twice is it, but may not be subtracted.
        return self._cut(node, (), [q @ actions, q @ actions], np.zeros(2, dtype=np.int64))


def _spread(arg: cp.Expression, shape: tuple[int, ...]) -> cp.Expression:
    """Broadcasting as CVXPY's elementwise atoms do it."""
    return promote(arg, shape) if arg.shape == () else cp.broadcast_to(arg, shape)


def _summed(node: cp.Expression) -> cp.Expression:
    """An affine expression with products in the place of cumulative sums."""
    if isinstance(node, Leaf) or cp.cumsum not in node.atoms():
        return node
    args = [_summed(arg) for arg in node.args]
    return _cumsum(node, args[0]) if isinstance(node, cp.cumsum) else node.copy(args)


def _cumsum(node: cp.cumsum, arg: cp.Expression) -> cp.Expression:
    """A cumulative sum as a product with a constant matrix, for want of a lowering in CVXPY."""
    units = np.eye(arg.size).reshape(*arg.shape, arg.size, order="F")
    if node.axis is None:
        summed = np.cumsum(units.reshape(arg.size, arg.size), axis=0)
    else:
        summed = np.cumsum(units, axis=node.axis)
    matrix = summed.reshape(node.size, arg.size, order="F")
    return cp.reshape(cp.Constant(matrix) @ cp.vec(arg, order="F"), node.shape, order="F")
