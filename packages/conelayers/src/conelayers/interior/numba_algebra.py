"""The algebra of the interior-point method on the CPU: a few programs at a time, compiled with numba.

In torch every small operation on a batch costs microseconds and a pass through memory; here the data of a handful of
programs stay in the cache. The whole system [P, Aᵀ; A, -H] is factored, sparse, in the order of ``elimination.py``.

Arrays are ``(entries, lanes)``: a handful of programs of one structure are stepped through together, so that their data
stay in the cache and the innermost loops, over the lanes, are vectorised. Loops take bare arrays, which costs half a
microsecond a call where tuples of arrays cost fifteen, and call few of each other, which keeps compiling short. All of
them stand here: numba looks for changes in the file of a function alone, not in those of what it calls.

Cones are given as ``zero`` (rows of the zero cone), ``linear`` (rows before the first second-order cone), and the first
row and the dimension of every second-order cone. A scaling is given as ``ratio`` (H on the orthant), ``w`` and ``eta``
(H = η²(2wwᵀ - J) on a second-order cone; ``eta`` holds η²).
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numba import njit

from conelayers.interior.elimination import Structure
from conelayers.interior.kernels import OPTIONS, Flags, Floats, Ints

LEAST = 1e-13
"""The least size of a pivot."""


@final
class NumbaAlgebra:
    """A few programs of one structure, ``(entries, lanes)``; keeps the contract of ``method.Algebra``."""

    xp: Any = np
    recorded = False

    def __init__(self, on: Structure, A: Floats, P: Floats, q: Floats, b: Floats) -> None:
        self.on, self.A, self.P, self.q, self.b = on, A, P, q, b
        self.zero, self.linear, cone_start, _ = on.cones
        self.quadratic, self.lanes = P.shape[0] > 0, q.shape[1]
        self.unit = np.zeros((on.rows, 1))
        self.unit[self.zero : self.linear] = 1.0
        self.unit[cone_start] = 1.0
        self.degree = int(self.unit.sum())
        self._factored = np.empty((on.plan.length, self.lanes))
        self._room = np.empty((on.plan.nodes + 1, self.lanes))
        self._spare = (np.empty_like(b), np.empty_like(b))
        self._ends = np.array([self.zero, self.linear])

    def rows(self, x: Floats) -> Floats:
        """A x."""
        out = np.zeros_like(self.b)
        add_products(out, self.on.row, self.on.column, self.A, x, 1.0)
        return out

    def columns(self, z: Floats) -> Floats:
        """Aᵀz."""
        out = np.zeros_like(self.q)
        add_products(out, self.on.column, self.on.row, self.A, z, 1.0)
        return out

    def form(self, x: Floats) -> Floats:
        """P x."""
        out = np.zeros_like(self.q)
        if self.quadratic:
            add_products(out, self.on.P_row, self.on.P_column, self.P, x, 1.0)
        return out

    def dots(self, u: Floats, v: Floats) -> Floats:
        """Inner products."""
        out = np.empty(self.lanes)
        dots(u, v, out)
        return out

    def masses(self, u: Floats, v: Floats) -> Floats:
        """Sums of absolute products."""
        out = np.empty(self.lanes)
        masses(u, v, out)
        return out

    def sizes(self, v: Floats) -> Floats:
        """Largest absolute entries."""
        out = np.empty(self.lanes)
        sizes(v, out)
        return out

    def combine(self, a: Floats, u: Floats, b: Floats, v: Floats) -> Floats:
        """a·u + b·v."""
        out = np.empty_like(u)
        combine(a, u, b, v, out)
        return out

    def move(self, v: Floats, d: Floats, length: Floats) -> None:
        """V += length·d, in place."""
        move(v, d, length)

    def keep(self, target: Floats, source: Floats, chosen: Flags) -> None:
        """Copy some items, in place."""
        keep(target, source, chosen)

    def margin(self, v: Floats) -> Floats:
        """The smallest eigenvalue over all cones."""
        out = np.empty(self.lanes)
        margin(*self.on.cones, v, out)
        return out

    def reach(self, v: Floats, d: Floats, w: Floats, e: Floats) -> Floats:
        """The largest step that stays in the cones."""
        one, other = np.empty(self.lanes), np.empty(self.lanes)
        reach(*self.on.cones, v, d, one)
        reach(*self.on.cones, w, e, other)
        return np.minimum(one, other)

    def scale(self, s: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
        """H on the orthant, w and η² of the cones."""
        found = (np.empty_like(s), np.empty_like(s), np.empty((self.on.plan.cone_start.size, self.lanes)))
        scale(*self.on.cones, s, z, *found)
        return found

    def factor(self, scaling: tuple[Floats, Floats, Floats], shift: float) -> tuple[Floats, Floats, Floats]:
        """Assemble and factor; there is room for one factorisation, and a new one takes the place of the last."""
        plan, F = self.on.plan, self._factored
        places = (plan.A, plan.P, plan.diagonal, plan.square, plan.extra, plan.edge, plan.soft)
        assemble(*self.on.cones, *scaling, self.A, self.P, plan.nodes, *places, shift, F)
        rows = (plan.row_start, plan.row_entry, plan.row_column)
        factor(plan.nodes, plan.start, plan.below, *rows, plan.sign, LEAST, F, self._room)
        return scaling

    def solve(
        self, system: tuple[Floats, Floats, Floats], rx: Floats, rz: Floats, refine: int
    ) -> tuple[Floats, Floats]:
        """The solution of a factored system."""
        on, plan, x, z = self.on, self.on.plan, np.empty_like(self.q), np.empty_like(self.b)
        pattern = (on.row, on.column, on.P_row, on.P_column)
        places = (plan.nodes, plan.start, plan.below, plan.position)
        numbers = (self._factored, self._room, rx, rz)
        solve(self._ends, *on.cones[2:], *system, self.A, self.P, *pattern, *places, *numbers, refine, x, z)
        return x, z

    def renewed(
        self, system: tuple[Floats, Floats, Floats], scaling: tuple[Floats, Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """The last factorisation at another scaling."""
        return scaling

    def slack(self, scaling: tuple[Floats, Floats, Floats], dz: Floats, offset: Floats) -> Floats:
        """-(H dz + offset), zero on the rows of the zero cone."""
        out = np.empty_like(dz)
        square(*self.on.cones, *scaling, dz, offset, -1.0, out)
        out[: self.zero] = 0.0
        return out

    def correct(
        self, scaling: tuple[Floats, Floats, Floats], z: Floats, ds: Floats, dz: Floats, target: Floats
    ) -> Floats:
        """Mehrotra's offset."""
        out = np.empty_like(z)
        correct(*self.on.cones, *scaling, z, ds, dz, target, *self._spare, out)
        return out


