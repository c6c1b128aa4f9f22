"""Two-stage costs: the value of a linear program that is solved once ``y`` is known."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.atom import Atom
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from drolayers.amounts import Amount
from drolayers.cost.expansion import PIECE_LIMIT
from drolayers.cost.room import Room, room_for
from drolayers.cost.vertices import VERTEX_LIMIT, DualVertices, balanced, dual_vertices, largest
from drolayers.errors import ModelError

METHODS = ("auto", "vertices", "decision_rule")
_EQUATIONS = (cp.constraints.Equality, cp.constraints.Zero)
_INEQUALITIES = (cp.constraints.Inequality, cp.constraints.NonNeg, cp.constraints.NonPos)
UNBOUNDED = "The second stage is unbounded below: no p satisfies W'p <= q, so raise its costs or bound its variables."


@dataclass(frozen=True, eq=False)
class SecondStage:
    """The linear program ``min q'g, W g = rhs, g >= 0``; without ``vertices`` it is left to a decision rule.

    Where q or W is known data, it is None here, and given for every item.
    """

    q: np.ndarray | None
    W: np.ndarray | None
    vertices: DualVertices | None
    room: Room | None = None

    @property
    def forbidden(self) -> sp.csr_array | None:
        """Rows that must not be positive at any right-hand side, beside what a rule obeys anyhow."""
        part = self.vertices or self.room
        return None if part is None or not part.forbidden.shape[0] else part.forbidden

    def solve(
        self,
        rhs: np.ndarray,
        q: np.ndarray | None = None,
        W: np.ndarray | None = None,
        *,
        typical: np.ndarray | None = None,
    ) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """The value, infinite where nothing is feasible, and its gradients in rhs, q and W, which comes row by row.

        They are the multipliers p, the actions g, and -pg'. Of NaN the value is NaN: there is no decision.

        Args:
            rhs: the right-hand side.
            q: costs, where they are known data.
            W: coefficients, row by row, likewise.
            typical: sizes of right-hand sides, of which rounding is a share; this one's own unless given.
        """
        matrix = self.W if W is None else W.reshape(len(rhs), -1)
        assert matrix is not None
        costs = self.q if q is None else q
        assert costs is not None
        if np.isnan(rhs).any() or np.isnan(costs).any() or np.isnan(matrix).any():
            return np.nan, np.zeros(len(rhs)), np.zeros(matrix.shape[1]), np.zeros(matrix.size)
        # HiGHS's tolerances are absolute, and the value is homogeneous in costs and in the right-hand side.
        by_row, by_column = balanced(matrix)
        size, price = largest(by_row * rhs), largest(by_column * costs)
        tries = [(by_row, size, 1e-10)]
        if typical is not None:
            # Infeasible by next to nothing beside other items, row by row, is what another solver has left of zero.
            usual = np.maximum(typical, np.abs(rhs))
            size = largest(by_row * usual)
            tries.append((np.where(usual > 0, size / np.where(usual > 0, usual, 1.0), by_row), size, 1e-9))
        for by_row, size, least in tries:
            result = linprog(
                by_column * costs / price,
                A_eq=by_row[:, None] * matrix * by_column,
                b_eq=by_row * rhs / size,
                bounds=(0, None),
                method="highs",
                options=_tolerances(least),
            )
            if result.status != 2:
                break
        if result.status == 2 or (result.status == 3 and self.q is None):
            # Known data may be such that the second stage earns without end.
            value = np.inf if result.status == 2 else -np.inf
            return value, np.zeros(len(rhs)), np.zeros(matrix.shape[1]), np.zeros(matrix.size)
        if result.status != 0:
            raise ModelError(f"The second stage could not be solved ({result.message}): rescale q, W or the data.")
        p, g = price * by_row * np.asarray(result.eqlin.marginals), size * by_column * np.asarray(result.x)
        return size * price * float(result.fun), p, g, -np.outer(p, g).ravel()

    def __str__(self) -> str:
        how = "a decision rule" if self.vertices is None else f"{self.vertices.points.shape[0]} vertices"
        return how if self.W is None else f"{self.W.shape[0]} rows, {self.W.shape[1]} columns, {how}"


class Recourse(Atom):
    """The value ``min q'g, W g = rhs, g >= 0`` as a convex function of ``rhs``; infinite where infeasible.

    Args:
        given: rhs; q and W, row by row, where they are known data; and the stage.
    """

    def __init__(self, *given: Any) -> None:
        *args, self.stage = given
        super().__init__(*args)

    def numeric(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Solves the linear program."""
        return np.array(self._solved(values)[0])

    def _solved(self, values: Sequence[np.ndarray]) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """Value and gradients."""
        return self.stage.solve(*(np.asarray(value, dtype=float) for value in values))

    def ruled(self) -> tuple[Any, Any]:
        """Costs and columns that a decision rule is over, expressions where they are known data."""
        stage = self.stage
        if stage.W is None:
            return self.args[1], cp.reshape(self.args[2], (self.args[0].size, self.args[1].size), order="C")
        if stage.q is None:
            return self.args[1], stage.W
        if stage.room is None:
            return stage.q, stage.W
        return np.concatenate([stage.q, stage.room.q]), np.hstack([stage.W, stage.room.W])

    def shape_from_args(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    def sign_from_args(self) -> tuple[bool, bool]:
        """Nonnegative costs of nonnegative actions are nonnegative."""
        return bool(self.args[1].is_nonneg() if self.stage.q is None else np.all(self.stage.q >= 0)), False

    def is_atom_convex(self) -> bool:
        """The value of a linear program is convex in its right-hand side."""
        return True

    def is_atom_concave(self) -> bool:
        """Not concave."""
        return False

    def is_incr(self, idx: int) -> bool:
        """Not monotone in general."""
        return False

    def is_decr(self, idx: int) -> bool:
        """Not monotone in general."""
        return False

    def get_data(self) -> list[SecondStage]:
        """What the constructor takes after the arguments."""
        return [self.stage]

    def _grad(self, values: Sequence[np.ndarray]) -> list[sp.csc_array]:
        """The multipliers, the actions and their products are subgradients."""
        return [sp.csc_array(part[:, None]) for part in self._solved(values)[1:][: len(self.args)]]


class RecourseProgram(Atom):
    """A second stage as it was written in CVXPY.

    Which of its variables are decided before y is seen only the whole problem tells, so that it stands in a cost until
    ``second_stage.resolved`` puts a :class:`Recourse` in its place.

    Args:
        rows: the objective, to be minimised, then one expression a constraint.
        equations: which constraints say ``expression == 0``; the others say ``expression <= 0``.
        method: as for :func:`recourse`.
    """

    def __init__(self, rows: Sequence[cp.Expression], equations: tuple[bool, ...], method: str) -> None:
        self.equations, self.method = equations, method
        super().__init__(*rows)

    def copy(self, args: list[cp.Expression] | None = None, id_objects: dict[int, Any] | None = None) -> Atom:
        """The same with other expressions."""
        return RecourseProgram(self.args if args is None else args, self.equations, self.method)

    def numeric(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Not known before the problem is."""
        raise ModelError("A second stage written in CVXPY has a value within a problem only: ask problem.loss(x, y).")

    def shape_from_args(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    def sign_from_args(self) -> tuple[bool, bool]:
        """Not known."""
        return False, False

    def is_atom_convex(self) -> bool:
        """The value of a convex program is convex in what its rows share with the outside."""
        return True

    def is_atom_concave(self) -> bool:
        """Not concave."""
        return False

    def is_incr(self, idx: int) -> bool:
        """In the objective and in what must not be positive."""
        return idx == 0 or not self.equations[idx - 1]

    def is_decr(self, idx: int) -> bool:
        """In nothing."""
        return False

    def get_data(self) -> list[Any]:
        """What the constructor takes after the arguments."""
        return [self.equations, self.method]

    def _grad(self, values: Sequence[np.ndarray]) -> list[sp.csc_array]:
        raise NotImplementedError


@overload
def recourse(
    objective: cp.Minimize | cp.Maximize, constraints: Sequence[cp.Constraint] = (), *, method: str = "auto"
) -> cp.Expression: ...
@overload
def recourse(q: ArrayLike, W: ArrayLike, rhs: cp.Expression | ArrayLike, method: str = "auto") -> cp.Expression: ...
def recourse(  # type: ignore[misc]  # two names for the first two arguments
    q: Any = None, W: Any = (), rhs: Any = None, method: str = "auto", *, objective: Any = None, constraints: Any = None
) -> cp.Expression:
    """The value of a linear program that is solved once ``y`` is known, for use inside a cost.

    Either as it is written in CVXPY, ``recourse(cp.Minimize(objective), constraints)``, in the decision, ``y`` and
    variables of its own: those that stand in this second stage and nowhere else in the problem. Or by matrices,
    ``recourse(q, W, rhs)``, for ``min q'g`` subject to ``W g = rhs(x, y)``, ``g >= 0``. Costs of second-stage variables
    are constants or known data (then a decision rule is taken), their coefficients constants, or by matrices known data
    too; the rest is affine in the decision and in ``y``. Absolute values, maxima and other atoms that linear programs
    can say are allowed.
    ``cp.Maximize`` gives the largest value, a concave function.

    With ``method="vertices"`` the cost is represented exactly, as the maximum over the vertices of the dual
    ``{p : W'p <= q}``; decisions whose second stage is infeasible for some ``y`` of the support are excluded.
    With ``method="decision_rule"`` the second stage is restricted to a rule that is affine in ``y`` and in the parts of
    the moments, as that of :class:`Adaptive` is, which bounds the worst case from above. ``"auto"`` takes vertices as
    long as they are few, and warns where it takes a rule.

    Args:
        q: costs of the second-stage actions, ``(columns,)``, or known data, or the objective.
        W: recourse matrix, ``(rows, columns)``, dense or sparse, or known data, or the constraints.
        rhs: with matrices, the right-hand side of shape ``(rows,)``, affine in the decision and in ``y``.
        method: ``"auto"``, ``"vertices"`` or ``"decision_rule"``.
        objective: another name of the first argument.
        constraints: another name of the second.

    Returns:
        A scalar convex CVXPY expression; its value is infinite where the second stage is infeasible.

    Raises:
        ModelError: shapes do not agree, the second stage is unbounded below or no linear program, or there are too many
            vertices.
    """
    if method not in METHODS:
        raise ModelError(f"recourse(method={method!r}) must be one of {', '.join(METHODS)}.")
    q, W = q if objective is None else objective, W if constraints is None else constraints
    if isinstance(q, cp.Minimize | cp.Maximize):
        if rhs is not None:
            raise ModelError("recourse(cp.Minimize(...), constraints) takes no third argument but method=.")
        return _written(q.expr, W, method) if isinstance(q, cp.Minimize) else -_written(-q.expr, W, method)
    if rhs is None:
        raise ModelError(
            "recourse needs q, W and rhs, or cp.Minimize(...) and constraints: wrap an objective in cp.Minimize."
        )
    right = Atom.cast_to_const(rhs)
    costs = Amount("recourse's q", q, vector=True)
    matrix = Amount("recourse's W", getattr(W, "toarray", lambda: W)()).written
    if right.shape == ():
        right = cp.reshape(right, (1,), order="F")
    shape = tuple(matrix.shape)
    if len(shape) != 2 or costs.shape != shape[1:] or right.shape != shape[:1] or not matrix.size:
        raise ModelError(
            "recourse needs q (columns,), W (rows, columns) and rhs (rows,), "
            f"not {costs.shape}, {shape} and {right.shape}."
        )
    if not (costs.finite.all() and (isinstance(matrix, cp.Expression) or np.isfinite(matrix).all())):
        raise ModelError("recourse needs finite q and W.")
    return stage_of(right, costs.written, matrix, method)


def stage_of(rhs: cp.Expression, q: Any, W: Any, method: str, roomy: bool = False) -> Recourse:
    """A second stage by matrices; where q or W is known data, its dual is another one for every item: a rule is taken.

    Args:
        rhs: the right-hand side.
        q: numbers, or an expression that is affine in known data.
        W: the recourse matrix, likewise.
        method: as for :func:`recourse`.
        roomy: whether a decision rule gets columns that leave it a choice.
    """
    if not isinstance(q, cp.Expression) and not isinstance(W, cp.Expression):
        check_bounded(q, W)
        vertices = vertices_for(q, W, method)
        return Recourse(rhs, SecondStage(q, W, vertices, room_for(q, W) if roomy and vertices is None else None))
    parts = [part for part in (q, W) if isinstance(part, cp.Expression)]
    names = " and ".join(sorted({p.name() for part in parts for p in part.parameters()}))
    what = "costs" if isinstance(q, cp.Expression) else "coefficients"
    reason = f"The {what} of the second stage hold known data ({names}), so that its dual is another one for every item"
    if method == "vertices":
        raise ModelError(f"{reason}: use method='decision_rule'.")
    if method == "auto":
        _warn_of_rule(reason, "method='decision_rule'")
    if not isinstance(W, cp.Expression):
        return Recourse(rhs, q, SecondStage(None, W, None))
    return Recourse(rhs, Atom.cast_to_const(q), cp.vec(W, order="C"), SecondStage(None, None, None))


def _warn_of_rule(reason: str, choices: str) -> None:
    """Say that a rule was taken unasked."""
    warnings.warn(
        f"{reason}: a decision rule bounds the worst case from above (problem.conservative). Give {choices} to choose.",
        stacklevel=4,
    )


def vertices_for(q: np.ndarray, W: np.ndarray, method: str) -> DualVertices | None:
    """The vertices of the dual; None where a decision rule was asked for, or taken because there are too many."""
    if method == "decision_rule":
        return None
    limit = PIECE_LIMIT if method == "vertices" else VERTEX_LIMIT
    found = dual_vertices(q, W, limit)
    if found is None:
        reason = f"The dual of the second stage with W of shape {W.shape} has too many vertices (limit {limit})"
        if method == "vertices":
            raise ModelError(f"{reason}: use method='decision_rule'.")
        _warn_of_rule(reason, "method='vertices' or 'decision_rule'")
    return found


def _written(objective: cp.Expression, constraints: Any, method: str) -> RecourseProgram:
    """A second stage in CVXPY, to be minimised; what can be seen to be wrong at once is refused."""
    rows, equations = [objective], []
    for constraint in constraints if isinstance(constraints, list | tuple) else [constraints]:
        if not isinstance(constraint, _EQUATIONS + _INEQUALITIES):
            raise ModelError(f"A second stage takes == and <= of CVXPY as constraints, not {constraint}.")
        rows.append(-constraint.expr if isinstance(constraint, cp.constraints.NonNeg) else constraint.expr)
        equations.append(isinstance(constraint, _EQUATIONS))
    return RecourseProgram(rows, tuple(equations), method)


def _tolerances(least: float) -> dict[str, float]:
    """HiGHS's, of which 1e-10 is the smallest: numbers of a program may be far apart, and the largest is about one."""
    return {"primal_feasibility_tolerance": least, "dual_feasibility_tolerance": least}


def check_bounded(q: np.ndarray, W: np.ndarray) -> None:
    """The dual ``{p : W'p <= q}`` must not be empty, else the cost is minus infinity wherever it is feasible."""
    by_row, by_column = balanced(W)
    A, b = (by_row[:, None] * W * by_column).T, by_column * q / largest(by_column * q)
    dual = linprog(
        np.zeros(W.shape[0]), A_ub=A, b_ub=b, bounds=(None, None), method="highs", options=_tolerances(1e-10)
    )
    if dual.status == 2:
        raise ModelError(UNBOUNDED)
