"""Moments of every family, random θ, and nominal distributions of every awkward shape."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import drolayers as dro

M = dro.moments
DIM = 3
DIRECTION = [1.0, 0.0, -2.0]
# ‖(y, 1) - b‖ ≤ u as one second-order cone, its offset learnt.
CONE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])

CLOSED = {
    "squared": lambda: [M.SquaredNorm()],
    "squared, some coordinates": lambda: [M.SquaredNorm([2, 0])],
    "squared, mu given": lambda: [M.SquaredNorm(mu=[0.1, 0.2, 0.3])],
    "squared, scaled": lambda: [2.5 * M.SquaredNorm()],
    "second power, mu given": lambda: [M.AbsolutePower(2, mu=DIRECTION)],
    "l1": lambda: [M.Norm(1)],
    "absolute, mu given": lambda: [M.Absolute(mu=DIRECTION)],
    "absolute, all given": lambda: [M.Absolute(mu=DIRECTION, h=0.5)],
    "linear": lambda: [M.Linear()],
    "linear, mu given": lambda: [M.Linear(mu=DIRECTION)],
    "linear, negative": lambda: [-2.0 * M.Linear()],
    "mean": lambda: [M.Mean(sigma=None)],
    "mean, scaled": lambda: [2.5 * M.Mean(sigma=None)],
    "squared, each": lambda: [M.Variance()],
    "l1 and squared": lambda: [M.Norm(1), M.SquaredNorm()],
}
FIXED = {
    "squared, bound given": lambda: [M.SquaredNorm(sigma=6.0)],
    "linear, bound given": lambda: [M.Linear(sigma=-0.4)],
    "mean, equation": lambda: [M.Mean()],
    "mean, bounds given": lambda: [M.Mean(sigma=[0.1, 0.0, 0.3])],
}
CONIC = {
    "l2": lambda: [M.Norm(2)],
    "l-infinity": lambda: [M.Norm(np.inf)],
    "l3": lambda: [M.Norm(3)],
    "image": lambda: [M.Norm(1, A=[[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]])],
    "image, learnt": lambda: [M.Norm(2, A=dro.Learn(2, DIM))],
    "absolute": lambda: [M.Absolute()],
    "third power": lambda: [M.AbsolutePower(3)],
    "positive square": lambda: [M.PositiveSquare()],
    "sum": lambda: [M.Norm(1) + M.Norm(2)],
    "maximum": lambda: [M.maximum(M.Norm(1), M.Linear())],
    "cones": lambda: [M.Conic([CONE], [dro.Learn(4)])],
    "l2 and squared": lambda: [M.Norm(2), M.SquaredNorm()],
}
ALL = CLOSED | CONIC


def make(family: str, support: dro.support.Support | None = None) -> dro.MomentSet:
    """A set of one family over three coordinates."""
    return dro.MomentSet(dro.Uncertain(DIM, support=support), (ALL | FIXED)[family]())


@cache
def projection(family: str, method: Literal["auto", "closed_form", "conic", "clip"] = "auto") -> dro.Projection:
    """The projection of one family, compiled once."""
    return dro.Projection(make(family), method=method)


def grouped(support: dro.support.Support | None = None) -> dro.MomentSet:
    """Two bounds for three coordinates."""
    return dro.MomentSet.grouped(dro.Uncertain(DIM, support=support), 2)


def nominal(batch: int, atoms: int, seed: int, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Random atoms and weights."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(batch, atoms, dim, generator=generator, dtype=torch.float64)
    weights = 0.1 + torch.rand(batch, atoms, generator=generator, dtype=torch.float64)
    return y, weights / weights.sum(1, keepdim=True)


def outputs(batch: int, size: int, seed: int, scale: float = 1.0) -> Tensor:
    """Random θ, as a network would give."""
    return scale * torch.randn(batch, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def awkward(case: str, batch: int, size: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """θ and a nominal distribution of one awkward kind."""
    y, weights = nominal(batch, 5, 1)
    theta = outputs(batch, size, 2)
    if case == "coincident atoms":
        y = y[:, :1].expand_as(y).clone()
    elif case == "one atom":
        y, weights = y[:, :1], torch.ones_like(weights[:, :1])
    elif case == "far outside":
        theta = 30.0 * theta
    elif case == "weightless atoms":
        weights = weights * torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
        weights = weights / weights.sum(1, keepdim=True)
    elif case == "equal values":
        y = y.round()
    else:
        assert case == "random"
    return theta, (y, weights)


CASES = ["random", "coincident atoms", "one atom", "far outside", "weightless atoms", "equal values"]


def needs(ambiguity: dro.MomentSet, theta: Tensor, distribution: tuple[Tensor, Tensor]) -> Tensor:
    """What the nominal distribution uses of every bound."""
    y, weights = distribution
    return (weights[..., None] * ambiguity.values(theta.double(), y)).sum(1)


def bounds(ambiguity: dro.MomentSet, theta: Tensor) -> Tensor:
    """The bounds."""
    return torch.cat(ambiguity.sigmas(theta.double()), 1)