@njit(**OPTIONS)
def add_products(out: Floats, to: Ints, of: Ints, A: Floats, v: Floats, factor: float) -> None:
    """out[to] += factor A v[of], entry by entry: A v, Aᵀv or P v."""
    lanes = out.shape[1]
    if lanes == 1:
        total, entries, others = out[:, 0], A[:, 0], v[:, 0]
        for e in range(to.size):
            total[to[e]] += factor * entries[e] * others[of[e]]
        return
    for e in range(to.size):
        target, entry, other = out[to[e]], A[e], v[of[e]]
        for k in range(lanes):
            target[k] += factor * entry[k] * other[k]


@njit(**OPTIONS)
def dots(u: Floats, v: Floats, out: Floats) -> None:
    """The inner product of every lane."""
    out[:] = 0.0
    if out.size == 1:
        total = 0.0
        for i in range(u.shape[0]):
            total += u[i, 0] * v[i, 0]
        out[0] = total
        return
    for i in range(u.shape[0]):
        for k in range(out.size):
            out[k] += u[i, k] * v[i, k]


@njit(**OPTIONS)
def masses(u: Floats, v: Floats, out: Floats) -> None:
    """The sum of absolute products of every lane."""
    out[:] = 0.0
    for i in range(u.shape[0]):
        for k in range(out.size):
            out[k] += abs(u[i, k] * v[i, k])


@njit(**OPTIONS)
def sizes(v: Floats, out: Floats) -> None:
    """The largest absolute entry of every lane; NaN counts as infinite."""
    out[:] = 0.0
    for i in range(v.shape[0]):
        for k in range(out.size):
            value = abs(v[i, k])
            value = value if value == value else np.inf
            out[k] = max(out[k], value)


@njit(**OPTIONS)
def combine(a: Floats, u: Floats, b: Floats, v: Floats, out: Floats) -> None:
    """a·u + b·v, lane by lane."""
    for i in range(u.shape[0]):
        for k in range(a.size):
            out[i, k] = a[k] * u[i, k] + b[k] * v[i, k]


