"""In one and two dimensions no distribution on a grid does better than f, and some does nearly as well."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import drolayers as dro
from drolayers import moments as m
from drolayers import support as s
from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.reformulation.grid import lower_bound, points
from tests.drolayers.reformulation.problems import COSTS, SUPPORTS, CostCase, SupportCase, case, fits

GRIDS = {support.name: points(support) for support in SUPPORTS}


def table() -> list[tuple[SetCase, SupportCase, CostCase]]:
    """Every set twice, with supports and costs in turn."""
    rows = []
    for i, kind in enumerate(SETS):
        for k in range(2):
            support = SUPPORTS[(3 * i + 5 * k) % len(SUPPORTS)]
            usable = [cost for cost in COSTS if fits(support, cost)]
            rows.append((kind, support, usable[(i + 4 * k) % len(usable)]))
    return rows


@pytest.mark.parametrize("row", table(), ids=lambda row: " / ".join(part.name for part in row))
def test_grid_is_just_below(row: tuple[SetCase, SupportCase, CostCase]) -> None:
    here = case(*row)
    parameters, theta, nominal = here.theta(1, seed=5)
    # A decision that is nobody's optimum.
    decision = {v: torch.as_tensor(np.linspace(0.3, 0.7, v.size).reshape(1, *v.shape)) for v in here.problem.variables}
    f = float(here.problem.worst_case_cost(decision, theta, nominal))
    found = lower_bound(here, here.values(decision, 0), parameters[0], nominal, 0, GRIDS[here.support.name])
    assert found <= f + 1e-7 * (1 + abs(f))
    assert found >= f - 0.01 * (1 + abs(f))


@pytest.mark.parametrize(
    ("moments", "theta", "values"),
    [
        ([m.Absolute(mu=[1.0]), m.SquaredNorm()], [1.0, 0.6, 1.2, 0.7], lambda y: [abs(y - 1.0), (y - 1.2) ** 2]),
        ([m.Norm(2)], [1.1, 0.8], lambda y: [abs(y - 1.1)]),
        ([m.AbsolutePower(1.5, mu=[1.0])], [0.9, 0.7], lambda y: [abs(y - 0.9) ** 1.5]),
        (
            [m.PositiveSquare(mu=[1.0]), m.Linear(mu=[-1.0])],
            [0.8, 0.5, -0.9],
            lambda y: [np.maximum(y - 0.8, 0) ** 2, -y],
        ),
    ],
    ids=["absolute and square", "norm", "power", "positive square and mean"],
)
@pytest.mark.parametrize("support", [s.Nonnegative(), s.Box(0.3, 2.5), s.Reals()], ids=["nonnegative", "box", "reals"])
def test_grid_in_one_dimension(moments: list, theta: list[float], values: Callable, support: s.Support) -> None:
    y, x = dro.Uncertain(1, support=support), cp.Variable()
    ambiguity = dro.MomentSet(y, moments)
    problem = dro.DecisionProblem(cp.maximum(3 * (y[0] - x), x - y[0], 0.5), [x >= 0], ambiguity)
    given = torch.tensor([theta], dtype=torch.float64)
    f = float(problem.worst_case_cost({x: torch.tensor([1.3])}, given))
    grid = np.concatenate([np.linspace(-8, 8, 4001), np.geomspace(8, 1e4, 60), -np.geomspace(8, 1e4, 60)])
    grid = grid[support.violation(torch.as_tensor(grid)[:, None]).numpy() <= 0]
    used, cost = np.stack(values(grid)), np.maximum(np.maximum(3 * (grid - 1.3), 1.3 - grid), 0.5)
    bounds = torch.cat(ambiguity.sigmas(given), 1)[0].numpy()
    size = np.maximum(abs(used).max(0), 1.0)
    best = linprog(-cost / size, A_ub=used / size, b_ub=bounds, A_eq=1 / size[None], b_eq=[1.0])
    assert best.status == 0
    assert f * 0.99 <= -best.fun <= f + 1e-7 * (1 + f)
