"""Nesterov-Todd scaling of the nonnegative orthant and of second-order cones, for a batch; the batch stands last.

For s, z inside the cone there is one symmetric W with λ = Wz = W⁻¹s. With H = W² a step satisfies Δs = -HΔz - (rest).
On the orthant W² = s/z. On a second-order cone, with J = diag(1, -1, …, -1), det s = sᵀJs and normalised s̄, z̄,

    w = (s̄ + Jz̄) / √(2(1 + s̄ᵀz̄)),   η⁴ = det s / det z,   W² = η²(2wwᵀ - J),   W⁻² = η⁻²(2(Jw)(Jw)ᵀ - J).

Rows of the zero cone are not scaled: there H = 0 and s stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from conelayers.program.program import Cones

Parts = tuple[Tensor, list[Tensor]]
"""The rows of the orthant ``(rows, batch)``, and of the cones of each dimension ``(count, dimension, batch)``."""


@dataclass(frozen=True, eq=False)
class ConeShape:
    """Where the cones' rows stand; cones of one dimension are handled together.

    Where those of one dimension follow each other, ``spans`` says from where to where: a view of them costs nothing.
    """

    zero: int
    nonneg: int
    groups: tuple[Tensor, ...]
    rows: int
    spans: tuple[slice | None, ...]

    @classmethod
    def of(cls, cones: Cones, device: torch.device) -> ConeShape:
        """The shape of a product of cones."""
        starts, at = [], cones.zero + cones.nonneg
        for dimension in cones.soc:
            starts.append(at)
            at += dimension
        groups, spans = [], []
        for dimension in sorted(set(cones.soc)):
            mine = torch.tensor([s for s, d in zip(starts, cones.soc, strict=True) if d == dimension])
            groups.append((mine[:, None] + torch.arange(dimension)).to(device))
            first, last = int(mine[0]), int(mine[-1]) + dimension
            spans.append(slice(first, last) if last - first == len(mine) * dimension else None)
        return cls(cones.zero, cones.nonneg, tuple(groups), cones.rows, tuple(spans))

    @property
    def degree(self) -> int:
        """The barrier parameter: one a nonnegative row, one a second-order cone."""
        return self.nonneg + sum(g.shape[0] for g in self.groups)

    def split(self, v: Tensor) -> Parts:
        """Rows ``(rows, batch)`` by cone."""
        return v[self.zero : self.zero + self.nonneg], [self.cones(v, k) for k in range(len(self.groups))]

    def cones(self, v: Tensor, k: int) -> Tensor:
        """The rows of the cones of one dimension, a view where there is one."""
        group, span = self.groups[k], self.spans[k]
        return v[group] if span is None else v[span].reshape(*group.shape, v.shape[1])

    def join(self, parts: Parts) -> Tensor:
        """The rows of cones put together; those of the zero cone are zero."""
        orthant, cones = parts
        firsts = [self.rows if span is None else span.start for span in self.spans]
        if None not in self.spans and firsts == sorted(firsts):
            nothing = orthant.new_zeros(self.zero, orthant.shape[1])
            return torch.cat([nothing, orthant, *(cone.flatten(0, 1) for cone in cones)])
        v = orthant.new_zeros(self.rows, orthant.shape[1])
        v[self.zero : self.zero + self.nonneg] = orthant
        for group, cone in zip(self.groups, cones, strict=True):
            v[group] = cone
        return v

    def identity(self, batch: int, like: Tensor) -> Tensor:
        """e: ones on the orthant, (1, 0, …, 0) on a second-order cone."""
        v = like.new_zeros(self.rows, batch)
        v[self.zero : self.zero + self.nonneg] = 1.0
        for group in self.groups:
            v.index_fill_(0, group[:, 0], 1.0)
        return v

    def margin(self, v: Tensor) -> Tensor:
        """The smallest eigenvalue over all cones, ``(batch,)``: positive inside."""
        orthant, cones = self.split(v)
        margins = [folded(orthant).amin(0).amin(0)] if self.nonneg else []
        margins += [(c[:, 0] - c[:, 1:].norm(dim=1)).amin(0) for c in cones]
        return torch.stack(margins).amin(0) if margins else v.new_full((v.shape[1],), torch.inf)

    def step(self, v: Tensor, d: Tensor) -> Tensor:
        """The largest t with v + t·d in the cone, ``(batch,)``."""
        (orthant, cones), (move, moves) = self.split(v), self.split(d)
        steps = [folded(torch.where(move < 0, -orthant / move, torch.inf)).amin(0).amin(0)] if self.nonneg else []
        for c, m in zip(cones, moves, strict=True):
            # Roots of det(v + t d) = a t² + 2 b t + c.
            a, b, det = _det(m), _product(c, m), _det(c).clamp(min=0.0)
            root = (b * b - a * det).clamp(min=0.0).sqrt()
            # The smallest positive root, in the form that does not cancel.
            bad = (a < 0) | ((b < 0) & (b * b >= a * det))
            t = torch.where(bad, det / (root - b).clamp(min=1e-300), torch.full_like(a, torch.inf))
            head = torch.where(m[:, 0] < 0, -c[:, 0] / m[:, 0], torch.full_like(a, torch.inf))
            steps.append(torch.minimum(t, head).amin(0))
        return torch.stack(steps).amin(0) if steps else v.new_full((v.shape[1],), torch.inf)

    def circle(self, u: Tensor, v: Tensor) -> Tensor:
        """The Jordan product u∘v; on rows of equations it does not matter."""
        if not self.groups:
            return u * v
        (a, us), (b, vs) = self.split(u), self.split(v)
        cones = [
            torch.cat([(p * q).sum(1, keepdim=True), p[:, :1] * q[:, 1:] + q[:, :1] * p[:, 1:]], 1)
            for p, q in zip(us, vs, strict=True)
        ]
        return self.join((a * b, cones))

    def divide(self, u: Tensor, v: Tensor) -> Tensor:
        """The w with u∘w = v."""
        (a, us), (b, vs) = self.split(u), self.split(v)
        cones = []
        for p, q in zip(us, vs, strict=True):
            head = (p[:, :1] * q[:, :1] - (p[:, 1:] * q[:, 1:]).sum(1, keepdim=True)) / _det(p)[:, None]
            cones.append(torch.cat([head, (q[:, 1:] - head * p[:, 1:]) / p[:, :1]], 1))
        return self.join((b / a, cones))


@dataclass(frozen=True, eq=False)
class Scaling:
    """W at a pair (s, z)."""

    shape: ConeShape
    ratio: Tensor
    w: list[Tensor]
    eta: list[Tensor]

    @classmethod
    def at(cls, shape: ConeShape, s: Tensor, z: Tensor) -> Scaling:
        """The scaling point."""
        (a, ss), (b, zs) = shape.split(s), shape.split(z)
        points, etas = [], []
        for p, q in zip(ss, zs, strict=True):
            dp, dq = _det(p).clamp(min=1e-300).sqrt(), _det(q).clamp(min=1e-300).sqrt()
            p, q = p / dp[:, None], q / dq[:, None]
            gamma = (0.5 * (1.0 + (p * q).sum(1))).sqrt()
            flipped = torch.cat([q[:, :1], -q[:, 1:]], 1)
            points.append((p + flipped) / (2.0 * gamma)[:, None])
            etas.append((dp / dq).sqrt())
        return cls(shape, (a / b).sqrt(), points, etas)

    @cached_property
    def _weights(self) -> dict[tuple[int, bool], Tensor]:
        """W and W² of an orthant alone, and their inverses, as factors of all rows; nothing is left of equations."""
        one = torch.nn.functional.pad(self.ratio, (0, 0, self.shape.zero, 0))
        inverse = torch.nn.functional.pad(1.0 / self.ratio, (0, 0, self.shape.zero, 0))
        return {(1, False): one, (1, True): inverse, (2, False): one * one, (2, True): inverse * inverse}

    def apply(self, v: Tensor, inverse: bool = False) -> Tensor:
        """W v or W⁻¹ v."""
        if not self.shape.groups:
            return v * self._weights[1, inverse]
        a, vs = self.shape.split(v)
        cones = []
        for w, eta, q in zip(self.w, self.eta, vs, strict=True):
            tail = -w[:, 1:] if inverse else w[:, 1:]
            inner = (tail * q[:, 1:]).sum(1, keepdim=True)
            head = w[:, :1] * q[:, :1] + inner
            rest = q[:, 1:] + (q[:, :1] + inner / (1.0 + w[:, :1])) * tail
            scale = 1.0 / eta if inverse else eta
            cones.append(torch.cat([head, rest], 1) * scale[:, None])
        return self.shape.join((a / self.ratio if inverse else a * self.ratio, cones))

    @cached_property
    def _forms(self) -> dict[bool, tuple[Tensor, list[Tensor]]]:
        """H and H⁻¹ as a factor of every row and, on second-order cones, the u of a product uuᵀ beside it."""
        forms = {}
        for inverse in (False, True):
            sizes = [eta**-2 if inverse else eta**2 for eta in self.eta]
            reflected, points = [], []
            for w, size in zip(self.w, sizes, strict=True):
                one = size[:, None].expand_as(w)
                reflected.append(torch.cat([-one[:, :1], one[:, 1:]], 1))
                point = torch.cat([w[:, :1], -w[:, 1:]], 1) if inverse else w
                points.append((2.0 * size).sqrt()[:, None] * point)
            ratio = self.ratio**-2 if inverse else self.ratio**2
            forms[inverse] = self.shape.join((ratio, reflected)), points
        return forms

    def square(self, v: Tensor, inverse: bool = False) -> Tensor:
        """H v = W²v or H⁻¹ v."""
        shape = self.shape
        if not shape.groups:
            return v * self._weights[2, inverse]
        factor, points = self._forms[inverse]
        out = v * factor
        for k, u in enumerate(points):
            along = (u * shape.cones(v, k)).sum(1, keepdim=True)
            if shape.spans[k] is None:
                out[shape.groups[k]] = torch.addcmul(out[shape.groups[k]], u, along)
            else:
                shape.cones(out, k).addcmul_(u, along)
        return out


def folded(v: Tensor) -> Tensor:
    """Rows ``(rows, batch)`` as a table of about as many rows as columns: a GPU looks for extremes twice as fast so."""
    rows, batch = v.shape
    fold = next(k for k in range(int(rows**0.5), 0, -1) if rows % k == 0)
    return v.reshape(fold, rows // fold, batch)


def _det(v: Tensor) -> Tensor:
    """v₀² - ‖v₁‖² of cones ``(count, dimension, batch)``, as a product, which loses less."""
    length = v[:, 1:].norm(dim=1)
    return (v[:, 0] - length) * (v[:, 0] + length)


def _product(u: Tensor, v: Tensor) -> Tensor:
    """uᵀJv."""
    return u[:, 0] * v[:, 0] - (u[:, 1:] * v[:, 1:]).sum(1)
