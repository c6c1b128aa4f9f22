"""Clarabel, one item at a time: the careful second route, and the solver of cones that no other takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import scipy.sparse as sp
import torch

from conelayers.engine.solution import WarmStart
from conelayers.engine.solvers.contract import Capabilities, Points, panicked
from conelayers.program.program import EVERY_CONE, ConeProgram, Values, matrices
from conelayers.status import Status


@final
@dataclass(frozen=True)
class Clarabel:
    """Clarabel's interior-point method.

    Args:
        tolerance: asked of feasibility and gap; what was reached is measured afterwards.
        max_iter: steps at most.
    """

    tolerance: float = 1e-10
    max_iter: int = 500
    name: str = "clarabel"
    capabilities: ClassVar[Capabilities] = Capabilities(EVERY_CONE)

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Solve every item by itself; the warm start is not used."""
        found = [self._solve(program, values, item) for item in range(len(values.q))]
        x, z, s = (torch.stack([torch.as_tensor(f[k]) for f in found]).to(values.q) for k in range(3))
        verdict, steps = (torch.tensor([int(f[k]) for f in found], device=values.q.device) for k in (3, 4))
        return Points(x, z, s, verdict, steps)

    def with_tolerance(self, tolerance: float) -> Clarabel:
        """The same solver, asked for another accuracy."""
        return replace(self, tolerance=tolerance)

    def _solve(
        self, program: ConeProgram, values: Values, item: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Status, int]:
        """One program."""
        import clarabel

        P, A = matrices(program, values, item)
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_iter = self.max_iter
        settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = self.tolerance
        q, b = (t[item].detach().cpu().numpy() for t in (values.q, values.b))
        cones = program.cones
        parts = [
            *([clarabel.ZeroConeT(cones.zero)] if cones.zero else []),
            *([clarabel.NonnegativeConeT(cones.nonneg)] if cones.nonneg else []),
            *(clarabel.SecondOrderConeT(d) for d in cones.soc),
            *(clarabel.PSDTriangleConeT(order) for order in cones.psd),
            *(clarabel.ExponentialConeT() for _ in range(cones.exp)),
            *(clarabel.PowerConeT(a) for a in cones.power),
        ]
        try:
            found = clarabel.DefaultSolver(sp.csc_matrix(sp.triu(P)), q, sp.csc_matrix(A), b, parts, settings).solve()
        except BaseException as error:
            if not panicked(error):
                raise
            return np.zeros_like(q), np.zeros_like(b), np.zeros_like(b), Status.FAILED, 0
        verdict = {
            "Solved": Status.OPTIMAL,
            "PrimalInfeasible": Status.INFEASIBLE,
            "AlmostPrimalInfeasible": Status.INFEASIBLE,
            "DualInfeasible": Status.UNBOUNDED,
            "AlmostDualInfeasible": Status.UNBOUNDED,
        }.get(str(found.status), Status.FAILED)
        x, z, s = (np.nan_to_num(np.asarray(v, dtype=float)) for v in (found.x, found.z, found.s))
        return x, z, s, verdict, int(found.iterations)
