"""Two-stage costs: the value of a linear program that is solved once ``y`` is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.atom import Atom
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from drolayers.cost.vertices import BASIS_LIMIT, VERTEX_LIMIT, DualVertices, dual_vertices
from drolayers.errors import ModelError

METHODS = ("auto", "vertices", "decision_rule")


@dataclass(frozen=True, eq=False)
class SecondStage:
    """The linear program ``min q'g, W g = rhs, g >= 0``; without ``vertices`` it is left to a decision rule."""

    q: np.ndarray
    W: np.ndarray
    vertices: DualVertices | None

    def solve(self, rhs: np.ndarray) -> tuple[float, np.ndarray]:
        """The value, infinite where nothing is feasible, and the multipliers (its gradient in ``rhs``)."""
        result = linprog(self.q, A_eq=self.W, b_eq=rhs, bounds=(0, None), method="highs")
        if result.status == 2:
            return np.inf, np.zeros(len(rhs))
        if result.status != 0:
            raise ModelError(f"The second stage could not be solved ({result.message}): rescale q, W or the data.")
        return float(result.fun), np.asarray(result.eqlin.marginals)

    def __str__(self) -> str:
        return f"{self.W.shape[0]} rows, {self.W.shape[1]} columns"


class Recourse(Atom):
    """The value ``min q'g, W g = rhs, g >= 0`` as a convex function of ``rhs``; infinite where infeasible."""

    def __init__(self, rhs: cp.Expression, stage: SecondStage) -> None:
        self.stage = stage
        super().__init__(rhs)

    def numeric(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Solves the linear program."""
        return np.array(self.stage.solve(np.asarray(values[0], dtype=float))[0])

    def shape_from_args(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    def sign_from_args(self) -> tuple[bool, bool]:
        """Nonnegative costs of nonnegative actions are nonnegative."""
        return bool(np.all(self.stage.q >= 0)), False

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
        """The multipliers are a subgradient."""
        return [sp.csc_array(self.stage.solve(np.asarray(values[0], dtype=float))[1][:, None])]


def recourse(q: ArrayLike, W: ArrayLike, rhs: cp.Expression | ArrayLike, method: str = "auto") -> cp.Expression:
    """The two-stage cost ``min q'g`` subject to ``W g = rhs(x, y)``, ``g >= 0``, for use inside a cost.

    With ``method="vertices"`` the cost is represented exactly, as the maximum over the vertices of the dual
    ``{p : W'p <= q}``; decisions whose second stage is infeasible for some ``y`` of the support are excluded.
    With ``method="decision_rule"`` the second stage is restricted to a rule that is affine in ``y`` and in the parts of
    the moments, which bounds the worst case from above; such a term can only be added to the cost. ``"auto"`` takes
    vertices as long as they are few.

    Args:
        q: costs of the second-stage actions, ``(columns,)``.
        W: recourse matrix, ``(rows, columns)``, dense or sparse.
        rhs: right-hand side of shape ``(rows,)``, affine in the decision and in the uncertain vector.
        method: ``"auto"``, ``"vertices"`` or ``"decision_rule"``.

    Returns:
        A scalar convex CVXPY expression; its value is infinite where the second stage is infeasible.

    Raises:
        ModelError: shapes do not agree, the second stage is unbounded below, or there are too many vertices.
    """
    if method not in METHODS:
        raise ModelError(f"recourse(method={method!r}) must be one of {', '.join(METHODS)}.")
    right = Atom.cast_to_const(rhs)
    costs = np.atleast_1d(np.asarray(q, dtype=float))
    matrix = np.asarray(getattr(W, "toarray", lambda: W)(), dtype=float)
    if right.shape == ():
        right = cp.reshape(right, (1,), order="F")
    if matrix.ndim != 2 or costs.shape != (matrix.shape[1],) or right.shape != (matrix.shape[0],) or not matrix.size:
        raise ModelError(
            "recourse needs q (columns,), W (rows, columns) and rhs (rows,), "
            f"not {costs.shape}, {matrix.shape} and {right.shape}."
        )
    if not (np.isfinite(costs).all() and np.isfinite(matrix).all()):
        raise ModelError("recourse needs finite q and W.")
    _check_bounded(costs, matrix)
    vertices = None if method == "decision_rule" else dual_vertices(costs, matrix)
    if vertices is None and method == "vertices":
        raise ModelError(
            f"The second stage with W of shape {matrix.shape} has more than {BASIS_LIMIT} candidate bases "
            f"or {VERTEX_LIMIT} vertices: use method='decision_rule'."
        )
    return Recourse(right, SecondStage(costs, matrix, vertices))


def _check_bounded(q: np.ndarray, W: np.ndarray) -> None:
    """The dual ``{p : W'p <= q}`` must not be empty, else the cost is minus infinity wherever it is feasible."""
    dual = linprog(np.zeros(W.shape[0]), A_ub=W.T, b_ub=q, bounds=(None, None), method="highs")
    if dual.status == 2:
        raise ModelError("The second stage is unbounded below: no p satisfies W'p <= q, so raise the costs q.")
