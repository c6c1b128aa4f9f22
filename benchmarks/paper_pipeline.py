"""The paper's pipeline for the mixed-integer portfolio, as a peer: cvxpylayers with its default solver, and SCIP.

The projection layer has the published objective, 5‖μ - μ'‖ + ‖σ - σ'‖; the DRO layer is the dual as the paper writes it
out, solved at S points an item; SCIP solves the same dual T times with no-good cuts, at its default tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

from conelayers import compile_program
from conelayers.oracles import SCIP

STAGES = ("learning", "projection", "integer", "layer", "backward")


class Stopwatch:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.seconds = clock, dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what happens inside to a stage."""
        start = self.clock()
        yield
        self.seconds[name] += self.clock() - start


def _groups(assets: int, group: int) -> np.ndarray:
    """Which assets share a bound, as a matrix (bounds, assets)."""
    return np.kron(np.eye(assets // group), np.ones((1, group)))


def published_projection(assets: int, group: int, neighbours: int) -> CvxpyLayer:
    """The projection layer of the published portfolio."""
    bounds = assets // group
    mu, sigma = cp.Variable(assets), cp.Variable(bounds)
    mu0, sigma0, atoms = cp.Parameter(assets), cp.Parameter(bounds), cp.Parameter((neighbours, assets))
    deviation = atoms - np.ones((neighbours, 1)) @ cp.reshape(mu, (1, assets), order="C")
    spread = cp.sum(cp.square(deviation), axis=0) / neighbours
    constraints = [_groups(assets, group) @ spread <= sigma]
    objective = cp.Minimize(5 * cp.norm(mu - mu0) + cp.norm(sigma - sigma0))
    return CvxpyLayer(cp.Problem(objective, constraints), parameters=[mu0, sigma0, atoms], variables=[mu, sigma])


def written_out(
    assets: int, group: int, lots: Any, free: cp.Variable, mu: cp.Parameter, sigma: cp.Parameter
) -> cp.Problem:
    """The dual as the paper writes it, for one lifted variable u a bound.

    ‖y_I - μ_I‖² ≤ u is (u + 1, u - 1, 2y_I - 2μ_I) in a cone, with multiplier η.
    """
    bounds = assets // group
    x = cp.hstack([lots / assets, free])
    r, beta = cp.Variable(), cp.Variable(bounds, nonneg=True)
    first, second, rest = cp.Variable(bounds), cp.Variable(bounds), cp.Variable(assets)
    columns = [cp.reshape(second, (1, bounds), order="F"), cp.reshape(rest, (group, bounds), order="F")]
    constraints = [
        r >= cp.sum(first - second) - 2 * (mu @ rest),
        2 * rest == x,
        first + second == beta,
        cp.SOC(first, cp.vstack(columns), axis=0),
        cp.sum(x) == 1,
    ]
    return cp.Problem(cp.Minimize(r + sigma @ beta), constraints)


def run_paper_pipeline(
    raw: Tensor,
    atoms: Tensor,
    returns: Tensor,
    watch: Stopwatch,
    *,
    group: int = 1,
    candidates: int = 3,
    samples: int = 4,
    time_limit: float | None = None,
) -> None:
    """A step on a few items; compiling is not timed.

    Args:
        raw: θ before the projection, ``(items, assets + bounds)``.
        atoms: neighbours, ``(items, neighbours, assets)``.
        returns: outcomes.
        watch: takes the seconds.
        group: assets that share a bound.
        candidates: T.
        samples: S.
        time_limit: of every call of SCIP; what it would have taken beyond is not counted.
    """
    items, assets = returns.shape
    lots = assets // 5
    layer = published_projection(assets, group, atoms.shape[1])
    free = cp.Variable(assets - lots, nonneg=True)
    mu, sigma, fixed = cp.Parameter(assets), cp.Parameter(assets // group, nonneg=True), cp.Parameter(lots)
    dual = written_out(assets, group, fixed, free, mu, sigma)
    dro_layer = CvxpyLayer(dual, parameters=[fixed, mu, sigma], variables=[free])
    micp = compile_program(written_out(assets, group, cp.Variable(lots, boolean=True), free, mu, sigma), [mu, sigma])
    oracle = SCIP(tolerance=1e-6, jobs=1, time_limit=time_limit)
    rng = np.random.default_rng(0)

    raw = raw.detach().requires_grad_(True)
    with watch.stage("projection"):
        means, bounds = layer(raw[:, :assets], raw[:, assets:], atoms)
    with watch.stage("integer"):
        found = oracle.best(micp, micp.values(torch.cat([means, bounds.clamp(min=0)], 1).detach()), candidates)
    # S draws an item, half of them among the best: which ones makes no difference to the time.
    points = torch.as_tensor(rng.integers(0, 2, (items, samples, lots)), dtype=torch.float64)
    half = min(samples // 2, found.points.shape[1])
    points[:, :half] = found.points[:, :half].nan_to_num()
    with watch.stage("layer"):
        index = torch.arange(items).repeat_interleave(samples)
        (held,) = dro_layer(points.reshape(-1, lots), means[index], bounds[index].clamp(min=1e-12))
        loss = -(held * returns[index, lots:]).sum()
    with watch.stage("backward"):
        loss.backward()
