"""Balls of order ∞, metrics and what may not move: direct sums, emptiness, and gradients to a predicted nominal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import Status
from drolayers.ambiguity.base import AmbiguitySet
from tests.drolayers.reformulation.differences import analytic, central, gap

INF = np.inf
SLOPES = np.array([[1.0, 0.5, -0.2], [-0.6, 1.0, 0.3], [0.2, -1.2, 0.4]])
SQUARE = np.array([[1.0, 0.4, 0.0], [-0.3, 1.0, 0.2], [0.5, 0.5, 1.0]])
X = np.array([0.3, -0.2, 0.5])


def around(batch: int = 2, count: int = 4, dim: int = 3) -> dro.Nominal:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(count), batch)
    return dro.Nominal(torch.as_tensor(rng.normal(1, 1, (batch, count, dim))), torch.as_tensor(weights))


def joint(
    make: Callable[[dro.Uncertain], AmbiguitySet], support: Any = None
) -> tuple[dro.DecisionProblem, cp.Variable]:
    """The largest of three functions of y, each with an offset that is decided."""
    y, x = dro.Uncertain(3, support=support), cp.Variable(3)
    return dro.DecisionProblem(cp.max(SLOPES @ y - x) + cp.sum_squares(x), [], make(y)), x


def reach(slope: np.ndarray, centre: np.ndarray, radius: float, norm: float, A: np.ndarray, **more: Any) -> float:
    """The largest value of a linear function that an atom reaches, written out."""
    y, fixed = cp.Variable(3), more.get("fixed", ())
    moving = [i for i in range(3) if i not in fixed]
    constraints = [cp.norm(A @ (y[moving] - centre[moving]), norm) <= radius]
    constraints += [y[i] == centre[i] for i in fixed]
    constraints += [y >= -2, y <= 4] if more.get("box") else []
    return float(cp.Problem(cp.Maximize(slope @ y), constraints).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("box", [False, True], ids=["reals", "box"])
@pytest.mark.parametrize("norm", [1, 2, INF])
@pytest.mark.parametrize("metric", ["none", "matrix", "learnt", "fixed"])
def test_order_infinity_is_a_sum_over_balls(metric: str, norm: float, box: bool) -> None:
    fixed = (1,) if metric == "fixed" else ()
    given = {"matrix": SQUARE, "learnt": dro.Learn(3, 3)}.get(metric)
    support = dro.support.Box(-2.0, 4.0) if box else None
    problem, x = joint(lambda y: dro.Wasserstein(y, 4, norm, INF, given, fixed), support)
    nominal = around()
    nominal = dro.Nominal(nominal.atoms.clamp(-2.0, 4.0), nominal.weights)
    theta = {"radius": torch.tensor([0.3, 0.6]).double()}
    A = SQUARE if metric == "matrix" else np.eye(2 if fixed else 3)
    if metric == "learnt":
        # Its scale is of no effect.
        theta["metric"] = torch.as_tensor(np.stack([SQUARE, 10.0 * SQUARE]))
        A = SQUARE * np.sqrt(3.0 / (SQUARE**2).sum())
    value = problem.worst_case_cost({x: torch.as_tensor(X).expand(2, -1)}, theta, nominal)
    for item in range(2):
        radius, total = float(theta["radius"][item]), X @ X
        for atom, weight in zip(nominal.atoms[item].numpy(), nominal.weights[item].tolist(), strict=True):
            best = [reach(a, atom, radius, norm, A, fixed=fixed, box=box) - b for a, b in zip(SLOPES, X, strict=True)]
            total += weight * max(best)
        assert float(value[item]) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize(
    ("norm", "order", "metric", "fixed", "rows"),
    [
        (INF, INF, None, (), 2),
        (INF, INF, np.diag([2.0, 0.5, 1.0]), (), 2),
        (INF, INF, SQUARE, (), 8),
        (2, INF, None, (), 8),
        (1, INF, None, (0,), 4),
        (1, 1, np.diag([2.0, 0.5, 1.0]), (), 2),
    ],
)
def test_blocks_join_unless_the_ball_is_a_product(
    norm: float, order: float, metric: Any, fixed: tuple[int, ...], rows: int
) -> None:
    """The rows of the largest block of a newsvendor with three items."""
    from drolayers.cost.parse import parse
    from drolayers.reformulation.separability import block_rows

    y, x = dro.Uncertain(3), cp.Variable(3)
    ball = dro.Wasserstein(y, 2, norm, order, metric, fixed)
    found = block_rows(parse(cp.sum(cp.maximum(3 * (y - x), x - y)), y), ball.links())
    assert np.bincount(found.block).max() == rows


@pytest.mark.parametrize(
    ("norm", "order", "fixed", "box"),
    [(2, INF, (), False), (INF, INF, (), True), (1, INF, (0,), False), (2, 1, (1,), True)],
)
def test_always_means_what_atoms_reach(norm: float, order: float, fixed: tuple[int, ...], box: bool) -> None:
    """Of an atom without weight nothing is said, wherever it is."""
    y, x = dro.Uncertain(3, dro.support.Box(-2.0, 4.0) if box else None), cp.Variable()
    rule = dro.always(cp.max(SLOPES @ y) <= x)
    problem = dro.DecisionProblem(x + 0.0 * y[0], [rule], dro.Wasserstein(y, 4, norm, order, fixed=fixed))
    atoms, weights = (part.clone() for part in around())
    atoms, weights[:, 0] = atoms.clamp(-2.0, 4.0), 0.0
    atoms[:, 0] = 90.0
    nominal = dro.Nominal(atoms, weights / weights.sum(1, keepdim=True))
    theta = torch.tensor([[0.3], [0.6]]).double()
    solution = problem.solve(theta, nominal)
    decision = {x: solution.variable(x).detach()}
    worst = problem.worst_case_distribution(decision, theta, nominal, of=rule)
    eye = np.eye(3 - len(fixed))
    for item in range(2):
        far = float(theta[item]) if np.isinf(order) else 99.0
        found = [reach(a, c, far, norm, eye, fixed=fixed, box=box) for a in SLOPES for c in atoms[item, 1:].numpy()]
        assert float(solution.objective[item]) == pytest.approx(max(found), rel=1e-6)
        mean = worst.probabilities[item] @ (worst.atoms[item] @ torch.as_tensor(SLOPES).T).amax(1)
        assert float(mean) == pytest.approx(max(found), rel=1e-6)


def test_emptiness_and_the_smallest_radius() -> None:
    """Order ∞ is empty where one atom is too far away; coordinates that may not move cannot be brought back."""
    support = dro.support.Nonnegative()
    atoms = torch.tensor([[[1.0, 1.0, 1.0], [-0.5, 1.0, -0.2]]]).double().repeat(4, 1, 1)
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]).double()
    radius = torch.tensor([[0.4], [0.6], [0.4], [-0.1]]).double()
    problem, _ = joint(lambda y: dro.Wasserstein(y, 2, INF, INF), support)
    solution = problem.solve(radius, (atoms, weights))
    assert solution.statuses == [Status.EMPTY_SET, Status.OPTIMAL, Status.OPTIMAL, Status.EMPTY_SET]
    found = dro.Projection(problem.ambiguity, margin=0.1)(radius, (atoms, weights))
    torch.testing.assert_close(found, torch.tensor([[0.55], [0.6], [0.4], [0.0]]).double())
    held, _ = joint(lambda y: dro.Wasserstein(y, 2, INF, INF, fixed=(0,)), support)
    assert held.solve(radius[:3], (atoms[:3], weights[:3])).statuses == [Status.EMPTY_SET] * 2 + [Status.OPTIMAL]
    free, _ = joint(lambda y: dro.Wasserstein(y, 2, INF, 1, fixed=(1,)), support)
    assert free.solve(radius[:3], (atoms[:3], weights[:3])).statuses == [Status.OPTIMAL] * 3


@pytest.mark.parametrize("order", [1, 2, INF])
def test_projection_by_a_metric(order: float) -> None:
    """The distance to a polyhedron in the metric, and its derivatives by metric and atoms."""
    support = dro.support.Polyhedron([[1.0, 1.0, 1.0]], [1.0])
    ball = dro.Wasserstein(dro.Uncertain(3, support), 2, 2, order, dro.Learn(3, 3))
    atoms, weights = torch.tensor([[[1.0, 1.0, 1.0], [0.5, 1.0, -0.2]]]).double(), torch.tensor([[0.3, 0.7]]).double()
    at = torch.cat([torch.as_tensor(SQUARE.ravel()), atoms.flatten()])

    def radius(leaf: Tensor) -> Tensor:
        theta = torch.cat([torch.full_like(leaf[:, :1], -1.0), leaf[:, :9]], 1)
        nominal = dro.Nominal(leaf[:, 9:].reshape(-1, 2, 3), weights.expand(len(leaf), -1))
        return dro.Projection(ball)(theta, nominal)[:, :1]

    # min ‖A(y - c)‖ with 1ᵀy = 1 is the excess over ‖A^{-T}1‖.
    A = SQUARE * np.sqrt(3.0 / (SQUARE**2).sum())
    excess = np.maximum(atoms[0].numpy().sum(1) - 1.0, 0.0) / np.linalg.norm(np.linalg.solve(A.T, np.ones(3)))
    powers = {1: 0.3 * excess[0] + 0.7 * excess[1], 2: np.sqrt(weights[0].numpy() @ excess**2), INF: excess.max()}
    assert float(radius(at[None])) == pytest.approx(powers[order], rel=1e-6)
    assert gap(analytic(radius, at), central(radius, at, 1e-4)) < 1e-5


def test_a_singular_metric_leaves_ways_free() -> None:
    flat = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    for order in (1, 2, INF):
        wild, _ = joint(lambda y, order=order: dro.Wasserstein(y, 4, 2, order, flat))
        theta, nominal = torch.tensor([[0.3], [0.6]]).double(), around()
        assert wild.solve(theta, nominal).statuses == [Status.INFINITE_WORST_CASE] * 2
        box = dro.support.Box(-9.0, 9.0)
        tame, x = joint(lambda y, order=order: dro.Wasserstein(y, 4, 2, order, flat), box)
        same, z = joint(lambda y, order=order: dro.Wasserstein(y, 4, 2, order, np.diag([1.0, 1.0, 1e-6])), box)
        decision = torch.as_tensor(X).expand(2, -1)
        value = tame.worst_case_cost({x: decision}, theta, nominal)
        torch.testing.assert_close(value, same.worst_case_cost({z: decision}, theta, nominal), rtol=1e-4, atol=0.0)


# --- Predicted atoms and weights -------------------------------------------------------------------------------------

SETS: dict[str, tuple[Callable[[dro.Uncertain], AmbiguitySet], list[float]]] = {
    "order 1": (lambda y: dro.Wasserstein(y, 4, 2, 1), [0.3]),
    "order 2": (lambda y: dro.Wasserstein(y, 4, 2, 2), [0.3]),
    "order inf": (lambda y: dro.Wasserstein(y, 4, 2, INF), [0.3]),
    "learnt metric": (lambda y: dro.Wasserstein(y, 4, 2, INF, dro.Learn(3, 3)), [0.3, *SQUARE.ravel()]),
    "divergence": (lambda y: dro.Divergence(y, 4, "chi2"), [0.2]),
    "empirical": (lambda y: dro.Empirical(y, 4), []),
}


@pytest.mark.parametrize("name", SETS)
def test_gradients_reach_a_predicted_nominal(name: str) -> None:
    """Through the layer and through the worst-case cost of its decision, in atoms and weights."""
    make, given = SETS[name]
    y, x = dro.Uncertain(3), cp.Variable(3)
    cost = cp.max(SLOPES @ y - SQUARE @ x) + cp.sum_squares(x)
    problem = dro.DecisionProblem(cost, [], make(y))
    layer = dro.DROLayer(problem)
    nominal = around(1)
    at = torch.cat([nominal.atoms.flatten(), nominal.weights.flatten().log()])

    def split(leaf: Tensor) -> tuple[Tensor, dro.Nominal]:
        theta = torch.tensor([given]).double().expand(len(leaf), -1)
        return theta, dro.Nominal(leaf[:, :12].reshape(-1, 4, 3), leaf[:, 12:].softmax(1))

    def decided(leaf: Tensor) -> Tensor:
        theta, predicted = split(leaf)
        decision = layer(theta, predicted)
        value = problem.worst_case_cost(decision.best, theta, predicted)
        return torch.cat([decision.best[x], decision.value[:, None], value[:, None]], 1)

    expected = central(decided, at, 1e-4)
    assert gap(analytic(decided, at), expected) < 1e-4
    assert float(expected[:, :12].abs().max()) > 0.05
    assert float(expected[:, 12:].abs().max()) > 0.05


# --- Interface -------------------------------------------------------------------------------------------------------


def test_a_metric_is_learnt() -> None:
    from tests.drolayers.learning.small import learner, sales

    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 5, 2, INF, dro.Learn(2, 2)))
    fitted = learner(problem).fit(*sales())
    assert np.isfinite(fitted.score(*sales(seed=1)))
    found = fitted.predict_set(sales()[0])
    assert found["metric"].shape[1:] == (2, 2)
    assert float(found["radius"].min()) > 0.0


def test_a_typical_metric_whitens() -> None:
    """In its units every direction of the data has one length, and a tenth of the mean way is the radius."""
    rng = np.random.default_rng(0)
    data = torch.as_tensor(rng.normal(size=(400, 2)) @ np.array([[3.0, 0.0], [1.0, 0.2]]))
    typical = dro.Wasserstein(dro.Uncertain(2), 5, 2, 1, dro.Learn(2, 2)).typical(data)
    image = (data - data.mean(0)) @ typical["metric"].centre.T
    covariance = image.T @ image / len(data)
    torch.testing.assert_close(covariance, covariance[0, 0] * torch.eye(2).double(), rtol=1e-6, atol=1e-6)
    assert float(typical["radius"].centre) == pytest.approx(0.1 * float(image.norm(dim=1).mean()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": 3}, "order 1, 2 or inf, not norm=1, order=3"),
        ({"metric": np.eye(2)}, r"a column for each of the 3 coordinates that may move, not shape \(2, 2\)"),
        ({"metric": dro.Learn(3, 3), "fixed": (0,)}, "a column for each of the 2 coordinates"),
        ({"metric": [[np.nan, 0.0, 1.0]]}, "finite numbers"),
        ({"fixed": (3,)}, "some of the 3 coordinates of y, each once"),
        ({"fixed": (1, 1)}, "each once"),
        ({"fixed": (0.5,)}, "each once"),
        ({"fixed": (0, 1, 2)}, "use dro.Empirical"),
    ],
)
def test_bad_settings_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(dro.ModelError, match=sentence):
        dro.Wasserstein(dro.Uncertain(3), 2, **options)


@pytest.mark.parametrize("order", [1, 2, np.inf])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-8, 1e6])
@pytest.mark.parametrize("metric", [None, 1e-3])
def test_small_radii_count_in_every_unit(order: float, unit: float, metric: float | None) -> None:
    """Radii were raised to 1e-12, whatever y is counted in: with atoms of 1e-8 that was 1e-4 of their size.

    Without a metric the value is 6, and more by the radius times 4 of order 1, 4/√3 of order 2, 4/3 of order ∞.
    """
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    matrix = None if metric is None else metric * np.eye(2)
    ball = dro.Wasserstein(y, 3, order=order, metric=matrix)
    problem = dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [], ball)
    atoms = (
        unit
        * torch.tensor(
            [
                [
                    [1.0, 2.0],
                    [2.0, 1.0],
                    [3.0, 3.0],
                ]
            ]
        ).double()
    )
    weights = torch.full((1, 3), 1 / 3).double()
    for radius in (1e-8, 1e-5):
        theta = torch.tensor([[radius * unit * (metric or 1.0)]]).double()
        solution = problem.solve(theta, (atoms, weights), on_failure="raise")
        assert solution.statuses == [Status.OPTIMAL]
        more = {1: 4.0, 2: 4 / 3**0.5, np.inf: 4 / 3}[order] * radius
        assert float(solution.objective) / unit == pytest.approx(6 + more, rel=1e-8)


def test_padding_does_not_raise_a_radius() -> None:
    """It may lie anywhere, and far away here; what is raised is a share of what the others are apart."""
    y, x = dro.Uncertain(1), cp.Variable(nonneg=True)
    problem = dro.DecisionProblem(x + 4 * cp.pos(y[0] - x), [], dro.Wasserstein(y, 3))
    atoms, weights = torch.tensor([[[1.0], [2.0], [1e9]]]).double(), torch.tensor([[0.5, 0.5, 0.0]]).double()
    solution = problem.solve(torch.tensor([[1e-7]]).double(), (atoms, weights), on_failure="raise")
    assert float(solution.objective) == pytest.approx(2 + 4e-7, abs=1e-8)


def test_a_stiff_coordinate_does_not_raise_a_radius() -> None:
    """The other coordinate moves at price one: 8 + 4 · 1e-5."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    ball = dro.Wasserstein(y, 3, order=1, norm=2, metric=np.diag([1e8, 1.0]))
    problem = dro.DecisionProblem(cp.sum(x) + cp.sum(4 * cp.pos(y - x) + 2 * cp.pos(x - y)), [], ball)
    nominal = torch.tensor([[[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]]).double(), torch.full((1, 3), 1 / 3).double()
    assert problem.solve(torch.tensor([[1e-5]]).double(), nominal).objective.item() == pytest.approx(8.00004, rel=1e-7)
