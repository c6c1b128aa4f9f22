"""A battery that is charged and discharged over a day against uncertain prices (Yeh et al.).

The data are ``battery.npz`` of the repository chrisyeh96/e2e-conformal (MIT licence; Yeh et al., *End-to-End Conformal
Calibration for Optimization Under Uncertainty*): 101 features and 24 hourly prices of 2,189 days. They are not part of
this repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

import drolayers as dro
from conelayers.errors import ModelError
from research.problems.split import Split

Array = NDArray[np.float64]

HOURS = 24
TEST_SHARE, CALIBRATION_SHARE = 0.2, 0.2


class Battery:
    """The problem, in standardised prices.

    Args:
        mean: of the prices, hour by hour, in dollars.
        deviation: theirs.
        ambiguity: from the uncertain prices to the set.
    """

    def __init__(self, mean: Array, deviation: Array, ambiguity: Callable[[dro.Uncertain], Any]) -> None:
        y = dro.Uncertain(HOURS)
        self.charge, self.discharge = cp.Variable(HOURS, nonneg=True, name="in"), cp.Variable(HOURS, nonneg=True)
        self.state = cp.Variable(HOURS + 1, nonneg=True, name="state")
        bought = self.charge - self.discharge
        cost = (
            (cp.multiply(deviation, y) + mean) @ bought
            + 0.1 * cp.sum_squares(self.state - 0.5)
            + 0.05 * cp.sum_squares(self.charge)
            + 0.05 * cp.sum_squares(self.discharge)
        )
        constraints = [
            self.state[0] == 0.5,
            self.state[1:] == self.state[:-1] + 0.9 * self.charge - self.discharge,
            self.state <= 1.0,
            self.charge <= 0.5,
            self.discharge <= 0.2,
        ]
        self.problem = dro.DecisionProblem(cost, constraints, ambiguity(y))


def prices(path: str | Path) -> tuple[Array, Array, Array, Array]:
    """Features, standardised prices of all days, and the mean and deviation of every hour (of all days)."""
    try:
        with np.load(path) as stored:
            X, Y = (np.asarray(stored[name], dtype=np.float64) for name in ("X", "Y"))
    except (OSError, KeyError, ValueError) as error:
        raise ModelError(f"{path} is not battery.npz of chrisyeh96/e2e-conformal: {error}") from error
    mean, deviation = Y.mean(0), Y.std(0)
    return X, (Y - mean) / deviation, mean, deviation


def days(X: Array, Y: Array, shifted: bool, seed: int) -> Split:
    """The published split: the last fifth is for the test, and a fifth of the others, drawn, for calibration."""
    order = np.arange(len(X)) if shifted else np.random.default_rng(100).permutation(len(X))
    kept = int(len(X) * (1 - TEST_SHARE))
    known, test = order[:kept], order[kept:]
    drawn = np.random.default_rng(seed).permutation(known)
    held = int(len(known) * CALIBRATION_SHARE)
    return Split(*((X[rows], Y[rows]) for rows in (drawn[held:], drawn[:held], test)))
