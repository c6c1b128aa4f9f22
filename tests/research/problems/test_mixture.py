"""The synthetic portfolio of Yeh et al.: published draws, and the mean that its features tell of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import drolayers as dro
from research.problems import mixture


def test_the_published_best_returns_in_hindsight() -> None:
    """-1.933641 with deviation 0.084673 over seeds 0 to 9 (analysis/final_fig_arxiv.ipynb of e2e-conformal)."""
    best = []
    for seed in range(10):
        split, mean, deviation = mixture.returns(seed)
        assert [len(part[0]) for part in (split.training, split.calibration, split.test)] == [600, 400, 1000]
        best.append(-(split.test[1] * deviation + mean).max(1).mean())
    assert np.mean(best) == pytest.approx(-1.933641, abs=1e-6)
    assert np.std(best, ddof=1) == pytest.approx(0.084673, abs=1e-6)


def test_the_root_is_one_of_the_covariance() -> None:
    root = mixture.square_root()
    np.testing.assert_allclose(root.T @ root, mixture.covariance(), atol=1e-12)


def test_the_conditional_mean_by_integration() -> None:
    """E[y | x] by a sum over a fine grid of both returns, with the densities written out."""
    x = np.array([2.0, -1.0])
    grid = np.stack(np.meshgrid(*[np.linspace(-12.0, 17.0, 400)] * 2, indexing="ij"), -1).reshape(-1, 2)
    density = np.zeros(len(grid))
    for share, mean, scale in mixture.parts():
        gap = np.concatenate([grid, np.broadcast_to(x, grid.shape)], 1) - mean
        C = scale * mixture.covariance()
        exponent = -0.5 * (gap @ np.linalg.inv(C) * gap).sum(1)
        density += share * np.exp(exponent) / np.sqrt(np.linalg.det(C))
    expected = density @ grid / density.sum()
    np.testing.assert_allclose(mixture.conditional_mean(x[None])[0], expected, atol=1e-8)


def test_the_worst_case_of_a_box_is_that_of_its_lower_ends() -> None:
    """All money goes to the asset whose lower end is best, in the units of the returns."""
    _, mean, deviation = mixture.returns(0)
    problem = mixture.investing(mean, deviation, lambda y: dro.Outcomes(y, "box"))
    theta = torch.tensor([[0.3, -0.2, 0.5, 0.1], [1.0, 0.0, 0.2, 2.0]], dtype=torch.float64)
    lower = mean + deviation * (theta[:, :2] - theta[:, 2:]).numpy()
    np.testing.assert_allclose(problem.solve(theta).objective.numpy(), -lower.max(1), rtol=1e-7)
