"""Blocks: separated and joint programs agree, and the compiled programs stay small."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m

RETAIL, SHORT, HOLD = np.array([0.25, 0.5, 0.75, 1.0]), np.array([2.0, 4, 6, 8]), np.array([0.5, 1, 1.5, 2])
LOT = np.array([10.0, 13, 16, 19])

SETS = {
    "SOC-I": (lambda: [m.Norm(1)], [11.0, 9.0, 17.5, 16.0, 6.0]),
    "SOC-II": (lambda: [m.SquaredNorm()], [11.0, 9.0, 17.5, 16.0, 30.0]),
    "SOC-III": (lambda: [m.Norm(1), m.SquaredNorm()], [11.0, 9.0, 17.5, 16.0, 6.0, 11.5, 9.5, 17.0, 15.0, 12.0]),
}


NEWSVENDOR_SIZES = {"SOC-I": (45, 21, 85), "SOC-II": (53, 29, 101), "SOC-III": (70, 38, 150)}


def newsvendor(name: str, joint: bool) -> tuple[dro.DecisionProblem, Tensor]:
    """The paper's four items, retail and wholesale."""
    moments, theta = SETS[name]
    y = dro.Uncertain(4, support=dro.support.Nonnegative())
    retail, wholesale = cp.Variable(4, nonneg=True), cp.Variable(4, boolean=True)
    stock = retail + cp.multiply(LOT, wholesale)
    cost = (
        RETAIL @ retail
        + (0.95 * RETAIL * LOT) @ wholesale
        + cp.sum(cp.maximum(cp.multiply(SHORT, y - stock), cp.multiply(HOLD, stock - y)))
    )
    ambiguity = dro.MomentSet(y, moments())
    if joint:
        ambiguity.links = lambda: [np.arange(4)]  # type: ignore[method-assign]
    return dro.DecisionProblem(cost, [], ambiguity), torch.tensor([theta], dtype=torch.float64)


def size(problem: dro.DecisionProblem) -> tuple[int, int, int]:
    """Rows, columns and non-zeros."""
    return problem.program.rows, problem.program.columns, problem.program.nonzeros


@pytest.mark.parametrize("name", SETS)
def test_joint_and_separated_newsvendors_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (joint, theta), (separated, _) = newsvendor(name, joint=True), newsvendor(name, joint=False)
    optima = [problem.solve(theta).objective for problem in (joint, separated)]
    torch.testing.assert_close(*optima, rtol=1e-6, atol=1e-6)
    points = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    many = theta.expand(len(points), -1)
    fixed = [problem.solve(many, fixed=points).objective for problem in (joint, separated)]
    torch.testing.assert_close(*fixed, rtol=1e-6, atol=1e-6)
    with capsys.disabled():
        print(f"\n{name}: joint {size(joint)}, separated {size(separated)} rows, columns, non-zeros")
    assert separated.program.rows < joint.program.rows / 3


@pytest.mark.parametrize("order", [1, 2])
def test_joint_and_separated_balls_agree(order: int) -> None:
    values = []
    for joint in (True, False):
        y, x = dro.Uncertain(3, support=dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
        ambiguity = dro.Wasserstein(y, 4, norm=order, order=order)
        if joint:
            ambiguity.links = lambda: [np.arange(3)]  # type: ignore[method-assign]
        cost = 0.3 * cp.sum(x) + cp.sum(cp.maximum(2 * (y - x), x - y))
        problem = dro.DecisionProblem(cost, [], ambiguity)
        atoms = torch.as_tensor(np.random.default_rng(0).uniform(0, 3, (1, 4, 3)))
        solution = problem.solve(torch.tensor([[0.4]], dtype=torch.float64), (atoms, torch.full((1, 4), 0.25)))
        values.append(solution.objective)
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


def test_mixed_blocks_agree() -> None:
    """Moments over some coordinates, a link between two of four, affine terms beside maxima."""
    values = []
    for joint in (True, False):
        y, x = dro.Uncertain(4, support=dro.support.Box([0, -np.inf, 0, 0], [3, 2, np.inf, 4])), cp.Variable(4)
        moments = [m.SquaredNorm([0, 2, 3]), m.Absolute(mu=[0.0, 1, 1, 0]), m.Norm(1), m.Linear()]
        ambiguity = dro.MomentSet(y, moments)
        if joint:
            ambiguity.links = lambda: [np.arange(4)]  # type: ignore[method-assign]
        cost = cp.sum(cp.maximum(2 * (y[:3] - x[:3]), x[:3] - y[:3])) + x[3] * y[3] + cp.sum_squares(x) + cp.sum(y)
        problem = dro.DecisionProblem(cost, [cp.abs(x) <= 3], ambiguity)
        theta = [1.0, 1.2, 0.8, 0.9, 2.1, 0.7, 1.1, 0.9, 1.0, 1.1, 1.6, 0.2, -0.3, 0.1, 0.4, 0.9]
        values.append(problem.solve(torch.tensor([theta], dtype=torch.float64)).objective)
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


def test_sizes_of_newsvendors() -> None:
    """Two rows of the worst case an item, and nothing that could be eliminated is left."""
    assert {name: size(newsvendor(name, joint=False)[0]) for name in SETS} == NEWSVENDOR_SIZES


@pytest.mark.parametrize("assets", [10, 40])
def test_sizes_of_portfolios(assets: int) -> None:
    """A portfolio under grouped squares is one cone a group: √σ_g‖x_g‖ and no multiplier."""
    y, x = dro.Uncertain(assets), cp.Variable(assets, nonneg=True)
    problem = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 5))
    groups = assets // 5
    # One budget, x ≥ 0, and a cone of six rows a group; a column an asset and a group.
    assert size(problem) == (1 + assets + 6 * groups, assets + groups, 3 * assets + groups)
    alone = dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    # By single coordinates it is a linear program in x alone.
    assert size(alone) == (1 + assets, assets, 2 * assets)


@pytest.mark.parametrize(("norm", "order"), [(1, 1), (2, 1), (2, 2)])
def test_balls_on_all_of_space_say_norms_once(norm: int, order: int) -> None:
    """A portfolio under a ball is -ȳᵀx + ε‖x‖, whatever the number of atoms."""
    sizes = []
    for atoms in (3, 30):
        y, x = dro.Uncertain(6), cp.Variable(6, nonneg=True)
        ball = dro.Wasserstein(y, atoms, norm=norm, order=order)
        sizes.append(size(dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], ball)))
    assert sizes[0] == sizes[1]


def test_rows_grow_linearly() -> None:
    rows = []
    for items in (10, 20, 40):
        y, x = dro.Uncertain(items, support=dro.support.Nonnegative()), cp.Variable(items, nonneg=True)
        cost = cp.sum(cp.maximum(2 * (y - x), x - y))
        rows.append(dro.DecisionProblem(cost, [], dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])).program.rows)
    assert rows[2] - rows[1] == 2 * (rows[1] - rows[0])


def test_too_many_combinations_are_refused() -> None:
    y, x = dro.Uncertain(20), cp.Variable(20)
    with pytest.raises(dro.ModelError, match="combinations of pieces"):
        dro.DecisionProblem(cp.sum(cp.abs(y - x)), [], dro.MomentSet(y, [m.Norm(2)]))
