"""What the package offers under ``dro``: the names, the code of the first example, shapes and types."""

from __future__ import annotations

import copy
import pickle

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro

NAMES = [
    "LayerError",
    "DecisionProblem",
    "Derivative",
    "DifferentiationError",
    "Learn",
    "MissingExtraError",
    "ModelError",
    "MomentSet",
    "Nominal",
    "ShapeError",
    "SolveError",
    "Status",
    "Uncertain",
    "Wasserstein",
    "always",
    "chance",
    "cvar",
    "expected",
    "recourse",
]
MOMENTS = ["Absolute", "AbsolutePower", "Conic", "Linear", "Norm", "PositiveSquare", "SquaredNorm", "maximum"]
SUPPORTS = ["Box", "Conic", "Ellipsoid", "Nonnegative", "Polyhedron", "Reals"]


def test_names() -> None:
    for name in NAMES:
        assert getattr(dro, name).__name__ == name
        assert name in dir(dro)
        assert name in dro.__all__
    assert all(callable(getattr(dro.moments, name)) for name in MOMENTS)
    assert all(callable(getattr(dro.support, name)) for name in SUPPORTS)
    with pytest.raises(AttributeError, match="Wasserstien"):
        _ = dro.Wasserstien
    assert [s.name for s in dro.Status] == [
        *("OPTIMAL", "INACCURATE", "GAP", "INFEASIBLE", "UNBOUNDED", "FAILED"),
        *("EMPTY_SET", "INFINITE_WORST_CASE"),
    ]
    assert all(s.advice for s in dro.Status)