@njit(**OPTIONS)
def move(v: Floats, d: Floats, length: Floats) -> None:
    """V += length·d in the lanes that have any way to go, whatever stands in the others."""
    for i in range(v.shape[0]):
        for k in range(length.size):
            v[i, k] = v[i, k] + length[k] * d[i, k] if length[k] > 0 else v[i, k]


@njit(**OPTIONS)
def keep(target: Floats, source: Floats, chosen: Flags) -> None:
    """Copy some lanes."""
    for i in range(target.shape[0]):
        for k in range(chosen.size):
            target[i, k] = source[i, k] if chosen[k] else target[i, k]


@njit(**OPTIONS)
def _det(v: Floats, length: Floats, out: Floats) -> None:
    """v₀² - ‖v₁‖² of one cone, as a product, which loses less."""
    length[:] = 0.0
    for i in range(1, v.shape[0]):
        for k in range(out.size):
            length[k] += v[i, k] * v[i, k]
    for k in range(out.size):
        root = np.sqrt(length[k])
        out[k] = (v[0, k] - root) * (v[0, k] + root)


@njit(**OPTIONS)
def scale(
    zero: int, linear: int, start: Ints, size: Ints, s: Floats, z: Floats, ratio: Floats, w: Floats, eta: Floats
) -> None:
    """The Nesterov-Todd point of (s, z): w = (s̄ + Jz̄)/√(2(1 + s̄ᵀz̄)), η⁴ = det s/det z."""
    lanes = s.shape[1]
    p, q, inner = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    for i in range(zero, linear):
        for k in range(lanes):
            ratio[i, k] = s[i, k] / z[i, k]
    for c in range(start.size):
        head, stop = start[c], start[c] + size[c]
        _det(s[head:stop], inner, p)
        _det(z[head:stop], inner, q)
        inner[:] = 0.0
        for i in range(head, stop):
            for k in range(lanes):
                inner[k] += s[i, k] * z[i, k]
        for k in range(lanes):
            a, b = np.sqrt(max(p[k], 1e-300)), np.sqrt(max(q[k], 1e-300))
            gamma = 2.0 * np.sqrt(0.5 * (1.0 + inner[k] / (a * b)))
            eta[c, k] = a / b
            p[k], q[k] = 1.0 / (a * gamma), 1.0 / (b * gamma)
            w[head, k] = s[head, k] * p[k] + z[head, k] * q[k]
        for i in range(head + 1, stop):
            for k in range(lanes):
                w[i, k] = s[i, k] * p[k] - z[i, k] * q[k]


@njit(**OPTIONS)
def square(
    zero: int, linear: int, start: Ints, size: Ints, ratio: Floats, w: Floats, eta: Floats, v: Floats, rest: Floats,
    factor: float, out: Floats,
) -> None:  # fmt: skip
    """Factor (H v + rest) on the rows of proper cones; ``rest`` alone on those of the zero cone."""
    lanes = v.shape[1]
    total = np.empty(lanes)
    for i in range(zero):
        for k in range(lanes):
            out[i, k] = factor * rest[i, k]
    for i in range(zero, linear):
        for k in range(lanes):
            out[i, k] = factor * (v[i, k] * ratio[i, k] + rest[i, k])
    for c in range(start.size):
        head, stop = start[c], start[c] + size[c]
        total[:] = 0.0
        for i in range(head, stop):
            for k in range(lanes):
                total[k] += w[i, k] * v[i, k]
        for k in range(lanes):
            out[head, k] = factor * (eta[c, k] * (2.0 * total[k] * w[head, k] - v[head, k]) + rest[head, k])
        for i in range(head + 1, stop):
            for k in range(lanes):
                out[i, k] = factor * (eta[c, k] * (2.0 * total[k] * w[i, k] + v[i, k]) + rest[i, k])


@njit(**OPTIONS)
def _apply(eta: Floats, w: Floats, v: Floats, out: Floats, inner: Floats, inverse: bool) -> None:
    """W v or W⁻¹ v on one cone."""
    sign = -1.0 if inverse else 1.0
    inner[:] = 0.0
    for i in range(1, v.shape[0]):
        for k in range(inner.size):
            inner[k] += w[i, k] * v[i, k]
    for k in range(inner.size):
        top = v[0, k]
        out[0, k] = w[0, k] * top + sign * inner[k]
        inner[k] = sign * top + inner[k] / (1.0 + w[0, k])
    for i in range(1, v.shape[0]):
        for k in range(inner.size):
            out[i, k] = v[i, k] + inner[k] * w[i, k]
    for k in range(inner.size):
        inner[k] = 1.0 / np.sqrt(eta[k]) if inverse else np.sqrt(eta[k])
    for i in range(v.shape[0]):
        for k in range(inner.size):
            out[i, k] *= inner[k]


