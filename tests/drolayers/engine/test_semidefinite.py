"""Semidefinite cones: their rows, their projection and its derivative, kinks, certificates, and Delage and Ye's set."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro
from drolayers import Status


def test_decision_problems_take_semidefinite_decisions() -> None:
    """A cost with uncertain prices over a semidefinite decision, through the public interface."""
    y = dro.Uncertain(2)
    X = cp.Variable((2, 2), symmetric=True)
    cost = y @ cp.diag(X) + cp.sum_squares(X)
    problem = dro.DecisionProblem(cost, [X >> 0.1 * np.eye(2), X[0, 1] == 0.2], dro.MomentSet.grouped(y, 1))
    theta = torch.tensor([[0.3, -0.5, 0.04, 0.09]], dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = problem.solve(theta)
    assert solution.statuses == [Status.OPTIMAL]
    assert float(torch.linalg.eigvalsh(solution.variable(X)[0])[0]) >= 0.1 - 1e-6
