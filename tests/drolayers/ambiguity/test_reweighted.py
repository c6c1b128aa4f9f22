"""Reweightings of the atoms: against the primal over probabilities, and what becomes of what is no reweighting."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import drolayers as dro
from conelayers import Derivative
from conelayers.engine.engine import MaskedGradientWarning
from drolayers import Status
from tests.drolayers.ambiguity.sets import PHI


def newsvendor(ambiguity: Any, dim: int = 3, **support: Any) -> tuple[dro.DecisionProblem, cp.Variable]:
    y, x = dro.Uncertain(dim, **support), cp.Variable(dim, nonneg=True)
    return dro.DecisionProblem(cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y)), [], ambiguity(y)), x


def atoms(batch: int, count: int, size: float = 1.0) -> dro.Nominal:
    """The first atom is padding."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 1.0, (batch, count))
    weights[:, 0] = 0.0
    weights /= weights.sum(1, keepdims=True)
    return dro.Nominal(torch.as_tensor(size * rng.uniform(0, 4, (batch, count, 3))), torch.as_tensor(weights))


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", PHI)
def test_the_dual_is_the_primal(kind: str, size: float) -> None:
    problem, x = newsvendor(lambda y: dro.Divergence(y, 7, kind), support=dro.support.Nonnegative())
    nominal, radius = atoms(2, 7, size), torch.tensor([[0.05], [0.3]]).double()
    solution = problem.solve(radius, nominal)
    assert bool(solution.ok.all())
    decision = {x: solution.variable(x).detach()}
    f = problem.worst_case_cost(decision, radius, nominal)
    torch.testing.assert_close(f, solution.objective, rtol=1e-6, atol=0.0)
    found = problem.worst_case_distribution(decision, radius, nominal)
    used, _ = problem.ambiguity.usage(radius, nominal, found.mass)
    for k in range(2):
        cost = problem.loss({x: decision[x][k].expand(7, -1)}, nominal.atoms[k]).numpy()
        weights, p = nominal.weights[k, 1:].numpy(), cp.Variable(6, nonneg=True)
        bound = weights @ PHI[kind](cp.multiply(1 / weights, p)) <= float(radius[k])
        best = cp.Problem(cp.Maximize(cost[1:] / size @ p), [cp.sum(p) == 1, bound]).solve(solver=cp.CLARABEL)
        assert float(f[k]) == pytest.approx(best * size, rel=1e-6)
        assert float((found.probabilities[k] * torch.as_tensor(cost)).sum()) == pytest.approx(float(f[k]), rel=1e-6)
        assert float(found.probabilities[k, 0]) == 0.0
        assert float(used[k]) <= float(radius[k]) * (1 + 1e-6)


def test_empirical_is_the_mean() -> None:
    problem, x = newsvendor(lambda y: dro.Empirical(y, 7))
    nominal, nothing = atoms(3, 7), torch.zeros(3, 0)
    decision = {x: torch.as_tensor(np.random.default_rng(1).uniform(0, 4, (3, 3)))}
    costs = problem.loss({x: decision[x].repeat_interleave(7, 0)}, nominal.atoms.flatten(0, 1)).reshape(3, 7)
    expected = (nominal.weights * costs).sum(1)
    torch.testing.assert_close(problem.worst_case_cost(decision, nothing.double(), nominal), expected)
    found = problem.worst_case_distribution(decision, nothing.double(), nominal)
    torch.testing.assert_close(found.probabilities, nominal.weights)
    # A ball that shrinks comes to it.
    for kind in PHI:
        ball, z = newsvendor(lambda y, kind=kind: dro.Divergence(y, 7, kind))
        value = ball.worst_case_cost({z: decision[x]}, torch.full((3, 1), 1e-5).double(), nominal)
        assert bool(((value >= expected) & (value <= 1.01 * expected)).all())


def test_atoms_outside_the_support_are_an_empty_set() -> None:
    """Padding may lie anywhere."""
    problem, _ = newsvendor(lambda y: dro.Divergence(y, 7), support=dro.support.Nonnegative())
    nominal, radius = atoms(3, 7), torch.tensor([[0.1], [0.1], [-0.1]]).double()
    moved = nominal.atoms.clone()
    moved[0, 0], moved[1, 1] = -1.0, -1.0
    solution = problem.solve(radius, (moved, nominal.weights))
    assert solution.statuses == [Status.OPTIMAL, Status.EMPTY_SET, Status.EMPTY_SET]


def test_second_stages_need_be_feasible_at_atoms_alone() -> None:
    """min g, g = 2 - y, g >= 0, on all of space: infeasible beyond 2, where no atom is."""
    y, x = dro.Uncertain(1), cp.Variable(nonneg=True)
    g = cp.Variable(nonneg=True)
    for method in ("vertices", "decision_rule"):
        cost = x + dro.recourse(cp.Minimize(g), [g == 2 - y[0] + x], method=method)
        problem = dro.DecisionProblem(cost, [], dro.Divergence(y, 2, "tv"))
        nominal = torch.tensor([[[0.0], [1.0]], [[0.0], [3.0]]]).double(), torch.full((2, 2), 0.5).double()
        solution = problem.solve(torch.tensor([[0.5], [0.5]]).double(), nominal)
        assert bool(solution.ok.all())
        # Half of the total variation moves a quarter: 3/4 of the mass at the lower atom.
        torch.testing.assert_close(solution.objective, torch.tensor([1.75, 2.0 + 1.25]).double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["chi2", "kl"])
