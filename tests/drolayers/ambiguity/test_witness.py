"""Sets that hold their witness are not empty: every set, support and size of inputs."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import Status
from drolayers import moments as m
from drolayers.nearest import nearest_point
from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.reformulation.problems import SUPPORTS, SupportCase

ITEMS = 8


def wild(size: int, seed: int) -> Tensor:
    """θ of sizes from 1e-6 to 1e6, by item and by entry, of either sign, some entries zero."""
    rng = np.random.default_rng(seed)
    exponents = np.where(
        np.arange(ITEMS)[:, None] % 2, rng.uniform(-6, 6, (ITEMS, size)), rng.uniform(-6, 6, (ITEMS, 1))
    )
    theta = rng.standard_normal((ITEMS, size)) * 10.0**exponents
    return torch.as_tensor(np.where(rng.uniform(size=theta.shape) < 0.1, 0.0, theta))


def nominal(case: SetCase, support: SupportCase) -> dro.Nominal:
    """Atoms inside the support."""
    found = case.nominal(ITEMS) or SETS_AROUND.nominal(ITEMS)
    atoms = nearest_point(support.support, nearest_point(support.support, found.atoms.reshape(-1, 2)))
    return dro.Nominal(atoms.reshape(found.atoms.shape), found.weights)


SETS_AROUND = next(case for case in SETS if case.around and case.events is None)
PAIRS = [(case, SUPPORTS[k % len(SUPPORTS)]) for k, case in enumerate(SETS)]


@pytest.mark.parametrize(("case", "support"), PAIRS, ids=[f"{c.name}-{s.name}" for c, s in PAIRS])
def test_no_set_is_empty(case: SetCase, support: SupportCase) -> None:
    """Whatever a model says, and whether or not the nominal distribution is known."""
    y, x = dro.Uncertain(2, support=support.support), cp.Variable(2, bounds=[-5, 5])
    problem = dro.DecisionProblem(cp.sum(cp.maximum(y - x, 2 * (x - y))), [], case.make(y))
    theta, around = wild(problem.size, SETS.index(case)), nominal(case, support)
    beside = around if case.around else None
    for given in (around,) if case.around else (None, around):
        found = problem.sets.ensure_nonempty(theta, given)
        assert bool(found.isfinite().all())
        if given is beside:
            assert bool((problem.ambiguity.emptiness(found, beside) <= 1e-7).all())
    statuses = problem.solve(found, beside).statuses
    assert Status.EMPTY_SET not in statuses
    # Terms of 1e6 and 1e-6 in one program are beyond double precision in some items.
    assert sum(status == Status.FAILED for status in statuses) <= ITEMS // 2


@pytest.mark.parametrize("case", SETS, ids=lambda case: case.name)
def test_sets_with_room_stay_as_they_are(case: SetCase) -> None:
    """With the identity as gradient."""
    ambiguity = case.make(dro.Uncertain(2, support=dro.support.Box([-0.5, 0.0], [3.0, 3.5])))
    parameters = case.parameters(6)
    theta = ambiguity.pack({n: torch.as_tensor(np.stack([p[n] for p in parameters])) for n in case.base})
    theta.requires_grad_()
    around = case if case.around else SETS_AROUND
    found = ambiguity.ensure_nonempty(theta, around.nominal(6))
    assert torch.equal(found, theta)
    if theta.numel():
        (gradient,) = torch.autograd.grad(found.sum(), theta)
        torch.testing.assert_close(gradient, torch.ones_like(theta))


def test_a_bound_becomes_what_its_witness_needs() -> None:
    """(1 + r)·g(w) at the support point w next to the centre, and not more."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    ambiguity = dro.MomentSet(y, [m.SquaredNorm()])
    theta = torch.tensor([[-3.0, 1.0, 0.2], [-3.0, 1.0, 9.1], [2.0, 1.0, -4.0]], dtype=torch.float64)
    found = ambiguity.ensure_nonempty(theta)
    assert torch.equal(found[:, :2], theta[:, :2])
    assert found[0, 2].item() == pytest.approx(9.0 * (1.0 + 5e-4), rel=1e-9)
    assert found[1, 2] == 9.1
    assert 0.0 < found[2, 2] < 1e-9


