"""After the projection no set is empty: 10,000 random outputs over every family, and their decision problems."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import drolayers as dro
from tests.drolayers.projection.families import ALL, DIM, bounds, grouped, make, needs, nominal, outputs

EACH = -(-10_000 // (len(ALL) + 1))
SOLVED = 20


@pytest.mark.parametrize("family", [*ALL, "grouped"])
def test_never_empty(family: str) -> None:
    support = dro.support.Box(-2.0, 3.0)
    ambiguity = grouped(support) if family == "grouped" else make(family, support)
    y, weights = nominal(EACH, 4, 11)
    # Every fifth item has coincident atoms, where the set can shrink to a point.
    y[::5] = y[::5, :1].clone()
    distribution = (y.clamp(-2.0, 3.0), weights)
    theta = outputs(EACH, ambiguity.size, 12, 3.0)
    projection = dro.Projection(ambiguity)
    found = projection(theta, distribution)
    assert projection.last is not None
    assert bool(projection.last.ok.all())
    assert bool(found.isfinite().all())
    bound = bounds(ambiguity, found)
    # The value of a cone moment is itself the solution of a program.
    tolerance = 1e-7 if family == "cones" else 1e-12
    assert (needs(ambiguity, found, distribution) <= bound + tolerance * (1.0 + bound.abs())).all()

    x = cp.Variable(DIM, bounds=[-5, 5])
    problem = dro.DecisionProblem(cp.sum(cp.maximum(ambiguity.y - x, 2 * (x - ambiguity.y))), [], ambiguity)
    status = problem.solve(found[:SOLVED]).statuses
    assert dro.Status.EMPTY_SET not in status
    # A set that is a point has no room, and multipliers without bound.
    assert all(s.ok for i, s in enumerate(status) if i % 5)


@pytest.mark.parametrize("family", ["squared", "l1", "l2"])
def test_without_a_projection_sets_are_empty(family: str) -> None:
    """What the test above rules out does happen to raw outputs."""
    ambiguity = make(family, dro.support.Box(-2.0, 3.0))
    theta = outputs(50, ambiguity.size, 12, 3.0)
    assert (ambiguity.emptiness(theta, None) > 1e-7).any()


@pytest.mark.parametrize("family", ["squared", "l1", "l2"])
def test_a_margin_gives_slater_points(family: str) -> None:
    ambiguity = make(family)
    y, weights = nominal(30, 4, 13)
    y[::2] = y[::2, :1].clone()
    theta = outputs(30, ambiguity.size, 14, 3.0)
    theta[::2, :DIM] = y[::2, 0]
    tight = ambiguity.emptiness(dro.Projection(ambiguity)(theta, (y, weights)), None)
    assert (tight.abs() <= 1e-6).any()
    roomy = ambiguity.emptiness(dro.Projection(ambiguity, absolute=0.01)(theta, (y, weights)), None)
    assert (roomy < -1e-4).all()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [1, 2, float("inf")])
@pytest.mark.parametrize("kind", ["box", "polyhedron"])
def test_balls(kind: str, norm: float, order: int) -> None:
    box = kind == "box"
    support = (
        dro.support.Box(0.0, 1.0)
        if box
        else dro.support.Polyhedron([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [1.0, 0, 0])
    )
    ball = dro.Wasserstein(dro.Uncertain(2, support=support), atoms=3, norm=norm, order=order)
    y, weights = nominal(30, 3, 15, dim=2)
    y[::3] = 0.2
    theta = outputs(30, 1, 16).requires_grad_()
    projection = dro.Projection(ball)
    found = projection(theta, (y, weights))
    assert (ball.emptiness(found, (y, weights)) <= 1e-7).all()
    valid = (found == theta).detach()
    assert 0 < int(valid.sum()) < 30
    # The smallest one that will do; for some items against the distances themselves, written out.
    needed = dro.Projection(ball)(torch.zeros_like(theta) - 1.0, (y, weights))
    point, at = cp.Variable(2), cp.Parameter(2)
    inside = [point >= 0, point <= 1] if box else [point >= 0, cp.sum(point) <= 1]
    distance = cp.Problem(cp.Minimize(cp.norm(point - at, norm)), inside)
    for item in range(4):
        total = 0.0
        for atom, weight in zip(y[item].numpy(), weights[item].tolist(), strict=True):
            at.value = atom
            total += weight * max(distance.solve(cp.CLARABEL), 0.0) ** order
        assert float(needed[item]) == pytest.approx(total ** (1 / order), rel=1e-6, abs=1e-6)
    assert ((found - torch.maximum(theta, needed)).abs() <= 1e-9).all()
    assert (ball.emptiness(0.999 * needed[1::3], (y[1::3], weights[1::3])) > 1e-7).all()
    found.sum().backward()
    assert torch.equal(theta.grad, valid.double())
    roomy = dro.Projection(ball, absolute=0.1, margin=0.5)(theta.detach() - 9.0, (y, weights))
    assert ((roomy - 1.5 * needed - 0.1).abs() <= 1e-9).all()


def test_bounds_next_to_nothing_are_not_called_empty() -> None:
    generator = torch.Generator().manual_seed(0)
    centre = 5.0 * torch.randn(60, 40, generator=generator, dtype=torch.float64)
    # As a network's softplus leaves them: from 1e-3 down to where only the centre itself is within.
    sigma = 10.0 ** (-300.0 * torch.rand(60, 40, generator=generator, dtype=torch.float64) ** 3) * 1e-3
    y, x = dro.Uncertain(40), cp.Variable(40, nonneg=True)
    problem = dro.DecisionProblem(y @ x, [cp.sum(x) == 1.0], dro.MomentSet.grouped(y, 1))
    decision = problem.solve(torch.cat([centre, sigma], 1))
    assert dro.Status.EMPTY_SET not in decision.statuses
    torch.testing.assert_close(decision.objective, (centre + sigma.sqrt()).amin(1))
