"""Moments that are given by the second-order cones of their epigraph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from drolayers.ambiguity.moment import FLOOR, Learn, Leaves, Moment, Typical, as_bound, rectangle
from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.terms import ConicTerm, Multiplier, Term
from drolayers.errors import ModelError
from drolayers.support import Layout, in_cone


@final
@dataclass(frozen=True, eq=False)
class Conic(Moment):
    """A moment by the second-order cones of its epigraph (definition 4.1 of the paper, as it stands).

    ``u ≥ g(y)`` if and only if some lifted ``v`` has ``A_j [y; u; v] - b_j`` in the second-order cone for every j. The
    last entry of a cone bounds the norm of the others. ``A_j`` and ``b_j`` are arrays, or ``dro.Learn(shape)``.
    """

    A: tuple[NDArray[np.float64] | Learn, ...]
    b: tuple[NDArray[np.float64] | Learn, ...]
    lifted: int = 0
    sigma: NDArray[np.float64] | None = None

    def __init__(self, A: list[Any], b: list[Any], lifted: int = 0, sigma: ArrayLike | None = None) -> None:
        def given(items: list[Any], ndim: int) -> tuple[Any, ...]:
            return tuple(i if isinstance(i, Learn) else np.array(i, dtype=float, ndmin=ndim) for i in items)

        object.__setattr__(self, "A", given(A, 2))
        object.__setattr__(self, "b", given(b, 1))
        object.__setattr__(self, "lifted", int(lifted))
        object.__setattr__(self, "sigma", as_bound(sigma))
        if len(self.A) != len(self.b) or any(M.shape[0] != v.shape[0] for M, v in zip(self.A, self.b, strict=False)):
            raise ModelError("moments.Conic needs as many b_j as A_j, each with one entry a row.")
        if not all(isinstance(i, Learn) or np.isfinite(i).all() for i in (*self.A, *self.b)):
            raise ModelError("moments.Conic needs finite A_j and b_j.")

    @property
    def degree(self) -> float:
        """Unknown, so that the bound is not scaled."""
        return 1.0

    @property
    def width(self) -> int:
        """The bound, and a boost and its inverse for every cone."""
        return 1 + 2 * len(self.A)

    def scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """σ, and boosts r that balance cones which stand for a product, (head + tail)(head - tail).

        In u + 1 ≥ ‖(2y, u - 1)‖, which says u ≥ ‖y‖², the one is lost beside a u of 1e16. A boost multiplies
        head + tail by r and divides head - tail by it, and maps the cone onto itself.
        """
        boosts = []
        for pair in self.products():
            if pair is None:
                boosts.append(torch.ones_like(sigma))
                continue
            (up, up_b), (_, down_b) = pair
            large = torch.maximum(up * sigma.abs(), torch.full_like(sigma, up_b)).clamp(min=FLOOR)
            boosts.append((down_b / large).sqrt() if down_b > 0.0 else torch.ones_like(sigma))
        return torch.cat([sigma, *boosts, *(1.0 / r for r in boosts)], 1)

    def products(self) -> list[tuple[tuple[float, float], tuple[float, float]] | None]:
        """For every cone that is given and through which u goes along its edge: u and b in head + tail, head - tail."""
        found: list[tuple[tuple[float, float], tuple[float, float]] | None] = []
        for A, b, along in zip(self.A, self.b, self.directions(), strict=True):
            if along is None or isinstance(A, Learn) or isinstance(b, Learn):
                found.append(None)
                continue
            u = A[:, A.shape[1] - self.lifted - 1]
            ends = [np.append(along, 1.0), np.append(-along, 1.0)]
            found.append(tuple((abs(float(e @ u)), abs(float(e @ b))) for e in ends))  # type: ignore[arg-type]
        return found

    def directions(self) -> list[NDArray[np.float64] | None]:
        """The tail direction in which u runs along the edge of every cone, where it does and numbers are given."""
        found: list[NDArray[np.float64] | None] = []
        for A, b in zip(self.A, self.b, strict=True):
            if isinstance(A, Learn) or isinstance(b, Learn):
                found.append(None)
                continue
            u = A[:, A.shape[1] - self.lifted - 1]
            length = float(np.linalg.norm(u[:-1]))
            edge = length > 0.0 and abs(length - abs(u[-1])) <= 1e-12 * length
            found.append(np.sign(u[-1]) * u[:-1] / length if edge else None)
        return found

    @property
    def signed(self) -> bool:
        """Unknown, so that a negative bound is left to the emptiness check."""
        return True

    def parts(self, dim: int) -> dict[str, NDArray[np.float64] | Learn]:
        """Every parameter by name."""
        width = dim + 1 + self.lifted
        for M in self.A:
            if M.shape[1] != width:
                raise ModelError(f"moments.Conic needs {dim} + 1 + {self.lifted} columns (y, u, v), not {M.shape[1]}.")
        return {
            f"{n}{j}": v
            for j, pair in enumerate(zip(self.A, self.b, strict=True))
            for n, v in zip("Ab", pair, strict=True)
        }

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Those to be learnt."""
        return {name: v.shape for name, v in self.parts(dim).items() if isinstance(v, Learn)}

    def constants(self, dim: int) -> dict[str, NDArray[np.float64]]:
        """Those given."""
        return {name: v for name, v in self.parts(dim).items() if not isinstance(v, Learn)}

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Nothing is known about the cones: zero, give or take one."""
        shapes = self.shapes(y.shape[1])
        return {n: Typical(y.new_zeros(s), y.new_ones(s), meaningful=False) for n, s in shapes.items()}

    def links(self, dim: int) -> list[Labels]:
        """All coordinates."""
        return [np.arange(dim)]

    def terms(
        self,
        layout: Layout,
        leaves: Leaves,
        multiplier: Multiplier | None,
        rho: cp.Expression | None,
        split: bool = False,
    ) -> tuple[list[Term], Constraints]:
        """One part a row."""
        rows, coordinates, entry = rectangle(layout, None)
        zeros = np.zeros_like(rows)
        assert multiplier is not None
        matrices, vectors = ([leaves[f"{n}{j}"] for j in range(len(self.A))] for n in "Ab")
        if rho is not None and rho.size == 2 * len(self.A):
            for j, along in enumerate(self.directions()):
                if along is not None:
                    given, by = (np.asarray(self.A[j]), np.asarray(self.b[j])), (rho[j], rho[len(self.A) + j])
                    matrices[j], vectors[j] = (_boosted(part, along, *by) for part in given)
        return [ConicTerm(rows, entry, coordinates.size, matrices, vectors, multiplier(rows, zeros, zeros))], []

    def value(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The smallest u, by a small program a point; differentiable in the parameters by the envelope theorem."""
        from drolayers.ambiguity.conic_value import epigraph_value

        return epigraph_value(self, y, leaves)

    def recession(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The epigraph with b_j = 0."""
        zero = {name: leaves[name] * 0.0 if name.startswith("b") else leaves[name] for name in leaves}
        found = self.value(y, zero)
        # Of a square the epigraph is approached but never reached, for which no solver has a certificate.
        return found.nan_to_num(nan=torch.inf, posinf=torch.inf)

    def expression(self, y: cp.Expression, leaves: Leaves, root: bool = False) -> tuple[cp.Expression, Constraints]:
        """Lifted variables u and v for every point."""
        points = y.shape[0]
        u = cp.Variable((points, 1))
        parts = [y, u, cp.Variable((points, self.lifted))] if self.lifted else [y, u]
        columns = cp.hstack(parts).T
        return u, [
            in_cone(leaves[f"A{j}"] @ columns - cp.vstack([leaves[f"b{j}"]] * points).T) for j in range(len(self.A))
        ]


def _boosted(
    part: NDArray[np.float64], along: NDArray[np.float64], boost: cp.Expression, inverse: cp.Expression
) -> cp.Expression:
    """A cone's matrix or vector after a boost of its head along a direction of its tail."""
    up, down = np.append(along, 1.0), np.append(-along, 1.0)
    ends = [0.5 * np.tensordot(np.outer(e, e), part, 1) for e in (up, down)]
    return (part - ends[0] - ends[1]) + boost * ends[0] + inverse * ends[1]
