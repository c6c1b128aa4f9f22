"""Building is vectorised: the expressions that CVXPY sees do not grow in number with atoms or moments."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from conelayers import compile_program
from drolayers.products import kron, tiled, times
from drolayers.reformulation.formulate import formulate

m = dro.moments
SUPPORTS = {"reals": dro.support.Reals(), "nonnegative": dro.support.Nonnegative(), "box": dro.support.Box(-1.0, 2.0)}


def nodes(problem: dro.DecisionProblem) -> int:
    """Number of expressions in the built problem, each counted as often as it stands there."""
    worst = formulate([problem.parsed], problem.ambiguity)

    def count(part: Any) -> int:
        return 1 + sum(count(arg) for arg in part.args)

    return count(worst.value) + sum(count(constraint) for constraint in worst.constraints)


def portfolio(ambiguity: Any, support: dro.support.Support = SUPPORTS["reals"]) -> dro.DecisionProblem:
    y, x = dro.Uncertain(3, support), cp.Variable(3, nonneg=True)
    return dro.DecisionProblem(dro.cvar(-(y @ x), 0.9), [cp.sum(x) == 1], ambiguity(y))


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("norm", [1, 2, np.inf])
@pytest.mark.parametrize("order", [1, 2])
def test_atoms_make_expressions_larger_not_more(support: str, norm: float, order: int) -> None:
    few, many = (portfolio(lambda y, n=n: dro.Wasserstein(y, n, norm, order), SUPPORTS[support]) for n in (5, 50))
    assert nodes(few) == nodes(many)
    # And the program grows with the atoms, no faster.
    sizes = [
        portfolio(lambda y, n=n: dro.Wasserstein(y, n, norm, order), SUPPORTS[support]).program.nonzeros
        for n in (5, 10, 15)
    ]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


KINDS = {
    "linear": lambda mu: m.Linear(mu),
    "absolute": lambda mu: m.Absolute(mu),
    "absolute without threshold": lambda mu: m.Absolute(mu, h=0.0),
    "absolute with bounds": lambda mu: m.Absolute(mu, sigma=1.0),
    "power": lambda mu: m.AbsolutePower(3, mu),
    "positive square": lambda mu: m.PositiveSquare(mu),
}


@pytest.mark.parametrize("given", [False, True], ids=["learnt", "given"])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_one_kind_are_one_expression(kind: str, given: bool) -> None:
    rng = np.random.default_rng(0)

    def ambiguity(y: dro.Uncertain, count: int) -> dro.MomentSet:
        mus = [rng.normal(size=3) if given else None for _ in range(count)]
        return dro.MomentSet(y, [m.SquaredNorm(), *[KINDS[kind](mu) for mu in mus]])

    few, many = (portfolio(lambda y, n=n: ambiguity(y, n)) for n in (4, 40))
    assert nodes(few) == nodes(many)


def test_no_warning_of_subexpressions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        portfolio(lambda y: dro.Wasserstein(y, 1000))


def test_moments_taken_together_are_what_they_are_alone() -> None:
    """A multiple is another kind: with it in between, the others are taken in other groups."""
    rng = np.random.default_rng(1)
    mus = rng.normal(size=(3, 3)) * np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

    def solved(apart: bool) -> torch.Tensor:
        factors = torch.tensor([1.0, 2.0, 3.0] if apart else [1.0, 1.0, 1.0]).double()
        moments = [m.SquaredNorm(), *[float(c) * m.Absolute(mu) for c, mu in zip(factors, mus, strict=True)]]
        problem = portfolio(lambda y: dro.MomentSet(y, moments))
        assert list(problem.ambiguity.parameters) == [
            "0.mu",
            "0.sigma",
            *[f"{i}.{n}" for i in (1, 2, 3) for n in names],
        ]
        given = theta.clone()
        given[:, 5::2] *= factors
        solution = problem.solve(given)
        assert bool(solution.ok.all())
        return solution.objective

    names = ("h", "sigma")
    theta = torch.tensor([[0.3, 0.1, 0.2, 4.0, 0.1, 0.5, -0.2, 0.4, 0.0, 0.9]], dtype=torch.float64)
    torch.testing.assert_close(solved(apart=False), solved(apart=True), rtol=1e-7, atol=0.0)


def test_products() -> None:
    """What the helpers promise, as data of a program."""
    p, q, x = cp.Parameter(3), cp.Parameter(2), cp.Variable(3)
    rows = [times(p, x), times(np.array([1.0, -2.0, 0.5]), x), times(q[:1], x), kron(q, x), tiled(x, 2)]
    problem = cp.Problem(cp.Minimize(cp.sum(x)), [cp.hstack(rows) == 0, times(p, cp.Constant([1.0, 2.0, 3.0])) == x])
    program = compile_program(problem, [p, q])
    a, b = np.array([2.0, 3.0, 5.0]), np.array([7.0, 11.0])
    values = program.values(torch.tensor([[*a, *b]]).double())
    found = np.zeros((program.rows, 3))
    row = np.repeat(np.arange(program.rows), np.diff(program.A_indptr.numpy()))
    found[row, program.A_indices.numpy()] = values.A[0].numpy()
    eye = np.eye(3)
    expected = np.concatenate([np.diag(a), np.diag([1, -2, 0.5]), 7 * eye, 7 * eye, 11 * eye, eye, eye])
    np.testing.assert_allclose(np.abs(found[: len(expected)]), np.abs(expected))
    np.testing.assert_allclose(np.abs(values.b[0].numpy()[len(expected) :]), a * [1, 2, 3])
