"""The simplex method and the search on it, against enumeration and against HiGHS; and what they hand on."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro


def test_a_layer_with_a_linear_set_asks_the_simplex_method() -> None:
    y, x = dro.Uncertain(7), cp.Variable(7, boolean=True, name="x")
    problem = dro.DecisionProblem(-y @ x, [np.arange(1.0, 8.0) @ x <= 12], dro.Wasserstein(y, 3))
    rng = np.random.default_rng(0)
    theta, atoms = torch.tensor([[0.1], [0.4]]).double(), torch.from_numpy(rng.uniform(0, 2, (2, 3, 7)))
    nominal = (atoms, torch.full((2, 3), 1 / 3).double())
    found, every = (
        dro.DROLayer(problem, candidates=4, samples=2, enumerate_up_to=0, oracle=oracle).eval()(theta, nominal)
        for oracle in ("auto", "enumeration")
    )
    assert found.oracle.oracle == "simplex"
    assert bool((found.oracle.nodes >= 1).all())
    assert f"simplex: {int(found.oracle.nodes.sum())} nodes" in repr(found.oracle)
    assert torch.equal(found.best[x], every.best[x])
    torch.testing.assert_close(found.value, every.value, rtol=1e-7, atol=1e-9)