@njit(**OPTIONS)
def correct(
    zero: int, linear: int, start: Ints, size: Ints, ratio: Floats, w: Floats, eta: Floats, z: Floats, ds: Floats,
    dz: Floats, target: Floats, first: Floats, second: Floats, out: Floats,
) -> None:  # fmt: skip
    """W applied to the u with λ∘u = λ∘λ + (W⁻¹ds)∘(W dz) - target·e; ``first`` and ``second`` are room."""
    lanes = z.shape[1]
    top, inner, det = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    out[:zero] = 0.0
    for i in range(zero, linear):
        for k in range(lanes):
            # λ = Wz, and W times 1/λ is 1/z.
            out[i, k] = ratio[i, k] * z[i, k] + (ds[i, k] * dz[i, k] - target[k]) / z[i, k]
    for c in range(start.size):
        head, stop = start[c], start[c] + size[c]
        point, a, b = w[head:stop], first[head:stop], second[head:stop]
        _apply(eta[c], point, ds[head:stop], a, inner, True)
        _apply(eta[c], point, dz[head:stop], b, inner, False)
        for k in range(lanes):
            top[k] = a[0, k] * b[0, k] - target[k]
        for i in range(1, size[c]):
            for k in range(lanes):
                top[k] += a[i, k] * b[i, k]
                a[i, k] = a[0, k] * b[i, k] + b[0, k] * a[i, k]
        # λ∘λ divided by λ is λ itself, so only the rest is divided.
        _apply(eta[c], point, z[head:stop], b, inner, False)
        _det(b, inner, det)
        inner[:] = 0.0
        for i in range(1, size[c]):
            for k in range(lanes):
                inner[k] += b[i, k] * a[i, k]
        for k in range(lanes):
            top[k] = (b[0, k] * top[k] - inner[k]) / det[k]
            a[0, k] = b[0, k] + top[k]
        for i in range(1, size[c]):
            for k in range(lanes):
                a[i, k] = b[i, k] + (a[i, k] - top[k] * b[i, k]) / b[0, k]
        _apply(eta[c], point, a, out[head:stop], inner, False)


@njit(**OPTIONS)
def reach(zero: int, linear: int, start: Ints, size: Ints, v: Floats, d: Floats, out: Floats) -> None:
    """The largest t with v + t·d in the cones."""
    lanes = out.size
    a, det, inner = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    out[:] = np.inf
    for i in range(zero, linear):
        for k in range(lanes):
            bound = -v[i, k] / d[i, k] if d[i, k] < 0 else np.inf
            out[k] = min(out[k], bound)
    for c in range(start.size):
        head, stop = start[c], start[c] + size[c]
        # Roots of det(v + t d) = a t² + 2 b t + det.
        _det(d[head:stop], inner, a)
        _det(v[head:stop], inner, det)
        inner[:] = 0.0
        for i in range(head + 1, stop):
            for k in range(lanes):
                inner[k] += v[i, k] * d[i, k]
        for k in range(lanes):
            b, rest = v[head, k] * d[head, k] - inner[k], max(det[k], 0.0)
            inside = b * b - a[k] * rest
            if a[k] < 0 or (b < 0 and inside >= 0):
                # The smallest positive root, in the form that does not cancel.
                out[k] = min(out[k], rest / max(np.sqrt(max(inside, 0.0)) - b, 1e-300))
            if d[head, k] < 0:
                out[k] = min(out[k], -v[head, k] / d[head, k])


@njit(**OPTIONS)
def margin(zero: int, linear: int, start: Ints, size: Ints, v: Floats, out: Floats) -> None:
    """The smallest eigenvalue over all cones: positive inside."""
    out[:] = np.inf
    for i in range(zero, linear):
        for k in range(out.size):
            out[k] = min(out[k], v[i, k])
    for c in range(start.size):
        for k in range(out.size):
            length = 0.0
            for i in range(start[c] + 1, start[c] + size[c]):
                length += v[i, k] * v[i, k]
            out[k] = min(out[k], v[start[c], k] - np.sqrt(length))


