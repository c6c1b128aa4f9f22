"""Bounds of integers: those that hold none, those that are implied, those that are large."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import Status, compile_program
from conelayers.oracles import Oracle, make_oracle

OWN = ["auto", "branch_and_bound"]


@pytest.fixture(params=OWN)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return make_oracle(request.param)


def test_a_domain_that_depends_on_theta_is_infeasible(oracle: Oracle) -> None:
    z, price, low = cp.Variable(4, integer=True, bounds=[0, 9]), cp.Parameter(4), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(price @ z), [z >= low, z <= low + 0.4]), [price, low])
    theta = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.3], [1.0, 2.0, 3.0, 4.0, 2.8]], dtype=torch.float64)
    found = oracle.best(program, program.values(theta), 2)
    assert found.statuses == [Status.INFEASIBLE, Status.OPTIMAL]
    assert found.points[1, 0].tolist() == [3.0] * 4
    # No box has to be solved to see it.
    assert int(found.nodes[0]) == 0


@pytest.mark.parametrize("kind", ["abs", "norm", "squares", "capacity"])
def test_large_integers_are_right_to_the_last_unit(oracle: Oracle, kind: str) -> None:
    z, target = cp.Variable(2, integer=True, bounds=[0, 10_000_000]), cp.Parameter(2)
    objective, constraints = {
        "abs": (cp.sum(cp.abs(z - target)), []),
        "norm": (cp.norm(z - target), []),
        "squares": (cp.sum_squares(z - target), []),
        "capacity": (-3 * z[0] - 2 * z[1], [2 * z[0] + z[1] <= target[0], z[0] + 3 * z[1] <= target[1]]),
    }[kind]
    theta = torch.from_numpy(2e6 + np.random.default_rng(0).uniform(-5, 5, (4, 2)))
    program = compile_program(cp.Problem(cp.Minimize(objective), constraints), [target])
    found = oracle.best(program, program.values(theta), 3)
    assert found.statuses == [Status.OPTIMAL] * 4
    steps = np.array(list(itertools.product(range(-9, 10), repeat=2)))
    for item, t in enumerate(theta.numpy()):
        corner = np.array([3 * t[0] - t[1], 2 * t[1] - t[0]]) / 5 if kind == "capacity" else t
        near = np.round(corner) + steps
        value = {
            "abs": np.abs(near - t).sum(1),
            "norm": np.linalg.norm(near - t, axis=1),
            "squares": ((near - t) ** 2).sum(1),
            "capacity": np.where(
                (2 * near[:, 0] + near[:, 1] <= t[0]) & (near[:, 0] + 3 * near[:, 1] <= t[1]), -near @ [3, 2], np.inf
            ),
        }[kind]
        where = {tuple(point): worth for point, worth in zip(near.tolist(), value.tolist(), strict=True)}
        got = [where[tuple(point)] for point in found.points[item].tolist()]
        np.testing.assert_allclose(got, np.sort(value)[:3], rtol=0, atol=1e-3)
