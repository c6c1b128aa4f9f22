"""The coefficients of expressions that are affine in the variables and in ``y``, all in one call to CVXPY."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.cvxcore.python import canonInterface
from cvxpy.lin_ops.lin_op import CONSTANT_ID

from drolayers.cost.affine_rows import AffineRows
from drolayers.cost.lowering import shorten
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain


def bilinear_coefficients(
    expressions: Sequence[cp.Expression], variables: Sequence[cp.Variable], y: Uncertain
) -> AffineRows:
    """The entries of the expressions (Fortran order, one expression after the other) as rows over the variables.

    Raises:
        ModelError: an expression is not affine in the variables for fixed ``y``, or in ``y`` for fixed variables.
    """
    for expression in expressions:
        _check_bilinear(expression, y)
    sizes = [variable.size for variable in variables]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    width, dim = int(starts[-1]), y.dim
    count = sum(expression.size for expression in expressions)
    # The tensor of coefficients: its row is (entry, column) with the entry running fastest and the constant as the last
    # column, its column is the coordinate of y, again with the constant last.
    tensor = canonInterface.get_problem_matrix(
        [expression.canonical_form[0] for expression in expressions],
        width,
        {variable.id: int(start) for variable, start in zip(variables, starts, strict=False)},
        {y.id: dim, CONSTANT_ID: 1},
        {y.id: 0, CONSTANT_ID: dim},
        count,
        "COO",
    ).tocoo()
    column, entry = np.divmod(tensor.row.astype(np.int64), max(count, 1))
    coordinate, value = tensor.col, tensor.data
    linear, sloped = column < width, coordinate < dim

    def collect(mask: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
        matrix = sp.csr_array((value[mask], (rows[mask], columns[mask])), shape=shape)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    return AffineRows(
        collect(linear & sloped, entry * dim + coordinate, column, (count * dim, width)),
        collect(~linear & sloped, entry, coordinate, (count, dim)).toarray(),
        collect(linear & ~sloped, entry, column, (count, width)),
        collect(~linear & ~sloped, entry, np.zeros_like(entry), (count, 1)).toarray().ravel(),
    )


def _check_bilinear(expression: cp.Expression, y: Uncertain) -> None:
    """Names the smallest part that is not affine in ``x`` and in ``y`` separately."""
    if expression.is_dpp():
        return
    part = expression
    while culprits := [arg for arg in part.args if not arg.is_dpp()]:
        part = culprits[0]
    raise ModelError(
        f"The part {shorten(part)} of the cost is not affine in {y.name()}: "
        f"multiply {y.name()} by constants and decisions only, not by itself nor by a maximum, "
        "and divide by constants only."
    )
