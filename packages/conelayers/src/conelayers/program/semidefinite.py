"""Symmetric matrices as rows of a program: the upper triangle column by column, off the diagonal times √2.

The factor makes the product of two vectors of rows the trace of the product of their matrices, so that the cone is its
own dual and projections are the same in both. Clarabel and Moreau read rows in this order.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.program.program import Cones


@cache
def triangle(order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row and column in the matrix of every row of the program, and the factor with which it stands there."""
    column, row = np.tril_indices(order)
    return row, column, np.where(row == column, 1.0, np.sqrt(2.0))


def matrix(rows: np.ndarray, order: int) -> np.ndarray:
    """The symmetric matrix of one cone's rows."""
    row, column, factor = triangle(order)
    full = np.empty((order, order))
    full[row, column] = full[column, row] = rows / factor
    return full


def rows_of(full: np.ndarray) -> np.ndarray:
    """The rows of symmetric matrices ``(..., order, order)``."""
    row, column, factor = triangle(full.shape[-1])
    return full[..., row, column] * factor


def parts(cones: Cones) -> list[tuple[slice, int]]:
    """The rows of every semidefinite cone, and its order."""
    at, found = cones.zero + cones.nonneg + sum(cones.soc), []
    for order in cones.psd:
        size = order * (order + 1) // 2
        found.append((slice(at, at + size), order))
        at += size
    return found


def smallest_eigenvalue(cones: Cones, s: Float[Tensor, "batch row"]) -> Float[Tensor, "batch"]:
    """The smallest eigenvalue among all semidefinite cones of each item; minus infinity where a number is none."""
    smallest = s.new_full((s.shape[0],), torch.inf)
    places = parts(cones)
    for order in sorted(set(cones.psd)):
        row, column, factor = (torch.as_tensor(t, device=s.device) for t in triangle(order))
        block = torch.stack([s[:, part] for part, size in places if size == order], 1)
        finite = block.isfinite().all(-1).all(-1)
        entries = torch.where(finite[:, None, None], block, torch.zeros_like(block)) / factor.to(s)
        # The lower triangle is all that is read.
        full = s.new_zeros(*entries.shape[:2], order, order)
        full[..., column, row] = entries
        least = torch.linalg.eigvalsh(full)[..., 0].amin(1)
        smallest = torch.minimum(smallest, torch.where(finite, least, torch.full_like(least, -torch.inf)))
    return smallest


def derivative(v: np.ndarray, order: int, lean: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors (one a row) and eigenvalues of the derivative of the projection onto the cone, at v.

    With v = U diag(λ) Uᵀ the derivative is  H ↦ U (Ω ∘ UᵀHU) Uᵀ  with the divided differences of max(λ, 0),

        Ωᵢⱼ = 1 if λᵢ, λⱼ ≥ 0,   0 if both are negative,   λᵢ/(λᵢ - λⱼ) if λᵢ ≥ 0 > λⱼ,

    so that its eigenvectors are the uᵢuⱼᵀ + uⱼuᵢᵀ. Eigenvalues within ``lean`` of zero count as positive where it is
    positive, as negative otherwise.
    """
    values, vectors = np.linalg.eigh(matrix(v, order))
    positive = values > -lean
    size = np.abs(values)
    mixed = np.where(positive, size, 0.0)[:, None] + np.where(positive, 0.0, size)[None, :]
    share = size[:, None] / np.where(mixed > 0.0, mixed, 1.0)
    omega = np.where(positive[:, None] & positive[None, :], 1.0, 0.0)
    omega = np.where(positive[:, None] & ~positive[None, :], share, omega)
    omega = np.where(~positive[:, None] & positive[None, :], share.T, omega)
    return spectral_derivative(vectors, omega)


def spectral_derivative(vectors: np.ndarray, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors (one a row) and eigenvalues of  H ↦ U (Ω ∘ UᵀHU) Uᵀ."""
    row, column, factor = triangle(len(vectors))
    outer = vectors.T[row][:, :, None] * vectors.T[column][:, None, :]
    directions = 0.5 * (outer + outer.transpose(0, 2, 1)) * factor[:, None, None]
    return rows_of(directions), omega[row, column]
