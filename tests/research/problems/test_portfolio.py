from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from research.problems import Portfolio, PortfolioData


@pytest.mark.parametrize(
    ("assets", "free", "mixed", "equal"),
    [(20, 0.804, 0.781, 0.023), (40, 0.900, 0.890, 0.030), (60, 0.961, 0.934, 0.030)],
)
def test_the_published_returns(assets: int, free: float, mixed: float, equal: float) -> None:
    """Scores (ten times the realised mean return on the 1,000 test points) computed from the authors' own recipe."""
    test = PortfolioData.generate(assets).split(2500, 500, 1000)[2]
    rows = np.arange(1000)
    assert 10 * test.Y[rows, test.mean.argmax(1)].mean() == pytest.approx(free, abs=5e-4)
    assert 10 * test.Y.mean() == pytest.approx(equal, abs=5e-4)
    portfolio_binaries = assets // 5
    best = portfolio_binaries + test.mean[:, portfolio_binaries:].argmax(1)
    lots = test.mean[:, :portfolio_binaries] > test.mean[rows, best][:, None]
    left = 1.0 - lots.sum(1) / assets
    realised = (lots * test.Y[:, :portfolio_binaries]).sum(1) / assets + left * test.Y[rows, best]
    assert 10 * realised.mean() == pytest.approx(mixed, abs=5e-4)
    np.testing.assert_allclose(test.Z.std(0), 0.2, rtol=0.1)


def test_the_best_return_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((20, 6))
    portfolio = Portfolio(6, binaries=3)
    for row, expected in zip(mean, portfolio.best_return(mean), strict=True):
        found = max(
            sum(row[:3] * lots) / 6 + (1 - sum(lots) / 6) * row[3:].max()
            for lots in itertools.product((0, 1), repeat=3)
        )
        assert expected == pytest.approx(found)


@pytest.mark.parametrize("binaries", [0, 2])
def test_known_means_without_deviation_give_the_best_portfolio(binaries: int) -> None:
    portfolio = Portfolio(6, binaries, group=2)
    mean = np.random.default_rng(1).standard_normal((4, 6))
    theta = {"mu": torch.as_tensor(mean), "sigma": torch.full((4, 3), 1e-10, dtype=torch.float64)}
    decision = dro.DROLayer(portfolio.problem).eval()(theta)
    weights = portfolio.weights({v: x.numpy() for v, x in decision.best.items()})
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-7)
    assert (weights > -1e-7).all()
    np.testing.assert_allclose((weights * mean).sum(1), portfolio.best_return(mean), atol=1e-4)


def test_the_worst_tail_in_closed_form() -> None:
    """Under E‖y - μ‖² ≤ σ the worst CVaR of -yᵀw is -μᵀw + ‖w‖√(σ/(1 - level)): all deviation goes into the tail."""
    level, mean, sigma = 0.9, np.array([0.3, 0.1, 0.25]), 0.02
    portfolio = Portfolio(3, group=3, risk=level)
    theta = {"mu": torch.as_tensor(mean)[None], "sigma": torch.tensor([[sigma]], dtype=torch.float64)}
    decision = dro.DROLayer(portfolio.problem).eval()(theta)
    w = cp.Variable(3, nonneg=True)
    tail = -mean @ w + np.sqrt(sigma / (1.0 - level)) * cp.norm(w)
    best = cp.Problem(cp.Minimize(tail), [cp.sum(w) == 1]).solve(solver=cp.CLARABEL)
    assert float(decision.value) == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(
        portfolio.weights({v: x.numpy() for v, x in decision.best.items()})[0], w.value, atol=1e-4
    )


def test_splits_and_refusals() -> None:
    data = PortfolioData.generate(3, 10)
    first, second = data.split(4, 6)
    np.testing.assert_array_equal(np.concatenate([first.Y, second.Y]), data.Y)
    with pytest.raises(dro.ModelError, match="11 points"):
        data.split(5, 6)
    with pytest.raises(dro.ModelError, match="7 binary"):
        Portfolio(6, 7)
