"""A worst case as it stands in a program: pieces, blocks, decision rules and what is forbidden, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cvxpy as cp

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.cost.parse import PiecewiseCost
from drolayers.reformulation.curved import at_scenarios, full_rows, one_curve
from drolayers.reformulation.decision_rule import decision_rules
from drolayers.reformulation.separability import block_rows, offsets_of, rows_of
from drolayers.reformulation.worst_case import WorstCase, supremum, worst_case


def formulate(
    costs: Sequence[PiecewiseCost],
    ambiguity: AmbiguitySet,
    everywhere: bool = False,
    probe: bool = False,
    named: bool = False,
    apart: bool = False,
) -> WorstCase:
    """c₀(x) + sup E[…] and what comes with it.

    Args:
        costs: the pieces; of several over one stack, for a set that bundles, a vector of worst cases is returned.
        ambiguity: the set.
        everywhere: whether the supremum is over the outcomes that the set allows, not over its distributions.
        probe: whether slopes and offsets can be perturbed.
        named: whether products with known data are variables, for sets that multiply rows by parameters once more.
        apart: whether the price of the multipliers is no part of the value.
    """
    parsed = costs[0]
    stack, ties = parsed.named() if named else (parsed.stack, [])
    reach = ambiguity.reach
    if parsed.curves and not ambiguity.pinned:
        worst = one_curve(parsed, ambiguity, stack, everywhere, probe)
        return replace(worst, constraints=[*ties, *worst.constraints])
    links = [*(ambiguity.outcome_links() if everywhere else ambiguity.links()), *reach.links(ambiguity.y.dim)]
    blocks = [block_rows(cost, links) for cost in costs]
    rows = rows_of(costs, blocks, stack)
    constraints = [*parsed.constraints, *ties]
    fixed = offsets_of(costs, blocks, stack)
    lifts = None
    if parsed.recourses:
        rule = decision_rules(parsed.recourses, ambiguity, stack)
        rows, fixed, lifts = rule.added_to(rows), fixed + rule.offset, rule.lifts or None
        constraints += rule.constraints
    if len(parsed.forbidden):
        # Rows that must not be positive for any outcome, each over all coordinates.
        never = ambiguity.outcomes(full_rows(parsed.forbidden, stack))
        bound, more = supremum(never.rows, reach, never.terms)
        constraints += [*more, never.rows.offset + bound <= 0]
    shared = not probe
    dual = ambiguity.outcomes(rows, shared) if everywhere else ambiguity.dual(rows, lifts, shared)
    curved, more = at_scenarios(parsed, ambiguity, stack)
    constraints += more
    price = dual.price if apart else None
    worst = worst_case(replace(dual, price=cp.Constant(0.0)) if apart else dual, reach, probe, curved)
    return replace(worst, value=fixed + worst.value, constraints=[*constraints, *worst.constraints], price=price)
