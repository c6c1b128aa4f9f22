"""diffcp with Clarabel: the reference back end, and the one for platforms where Moreau has no wheel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from drolayers.conic.implicit import matrices
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.residuals import row_index
from drolayers.conic.solution import WarmStart
from drolayers.conic.solvers.clarabel import ClarabelRescue
from drolayers.conic.solvers.contract import Capabilities, Exact, Pullback, Raw, Smoothed
from drolayers.errors import MissingExtraError
from drolayers.status import Status


@dataclass(frozen=True)
class Diffcp:
    """Clarabel for the solution and diffcp for the derivative, item by item.

    diffcp raises on an infeasible item, so Clarabel is asked first and diffcp sees only what has a solution. It knows
    neither power cones nor quadratic objectives.
    """

    tolerance: float = 1e-9
    name: str = "diffcp"

    @property
    def capabilities(self) -> Capabilities:
        """Linear objectives over the zero, nonnegative, second-order and exponential cones; exact gradients."""
        return Capabilities(frozenset({"zero", "nonneg", "soc", "exp"}), quadratic=False, smoothed=frozenset())

    def solve(
        self,
        program: ConeProgram,
        values: Values,
        gradient: Exact | Smoothed | None,
        warm_start: WarmStart | None,
    ) -> Raw:
        """Solve item by item; the warm start is not used."""
        raw = ClarabelRescue(self.tolerance)(program, values, differentiable=False)
        if gradient is None:
            return raw
        solved = (raw.verdict == int(Status.OPTIMAL)) | (raw.verdict == int(Status.FAILED))
        return Raw(
            raw.x,
            raw.z,
            raw.s,
            raw.verdict,
            raw.iterations,
            _pullback(program, values, raw.x, raw.z, solved, self.tolerance),
        )

    def adopt(self, program: ConeProgram, values: Values, point: WarmStart, gradient: Exact | Smoothed) -> Pullback:
        """Through diffcp's own solve, which it needs to differentiate."""
        everything = torch.ones(len(values), dtype=torch.bool, device=values.q.device)
        return _pullback(program, values, point.primal, point.dual, everything, self.tolerance)

    def with_tolerance(self, tolerance: float) -> Diffcp:
        """The same back end, asked for another accuracy."""
        return replace(self, tolerance=tolerance)


def _pullback(program: ConeProgram, values: Values, x: Tensor, z: Tensor, solved: Tensor, tolerance: float) -> Pullback:
    """Diffcp's adjoint derivative for the items that have a solution and an incoming gradient."""

    def pullback(dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        diffcp = _import()
        A_rows, A_cols = row_index(program.A_indptr).to(dx.device), program.A_indices.to(dx.device)
        cones = {
            "z": program.cones.zero,
            "l": program.cones.nonneg,
            "q": list(program.cones.soc),
            "ep": program.cones.exp,
        }
        dq, db = torch.zeros_like(values.q), torch.zeros_like(values.b)
        for item in (solved & (dx != 0).any(1)).nonzero()[:, 0].tolist():
            _, A = matrices(program, values, item)
            data = sp.csc_matrix(A), values.b[item].cpu().numpy(), values.q[item].cpu().numpy()
            *_, adjoint = diffcp.solve_and_derivative(
                *data, cones, solve_method="CLARABEL", verbose=False,
                tol_feas=tolerance, tol_gap_abs=tolerance, tol_gap_rel=tolerance,
            )  # fmt: skip
            _, db_item, dq_item = adjoint(dx[item].cpu().numpy(), np.zeros(program.rows), np.zeros(program.rows))
            db[item], dq[item] = torch.as_tensor(db_item), torch.as_tensor(dq_item)
        # diffcp's own dA leaves out entries whose value happens to be zero; the theorem gives all of them.
        dA = z[:, A_rows] * dq[:, A_cols] - db[:, A_rows] * x[:, A_cols]
        return torch.zeros_like(values.P), dA, dq, db

    return pullback


def _import() -> Any:
    """Diffcp, or a sentence on how to get it."""
    try:
        import diffcp
    except ImportError as error:
        raise MissingExtraError("engine='diffcp' needs diffcp: pip install 'drolayers[reference]'.") from error
    return diffcp