@njit(**OPTIONS)
def assemble(
    zero: int, linear: int, start: Ints, size: Ints, ratio: Floats, w: Floats, eta: Floats, A: Floats, P: Floats,
    nodes: int, A_at: Ints, P_at: Ints, diagonal: Ints, blocks: Ints, extra: Ints, edge: Ints, soft: Floats,
    shift: float, F: Floats,
) -> None:  # fmt: skip
    """[P, Aᵀ; A, -H] in the layout of ``elimination.py``; pivots are moved away from zero a little."""
    lanes = A.shape[1]
    F[:] = 0.0
    for j in range(nodes):
        F[j] = shift * soft[j]
    for e in range(A_at.size):
        target, entry = F[A_at[e]], A[e]
        for k in range(lanes):
            target[k] += entry[k]
    for e in range(P_at.size):
        if P_at[e] >= 0:
            target, entry = F[P_at[e]], P[e]
            for k in range(lanes):
                target[k] += entry[k]
    for i in range(zero, linear):
        target, entry = F[diagonal[i - zero]], ratio[i]
        for k in range(lanes):
            target[k] -= entry[k]
    at = 0
    for c in range(start.size):
        head = start[c]
        if extra[c] < 0:
            for i in range(size[c]):
                for j in range(i + 1):
                    J = 0.0 if i != j else (1.0 if i == 0 else -1.0)
                    target = F[blocks[at]]
                    at += 1
                    for k in range(lanes):
                        target[k] -= eta[c, k] * (2.0 * w[head + i, k] * w[head + j, k] - J)
            continue
        # H = η²(I + a ppᵀ - c mmᵀ) with p, m = (1, ±w₁/‖w₁‖)/√2, a = e²ᵠ - 1, c = 1 - e⁻²ᵠ and eᵠ = w₀ + ‖w₁‖: two
        # nodes with pivots -1 and 1. As p and m are orthogonal and c < 1, nothing cancels that is not small itself.
        lower, upper = extra[c], extra[c] + size[c] + 1
        for k in range(lanes):
            length = 0.0
            for i in range(1, size[c]):
                length += w[head + i, k] * w[head + i, k]
            length = np.sqrt(length)
            grown = (w[head, k] + length) ** 2
            up, down = np.sqrt(0.5 * eta[c, k] * (grown - 1.0)), np.sqrt(0.5 * eta[c, k] * (1.0 - 1.0 / grown))
            F[edge[lower], k] = -1.0
            F[edge[upper], k] = 1.0
            for i in range(size[c]):
                unit = 1.0 if i == 0 else w[head + i, k] / max(length, 1e-300)
                F[diagonal[head + i - zero], k] -= eta[c, k]
                F[edge[lower + 1 + i], k] = down if i == 0 else -down * unit
                F[edge[upper + 1 + i], k] = up * unit


@njit(**OPTIONS)
def _factor_one(
    nodes: int, start: Ints, below: Ints, row_start: Ints, row_entry: Ints, row_column: Ints, sign: Floats,
    least: float, F: Floats, work: Floats,
) -> None:  # fmt: skip
    """The same for one lane: a loop of one turn costs more than what it does."""
    L = F[nodes:]
    for j in range(nodes):
        first, last = start[j], start[j + 1]
        for p in range(first, last):
            work[below[p]] = L[p]
        pivot = F[j]
        for r in range(row_start[j], row_start[j + 1]):
            p, c = row_entry[r], row_column[r]
            own = L[p] * F[c]
            pivot -= L[p] * own
            for e in range(p + 1, start[c + 1]):
                work[below[e]] -= L[e] * own
        if not pivot * sign[j] > least:
            pivot = least * sign[j]
        F[j] = pivot
        for p in range(first, last):
            L[p] = work[below[p]] / pivot


