"""Costs that are curved in y, where a set makes them tractable.

At given atoms any convex loss will do: its value there is one more term of every scenario. On all of space, a set says
of one affine function u = aᵀy + b that its distribution lies in a ball around numbers u_n with weights ω_n, of some
order and of radius G = ε‖a‖_*. Over these

    order 1    sup E ℓ(u) = Σ ω_n ℓ(u_n) + Lip(ℓ) G
    order 2    sup E u²   = (√(Σ ω_n u_n²) + G)²
    order ∞    sup E ℓ(u) = Σ ω_n max{ℓ(u_n + G), ℓ(u_n - G)},

all nondecreasing in G, so that what is above ε‖a‖_* may stand for it. Where squared deviations are bounded, sup E u² is
the square of the larger one of sup E u and sup E(-u): there the formula of all worst cases is used twice.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from drolayers.ambiguity.base import AmbiguitySet, Rows
from drolayers.ambiguity.outer import Constraints
from drolayers.cost.affine_rows import AffineRows
from drolayers.cost.losses import Square
from drolayers.cost.parse import CurvedCost, PiecewiseCost
from drolayers.errors import ModelError
from drolayers.products import kron
from drolayers.reformulation.worst_case import Probe, WorstCase, worst_case
from drolayers.support import Layout


def full_rows(rows: AffineRows, stack: cp.Expression) -> Rows:
    """Rows over all coordinates, each a block of its own."""
    count, dim = len(rows), rows.dim
    layout = Layout(np.repeat(np.arange(count), dim), np.tile(np.arange(dim), count), count)
    return Rows(rows.flat_slope(stack), rows.offset(stack), layout, np.arange(count))


def at_scenarios(
    parsed: PiecewiseCost, ambiguity: AmbiguitySet, stack: cp.Expression
) -> tuple[cp.Expression | None, Constraints]:
    """What losses add to the cost of every scenario, where mass stays at the atoms."""
    total: cp.Expression | None = None
    constraints: Constraints = []
    for curve in parsed.curves:
        along = ambiguity.along(full_rows(curve.rows, stack))
        assert along is not None
        count, rows = along.weights.size, len(curve.rows)
        above, weights = cp.Variable(count * rows), kron(along.weights, cp.Constant(np.ones(rows)))
        constraints += curve.loss.above(above, along.values, weights)
        added = cp.reshape(above, (count, rows), order="C") @ curve.weight
        total = added if total is None else total + added
    return total, constraints


def one_curve(
    parsed: PiecewiseCost, ambiguity: AmbiguitySet, stack: cp.Expression, everywhere: bool, probe: bool
) -> WorstCase:
    """c₀(x) + sup E ℓ(aᵀy + b) where mass may move.

    Raises:
        ModelError: there are other terms, or the set does not make this loss tractable.
    """
    curve, others = parsed.curves[0], len(parsed.pieces) + len(parsed.forbidden)
    if everywhere or others or len(parsed.curves) > 1 or len(curve.rows) > 1:
        raise _refused(
            curve, ambiguity, "beside other parts of the cost that see y" if not everywhere else "in dro.always"
        )
    rows = full_rows(curve.rows, stack)
    value, constraints = _worst(curve, ambiguity, rows)
    rest = parsed.deterministic
    if not rest.is_affine():
        # Squares beside squares, all as cones: a ridge of 1e-7 of the cost in the objective is more than units bear.
        rest = cp.Variable()
        constraints.append(rest >= parsed.deterministic)
    return WorstCase(rest + float(curve.weight[0]) * value, constraints, _none(rows) if probe else None)


def _worst(curve: CurvedCost, ambiguity: AmbiguitySet, rows: Rows) -> tuple[cp.Expression, Constraints]:
    """Sup E ℓ(u) of one row."""
    loss, constraints = curve.loss, Constraints()
    if isinstance(loss, Square) and ambiguity.centred:
        largest = cp.Variable(nonneg=True)
        for sign in (1.0, -1.0):
            turned = Rows(sign * rows.slope, sign * rows.offset, rows.layout, rows.block)
            side = worst_case(ambiguity.dual(turned), ambiguity.reach)
            constraints += [*side.constraints, largest >= side.value]
        return _square(largest, constraints)
    along = ambiguity.along(rows)
    if along is None or along.radius is None:
        raise _refused(curve, ambiguity, "over this set and support")
    constraints += along.constraints
    if along.order == 2 and isinstance(loss, Square):
        length, largest = cp.Variable(nonneg=True), cp.Variable(nonneg=True)
        # Σ ω_n u_n² as the square of a norm: a sum of squares over shares of one, linear in ω, is worse to solve.
        constraints += [cp.SOC(length, along.roots), largest >= np.sqrt(along.unit) * length + along.radius]
        return _square(largest, constraints)
    above = cp.Variable(along.weights.size)
    if along.order == 1 and np.isfinite(loss.lipschitz):
        constraints += loss.above(above, along.values, along.weights)
        return along.unit * cp.sum(above) + loss.lipschitz * along.radius, constraints
    if np.isinf(along.order):
        for side in (along.values + along.reach, along.values - along.reach):
            constraints += loss.above(above, side, along.weights)
        return along.unit * cp.sum(above), constraints
    raise _refused(curve, ambiguity, "over this set")


def _square(number: cp.Variable, constraints: Constraints) -> tuple[cp.Expression, Constraints]:
    """A number above its square; as a cone, since its size may be another than that of what is quadratic beside it."""
    above = cp.Variable(1)
    return above[0], [
        *constraints,
        *Square().above(above, cp.reshape(number, (1,), order="F"), cp.Constant(np.ones(1))),
    ]


def _none(rows: Rows) -> Probe:
    """A probe of nothing: the distribution is not read off the derivatives of such a worst case."""
    return Probe(rows, cp.Parameter(rows.slope.shape[0]), cp.Parameter(rows.offset.shape[0]), cp.Variable(1), 1.0)


def _refused(curve: CurvedCost, ambiguity: AmbiguitySet, where: str) -> ModelError:
    """What would do."""
    return ModelError(
        f"{curve.text} is curved in y, and its worst case {where} ({type(ambiguity).__name__}) is not known: any such "
        "loss may stand in a cost under dro.Divergence and dro.Empirical; alone and of one affine function of y on all "
        "of space, a square under squared deviations (SquaredNorm, Variance) and dro.Wasserstein of order 2, cp.huber "
        "and cp.logistic under order 1, and each of them under order inf."
    )
