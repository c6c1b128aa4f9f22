from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from research.baselines import CostaIyengar
from research.baselines.hellinger import HellingerPortfolio
from research.baselines.hellinger_smooth import Data, interior_point, objective
from research.problems import Portfolio, PortfolioData
from tests.drolayers.baselines.problems import Shop, sales

ASSETS, SCENARIOS, BATCH = 4, 12, 5


def instance(seed: int = 0, delta: float = 0.15) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    scenarios = 0.03 * rng.standard_normal((SCENARIOS, ASSETS)) * np.array([1.0, 1.2, 0.8, 1.5])
    reward = 6e-4 * rng.standard_normal((BATCH, ASSETS))
    return torch.as_tensor(scenarios), torch.as_tensor(reward), torch.tensor(delta, dtype=torch.float64)


def worst_variance(returns: np.ndarray, delta: float) -> float:
    """The largest variance over the ball itself, by a maximisation over p: it is concave in p."""
    T = len(returns)
    p = cp.Variable(T, nonneg=True)
    # Σ (√(Tp) - 1)² / T = 2 - 2 Σ √(p/T), which is convex in p.
    ball = 2.0 - 2.0 * cp.sum(cp.sqrt(p)) / np.sqrt(T) <= delta
    scale = np.abs(returns).max()
    r = returns / scale
    problem = cp.Problem(cp.Maximize(p @ r**2 - cp.square(p @ r)), [ball, cp.sum(p) == 1])
    return float(problem.solve(solver=cp.CLARABEL)) * scale**2


