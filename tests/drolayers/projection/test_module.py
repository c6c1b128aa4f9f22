"""The layer's manners: what it leaves alone, what it says, what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.projection import ProjectionWarning
from tests.drolayers.projection.families import ALL, awkward, bounds, grouped, make, needs, nominal, outputs, projection


@pytest.mark.parametrize(
    ("family", "method"),
    [
        *((family, "auto") for family in ALL),
        *((family, "conic") for family in ("squared", "l1", "linear", "l1 and squared")),
        *((family, "clip") for family in ("squared", "l2", "l1 and squared")),
    ],
)
def test_valid_points_are_unchanged(family: str, method: str) -> None:
    ambiguity = make(family)
    distribution = nominal(6, 4, 21)
    theta = outputs(6, ambiguity.size, 22)
    mask = torch.arange(6) % 2 == 0
    for name, value in ambiguity.unpack(theta).items():
        if name.endswith("sigma"):
            value[mask] = 500.0
    theta = theta.requires_grad_()
    found = dro.Projection(ambiguity, absolute=0.1, method=method)(theta, distribution)  # type: ignore[arg-type]
    assert torch.equal(found[mask], theta[mask])
    pull = outputs(6, ambiguity.size, 23)
    (gradient,) = torch.autograd.grad((found * pull).sum(), theta)
    assert torch.equal(gradient[mask], pull[mask])
    assert not torch.equal(found[~mask], theta[~mask])


@pytest.mark.parametrize("family", ALL)
def test_twice_is_once(family: str) -> None:
    layer = projection(family)
    theta, distribution = awkward("random", 10, layer.ambiguity.size)
    once = layer(theta, distribution)
    again = layer(once, distribution)
    if family == "cones":
        assert (once - again).abs().max() <= 1e-6
    else:
        assert torch.equal(once, again)


@pytest.mark.parametrize("family", ["squared", "l1", "l2", "linear"])
def test_single_precision(family: str) -> None:
    ambiguity = make(family)
    theta, distribution = awkward("random", 50, ambiguity.size)
    single = theta.float().requires_grad_()
    layer = dro.Projection(ambiguity)
    found = layer(single, tuple(t.float() for t in distribution))
    assert found.dtype == torch.float32
    assert (found - layer(theta, distribution)).abs().max() <= 1e-5
    assert torch.equal(layer(found, tuple(t.float() for t in distribution)), found)
    found.sum().backward()
    assert single.grad is not None
    assert bool(single.grad.isfinite().all())


def test_clip_keeps_the_parameters() -> None:
    ambiguity = make("l1 and squared")
    theta, distribution = awkward("random", 10, ambiguity.size)
    found = dro.Projection(ambiguity, method="clip", absolute=0.5)(theta, distribution)
    before, after = ambiguity.unpack(theta), ambiguity.unpack(found)
    assert torch.equal(before["0.mu"], after["0.mu"])
    assert torch.equal(before["1.mu"], after["1.mu"])
    needed = needs(ambiguity, theta, distribution) + 0.5
    assert (bounds(ambiguity, found) - torch.maximum(needed, bounds(ambiguity, theta))).abs().max() <= 1e-14


def test_dicts_come_back_as_dicts() -> None:
    ambiguity = grouped()
    theta, distribution = awkward("random", 4, ambiguity.size)
    layer = dro.Projection(ambiguity)
    found = layer(ambiguity.unpack(theta), distribution)
    assert list(found) == ["mu", "sigma"]
    assert torch.equal(ambiguity.pack(found), layer(theta, distribution))


def test_weights_pull_the_answer() -> None:
    ambiguity = make("squared")
    theta, distribution = awkward("random", 10, ambiguity.size)
    stiff = dro.Projection(ambiguity, {"0.mu": 1e8})(theta, distribution)
    assert (stiff[:, :-1] - theta[:, :-1]).abs().max() <= 1e-6
    by_name = dro.Projection(ambiguity, {"0.mu": 5.0})(theta, distribution)
    assert torch.equal(by_name, dro.Projection(ambiguity, [5.0, 5.0, 5.0, 1.0])(theta, distribution))


@pytest.mark.parametrize("method", ["auto", "conic", "clip"])
def test_a_fixed_bound_that_is_too_small(method: str) -> None:
    ambiguity = dro.MomentSet(dro.Uncertain(3), [dro.moments.SquaredNorm(sigma=2.0), dro.moments.Norm(1)])
    y, weights = nominal(4, 5, 31)
    y[:2] *= 10.0
    y[2:] *= 0.1
    theta = torch.zeros(4, ambiguity.size, dtype=torch.float64, requires_grad=True)
    layer = dro.Projection(ambiguity, method=method)  # type: ignore[arg-type]
    with pytest.warns(ProjectionWarning, match="fixed bound"):
        found = layer(theta, (y, weights))
    assert layer.last is not None
    infeasible, fine = dro.Status.INFEASIBLE, dro.Status.OPTIMAL
    assert layer.last.statuses == [infeasible, infeasible, fine, fine]
    assert layer.status(theta, (y, weights)).statuses == layer.last.statuses
    assert set(layer.last.sentences) == {0, 1}
    assert "Moment 0" in layer.last.sentences[0]
    # What cannot be done is left alone; the other moment is projected all the same.
    assert torch.equal(found[:2, :3], theta[:2, :3])
    assert (needs(ambiguity, found, (y, weights))[:, 1] <= bounds(ambiguity, found)[:, 1] + 1e-12).all()
    found.sum().backward()
    assert theta.grad is not None
    assert bool(theta.grad.isfinite().all())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(theta, (y, weights))


def test_a_fixed_bound_that_is_just_enough() -> None:
    """Then only the mean will do as centre."""
    y, weights = nominal(3, 4, 32)
    y = y[:1].expand(3, -1, -1).clone()
    weights = weights[:1].expand(3, -1).clone()
    mean = (weights[..., None] * y).sum(1)
    variance = float((weights[..., None] * (y - mean[:, None]) ** 2).sum((1, 2))[0])
    ambiguity = dro.MomentSet(dro.Uncertain(3), [dro.moments.SquaredNorm(sigma=variance)])
    layer = dro.Projection(ambiguity)
    theta = outputs(3, 3, 33).requires_grad_()
    found = layer(theta, (y, weights))
    assert layer.last is not None
    assert bool(layer.last.ok.all())
    assert (found - mean).abs().max() <= 1e-7
    found.sum().backward()
    assert theta.grad is not None
    assert bool(theta.grad.isfinite().all())


@pytest.mark.parametrize("method", ["auto", "conic", "clip"])
def test_one_bound_that_cannot_be_evaluated(method: str) -> None:
    """Squares of 1e200 are infinite: the item says so and is left alone, although its other bound is fine."""
    theta = torch.tensor([[1e200, 0.0, 0.0, 1.0, 9.0], [0.0, 0.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    layer = dro.Projection(grouped(), method=method)  # type: ignore[arg-type]
    with pytest.warns(ProjectionWarning, match="could not be evaluated"):
        found = layer(theta, nominal(2, 4, 3))
    assert layer.last is not None
    assert layer.last.statuses == [dro.Status.FAILED, dro.Status.OPTIMAL]
    assert torch.equal(found[:1], theta[:1])
    assert bool(found.isfinite().all())
    own = theta.clone().requires_grad_()
    with pytest.warns(ProjectionWarning, match="could not be evaluated"):
        dro.Projection(grouped(), method=method)(own, nominal(2, 4, 3)).sum().backward()  # type: ignore[arg-type]
    assert own.grad is not None
    assert bool(own.grad.isfinite().all())


def test_atoms_outside_the_support() -> None:
    ambiguity = make("squared", dro.support.Nonnegative())
    y, weights = nominal(3, 4, 34)
    y = y.abs()
    y[0, 1] = -1.0
    y[1, 1], weights[1, 1] = -1.0, 0.0
    weights = weights / weights.sum(1, keepdim=True)
    layer = dro.Projection(ambiguity)
    with pytest.warns(ProjectionWarning, match="outside the support"):
        layer(outputs(3, 4, 35), (y, weights))
    assert layer.last is not None
    # An atom without weight does not matter.
    assert layer.last.statuses == [dro.Status.INFEASIBLE, dro.Status.OPTIMAL, dro.Status.OPTIMAL]


def test_wrong_input() -> None:
    ambiguity = make("squared")
    y, weights = nominal(2, 4, 36)
    theta = outputs(2, 4, 37)
    layer = dro.Projection(ambiguity)
    for bad in (float("nan"), float("inf")):
        broken = theta.clone()
        broken[1, 2] = bad
        with pytest.raises(dro.ShapeError, match="NaN or infinity"):
            layer(broken, (y, weights))
        atoms = y.clone()
        atoms[0, 0, 0] = bad
        with pytest.raises(dro.ShapeError, match="nominal distribution"):
            layer(theta, (atoms, weights))
    with pytest.raises(dro.ShapeError, match="add up to one"):
        layer(theta, (y, 2 * weights))
    with pytest.raises(dro.ShapeError, match="negative"):
        layer(theta, (y, -weights))
    with pytest.raises(dro.ShapeError, match="pair"):
        layer(theta, y)
    for wrong in ((y[:1], weights[:1]), (y[..., :2], weights), (y, weights[:, :3])):
        with pytest.raises(dro.ShapeError, match="needs atoms of shape"):
            layer(theta, wrong)
    with pytest.raises(dro.ShapeError, match="must have shape"):
        layer(theta[:, :3], (y, weights))


def test_wrong_settings() -> None:
    ambiguity = make("squared")
    with pytest.raises(dro.ModelError, match="method"):
        dro.Projection(ambiguity, method="best")  # type: ignore[arg-type]
    with pytest.raises(dro.ModelError, match="absolute"):
        dro.Projection(ambiguity, absolute=-1.0)
    with pytest.raises(dro.ModelError, match="margin"):
        dro.Projection(ambiguity, margin=np.nan)
    with pytest.raises(dro.ModelError, match="names"):
        dro.Projection(ambiguity, {"mu": 1.0})
    with pytest.raises(dro.ModelError, match="positive"):
        dro.Projection(ambiguity, {"0.mu": 0.0})
    for bad in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(dro.ModelError, match="positive"):
            dro.Projection(ambiguity, {"0.mu": [1.0, bad, 1.0]})
    with pytest.raises(dro.ModelError, match="shape"):
        dro.Projection(ambiguity, [1.0, 2.0])
    with pytest.raises(dro.ModelError, match="MomentSet"):
        dro.Projection("set")  # type: ignore[arg-type]
    with pytest.raises(dro.ModelError, match=r"Moment 0, .*\), has no closed-form"):
        dro.Projection(make("l2"), method="closed_form")


def test_an_empty_batch() -> None:
    ambiguity = make("l1 and squared")
    y, weights = nominal(1, 4, 38)
    found = dro.Projection(ambiguity)(torch.zeros(0, ambiguity.size), (y[:0], weights[:0]))
    assert found.shape == (0, ambiguity.size)


def test_it_says_what_it_does() -> None:
    shown = repr(dro.Projection(make("l2 and squared"), absolute=0.5))
    assert "ConeRule, SquaredDeviation" in shown
    assert "absolute=0.5" in shown
