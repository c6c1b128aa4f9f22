"""Losses ℓ(u) of one number that are convex and not piecewise affine: what a cost may take of affine functions of y."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.power import Power

from drolayers.products import times


class Loss(ABC):
    """A convex function of one number."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """The largest slope of either sign; infinite where there is none."""

    @abstractmethod
    def of(self, u: cp.Expression) -> cp.Expression:
        """ℓ(u), entry by entry."""

    @abstractmethod
    def above(self, t: cp.Expression, u: cp.Expression, weight: cp.Expression) -> list[cp.Constraint]:
        """What says t ≥ wℓ(u/w), entry by entry; at w = 0 that u = 0 asks for nothing."""


@final
@dataclass(frozen=True)
class Square(Loss):
    """u²."""

    @property
    def lipschitz(self) -> float:
        """None."""
        return np.inf

    def of(self, u: cp.Expression) -> cp.Expression:
        """A quadratic function."""
        return cp.square(u)

    def above(self, t: cp.Expression, u: cp.Expression, weight: cp.Expression) -> list[cp.Constraint]:
        """u² ≤ tw."""
        return [cp.SOC(t + weight, cp.vstack([t - weight, times(2.0, u)]), axis=0)]


@final
@dataclass(frozen=True)
class Huber(Loss):
    """u² where abs(u) ≤ M, then 2M abs(u) - M²."""

    M: float

    @property
    def lipschitz(self) -> float:
        """2M."""
        return 2.0 * self.M

    def of(self, u: cp.Expression) -> cp.Expression:
        """CVXPY's."""
        return cp.huber(u, self.M)

    def above(self, t: cp.Expression, u: cp.Expression, weight: cp.Expression) -> list[cp.Constraint]:
        """v² + 2Mr with abs(u) ≤ v + r."""
        square, near, far = cp.Variable(u.shape), cp.Variable(u.shape, nonneg=True), cp.Variable(u.shape, nonneg=True)
        return [
            *Square().above(square, near, weight),
            u <= near + far,
            -u <= near + far,
            square + 2.0 * self.M * far <= t,
        ]


@final
@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + exp(u))."""

    @property
    def lipschitz(self) -> float:
        """That far to the right."""
        return 1.0

    def of(self, u: cp.Expression) -> cp.Expression:
        """CVXPY's."""
        return cp.logistic(u)

    def above(self, t: cp.Expression, u: cp.Expression, weight: cp.Expression) -> list[cp.Constraint]:
        """exp(u - t) + exp(-t) ≤ 1."""
        one, other = cp.Variable(u.shape), cp.Variable(u.shape)
        return [cp.ExpCone(u - t, weight, one), cp.ExpCone(-t, weight, other), one + other <= weight]


@final
@dataclass(frozen=True)
class Exponential(Loss):
    """exp(u)."""

    @property
    def lipschitz(self) -> float:
        """None."""
        return np.inf

    def of(self, u: cp.Expression) -> cp.Expression:
        """CVXPY's."""
        return cp.exp(u)

    def above(self, t: cp.Expression, u: cp.Expression, weight: cp.Expression) -> list[cp.Constraint]:
        """The exponential cone."""
        return [cp.ExpCone(u, weight, t)]


def loss_of(node: Any) -> Loss | None:
    """The loss that an atom of CVXPY takes of its first argument, if it is one; that of a sum of squares by entry."""
    if isinstance(node, Power) and float(node.p.value) == 2.0:
        return Square()
    if isinstance(node, cp.quad_over_lin):
        divisor = node.args[1]
        return Square() if node.axis is None and divisor.is_constant() and not divisor.parameters() else None
    if isinstance(node, cp.huber):
        return Huber(float(node.M.value)) if not node.M.parameters() else None
    return Logistic() if isinstance(node, cp.logistic) else Exponential() if isinstance(node, cp.exp) else None
