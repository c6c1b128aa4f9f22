"""The algebra of the interior-point method in torch: a whole batch at a time, on a GPU.

The rows of proper cones are eliminated, and the system  [P + AᵀH⁻¹A, Eᵀ; E, 0]  that is left is solved through its
block-arrow shape (``arrow.py``), so that a batch is a few hundred operations on long tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from conelayers.interior.arrow import ArrowFactor, ArrowPlan, system_pattern
from conelayers.interior.scaling import ConeShape, Scaling, folded
from conelayers.program.program import ConeProgram, copy_array, once, row_index


@dataclass(frozen=True, eq=False)
class SystemPlan:
    """Which products of entries of A go where in the flat system; made once a program and device."""

    program: ConeProgram
    arrow: ArrowPlan
    shape: ConeShape
    row: Tensor
    column: Tensor
    P_row: Tensor
    P_column: Tensor
    line_pairs: Tensor
    line_target: Tensor
    slot_entry: Tensor
    slot: Tensor
    slots: int
    cone_pairs: Tensor
    cone_target: Tensor
    cone_of_pair: Tensor
    product_pairs: Tensor
    product_target: Tensor
    equal_entry: Tensor
    equal_target: Tensor
    P_entry: Tensor
    P_target: Tensor
    diagonal_target: Tensor
    sign: Tensor
    head_row: Tensor

    @classmethod
    def of(cls, program: ConeProgram, device: torch.device) -> SystemPlan:
        """Lay everything out."""
        cones, columns = program.cones, program.columns
        arrow = ArrowPlan.of(system_pattern(program))
        row, column = row_index(program.A_indptr).numpy(), copy_array(program.A_indices)
        entries = np.arange(row.size)
        linear = cones.zero + cones.nonneg

        def pairs(group: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """All ordered pairs of members of one group."""
            order = np.argsort(group, kind="stable")
            sizes = np.bincount(group) if group.size else np.zeros(0, dtype=np.int64)
            starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if sizes.size else sizes
            first = np.repeat(order, sizes[group[order]])
            base = np.repeat(starts[group[order]], sizes[group[order]])
            step = np.arange(first.size) - np.repeat(
                np.cumsum(sizes[group[order]]) - sizes[group[order]], sizes[group[order]]
            )
            return of[first], of[order[base + step]]

        lines = entries[(row >= cones.zero) & (row < linear)]
        e1, e2 = pairs(row[lines], lines)
        target, kept = arrow.place(column[e1], column[e2])
        line_pairs, line_target = np.stack([e1, e2])[:, kept], target[kept]

        # Columns of one second-order cone meet in slots (cone, column).
        cone = np.repeat(np.arange(len(cones.soc)), cones.soc) if cones.soc else np.zeros(0, dtype=np.int64)
        head = np.diff(cone, prepend=-1) > 0
        curved = entries[row >= linear]
        cone_of_entry = cone[row[curved] - linear]
        keys, slot = np.unique(np.stack([cone_of_entry, column[curved]]), axis=1, return_inverse=True)
        slot = slot.ravel()
        u1, u2 = pairs(keys[0], np.arange(keys.shape[1])) if keys.size else (slot, slot)
        target, kept = arrow.place(keys[1][u1], keys[1][u2]) if keys.size else (slot, slot > 0)
        cone_pairs, cone_target = np.stack([u1, u2])[:, kept], target[kept]
        lookup = _PairLookup(cone_pairs, keys.shape[1])
        p1, p2 = pairs(row[curved], np.arange(curved.size))
        where = lookup(slot[p1], slot[p2])
        product_pairs = np.stack([curved[p1], curved[p2]])[:, where >= 0]
        sign = np.where(head, 1.0, -1.0)

        equal = entries[row < cones.zero]
        targets, chosen = [], []
        for i, j in ((columns + row[equal], column[equal]), (column[equal], columns + row[equal])):
            position, kept = arrow.place(i, j)
            targets.append(position[kept])
            chosen.append(equal[kept])
        P_row, P_column = row_index(program.P_indptr).numpy(), copy_array(program.P_indices)
        P_target, P_kept = arrow.place(P_row, P_column)
        nodes = np.arange(columns + cones.zero)
        diagonal, _ = arrow.place(nodes, nodes)

        def put(values: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(values)).to(device)

        return cls(
            program=program,
            arrow=arrow.to(device),
            shape=ConeShape.of(cones, device),
            row=put(row),
            column=put(column),
            P_row=put(P_row),
            P_column=put(P_column),
            line_pairs=put(line_pairs),
            line_target=put(line_target),
            slot_entry=put(curved),
            slot=put(slot),
            slots=int(keys.shape[1]),
            cone_pairs=put(cone_pairs),
            cone_target=put(cone_target),
            cone_of_pair=put(keys[0][cone_pairs[0]] if keys.size else np.zeros(0, dtype=np.int64)),
            product_pairs=put(product_pairs),
            product_target=put(where[where >= 0]),
            equal_entry=put(np.concatenate(chosen)),
            equal_target=put(np.concatenate(targets)),
            P_entry=put(np.flatnonzero(P_kept)),
            P_target=put(P_target[P_kept]),
            diagonal_target=put(diagonal),
            sign=put(sign),
            head_row=put(np.flatnonzero(head) + linear),
        )

    @cached_property
    def signs(self) -> Tensor:
        """Of the diagonal: positive for columns, negative for equality rows."""
        columns, zero = self.program.columns, self.program.cones.zero
        return torch.cat([torch.ones(columns), -torch.ones(zero)]).double().to(self.row.device)[:, None]


class _PairLookup:
    """The number of a pair of slots in a list of pairs."""

    def __init__(self, pairs: np.ndarray, slots: int) -> None:
        self.slots = max(slots, 1)
        keys = pairs[0].astype(np.int64) * self.slots + pairs[1]
        self.order = np.argsort(keys)
        self.keys = keys[self.order]

    def __call__(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Numbers, -1 where a pair is not in the list."""
        wanted = first.astype(np.int64) * self.slots + second
        if not self.keys.size:
            return np.full(wanted.size, -1)
        at = np.minimum(np.searchsorted(self.keys, wanted), self.keys.size - 1)
        return np.where(self.keys[at] == wanted, self.order[at], -1)


