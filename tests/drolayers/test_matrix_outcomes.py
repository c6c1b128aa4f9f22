"""An uncertain matrix says what the vector of its rows says, and nobody has to know how it is laid out."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import plot

T, N = 2, 3
PRICE = np.arange(1.0, T * N + 1).reshape(T, N) ** 1.5
LO, HI = np.arange(T * N).reshape(T, N) / 10.0, 3.0 + np.arange(T * N).reshape(T, N)
Cost = Callable[[cp.Expression, cp.Variable], cp.Expression]

COSTS: dict[str, Cost] = {
    "entry": lambda y, x: cp.sum(cp.maximum(cp.multiply(PRICE, y) - x[0], 0)) + cp.sum(x),
    "row": lambda y, x: cp.pos(y[1] @ x) + cp.sum(cp.pos(x - y[0])),
    "column": lambda y, x: cp.sum(cp.abs(y[:, 1] - x[:2])) + x[2] * y[1, 0] + y[0, 2],
    "transposed": lambda y, x: cp.max(y.T @ [1.0, 2.0] - x) + cp.sum(cp.abs(x)),
    "product": lambda y, x: cp.norm(y @ x - 1, 1) + cp.sum(cp.multiply(PRICE, y)),
    "second stage": lambda y, x: second_stage(y, x),
}


def second_stage(y: cp.Expression, x: cp.Variable) -> cp.Expression:
    short = cp.Variable((T, N), nonneg=True)
    return cp.sum(x) + dro.recourse(
        cp.Minimize(cp.sum(cp.multiply(PRICE, short))), [short[t] >= y[t] - x for t in (0, 1)]
    )


def pair(cost: Cost, ball: bool = False) -> tuple[dro.DecisionProblem, dro.DecisionProblem, cp.Variable, cp.Variable]:
    """The same problem in a matrix and in the vector of its rows."""
    problems, chosen = [], []
    for shape, ends in (((T, N), (LO, HI)), (T * N, (LO.ravel(), HI.ravel()))):
        y, x = dro.Uncertain(shape, dro.support.Box(*ends)), cp.Variable(N)
        written = y if y.ndim == 2 else cp.vstack([y[:N], y[N:]])
        ambiguity = dro.Wasserstein(y, 2) if ball else dro.MomentSet(y, [dro.moments.Mean(), dro.moments.Variance()])
        problems.append(dro.DecisionProblem(cost(written, x), [x >= -2, x <= 6], ambiguity))
        chosen.append(x)
    return problems[0], problems[1], chosen[0], chosen[1]


def outcomes(count: int, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).uniform(LO, HI, (count, T, N)))


@pytest.mark.parametrize("name", list(COSTS))
def test_the_same_as_the_vector_of_its_rows(name: str) -> None:
    matrix, vector, x, z = pair(COSTS[name])
    at, Y = torch.linspace(-1, 4, 12).reshape(4, N).double(), outcomes(4)
    assert tuple(matrix.ambiguity.y.shape) == (T, N)
    losses = matrix.loss({x: at}, Y)
    torch.testing.assert_close(losses, vector.loss({z: at}, Y.flatten(1)))
    torch.testing.assert_close(losses, matrix.loss({x: at}, Y.flatten(1)))
    mean, spread = 1.0 + 0.2 * Y.mean(0).expand(4, T, N), 0.1 + 0.05 * Y
    named = {"0.mu": mean, "1.mu": mean, "1.sigma": spread}
    flat = {key: value.flatten(1) for key, value in named.items()}
    expected = vector.worst_case_cost({z: at}, flat)
    torch.testing.assert_close(matrix.worst_case_cost({x: at}, named), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(matrix.solve(flat).objective, vector.solve(flat).objective, rtol=1e-6, atol=1e-6)
    worst = matrix.worst_case_distribution({x: at}, named)
    assert tuple(worst.atoms.shape[2:]) == (T, N)
    count = worst.atoms.shape[1]
    values = matrix.loss({x: at.repeat_interleave(count, 0)}, worst.atoms.flatten(0, 1)).reshape(4, count)
    torch.testing.assert_close((values * worst.probabilities).sum(1), expected, rtol=1e-5, atol=1e-5)
    inside = worst.atoms[worst.probabilities > 1e-6]
    assert bool(((inside >= torch.as_tensor(LO) - 1e-5) & (inside <= torch.as_tensor(HI) + 1e-5)).all())


def test_nominal_atoms_in_the_shape_of_y() -> None:
    matrix, vector, x, z = pair(COSTS["row"], ball=True)
    atoms, weights = outcomes(6).reshape(3, 2, T, N), torch.full((3, 2), 0.5).double()
    radius, at = torch.tensor([[0.01], [0.1], [1.0]]).double(), torch.ones(3, N).double()
    expected = vector.worst_case_cost({z: at}, radius, (atoms.flatten(2), weights))
    for given in (atoms, atoms.flatten(2)):
        torch.testing.assert_close(matrix.worst_case_cost({x: at}, radius, (given, weights)), expected)
    layer = dro.DROLayer(matrix)
    torch.testing.assert_close(layer(radius, (atoms, weights)).value, layer(radius, (atoms.flatten(2), weights)).value)
    assert tuple(matrix.worst_case_distribution({x: at}, radius, (atoms, weights)).atoms.shape[2:]) == (T, N)


def test_learning_from_outcomes_in_the_shape_of_y() -> None:
    matrix, _, x, _ = pair(COSTS["entry"])
    Y = outcomes(40)
    Z = Y.mean((1, 2))[:, None] + 0.1
    stages = {"pretraining": dro.Stage(epochs=2), "training": dro.Stage(epochs=1)}
    shaped = dro.DecisionFocusedLearner(matrix, **stages).fit(Z, Y, validation=(Z[:9], Y[:9]))
    flat = dro.DecisionFocusedLearner(matrix, **stages).fit(Z, Y.flatten(1), validation=(Z[:9], Y[:9].flatten(1)))
    torch.testing.assert_close(shaped.decide(Z)[x], flat.decide(Z)[x])
    assert shaped.score(Z, Y.numpy()) == pytest.approx(flat.score(Z, Y.flatten(1)))
    average = dro.baselines.SampleAverage(matrix).fit(Z, Y)
    assert tuple(average.decide(Z)[x].shape) == (40, N)
    nominal = dro.nominal.KNN(k=5).fit(Z, Y)
    theta = dro.Projection(matrix.ambiguity)(torch.ones(40, matrix.ambiguity.size).double(), nominal(Z))
    assert bool(matrix.solve(theta).ok.all())


def test_supports_of_matrices() -> None:
    rows = dro.Uncertain((T, N), dro.support.Box(0, [1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(rows.support.ends(6)[1], [1, 2, 3, 1, 2, 3])
    both = dro.Uncertain((T, N), dro.support.Box(LO, HI) & dro.support.Polyhedron(np.ones((1, 6)), [9.0]))
    assert both.is_nonneg()
    assert float(both.support.violation(torch.as_tensor(HI.ravel()))) > 0
    assert dro.Uncertain((3,)).shape == (3,)
    with pytest.raises(dro.ModelError, match=r"fit a y of shape \(2, 3\)"):
        dro.Uncertain((T, N), dro.support.Box(0, np.ones((3, 2))))
    with pytest.raises(dro.ModelError, match="rows and columns"):
        dro.Uncertain((2, 3, 4))
    with pytest.raises(dro.ModelError, match="whole number"):
        dro.Uncertain((2, 0))


def test_other_shapes_are_refused() -> None:
    """A transposed outcome has as many numbers, and would be silently wrong."""
    matrix, _, x, _ = pair(COSTS["row"])
    at, Y = torch.ones(4, N).double(), outcomes(4)
    with pytest.raises(dro.ShapeError, match=r"\(batch, \*\(2, 3\)\) or \(batch, 6\), not \(4, 3, 2\)"):
        matrix.loss({x: at}, Y.transpose(1, 2))
    with pytest.raises(dro.ShapeError, match="Y must be"):
        dro.DecisionFocusedLearner(matrix).fit(Y[:, :, 0], Y.transpose(1, 2))
    # One outcome of one row, flat: not to be taken for a matrix.
    y = dro.Uncertain((1, 2))
    assert y.rows(torch.zeros(1, 2)).shape == (1, 2)
    assert y.rows(torch.zeros(1, 1, 2)).shape == (1, 2)


def test_pictures_name_the_entries() -> None:
    matrix, _, x, _ = pair(COSTS["entry"])
    mean = 1.0 + 0.2 * outcomes(1)
    theta = {"0.mu": mean, "1.mu": mean, "1.sigma": 0.1 * mean}
    axes = plot.worst_case(matrix, {x: torch.ones(1, N).double()}, theta, coordinates=[1, 3])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("y[0, 1]", "y[1, 0]")
