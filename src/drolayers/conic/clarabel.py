"""Clarabel, one item at a time: the careful second route for items that a batched solver leaves unfinished."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from drolayers.conic.adjoint import pull_back
from drolayers.conic.engine import Pullback, Raw
from drolayers.conic.program import ConeProgram, Values
from drolayers.status import Status


@dataclass(frozen=True)
class ClarabelRescue:
    """Solve items by Clarabel and differentiate them by the implicit function theorem.

    Args:
        tolerance: asked of feasibility and gap; what was reached is measured afterwards.
    """

    tolerance: float = 1e-9

    def __call__(self, program: ConeProgram, values: Values, differentiable: bool) -> Raw:
        """Solve every item by itself."""
        found = [self._solve(program, values, item) for item in range(len(values))]
        x, z, s = (torch.stack([torch.as_tensor(f[k]) for f in found]).to(values.q) for k in range(3))
        verdict, iterations = (torch.tensor([int(f[k]) for f in found], device=values.q.device) for k in (3, 4))
        pullback = self._pullback(program, values, x, z, s) if differentiable else None
        return Raw(x, z, s, verdict, iterations, pullback)

    def _solve(
        self, program: ConeProgram, values: Values, item: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Status, int]:
        """One program."""
        import clarabel

        P, A = matrices(program, values, item)
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_iter = 500
        settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = self.tolerance
        q, b = (t[item].detach().cpu().numpy() for t in (values.q, values.b))
        cones = program.cones
        parts = [
            *([clarabel.ZeroConeT(cones.zero)] if cones.zero else []),
            *([clarabel.NonnegativeConeT(cones.nonneg)] if cones.nonneg else []),
            *(clarabel.SecondOrderConeT(d) for d in cones.soc),
            *(clarabel.ExponentialConeT() for _ in range(cones.exp)),
            *(clarabel.PowerConeT(a) for a in cones.power),
        ]
        found = clarabel.DefaultSolver(sp.csc_matrix(sp.triu(P)), q, sp.csc_matrix(A), b, parts, settings).solve()
        verdict = {
            "Solved": Status.OPTIMAL,
            "PrimalInfeasible": Status.INFEASIBLE,
            "AlmostPrimalInfeasible": Status.INFEASIBLE,
            "DualInfeasible": Status.NO_MINIMUM,
            "AlmostDualInfeasible": Status.NO_MINIMUM,
        }.get(str(found.status), Status.FAILED)
        x, z, s = (np.nan_to_num(np.asarray(v, dtype=float)) for v in (found.x, found.z, found.s))
        return x, z, s, verdict, int(found.iterations)

    @staticmethod
    def _pullback(program: ConeProgram, values: Values, x: Tensor, z: Tensor, s: Tensor) -> Pullback:
        """Implicit differentiation, item by item."""

        def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            gradients = []
            for item in range(len(values)):
                P, A = matrices(program, values, item)
                point = (v[item].detach().cpu().numpy() for v in (x, z, s, dx))
                gradients.append(pull_back(program.cones, P, A, *point))
            stacked = [torch.as_tensor(np.stack(g)).to(dx) for g in zip(*gradients, strict=True)]
            return stacked[0], stacked[1], stacked[2], stacked[3]

        return pullback


def matrices(program: ConeProgram, values: Values, item: int) -> tuple[sp.csr_array, sp.csr_array]:
    """P and A of one item as sparse matrices that keep their structural zeros."""
    n = program.columns
    P_data, A_data = (M[item].detach().cpu().numpy() for M in (values.P, values.A))
    P = sp.csr_array((P_data, program.P_indices.numpy(), program.P_indptr.numpy()), shape=(n, n))
    A = sp.csr_array((A_data, program.A_indices.numpy(), program.A_indptr.numpy()), shape=(program.rows, n))
    return P, A
