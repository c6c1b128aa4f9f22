"""Outcomes, decisions and costs in other units: the answer follows, or the item says that it could not.

Every set meets every change of units, and every support every cost; ``python -m research attack`` draws others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from conelayers import Derivative
from drolayers import Status
from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.reformulation.problems import COSTS, SUPPORTS, CostCase, SupportCase, fits
from tests.drolayers.units import (
    CHANGES,
    Answer,
    Reference,
    Units,
    compare,
    degree,
    reference,
    rescaled,
    rescaled_set,
    rescaled_support,
)

# Programs that are linear in θ have flat decisions, and some items stand at a kink: both are told, and neither matters.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BATCH = 2
Row = tuple[SetCase, SupportCase, CostCase, str, int]


def table() -> list[Row]:
    """For every set and change of units one support and one cost, those that were met the least, and two sizes."""
    rows: list[Row] = []
    seen: Counter[tuple[str, str]] = Counter()
    usable = [(support, cost) for support in SUPPORTS for cost in COSTS if fits(support, cost)]
    for i, kind in enumerate(SETS):
        for j, change in enumerate(CHANGES):

            def met(pair: tuple[SupportCase, CostCase], kind: SetCase = kind, change: str = change) -> tuple[int, ...]:
                support, cost = pair[0].name, pair[1].name
                return (
                    seen[support, cost],
                    seen[kind.name, support] + seen[kind.name, cost],
                    seen[support, change] + seen[cost, change],
                )

            support, cost = min(usable, key=met)
            names = kind.name, support.name, cost.name, change
            seen.update((a, b) for a, b in product(names, names) if a != b)
            rows += [(kind, support, cost, change, k) for k in ((-6, 3) if (i + j) % 2 else (-3, 6))]
    return rows


def name(row: Row) -> str:
    return " / ".join([*(part.name for part in row[:3]), f"{row[3]} 1e{row[4]:+d}"])


TABLE = table()


@cache
def known(kind: SetCase, support: SupportCase, cost: CostCase) -> Reference:
    return reference(kind, support, cost, BATCH)


@cache
def answered(kind: SetCase, support: SupportCase, cost: CostCase, change: str, k: int) -> Answer:
    return rescaled(kind, support, cost, CHANGES[change](k)).answer(BATCH)


def test_the_table_covers_what_it_should() -> None:
    for first, second in ((0, 3), (1, 2), (1, 3), (2, 3)):
        parts = [SETS, SUPPORTS, COSTS, list(CHANGES)]
        seen = {(row[first], row[second]) for row in TABLE}
        wanted = {(a, b) for a in parts[first] for b in parts[second] if (first, second) != (1, 2) or fits(a, b)}
        assert wanted <= seen, len(wanted - seen)


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_answers_follow_the_units(row: Row) -> None:
    verdicts = compare(answered(*row), known(*row[:3]))
    assert not any(verdict.wrong for verdict in verdicts), "; ".join(map(str, verdicts))


def test_most_items_are_answered() -> None:
    """FAILED is honest, but no answer: in the units that people use there is one."""
    rows = [row for row in TABLE if row[3] == "all" and abs(row[4]) == 3]
    failed = [name(row) for row in rows for status in answered(*row).statuses if status != Status.OPTIMAL]
    assert len(failed) <= 0.02 * BATCH * len(rows), failed


# --- Settings --------------------------------------------------------------------------------------------------------

SYMMETRIC = [
    ("sum of degrees 2 and 1", "box", "one maximum beside a product"),
    ("squared norm", "nonnegative", "newsvendor"),
    ("first and second", "half box", "joint maximum"),
    ("norm 1", "wedge", "newsvendor"),
    ("ball 1, order 1", "box", "recourse"),
    ("ball 2, order 2", "reals", "portfolio"),
]


def named(row: tuple[str, str, str]) -> tuple[SetCase, SupportCase, CostCase]:
    """A row of the tables by its names."""
    tables = SETS, SUPPORTS, COSTS
    kind, support, cost = (next(c for c in t if c.name == n) for t, n in zip(tables, row, strict=True))
    return kind, support, cost


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("row", SYMMETRIC, ids=lambda row: " / ".join(row))
def test_a_level_of_smoothing_means_the_same_in_all_units(row: tuple[str, str, str], change: str) -> None:
    expected = rescaled(*named(row)).answer(BATCH, smoothing=1e-2)
    for k in (-4, 4):
        found = rescaled(*named(row), CHANGES[change](k)).answer(BATCH, smoothing=1e-2)
        assert found.statuses == expected.statuses
        gap = (found.of_decision - expected.of_decision).norm() / expected.of_decision.norm()
        assert float(gap) <= 1e-2, k


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_a_tolerance_means_the_same_in_all_units(tolerance: float, change: str) -> None:
    for row in SYMMETRIC[::2]:
        best = known(*named(row)).answer.value
        for k in (-4, 4):
            found = rescaled(*named(row), CHANGES[change](k)).answer(BATCH, tolerance=tolerance)
            assert all(status.ok for status in found.statuses), (row, k)
            assert float(((found.value - best) / best).abs().max()) <= max(10 * tolerance, 1e-8), (row, k)


# --- The helper ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in SETS if kind.moments is not None], ids=lambda kind: kind.name)
def test_rescaled_sets_bound_the_same(kind: SetCase) -> None:
    """Every moment in other units against the one of the table in NumPy, and its bound with it."""
    assert kind.moments is not None
    assert kind.sigma is not None
    here = rescaled(kind, SUPPORTS[0], COSTS[2], Units(outcomes=10.0))
    ambiguity = here.problem.ambiguity
    theta = here.leaf(1) * here.factors
    points = np.array([[1.3, 0.8], [0.4, 1.9]])
    values = ambiguity.values(theta, torch.as_tensor(10.0 * points)[None])[0].numpy()
    parameters = kind.parameters(1)[0]
    bounds = torch.cat(ambiguity.sigmas(theta), 1)[0].numpy()
    np.testing.assert_allclose(
        values / bounds, kind.moments(parameters, points) / kind.sigma(parameters), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("support", SUPPORTS, ids=lambda support: support.name)
def test_rescaled_supports_hold_the_same(support: SupportCase) -> None:
    points = np.stack(np.meshgrid(np.linspace(-2.0, 5.0, 6), np.linspace(-2.0, 5.0, 6)), -1).reshape(-1, 2)
    outside = rescaled_support(support, 10.0).violation(torch.as_tensor(10.0 * points)).numpy() > 1e-6
    np.testing.assert_array_equal(outside, support.excess(points) > 1e-6)


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_rescaled_costs_cost_the_same(cost: CostCase) -> None:
    units = Units(10.0, 100.0, 1000.0)
    here = rescaled(SETS[-1], SUPPORTS[1], cost, units)
    rng = np.random.default_rng(0)
    x, tau, y = rng.normal(size=2), rng.normal(), rng.uniform(size=(4, 2))
    given = {
        v: torch.as_tensor(np.broadcast_to(units.decision * x if v is here.x else tau, (4, *v.shape)).copy())
        for v in here.problem.variables
    }
    loss = here.problem.loss(given, torch.as_tensor(units.outcomes * y)).numpy()
    np.testing.assert_allclose(loss, units.cost * cost.value({"x": x, "tau": np.asarray(tau)}, y), rtol=1e-9)


def test_the_comparison_sees_what_is_wrong() -> None:
    right = reference(SETS[-1], SUPPORTS[1], COSTS[1], BATCH)
    answer = right.answer

    def outcomes(**changes: object) -> list[str]:
        return [verdict.outcome for verdict in compare(replace(answer, **changes), right)]

    off = torch.tensor([1.0, 1.0 + 1e-5])
    assert outcomes() == ["right", "right"]
    assert outcomes(value=answer.value * off) == ["right", "wrong value"]
    inaccurate = [Status.INACCURATE] * 2
    assert outcomes(statuses=inaccurate, value=answer.value * off) == ["flagged: inaccurate"] * 2
    assert outcomes(statuses=inaccurate, value=answer.value * (1 + 1e-3)) == ["wrong value"] * 2
    assert outcomes(value=answer.value * torch.nan) == ["wrong value"] * 2
    assert outcomes(of_value=1.001 * answer.of_value) == ["wrong gradient of the value"] * 2
    assert outcomes(of_decision=1.001 * answer.of_decision) == ["wrong gradient of the decision"] * 2
    assert outcomes(of_decision=0.0 * answer.of_decision, derivatives=[Derivative.KINK] * 2) == ["right", "right"]
    assert outcomes(statuses=[Status.FAILED, Status.EMPTY_SET]) == ["flagged: failed", "wrong status"]


def test_a_wrong_change_of_units_is_seen() -> None:
    """Bounds of degree two that only grew as the outcomes did are another set."""
    kind = next(kind for kind in SETS if kind.name == "squared norm")
    assert degree(kind, "0.sigma") == 2.0
    here = rescaled(kind, SUPPORTS[0], COSTS[0], Units(outcomes=10.0))
    wrong = replace(here, kind=replace(kind, name="norm 2"))
    verdicts = compare(wrong.answer(BATCH), reference(kind, SUPPORTS[0], COSTS[0], BATCH))
    assert [verdict.outcome for verdict in verdicts] == ["wrong value"] * BATCH
    assert rescaled_set(kind, here.problem.ambiguity.y, 10.0).size == here.problem.ambiguity.size
