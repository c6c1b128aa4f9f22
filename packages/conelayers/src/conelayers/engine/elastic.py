"""Programs without a feasible point and without a certificate that says so.

A certificate of infeasibility is a ray, and where constraints are missed by less and less, but never met, there is
none: the worst case of y₁ over E[y₁² - y₂] ≤ 1 is infinite, and no single direction shows it. So rows may be missed, at
a price in the objective. The best objective grows with the price until that exceeds every multiplier; if it grows on
and on, no multipliers exist, and there is no feasible point.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.engine.solvers.contract import Solver
from conelayers.engine.verdict import classify
from conelayers.program.program import AffineMap, ConeProgram, Cones, Values, row_index
from conelayers.program.residuals import products
from conelayers.scaling.units import Units

PRICES = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
"""Of missing a row by one, in units in which multipliers are about one."""

FAR = 3
"""The first of them that says something: the last three in a row that are known count, up to this or beyond."""

ROUGH = 1e-2
"""Relative residual up to which an objective is known well enough to tell whether it grows."""

ON = 0.9
"""Share of the growth from one price to the next that must be met again from there to the last."""

MUCH = 1e-3
"""Growth that counts, in the same units."""


def endless(program: ConeProgram, values: Values, solver: Solver) -> Bool[Tensor, "batch"]:
    """Whether the objective grows with the price of missed rows for ever, item by item; no where that is not known."""
    grows = torch.zeros(len(values.q), dtype=torch.bool, device=values.q.device)
    if program.cones.exp or program.cones.psd:
        return grows
    _, hats = Units.of(program, values.detach())
    elastic = _Elastic(program)
    found = [elastic.objective(hats, price, solver) for price in PRICES]
    for last in range(FAR, len(PRICES)):
        first, second = found[last - 1] - found[last - 2], found[last] - found[last - 1]
        known = second.isfinite() & first.isfinite()
        grows = torch.where(known, (first > MUCH * (1.0 + found[0].abs().nan_to_num())) & (second > ON * first), grows)
    return grows


class _Elastic:
    """A program whose rows may be missed: those of equations either way, those of other cones inwards, all alike."""

    def __init__(self, program: ConeProgram) -> None:
        cones, n, m = program.cones, program.columns, program.rows
        linear = cones.zero + cones.nonneg
        heads = linear + torch.tensor([0, *cones.soc]).cumsum(0)[:-1]
        powers = m - 3 * len(cones.power) + 3 * torch.arange(len(cones.power))
        inwards = torch.cat([torch.arange(cones.zero, linear), heads, powers, powers + 1])
        more = 2 * cones.zero + 1
        # New columns: one above and one below every equation, and one for all other rows; each is nonnegative.
        place = torch.cat([torch.arange(linear), torch.arange(linear, m) + more])
        above = torch.arange(cones.zero)
        rows = [place[row_index(program.A_indptr)], above, above, place[inwards], linear + torch.arange(more)]
        columns = [
            program.A_indices,
            n + above,
            n + cones.zero + above,
            torch.full((len(inwards),), n + more - 1),
            n + torch.arange(more),
        ]
        signs = [torch.zeros(program.nonzeros), torch.ones(cones.zero), -torch.ones(cones.zero)]
        signs += [-torch.ones(len(inwards)), -torch.ones(more)]
        row, column, sign = torch.cat(rows), torch.cat(columns), torch.cat(signs).double()
        order = torch.argsort(row * (n + more) + column)
        self.entry, self.sign, self.more, self.place = order.argsort()[: program.nonzeros], sign[order], more, place
        none = torch.zeros(0, dtype=torch.int64)
        nothing = AffineMap(none.double(), none, none, none.double())
        start = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=m + more).cumsum(0)])
        self.program = ConeProgram(
            cones=Cones(cones.zero, cones.nonneg + more, cones.soc, power=cones.power),
            columns=n + more,
            A_indptr=start,
            A_indices=column[order],
            P_indptr=torch.cat([program.P_indptr, program.P_indptr[-1:].expand(more)]),
            P_indices=program.P_indices,
            A_map=nothing,
            b_map=nothing,
            q_map=nothing,
            P_map=nothing,
            constant_map=nothing,
            variables=(),
            parameters=(),
        )

    def objective(self, hats: Values, price: float, solver: Solver) -> Float[Tensor, "batch"]:
        """The best objective at a price; NaN where it is not known."""
        batch, device = len(hats.q), hats.q.device
        A = self.sign.to(hats.q).expand(batch, -1).clone()
        A[:, self.entry.to(device)] = hats.A
        b = hats.b.new_zeros(batch, self.program.rows)
        b[:, self.place.to(device)] = hats.b
        q = torch.cat([hats.q, hats.q.new_full((batch, self.more), price)], 1) / price
        values = Values(hats.P / price, A, q, b, hats.constant)
        points = solver.solve(self.program, values)
        _, residual = classify(self.program, values, points)
        Px, _, _ = products(self.program, values, points.x, points.z)
        objective = price * ((0.5 * Px + q) * points.x).sum(1)
        return torch.where(residual <= ROUGH, objective, torch.full_like(objective, torch.nan))
