"""Smoothed derivatives item by item: any self-dual cone, semidefinite ones included.

On the central path s∘z = μe. With v = z - s that is z = Φ(v) for the spectral function φ(λ) = ½(λ + √(λ² + 4μ)), the
smooth neighbour of the projection: it acts on the entries of the orthant, on the two eigenvalues t ± ‖w‖ of a
second-order cone and on those of a matrix. So the path is met by Newton's method on the same equations as the solution
(``newton.py``), and differentiated by the same system, with the derivative of Φ in place of the projection's. It is
positive definite, and nothing is on the verge of anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from conelayers.derivative.newton import Item, items, solve
from conelayers.derivative.path import opened
from conelayers.derivative.theorem import Found, Pulled
from conelayers.program.program import ConeProgram, Cones, Values
from conelayers.program.semidefinite import matrix, parts, rows_of, spectral_derivative
from conelayers.status import Derivative

ROUNDS = 60
"""Newton steps at most."""

HALVINGS = 30
"""Of a step that leaves more than there was."""

MET = 1e-9
"""What may be left of the path's equations, where numbers are about one."""


@final
@dataclass(frozen=True)
class Barrier:
    """The derivative on the central path over zero, nonnegative, second-order and semidefinite cones.

    Args:
        level: of the barrier.
    """

    level: float

    def __call__(
        self, program: ConeProgram, values: Values, found: Found, dx: Tensor, dz: Tensor | None = None
    ) -> Pulled:
        """Pull gradients back, one item after another."""
        points = (found.x, found.z, found.s)
        room = self._room(program, values, points)
        pulled = [np.zeros(t.shape) for t in (found.x, found.z, found.x, found.z)]
        codes, seeds = np.full(len(values.q), int(Derivative.UNVERIFIED)), dx.detach().cpu().numpy()
        dual_seeds = np.zeros(found.z.shape) if dz is None else dz.detach().cpu().numpy()
        for k, item in enumerate(items(program, values, *points)):
            answer = pull(program.cones, item._replace(b=item.b + room[k]), self.level, seeds[k], dual_seeds[k])
            if answer is not None:
                codes[k] = int(Derivative.PATH)
                for target, value in zip(pulled, answer, strict=True):
                    target[k] = value
        x, z, g, h = (torch.as_tensor(t).to(dx) for t in pulled)
        return Pulled(x, z, g, h, torch.as_tensor(codes, device=dx.device))

    def _room(self, program: ConeProgram, values: Values, points: tuple[Tensor, ...]) -> np.ndarray:
        """What the right-hand sides of fixed columns are raised by, so that there is a path."""
        A, b = values.A.detach().T, values.b.detach().T
        wider, _ = opened(program, A, b, self.level, [t.T for t in points])
        return (wider - b).T.cpu().numpy()


