from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

import drolayers as dro
from research.problems import Newsvendor

Z = np.array([[0.05], [0.2], [0.37], [0.6], [0.93]])


def test_draws_have_the_stated_distribution() -> None:
    made = Newsvendor("SOC-I")
    contexts, demands = made.draw(200_000, np.random.default_rng(0))
    assert contexts.min() >= 0
    assert contexts.max() <= 1
    mean, deviation = made.conditional(contexts)
    scaled = (demands - mean) / deviation
    np.testing.assert_allclose(scaled.mean(0), 0.0, atol=0.01)
    np.testing.assert_allclose(scaled.std(0), 1.0, atol=0.01)
    np.testing.assert_allclose(np.corrcoef(scaled.T), np.eye(4), atol=0.01)
    np.testing.assert_allclose(made.conditional(np.array([[0.2]]))[0][0], [8.0, 11.24, 14.96, 19.16])
    assert made.conditional(np.array([[0.2]]))[1][0, 0] == 1.0
    again = made.draw(5, np.random.default_rng(0))[1], made.draw(5, np.random.default_rng(0))[1]
    np.testing.assert_array_equal(*again)


def test_the_expected_cost_is_the_mean_of_the_loss() -> None:
    made = Newsvendor("SOC-II")
    rng = np.random.default_rng(1)
    retail, wholesale = rng.uniform(0, 10, (1, 4)), np.array([[1.0, 0.0, 1.0, 0.0]])
    mean, deviation = made.conditional(Z[:1])
    demands = mean + deviation * rng.standard_normal((400_000, 4))
    decision = {made.retail: torch.as_tensor(retail), made.wholesale: torch.as_tensor(wholesale)}
    sampled = made.problem.loss(decision, torch.as_tensor(demands)).mean()
    assert made.expected_cost(Z[:1], retail, wholesale)[0] == pytest.approx(float(sampled), rel=1e-3)


def test_the_optimum_against_brute_force() -> None:
    made = Newsvendor("SOC-II")
    retail, wholesale = made.optimal(Z)
    best = made.expected_cost(Z, retail, wholesale)
    for row, z in enumerate(Z):
        total = 0.0
        for item in range(4):

            def cost(amount: float, lot: float, item: int = item, z: np.ndarray = z) -> float:
                bought, lots = np.zeros((1, 4)), np.zeros((1, 4))
                bought[0, item], lots[0, item] = amount, lot
                # Costs add up over items, so the others cancel in a comparison with buying nothing.
                nothing = made.expected_cost(z[None], np.zeros((1, 4)), np.zeros((1, 4)))[0]
                return float(made.expected_cost(z[None], bought, lots)[0] - nothing)

            options = {"xatol": 1e-9}
            found = [minimize_scalar(cost, (0, 40), (0, 40), (lot,), "bounded", options=options) for lot in (0.0, 1.0)]
            corners = [cost(0.0, lot) for lot in (0.0, 1.0)]
            total += min(*(float(f.fun) for f in found), *corners)
        nothing = made.expected_cost(z[None], np.zeros((1, 4)), np.zeros((1, 4)))[0]
        assert best[row] == pytest.approx(nothing + total, abs=1e-7)


@pytest.mark.parametrize("name", ["SOC-I", "SOC-II", "SOC-III"])
def test_the_benchmark_knows_the_true_moments(name) -> None:
    made = Newsvendor(name)
    theta = made.problem.ambiguity.unpack(made.full_knowledge(Z))
    mean, deviation = made.conditional(Z)
    demands = mean[:, None] + deviation[:, None] * np.random.default_rng(0).standard_normal((5, 100_000, 4))
    moments = {"SOC-I": ["first"], "SOC-II": ["second"], "SOC-III": ["first", "second"]}[name]
    true = {
        "first": np.abs(demands - mean[:, None]).sum(2).mean(1),
        "second": ((demands - mean[:, None]) ** 2).sum(2).mean(1),
    }
    for position, moment in enumerate(moments):
        np.testing.assert_allclose(theta[f"{position}.mu"], mean)
        np.testing.assert_allclose(theta[f"{position}.sigma"], true[moment], rtol=0.01)
    retail, wholesale = made.benchmark(Z)
    gap = made.expected_cost(Z, retail, wholesale) / made.expected_cost(Z, *made.optimal(Z)) - 1
    assert (gap > 0).all()
    assert (gap < 0.1).all()
    assert set(np.unique(wholesale)) <= {0.0, 1.0}


def test_mean_cost_and_unknown_sets() -> None:
    made = Newsvendor("SOC-I")

    def cost(z: float) -> float:
        return float(made.expected_cost(np.array([[z]]), *made.optimal(np.array([[z]])))[0])

    # Means and deviations have their kinks at the centres.
    pieces = [quad(cost, a, b, epsrel=1e-7)[0] for a, b in itertools.pairwise((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))]
    assert made.mean_cost(made.optimal, 1000) == pytest.approx(sum(pieces), rel=1e-6)
    with pytest.raises(dro.ModelError, match="SOC-IV"):
        Newsvendor("SOC-IV")  # type: ignore[arg-type]


def test_a_risk_of_the_cost() -> None:
    """The loss is τ + (cost - τ)⁺/(1 - level) at the τ that was decided; its worst case is above that of the mean."""
    averse, neutral = Newsvendor("SOC-II", risk=0.8), Newsvendor("SOC-II")
    theta = neutral.full_knowledge(Z)
    cautious, usual = (dro.DROLayer(built.problem).eval()(theta) for built in (averse, neutral))
    assert bool((cautious.value > usual.value).all())
    (tau,) = set(averse.problem.variables) - {averse.retail, averse.wholesale}
    retail, wholesale, level = (cautious.best[v] for v in (averse.retail, averse.wholesale, tau))
    demand = torch.as_tensor(averse.conditional(Z)[0])
    cost = torch.as_tensor(averse.realised_cost(retail.numpy(), wholesale.numpy(), demand.numpy()))
    expected = level.reshape(-1) + (cost - level.reshape(-1)).clamp(min=0.0) / 0.2
    torch.testing.assert_close(averse.problem.loss(cautious.best, demand), expected)


@pytest.mark.parametrize("risk", [0.0, 1.0, float("nan"), "high", [0.9, 0.95]])
def test_a_risk_that_is_no_level(risk) -> None:
    with pytest.raises(dro.ModelError, match=r"level must be one number|between 0 and 1"):
        Newsvendor(risk=risk)