@pytest.mark.parametrize("delta", [1e-6, 0.02, 0.15, 0.8])
def test_the_value_is_that_of_the_primal(delta: float) -> None:
    scenarios, reward, size = instance(delta=delta)
    found = HellingerPortfolio(ASSETS, SCENARIOS)(scenarios, reward, size)
    assert bool(found.ok.all())
    np.testing.assert_allclose(found.weights.sum(1), 1.0, atol=1e-8)
    assert float(found.weights.min()) > -1e-8
    for item in range(BATCH):
        x, g = found.weights[item].numpy(), reward[item].numpy()
        primal = worst_variance(scenarios.numpy() @ x, delta) - g @ x
        assert float(found.value[item]) == pytest.approx(primal, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("delta", [1e-6, 0.02, 0.15, 0.8])
@pytest.mark.parametrize("appetite", [0.1, 1.0, 50.0])
def test_both_routes_agree(delta: float, appetite: float) -> None:
    for seed in range(3):
        scenarios, reward, size = instance(seed, delta)
        smooth, cone = (
            HellingerPortfolio(ASSETS, SCENARIOS, route=route)(scenarios, appetite * reward, size)
            for route in ("smooth", "cone")
        )
        np.testing.assert_allclose(smooth.value, cone.value, rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(smooth.weights, cone.weights, atol=1e-3)


@pytest.mark.parametrize("delta", [1e-5, 0.02, 0.2, 0.6])
def test_the_smooth_route_finishes_and_is_stationary(delta: float) -> None:
    """At the solution ∂G/∂c = ∂G/∂ξ = ∂G/∂λ = 0, and the reduced costs of assets that are held are equal."""
    rng = np.random.default_rng(0)
    scenarios, reward = torch.as_tensor(rng.standard_normal((40, 8))), torch.as_tensor(rng.standard_normal((30, 8)))
    data = Data(scenarios, reward, torch.tensor(delta, dtype=torch.float64).sqrt())
    point, solved = interior_point(data)
    assert bool(solved.all())
    _, gradient = objective(point, data)
    assert float(gradient[:, 8:].abs().max()) < 1e-7
    excess = gradient[:, :8] - gradient[:, :8].amin(1, keepdim=True)
    assert float((excess * point.x).max()) < 1e-7
    # The multipliers are the best for this portfolio: the distribution they stand for lies on the ball's surface.
    r = point.x @ scenarios.T - point.c[:, None]
    u = point.lam[:, None] - data.rho * (r.square() - point.xi[:, None])
    p = (point.lam[:, None] / u).square() / 40
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-7)
    np.testing.assert_allclose(((40 * p).sqrt() - 1).square().mean(1), delta, rtol=1e-5)
    np.testing.assert_allclose(
        (p * r.square()).sum(1) - (reward * point.x).sum(1), objective(point, data)[0], atol=1e-7
    )


def test_no_other_portfolio_is_better() -> None:
    scenarios, reward, delta = instance(1)
    found = HellingerPortfolio(ASSETS, SCENARIOS)(scenarios, reward, delta)
    for x in np.random.default_rng(2).dirichlet(np.ones(ASSETS), 15):
        value = worst_variance(scenarios.numpy() @ x, float(delta)) - float(reward[0].numpy() @ x)
        assert value >= float(found.value[0]) - 1e-9


def test_a_ball_of_size_zero_leaves_the_sample_variance() -> None:
    scenarios, reward, _ = instance()
    found = HellingerPortfolio(ASSETS, SCENARIOS)(scenarios, reward, torch.tensor(1e-12, dtype=torch.float64))
    returns = found.weights.numpy() @ scenarios.numpy().T
    expected = returns.var(1) - (reward.numpy() * found.weights.numpy()).sum(1)
    np.testing.assert_allclose(found.value, expected, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found.centre, returns.mean(1), atol=1e-4)


def test_gradients_against_central_differences() -> None:
    scenarios, reward, delta = instance(3)
    program = HellingerPortfolio(ASSETS, SCENARIOS)
    inputs = [t.clone().requires_grad_() for t in (scenarios, reward, delta)]
    found = program(*inputs)
    # Away from kinks: an asset is held, or clearly not wanted.
    held = found.weights.detach()
    assert ((held > 1e-3) | (held < 1e-7)).all()
    assert ((held > 1e-3).sum(1) > 1).any()
    direction = torch.as_tensor(np.random.default_rng(0).standard_normal((BATCH, ASSETS)))
    for output in (lambda f: (f.weights * direction).sum(), lambda f: f.value.sum() * 1e3):
        exact = torch.autograd.grad(output(program(*inputs)), inputs)
        for k, gradient in enumerate(exact):
            move = torch.as_tensor(np.random.default_rng(k).standard_normal(tuple(inputs[k].shape)))
            step = 1e-4 * float(inputs[k].detach().abs().max())
            ends = [
                output(program(*(t.detach() + (s * step * move if i == k else 0.0) for i, t in enumerate(inputs))))
                for s in (1.0, -1.0)
            ]
            numeric = float(ends[0] - ends[1]) / (2 * step)
            assert float((gradient * move).sum()) == pytest.approx(numeric, rel=2e-3, abs=1e-5)


def test_gradients_are_those_of_the_cone_program() -> None:
    """Two routes, the reduced system here and the engine's derivative of all cones, agree."""
    scenarios, reward, delta = instance(4)
    program = HellingerPortfolio(ASSETS, SCENARIOS)
    reward = reward.requires_grad_()
    direction = torch.as_tensor(np.random.default_rng(0).standard_normal((BATCH, ASSETS)))
    (ours,) = torch.autograd.grad((program(scenarios, reward, delta).weights * direction).sum(), reward)
    unit = scenarios.square().mean().sqrt()
    shared = (scenarios / unit).reshape(1, -1).expand(BATCH, -1)
    theta = torch.cat([shared, reward / unit**2, delta.sqrt().expand(BATCH, 1)], 1)
    solved = program.engine.solve(program.program, theta).variable(program.x)
    (theirs,) = torch.autograd.grad((solved * direction).sum(), reward)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_training_improves_returns() -> None:
    data = PortfolioData.generate(6, 500)
    training, held_out, test = data.split(300, 100, 100)
    portfolio = Portfolio(6)
    settings = {"scenarios": 20, "epochs": 6, "batch_size": 100, "hidden": (12,), "gamma": 0.2}
    policy = CostaIyengar(portfolio.problem, **settings)
    policy.fit(training.Z, training.Y, (held_out.Z, held_out.Y))
    before, after = policy.history_[0]["validation"], min(row["validation"] for row in policy.history_)
    # Training loses -0.0003 to begin with and -0.009 in the end.
    assert after < before - 0.005
    weights = portfolio.weights(policy.decide(test.Z))
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-7)
    # Untrained it earns half of what equal weights do, trained three and a half times as much.
    assert (weights * test.mean).sum(1).mean() > 3.0 * test.mean.mean()
    assert 0 < float(policy.module_.delta.detach()) < policy.module_.largest
    again = CostaIyengar(portfolio.problem, **settings).fit(training.Z, training.Y, (held_out.Z, held_out.Y))
    np.testing.assert_array_equal(weights, portfolio.weights(again.decide(test.Z)))


def test_refusals() -> None:
    Z, Y = sales()
    y = dro.Uncertain(2)
    x = cp.Variable(2, nonneg=True)
    capped = dro.DecisionProblem(-(y @ x), [cp.sum(x) == 1, x <= 0.9], dro.MomentSet.grouped(y, 1))
    for problem in (Shop().problem, Portfolio(2, binaries=1).problem, capped):
        with pytest.raises(dro.ModelError, match="simplex"):
            CostaIyengar(problem).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="delta"):
        CostaIyengar(Portfolio(2).problem, delta=5.0).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="gamma"):
        CostaIyengar(Portfolio(2).problem, gamma=0.0).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="route"):
        HellingerPortfolio(2, 3, route="short")  # type: ignore[arg-type]
    with pytest.raises(dro.ShapeError, match="scenarios of shape"):
        HellingerPortfolio(2, 3)(torch.zeros(3, 3), torch.zeros(1, 2), torch.ones(()))
