"""Products of parameters and variables, written so that CVXPY's work grows with their non-zeros.

``cp.multiply(p, w)`` with a parameter lays out a vector of (entries of p) x (entries of w), and a stack of copies is
one expression a copy. Products with matrices, which may hold parameters too, cost what they hold.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def times(factors: cp.Expression | NDArray[np.float64] | float, w: cp.Expression) -> cp.Expression:
    """Two vectors entry by entry; the factors are numbers or parameters, a single one serves all entries."""
    if not isinstance(factors, cp.Expression) or not factors.parameters():
        numbers = np.asarray(factors.value if isinstance(factors, cp.Expression) else factors, dtype=np.float64)
        return sp.diags_array(np.broadcast_to(numbers, w.shape), format="csr") @ w
    if factors.size == 1:
        return cp.multiply(cp.promote(factors if factors.ndim == 0 else factors[0], w.shape), w)
    if not w.variables() and not w.parameters():
        return sp.diags_array(np.asarray(w.value, dtype=np.float64), format="csr") @ factors
    return cp.diag(factors) @ w


def kron(left: cp.Expression, right: cp.Expression) -> cp.Expression:
    """All products of the entries of two vectors: ``right`` once for every entry of ``left``, multiplied by it."""
    column, row = cp.reshape(right, (right.size, 1), order="F"), cp.reshape(left, (1, left.size), order="F")
    return cp.vec(column @ row, order="F")


def tiled(w: cp.Expression, count: int) -> cp.Expression:
    """A vector so many times, one copy after another."""
    if count == 1:
        return w
    entries = count * w.size
    copies = np.tile(np.arange(w.size), count), np.arange(entries + 1)
    return sp.csr_array((np.ones(entries), *copies), shape=(entries, w.size)) @ w
