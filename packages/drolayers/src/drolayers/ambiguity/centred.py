"""Sets around a centre: every parameter is given or learnt, and one of them grows with the set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from conelayers import ConeProgram, compile_program
from conelayers.internals import default_engine, numbers, untraced
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.outer import Constraints
from drolayers.ambiguity.parameters import Typical, deviation
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.status import Status
from drolayers.support import Conic, Intersection, Reals, Support
from drolayers.uncertainty import Uncertain


class Centred(AmbiguitySet):
    """A set of distributions around a centre.

    Attributes:
        location: the name of the centre.
        extent: the name of what grows with the set.
        given: the parameters that were given a value.
        leaves: all parameters as CVXPY leaves, learnt or given.
    """

    location: str
    extent: str
    given: dict[str, NDArray[np.float64]]
    leaves: dict[str, cp.Expression]

    def _declare(self, y: Uncertain, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> None:
        """Names, shapes and leaves of all parameters; None stands for one that is learnt."""
        who = type(self).__name__
        if not isinstance(y, Uncertain):
            raise ModelError(f"{who} needs a dro.Uncertain, not {type(y).__name__}.")
        self.y, self.given = y, {}
        for name, shape in shapes.items():
            if given[name] is None:
                continue
            value = numbers(f"{who}'s {name}", given[name])
            value = np.asarray(y.rows(value, 0)) if shape == (y.dim,) else value
            if value.shape not in ((), shape) or (value.shape != shape and len(shape) == 2 and y.dim > 1):
                raise ModelError(f"{who}'s {name} must have shape {shape}, not {value.shape}.")
            self.given[name] = np.array(np.broadcast_to(value, shape))
            if not np.isfinite(self.given[name]).all():
                raise ModelError(f"{who}'s {name} must be finite, not {value.tolist()}.")
        self.parameters = {name: shape for name, shape in shapes.items() if name not in self.given}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}: {s}' for n, s in self.parameters.items())})"

    def values(self, theta: Float[Tensor, "batch theta"]) -> dict[str, Tensor]:
        """All parameters as tensors ``(batch, *shape)`` in float64, learnt or given."""
        theta = theta.double()
        fixed = {n: torch.as_tensor(v).to(theta).expand(len(theta), *v.shape) for n, v in self.given.items()}
        return fixed | self.unpack(theta)

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """θ of the same set, ``factor`` times as large about its centre; differentiable.

        Args:
            theta: flat; one row serves all factors.
            factor: one for all items or one an item, ``(batch,)``.

        Raises:
            ModelError: the size of the set was given.
        """
        if self.extent in self.given:
            raise ModelError(
                f"{type(self).__name__} cannot be scaled, since its {self.extent} was given: let it be learnt."
            )
        return self.grown(theta, factor, {self.extent: 1.0})

    def aims(self, y: Float[Tensor, "batch dim"]) -> dict[str, Float[Tensor, "batch ..."]]:
        """The outcomes themselves, for the centre."""
        return {self.location: y.double()} if self.location in self.parameters else {}

    @abstractmethod
    def whitened(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> tuple[Float[Tensor, "batch point dim"], Float[Tensor, "batch"]]:
        """Deviations from the centre in units of the normal distribution that the set is made for, and their log det.

        Fitting ``½‖u‖² + log det`` to outcomes fits the centre to their mean and the shape to their spread.
        """

    @abstractmethod
    def outline(
        self, theta: Float[Tensor, "batch theta"], coordinates: Sequence[int]
    ) -> Float[Tensor, "batch point 2"]:
        """The edge of the shape's shadow on two coordinates, as a closed line."""

    @abstractmethod
    def multiple(self, y: cp.Expression, size: cp.Expression) -> Constraints:
        """That y lies in so many times the shape, about its centre."""

    @untraced
    def least(self, theta: Float[Tensor, "batch theta"], known: Told | None) -> Float[Tensor, "batch"]:
        """The smallest multiple of the shape that meets the support: zero where its centre lies there.

        Infinite where none does, NaN where it could not be found; without gradients.
        """
        self.check(theta)
        theta = theta.detach().double()
        found, outside = theta.new_zeros(len(theta)), self.outside(theta, known)
        if bool(outside.any()):
            values = torch.cat([self.feature_values(theta, None), self.y.support.data(known, theta)], 1)[outside]
            solution = default_engine().with_tolerance(1e-11).solve(self._least_program, values)
            never = (solution.status == int(Status.INFEASIBLE)).to(found.device)
            found[outside] = solution.objective.to(found).masked_fill(never, torch.inf)
        return found

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """A size below zero, or a centre outside the support."""
        return self._negative(theta) | self.outside(theta, known)

    @abstractmethod
    def _negative(self, theta: Tensor) -> Bool[Tensor, "batch"]:
        """Items with a size below zero."""

    def outside(self, theta: Float[Tensor, "batch theta"], known: Told | None) -> Bool[Tensor, "batch"]:
        """Items whose centre may lie outside the support."""
        support = self.y.support
        if isinstance(support, Reals) or _by_programs(support):
            return torch.full((len(theta),), not isinstance(support, Reals), device=theta.device)
        # NaN, too, is not inside.
        return ~(support.violation(self.values(theta)[self.location][:, None], known)[:, 0] <= 0)

    @cached_property
    def _least_program(self) -> ConeProgram:
        """The program of ``least``, compiled when first needed."""
        y, size, support = cp.Variable((1, self.y.dim)), cp.Variable(nonneg=True), self.y.support
        problem = cp.Problem(cp.Minimize(size), [*self.multiple(y[0], size), *support.members(y)])
        return compile_program(problem, [*self.features, *support.parameters])