def test_it_is_learnt(kind: str) -> None:
    from tests.drolayers.learning.small import assert_learnt, bets

    assert_learnt(*bets(lambda y: dro.Divergence(y, 20, kind)))


def whole_atoms() -> tuple[dro.DecisionProblem, cp.Variable, dro.Nominal]:
    """Two dependent stages over five atoms on a line; with a radius of 0.4 one of them is moved as a whole."""
    y, x = dro.Uncertain(2, support=dro.support.Box(np.zeros(2), np.full(2, 10.0))), cp.Variable(2)
    price = cp.Parameter(name="price")
    first = 3 + x[0] - y[0]
    second = first + x[1] - y[1]
    cost = 0.2 * cp.sum_squares(x) + price * cp.sum(x) + cp.maximum(2 * first, -5 * first)
    ambiguity = dro.Divergence(y, 5, kind="tv")
    problem = dro.DecisionProblem(cost + cp.maximum(second, -6 * second), [x >= 0, x <= 9], ambiguity)
    line = torch.tensor([1.0, 2.0, 3.0, 4.0, 4.5], dtype=torch.float64)
    nominal = dro.Nominal(line[None, :, None] * torch.tensor([1.0, 2.0]).double(), torch.full((1, 5), 0.2).double())
    return problem, x, nominal


@pytest.mark.parametrize("asked", [False, True])
def test_certificates_that_are_not_unique_leave_no_derivative_along_what_they_are_charged_by(asked: bool) -> None:
    """Total variation of two of five atoms' mass: the radius has a price from 6 to 8.5, and gradients followed it.

    By central differences the second decision moves by 8.75 on either side; 4.8 was returned, and called exact. Where
    no gradient of the radius is asked for, that of known data is what it is.
    """
    problem, x, nominal = whole_atoms()
    layer = dro.DROLayer(problem, gradient="exact")

    def decided(radius: torch.Tensor, paid: torch.Tensor) -> tuple[torch.Tensor, dro.Decision]:
        decision = layer(radius, nominal, known={"price": paid})
        return decision.best[x][0, 1], decision

    radius = torch.tensor([[0.4]], dtype=torch.float64, requires_grad=asked)
    paid = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    moved, decision = decided(radius, paid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedGradientWarning)
        moved.backward()
    ends = [decided(radius.detach(), paid.detach() + step)[0] for step in (1e-4, -1e-4)]
    right = float(ends[0] - ends[1]) / 2e-4
    if asked:
        assert [int(code) for code in decision.derivative.flatten()] == [Derivative.KINK]
        assert float(radius.grad.abs().max()) == float(paid.grad.abs().max()) == 0.0
    else:
        assert float(paid.grad) == pytest.approx(right, rel=1e-5, abs=1e-8)


def test_bad_settings_are_one_sentence() -> None:
    y = dro.Uncertain(2)
    with pytest.raises(dro.ModelError, match=r"one of the kinds \['kl', 'burg', 'chi2', 'tv', 'hellinger'\]"):
        dro.Divergence(y, 3, "l2")
    with pytest.raises(dro.ModelError, match="number of atoms of Empirical"):
        dro.Empirical(y, 0)
    problem, _ = newsvendor(lambda y: dro.Empirical(y, 7))
    with pytest.raises(dro.ModelError, match="no learnable parameters"):
        dro.DecisionFocusedLearner(problem).fit(np.zeros((9, 1)), np.ones((9, 3)))


def test_chi2_derivatives_where_atoms_lose_all_mass() -> None:
    """No row is active without a multiplier there, so that the batch finds its faces without help item by item."""
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], dro.Divergence(y, 12, "chi2"))
    rng = np.random.default_rng(0)
    nominal = torch.as_tensor(rng.normal(size=(10, 12, 3))), torch.full((10, 12), 1 / 12, dtype=torch.float64)
    radius = torch.full((10, 1), 1.5, dtype=torch.float64, requires_grad=True)
    solution = problem.solve(radius, nominal)
    chosen = solution.variable(x)
    worst = problem.worst_case_distribution({x: chosen.detach()}, radius.detach(), nominal)
    assert bool((worst.probabilities < 1e-7).any(1).all())
    (chosen * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert set(solution.derivative.tolist()) == {int(Derivative.FACE)}


@pytest.mark.parametrize("through", ["plainly", "checkpoint", "both"])
def test_kinks_are_told_behind_a_model_and_activation_checkpoints(through: str) -> None:
    """What a gradient is asked of is found upstream of the layer, where that is remembered; else it is a kink."""
    problem, x, nominal = whole_atoms()
    model = torch.nn.Linear(1, 1).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.constant_(model.bias, 0.4)
    layer, told = dro.DROLayer(problem, gradient="exact"), []

    def decided(z: torch.Tensor) -> torch.Tensor:
        radius = checkpoint(model, z, use_reentrant=False) if through == "checkpoint" else model(z)
        told.append(layer(radius, nominal, known={"price": torch.ones(1, dtype=torch.float64)}))
        return told[-1].best[x]

    z = torch.ones(1, 1, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedGradientWarning)
        out = checkpoint(decided, z, use_reentrant=False) if through == "both" else decided(z)
        out.sum().backward()
    assert any([int(code) for code in one.derivative.flatten()] == [Derivative.KINK] for one in told)
    assert model.bias.grad is not None
    assert float(model.bias.grad) == 0.0
