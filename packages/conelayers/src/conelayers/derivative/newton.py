"""Newton's method on the optimality conditions of one program, over any cones, and the face of a point.

The equations are those of ``interior/face.py``, for one item, with the projector E as a basis U of its range: with D
the derivative of the projection onto the dual cone and D = U diag(d) Uᵀ,

    [P, AᵀU; UᵀA, -H] (g, k) = (r, t),   h = U k,   H = 1/d - 1.

The matrix is singular where multipliers or decisions are not unique: then a small solution is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from torch import Tensor

from conelayers.interior.face import POLISHED
from conelayers.program import semidefinite
from conelayers.program.program import ConeProgram, Cones, Values, matrices

Curvature = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

ROUNDS = 12
"""Newton steps, each of which may change the face."""

ENOUGH = 1e-13
"""What of the optimality conditions is as good as nothing, where numbers are about one."""

SHIFT = 1e-9
"""By which the diagonal is moved so that singular systems can be factored; refinement takes its effect back."""

SOLVED = 1e-8
"""Relative defect up to which equations count as solved."""

LARGEST = 2500
"""Unknowns up to which a dense least-squares solve is tried."""

RANK = 1e-11
"""Relative size of the singular values that count as zero."""

INTERIOR = 1e-7
"""Below this ratio the smaller of slack and multiplier is zero, and the other may lie inside its cone."""

LEAST = 1e-9
"""Eigenvalues of a projection's derivative that count as zero."""

TINY = 1e-12
"""Keeps formulas finite on the edges of the exponential and power cones, which have no derivative there."""


class Item(NamedTuple):
    """One program and a point."""

    P: sp.csr_array
    A: sp.csr_array
    q: np.ndarray
    b: np.ndarray
    x: np.ndarray
    z: np.ndarray
    s: np.ndarray


def items(program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor) -> Iterator[Item]:
    """The items of a batch, one after another."""
    numbers = [t.detach().cpu().numpy() for t in (values.q, values.b, x, z, s)]
    for item, vectors in enumerate(zip(*numbers, strict=True)):
        yield Item(*matrices(program, values, item), *vectors)