class Newsvendor:
    """The first example of the documentation, as it is written there."""

    def __init__(self) -> None:
        v, a_c, a_d, b, d = np.full(4, 2.0), np.full(4, 1.0), np.full(4, 0.7), np.full(4, 4.0), np.full(4, 0.5)
        y = dro.Uncertain(4, support=dro.support.Nonnegative())
        retail, wholesale = cp.Variable(4, nonneg=True), cp.Variable(4, boolean=True)
        stock = retail + cp.multiply(v, wholesale)
        cost = (
            a_c @ retail
            + (a_d * v) @ wholesale
            + cp.sum(cp.maximum(cp.multiply(b, y - stock), cp.multiply(d, stock - y)))
        )
        ambiguity = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
        self.problem = dro.DecisionProblem(cost, constraints=[], ambiguity=ambiguity)
        self.retail, self.wholesale = retail, wholesale

    @staticmethod
    def loss(retail: np.ndarray, wholesale: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The same cost by hand."""
        stock = retail + 2 * wholesale
        return (retail + 1.4 * wholesale + np.maximum(4 * (y - stock), 0.5 * (stock - y))).sum(-1)


@pytest.fixture(scope="module")
def example() -> Newsvendor:
    return Newsvendor()


@pytest.fixture
def theta() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centre, spread = 1 + torch.rand(5, 4, generator=generator), 0.5 + torch.rand(5, 2, generator=generator)
    return torch.cat([centre, spread[:, :1], centre, spread[:, 1:]], 1).double()


def test_first_example(example: Newsvendor, theta: Tensor) -> None:
    problem = example.problem
    assert problem.ambiguity.size == 10
    assert set(problem.variables) == {example.retail, example.wholesale}
    assert problem.integer_variables == (example.wholesale,)
    assert not problem.conservative
    assert "rows" in repr(problem)
    theta.requires_grad_()
    solution = problem.solve(theta, fixed=torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(5, 4))
    decision = problem.decision(solution.primal)
    assert {v: tuple(t.shape) for v, t in decision.items()} == {example.retail: (5, 4), example.wholesale: (5, 4)}
    value = problem.worst_case_cost(decision, theta)
    torch.testing.assert_close(value, solution.objective, rtol=1e-6, atol=1e-6)
    atoms, probabilities = problem.worst_case_distribution(decision, theta)
    assert atoms.shape[:2] == probabilities.shape
    torch.testing.assert_close(probabilities.sum(1), torch.ones(5).double(), rtol=1e-6, atol=1e-6)
    problem.loss(decision, theta[:, :4].detach()).sum().backward()
    assert bool((theta.grad.abs().sum(1) > 0).all())


def test_loss_with_and_without_candidates(example: Newsvendor) -> None:
    rng = np.random.default_rng(0)
    retail, wholesale, y = rng.random((5, 3, 4)), rng.integers(0, 2, (5, 3, 4)), rng.random((5, 4)) * 4
    expected = example.loss(retail, wholesale, y[:, None])
    decision = {example.retail: torch.as_tensor(retail), example.wholesale: torch.as_tensor(wholesale).double()}
    loss, outcome = example.problem.loss, torch.as_tensor(y)
    np.testing.assert_allclose(loss(decision, outcome), expected)
    np.testing.assert_allclose(loss({k: v[:, 1] for k, v in decision.items()}, outcome), expected[:, 1])
    # Whole numbers, booleans and arrays are decisions too, and one candidate may stand for all.
    np.testing.assert_allclose(loss({example.retail: retail, example.wholesale: wholesale}, y), expected)
    flags = torch.as_tensor(wholesale).bool()
    np.testing.assert_allclose(
        loss({example.retail: torch.as_tensor(retail), example.wholesale: flags}, outcome), expected
    )
    mixed = {example.retail: torch.as_tensor(retail), example.wholesale: flags[:, 0]}
    np.testing.assert_allclose(loss(mixed, outcome), example.loss(retail, wholesale[:, :1], y[:, None]))


def test_one_outcome_a_candidate_is_not_confused_with_one_an_item(example: Newsvendor) -> None:
    """As many candidates as items: outcomes still belong to items."""
    rng = np.random.default_rng(1)
    retail, wholesale, y = rng.random((3, 3, 4)), np.zeros((3, 4)), rng.random((3, 4)) * 4
    found = example.problem.loss({example.retail: retail, example.wholesale: wholesale}, torch.as_tensor(y))
    np.testing.assert_allclose(found, example.loss(retail, wholesale[:, None], y[:, None]))


def test_dict_and_flat_theta_agree(example: Newsvendor, theta: Tensor) -> None:
    by_name = {
        "1.sigma": theta[:, 9],
        "0.mu": theta[:, :4],
        "0.sigma": theta[:, 4],
        "1.mu": theta[:, 5:9],
    }
    flat, named = (example.problem.solve(t) for t in (theta, by_name))
    assert torch.equal(flat.objective, named.objective)


def test_single_precision(example: Newsvendor, theta: Tensor) -> None:
    single = theta.float().requires_grad_()
    decision = {example.retail: torch.ones(5, 4), example.wholesale: torch.zeros(5, 4)}
    value = example.problem.worst_case_cost(decision, single)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert single.grad.dtype == torch.float32
    exact = example.problem.worst_case_cost(decision, theta)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


def test_decisions_as_arrays(example: Newsvendor, theta: Tensor) -> None:
    tensors = {example.retail: torch.ones(5, 4), example.wholesale: torch.ones(5, 4)}
    arrays = {example.retail: np.ones((5, 4), dtype=int), example.wholesale: np.ones((5, 4), dtype=bool)}
    found, expected = (example.problem.worst_case_cost(d, theta) for d in (arrays, tensors))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_decisions_outside_their_bounds_have_a_cost(example: Newsvendor, theta: Tensor) -> None:
    """What a solver leaves below zero is evaluated as it is."""
    at = {example.retail: torch.full((5, 4), -1e-7), example.wholesale: torch.full((5, 4), 1.0 + 1e-7)}
    close = {example.retail: torch.zeros(5, 4), example.wholesale: torch.ones(5, 4)}
    found, expected = (example.problem.worst_case_cost(d, theta) for d in (at, close))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_matrices_as_decisions() -> None:
    """CVXPY counts by columns, torch by rows."""
    y, x = dro.Uncertain(3), cp.Variable((2, 3))
    cost = cp.sum(cp.maximum(3 * (y - x[0]), x[1] - y)) + cp.sum(cp.multiply(np.arange(6).reshape(2, 3), x))
    problem = dro.DecisionProblem(cost, [x >= -1, x <= 1], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[0.5, 1.0, -0.5, 0.3]], dtype=torch.float64)
    solution = problem.solve(theta)
    value = problem.worst_case_cost(problem.decision(solution.primal), theta)
    torch.testing.assert_close(value, solution.objective, rtol=1e-6, atol=1e-6)


def test_without_decisions_and_without_y() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    theta = torch.tensor([[0.0, 0.0, 2.0]], dtype=torch.float64)
    pure = dro.DecisionProblem(cp.sum(cp.abs(y)), [], ambiguity)
    assert float(pure.worst_case_cost({}, theta)) == pytest.approx(2.0, rel=1e-6)
    assert pure.loss({}, torch.tensor([[1.0, -2.0]])).tolist() == [3.0]
    with pytest.raises(dro.ModelError, match="uses the uncertain y"):
        dro.DecisionProblem(cp.sum_squares(x - 3), [], ambiguity)


def test_everything_given() -> None:
    y, x = dro.Uncertain(1), cp.Variable(1)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm(mu=[1.0], sigma=4.0)])
    problem = dro.DecisionProblem(cp.sum(cp.maximum(3 * (y - x), x - y)), [], ambiguity)
    assert ambiguity.size == 0
    assert ambiguity.parameters == {}
    assert float(problem.solve(torch.zeros(1, 0)).objective) == pytest.approx(2 * np.sqrt(3), rel=1e-6)


def test_copies(example: Newsvendor, theta: Tensor) -> None:
    decision = {example.retail: torch.ones(5, 4), example.wholesale: torch.zeros(5, 4)}
    expected = example.problem.worst_case_cost(decision, theta)
    twin = copy.deepcopy(example.problem)
    torch.testing.assert_close(twin.worst_case_cost(decision, theta), expected)
    # Pickled problems know their variables by number, whether these were pickled or not.
    stored, variable = pickle.loads(pickle.dumps((example.problem, example.retail)))
    torch.testing.assert_close(stored.worst_case_cost(decision, theta), expected)
    theirs = {v: decision[example.retail if v.id == example.retail.id else example.wholesale] for v in stored.variables}
    torch.testing.assert_close(stored.worst_case_cost(theirs, theta), expected)
    assert any(v is variable for v in stored.variables)
    torch.testing.assert_close(stored.solve(theta).objective, example.problem.solve(theta).objective)
    outcome = torch.ones(5, 4)
    torch.testing.assert_close(stored.loss(decision, outcome), example.problem.loss(decision, outcome))


def test_supports_print_what_they_are() -> None:
    s = dro.support
    found = {
        "Reals()": s.Reals(),
        "Nonnegative()": s.Nonnegative(),
        "Box(0, [1, 2])": s.Box(0, [1.0, 2.0]),
        "Box(-1, 9 numbers)": s.Box(-1, np.arange(9.0)),
        "Polyhedron(3 rows in 2 coordinates)": s.Polyhedron(np.ones((3, 2)), np.ones(3)),
        "Ellipsoid([1, 2], L of shape (2, 2))": s.Ellipsoid([1.0, 2.0], np.eye(2)),
        "Conic(1 cones)": s.Conic([np.eye(2)], [np.zeros(2)]),
        "Nonnegative() & Ellipsoid(0, L of shape (2, 2))": s.Ellipsoid([0.0, 0.0], np.eye(2)) & s.Nonnegative(),
    }
    assert {text: repr(support) for text, support in found.items()} == {text: text for text in found}


def test_proposals_have_a_home() -> None:
    assert dro.proposals.Energy().ratio > 0
    with pytest.warns(FutureWarning, match=r"dro.proposals.Energy"):
        assert dro.Energy is dro.proposals.Energy
    assert dro.Exact() == dro.Exact()
