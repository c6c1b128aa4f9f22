"""Statuses of the robust half beside those of the engine, and how outcomes are ranked."""

from __future__ import annotations

import itertools

import cvxpy as cp
import torch

import conelayers
import drolayers as dro
from drolayers.learning.contents import contents
from drolayers.status import SEVERITY, gravest, severity


def test_codes_of_the_engine_mean_the_same() -> None:
    assert {s.name: int(s) for s in conelayers.Status}.items() <= {s.name: int(s) for s in dro.Status}.items()
    assert all(dro.Status(int(s)).ok == s.ok for s in conelayers.Status)
    assert not dro.Status.EMPTY_SET.ok
    assert not dro.Status.INFINITE_WORST_CASE.ok
    assert all(status.advice for status in dro.Status)


def test_severity_is_a_ranking_of_all_statuses() -> None:
    assert sorted(SEVERITY) == sorted(dro.Status)
    assert severity(torch.tensor(SEVERITY)).tolist() == list(range(len(SEVERITY)))
    ok = [status.ok for status in SEVERITY]
    assert ok == sorted(ok, reverse=True)
    for first, second in itertools.product(SEVERITY, repeat=2):
        worse = max(first, second, key=SEVERITY.index)
        assert int(gravest(torch.tensor([int(first)]), torch.tensor([int(second)]))) == worse


def test_a_solution_of_a_problem_has_statuses_of_the_robust_half() -> None:
    y, x = dro.Uncertain(1), cp.Variable(1)
    problem = dro.DecisionProblem(cp.sum_squares(x - y), [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    solution = problem.solve(torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64))
    assert solution.statuses == [dro.Status.OPTIMAL, dro.Status.EMPTY_SET]
    assert all(isinstance(status, dro.Status) for status in solution.statuses)


def test_classes_of_both_packages_are_no_user_s_own() -> None:
    """The engine's objects are recorded by their data, not by the code of their classes."""
    for value in (dro.Exact(), dro.RelativeTemperature(0.1)):
        assert isinstance(contents(value)[1], str)
