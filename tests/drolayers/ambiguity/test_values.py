"""Moments say the same three times: in torch, as CVXPY expressions, and in the plain table."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.ambiguity.base import Mass
from tests.drolayers.ambiguity.sets import CENTRE, SETS, SetCase, stacked

MOMENTS = [case for case in SETS if case.moments is not None]
POINTS = CENTRE + np.random.default_rng(0).normal(size=(6, 2))
IDS = [case.name for case in MOMENTS]


@pytest.mark.parametrize("case", MOMENTS, ids=IDS)
def test_values_in_torch(case: SetCase) -> None:
    ambiguity = case.make(dro.Uncertain(2))
    parameters = case.parameters(2)
    theta = ambiguity.flat(stacked(parameters))
    found = ambiguity.values(theta, torch.as_tensor(POINTS).expand(2, -1, -1)).numpy()
    for item, given in enumerate(parameters):
        np.testing.assert_allclose(found[item], case.moments(given, POINTS), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(torch.cat(ambiguity.sigmas(theta), 1)[item].numpy(), case.sigma(given))


@pytest.mark.parametrize("case", MOMENTS, ids=IDS)
def test_recession(case: SetCase) -> None:
    ambiguity = case.make(dro.Uncertain(2))
    (given,) = case.parameters(1)
    directions = POINTS - CENTRE
    theta = ambiguity.flat(stacked([given]))
    found = ambiguity.values(theta, torch.as_tensor(directions)[None], recession=True)[0].numpy()
    expected = case.recession(given, directions)
    # What grows faster than linearly has no recession but infinity; one-sided squares have zero on the other side.
    expected = np.where(expected > 100, np.inf, expected)
    np.testing.assert_allclose(found, np.where(abs(expected) < 1e-6, 0.0, expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", MOMENTS, ids=IDS)
def test_expressions(case: SetCase) -> None:
    """In y for given parameters: smallest at fixed points, which is the value where the epigraph is tight."""
    ambiguity = case.make(dro.Uncertain(2))
    (given,) = case.parameters(1)
    theta = ambiguity.flat(stacked([given]))
    parts = []
    for position, moment in enumerate(ambiguity.moments):
        leaves = {n: v[0].numpy() for n, v in ambiguity.leaf_values(theta, position).items()}
        expression, constraints = moment.expression(cp.Constant(POINTS), leaves)
        assert expression.shape == (len(POINTS), moment.bounds)
        cp.Problem(cp.Minimize(cp.sum(expression)), constraints).solve(cp.CLARABEL)
        parts.append(expression.value)
    np.testing.assert_allclose(np.concatenate(parts, 1), case.moments(given, POINTS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", SETS, ids=[case.name for case in SETS])
def test_parameters_and_usage(case: SetCase) -> None:
    ambiguity = case.make(dro.Uncertain(2))
    given = case.parameters(2)
    theta = stacked(given)
    assert list(ambiguity.parameters) == list(case.base)
    assert {n: np.shape(v) for n, v in case.base.items()} == ambiguity.parameters
    flat = ambiguity.pack(theta)
    assert flat.shape == (2, ambiguity.size)
    assert all(torch.equal(v, theta[n]) for n, v in ambiguity.unpack(flat).items())
    if case.events is not None:
        # What a mixture uses is looked at in test_mixture.py.
        return
    nominal = case.nominal(2)
    atoms = torch.as_tensor(POINTS[:3]).expand(2, -1, -1) if nominal is None else nominal[0] + 0.25
    weights = torch.full((2, 3), 1 / 3, dtype=torch.float64) if nominal is None else nominal[1]
    origin = torch.arange(3).expand(2, -1) if nominal else torch.zeros(2, 3, dtype=torch.int64)
    mass = Mass(atoms, weights, origin, torch.zeros(2, 0, 2), torch.zeros(2, 0, dtype=torch.int64))
    used, bounds = ambiguity.usage(flat, nominal, mass)
    if case.divergence is not None:
        # Where the mass has moved, no reweighting is left; where it has not, the weights are their own.
        assert bool(used.isinf().all())
        stayed = replace(mass, atoms=nominal[0])
        torch.testing.assert_close(ambiguity.usage(flat, nominal, stayed)[0], torch.zeros(2, 1).double())
        turned = replace(stayed, probabilities=weights.flip(1))
        expected = [[case.used(w.flip(0).numpy(), w.numpy())] for w in weights]
        np.testing.assert_allclose(ambiguity.usage(flat, nominal, turned)[0].numpy(), expected, rtol=1e-9)
    elif case.covariance:
        for item, t in enumerate(given):
            xi = np.linalg.solve(t["factor"], (atoms[item].numpy() - t["mu"]).T)
            mean, second = xi.mean(1), xi @ xi.T / 3
            np.testing.assert_allclose(used[item].numpy(), [mean @ mean, np.linalg.eigvalsh(second)[-1]], rtol=1e-9)
            np.testing.assert_allclose(bounds[item].numpy(), [t["gamma1"], t["gamma2"]])
    elif case.gauge is not None:
        expected = [case.gauge(t, a.numpy()).max() for t, a in zip(given, atoms, strict=True)]
        np.testing.assert_allclose(used[:, 0].numpy(), expected, rtol=1e-9)
    elif case.ball is None:
        expected = [w.numpy() @ case.moments(t, a.numpy()) for w, t, a in zip(weights, given, atoms, strict=True)]
        np.testing.assert_allclose(used.numpy(), np.stack(expected), rtol=1e-6, atol=1e-7)
    else:
        ways = np.full((3, 2), 0.25)
        expected = [case.spent(t, w.numpy(), ways) for w, t in zip(weights, given, strict=True)]
        np.testing.assert_allclose(torch.cat([used, bounds], 1).numpy(), expected)
        stayed = ambiguity.usage(flat, nominal, replace(mass, atoms=nominal[0]))[0]
        torch.testing.assert_close(stayed, torch.zeros(2, 1).double())
