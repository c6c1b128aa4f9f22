"""The implicit function theorem for one cone program, stated once and solved by a sparse factorisation.

With v = z - s the optimality conditions are F(x, v) = 0 for

    F = ( Px + q + AᵀΠ(v),  Ax + Π(v) - v - b ),     z = Π(v),  s = Π(v) - v,

where Π projects onto the dual cone. With J = ∂F/∂(x, v) and Jᵀ(g, h) = (dx, 0),

    dq = -g,   db = h,   dA = -(z gᵀ + h xᵀ),   dP = -g xᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from drolayers.conic.program import Cones

Curvature = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

INTERIOR = 1e-7
"""Below this ratio the smaller of slack and multiplier is zero, and the other may lie inside its cone."""

TINY = 1e-12
"""Keeps formulas finite on the edges of the exponential and power cones, which have no derivative there."""


def pull_back(
    cones: Cones, P: sp.csr_array, A: sp.csr_array, x: np.ndarray, z: np.ndarray, s: np.ndarray, dx: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients with respect to the stored entries of P and A, to q and to b."""
    n, m = A.shape[1], A.shape[0]
    D = projection_derivative(cones, z, s)
    J = sp.block_array([[P, A.T @ D], [A, D - sp.eye_array(m)]], format="csc")
    rhs = np.concatenate([dx, np.zeros(m)])
    g, h = np.split(_least_squares(sp.csc_array(J.T), rhs), [n])
    A_rows = np.repeat(np.arange(m), np.diff(A.indptr))
    P_rows = np.repeat(np.arange(n), np.diff(P.indptr))
    dA = -(z[A_rows] * g[A.indices] + h[A_rows] * x[A.indices])
    return -g[P_rows] * x[P.indices], dA, -g, h


def projection_derivative(cones: Cones, z: np.ndarray, s: np.ndarray) -> sp.csr_array:
    """The derivative at v = z - s of the projection onto the dual cone, whose value there is z."""
    v = z - s
    diagonal = np.ones(cones.zero + cones.nonneg)
    diagonal[cones.zero :] = v[cones.zero : diagonal.size] > 0
    blocks, at = [sp.diags_array(diagonal)], diagonal.size
    for dimension in cones.soc:
        blocks.append(sp.csr_array(_soc_derivative(v[at : at + dimension])))
        at += dimension
    for curvature in [_exponential] * cones.exp + [partial(_power, alpha) for alpha in cones.power]:
        part = slice(at, at + 3)
        blocks.append(sp.csr_array(_smooth_derivative(z[part], s[part], curvature)))
        at += 3
    return sp.csr_array(sp.block_diag(blocks))


def _soc_derivative(v: np.ndarray) -> np.ndarray:
    """On the boundary case: ½ [[1, uᵀ], [u, (1 + t/‖w‖) I - (t/‖w‖) uuᵀ]] with v = (t, w), u = w/‖w‖."""
    t, w = v[0], v[1:]
    length = float(np.linalg.norm(w))
    if length <= t:
        return np.eye(v.size)
    if length <= -t:
        return np.zeros((v.size, v.size))
    u, ratio = w / length, t / length
    inner = (1.0 + ratio) * np.eye(w.size) - ratio * np.outer(u, u)
    return 0.5 * np.block([[np.ones((1, 1)), u[None, :]], [u[:, None], inner]])


def _smooth_derivative(z: np.ndarray, s: np.ndarray, curvature: Curvature) -> np.ndarray:
    """The derivative where the dual cone is {φ ≤ 0} with φ smooth at z.

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


def _least_squares(matrix: sp.csc_array, rhs: np.ndarray) -> np.ndarray:
    """Solve a square system; where it is singular (a kink), take the least-squares solution."""
    try:
        solution = spla.splu(matrix).solve(rhs)
    except RuntimeError:
        solution = np.full_like(rhs, np.nan)
    residual = np.abs(matrix @ solution - rhs).max(initial=0.0)
    if np.isfinite(residual) and residual <= 1e-6 * (1.0 + np.abs(rhs).max(initial=0.0)):
        return solution
    return spla.lsmr(matrix, rhs, atol=1e-12, btol=1e-12, maxiter=10 * rhs.size)[0]
