"""Bounds of integers: those that hold none, those that are implied, those that are large."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import drolayers as dro
from conelayers import compile_program
from conelayers.errors import ModelError
from conelayers.oracles import BranchAndBound, Oracle, make_oracle
from tests.conelayers.integer.test_domains import OWN


@pytest.fixture(params=OWN)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return make_oracle(request.param)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [([0.3, 0.7], "z has no integer between its bounds"), ([0, 1e10], "z may exceed 10,000,000 in size")],
    ids=["empty", "large"],
)
def test_a_domain_without_use_is_refused_when_the_problem_is_built(bounds: list[float], said: str) -> None:
    y, z = dro.Uncertain(2), cp.Variable(2, integer=True, bounds=bounds, name="z")
    with pytest.raises(ModelError, match=said) as error:
        dro.DecisionProblem(y @ z, [], dro.MomentSet.grouped(y, 1))
    assert "\n" not in str(error.value)
    price = cp.Parameter(2)
    program = compile_program(cp.Problem(cp.Minimize(price @ z)), [price])
    with pytest.raises(ModelError, match=said):
        BranchAndBound().best(program, program.values(torch.ones(1, 2).double()), 1)


def test_bounds_given_as_constraints_are_bounds(oracle: Oracle) -> None:
    z, price = cp.Variable(3, integer=True, name="z"), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(price @ z), [z >= 0.5, 2 * z <= 18, z[1] == 4, cp.sum(z) >= 9])
    program = compile_program(problem, [price])
    assert [end.tolist() for end in program.integer_bounds] == [[1.0, 4.0, 1.0], [9.0, 4.0, 9.0]]
    found = oracle.best(program, program.values(torch.tensor([[1.0, 2.0, 3.0]]).double()), 2)
    assert found.points[0].tolist() == [[4.0, 4.0, 1.0], [5.0, 4.0, 1.0]]
    y, w = dro.Uncertain(2), cp.Variable(2, integer=True, name="w", bounds=[0.3, 0.7])
    with pytest.raises(ModelError, match="w has no integer between its bounds"):
        dro.DecisionProblem(y @ w, [], dro.MomentSet.grouped(y, 1))
    # Constraints may exclude all integers: then the problem is infeasible.
    v = cp.Variable(2, integer=True, name="v")
    excluded = dro.DecisionProblem(y @ v, [v >= 0.3, v <= 0.7], dro.MomentSet.grouped(y, 1))
    assert dro.DROLayer(excluded)(torch.ones(1, excluded.size)).statuses == [dro.Status.INFEASIBLE]
