"""The helpers of these tests are seen to fail: every certificate notices the defect that it is there for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.drolayers.ambiguity.sets import SETS
from tests.drolayers.reformulation.certificates import TOLERANCE, Spread, defects, of_item
from tests.drolayers.reformulation.differences import analytic, central, gap
from tests.drolayers.reformulation.grid import lower_bound, points
from tests.drolayers.reformulation.problems import COSTS, SUPPORTS, Case, case

KINDS = {kind.name: kind for kind in SETS}
WHERE = {support.name: support for support in SUPPORTS}
WHAT = {cost.name: cost for cost in COSTS}


def certified(kind: str, support: str, cost: str) -> tuple[Case, tuple, Spread, float]:
    """A case, what its certificate is asked with, the distribution and what escapes."""
    here = case(KINDS[kind], WHERE[support], WHAT[cost])
    parameters, theta, nominal = here.theta(1)
    decision = {v: torch.full((1, *v.shape), 1.1, dtype=torch.float64) for v in here.problem.variables}
    f = float(here.problem.worst_case_cost(decision, theta, nominal))
    found = here.problem.worst_case_distribution(decision, theta, nominal)
    asked = (here.values(decision, 0), parameters[0], nominal, 0, f)
    return here, asked, of_item(found, 0), float(found.escaping_cost[0])


def broken(here: Case, asked: tuple, mass: Spread, escaping: float) -> set[str]:
    return {name for name, value in defects(here, *asked, mass, escaping).items() if not value <= TOLERANCE}


@pytest.mark.parametrize("kind", ["first and second", "ball 2, order 2", "mean and covariance"])
def test_certificates_notice(kind: str) -> None:
    here, asked, mass, escaping = certified(kind, "box", "newsvendor")
    assert not broken(here, asked, mass, escaping)
    assert not len(mass.directions)
    away = mass.atoms + 1e-3 * (mass.atoms - mass.probabilities @ mass.atoms)
    assert broken(here, asked, replace(mass, atoms=away), escaping) >= {"bounds", "cost"}
    assert "support" in broken(here, asked, replace(mass, atoms=mass.atoms + 10), escaping)
    assert "marginal" in broken(here, asked, replace(mass, probabilities=1.001 * mass.probabilities), escaping)
    *rest, f = asked
    assert broken(here, (*rest, f * (1 + 1e-5)), mass, escaping) == {"cost"}
    assert broken(here, asked, mass, escaping + 1e-4) == {"cost"}


@pytest.mark.parametrize("kind", ["box of outcomes", "ellipsoid of outcomes", "budget of outcomes"])
def test_certificates_of_outcomes_notice(kind: str) -> None:
    here, asked, mass, escaping = certified(kind, "box", "newsvendor")
    assert not broken(here, asked, mass, escaping)
    centre = asked[1]["centre"]
    away = replace(mass, atoms=centre + 1.001 * (mass.atoms - centre))
    assert broken(here, asked, away, escaping) >= {"bounds", "cost"}


@pytest.mark.parametrize("kind", ["norm 2", "ball 1, order 1"])
def test_certificates_of_escaping_mass_notice(kind: str) -> None:
    here, asked, mass, escaping = certified(kind, "reals", "cvar of a portfolio")
    assert not broken(here, asked, mass, escaping)
    assert len(mass.directions)
    wrong = broken(here, asked, replace(mass, directions=-mass.directions), escaping)
    assert "cost at mass 1e-05" in wrong
    assert "bounds" in broken(here, asked, replace(mass, directions=2 * mass.directions), escaping)
    assert "cost" in broken(here, asked, mass, 0.0)


def test_grids_notice() -> None:
    """A bound that is too small, or a set that is larger than it was, is seen on the grid."""
    here, asked, _, _ = certified("first and second", "box", "newsvendor")
    x, t, nominal, item, f = asked
    grid = points(here.support)
    found = lower_bound(here, x, t, nominal, item, grid)
    assert f - 0.01 * (1 + abs(f)) <= found <= f + 1e-7
    larger = {**t, "1.sigma": 1.1 * t["1.sigma"], "0.sigma": 1.1 * t["0.sigma"]}
    assert lower_bound(here, x, larger, nominal, item, grid) > f + 1e-7
    assert not np.any(here.support.excess(grid) > 1e-9)


def test_differences_notice() -> None:
    at = torch.tensor([0.3, -0.7], dtype=torch.float64)

    def right(v: torch.Tensor) -> torch.Tensor:
        return torch.stack([v[:, 0] ** 2 + v[:, 1], v[:, 0] * v[:, 1]], 1)

    def wrong(v: torch.Tensor) -> torch.Tensor:
        # The second part loses half of its derivative.
        return torch.stack([right(v)[:, 0], 0.5 * (right(v)[:, 1] + right(v)[:, 1].detach())], 1)

    expected = central(right, at)
    torch.testing.assert_close(expected, torch.tensor([[0.6, 1.0], [-0.7, 0.3]], dtype=torch.float64))
    assert gap(analytic(right, at), expected) < 1e-9
    assert gap(analytic(wrong, at), expected) > 0.1
