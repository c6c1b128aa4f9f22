"""How good decisions are on data, in figures that others report too."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import check_same_index, no_unsolved_warnings, untraced
from drolayers.baselines.sibling import ExpectedCost
from drolayers.cost.lowering import shorten
from drolayers.cost.risk import Kind
from drolayers.errors import ModelError, UnsolvedItemsWarning
from drolayers.known import Known
from drolayers.learning.data import outcomes
from drolayers.problem import DecisionProblem

__all__ = ["hindsight", "regret"]


def __dir__() -> list[str]:
    return sorted(__all__)


NOTHING = 1e-9
"""Of what decisions cost: so little is left open by solvers."""


@untraced
def hindsight(problem: DecisionProblem, Y: Any, known: Known | None = None) -> Float[Tensor, "item"]:
    """The least cost of those who know the outcomes, one an item; NaN, with a warning, where there is no decision.

    Args:
        problem: the decision problem; its set is not used.
        Y: outcomes ``(n, dim)``.
        known: values of ``problem.known``, one row an outcome.
    """
    check_same_index({"Y": Y, "known": known})
    y = outcomes(problem, Y)
    table = problem.known_data.table(known, len(y)) if problem.known else None
    with no_unsolved_warnings():
        best = ExpectedCost(problem, 1).decide(y[:, None], torch.ones_like(y[:, :1]), table)
    missing = torch.stack([value.reshape(len(y), -1).isnan().any(1) for value in best.values()]).any(0)
    if bool(missing.any()):
        warnings.warn(
            f"{int(missing.sum())} of {len(y)} outcomes have no best decision (the first is outcome "
            f"{int(missing.nonzero()[0, 0])}): their cost in hindsight is NaN, and so is a regret. Leave out these "
            "rows, or relax the constraints that they break.",
            UnsolvedItemsWarning,
            stacklevel=3,
        )
    return problem.loss(best, y, known if table is None else problem.known_data.values(table))


def regret(problem: DecisionProblem, decision: Mapping[cp.Variable, Any], Y: Any, known: Known | None = None) -> float:
    """By how much decisions cost more than those who know the outcomes, relative to what these pay.

    That is ``Σ (c(x, y) - c*(y)) / Σ |c*(y)|``, the normalised regret of Elmachtoub and Grigas (2022) and of PyEPO; NaN
    where an outcome has no decision: leave out its row. Decisions that cost little because ``dro.always`` does not hold
    at their outcomes are warned of.

    Args:
        problem: the decision problem.
        decision: by CVXPY variable, one row an outcome.
        Y: outcomes ``(n, dim)``.
        known: values of ``problem.known``, one row an outcome.
    """
    best = hindsight(problem, Y, known)
    x = {variable: torch.as_tensor(value) for variable, value in decision.items()}
    y = outcomes(problem, Y)
    told = problem.known_data.values(problem.known_data.table(known, len(y))) if problem.known else None
    cost = problem.loss(x, y, told)
    for rule, share in zip(problem.rules, problem.missed(x, y, told).values(), strict=True):
        if rule.kind is Kind.ALWAYS and share > 0:
            warnings.warn(
                f"{shorten(rule.constraint)} does not hold at {float(share):.0%} of the outcomes, so that regret is of "
                "decisions that may not be taken: see problem.missed.",
                stacklevel=2,
            )
    paid, size = float(best.abs().sum()), float(cost.abs().sum())
    if size and paid <= NOTHING * size:
        raise ModelError(
            f"Those who know the outcomes pay {paid:.2g} where these decisions cost {size:.2g}, so that regret cannot "
            "be told relative to that: compare the costs themselves, problem.loss and dro.metrics.hindsight."
        )
    return float((cost - best).sum() / paid) if paid else 0.0
