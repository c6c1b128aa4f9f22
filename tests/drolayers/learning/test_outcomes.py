"""Outcome sets that are calibrated: coverage over draws, for every shape."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from tests.drolayers.learning.small import learner
from tests.drolayers.learning.test_calibration import draw


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["ellipsoid", "covariance"])
def test_fitted_shapes_of_correlated_outcomes_are_as_likely_as_one_shape_for_all(kind: str, seed: int) -> None:
    """Where outcomes hardly move in some directions, factors that come near singular ones are off by thousands."""
    rng, dim, count = np.random.default_rng(seed), 8, 200
    root = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * np.geomspace(1.0, 1e-2, dim)
    Z = rng.standard_normal((count + 500, 3))
    Y = Z @ rng.standard_normal((3, dim)) + rng.standard_normal((count + 500, dim)) @ root.T
    y, x = dro.Uncertain(dim), cp.Variable(dim)
    ambiguity = dro.Outcomes(y, "ellipsoid") if kind == "ellipsoid" else dro.MeanCovariance(y)
    problem = dro.DecisionProblem(y @ x + cp.sum_squares(x), [], ambiguity)
    trainer = dro.Trainer(progress=False)
    network = dro.Network(extrapolate=True)
    model = dro.DecisionFocusedLearner(problem, network, training=None, projection=None, trainer=trainer, seed=seed)
    model.fit(Z[:count], Y[:count])
    fresh = torch.as_tensor(Y[count:])
    with torch.no_grad():
        theta = model.pipeline_.theta(torch.as_tensor(Z[count:]))
        u, size = ambiguity.whitened(theta, fresh[:, None])
        parts = ambiguity.values(theta)
    assert bool((parts["factor"].diagonal(dim1=1, dim2=2) > 0).all())
    assert not bool(parts["factor"].triu(1).any())
    # The best shape for all of these rows, around the same centres; it holds a normal distribution in units of u.
    left = fresh - parts[ambiguity.location]
    unit = ambiguity.whitened(theta[:1], parts[ambiguity.location][:1, None] + parts["factor"][:1, :, :1].mT)[0].norm()
    likely = 0.5 * dim + 0.5 * torch.linalg.slogdet(left.T @ left / len(left)).logabsdet + dim * unit.log()
    assert float((0.5 * u.square().sum(2)[:, 0] + size).mean()) < float(likely) + dim
