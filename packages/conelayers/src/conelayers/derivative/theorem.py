"""The implicit function theorem for cone programs, stated once.

With v = z - s the optimality conditions are F(x, v) = 0 for

    F = ( Px + q + AᵀΠ(v),  Ax + Π(v) - v - b ),     z = Π(v),  s = Π(v) - v,

where Π projects onto the dual cone. With J = ∂F/∂(x, v), seeds dx and dz of a loss, and Jᵀ(g, h) = (dx, DΠ(v)ᵀdz),

    dq = -g,   db = h,   dA = -(z gᵀ + h xᵀ),   dP = -g xᵀ.

On the central path s∘z = μe takes the place of s = Π(v) - v and J is the system of an interior-point step; the rest is
the same. The ways to (g, h) are ``active.py``, ``factored.py`` and ``path.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.program.program import ConeProgram, Values
from conelayers.scaling.units import Units
from conelayers.status import Derivative


@dataclass(frozen=True, eq=False)
class Found:
    """Known solutions: where derivatives are to be taken.

    ``passed`` is where our method left the central path at the level of the smoothing, if it was asked for. ``units``
    are those of the point, ``conic/units.py``. ``polished`` are the items that the forward pass took to machine
    precision on their face; None where it tried none.
    """

    x: Float[Tensor, "batch column"]
    z: Float[Tensor, "batch row"]
    s: Float[Tensor, "batch row"]
    units: Units
    passed: Any = None
    polished: Bool[Tensor, "batch"] | None = None

    def __getitem__(self, items: Tensor) -> Found:
        """Some items."""
        passed = None if self.passed is None else self.passed.pick(items)
        polished = None if self.polished is None else self.polished[items]
        return Found(self.x[items], self.z[items], self.s[items], self.units[items], passed, polished)


@dataclass(frozen=True, eq=False)
class Pulled:
    """The solution (g, h) of the adjoint system, the point (x, z) where it was taken, and a ``Derivative`` an item.

    ``rest`` is a solution of the same system with nothing on its right-hand side: what it leaves of noise.
    """

    x: Float[Tensor, "batch column"]
    z: Float[Tensor, "batch row"]
    g: Float[Tensor, "batch column"]
    h: Float[Tensor, "batch row"]
    code: Int[Tensor, "batch"]
    rest: tuple[Float[Tensor, "batch column"], Float[Tensor, "batch row"]] | None = None

    @property
    def ok(self) -> Bool[Tensor, "batch"]:
        """Which items have a verified derivative."""
        return (self.code > int(Derivative.UNASKED)) & (self.code <= int(Derivative.PATH))

    @classmethod
    def none(cls, values: Values) -> Pulled:
        """Nothing asked."""
        x, z = torch.zeros_like(values.q), torch.zeros_like(values.b)
        return cls(x, z, x, z, torch.zeros(len(values.q), dtype=torch.int64, device=x.device), (x, z))

    def put(self, items: Int[Tensor, "some"], other: Pulled) -> Pulled:
        """The same with some items replaced."""

        def put(one: Tensor, two: Tensor) -> Tensor:
            return one.index_copy(0, items, two.to(one))

        names = ("x", "z", "g", "h", "code")
        rest = None
        if self.rest is not None and other.rest is not None:
            rest = put(self.rest[0], other.rest[0]), put(self.rest[1], other.rest[1])
        x, z, g, h, code = (put(getattr(self, n), getattr(other, n)) for n in names)
        return Pulled(x, z, g, h, code, rest)

    @property
    def elsewhere(self) -> Pulled | None:
        """What is left of noise, as large as the solution is: by this much another solution may differ.

        None where all are unique. Numbers are about one here, so that what is small beside the largest is rounding.
        """
        if self.rest is None:
            return None
        size, left = (
            torch.maximum(g.abs().amax(1), h.abs().amax(1))[:, None] for g, h in ((self.g, self.h), self.rest)
        )
        g, h = (torch.where(t.abs() > FREE * left.clamp(min=1.0), t, torch.zeros_like(t)) for t in self.rest)
        scale = torch.where(self.ok[:, None], size / left.clamp(min=FREE), torch.zeros_like(size))
        return replace(self, g=g * scale, h=h * scale) if bool((g != 0).any() | (h != 0).any()) else None


AGREE = 1e-5
"""Up to which relative difference two derivatives agree."""

FREE = 1e-7
"""What is left of noise by the adjoint equations, relative to it, is rounding up to here."""


class Adjoint(Protocol):
    """A way to (g, h), with its own verification."""

    def __call__(
        self,
        program: ConeProgram,
        values: Values,
        found: Found,
        dx: Float[Tensor, "batch column"],
        dz: Float[Tensor, "batch row"] | None = None,
    ) -> Pulled:
        """Pull gradients with respect to x, and to z if given, back from the solutions of a batch."""


def elsewhere(
    adjoint: Adjoint,
    program: ConeProgram,
    values: Values,
    units: Units,
    found: Found,
    dx: Tensor,
    dz: Tensor | None = None,
) -> Pulled:
    """The adjoint in other units, in which the numbers are given, told in those of the points."""
    here = found.units
    x, z, s = units.hats(*here.own(found.x, found.z, found.s))
    dx = dx * (units.D * units.beta) / (here.D * here.beta)
    if dz is not None:
        dz = units.dual_seed(here.boost(dz, -1) / (here.E * here.kappa))
    pulled = adjoint(program, values, Found(x, z, s, units), dx, dz)
    x, z, _ = here.hats(*units.own(pulled.x, pulled.z, pulled.z))
    return Pulled(x, z, *here.adjoint_hats(*units.adjoint(pulled.g, pulled.h)), pulled.code)


def gradients(
    program: ConeProgram, pulled: Pulled, units: Units | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dP, dA, dq and db, in the program's own units where the point's are given; zero where nothing was verified."""
    ok = pulled.ok[:, None]
    x, z, g, h = (torch.where(ok, t, torch.zeros_like(t)) for t in (pulled.x, pulled.z, pulled.g, pulled.h))
    row, column, P_row, P_column, *_ = program.on(x.device)
    if units is not None:
        (x, z, _), (g, h) = units.own(x, z, z), units.adjoint(g, h)
    return -g[:, P_row] * x[:, P_column], -(z[:, row] * g[:, column] + h[:, row] * x[:, column]), -g, h


def by_feature(program: ConeProgram, pulled: Pulled, units: Units) -> Float[Tensor, "batch feature"]:
    """The gradient with respect to the features, in which alone two adjoint solutions need to agree."""
    return sum_features(program, gradients(program, pulled, units))


def sum_features(program: ConeProgram, pieces: Sequence[Tensor]) -> Float[Tensor, "batch feature"]:
    """Turn gradients with respect to P, A, q and b into those with respect to the features."""
    maps = (program.P_map, program.A_map, program.q_map, program.b_map)
    return torch.stack([m.pull(g, program.feature_size) for m, g in zip(maps, pieces, strict=True)]).sum(0)