@final
class TorchAlgebra:
    """A batch of programs of one structure, ``(entries, batch)``; keeps the contract of ``method.Algebra``."""

    xp: Any = torch
    recorded = True

    def __init__(self, plan: SystemPlan, A: Tensor, P: Tensor, q: Tensor, b: Tensor) -> None:
        self.plan, self.A, self.P, self.q, self.b = plan, A, P, q, b
        self.zero, self.degree, self.quadratic = plan.shape.zero, plan.shape.degree, P.shape[0] > 0
        self.linear = plan.shape.zero + plan.shape.nonneg
        self.unit = plan.shape.identity(1, q)
        self._fixed = self._derived()

    @property
    def numbers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, P, q and b."""
        return self.A, self.P, self.q, self.b

    def buffered(self) -> TorchAlgebra:
        """A copy whose numbers are written to in place by :meth:`take`."""
        return TorchAlgebra(self.plan, *(t.clone() for t in self.numbers))

    def take(self, other: TorchAlgebra) -> None:
        """Take over the numbers of another, of the same shapes; :meth:`refix` has to follow."""
        for old, new in zip(self.numbers, other.numbers, strict=True):
            old.copy_(new)

    def refix(self) -> None:
        """Bring what was derived from the matrices up to date."""
        for old, new in zip(self._fixed, self._derived(), strict=True):
            old.copy_(new)

    def rows(self, x: Tensor) -> Tensor:
        """A x."""
        return torch.zeros_like(self.b).index_add_(0, self.plan.row, self.A * x[self.plan.column])

    def columns(self, z: Tensor) -> Tensor:
        """Aᵀz."""
        return torch.zeros_like(self.q).index_add_(0, self.plan.column, self.A * z[self.plan.row])

    def form(self, x: Tensor) -> Tensor:
        """P x."""
        out = torch.zeros_like(x)
        return out.index_add_(0, self.plan.P_row, self.P * x[self.plan.P_column]) if self.quadratic else out

    def dots(self, u: Tensor, v: Tensor) -> Tensor:
        """Inner products."""
        return self._sums(u * v)

    def masses(self, u: Tensor, v: Tensor) -> Tensor:
        """Sums of absolute products."""
        return self._sums((u * v).abs())

    def sizes(self, v: Tensor) -> Tensor:
        """Largest absolute entries."""
        if not v.shape[0]:
            return v.new_zeros(v.shape[1])
        return torch.linalg.vector_norm(folded(v), torch.inf, 0).amax(0).nan_to_num(nan=torch.inf)

    def _sums(self, v: Tensor) -> Tensor:
        """Sums over entries; as a product, which a GPU does two to four times as fast."""
        ones = once(self.plan, ("ones", len(v)), lambda: self.q.new_ones(1, len(v)))
        return (ones @ v)[0]

    def combine(self, a: Tensor, u: Tensor, b: Tensor, v: Tensor) -> Tensor:
        """a·u + b·v."""
        return torch.addcmul(a * u, b, v)

    def move(self, v: Tensor, d: Tensor, length: Tensor) -> None:
        """V += length·d, in place."""
        torch.where(length > 0, torch.addcmul(v, length, d), v, out=v)

    def keep(self, target: Tensor, source: Tensor, chosen: Tensor) -> None:
        """Copy some items, in place."""
        torch.where(chosen, source, target, out=target)

    def margin(self, v: Tensor) -> Tensor:
        """The smallest eigenvalue over all cones."""
        return self.plan.shape.margin(v)

    def reach(self, v: Tensor, d: Tensor, w: Tensor, e: Tensor) -> Tensor:
        """The largest step that stays in the cones; both at once, as a batch of twice the size."""
        return torch.minimum(*self.plan.shape.step(torch.cat([v, w], 1), torch.cat([d, e], 1)).chunk(2))

    def scale(self, s: Tensor, z: Tensor) -> Scaling:
        """The scaling point."""
        return Scaling.at(self.plan.shape, s, z)

    def factor(self, scaling: Scaling, shift: float) -> tuple[Scaling, ArrowFactor]:
        """Factor the systems at a scaling point."""
        plan, shape, A = self.plan, self.plan.shape, self.A
        batch = self.q.shape[1]
        lines, cones, constant = self._fixed
        flat = constant.expand(-1, batch).clone() if constant.shape[1] != batch else constant.clone()
        flat.index_add_(0, plan.diagonal_target, (shift * plan.signs).expand(-1, batch))
        if plan.line_target.numel():
            weight = (scaling.ratio**-2)[plan.row[plan.line_pairs[0]] - shape.zero]
            flat.index_add_(0, plan.line_target, lines * weight)
        if plan.slots:
            point = shape.join((torch.zeros_like(scaling.ratio), scaling.w))
            linear = shape.zero + shape.nonneg
            eta = torch.zeros_like(point)
            for group, value in zip(shape.groups, scaling.eta, strict=True):
                eta[group[:, 0]] = value
            inverse = eta[plan.head_row] ** -2
            signed = plan.sign[plan.row[plan.slot_entry] - linear][:, None]
            v = self.q.new_zeros(plan.slots, batch)
            v.index_add_(0, plan.slot, signed * A[plan.slot_entry] * point[plan.row[plan.slot_entry]])
            value = 2.0 * v[plan.cone_pairs[0]] * v[plan.cone_pairs[1]] - cones
            flat.index_add_(0, plan.cone_target, value * inverse[plan.cone_of_pair])
        return scaling, plan.arrow.factor(flat)

    def solve(self, system: tuple[Scaling, ArrowFactor], rx: Tensor, rz: Tensor, refine: int) -> tuple[Tensor, Tensor]:
        """The solution of a factored system."""
        x, z = self._once(system, rx, rz)
        for _ in range(refine):
            ex = rx - self.columns(z)
            ex = ex - self.form(x) if self.quadratic else ex
            ez = rz - self.rows(x) + system[0].square(z)
            dx, dz = self._once(system, ex, ez)
            x, z = x + dx, z + dz
        return x, z

    def _once(self, system: tuple[Scaling, ArrowFactor], rx: Tensor, rz: Tensor) -> tuple[Tensor, Tensor]:
        """Without refinement: z is eliminated from the rows of proper cones."""
        scaling, arrow = system
        scaled = scaling.square(rz, inverse=True)
        found = arrow.solve(torch.cat([rx + self.columns(scaled), rz[: self.zero]]))
        columns = rx.shape[0]
        x = found[:columns]
        z = scaling.square(self.rows(x), inverse=True) - scaled
        z[: self.zero] = found[columns:]
        return x, z

    def renewed(self, system: tuple[Scaling, ArrowFactor], scaling: Scaling) -> tuple[Scaling, ArrowFactor]:
        """The last factorisation at another scaling."""
        return scaling, system[1]

    def slack(self, scaling: Scaling, dz: Tensor, offset: Tensor) -> Tensor:
        """-(H dz + offset), zero on the rows of the zero cone."""
        ds = -(scaling.square(dz) + offset)
        ds[: self.zero] = 0.0
        return ds

    def correct(self, scaling: Scaling, z: Tensor, ds: Tensor, dz: Tensor, target: Tensor) -> Tensor:
        """Mehrotra's offset."""
        shape, lam = self.plan.shape, scaling.apply(z)
        product = shape.circle(scaling.apply(ds, inverse=True), scaling.apply(dz))
        return scaling.apply(shape.divide(lam, shape.circle(lam, lam) + product - target * self.unit))

    def _derived(self) -> tuple[Tensor, Tensor, Tensor]:
        """What does not change from step to step: products within rows, within cones, and the constant entries."""
        plan, A, P = self.plan, self.A, self.P
        lines = A[plan.line_pairs[0]] * A[plan.line_pairs[1]]
        signs = plan.sign[plan.row[plan.product_pairs[0]] - plan.shape.zero - plan.shape.nonneg][:, None]
        cones = A.new_zeros(plan.cone_pairs.shape[1], A.shape[1])
        cones.index_add_(0, plan.product_target, signs * A[plan.product_pairs[0]] * A[plan.product_pairs[1]])
        batch = max(A.shape[1], P.shape[1] if P.shape[0] else 1)
        constant = A.new_zeros(plan.arrow.length, batch)
        constant.index_add_(0, plan.equal_target, A[plan.equal_entry].expand(-1, batch))
        if P.shape[0]:
            constant.index_add_(0, plan.P_target, P[plan.P_entry].expand(-1, batch))
        return lines, cones, constant
