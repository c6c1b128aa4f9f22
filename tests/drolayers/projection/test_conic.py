"""The general cone program: every family, derivatives, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import drolayers as dro
from tests.drolayers.projection.families import (
    CASES,
    CONIC,
    DIM,
    awkward,
    bounds,
    grouped,
    make,
    needs,
    nominal,
    outputs,
    projection,
)
from tests.drolayers.projection.test_closed_form import clarabel


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", CONIC)
def test_equals_clarabel(family: str, case: str) -> None:
    layer = projection(family)
    ambiguity = layer.ambiguity
    theta, distribution = awkward(case, 3, ambiguity.size)
    found = layer(theta, distribution)
    assert layer.last is not None
    assert bool((layer.last.status == 0).all())
    scale = theta.abs().amax(1).clamp(min=1.0)
    assert (needs(ambiguity, found, distribution) <= bounds(ambiguity, found) + 1e-9 * scale[:, None]).all()
    for item in range(2):
        other = clarabel(ambiguity, theta[item], distribution[0][item], distribution[1][item], np.ones(ambiguity.size))
        moved, theirs = ((x - theta[item].numpy()) for x in (found[item].numpy(), other))
        assert abs(np.linalg.norm(moved) - np.linalg.norm(theirs)) <= 1e-6 * scale[item]
        assert np.abs(moved - theirs).max() <= 1e-4 * scale[item] + 1e-4


@pytest.mark.parametrize("family", CONIC)
def test_derivatives(family: str) -> None:
    ambiguity = make(family)
    distribution = nominal(3, 4, 3)
    layer = dro.Projection(ambiguity, absolute=0.05)
    theta = outputs(3, ambiguity.size, 4, 2.0).requires_grad_()
    direction = outputs(3, ambiguity.size, 5)
    (gradient,) = torch.autograd.grad((layer(theta, distribution) * direction).sum(), theta)
    # Minimisers are right to some 1e-6, so that the best step is its cube root.
    step, size = 1e-2, ambiguity.size
    shifts = step * torch.eye(size, dtype=torch.float64).repeat_interleave(3, 0)
    base = theta.detach().repeat(size, 1)
    spread = tuple(t.repeat(size, *[1] * (t.dim() - 1)) for t in distribution)
    with torch.no_grad():
        change = layer(base + shifts, spread) - layer(base - shifts, spread)
    central = (change * direction.repeat(size, 1)).sum(1).reshape(size, 3).T / (2 * step)
    assert (gradient - central).abs().max() <= 2e-3 * (1.0 + central.abs().max())


def test_grouped_bounds_as_a_cone_program() -> None:
    ambiguity = grouped()
    theta, distribution = awkward("random", 10, ambiguity.size)
    exact = dro.Projection(ambiguity, {"mu": 2.0})(theta, distribution)
    conic = dro.Projection(ambiguity, {"mu": 2.0}, method="conic")(theta, distribution)
    assert (exact - conic).abs().max() <= 1e-4


@pytest.mark.parametrize("method", ["auto", "conic"])
def test_margins(method: str) -> None:
    ambiguity = make("l1 and squared")
    theta, distribution = awkward("random", 10, ambiguity.size)
    found = dro.Projection(ambiguity, absolute=0.2, margin=0.1, method=method)(theta, distribution)  # type: ignore[arg-type]
    needed = 1.1 * needs(ambiguity, found, distribution) + 0.2
    slack = bounds(ambiguity, found) - needed
    assert (slack >= -1e-12).all()
    assert (slack.abs() <= 1e-12).any()


def test_without_quadratic_objectives() -> None:
    """The reference engine has none, and minimises the norm itself."""
    ambiguity = make("l2")
    theta, distribution = awkward("random", 3, ambiguity.size)
    first = dro.Projection(ambiguity)(theta, distribution)
    theta = theta.requires_grad_()
    second = dro.Projection(ambiguity, engine="clarabel")(theta, distribution)
    assert (first - second).abs().max() <= 1e-4
    second.sum().backward()
    assert theta.grad is not None
    assert bool(theta.grad.isfinite().all())


def test_a_moment_that_is_not_convex_in_its_parameters() -> None:
    moment = dro.moments.Conic([dro.Learn(4, DIM + 1)], [np.zeros(4)])
    ambiguity = dro.MomentSet(dro.Uncertain(DIM), [moment])
    with pytest.raises(dro.ModelError, match="has no cone program in its free parameters"):
        dro.Projection(ambiguity, method="conic")
    theta, distribution = awkward("random", 2, ambiguity.size)
    theta[:, :-1] = torch.eye(4, dtype=torch.float64).reshape(-1)
    theta[:, -1] = -1.0
    found = dro.Projection(ambiguity)(theta, distribution)
    length = (distribution[1] * distribution[0].norm(dim=2)).sum(1)
    assert torch.equal(found[:, :-1], theta[:, :-1])
    assert (found[:, -1] - length).abs().max() <= 1e-7
