"""Vectors of moments say what the same moments say, written out one by one; and build in one piece."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from tests.drolayers.learning.small import assert_learnt, learner

m = dro.moments
DIM = 5
SUPPORTS = {"reals": dro.support.Reals, "nonnegative": dro.support.Nonnegative, "box": lambda: dro.support.Box(0, 9)}


def problem(moments: list[m.Moment], support: str, pieces: int) -> tuple[dro.DecisionProblem, cp.Variable]:
    """A newsvendor, or a portfolio under CVaR, which ties all coordinates."""
    y, x = dro.Uncertain(DIM, SUPPORTS[support]()), cp.Variable(DIM, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), 0.5 * (x - y))) if pieces else dro.cvar(-y @ x, 0.8)
    return dro.DecisionProblem(cost, [] if pieces else [cp.sum(x) == 1], dro.MomentSet(y, moments)), x


def written_out() -> list[m.Moment]:
    """Two linear moments and a square for every coordinate."""
    sides = [m.Linear(mu=sign * e) for sign in (1, -1) for e in np.eye(DIM)]
    return [*sides, *[m.SquaredNorm([i]) for i in range(DIM)]]


def flat(mean: Tensor, within: Tensor, centre: Tensor, sigma: Tensor) -> Tensor:
    """θ of the set written out."""
    squares = torch.stack([centre, sigma], 2).flatten(1)
    return torch.cat([within + mean, within - mean, squares], 1)


@pytest.mark.parametrize("pieces", [0, 1])
@pytest.mark.parametrize("support", list(SUPPORTS))
@pytest.mark.parametrize("equation", [False, True])
def test_as_if_written_out(support: str, pieces: int, equation: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    mean, within, centre, sigma = (torch.rand(4, DIM, generator=generator).double() for _ in range(4))
    mean, within, centre, sigma = 3 + mean, 0.1 + 0.2 * within, 3.3 + 0.4 * centre, 1 + sigma
    if equation:
        within = torch.zeros_like(within)
    given = [mean, centre, sigma] if equation else [mean, within, centre, sigma]
    for part in given:
        part.requires_grad_()
    vectors, x = problem([m.Mean() if equation else m.Mean(sigma=None), m.Variance()], support, pieces)
    each, other = problem(written_out(), support, pieces)
    at = torch.rand(4, DIM, generator=generator).double()
    if not pieces:
        at = at / at.sum(1, keepdim=True)
    extra = {} if pieces else {v: torch.full((4, *v.shape), -2.0).double() for v in vectors.variables if v is not x}
    same = {} if pieces else {v: torch.full((4, *v.shape), -2.0).double() for v in each.variables if v is not other}
    found = [
        vectors.worst_case_cost({x: at, **extra}, torch.cat(given, 1)),
        each.worst_case_cost({other: at, **same}, flat(mean, within, centre, sigma)),
        vectors.solve(torch.cat(given, 1)).objective,
        each.solve(flat(mean, within, centre, sigma)).objective,
    ]
    assert all(bool(value.isfinite().all()) for value in found)
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[2], found[3], rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(value.sum(), given, retain_graph=True) for value in found]
    for mine, theirs in ((0, 1), (2, 3)):
        for one, two in zip(gradients[mine], gradients[theirs], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_one_piece_however_many_coordinates() -> None:
    """As many CVXPY parameters for 60 coordinates as for 2, and a multiplier of either sign for an equation."""
    sizes = []
    for dim in (2, 60):
        y, x = dro.Uncertain(dim), cp.Variable(dim)
        ambiguity = dro.MomentSet(y, [m.Mean(), m.Mean(sigma=None), m.Variance()])
        assert len(ambiguity.features) == 5
        program = dro.DecisionProblem(cp.sum(cp.maximum(y - x, 2 * (x - y))), [], ambiguity).program
        sizes.append((program.rows, program.columns))
    assert all(large == 30 * small for small, large in zip(*sizes, strict=True))


def test_means_are_projected_onto_their_interval() -> None:
    """An equation takes the nominal mean; a bound that is learnt meets the mean half way."""
    atoms = torch.tensor([[[1.0, 4.0], [3.0, 0.0]]]).double()
    nominal = atoms, torch.tensor([[0.5, 0.5]]).double()
    y = dro.Uncertain(2)
    equation = dro.Projection(dro.MomentSet(y, [m.Mean()]), absolute=0.5)
    assert equation(torch.tensor([[5.0, 2.0]]).double(), nominal).tolist() == [[2.0, 2.0]]
    assert equation.last is not None
    assert bool(equation.last.ok.all())
    learnt = dro.Projection(dro.MomentSet(y, [m.Mean(sigma=None)]))
    assert learnt(torch.tensor([[5.0, 2.5, 1.0, 1.0]]).double(), nominal).tolist() == [[4.0, 2.5, 2.0, 1.0]]


def test_means_are_learnt() -> None:
    """Sets with vectors go through pre-training, the projection and the layer."""
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    cost = cp.sum(x) + 4 * cp.sum(cp.pos(y - x))
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(40, 1, generator=generator)
    demand = 5 + z + torch.rand(40, 3, generator=generator)
    # An equation takes the nominal mean where it is projected.
    for moments, given in (([m.Mean(), m.Variance()], ["0.mu"]), ([m.Mean(sigma=None), 2 * m.Variance()], [])):
        problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, moments))
        fitted = [
            learner(problem, pretraining__epochs=epochs, training=None, projection=None).fit(z, demand)
            for epochs in (0, 20)
        ]
        errors = [float((one.predict_set(z)["0.mu"] - (5.5 + z)).abs().mean()) for one in fitted]
        assert errors[1] < errors[0]
        assert_learnt(problem, z, demand, given)
        projected = learner(problem, training=None).fit(z, demand)
        atoms, weights = projected.pipeline_.nominal(z.double())
        mean = (weights[..., None] * atoms).sum(1)
        found = projected.predict_set(z)
        assert bool(((found["0.mu"] - mean).abs() <= found.get("0.sigma", torch.zeros(())) + 1e-9).all())
