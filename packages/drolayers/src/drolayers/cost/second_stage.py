"""Second stages written in CVXPY, brought to the matrix form ``min q'g, W g = rhs(x, y), g >= 0``.

What holds none of a second stage's own variables is cut out of it, as a vector d(x, y) of data. What is left is a
linear program in its own variables and d alone, which CVXPY canonicalises once. Its rows read ``A z = H d`` or
``A z <= H d``, and become the matrix form in three steps:

* bounds on one variable move it or turn it round, so that it is nonnegative;
* an inequality gets a slack column, which is what leaves decision rules their room;
* a variable without a bound is eliminated together with one of its rows: nothing is lost, also for a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import BinaryOperator
from cvxpy.atoms.affine.unary_operators import NegExpression

from conelayers import compile_program
from conelayers.internals import AffineMap
from drolayers.cost.lowering import shorten
from drolayers.cost.recourse import UNBOUNDED, RecourseProgram, stage_of
from drolayers.cost.risk import TAU
from drolayers.cost.tree import replaced, walk
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

LINEAR = (AffAtom, cp.maximum, cp.minimum, cp.max, cp.min, cp.abs, cp.norm1, cp.norm_inf, cp.sum_largest)
PRODUCTS = (BinaryOperator, cp.kron, cp.conv, cp.convolve)
ROUNDING = 1e-12
"""What is left of a coefficient that should have vanished, relative to the largest of its row."""


def resolved(costs: Sequence[cp.Expression], constraints: Sequence[cp.Constraint]) -> list[cp.Expression]:
    """Costs with every second stage that was written in CVXPY in matrix form.

    Args:
        costs: the cost of a problem, and what has worst cases among its constraints.
        constraints: the other constraints, since a variable that stands there is decided before y is seen.

    Raises:
        ModelError: a variable could belong to two second stages, or one of them is no linear program.
    """
    programs, decided = _walked(costs)
    if not programs:
        return list(costs)
    misplaced, constrained = _walked(argument for constraint in constraints for argument in constraint.args)
    if misplaced:
        raise ModelError(
            "A second stage is a part of the cost: it cannot stand in a constraint, unless dro.expected, dro.cvar or "
            "dro.always is around it."
        )
    outside = {variable.id for variable in (*decided, *constrained)}
    owner: dict[int, RecourseProgram] = {}
    for program in programs:
        for variable in program.variables():
            if variable.id not in outside and owner.setdefault(variable.id, program) is not program:
                raise ModelError(
                    f"The variable {variable.name()} stands in two second stages and nowhere else: give each one "
                    "of its own, or name it in a constraint of the problem if it is decided before y is known."
                )
    if all(variable.name().startswith(TAU) for variable in (*decided, *constrained)):
        raise ModelError(
            "All variables of the cost stand in second stages only, so that nothing is decided before y is known: "
            "name the first decision in a constraint of the problem, for example x >= 0."
        )
    forms = {id(program): _matrix_form(program, outside) for program in programs}
    return [replaced(cost, forms) for cost in costs]


def _walked(expressions: Iterable[cp.Expression]) -> tuple[list[RecourseProgram], list[cp.Variable]]:
    """The second stages in some expressions, and the variables outside of them."""
    nodes = walk(expressions, RecourseProgram)
    programs = [node for node in nodes if isinstance(node, RecourseProgram)]
    return programs, [node for node in nodes if isinstance(node, cp.Variable)]


def _terms(node: cp.Expression) -> list[cp.Expression]:
    """The terms of a sum, signs included."""
    if isinstance(node, NegExpression):
        return [-term for term in _terms(node.args[0])]
    return [t for arg in node.args for t in _terms(arg)] if isinstance(node, AddExpression) else [node]


def _holds(node: cp.Expression, own: set[int]) -> bool:
    """Whether second-stage variables stand in an expression."""
    return any(variable.id in own for variable in node.variables())


def _matrix_form(program: RecourseProgram, outside: set[int]) -> cp.Expression:
    """The value of a second stage whose own variables are those that do not stand outside."""
    variables = [variable for variable in program.variables() if variable.id not in outside]
    own = {variable.id for variable in variables}
    if not own:
        raise ModelError(
            f"The second stage {shorten(program.args[0])} has no variables of its own, since all of them stand "
            "elsewhere in the problem too: put constraints on second-stage variables into the second stage."
        )
    for variable in variables:
        if variable.attributes["boolean"] or variable.attributes["integer"]:
            raise ModelError(
                f"The second-stage variable {variable.name()} is integer, but a second stage must be a linear program: "
                "relax it, or name it in a constraint of the problem if it is decided before y is known."
            )
    objective, *rows = program.args
    terms = _terms(objective)
    # What the second stage cannot change need not be linear.
    apart: cp.Expression = sum((cp.sum(t) for t in terms if not _holds(t, own)), start=cp.Constant(0.0))
    data = _Data(own)
    goal = cp.Minimize(sum((cp.sum(data.cut(t)) for t in terms if _holds(t, own)), start=cp.Constant(0.0)))
    lines = zip((data.cut(row) for row in rows), program.equations, strict=True)
    constraints = [line == 0 if equation else line <= 0 for line, equation in lines]
    for part, said in zip(program.args, (goal, *constraints), strict=True):
        if not said.is_dcp():
            raise ModelError(
                f"The part {shorten(part)} of a second stage is not convex by CVXPY's rules: write costs as sums of "
                "convex terms, and constraints as convex <= concave or affine == affine."
            )
    system = _System.of(cp.Problem(goal, constraints), data).standard()
    shares = data.combined(system.fixed)
    value = apart + (cp.sum(shares) if len(system.q) == 1 else data.prices @ shares)
    costs = system.q[0] if len(system.q) == 1 else data.prices @ system.q
    if not len(system.W):
        if system.q.min(initial=0.0) < 0 or not all(p.is_nonneg() for p in data.known.values()):
            raise ModelError(UNBOUNDED)
        return value
    return value + stage_of(data.combined(system.H), costs, system.W, program.method, roomy=True)


class _Data:
    """The parts of a second stage that hold none of its own variables, cut out of it; each becomes a variable."""

    def __init__(self, own: set[int]) -> None:
        self.own = own
        self.parts: dict[int, tuple[cp.Expression, cp.Variable]] = {}
        self.known: dict[int, cp.Parameter] = {}

    @property
    def prices(self) -> cp.Expression:
        """One, and all known data that second-stage variables are multiplied by, row by row."""
        return cp.hstack([np.ones(1), *(cp.vec(p, order="C") for p in self.known.values())])

    @property
    def variables(self) -> list[cp.Variable]:
        """What stands for the parts."""
        return [variable for _, variable in self.parts.values()]

    def combined(self, matrix: np.ndarray) -> cp.Expression:
        """The matrix times (d, 1), without parts that count nothing: known data there would stand in products."""
        matrix = np.atleast_2d(matrix)
        ends = np.cumsum([0, *(variable.size for variable in self.variables)])
        columns = [np.arange(a, b) for a, b in pairwise(ends)]
        used = [(part, k) for (part, _), k in zip(self.parts.values(), columns, strict=True) if matrix[:, k].any()]
        stack = [cp.vec(part, order="F") for part, _ in used]
        kept = matrix[:, np.concatenate([*(k for _, k in used), ends[-1:]])]
        return cp.Constant(sp.csr_array(kept)) @ cp.hstack([*stack, cp.Constant(np.ones(1))])

    def cut(self, node: cp.Expression) -> cp.Expression:
        """The expression without its data."""
        if not node.variables() and not node.parameters():
            return node
        mine = _holds(node, self.own)
        if isinstance(node, cp.Variable) and mine:
            return node
        if not mine and node.is_affine():
            if id(node) not in self.parts:
                # CVXPY's rules may lean on the sign.
                stand_in = cp.Variable(node.shape, nonneg=node.is_nonneg())
                self.parts[id(node)] = node, stand_in
            return self.parts[id(node)][1]
        if isinstance(node, PRODUCTS) and mine:
            self._check_product(node)
            return node.copy([self.cut(arg) if _holds(arg, self.own) else arg for arg in node.args])
        if not isinstance(node, LINEAR):
            raise ModelError(
                f"The part {shorten(node)} of a second stage is not linear: use sums, cp.maximum, cp.abs, cp.pos, "
                "cp.sum_largest or the 1- and infinity-norms."
            )
        return node.copy([self.cut(arg) for arg in node.args])

    def _check_product(self, node: cp.Expression) -> None:
        """Refuses factors of second-stage variables that are neither constants nor known data."""
        factors = [factor for factor in node.args if not _holds(factor, self.own)]
        leaves = [leaf for factor in factors for leaf in (*factor.variables(), *factor.parameters())]
        known = [leaf for leaf in leaves if isinstance(leaf, cp.Parameter) and not isinstance(leaf, Uncertain)]
        names = [leaf.name() for leaf in leaves if leaf.id not in {p.id for p in known}]
        if names or not factors:
            what = " and ".join(names) if names else "second-stage variables"
            raise ModelError(
                f"The second stage multiplies its variables by {what} in {shorten(node)}: their coefficients must be "
                "constants, their costs constants or known data, only the right-hand side may depend on the decision "
                "and on y."
            )
        self.known |= {p.id: p for p in known}


@dataclass(frozen=True)
class _System:
    """``min q'z + fixed'(d, 1)`` subject to ``W z = H (d, 1)`` in some rows and ``W z <= H (d, 1)`` in the others.

    q and fixed have a row of constants, and one for every number of known data that the costs are affine in.
    """

    q: np.ndarray
    W: np.ndarray
    H: np.ndarray
    fixed: np.ndarray
    equation: np.ndarray

    @classmethod
    def of(cls, problem: cp.Problem, cut: _Data) -> _System:
        """CVXPY's canonical form, with the columns of the data on the other side."""
        data, priced = cut.variables, list(cut.known.values())
        program = compile_program(problem, priced, free=data)
        if program.A_map.varies or program.b_map.varies:
            names = " and ".join(p.name() for p in priced)
            raise ModelError(
                f"The second stage multiplies its variables by {names} in a constraint or inside a maximum: there "
                "coefficients must be constants, so make it a cost or a right-hand side, or build a problem a value."
            )
        A = sp.csr_array(
            (program.A_map.constant.numpy(), program.A_indices.numpy(), program.A_indptr.numpy()),
            shape=(program.cones.rows, program.columns),
        ).toarray()
        b, count = program.b_map.constant.numpy(), sum(p.size for p in priced)
        q, constant = _by_data(program.q_map, count), _by_data(program.constant_map, count)
        start = {slot.key: slot.offset for slot in program.variables}
        known = np.concatenate([np.zeros(0, int), *(start[v.id] + np.arange(v.size) for v in data if v.id in start)])
        z = np.setdiff1d(np.arange(program.columns), known)
        # A part that canonicalisation lost, for example 0 * x, counts nothing.
        kept = np.concatenate([np.zeros(0, bool), *(np.full(v.size, v.id in start) for v in data)])
        H, fixed = np.zeros((len(b), kept.size + 1)), np.zeros((count + 1, kept.size + 1))
        H[:, :-1][:, kept], H[:, -1] = -A[:, known], b
        fixed[:, :-1][:, kept], fixed[:, -1] = q[:, known], constant[:, 0]
        return cls(q[:, z], A[:, z], H, fixed, np.arange(len(b)) < program.cones.zero)

    def standard(self) -> _System:
        """The same value over nonnegative variables with equations alone."""
        moved, free = self._nonnegative()
        slack = np.eye(len(moved.W))[:, ~moved.equation]
        equations = replace(
            moved,
            q=np.hstack([moved.q, np.zeros((len(moved.q), slack.shape[1]))]),
            W=np.hstack([moved.W, slack]),
            equation=np.ones(len(slack), dtype=bool),
        )
        return equations._without(np.flatnonzero(free))

    def _nonnegative(self) -> tuple[_System, np.ndarray]:
        """Bounded variables moved and turned so that they are nonnegative, and which have no bound."""
        alone = ~self.equation & (np.count_nonzero(self.W, axis=1) == 1) & ~self.H[:, :-1].any(axis=1)
        row, column = np.nonzero(np.where(alone[:, None], self.W, 0.0))
        slope = self.W[row, column]
        lower, upper = (np.full(self.q.shape[1], end) for end in (-np.inf, np.inf))
        np.maximum.at(lower, column[slope < 0], (self.H[row, -1] / slope)[slope < 0])
        np.minimum.at(upper, column[slope > 0], (self.H[row, -1] / slope)[slope > 0])
        turn = np.where(np.isinf(lower) & np.isfinite(upper), -1.0, 1.0)
        start = np.where(turn > 0, np.where(np.isfinite(lower), lower, 0.0), upper)
        said = row[slope * turn[column] < 0]
        kept = np.setdiff1d(np.arange(len(self.W)), said)
        H, fixed = self.H.copy(), self.fixed.copy()
        H[:, -1] -= self.W @ start
        fixed[:, -1] += self.q @ start
        moved = _System(self.q * turn, (self.W * turn)[kept], H[kept], fixed, self.equation[kept])
        return moved, np.isinf(lower) & np.isinf(upper)

    def _without(self, free: np.ndarray) -> _System:
        """The equations solved for the free variables, each with the row in which it counts most."""
        q, W, H, fixed = self.q.copy(), self.W.copy(), self.H.copy(), self.fixed.copy()
        for j in free:
            if not len(W) or not np.abs(W[:, j]).max():
                if np.abs(q[:, j]).max() > ROUNDING * np.abs(self.q).max():
                    raise ModelError(UNBOUNDED)
                continue
            pivot = int(np.abs(W[:, j]).argmax())
            price, share = q[:, j] / W[pivot, j], W[:, j] / W[pivot, j]
            fixed, q = fixed + np.outer(price, H[pivot]), q - np.outer(price, W[pivot])
            size = np.abs(W).max(axis=1, keepdims=True)
            W, H = W - np.outer(share, W[pivot]), H - np.outer(share, H[pivot])
            W[np.abs(W) <= ROUNDING * size] = 0.0
            W, H = np.delete(W, pivot, axis=0), np.delete(H, pivot, axis=0)
        kept = np.setdiff1d(np.arange(q.shape[1]), free)
        return _System(q[:, kept], W[:, kept], H, fixed, np.ones(len(W), dtype=bool))


def _by_data(costs: AffineMap, count: int) -> np.ndarray:
    """The constants of an affine map, then its coefficients for each of so many numbers."""
    found = np.zeros((count + 1, len(costs.constant)))
    found[0] = costs.constant.numpy()
    np.add.at(found, (costs.column.numpy() + 1, costs.entry.numpy()), costs.coefficient.numpy())
    return found