def ellipsoid(y: cp.Expression, centre: cp.Expression, factor: cp.Expression, size: cp.Expression) -> Constraints:
    """That y is centre + factor u with ‖u‖ ≤ size."""
    u = cp.Variable(centre.size)
    return [y == centre + factor @ u, cp.SOC(size, u)]


def circle(points: int = 721) -> Float[Tensor, "point 2"]:
    """A closed line of unit vectors of the plane."""
    angle = torch.linspace(0.0, 2.0 * torch.pi, points, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], 1)


def shadow(centre: Tensor, factor: Tensor, coordinates: Sequence[int]) -> Float[Tensor, "batch point 2"]:
    """The edge of the shadow of centre + factor u, ‖u‖ ≤ 1, on two coordinates: the farthest u in every direction."""
    plane = factor[:, list(coordinates)]
    u = torch.nn.functional.normalize(circle().to(plane) @ plane, dim=2)
    return centre[:, None, list(coordinates)] + u @ plane.mT


def undone(
    factor: Float[Tensor, "batch dim dim"], away: Float[Tensor, "batch point dim"]
) -> Float[Tensor, "batch point dim"]:
    """The u with factor u = away; infinite where the factor is singular."""
    flat = (torch.linalg.lu_factor_ex(factor.detach()).info != 0)[:, None, None]
    # An item that is masked must not spoil the derivative of others.
    found = torch.linalg.solve(torch.where(flat, torch.eye(factor.shape[1]).to(factor), factor), away.mT).mT
    return torch.where(flat, torch.inf, found)


def _by_programs(support: Support) -> bool:
    """Whether it takes programs to see that a point lies in the support."""
    if isinstance(support, Intersection):
        return any(_by_programs(part) for part in support.parts)
    return isinstance(support, Conic)


def spread(y: Float[Tensor, "point dim"]) -> tuple[Typical, Float[Tensor, "dim"], Float[Tensor, "dim dim"]]:
    """Where the centre of some outcomes is, their standard deviations, and a root of their covariance, shrunk."""
    scale = deviation(y)
    whitened = (y - y.mean(0)) / scale
    share = y.shape[1] / (len(y) + y.shape[1])
    correlation = (1.0 - share) * whitened.T @ whitened / len(y) + share * torch.eye(y.shape[1]).to(y)
    return Typical(y.mean(0), scale), scale, scale[:, None] * torch.linalg.cholesky(correlation)


def triangular(root: Float[Tensor, "dim dim"], size: Float[Tensor, "dim"]) -> Typical:
    """Where the factor of a shape begins that has a root: triangular, its diagonal positive.

    Every shape has such a factor. Among all matrices there are singular ones on every side, and a likelihood or a score
    that jumps from row to row where a model comes near them.
    """
    diagonal = torch.eye(len(root), dtype=torch.bool, device=root.device)
    step = torch.where(diagonal, root, size[:, None] * len(root) ** -0.5)
    return Typical(root, step, positive=diagonal, fixed=torch.ones_like(diagonal).triu(1))
