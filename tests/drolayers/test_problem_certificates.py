"""Every set, support and cost: the worst-case distribution lies in the set and attains the worst-case cost.

All triples run (of brief sets, every pair (set, support), (set, cost)); DROLAYERS_PAIRS=1 leaves a table in which every
pair (set, support), (set, cost), (support, cost) is.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.reformulation.certificates import assert_certifies
from tests.drolayers.reformulation.problems import COSTS, SUPPORTS, CostCase, SupportCase, case, fits

BATCH = 2
FULL = not os.environ.get("DROLAYERS_PAIRS")


def table() -> list[tuple[SetCase, SupportCase, CostCase]]:
    """Triples that cover all pairs, the rarest pairs first; or all triples."""
    rows: list[tuple[SetCase, SupportCase, CostCase]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for kind in SETS:
        if FULL and not kind.brief:
            rows += [(kind, support, cost) for support in SUPPORTS for cost in COSTS if fits(support, cost)]
            continue
        for support in SUPPORTS:
            usable = [cost for cost in COSTS if fits(support, cost)]
            cost = min(usable, key=lambda c: (seen[kind.name, c.name], seen[support.name, c.name]))
            seen.update([(kind.name, cost.name), (support.name, cost.name)])
            rows.append((kind, support, cost))
    return rows


def name(row: tuple[SetCase, SupportCase, CostCase]) -> str:
    return " / ".join(part.name for part in row)


TABLE = table()


def test_the_table_covers_all_pairs() -> None:
    for first, second in ((0, 1), (0, 2), (1, 2)):
        seen = {(row[first].name, row[second].name) for row in TABLE}
        kinds = (SETS, SUPPORTS, COSTS)
        wanted = {(a.name, b.name) for a in kinds[first] for b in kinds[second]}
        if second == 2:
            wanted = {
                (a.name, b.name)
                for a in kinds[first]
                for b in COSTS
                if not b.needs_nonnegative or (first == 1 and a.nonnegative)
            }
        assert wanted <= seen, sorted(wanted - seen)


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_worst_distribution_certifies(row: tuple[SetCase, SupportCase, CostCase]) -> None:
    here = case(*row)
    parameters, theta, nominal = here.theta(BATCH)
    solution = here.problem.solve(theta, nominal)
    assert bool(solution.ok.all()), solution.statuses
    decision = {v: t.detach() for v, t in here.problem.decision(solution.primal).items()}
    f = here.problem.worst_case_cost(decision, theta, nominal)
    if bool((f.isnan() & (solution.objective.abs() < 1e-9)).any()):
        # Whether zero is told from 1e-10 is up to the processor. Where it is not, another decision is certified.
        decision = {v: t + 0.1 for v, t in decision.items()}
        f = here.problem.worst_case_cost(decision, theta, nominal)
        assert bool((f.abs() > 1e-6).all())
    else:
        torch.testing.assert_close(f, solution.objective, rtol=1e-6, atol=1e-6)
    found = here.problem.worst_case_distribution(decision, theta, nominal)
    for item in range(BATCH):
        assert_certifies(here, here.values(decision, item), parameters[item], nominal, item, f, found)
