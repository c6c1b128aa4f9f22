"""Clarabel, one item at a time: the careful second route for items that a batched solver leaves unfinished."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from drolayers.conic.implicit import implicit_pullback, matrices
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solvers.contract import Raw
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
        pullback = implicit_pullback(program, values, x, z, s) if differentiable else None
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
