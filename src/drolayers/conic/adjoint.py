"""The implicit function theorem for one cone program, stated once and solved by a sparse factorisation.

With v = z - s the optimality conditions are F(x, v) = 0 for

    F = ( Px + q + AᵀΠ(v),  Ax + Π(v) - v - b ),     z = Π(v),  s = Π(v) - v,

where Π projects onto the dual cone. With J = ∂F/∂(x, v) and Jᵀ(g, h) = (dx, 0),

    dq = -g,   db = h,   dA = -(z gᵀ + h xᵀ),   dP = -g xᵀ.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from drolayers.conic.program import Cones


def pull_back(
    cones: Cones, P: sp.csr_array, A: sp.csr_array, x: np.ndarray, z: np.ndarray, s: np.ndarray, dx: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients with respect to the stored entries of P and A, to q and to b."""
    n, m = A.shape[1], A.shape[0]
    D = projection_derivative(cones, z - s)
    J = sp.block_array([[P, A.T @ D], [A, D - sp.eye_array(m)]], format="csc")
    rhs = np.concatenate([dx, np.zeros(m)])
    g, h = np.split(_least_squares(sp.csc_array(J.T), rhs), [n])
    A_rows = np.repeat(np.arange(m), np.diff(A.indptr))
    P_rows = np.repeat(np.arange(n), np.diff(P.indptr))
    dA = -(z[A_rows] * g[A.indices] + h[A_rows] * x[A.indices])
    return -g[P_rows] * x[P.indices], dA, -g, h


def projection_derivative(cones: Cones, v: np.ndarray) -> sp.csr_array:
    """The derivative of the projection onto the dual of {0} × orthant × second-order cones."""
    diagonal = np.ones(cones.zero + cones.nonneg)
    diagonal[cones.zero :] = v[cones.zero : diagonal.size] > 0
    blocks, at = [sp.diags_array(diagonal)], diagonal.size
    for dimension in cones.soc:
        blocks.append(sp.csr_array(_soc_derivative(v[at : at + dimension])))
        at += dimension
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
