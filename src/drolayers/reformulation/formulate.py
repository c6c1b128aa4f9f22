"""A worst case as it stands in a program: pieces, blocks, decision rules and what is forbidden, put together."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np

from drolayers.ambiguity.base import AmbiguitySet, Rows
from drolayers.cost.parse import PiecewiseCost
from drolayers.reformulation.decision_rule import decision_rules
from drolayers.reformulation.separability import block_rows
from drolayers.reformulation.worst_case import WorstCase, supremum, worst_case
from drolayers.support import Layout


def formulate(
    parsed: PiecewiseCost, ambiguity: AmbiguitySet, everywhere: bool = False, probe: bool = False, named: bool = False
) -> WorstCase:
    """c₀(x) + sup E[…] and what comes with it.

    Args:
        parsed: the pieces.
        ambiguity: the set.
        everywhere: whether the supremum is over the outcomes that the set allows, not over its distributions.
        probe: whether slopes and offsets can be perturbed.
        named: whether products with known data are variables, for sets that multiply rows by parameters once more.
    """
    stack, ties = parsed.named() if named else (parsed.stack, [])
    reach = ambiguity.reach
    links = ambiguity.outcome_links() if everywhere else ambiguity.links()
    blocks = block_rows(parsed, [*links, *reach.links(ambiguity.y.dim)])
    rows = blocks.rows(parsed, stack)
    constraints = [*parsed.constraints, *ties]
    fixed = parsed.deterministic + blocks.remainder(parsed, stack)
    lifts = None
    if parsed.recourses:
        rule = decision_rules(parsed.recourses, ambiguity, stack)
        rows, fixed, lifts = rule.added_to(rows), fixed + rule.offset, rule.lifts or None
        constraints += rule.constraints
    if len(parsed.forbidden):
        never = ambiguity.outcomes(_forbidden_rows(parsed, stack))
        bound, more = supremum(never.rows, reach, never.terms)
        constraints += [*more, never.rows.offset + bound <= 0]
    dual = ambiguity.outcomes(rows) if everywhere else ambiguity.dual(rows, lifts, share=not probe)
    worst = worst_case(dual, reach, probe)
    return replace(worst, value=fixed + worst.value, constraints=[*constraints, *worst.constraints])


def _forbidden_rows(parsed: PiecewiseCost, stack: cp.Expression) -> Rows:
    """Rows that must not be positive for any y of the support, each over all coordinates."""
    count, dim = len(parsed.forbidden), parsed.y.dim
    layout = Layout(np.repeat(np.arange(count), dim), np.tile(np.arange(dim), count), count)
    slope = cp.vec(parsed.forbidden.slope(stack), order="C")
    return Rows(slope, parsed.forbidden.offset(stack), layout, np.arange(count))
