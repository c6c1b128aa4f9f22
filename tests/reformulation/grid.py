"""Moment problems on a grid: linear programs that bound the worst case from below, by nothing but their definition."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
from scipy.optimize import linprog

import drolayers as dro
from tests.ambiguity.sets import CENTRE, PHI, Parameters
from tests.reformulation.problems import Case, SupportCase, Values

FAR = 1e4


def points(support: SupportCase, step: float = 0.1, reach: float = 4.0) -> np.ndarray:
    """A grid around the centre, rays that go far, and where either leaves the support, the last point inside."""
    # Finer near the centre, where moments have their kinks.
    near = [
        np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
        for line in (np.arange(-reach, reach + step / 2, step), np.arange(-0.5, 0.51, 0.2 * step))
    ]
    angles = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    radii = np.geomspace(reach, FAR, 5)
    far = (np.stack([np.cos(angles), np.sin(angles)], -1)[:, None] * radii[:, None]).reshape(-1, 2)
    rays = np.concatenate([*near, far])
    inside, outside = np.zeros(len(rays)), np.ones(len(rays))
    whole = support.excess(CENTRE + rays) <= 0
    for _ in range(50):
        middle = (inside + outside) / 2
        fits = support.excess(CENTRE + middle[:, None] * rays) <= 0
        inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
    share = np.where(whole, 1.0, inside)
    # Many rays end on the same piece of the boundary: neighbours closer than a fraction of the step are one.
    ends = CENTRE + share[:, None] * rays
    return ends[np.unique(np.round(ends / (0.1 * step)), axis=0, return_index=True)[1]]


def lower_bound(
    case: Case, x: Values, t: Parameters, nominal: dro.Nominal | None, item: int, grid: np.ndarray
) -> float:
    """The largest expected cost of a distribution in the set with atoms on the grid only."""
    if (events := case.set.events) is not None:
        values = []
        for event, part in enumerate(events.sets):
            # Boxes of events have corners that are no points of the grid of the support.
            lo, hi = events.boxes[event] or (np.full(2, -np.inf), np.full(2, np.inf))
            inside = np.unique(np.clip(grid, lo, hi), axis=0)
            inside = inside[case.support.excess(inside) <= 0]
            own = replace(case, set=part)
            values.append(lower_bound(own, x, events.parameters(t, event), nominal, item, inside))
        p = events.probabilities(t)
        return float(p @ values) if events.kind is None else _reweighted(events.kind, np.array(values), p, t["radius"])
    if case.set.divergence is not None:
        assert nominal is not None
        centres, weights = (part[item].numpy() for part in nominal)
        return _reweighted(case.set.divergence, case.cost.value(x, centres), weights, t["radius"])
    if case.set.ball is None:
        assert case.set.moments is not None
        assert case.set.sigma is not None
        cost, used, bounds = case.cost.value(x, grid), case.set.moments(t, grid).T, case.set.sigma(t)
        sums, weights = np.ones((1, len(grid))), np.ones(1)
    else:
        assert nominal is not None
        norm, order = case.set.ball
        centres, weights = (part[item].numpy() for part in nominal)
        grid = np.concatenate([grid, centres])
        cost = np.tile(case.cost.value(x, grid), len(centres))
        used = np.stack([np.linalg.norm(grid - c, norm, axis=1) ** order for c in centres]).reshape(1, -1)
        bounds, sums = np.array([t["radius"] ** order]), np.kron(np.eye(len(centres)), np.ones(len(grid)))
    # Mass far out is measured in what it uses up, so that the columns have one size.
    size = np.maximum(np.abs(used).max(0), 1.0)
    found = linprog(-cost / size, A_ub=used / size, b_ub=bounds, A_eq=sums / size, b_eq=weights)
    assert found.status == 0, found.message
    return -float(found.fun)


def _reweighted(kind: str, values: np.ndarray, weights: np.ndarray, radius: np.ndarray) -> float:
    """The largest mean of values over the probabilities in a ball."""
    p = cp.Variable(len(weights), nonneg=True)
    used = weights @ PHI[kind](cp.multiply(1 / weights, p))
    problem = cp.Problem(cp.Maximize(values @ p), [cp.sum(p) == 1, used <= radius])
    return float(problem.solve(solver=cp.CLARABEL))
