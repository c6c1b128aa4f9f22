"""Sets of other sizes: what a scale means, and which outcomes it takes in."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro

SLOPE = np.array([1.0, -2.0])
MOMENTS: dict[str, Callable[[], dro.moments.Moment]] = {
    "norm": lambda: dro.moments.Norm(1),
    "ellipsoid": lambda: dro.moments.Norm(2, A=np.array([[2.0, 1.0], [0.0, 1.0]])),
    "squares": lambda: dro.moments.SquaredNorm(),
    "variance": lambda: dro.moments.Variance(),
    "box": lambda: dro.moments.Mean(sigma=None),
    "maximum": lambda: 3.0 * dro.moments.maximum(dro.moments.Norm(1), dro.moments.Norm(2)),
}


def a_set(kind: str) -> tuple[dro.MomentSet, torch.Tensor]:
    """On all of space, around the origin."""
    ambiguity = dro.MomentSet(dro.Uncertain(2), [MOMENTS[kind]()])
    parts = {
        name: torch.full((3, *shape), 2.0 if name.endswith("sigma") else 0.0, dtype=torch.float64)
        for name, shape in ambiguity.parameters.items()
    }
    return ambiguity, ambiguity.pack(parts)


def worst(ambiguity, theta: torch.Tensor, nominal=None) -> torch.Tensor:
    """The worst expectation of an affine cost."""
    x = cp.Variable()
    problem = dro.DecisionProblem(SLOPE @ ambiguity.y + x, [x == 0], ambiguity)
    return problem.solve(theta, nominal).objective


@pytest.mark.parametrize("kind", MOMENTS)
def test_deviations_grow_with_the_scale(kind: str) -> None:
    ambiguity, theta = a_set(kind)
    factor = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    found = worst(ambiguity, ambiguity.scaled(theta, factor))
    np.testing.assert_allclose(found.detach(), factor.detach() * worst(ambiguity, theta)[0], rtol=1e-6)
    (slope,) = torch.autograd.grad(found.sum(), factor)
    np.testing.assert_allclose(slope, worst(ambiguity, theta), rtol=1e-5)
    np.testing.assert_allclose(ambiguity.scaled(theta, 2.0), ambiguity.scaled(theta, torch.full((3,), 2.0)))


@pytest.mark.parametrize("kind", MOMENTS)
def test_a_score_is_the_scale_at_which_an_outcome_is_in_the_set(kind: str) -> None:
    """By the moments themselves, at the outcome: bounds hold at that scale, and one of them with equality."""
    ambiguity, theta = a_set(kind)
    y = torch.as_tensor(np.random.default_rng(0).normal(size=(3, 2)))
    score = ambiguity.scores(theta, y)
    scaled = ambiguity.scaled(theta, score)
    room = torch.cat(ambiguity.sigmas(scaled), 1) - ambiguity.values(scaled, y[:, None])[:, 0]
    np.testing.assert_allclose(room.amin(1), 0.0, atol=1e-9)
    step = torch.as_tensor(np.random.default_rng(1).normal(size=theta.shape))
    (slope,) = torch.autograd.grad(ambiguity.scores(theta.requires_grad_(), y).sum(), theta)
    ends = [float(ambiguity.scores(theta.detach() + s * 1e-6 * step, y).sum()) for s in (1, -1)]
    assert float((slope * step).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_an_outcome_in_the_set_costs_no_more_than_certified_whatever_the_cost() -> None:
    ambiguity, theta = a_set("squares")
    x = cp.Variable(2)
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3.0 * (ambiguity.y - x), x - ambiguity.y)), [], ambiguity)
    y = torch.as_tensor(np.random.default_rng(0).normal(size=(3, 2)))
    scaled = ambiguity.scaled(theta, ambiguity.scores(theta, y))
    solution = problem.solve(scaled)
    best = problem.decision(solution.primal)
    assert bool((problem.loss(best, y) <= solution.objective * (1 + 1e-7)).all())


def test_what_does_not_scale_forbids() -> None:
    """A bound that was given, or that may be negative, stays; an outcome beyond it is in no multiple of the set."""
    y = dro.Uncertain(2)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm(mu=[0, 0]), dro.moments.Linear(mu=[1, 0])])
    theta = torch.tensor([[4.0, 1.0]] * 2).double()
    assert ambiguity.scaled(theta, 2.0).tolist() == [[16.0, 1.0]] * 2
    np.testing.assert_allclose(ambiguity.scores(theta, torch.tensor([[0.0, 4.0], [2.0, 0.0]])), [2.0, np.inf])
    for fixed in (dro.MomentSet(y, [dro.moments.Linear()]), dro.Empirical(y, 3)):
        with pytest.raises(dro.ModelError, match="no size to scale"):
            fixed.scaled(torch.zeros(1, fixed.size), 2.0)
    with pytest.raises(dro.ModelError, match="disappointment="):
        dro.Wasserstein(y, 3).scores(torch.zeros(1, 1), torch.zeros(1, 2))


@pytest.mark.parametrize(("order", "norm"), [(1, 1), (2, 2)])
def test_balls_scale_by_their_radius(order: int, norm: int) -> None:
    ambiguity = dro.Wasserstein(dro.Uncertain(2), 4, norm, order)
    nominal = torch.as_tensor(np.random.default_rng(0).normal(size=(3, 4, 2))), torch.full((3, 4), 0.25).double()
    factor = torch.tensor([0.5, 1.0, 3.0]).double()
    theta, mean = torch.full((3, 1), 0.7).double(), nominal[0].mean(1) @ torch.as_tensor(SLOPE)
    once, found = (worst(ambiguity, t, nominal) - mean for t in (theta, ambiguity.scaled(theta, factor)))
    np.testing.assert_allclose(found, factor * once, rtol=1e-6)


def test_divergences_scale_by_their_radius() -> None:
    """The worst mean under χ² is the mean and √radius standard deviations, while no weight vanishes."""
    ambiguity = dro.Divergence(dro.Uncertain(2), 4, "chi2")
    nominal = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 4, 2))), torch.full((1, 4), 0.25).double()
    cost = nominal[0][0] @ torch.as_tensor(SLOPE)
    found = worst(ambiguity, ambiguity.scaled(torch.full((1, 1), 0.01).double(), 4.0), nominal)
    assert float(found) == pytest.approx(float(cost.mean() + 0.2 * cost.std(unbiased=False)), rel=1e-6)


def test_outcomes_outside_of_the_support_are_in_no_multiple_of_a_set() -> None:
    """By more than rounding; a scaled set's worst case is not below the cost at an outcome with a finite score."""
    y, x = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(1, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4 * (y - x), 2 * (x - y)))
    outcomes = torch.tensor([[-0.9], [-1e-9], [0.0], [0.7], [3.0]], dtype=torch.float64)
    for ambiguity, theta in (
        (dro.MomentSet(y, [dro.moments.SquaredNorm()]), [[0.0, 1.0]]),
        (dro.Outcomes(y, "box"), [[0.0, 1.0]]),
    ):
        problem = dro.DecisionProblem(cost, [], ambiguity)
        start = torch.tensor(theta, dtype=torch.float64)
        scores = ambiguity.scores(start, outcomes)
        assert scores.isinf().tolist() == [True, False, False, False, False]
        assert problem.sets.scores(start.expand(5, -1), outcomes).tolist() == scores.tolist()
        kept = scores.isfinite()
        sets = ambiguity.scaled(start, scores[kept].clamp(min=1e-6))
        stock = {x: torch.ones(int(kept.sum()), 1, dtype=torch.float64)}
        assert bool((problem.worst_case_cost(stock, sets) >= problem.loss(stock, outcomes[kept]) - 1e-4).all())


def test_supports_with_known_data_say_which_outcomes_they_hold() -> None:
    top = cp.Parameter(2, name="top")
    y = dro.Uncertain(2, support=dro.support.Box(0.0, top))
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    theta, known = torch.tensor([[0.0, 0.0, 1.0]]).double(), {top: torch.tensor([[1.0, 1.0], [1.0, 3.0]]).double()}
    found = ambiguity.scores(theta, torch.tensor([[0.5, 2.0]] * 2).double(), known)
    assert found.isinf().tolist() == [True, False]
    with pytest.raises(dro.ShapeError, match="needs known data for"):
        ambiguity.scores(theta, torch.ones(1, 2).double())


def test_an_outcome_that_is_no_number_leaves_the_others_their_scores() -> None:
    ambiguity = dro.MomentSet(dro.Uncertain(2, support=dro.support.Box(0.0, 1.0)), [dro.moments.SquaredNorm()])
    theta, outcomes = torch.tensor([[0.5, 0.5, 0.25]]).double(), torch.tensor([[0.2, 0.3], [np.nan, 0.5]]).double()
    found = ambiguity.scores(theta, outcomes)
    torch.testing.assert_close(found[:1], ambiguity.scores(theta, outcomes[:1]))
    assert bool(found[1].isinf())
