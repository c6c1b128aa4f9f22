"""A dual simplex method for many boxes of one linear program, compiled.

A linear program ``min cᵀx, Ax + s = b, s ≥ 0`` (the first rows: s = 0), ``low ≤ x ≤ high``, is kept as a dense tableau.
A basis is dual feasible whatever the ends of the columns, if those that lack an end have the right sign once: so every
box of the search begins with the basis that the last one ended with, and takes a few pivots. Bounds and proofs of
infeasibility are computed anew from A, b and c with the multipliers of the basis: rounding in the tableau can make them
weaker, not wrong.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from drolayers.conic.interior.kernels import OPTIONS, Floats, Ints

SOLVED, CUT, EMPTY, STUCK = 0, 1, 2, 3
"""What becomes of a box: solved, no better than the cutoff, without a point, or out of reach of the arithmetic."""

DUAL = 1e-9
"""Reduced cost up to which a column without an end may have either sign; costs are at most one."""

_PRIMAL = 1e-9
"""How far beyond its end a column of the basis may lie, relative to its size."""

_PIVOT = 1e-9
"""Entries of the tableau up to this size are taken for rounding."""

_FEASIBLE = 1e-7
"""Violation up to which a row holds, as everywhere: a proof of infeasibility needs more."""

_REFRESH = 100
"""Pivots after which the tableau is computed anew."""


@njit(**OPTIONS)
def pivot(T: Floats, d: Floats, row: int, column: int) -> None:
    """Make a column the unit vector of a row, in the tableau and in the reduced costs."""
    T[row] /= T[row, column]
    for i in range(T.shape[0]):
        factor = T[i, column]
        if i != row and factor != 0.0:
            T[i] -= factor * T[row]
            T[i, column] = 0.0
    factor = d[column]
    if factor != 0.0:
        d -= factor * T[row]
        d[column] = 0.0


@njit(**OPTIONS)
def refresh(A: Floats, c: Floats, T: Floats, d: Floats, basis: Ints) -> bool:
    """The tableau of a basis from the data; whether the basis is one."""
    m, n = A.shape
    T[:, :n], T[:, n:] = A, 0.0
    d[:n], d[n:] = c, 0.0
    for i in range(m):
        T[i, n + i] = 1.0
    wanted = np.sort(basis)
    # Slacks that stand for themselves need no pivot; the others choose the largest entry that is left.
    free = np.ones(m, dtype=np.bool_)
    for column in wanted[::-1]:
        if column >= n and free[column - n]:
            free[column - n] = False
            basis[column - n] = column
            continue
        row, largest = -1, _PIVOT
        for i in range(m):
            if free[i] and abs(T[i, column]) > largest:
                row, largest = i, abs(T[i, column])
        if row < 0:
            return False
        free[row] = False
        basis[row] = column
        pivot(T, d, row, column)
    return True


@njit(**OPTIONS)
def place(b: Floats, low: Floats, high: Floats, T: Floats, d: Floats, basis: Ints, x: Floats) -> bool:
    """Put columns outside the basis at the ends that their reduced costs ask for, and the basis where they leave it."""
    m, n = T.shape[0], T.shape[1] - T.shape[0]
    inside = np.zeros(n + m, dtype=np.bool_)
    inside[basis] = True
    for j in range(n + m):
        if inside[j]:
            x[j] = 0.0
            continue
        to_low = d[j] > 0.0 or (d[j] == 0.0 and abs(x[j] - low[j]) <= abs(x[j] - high[j]))
        end = low[j] if to_low else high[j]
        if not np.isfinite(end):
            if abs(d[j]) > DUAL:
                return False
            end = high[j] if to_low else low[j]
        x[j] = end if np.isfinite(end) else 0.0
    for i in range(m):
        value = 0.0
        for k in range(m):
            value += T[i, n + k] * b[k]
        for j in range(n + m):
            if x[j] != 0.0 and not inside[j]:
                value -= T[i, j] * x[j]
        x[basis[i]] = value
    return True


@njit(**OPTIONS)
def bound(A: Floats, b: Floats, c: Floats, zero: int, low: Floats, high: Floats, d: Floats, reduced: Floats) -> float:
    """The Lagrangian bound of multipliers, valid whatever they are; and the reduced costs that belong to it."""
    m, n = A.shape
    value = 0.0
    reduced[:] = c
    for i in range(m):
        y = d[n + i] if i < zero else max(d[n + i], 0.0)
        if y != 0.0:
            value -= y * b[i]
            reduced += y * A[i]
    for j in range(n):
        end = low[j] if reduced[j] > 0.0 else high[j]
        if np.isfinite(end):
            value += reduced[j] * end
        elif abs(reduced[j]) > DUAL:
            return -np.inf
    return value


@njit(**OPTIONS)
def impossible(A: Floats, b: Floats, zero: int, low: Floats, high: Floats, row: Floats, sign: float) -> bool:
    """Whether multipliers prove that no point of the box satisfies all rows, each of them by its tolerance."""
    m, n = A.shape
    total, slip = np.zeros(n), 0.0
    left = 0.0
    for i in range(m):
        y = sign * row[i]
        if i >= zero and y < 0.0:
            y = 0.0
        if y != 0.0:
            left += y * b[i]
            slip += abs(y) * _FEASIBLE * (1.0 + abs(b[i]))
            total += y * A[i]
    least = 0.0
    for j in range(n):
        end = low[j] if total[j] > 0.0 else high[j]
        if np.isfinite(end):
            least += total[j] * end
        elif abs(total[j]) > 1e-11:
            return False
    # For y ≥ 0 all points satisfy yᵀAx ≤ yᵀb.
    return least > left + slip


@njit(**OPTIONS)
def solve(
    A: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    low: Floats,
    high: Floats,
    cutoff: float,
    T: Floats,
    d: Floats,
    basis: Ints,
    x: Floats,
    reduced: Floats,
    age: Ints,
) -> tuple[int, float]:
    """Minimise over one box from the basis that is there; what became of it, and a bound."""
    m, n = A.shape
    for attempt in range(2):
        if attempt == 1 or age[0] > _REFRESH:
            age[0] = 0
            if not refresh(A, c, T, d, basis):
                basis[:] = np.arange(n, n + m)
                refresh(A, c, T, d, basis)
        if not place(b, low, high, T, d, basis, x):
            continue
        for iteration in range(50 + 10 * (m + n)):
            # The rule of Bland, which cannot cycle, where the other goes on for long.
            careful = iteration > 20 + 3 * (m + n)
            leaving, worst = -1, 0.0
            for i in range(m):
                j = basis[i]
                short = max(low[j] - x[j], x[j] - high[j])
                if short > _PRIMAL * (1.0 + abs(x[j])) and (
                    (careful and (leaving < 0 or j < basis[leaving])) or (not careful and short > worst)
                ):
                    leaving, worst = i, short
            if leaving < 0:
                value = bound(A, b, c, zero, low, high, d, reduced)
                if value > -np.inf:
                    return SOLVED, value
                break
            if iteration % 4 == 3 and np.isfinite(cutoff):
                reached = bound(A, b, c, zero, low, high, d, reduced)
                if reached >= cutoff:
                    return CUT, reached
            gone = basis[leaving]
            # Upwards the basic variable must grow, which a column does with a negative entry that can grow itself.
            sign = 1.0 if x[gone] > high[gone] else -1.0
            entering, ratio, size = -1, np.inf, 0.0
            for j in range(n + m):
                if low[j] == high[j] or j == gone:
                    continue
                entry = sign * T[leaving, j]
                if abs(entry) <= _PIVOT:
                    continue
                loose = low[j] == -np.inf and high[j] == np.inf
                at_low = x[j] <= low[j]
                if not loose and (entry > 0.0) != at_low:
                    continue
                step = abs(d[j] / entry)
                if step < ratio - 1e-12 or (step <= ratio + 1e-12 and not careful and abs(entry) > size):
                    entering, ratio, size = j, step, abs(entry)
            if entering < 0:
                if impossible(A, b, zero, low, high, T[leaving, n:], -sign):
                    return EMPTY, np.inf
                if impossible(A, b, zero, low, high, T[leaving, n:], sign):
                    return EMPTY, np.inf
                break
            target = high[gone] if sign > 0.0 else low[gone]
            move = (x[gone] - target) / T[leaving, entering]
            for i in range(m):
                x[basis[i]] -= T[i, entering] * move
            x[entering] += move
            x[gone] = target
            pivot(T, d, leaving, entering)
            basis[leaving] = entering
            age[0] += 1
    return STUCK, -np.inf
