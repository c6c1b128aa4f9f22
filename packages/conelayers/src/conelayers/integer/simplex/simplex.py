"""A dual simplex method for many boxes of one linear program, compiled.

A linear program ``min cᵀx, Ax + s = b, s ≥ 0`` (the first rows: s = 0), ``low ≤ x ≤ high``, is kept as a tableau, of
which zeros are passed over. A basis is dual feasible whatever the ends of the columns, if those that lack an end have
the right sign once: so every box of the search begins with the basis that the last one ended with, and takes a few
pivots. Bounds and proofs of infeasibility are computed anew from A, b and c with the multipliers of the basis: rounding
in the tableau can make them weaker, not wrong.

The arguments that return: ``start``, ``column`` and ``entry`` are the rows of A, the first ``zero`` of them equations;
``ends`` the lower and upper ends of columns and slacks; ``T`` is ``B⁻¹[A, I]`` above the reduced costs; ``x`` a value
for every column and slack; ``basis`` the column of a row, and ``row`` that of a column, or -1; ``slope`` the reduced
costs of the last bound; ``work`` lists columns in passing, and last the pivots since T was computed. They are bare
arrays, since references to tuples of them are counted at every use, and loops are written out, since numba takes
seconds to compile expressions of whole arrays.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from conelayers.interior.kernels import OPTIONS, Floats, Ints

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

REFRESH = 100
"""Pivots, beyond one for every row, after which the tableau is computed anew."""


@njit(**OPTIONS)
def pivot(T: Floats, basis: Ints, row: Ints, work: Ints, at: int, column: int) -> None:
    """Make a column the unit vector of a row, in the tableau and in the reduced costs."""
    count, scale = 0, 1.0 / T[at, column]
    for j in range(T.shape[1]):
        if T[at, j] != 0.0:
            T[at, j] *= scale
            work[count] = j
            count += 1
    T[at, column] = 1.0
    for i in range(T.shape[0]):
        factor = T[i, column]
        if i == at or factor == 0.0:
            continue
        if 4 * count > T.shape[1]:
            for j in range(T.shape[1]):
                T[i, j] -= factor * T[at, j]
        else:
            for k in range(count):
                T[i, work[k]] -= factor * T[at, work[k]]
        T[i, column] = 0.0
    basis[at] = column
    row[column] = at


@njit(**OPTIONS)
def refresh(
    start: Ints,
    column: Ints,
    entry: Floats,
    b: Floats,
    c: Floats,
    T: Floats,
    x: Floats,
    basis: Ints,
    row: Ints,
    work: Ints,
) -> bool:
    """The tableau of a basis from the data; whether the basis is one."""
    m, n = b.size, c.size
    for i in range(m + 1):
        for j in range(n + m):
            T[i, j] = c[j] if i == m and j < n else 0.0
    # Slacks stand for themselves; the other columns choose the largest entry that is left.
    for i in range(m):
        T[i, n + i] = 1.0
        for e in range(start[i], start[i + 1]):
            T[i, column[e]] = entry[e]
        basis[i] = -1
        if row[n + i] >= 0:
            basis[i], row[n + i] = n + i, i
    for j in range(n):
        if row[j] < 0:
            continue
        at, largest = -1, _PIVOT
        for i in range(m):
            if basis[i] < 0 and abs(T[i, j]) > largest:
                at, largest = i, abs(T[i, j])
        if at < 0:
            return False
        pivot(T, basis, row, work, at, j)
    for i in range(m):
        value = 0.0
        for k in range(m):
            value += T[i, n + k] * b[k]
        for j in range(n + m):
            if row[j] < 0:
                value -= T[i, j] * x[j]
        x[basis[i]] = value
    work[n + m] = 0
    return True


@njit(**OPTIONS)
def move(T: Floats, x: Floats, basis: Ints, column: int, to: float) -> None:
    """Move a column that is not in the basis, and the basis with it."""
    step = to - x[column]
    if step != 0.0:
        for i in range(basis.size):
            if T[i, column] != 0.0:
                x[basis[i]] -= T[i, column] * step
        x[column] = to


@njit(**OPTIONS)
def place(ends: Floats, T: Floats, x: Floats, basis: Ints, row: Ints) -> bool:
    """Put columns outside the basis at the ends that their reduced costs ask for."""
    m = basis.size
    for j in range(x.size):
        if row[j] >= 0:
            continue
        low, high = ends[0, j], ends[1, j]
        to_low = T[m, j] > 0.0 or (T[m, j] == 0.0 and abs(x[j] - low) <= abs(x[j] - high))
        end = low if to_low else high
        if not np.isfinite(end):
            if abs(T[m, j]) > DUAL:
                return False
            end = high if to_low else low
        move(T, x, basis, j, end if np.isfinite(end) else 0.0)
    return True


@njit(**OPTIONS)
def bound(
    start: Ints,
    column: Ints,
    entry: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    ends: Floats,
    T: Floats,
    at: int,
    cost: float,
    factor: float,
    slope: Floats,
) -> float:
    """The Lagrangian bound of some multipliers, valid whatever they are; and the reduced costs that belong to it.

    They are those of the basis times ``cost`` (1 or 0), as are the costs themselves, plus those of a row times
    ``factor``. Without costs, and with the tolerance of every row, a bound above zero proves that the box has no point.
    """
    m, n, value = b.size, c.size, 0.0
    for j in range(n):
        slope[j] = cost * c[j]
    for i in range(m):
        y = cost * T[m, n + i] + factor * T[at, n + i]
        if y != 0.0 and (i < zero or y > 0.0):
            value -= y * b[i] if cost > 0.0 else y * b[i] + abs(y) * _FEASIBLE * (1.0 + abs(b[i]))
            for e in range(start[i], start[i + 1]):
                slope[column[e]] += y * entry[e]
    loose = DUAL if cost > 0.0 else 1e-11
    for j in range(n):
        end = ends[0, j] if slope[j] > 0.0 else ends[1, j]
        if np.isfinite(end):
            value += slope[j] * end
        elif abs(slope[j]) > loose:
            return -np.inf
    return value


@njit(**OPTIONS)
def entering(ends: Floats, T: Floats, x: Floats, row: Ints, at: int, sign: float, careful: bool) -> int:
    """The column that comes into the basis for that of a row, which must fall (sign 1) or grow (-1); -1 for none."""
    m, chosen, ratio, size = T.shape[0] - 1, -1, np.inf, 0.0
    for j in range(x.size):
        value = sign * T[at, j]
        if abs(value) <= _PIVOT or row[j] >= 0 or ends[0, j] == ends[1, j]:
            continue
        loose = ends[0, j] == -np.inf and ends[1, j] == np.inf
        if not loose and (value > 0.0) != (x[j] <= ends[0, j]):
            continue
        step = abs(T[m, j] / value)
        if step < ratio - 1e-12 or (step <= ratio + 1e-12 and not careful and abs(value) > size):
            chosen, ratio, size = j, step, abs(value)
    return chosen


@njit(**OPTIONS)
def ahead(
    start: Ints,
    column: Ints,
    entry: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    ends: Floats,
    T: Floats,
    x: Floats,
    row: Ints,
    slope: Floats,
    at: int,
    sign: float,
) -> float:
    """The bound of a box after its first pivot, by which the column of a row falls (sign 1) or grows (-1)."""
    j = entering(ends, T, x, row, at, sign, False)
    cost, factor = (1.0, -T[b.size, j] / T[at, j]) if j >= 0 else (0.0, -sign)
    value = bound(start, column, entry, b, c, zero, ends, T, at, cost, factor, slope)
    return value if j >= 0 else np.inf if value > 0.0 else -np.inf


@njit(**OPTIONS)
def solve(
    start: Ints,
    column: Ints,
    entry: Floats,
    b: Floats,
    c: Floats,
    zero: int,
    ends: Floats,
    cutoff: float,
    T: Floats,
    x: Floats,
    basis: Ints,
    row: Ints,
    slope: Floats,
    work: Ints,
) -> tuple[int, float]:
    """Minimise over one box from the basis that is there; what became of it, and a bound."""
    m, n = b.size, c.size
    for attempt in range(2):
        if (attempt == 1 or work[n + m] > REFRESH + m) and not refresh(
            start, column, entry, b, c, T, x, basis, row, work
        ):
            for j in range(n + m):
                row[j] = j - n if j >= n else -1
            refresh(start, column, entry, b, c, T, x, basis, row, work)
        if not place(ends, T, x, basis, row):
            continue
        for iteration in range(50 + 10 * (m + n)):
            # The rule of Bland, which cannot cycle, where the other goes on for long.
            careful = iteration > 20 + 3 * (m + n)
            at, worst = -1, 0.0
            for i in range(m):
                j = basis[i]
                short = max(ends[0, j] - x[j], x[j] - ends[1, j])
                if short > _PRIMAL * (1.0 + abs(x[j])) and (
                    (careful and (at < 0 or j < basis[at])) or (not careful and short > worst)
                ):
                    at, worst = i, short
            if at < 0 or (iteration % 4 == 3 and np.isfinite(cutoff)):
                value = bound(start, column, entry, b, c, zero, ends, T, 0, 1.0, 0.0, slope)
                if value >= cutoff:
                    return CUT, value
                if at < 0:
                    if value > -np.inf:
                        return SOLVED, value
                    break
            gone = basis[at]
            # To fall, the basic variable needs a column with a positive entry that can grow, or the other way round.
            sign = 1.0 if x[gone] > ends[1, gone] else -1.0
            j = entering(ends, T, x, row, at, sign, careful)
            if j < 0:
                if bound(start, column, entry, b, c, zero, ends, T, at, 0.0, -sign, slope) > 0.0:
                    return EMPTY, np.inf
                break
            target = ends[1, gone] if sign > 0.0 else ends[0, gone]
            move(T, x, basis, j, x[j] + (x[gone] - target) / T[at, j])
            x[gone], row[gone] = target, -1
            pivot(T, basis, row, work, at, j)
            work[n + m] += 1
    return STUCK, -np.inf
