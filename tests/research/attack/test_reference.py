"""The reference against closed forms, and against sums over grids of distributions."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from research.attack.draw import build, draw_choices
from research.attack.drawn import Draw
from research.attack.masses import Gauge, Masses, Moment, everywhere
from research.attack.moments import MOMENTS
from research.attack.pieces import Pieces
from research.attack.reference import Reference


def worst(moment: Moment, values: dict, sigma: float, pieces: Pieces, dim: int) -> float:
    """The worst expectation of some pieces at the decision zero."""
    masses = Masses(cp.Variable(pieces.count, nonneg=True), cp.Variable((pieces.count, dim)), pieces.count, 1.0)
    conditions = [cp.sum(masses.p) == 1, *moment.constrain(values, sigma, masses), *everywhere(dim).constrain(masses)]
    objective = cp.sum(cp.multiply(pieces.f, masses.m)) + pieces.h @ masses.p
    return float(cp.Problem(cp.Maximize(objective), conditions).solve(solver=cp.CLARABEL))


def test_excess_under_a_squared_deviation() -> None:
    """sup E (y - q)⁺ with E (y - μ)² ≤ s² is s² / (4 (q - μ)): mass s² / t² at μ + t with t = 2 (q - μ)."""
    mu, s, q = 2.0, 0.7, 2.4
    moment = Moment("", ((1.0, Gauge("square", lambda v: (np.eye(1), v["mu"]))),), lambda d: {}, {})
    pieces = Pieces(np.zeros((2, 1, 1)), np.array([[1.0], [0.0]]), np.zeros((2, 1)), np.array([-q, 0.0]))
    assert worst(moment, {"mu": np.array([mu])}, s**2, pieces, 1) == pytest.approx(s**2 / (4 * (q - mu)), abs=1e-6)


@pytest.mark.parametrize("name", MOMENTS)
def test_masses_are_the_distributions_of_a_grid(name: str) -> None:
    """No distribution on a grid costs more, and on a fine one some cost nearly as much."""
    rng = np.random.default_rng(5)
    sample = rng.uniform(1.2, 2.8, (30, 1))
    draw = Draw(rng, 1, 1.0, 1.0, 2, 1, np.array([2.0]), sample)
    moment = MOMENTS[name](draw)
    values = moment.draw(draw)
    grid = np.linspace(0.5, 3.5, 1501)[:, None]
    at = moment.at(values, grid).reshape(len(grid), -1)
    sigma = moment.at(values, sample).reshape(len(sample), -1).mean(0) + 0.1 if moment.sigma is None else moment.sigma
    pieces = Pieces(np.zeros((3, 1, 1)), np.array([[2.0], [-1.0], [0.3]]), np.zeros((3, 1)), np.array([-4.0, 2.0, 0.0]))
    cost = (grid @ pieces.f.T + pieces.h).max(1)
    slack = 1e-3 if moment.sigma is not None else 0.0
    found = linprog(-cost, A_ub=at.T, b_ub=sigma + slack, A_eq=np.ones((1, len(grid))), b_eq=[1.0])
    masses = Masses(cp.Variable(3, nonneg=True), cp.Variable((3, 1)), 3, 1.0)
    conditions = [cp.sum(masses.p) == 1, *moment.constrain(values, np.squeeze(sigma), masses)]
    conditions += [masses.m[:, 0] >= 0.5 * masses.p, masses.m[:, 0] <= 3.5 * masses.p]
    objective = cp.sum(cp.multiply(pieces.f, masses.m)) + pieces.h @ masses.p
    value = float(cp.Problem(cp.Maximize(objective), conditions).solve(solver=cp.CLARABEL))
    assert value == pytest.approx(-found.fun, abs=1e-2)


def test_the_optimum_is_the_value_of_its_decision() -> None:
    """Both sides of the minimax theorem, wherever the reference is accurate."""
    seen = 0
    for number in range(25):
        program = build(draw_choices(11, number), 11, number)
        if program.cost.upper is not None or any(w.kind == "fragility" for w in program.cost.worst):
            continue
        reference = Reference(program, program.items[0])
        best = reference.optimum()
        if not best.accurate:
            continue
        x = best.x[: program.cost.size]
        assert reference.violation(x)[0] <= 1e-6
        assert reference.value(x).value == pytest.approx(best.value, rel=1e-6, abs=1e-6)
        seen += 1
    assert seen >= 10
