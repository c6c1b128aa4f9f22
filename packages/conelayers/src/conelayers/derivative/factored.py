"""Exact derivatives item by item: any cone, kinks told from mere degeneracy, and systems that are singular.

The equations are those of ``newton.py``, with dx and nothing on their right-hand side. Their matrix is singular where
multipliers or decisions are not unique. If they have solutions all the same, any of them gives the derivative along
all changes of the data that keep the face, and a small one is taken; if they differ in the features, some of these do
not keep it, and the item is at a kink. If they have none, the decision moves at no finite rate: it is not unique in the
direction asked for. Where a row, or an eigenvalue, is on the verge between two faces, the derivatives of both must
agree, or the item is at a kink.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from torch import Tensor

from conelayers.derivative.newton import Item, basis, gap, items, margin, polished, shifted, solve
from conelayers.derivative.theorem import AGREE, Found, Pulled, by_feature
from conelayers.interior.face import MARGIN, REFINE
from conelayers.program.program import ConeProgram, Cones, Values
from conelayers.status import Derivative

Solutions = list[tuple[np.ndarray, np.ndarray]]

BLURRED = 1e-4
"""Eigenvalues of z - s so close to zero are on either side of it where the point cannot be polished."""


@final
@dataclass(frozen=True)
class Factored:
    """The derivative on the active face by a factorisation of each item."""

    def __call__(
        self, program: ConeProgram, values: Values, found: Found, dx: Tensor, dz: Tensor | None = None
    ) -> Pulled:
        """Pull gradients back, one item after another."""
        seeds, shapes = dx.detach().cpu().numpy(), (found.x.shape, found.z.shape)
        dual_seeds = np.zeros(found.z.shape) if dz is None else dz.detach().cpu().numpy()
        # Two solutions an item: on the verge between two faces there is one on either side. And what is left open.
        sides = [[np.zeros(shape) for shape in (*shapes, *shapes)] for _ in range(3)]
        codes = np.zeros(len(values.q), dtype=np.int64)
        for item, one in enumerate(items(program, values, found.x, found.z, found.s)):
            *at, solutions, rest, told = pull(program.cones, one, seeds[item], dual_seeds[item])
            codes[item] = int(told)
            for side, solution in zip(sides, (*solutions[:1], *solutions[-1:], *rest), strict=False):
                for target, value in zip(side, (*at, *solution), strict=True):
                    target[item] = value
        code = torch.as_tensor(codes, device=dx.device)
        first, second, third = (Pulled(*(torch.as_tensor(t).to(dx) for t in side), code) for side in sides)  # type: ignore[call-arg, arg-type]
        here, there = (by_feature(program, side, found.units) for side in (first, second))
        kink = (here - there).abs().amax(1) > AGREE * here.abs().amax(1) if program.feature_size else code < 0
        code = torch.where(kink & first.ok, int(Derivative.KINK), code)
        return replace(second, code=code, rest=(third.g, third.h))


def pull(
    cones: Cones, item: Item, dx: np.ndarray, dz: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Solutions, Solutions, Derivative]:
    """The point x, z and the solutions g, h of the adjoint system there, for one program: one, or one a side.

    And what the system leaves of noise.
    """
    P, A, x, z, s = item.P, item.A, item.x, item.z, item.s
    symmetric = not (cones.exp or cones.power)
    if symmetric:
        x, z, s, done = polished(cones, P, A, item.q, item.b, x, z - s)
        if not done:
            return x, z, [], [], Derivative.UNVERIFIED
    elif gap(cones, z - s) <= BLURRED * (1.0 + np.abs(z - s).max()):
        return x, z, [], [], Derivative.UNVERIFIED
    found = []
    near = MARGIN * (1.0 + np.abs(z - s).max(initial=0.0))
    verge = symmetric and margin(cones, z - s) <= near
    for lean in (near, -near) if verge else (0.0,):
        U, H = basis(cones, z, s, lean)
        solution = solve(P, A, U, H, dx, U.T @ dz)
        if solution is None:
            return x, z, [], [], Derivative.KINK if verge else Derivative.LOOSE
        found.append((solution[0], U @ solution[1]))
    return x, z, found, [left(P, A, U, H)], Derivative.FACTORED


def left(P: sp.csr_array, A: sp.csr_array, U: sp.csr_array, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the system leaves of noise: a solution with nothing on its right-hand side."""
    rng = np.random.default_rng(0)
    g, h = rng.standard_normal(len(P.indptr) - 1), rng.standard_normal(U.shape[1])
    UA = U.T @ A
    matrix = sp.csc_array(sp.block_array([[P, UA.T], [UA, -sp.diags_array(H)]]))
    try:
        # What is singular stays as it is, and all else is taken away: no least squares are needed.
        factors = spla.splu(sp.csc_array(matrix + shifted(g.size, h.size)))
    except RuntimeError:
        solution = solve(P, A, U, H, P @ g + UA.T @ h, UA @ g - H * h, exactly=False)
        return (g, U @ h) if solution is None else (g - solution[0], U @ (h - solution[1]))
    rest = np.concatenate([g, h])
    for _ in range(REFINE):
        rest = rest - factors.solve(np.atleast_1d(matrix @ rest))
    return rest[: g.size], U @ rest[g.size :]
