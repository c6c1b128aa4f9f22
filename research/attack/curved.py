"""Costs that are curved in y: source text, and their worst expectation by definition or in closed form.

Where mass stays at the atoms the worst case is a maximum over weights, computed with cutting planes. Where mass moves,
u = aᵀy - cᵀx moves from u_n by at most ‖a‖_* times the distance. The worst cases over all of space are

    order 1  Σ ω_n ℓ(u_n) + Lip(ℓ) ε ‖a‖_*,   order 2, squares  (√(Σ ω_n u_n²) + ε ‖a‖_*)²,
    order ∞  Σ ω_n max ℓ(u_n ± ε ‖a‖_*)

(Shafieezadeh-Abadeh, Kuhn and Mohajerin Esfahani, 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from research.attack.costs import CostPart, _between
from research.attack.drawn import Draw, Item, text
from research.attack.sets import KINDS

Array = Any
PINNED = ("empirical", *KINDS)
_BALLS = ("ball of order 1", "ball of order inf")


@dataclass(frozen=True)
class Curve:
    """A loss ℓ(u) of u = aᵀy - cᵀx.

    Attributes:
        code: source text of the sum over u.
        loss: of CVXPY.
        degree: of a homogeneous loss; others are used in the unit one.
        lipschitz: the largest slope.
        sets: sets that make it tractable.
    """

    code: str
    loss: Callable[[cp.Expression], cp.Expression]
    degree: int | None
    lipschitz: float
    sets: tuple[str, ...]


CURVES: dict[str, Curve] = {
    "squares": Curve(
        "cp.sum_squares({u})", cp.square, 2, np.inf, (*PINNED, "ball of order 2", "ball of order inf", "grouped")
    ),
    "huber": Curve("cp.sum(cp.huber({u}, 0.7))", lambda u: cp.huber(u, 0.7), None, 1.4, (*PINNED, *_BALLS)),
    "logistic": Curve("cp.sum(cp.logistic({u}))", cp.logistic, None, 1.0, (*PINNED, *_BALLS)),
    "exponential": Curve("cp.sum(cp.exp({u}))", cp.exp, None, np.inf, (*PINNED, "ball of order inf")),
}


@dataclass(frozen=True)
class Bend:
    """The rows of a curved cost: Σ_j ℓ(a_jᵀy - c_jᵀx) + priceᵀx.

    Attributes:
        curve: ℓ.
        a: ``(row, dim)``.
        c: ``(row, column)``.
        price: ``(column,)``.
    """

    curve: Curve
    a: Array
    c: Array
    price: Array

    def at_atoms(self, item: Item, x: cp.Expression) -> cp.Expression:
        """The cost at every atom."""
        u = item.atoms @ self.a.T - cp.reshape(self.c @ x, (1, len(self.c)), order="C")
        return cp.sum(self.curve.loss(u), axis=1) + self.price @ x

    def in_ball(self, item: Item, x: cp.Expression, norm: float, order: float, radius: float) -> cp.Expression:
        """The worst expectation in a ball on all of space, of a single row."""
        dual = {1: np.inf, 2: 2, np.inf: 1}[norm]
        u, reach = item.atoms @ self.a[0] - self.c[0] @ x, radius * float(np.linalg.norm(self.a[0], dual))
        flat = self.price @ x
        if order == 2:
            return cp.square(cp.norm(cp.multiply(np.sqrt(item.weights), u)) + reach) + flat
        if order == 1:
            return item.weights @ self.curve.loss(u) + self.curve.lipschitz * reach + flat
        return item.weights @ cp.maximum(self.curve.loss(u + reach), self.curve.loss(u - reach)) + flat

    def under_moments(self, square: Array, mean: Array, x: cp.Expression) -> cp.Expression:
        """The expected squares if y has these second and first moments."""
        terms = [
            a @ square @ a - 2 * (a @ mean) * (c @ x) + cp.square(c @ x) for a, c in zip(self.a, self.c, strict=True)
        ]
        return sum(terms) + self.price @ x


def curved(name: str, kind: str) -> Callable[[Draw, bool, bool], CostPart]:
    """The cost of one loss."""
    curve = CURVES[name]

    def part(draw: Draw, integer: bool, known: bool) -> CostPart:
        n, size, rows = draw.dim, 2, 1 if kind not in PINNED else int(draw.rng.integers(1, 3))
        a, c, price = draw.normal((rows, n)), draw.normal((rows, size)), draw.uniform(-0.3, 0.3, size)
        # A loss that is not homogeneous sees outcomes in the unit one.
        unit = draw.unit if curve.degree is None else 1.0
        scale = draw.cost_unit / (1.0 if curve.degree is None else draw.unit**curve.degree)
        moved = 1.0 if curve.degree is None else draw.unit
        u = f"{text(a / unit)} @ y - {text(c * moved)} @ x"
        code = f"{text(scale)} * {curve.code.format(u=u)} + {text(price * draw.cost_unit)} @ x"
        A, b = _between(size, size, -1.0, 2.0)
        base = CostPart(
            (f"x = cp.Variable({size}, name='x')",),
            code,
            (("x", size),),
            1.0,
            (),
            size,
            ("x >= -1, x <= 2",),
            A,
            b,
            np.zeros(size),
            np.zeros((0, 0)),
        )
        return replace(base, curve=Bend(curve, a, c, price))

    return part
