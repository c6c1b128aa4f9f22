"""Moment problems on a grid: linear programs that bound the worst case from below, by nothing but their definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cvxpy as cp
import numpy as np
from scipy.optimize import linprog

import drolayers as dro
from tests.drolayers.ambiguity.sets import CENTRE, PHI, Parameters
from tests.drolayers.reformulation.problems import Case, SupportCase, Values

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
    # Many rays end on the same piece of the boundary: neighbours closer than a fraction of the step are one.
    ends = _within(rays, lambda y: support.excess(y) <= 0)
    return ends[np.unique(np.round(ends / (0.1 * step)), axis=0, return_index=True)[1]]


def reachable(case: Case, t: Parameters, centre: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Where mass of an atom may go: the grid; or points along rays, where ways are bounded or lead along an axis."""
    kind = case.set
    assert kind.ball is not None
    bounded = np.isinf(kind.ball[1])
    if not (bounded or kind.fixed):
        return grid
    angles = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], -1)
    if kind.fixed:
        directions = np.delete(np.concatenate([np.eye(2), -np.eye(2)]), [k for i in kind.fixed for k in (i, i + 2)], 0)
    steps = np.linspace(0.0, 1.0, 21)
    if bounded:
        directions = directions * (t["radius"] / kind.lengths(t, directions))[:, None]
    else:
        steps = np.concatenate([np.linspace(0.0, 4.0, 801), np.geomspace(4.0, FAR, 60)])
    return _within((directions[:, None] * steps[:, None]).reshape(-1, 2), lambda y: case.support.excess(y) <= 0, centre)


def _within(rays: np.ndarray, inside: Callable[[np.ndarray], np.ndarray], centre: np.ndarray = CENTRE) -> np.ndarray:
    """Where each ray from a point inside ends: at its own end, or at the last point inside."""
    near, far = np.zeros(len(rays)), np.ones(len(rays))
    whole = inside(centre + rays)
    for _ in range(50):
        middle = (near + far) / 2
        fits = inside(centre + middle[:, None] * rays)
        near, far = np.where(fits, middle, near), np.where(fits, far, middle)
    return centre + np.where(whole, 1.0, near)[:, None] * rays


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
    if case.set.covariance:
        # Not so many points, since the program is semidefinite.
        grid = grid[np.linalg.norm(grid - CENTRE, axis=1) < 30.0]
        xi, p = (grid - t["mu"]) @ np.linalg.inv(t["factor"]).T, cp.Variable(len(grid), nonneg=True)
        products = np.stack([xi[:, i] * xi[:, j] for i in range(2) for j in range(2)])
        second = cp.reshape(products @ p, (2, 2), order="C")
        rows = [cp.norm(xi.T @ p) <= t["gamma1"] ** 0.5, t["gamma2"] * np.eye(2) - second >> 0, cp.sum(p) == 1]
        return float(cp.Problem(cp.Maximize(case.cost.value(x, grid) @ p), rows).solve(solver=cp.CLARABEL))
    gauge = case.set.gauge
    if gauge is not None:
        # The largest cost of any outcome.
        return float(case.cost.value(x, _within(grid - CENTRE, lambda y: gauge(t, y) <= 1)).max())
    if case.set.ball is None:
        assert case.set.moments is not None
        assert case.set.sigma is not None
        cost, used, bounds = case.cost.value(x, grid), case.set.moments(t, grid).T, case.set.sigma(t)
        sums, weights = np.ones((1, len(grid))), np.ones(1)
    else:
        assert nominal is not None
        centres, weights = (part[item].numpy() for part in nominal)
        near = [reachable(case, t, centre, np.concatenate([grid, centres])) for centre in centres]
        cost = case.cost.value(x, np.concatenate(near))
        order = case.set.ball[1]
        lengths = [case.set.lengths(t, points - centre) for points, centre in zip(near, centres, strict=True)]
        used, bounds = np.concatenate(lengths)[None], np.array([t["radius"]])
        if np.isinf(order):
            assert used.max() <= bounds[0] * (1 + 1e-9)
            used = np.zeros_like(used)
        else:
            used, bounds = used**order, bounds**order
        origin = np.repeat(np.arange(len(centres)), [len(points) for points in near])
        sums = (origin == np.arange(len(centres))[:, None]).astype(float)
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
