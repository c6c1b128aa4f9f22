"""A portfolio of two assets whose returns, with two features, are a mixture of normal distributions (Yeh et al.).

Data and protocol are the "synthetic" ones of the repository chrisyeh96/e2e-conformal (MIT licence; Yeh et al.,
*End-to-End Conformal Calibration for Optimization Under Uncertainty*, portfolio/synthetic.py and
portfolio/__init__.py), which takes them from Chenreddy and Delage. Returns and features (y, x) are normal around 0 with
probability φ = 0.7; otherwise around (0, 5, 5, 0), with covariances times α = 0.9 or divided by it, of probabilities as
1 to α.

Draws are those behind the published figures: the best returns in hindsight over seeds 0 to 9 are theirs to all
published digits, 1.933641 with deviation 0.084673. Their code draws by ``multivariate_normal``, which leaves the signs
of eigenvectors to the machine; ``SIGNS`` are those of theirs, the only ones of sixteen with these two figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

import drolayers as dro
from research.problems.split import Split

Array = NDArray[np.float64]

ASSETS = 2
TRAINING, CALIBRATION, TEST = 600, 400, 1000
CENTRE_SHARE, RATIO = 0.7, 0.9
"""φ and α."""
SIGNS = (1, -1, -1, 1)
"""Of the largest entry of every eigenvector of the covariance, from the largest eigenvalue to the smallest."""


def parts() -> list[tuple[float, Array, float]]:
    """Probability, mean and what the covariance is multiplied by, of the three normal distributions."""
    shifted, rest = np.array([0.0, 5.0, 5.0, 0.0]), (1 - CENTRE_SHARE) / (1 + RATIO)
    return [(CENTRE_SHARE, np.zeros(4), 1.0), (rest, shifted, RATIO), (rest * RATIO, shifted, 1.0 / RATIO)]


def draws(seed: int) -> tuple[Array, Array]:
    """Features and returns of 2,000 points, in the published order."""
    rng, count, root = np.random.RandomState(seed), TRAINING + CALIBRATION + TEST, square_root()
    # One uniform number a point decides of how many points each part has; every part is drawn as often as it could be.
    edges = np.cumsum([share for share, _, _ in parts()])[:-1]
    sizes = np.bincount(np.searchsorted(edges, rng.rand(count)), minlength=3)
    drawn = [
        (mean + np.sqrt(scale) * rng.standard_normal((count, 4)) @ root)[:size]
        for (_, mean, scale), size in zip(parts(), sizes, strict=True)
    ]
    points = np.concatenate(drawn)
    rng.shuffle(points)
    return points[:, ASSETS:], points[:, :ASSETS]


def covariance() -> Array:
    """Of two returns and two features: the first feature goes with the first return, and with the second feature."""
    variances, correlation, spread = np.array([1.0, 1.5]), 0.3, 2.0
    shared = correlation * np.sqrt(variances.prod())
    found = np.diag(np.concatenate([variances, spread * variances]))
    found[0, 2] = found[2, 0] = shared
    found[2, 3] = found[3, 2] = spread * shared
    return found


def square_root() -> Array:
    """R with R'R the covariance, its rows along eigenvectors."""
    values, vectors = np.linalg.eigh(covariance())
    values, rows = values[::-1], vectors.T[::-1]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
    return np.sqrt(values)[:, None] * rows * np.sign(largest) * np.array(SIGNS)[:, None]


def conditional_mean(Z: Array) -> Array:
    """Of both returns, given the features: what every part expects, weighted by how likely the features are in it."""
    C = covariance()
    within, across = C[ASSETS:, ASSETS:], C[ASSETS:, :ASSETS]
    densities, means = [], []
    for share, mean, scale in parts():
        gap = Z - mean[ASSETS:]
        slope = np.linalg.solve(within, gap.T).T
        densities.append(share / scale * np.exp(-0.5 / scale * (slope * gap).sum(1)))
        means.append(mean[:ASSETS] + slope @ across)
    weights = np.stack(densities) / np.sum(densities, 0)
    return np.einsum("kn,kna->na", weights, np.stack(means))


def returns(seed: int) -> tuple[Split, Array, Array]:
    """Standardised returns in the published parts, and the mean and deviation of all of them."""
    X, Y = draws(seed)
    mean, deviation = Y.mean(0), Y.std(0, ddof=1)
    Y, ends = (Y - mean) / deviation, np.cumsum([TRAINING, CALIBRATION])
    split = Split(*zip(np.split(X, ends), np.split(Y, ends), strict=True))
    return split, mean, deviation


def investing(mean: Array, deviation: Array, ambiguity: Callable[[dro.Uncertain], Any]) -> dro.DecisionProblem:
    """All money in assets, none of them sold short, for the largest return; in standardised returns."""
    y, x = dro.Uncertain(ASSETS), cp.Variable(ASSETS, nonneg=True, name="invested")
    return dro.DecisionProblem(-(cp.multiply(deviation, y) + mean) @ x, [cp.sum(x) == 1], ambiguity(y))