def test_projected_sets_stay_as_they_are() -> None:
    """By Jensen's inequality they hold the mean of their nominal distribution."""
    rng = np.random.default_rng(0)
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    for moments in ([m.SquaredNorm()], [m.Norm(1), m.Linear()], [m.Mean(), m.Variance()]):
        ambiguity = dro.MomentSet(y, moments)
        atoms = torch.as_tensor(np.abs(rng.standard_normal((20, 5, 2))))
        around = dro.Nominal(atoms, torch.full((20, 5), 0.2, dtype=torch.float64))
        theta = torch.as_tensor(rng.standard_normal((20, ambiguity.size)))
        projected = dro.Projection(ambiguity, margin=1e-3)(theta, around)
        torch.testing.assert_close(ambiguity.ensure_nonempty(projected, around), projected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["squared norm", "norm 1", "mean and variance", "box of outcomes", "mean and covariance"]
)
@pytest.mark.parametrize("support", [SUPPORTS[1], SUPPORTS[4], SUPPORTS[5]], ids=lambda support: support.name)
def test_gradients_agree_with_differences(name: str, support: SupportCase) -> None:
    """Where the location lies outside the support."""
    case = next(case for case in SETS if case.name == name)
    ambiguity = case.make(dro.Uncertain(2, support=support.support))
    rng = np.random.default_rng(3)
    theta = torch.as_tensor(rng.standard_normal((4, ambiguity.size)) - 1.0, dtype=torch.float64)
    weights = torch.as_tensor(rng.standard_normal(theta.shape))

    def total(at: Tensor) -> Tensor:
        return (weights * ambiguity.ensure_nonempty(at)).sum(1)

    at = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(at).sum(), at)
    step = 1e-6
    for k in range(theta.shape[1]):
        away = torch.zeros_like(theta)
        away[:, k] = step
        slope = (total(theta + away) - total(theta - away)) / (2 * step)
        torch.testing.assert_close(gradient[:, k], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("support", SUPPORTS, ids=lambda support: support.name)
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_nearest_points_lie_in_the_support(support: SupportCase, size: float) -> None:
    """Points inside stay; no point of a sample of the support is nearer (to an ellipsoid by its own norm)."""
    rng = np.random.default_rng(1)
    points = torch.as_tensor(size * rng.standard_normal((20, 2)))
    found = nearest_point(support.support, points)
    assert support.excess(found.numpy()).max() <= 1e-8 * max(size, 1.0)
    inside = support.excess(points.numpy()) == 0.0
    torch.testing.assert_close(found[inside], points[inside], rtol=1e-9, atol=1e-9)
    sample = nearest_point(support.support, torch.as_tensor(3.0 * rng.standard_normal((200, 2))))
    scale = np.eye(2)
    if isinstance(support.support, dro.support.Ellipsoid):
        scale = np.linalg.inv(support.support.L)
    distance = np.linalg.norm((found - points).numpy() @ scale.T, axis=1)
    others = np.linalg.norm((sample.numpy()[None] - points.numpy()[:, None]) @ scale.T, axis=2)
    assert (distance <= others.min(1) + 1e-7 * max(size, 1.0)).all()


def test_given_bounds_move_the_centre_or_restrict_the_witness() -> None:
    """What was given stays."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    moved = dro.MomentSet(y, [m.Mean(), m.Variance(sigma=0.5)])
    theta = torch.tensor([[-2.0, 1.0, -3.0, 1.0]], dtype=torch.float64)
    found = moved.ensure_nonempty(theta)
    assert bool((moved.emptiness(found, None) <= 1e-7).all())
    torch.testing.assert_close(found[:, 1], theta[:, 1])
    restricted = dro.MomentSet(y, [m.Linear(mu=[-1.0, -1.0], sigma=-4.0), m.SquaredNorm()])
    theta = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    found = restricted.ensure_nonempty(theta)
    # The nearest support point with y1 + y2 >= 4 is (2, 2).
    assert found[0, 2].item() == pytest.approx(8.0 * (1.0 + 5e-4), rel=1e-6)
    contradictory = dro.MomentSet(y, [m.Linear(mu=[1.0, 1.0], sigma=-4.0), m.SquaredNorm()])
    assert bool((contradictory.emptiness(contradictory.ensure_nonempty(theta), None) > 1e-7).all())


def test_supports_with_known_data() -> None:
    """The witness lies in the support of its own item."""
    high = cp.Parameter(2, name="high", nonneg=True)
    y = dro.Uncertain(2, support=dro.support.Box(0.0, high))
    ambiguity = dro.MomentSet(y, [m.Norm(1)])
    known = {high: torch.tensor([[1.0, 1.0], [5.0, 5.0]], dtype=torch.float64)}
    theta = torch.tensor([[3.0, 3.0, 1.0]] * 2, dtype=torch.float64)
    found = ambiguity.ensure_nonempty(theta, None, known)
    torch.testing.assert_close(
        found[:, 2], torch.tensor([4.0 * (1.0 + 5e-4), 1.0], dtype=torch.float64), rtol=1e-6, atol=0
    )
