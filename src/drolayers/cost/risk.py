"""Risk measures of a cost."""

from __future__ import annotations

import cvxpy as cp
from cvxpy.lin_ops.lin_utils import get_id

from drolayers.checks import number
from drolayers.errors import ModelError

TAU = "cvar_tau"
"""How the names of thresholds begin."""


def cvar(cost: cp.Expression, level: float) -> cp.Expression:
    """The conditional value-at-risk of a cost, ``min_tau tau + E[(cost - tau)^+] / (1 - level)``.

    Under the worst distribution the supremum over the distributions and the minimum over ``tau`` interchange (the
    ambiguity set is convex and the expression convex in ``tau``), so ``tau`` is one more decision, the same for all
    distributions. It is kept as a part of the decision, so that the loss of a decision can be evaluated. The result is
    one maximum over all pieces of the cost together: it does not separate by coordinates.

    Args:
        cost: a scalar piecewise cost.
        level: between 0 and 1, both excluded; 0.95 averages over the worst 5 %.

    Returns:
        A CVXPY expression with a fresh scalar variable named ``cvar_tau…``.

    Reference:
        Rockafellar and Uryasev, Optimization of conditional value-at-risk, Journal of Risk 2 (2000).
    """
    level = number("level", level)
    if not 0.0 < level < 1.0:
        raise ModelError(f"cvar(level={level!r}) needs a level between 0 and 1, both excluded.")
    cost = cp.Expression.cast_to_const(cost)
    if not cost.is_scalar():
        raise ModelError(f"cvar needs a scalar cost, not one of shape {cost.shape}: sum its entries with cp.sum.")
    tau = cp.Variable(name=f"{TAU}{get_id()}")
    return tau + cp.pos(cost - tau) / (1.0 - level)
