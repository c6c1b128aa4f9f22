"""Closed forms: optimality conditions, the cone program, CVXPY with Clarabel, and derivatives."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from tests.drolayers.projection.families import (
    CASES,
    CLOSED,
    FIXED,
    awkward,
    bounds,
    grouped,
    make,
    needs,
    nominal,
    outputs,
    projection,
)

WEIGHTS = {"0.mu": 5.0, "0.sigma": 0.5}


def clarabel(ambiguity: dro.MomentSet, theta: Tensor, y: Tensor, weights: Tensor, w: np.ndarray) -> np.ndarray:
    """One item, written anew: minimise the distance over θ with numbers for atoms and weights."""
    moment, start = ambiguity.moments, theta.numpy()
    x, at, constraints = cp.Variable(ambiguity.size), 0, []
    keep = np.flatnonzero(weights.numpy() > 0)
    for g in moment:
        leaves = {n: cp.Constant(v) for n, v in g.constants.items()}
        for name, shape in g.shapes.items():
            size = int(np.prod(shape))
            leaves[name] = cp.reshape(x[at : at + size], shape, order="C") if shape else x[at]
            at += size
        if g.sigma is None:
            sigma, at = cp.hstack([x[at : at + g.size]] * g.sides), at + g.size
        else:
            sigma = g.limits
        value, more = g.expression(cp.Constant(y.numpy()[keep]), leaves)
        constraints += [*more, weights.numpy()[keep] @ value <= sigma]
    problem = cp.Problem(cp.Minimize(cp.norm(cp.multiply(np.sqrt(w), x - start))), constraints)
    with warnings.catch_warnings():
        # The accuracy asked for is beyond what it always reaches.
        warnings.simplefilter("ignore")
        problem.solve(cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return x.value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", [*CLOSED, *FIXED])
def test_equals_the_cone_program_and_clarabel(family: str, case: str) -> None:
    exact, program = projection(family, "closed_form"), projection(family, "conic")
    ambiguity = exact.ambiguity
    theta, distribution = awkward(case, 6, ambiguity.size)
    if family in FIXED:
        distribution = (0.5 * distribution[0], distribution[1])
    found, conic = exact(theta, distribution), program(theta, distribution)
    assert exact.last is not None
    assert bool(exact.last.ok.all())
    scale = theta.abs().amax(1).clamp(min=1.0)
    moved = (found - theta).norm(dim=1)
    assert ((found - conic).abs().amax(1) <= 1e-4 * scale).all()
    assert ((moved - (conic - theta).norm(dim=1)).abs() <= 1e-7 * scale).all()
    for item in range(3):
        other = clarabel(ambiguity, theta[item], distribution[0][item], distribution[1][item], np.ones(ambiguity.size))
        assert np.abs(found[item].numpy() - other).max() <= 1e-4 * scale[item]
        assert abs(np.linalg.norm(other - theta[item].numpy()) - moved[item]) <= 1e-6 * scale[item]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ["squared", "squared, some coordinates", "grouped"])
def test_squares_satisfy_the_optimality_conditions(family: str, case: str) -> None:
    ambiguity = grouped() if family == "grouped" else make(family)
    theta, distribution = awkward(case, 40, ambiguity.size)
    names = list(ambiguity.parameters)
    weights = {names[0]: np.linspace(1.0, 5.0, ambiguity.parameters[names[0]][0]), names[1]: 0.5}
    found = dro.Projection(ambiguity, weights)(theta, distribution).requires_grad_()
    excess = needs(ambiguity, found, distribution) - bounds(ambiguity, found)
    w = torch.cat(
        [torch.as_tensor(np.broadcast_to(weights[n], s).copy()).reshape(-1) for n, s in ambiguity.parameters.items()]
    )
    pull = 2 * w * (found - theta).detach()
    # Stationary in σ: the multiplier of every bound; then stationary in μ, complementary and feasible.
    multiplier = pull[:, -excess.shape[1] :]
    (push,) = torch.autograd.grad((multiplier * excess).sum(), found)
    scale = 1.0 + theta.abs().amax(1, keepdim=True)
    assert ((pull + push).abs() <= 1e-10 * scale).all()
    assert (multiplier >= -1e-14).all()
    assert (excess.abs() <= 1e-12 * scale**2)[multiplier > 0].all()
    assert (excess <= 1e-12 * scale**2).all()


@pytest.mark.parametrize("case", CASES)
def test_absolute_deviations_satisfy_the_optimality_conditions(case: str) -> None:
    ambiguity = make("l1")
    theta, (y, omega) = awkward(case, 40, ambiguity.size)
    found = dro.Projection(ambiguity, WEIGHTS)(theta, (y, omega))
    mu, sigma = found[:, :-1], found[:, -1:]
    multiplier = 2 * 0.5 * (sigma - theta[:, -1:])
    pull = 2 * 5.0 * (theta[:, :-1] - mu)
    below, above = ((omega[..., None] * side).sum(1) for side in (y < mu[:, None] - 1e-13, y > mu[:, None] + 1e-13))
    touching = 1.0 - below - above
    scale = 1.0 + theta.abs().amax(1, keepdim=True)
    low, high = multiplier * (below - above - touching), multiplier * (below - above + touching)
    assert ((pull >= low - 1e-10 * scale) & (pull <= high + 1e-10 * scale)).all()
    excess = needs(ambiguity, found, (y, omega)) - sigma
    assert (excess <= 1e-12 * scale).all()
    assert (multiplier >= 0).all()
    assert (excess.abs() <= 1e-12 * scale)[multiplier > 0].all()


def test_the_checks_see_a_wrong_projection() -> None:
    """Clipping is feasible but not closest: the comparison above must notice."""
    ambiguity = make("squared")
    theta, distribution = awkward("random", 6, ambiguity.size)
    clipped = dro.Projection(ambiguity, method="clip")(theta, distribution)
    found = dro.Projection(ambiguity)(theta, distribution)
    assert ((clipped - theta).norm(dim=1) > (found - theta).norm(dim=1) + 1e-3).any()


@pytest.mark.parametrize("family", [*CLOSED, *FIXED, "grouped"])
def test_derivatives(family: str) -> None:
    ambiguity = grouped() if family == "grouped" else make(family)
    y, omega = nominal(3, 3, 3)
    if family in FIXED:
        y = 0.4 * y
    theta = outputs(3, ambiguity.size, 8, 2.0)
    weights = None if family in FIXED else {next(iter(ambiguity.parameters)): 3.0}
    layer = dro.Projection(ambiguity, weights, absolute=0.01, margin=0.1)
    # What a linear moment violates, minus that moment does not.
    theta = -theta if family == "linear, negative" else theta
    assert not torch.equal(layer(theta, (y, omega)), theta)
    inputs = (theta.requires_grad_(), y.requires_grad_(), omega.requires_grad_())
    assert torch.autograd.gradcheck(lambda t, a, w: layer(t, (a, w)), inputs, eps=1e-7, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["squared", "l1"])
def test_on_the_boundary(family: str) -> None:
    """θ on the boundary is valid; just inside nothing happens, just outside next to nothing."""
    ambiguity = make(family)
    theta, distribution = awkward("random", 20, ambiguity.size)
    layer = dro.Projection(ambiguity)
    edge = layer(theta, distribution)
    assert torch.equal(layer(edge, distribution), edge)
    for shift in (1e-14, 1e-9, 1e-5):
        outside = edge.clone()
        outside[:, -1] -= shift
        again = layer(outside, distribution)
        assert ((again - edge).abs() <= 2 * shift + 1e-14).all()
        assert ((again - outside).norm(dim=1) <= shift * (1 + 1e-6) + 1e-14).all()
        assert (needs(ambiguity, again, distribution) <= bounds(ambiguity, again) + 1e-13).all()


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1e3])
@pytest.mark.parametrize("family", ["squared", "l1"])
def test_at_every_scale(family: str, scale: float) -> None:
    """With weights that undo the units, scaling the data scales the answer."""
    ambiguity = make(family)
    theta, (y, omega) = awkward("random", 20, ambiguity.size)
    units = torch.tensor([scale, scale, scale, scale**2 if family == "squared" else scale], dtype=torch.float64)
    found = dro.Projection(ambiguity)(theta, (y, omega))
    scaled = dro.Projection(ambiguity, (units**-2).numpy())(theta * units, (y * scale, omega))
    assert ((scaled / units - found).abs() <= 1e-9).all()


def test_groups_are_independent() -> None:
    """A bound that holds keeps its coordinates, whatever happens to the others."""
    ambiguity = grouped()
    y, omega = nominal(1, 5, 7)
    theta = torch.tensor([[0.0, 0.0, 3.0, 50.0, 0.1]], dtype=torch.float64)
    found = dro.Projection(ambiguity)(theta, (y, omega))
    assert torch.equal(found[:, [0, 1, 3]], theta[:, [0, 1, 3]])
    assert (found[:, [2, 4]] != theta[:, [2, 4]]).all()
    assert (needs(ambiguity, found, (y, omega)) <= bounds(ambiguity, found) + 1e-13).all()