def pull(
    cones: Cones, item: Item, level: float, dx: np.ndarray, dz: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """The x, z of the path and the g, h of its adjoint system; None where the path was not met."""
    P, A, x, v = item.P, item.A, item.x, item.z - item.s

    def left(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        z = smooth(cones, v, level)
        missing, beside = P @ x + item.q + A.T @ z, A @ x + z - v - item.b
        return missing, beside, float(max(np.abs(missing).max(initial=0.0), np.abs(beside).max(initial=0.0)))

    missing, beside, size = left(x, v)
    for _ in range(ROUNDS):
        if size <= MET * (1.0 + max(np.abs(x).max(initial=0.0), np.abs(v).max(initial=0.0))):
            U, H = smooth_basis(cones, v, level)
            solution = solve(P, A, U, H, dx, U.T @ dz)
            return None if solution is None else (x, smooth(cones, v, level), solution[0], U @ solution[1])
        U, H = smooth_basis(cones, v, level)
        step = solve(P, A, U, H, -missing, -(U.T @ beside), exactly=False)
        if step is None or not all(np.isfinite(part).all() for part in step):
            return None
        along = U @ step[1] + A @ step[0] + beside
        for k in range(HALVINGS):
            share = 0.5**k
            after = left(x + share * step[0], v + share * along)
            if after[2] <= (1.0 - 0.1 * share) * size:
                break
        else:
            return None
        x, v = x + share * step[0], v + share * along
        missing, beside, size = after
    return None


def smooth(cones: Cones, v: np.ndarray, level: float) -> np.ndarray:
    """Z = Φ(v)."""
    z, at = v.copy(), cones.zero + cones.nonneg
    z[cones.zero : at] = _phi(v[cones.zero : at], level)
    for dimension in cones.soc:
        t, w = v[at], v[at + 1 : at + dimension]
        length = float(np.linalg.norm(w))
        low, high = _phi(np.array([t - length, t + length]), level)
        unit = w / length if length > 0.0 else w
        z[at : at + dimension] = 0.5 * np.concatenate([[high + low], (high - low) * unit])
        at += dimension
    for part, order in parts(cones):
        values, vectors = np.linalg.eigh(matrix(v[part], order))
        z[part] = rows_of((vectors * _phi(values, level)) @ vectors.T)
    return z


def smooth_basis(cones: Cones, v: np.ndarray, level: float) -> tuple[sp.csr_array, np.ndarray]:
    """Eigenvectors U of the derivative of Φ, and H = 1/d - 1 of its eigenvalues d."""
    linear = cones.zero + cones.nonneg
    blocks = [sp.eye_array(linear)]
    d = [np.ones(cones.zero), _slope(v[cones.zero : linear], level)]
    at = linear
    for dimension in cones.soc:
        values, vectors = _second_order(v[at : at + dimension], level)
        blocks.append(sp.csr_array(vectors))
        d.append(values)
        at += dimension
    for part, order in parts(cones):
        values, vectors = np.linalg.eigh(matrix(v[part], order))
        directions, shares = spectral_derivative(vectors, _differences(values, level))
        blocks.append(sp.csr_array(directions.T))
        d.append(shares)
    return sp.csr_array(sp.block_diag(blocks, format="csr")), 1.0 / np.concatenate(d) - 1.0


def _second_order(v: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors (one a column) of the derivative on a second-order cone."""
    t, w = v[0], v[1:]
    length = float(np.linalg.norm(w))
    unit = w / length if length > 0.0 else np.eye(w.size)[0]
    across = np.linalg.svd(unit[None, :])[2][1:]
    ends = np.array([t + length, t - length])
    root = np.sqrt(0.5)
    heads = np.concatenate([[[root, root]], root * np.stack([unit, -unit], 1)])
    tails = np.concatenate([np.zeros((1, w.size - 1)), across.T])
    between = _differences(ends, level)[0, 1]
    return np.concatenate([_slope(ends, level), np.full(w.size - 1, between)]), np.concatenate([heads, tails], 1)


def _phi(values: np.ndarray, level: float) -> np.ndarray:
    """½(λ + √(λ² + 4μ)), without cancellation where λ is negative."""
    root = np.sqrt(values * values + 4.0 * level)
    return np.where(values > 0.0, 0.5 * (values + root), 2.0 * level / (root - values))


def _slope(values: np.ndarray, level: float) -> np.ndarray:
    """The derivative of φ, which is φ/√(λ² + 4μ)."""
    return _phi(values, level) / np.sqrt(values * values + 4.0 * level)


def _differences(values: np.ndarray, level: float) -> np.ndarray:
    """Divided differences of φ: ½(1 + (λᵢ + λⱼ)/(√ᵢ + √ⱼ)), which is (φᵢ + φⱼ)/(√ᵢ + √ⱼ)."""
    root, phi = np.sqrt(values * values + 4.0 * level), _phi(values, level)
    return (phi[:, None] + phi[None, :]) / (root[:, None] + root[None, :])
