"""Moments that are given by the second-order cones of their epigraph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, untraced
from drolayers.ambiguity.image import rectangle
from drolayers.ambiguity.moment import Ingredient, Moment
from drolayers.ambiguity.outer import Constraints, Labels
from drolayers.ambiguity.parameters import FLOOR, Learn, Leaves, Parameters, Typical
from drolayers.ambiguity.terms import Charge, ConicTerm, Term
from drolayers.errors import ModelError
from drolayers.status import Status
from drolayers.support import Layout, in_cone

Part = NDArray[np.float64] | Learn


@final
@dataclass(frozen=True, eq=False, repr=False)
class Epigraph(Moment):
    """The smallest u such that some lifted v has A_j [y; u; v] - b_j in the second-order cone for every j."""

    A: tuple[Part, ...]
    b: tuple[Part, ...]
    lifted: int = 0

    def _called(self) -> str:
        """By the function that makes it."""
        return f"Conic({len(self.A)} cones)"

    def _traits(self) -> dict[str, Any]:
        """Scales are the bound, and a boost and its inverse for every cone; a negative bound is left to emptiness."""
        return {"width": 1 + 2 * len(self.A), "signed": True}

    def _scales(self, sigma: Tensor, leaves: Leaves) -> Tensor:
        """σ, and boosts r that balance cones which stand for a product, (head + tail)(head - tail).

        In u + 1 ≥ ‖(2y, u - 1)‖, which says u ≥ ‖y‖², the one is lost beside a u of 1e16. A boost multiplies
        head + tail by r and divides head - tail by it, and maps the cone onto itself.
        """
        boosts = []
        for A, b, along in zip(self.A, self.b, self.directions(), strict=True):
            boosts.append(torch.ones_like(sigma))
            if along is None:
                continue
            # u in head + tail, and b in both ends.
            up, down = np.append(along, 1.0), np.append(-along, 1.0)
            u, up_b, down_b = (abs(float(e @ v)) for e, v in ((up, self._through(A)), (up, b), (down, b)))
            if down_b > 0.0:
                large = torch.maximum(u * sigma.abs(), torch.full_like(sigma, up_b)).clamp(min=FLOOR)
                boosts[-1] = (down_b / large).sqrt()
        return torch.cat([sigma, *boosts, *(1.0 / r for r in boosts)], 1)

    def _through(self, A: Any) -> NDArray[np.float64]:
        """How u goes through a cone."""
        return np.asarray(A[:, A.shape[1] - self.lifted - 1])

    def directions(self) -> list[NDArray[np.float64] | None]:
        """The tail direction in which u runs along the edge of every cone, where it does and numbers are given."""
        found: list[NDArray[np.float64] | None] = []
        for A, b in zip(self.A, self.b, strict=True):
            found.append(None)
            if isinstance(A, Learn) or isinstance(b, Learn):
                continue
            u = self._through(A)
            length = float(np.linalg.norm(u[:-1]))
            if length > 0.0 and abs(length - abs(u[-1])) <= 1e-12 * length:
                found[-1] = np.sign(u[-1]) * u[:-1] / length
        return found

    def over(self, dim: int) -> Moment:
        """Of as many columns."""
        width = dim + 1 + self.lifted
        for A in self.A:
            if A.shape[1] != width:
                raise ModelError(f"moments.Conic needs {dim} + 1 + {self.lifted} columns (y, u, v), not {A.shape[1]}.")
        return replace(self, dim=dim)

    def parameters(self, dim: int) -> Parameters:
        """All cones' matrices and vectors."""
        pairs = zip(self.A, self.b, strict=True)
        return {f"{n}{j}": v for j, pair in enumerate(pairs) for n, v in zip("Ab", pair, strict=True)}

    def _ingredients(self, leaves: Leaves) -> list[Ingredient]:
        """Itself, of which nothing is known."""
        return [Ingredient(1.0, self.degree, self.signed, torch.zeros(1, 1, dtype=torch.float64))]

    def typical(self, y: Tensor) -> dict[str, Typical]:
        """Nothing is known about the cones: zero, give or take one."""
        return {n: Typical(y.new_zeros(s), y.new_ones(s), meaningful=False) for n, s in self.shapes.items()}

    def _links(self) -> list[Labels]:
        """All coordinates."""
        return [np.arange(self.dim)]

    def terms(self, layout: Layout, leaves: Leaves, charge: Charge) -> tuple[list[Term], Constraints]:
        """One part a row."""
        rows, coordinates, entry = rectangle(layout, layout.coordinate)
        zeros = np.zeros_like(rows)
        assert charge.multiplier is not None
        matrices, vectors = ([leaves[f"{n}{j}"] for j in range(len(self.A))] for n in "Ab")
        rho = charge.rho
        if rho is not None and rho.size == 2 * len(self.A):
            for j, along in enumerate(self.directions()):
                if along is not None:
                    given, by = (np.asarray(self.A[j]), np.asarray(self.b[j])), (rho[j], rho[len(self.A) + j])
                    matrices[j], vectors[j] = (_boosted(part, along, *by) for part in given)
        return [ConicTerm(rows, entry, coordinates.size, matrices, vectors, charge.multiplier(rows, zeros, zeros))], []

    def _value(self, y: Tensor, leaves: Leaves, recession: bool) -> Tensor:
        """The smallest u, by a small program a point; differentiable in the parameters by the envelope theorem."""
        if not recession:
            return self._smallest(y, leaves)
        # The epigraph with b_j = 0.
        found = self._smallest(y, {name: v * 0.0 if name.startswith("b") else v for name, v in leaves.items()})
        # Of a square the epigraph is approached but never reached, for which no solver has a certificate.
        return found.nan_to_num(nan=torch.inf, posinf=torch.inf)

    @untraced
    def _smallest(self, y: Tensor, leaves: Leaves) -> Tensor:
        """The smallest u with (y, u) in the epigraph, ``(..., 1)``."""
        program, shapes = self.program(y.shape[-1])
        tensors = [(y if name == "y" else leaves[name], len(shape)) for name, shape in shapes.items()]
        batch = torch.broadcast_shapes(*[t.shape[: t.dim() - own] for t, own in tensors])
        if not batch.numel():
            return y.new_zeros(*batch, 1)
        flat = [t.expand(*batch, *t.shape[t.dim() - own :]).reshape(batch.numel(), -1).to(y) for t, own in tensors]
        solution = default_engine().solve(program, torch.cat(flat, 1))
        # Where no u will do g is infinite, as is the recession of what grows faster than linearly.
        infinite = torch.full_like(solution.objective, torch.inf)
        value = torch.where(solution.status == int(Status.INFEASIBLE), infinite, solution.objective)
        return value.reshape(*batch, 1)

    @lru_cache(maxsize=32)  # noqa: B019
    def program(self, dim: int) -> tuple[ConeProgram, dict[str, tuple[int, ...]]]:
        """Min u over the epigraph, with the point and all matrices as parameters, and these parameters' shapes."""
        shapes = {"y": (dim,), **{name: v.shape for name, v in self.parameters(dim).items()}}
        parameters = {name: cp.Parameter(shape, name=name) for name, shape in shapes.items()}
        # The point enters through a variable, since the matrices are parameters too.
        point = cp.Variable((1, dim))
        u, constraints = self._expression(point, parameters, root=False)
        problem = cp.Problem(cp.Minimize(u[0, 0]), [*constraints, point[0] == parameters["y"]])
        return compile_program(problem, list(parameters.values())), shapes

    def _expression(self, y: cp.Expression, leaves: Leaves, root: bool) -> tuple[cp.Expression, Constraints]:
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
