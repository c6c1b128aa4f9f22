"""Outcome sets that are calibrated: coverage over draws, for every shape."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import drolayers as dro
from tests.learning.small import learner
from tests.learning.test_calibration import draw


@pytest.mark.skipif(not hasattr(dro, "Outcomes"), reason="needs dro.Outcomes")
@pytest.mark.parametrize("shape", ["box", "ellipsoid", "budget"])
def test_coverage_over_draws(shape: str) -> None:
    """Of 39 scores the 36th: a new outcome is covered with probability 0.9, on average over draws."""
    y, x = dro.Uncertain(2), cp.Variable(2, name="x")
    problem = dro.DecisionProblem(-(y @ x), [cp.norm(x, 1) <= 1], dro.Outcomes(y, shape))
    model = learner(problem, projection=None, pretraining__epochs=5, training=None).fit(*draw(60, 0))
    fresh, found = draw(300, 1), []
    for k in range(50):
        model.calibrate(*draw(39, [2, k]), coverage=0.9)
        found.append(model.coverage(*fresh).rate)
    # Of one draw, coverage is Beta(36, 4); and the fresh data are finite.
    error = np.sqrt(0.9 * 0.1 / 41 / 50 + 0.9 * 0.1 / 300)
    assert abs(np.mean(found) - 0.9) < 3 * error
    assert model.disappointment(*fresh).share.rate <= 1.0 - model.coverage(*fresh).rate + 1e-9
    trained = learner(problem, projection=None, training=dro.Stage(epochs=2, batch_size=20, coverage=0.9))
    trained.fit(*draw(80, 0), calibration_share=0.3)
    assert trained.calibration_.by == "coverage"