def polished(
    cones: Cones, P: sp.csr_array, A: sp.csr_array, q: np.ndarray, b: np.ndarray, x: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Newton's method over self-dual cones: the best point met, and whether nothing is left of the conditions."""
    best = (x, *split(cones, v), np.inf)
    for _ in range(ROUNDS):
        z, s = split(cones, v)
        missing, beside = P @ x + q + A.T @ z, A @ x + s - b
        left = max(np.abs(missing).max(initial=0.0), np.abs(beside).max(initial=0.0))
        if left < best[3]:
            best = (x, z, s, left)
        if left <= ENOUGH * (1.0 + max(np.abs(x).max(initial=0.0), np.abs(v).max(initial=0.0))):
            break
        try:
            U, H = basis(cones, z, s, 0.0)
        except np.linalg.LinAlgError:
            # Numbers whose squares are none lie on no face.
            break
        # Where there are more active rows than unknowns, a step meets all of them at the end only.
        step = solve(P, A, U, H, -missing, -(U.T @ beside), exactly=False)
        if step is None or not all(np.isfinite(part).all() for part in step):
            break
        x = x + step[0]
        v = v + U @ step[1] + A @ step[0] + beside
    x, z, s, left = best
    size = 1.0 + max(np.abs(x).max(initial=0.0), np.abs(z - s).max(initial=0.0))
    return x, z, s, bool(left <= POLISHED * size)


def solve(
    P: sp.csr_array,
    A: sp.csr_array,
    U: sp.csr_array,
    H: np.ndarray,
    rx: np.ndarray,
    rz: np.ndarray,
    exactly: bool = True,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve the face's system, least-squares where it is singular; None where it must have a solution and has none."""
    UA = sp.csr_array(U.T @ A)
    matrix = sp.csc_array(sp.block_array([[P, UA.T], [UA, -sp.diags_array(H)]]))
    rhs = np.concatenate([rx, rz])
    size, n = np.abs(rhs).max(initial=0.0), rx.size
    if size == 0.0:
        return np.zeros(n), np.zeros(rz.size)
    solution = np.zeros_like(rhs)
    try:
        factors = spla.splu(sp.csc_array(matrix + shifted(n, rz.size)))
        for _ in range(12):
            move = factors.solve(rhs - matrix @ solution)
            solution = solution + move
            if (
                np.abs(move).max() <= SOLVED * np.abs(solution).max()
                and _defect(matrix, solution, rhs) <= SOLVED * size
            ):
                return solution[:n], solution[n:]
    except RuntimeError:
        pass
    if rhs.size > LARGEST:
        return None
    solution = _least_squares(matrix.toarray(), rhs)
    solved = not exactly or _defect(matrix, solution, rhs) <= 10.0 * SOLVED * size
    return (solution[:n], solution[n:]) if solved else None


def shifted(columns: int, rows: int) -> sp.dia_array:
    """What is added to the face's system, so that it can be factored."""
    return sp.diags_array(np.concatenate([np.full(columns, SHIFT), np.full(rows, -SHIFT)]))


def _least_squares(matrix: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The smallest of the solutions that leave least; NaN where a number is none."""
    if not (np.isfinite(matrix).all() and np.isfinite(rhs).all()):
        return np.full(rhs.size, np.nan)
    try:
        return la.lstsq(matrix, rhs, cond=RANK, lapack_driver="gelsd")[0]
    except la.LinAlgError:
        # Singular values did not converge, which no matrix is safe from; orthogonal factors always exist.
        return la.lstsq(matrix, rhs, cond=RANK, lapack_driver="gelsy")[0]


def _defect(matrix: sp.csc_array, solution: np.ndarray, rhs: np.ndarray) -> float:
    """What is left of linear equations; infinite where a number is none."""
    left = np.abs(matrix @ solution - rhs).max(initial=0.0)
    return float(left) if np.isfinite(left) else np.inf


def split(cones: Cones, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Z = Π(v) and s = Π(v) - v, over the self-dual cones."""
    z, at = v.copy(), cones.zero + cones.nonneg
    z[cones.zero : at] = np.maximum(v[cones.zero : at], 0.0)
    for dimension in cones.soc:
        t, w = v[at], v[at + 1 : at + dimension]
        length = float(np.linalg.norm(w))
        if length > abs(t):
            z[at : at + dimension] = 0.5 * (t + length) * np.concatenate([[1.0], w / length])
        elif t <= 0.0:
            z[at : at + dimension] = 0.0
        at += dimension
    for part, order in semidefinite.parts(cones):
        values, vectors = np.linalg.eigh(semidefinite.matrix(v[part], order))
        z[part] = semidefinite.rows_of((vectors * np.maximum(values, 0.0)) @ vectors.T)
    return z, z - v


def margin(cones: Cones, v: np.ndarray) -> float:
    """How far v is from another face."""
    at = cones.zero + cones.nonneg
    least = np.abs(v[cones.zero : at]).min(initial=np.inf)
    for dimension in cones.soc:
        t, length = v[at], float(np.linalg.norm(v[at + 1 : at + dimension]))
        least = min(least, abs(length - t), abs(length + t))
        at += dimension
    return min(float(least), gap(cones, v))


def gap(cones: Cones, v: np.ndarray) -> float:
    """The eigenvalue closest to zero among the semidefinite cones."""
    eigenvalues = [
        np.abs(np.linalg.eigvalsh(semidefinite.matrix(v[part], order))).min()
        for part, order in semidefinite.parts(cones)
    ]
    return float(min(eigenvalues, default=np.inf))


def basis(cones: Cones, z: np.ndarray, s: np.ndarray, lean: float) -> tuple[sp.csr_array, np.ndarray]:
    """U and H; rows within ``lean`` of another face count as active where it is positive, as inactive otherwise."""
    v, linear = z - s, cones.zero + cones.nonneg
    chosen = np.concatenate([np.arange(cones.zero), cones.zero + np.flatnonzero(v[cones.zero : linear] > -lean)])
    rows, columns, entries, H, count = [chosen], [np.arange(chosen.size)], [np.ones(chosen.size)], [], chosen.size
    H.append(np.zeros(chosen.size))
    for part, order in semidefinite.parts(cones):
        directions, d = semidefinite.derivative(v[part], order, lean)
        directions, d = directions[d > LEAST], d[d > LEAST]
        rows.append(np.tile(np.arange(part.start, part.stop), d.size))
        columns.append(np.repeat(count + np.arange(d.size), part.stop - part.start))
        entries.append(directions.ravel())
        H.append(1.0 / d - 1.0)
        count += d.size
    kinds: list[tuple[int, Curvature | None]] = [(d, None) for d in cones.soc] + [(3, _exponential)] * cones.exp
    kinds += [(3, partial(_power, alpha)) for alpha in cones.power]
    starts = linear + np.cumsum([0, *cones.blocks])[:-1]
    starts = np.delete(starts, len(cones.soc) + np.arange(len(cones.psd)))
    for dimension in sorted({d for d, _ in kinds}):
        here = [(start, curvature) for start, (d, curvature) in zip(starts, kinds, strict=True) if d == dimension]
        parts = [slice(start, start + dimension) for start, _ in here]
        D = np.stack(
            [
                _soc(v[part], lean) if curvature is None else _smooth(z[part], s[part], curvature)
                for part, (_, curvature) in zip(parts, here, strict=True)
            ]
        )
        d, vectors = np.linalg.eigh(0.5 * (D + D.transpose(0, 2, 1)))
        cone, which = np.nonzero(d > LEAST)
        at = np.array([start for start, _ in here])[cone]
        rows.append((at[:, None] + np.arange(dimension)).ravel())
        columns.append(np.repeat(count + np.arange(cone.size), dimension))
        entries.append(vectors[cone, :, which].ravel())
        H.append(np.maximum(1.0 / d[cone, which] - 1.0, 0.0))
        count += cone.size
    place = (np.concatenate(rows), np.concatenate(columns))
    return sp.csr_array((np.concatenate(entries), place), shape=(v.size, count)), np.concatenate(H)


def _soc(v: np.ndarray, lean: float) -> np.ndarray:
    """D on a second-order cone; between the faces ½ [[1, uᵀ], [u, (1 + t/‖w‖) I - (t/‖w‖) uuᵀ]], u = w/‖w‖."""
    t, w = v[0], v[1:]
    length = float(np.linalg.norm(w))
    full, off = length - t <= lean, length + t <= -lean
    if (full and not (off and lean < 0)) or (full and off and lean >= 0):
        return np.eye(v.size)
    if off:
        return np.zeros((v.size, v.size))
    u, ratio = w / length, t / length
    inner = (1.0 + ratio) * np.eye(w.size) - ratio * np.outer(u, u)
    return 0.5 * np.block([[np.ones((1, 1)), u[None, :]], [u[:, None], inner]])


def _smooth(z: np.ndarray, s: np.ndarray, curvature: Curvature) -> np.ndarray:
    """D where the dual cone is {φ ≤ 0} with φ smooth at z.

    z = v - λ∇φ(z) and φ(z) = 0, so (I + λ∇²φ) dz + ∇φ dλ = dv and ∇φᵀdz = 0; and s = z - v gives λ.
    """
    if np.linalg.norm(s) <= INTERIOR * np.linalg.norm(z):
        return np.eye(3)
    if np.linalg.norm(z) <= INTERIOR * np.linalg.norm(s):
        return np.zeros((3, 3))
    gradient, hessian = curvature(z)
    multiplier = -(s @ gradient) / (gradient @ gradient)
    system = np.block([[np.eye(3) + multiplier * hessian, gradient[:, None]], [gradient[None, :], np.zeros((1, 1))]])
    return np.linalg.inv(system)[:3, :3]


def _exponential(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ = -u exp(v/u - 1) - w, u < 0: gradient and Hessian."""
    u, v, _ = z
    u = min(u, -TINY)
    e, ratio = np.exp(min(v / u - 1.0, 100.0)), v / u
    hessian = np.array([[-ratio * ratio / u, ratio / u, 0.0], [ratio / u, -1.0 / u, 0.0], [0.0, 0.0, 0.0]])
    return np.array([e * (ratio - 1.0), -e, -1.0]), e * hessian


def _power(alpha: float, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ = |w| - (u/α)^α (v/(1-α))^(1-α), u, v > 0: gradient and Hessian."""
    u, v = max(z[0], TINY), max(z[1], TINY)
    mean = (u / alpha) ** alpha * (v / (1.0 - alpha)) ** (1.0 - alpha)
    a, b = alpha / u, (1.0 - alpha) / v
    # The mean is homogeneous of degree one: its Hessian is -α(1-α)·mean·(1/u, -1/v)(1/u, -1/v)ᵀ.
    ray = np.array([1.0 / u, -1.0 / v, 0.0])
    return np.array([-a * mean, -b * mean, np.sign(z[2])]), alpha * (1.0 - alpha) * mean * np.outer(ray, ray)