@njit(**OPTIONS)
def factor(
    nodes: int, start: Ints, below: Ints, row_start: Ints, row_entry: Ints, row_column: Ints, sign: Floats,
    least: float, F: Floats, work: Floats,
) -> None:  # fmt: skip
    """K = LDLᵀ in place, column by column; pivots of the wrong sign, which rounding makes, become small ones."""
    if F.shape[1] == 1:
        _factor_one(nodes, start, below, row_start, row_entry, row_column, sign, least, F.ravel(), work.ravel())
        return
    lanes, own = F.shape[1], work[nodes]
    for j in range(nodes):
        for p in range(start[j], start[j + 1]):
            target, under = work[below[p]], F[nodes + p]
            for k in range(lanes):
                target[k] = under[k]
        pivot = F[j]
        for r in range(row_start[j], row_start[j + 1]):
            p, c = row_entry[r], row_column[r]
            entry, other = F[nodes + p], F[c]
            for k in range(lanes):
                own[k] = entry[k] * other[k]
                pivot[k] -= entry[k] * own[k]
            for e in range(p + 1, start[c + 1]):
                target, under = work[below[e]], F[nodes + e]
                for k in range(lanes):
                    target[k] -= under[k] * own[k]
        for k in range(lanes):
            if not pivot[k] * sign[j] > least:
                pivot[k] = least * sign[j]
        for p in range(start[j], start[j + 1]):
            target, under = F[nodes + p], work[below[p]]
            for k in range(lanes):
                target[k] = under[k] / pivot[k]


@njit(**OPTIONS)
def _substitute_one(nodes: int, start: Ints, below: Ints, F: Floats, y: Floats) -> None:
    """Solve LDLᵀ in place, for one lane."""
    L = F[nodes:]
    for j in range(nodes):
        own = y[j]
        for p in range(start[j], start[j + 1]):
            y[below[p]] -= L[p] * own
    for j in range(nodes - 1, -1, -1):
        own = y[j] / F[j]
        for p in range(start[j], start[j + 1]):
            own -= L[p] * y[below[p]]
        y[j] = own


@njit(**OPTIONS)
def substitute(
    nodes: int, start: Ints, below: Ints, position: Ints, F: Floats, rx: Floats, rz: Floats, y: Floats, x: Floats,
    z: Floats,
) -> None:  # fmt: skip
    """Solve LDLᵀ(x, z, ·) = (rx, rz, 0); ``y`` is room, and holds one more row than there are nodes."""
    n, m, lanes = rx.shape[0], rz.shape[0], y.shape[1]
    y[:] = 0.0
    for i in range(n + m):
        row, source = y[position[i]], rx[i] if i < n else rz[i - n]
        for k in range(lanes):
            row[k] = source[k]
    if lanes == 1:
        _substitute_one(nodes, start, below, F.ravel(), y.ravel())
    own = y[nodes]
    for j in range(nodes if lanes > 1 else 0):
        row = y[j]
        for k in range(lanes):
            own[k] = row[k]
        for p in range(start[j], start[j + 1]):
            target, entry = y[below[p]], F[nodes + p]
            for k in range(lanes):
                target[k] -= entry[k] * own[k]
    for j in range(nodes - 1 if lanes > 1 else -1, -1, -1):
        row, pivot = y[j], F[j]
        for k in range(lanes):
            own[k] = row[k] / pivot[k]
        for p in range(start[j], start[j + 1]):
            other, entry = y[below[p]], F[nodes + p]
            for k in range(lanes):
                own[k] -= entry[k] * other[k]
        for k in range(lanes):
            row[k] = own[k]
    for i in range(n + m):
        row, target = y[position[i]], x[i] if i < n else z[i - n]
        for k in range(lanes):
            target[k] = row[k]


@njit(**OPTIONS)
def solve(
    cones: Ints, start: Ints, size: Ints, ratio: Floats, w: Floats, eta: Floats, A: Floats, P: Floats, row: Ints,
    column: Ints, P_row: Ints, P_column: Ints, nodes: int, L_start: Ints, below: Ints, position: Ints, F: Floats,
    y: Floats, rx: Floats, rz: Floats, refine: int, x: Floats, z: Floats,
) -> None:  # fmt: skip
    """The solution of a factored system; what is missing, rx - Px - Aᵀz and rz - Ax + Hz, is solved for so often."""
    substitute(nodes, L_start, below, position, F, rx, rz, y, x, z)
    if not refine:
        return
    ex, ez, dx, dz = np.empty_like(x), np.empty_like(z), np.empty_like(x), np.empty_like(z)
    for _ in range(refine):
        ex[:] = rx
        square(cones[0], cones[1], start, size, ratio, w, eta, z, rz, 1.0, ez)
        add_products(ex, column, row, A, z, -1.0)
        add_products(ez, row, column, A, x, -1.0)
        add_products(ex, P_row, P_column, P, x, -1.0)
        substitute(nodes, L_start, below, position, F, ex, ez, y, dx, dz)
        x += dx
        z += dz
