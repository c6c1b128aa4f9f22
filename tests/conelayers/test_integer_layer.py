"""Layers with integer variables: optimum, surrogate, gradients at fixed integers, limits."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer, RelativeTemperature, Status
from conelayers.errors import IntegerGradientWarning, ModelError, UnsolvedItemsWarning
from tests.conelayers.checks import assert_gradients, solve_with_clarabel

COSTS = torch.tensor(np.random.default_rng(0).standard_normal((4, 3)))
DEMAND = torch.tensor(2.5, dtype=torch.float64)


class Facilities:
    """min cᵀy + ‖x - 1‖²  subject to  x ≤ 2y, at most two of y, sum(x) ≥ d."""

    def __init__(self, **settings: object) -> None:
        self.x, self.y = cp.Variable(3, name="x"), cp.Variable(3, boolean=True, name="y")
        self.c, self.d = cp.Parameter(3, name="c"), cp.Parameter(name="d")
        self.constraints = [self.x <= 2 * self.y, cp.sum(self.y) <= 2, cp.sum(self.x) >= self.d]
        objective = cp.Minimize(self.c @ self.y + cp.sum_squares(self.x - 1))
        self.layer = ConeLayer(cp.Problem(objective, self.constraints), [self.c, self.d], [self.x, self.y], **settings)

    def loss(self, points: dict[object, torch.Tensor]) -> torch.Tensor:
        """A loss of both decisions."""
        return (points[self.x] ** 2).sum(-1) + (points[self.y] * torch.arange(3)).sum(-1)


def fixed_problem(point: tuple[int, ...], costs: np.ndarray) -> tuple[cp.Problem, cp.Variable]:
    """The problem with y fixed."""
    x = cp.Variable(3)
    constraints = [x <= 2 * np.array(point), cp.sum(x) >= DEMAND.item()]
    return cp.Problem(cp.Minimize(costs @ np.array(point) + cp.sum_squares(x - 1)), constraints), x


@pytest.fixture(name="best", scope="module")
def _best() -> list[tuple[float, tuple[int, ...], np.ndarray, list[np.ndarray]]]:
    """The optimum of every item by enumeration: value, y, x, duals."""
    optima = []
    for costs in COSTS.numpy():
        solved = []
        for point in itertools.product([0, 1], repeat=3):
            if sum(point) == 2:
                problem, x = fixed_problem(point, costs)
                solve_with_clarabel(problem, {})
                solved.append((problem.value, point, x.value, [c.dual_value for c in problem.constraints]))
        optima.append(min(solved, key=lambda entry: entry[0]))
    return optima


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{}, {"enumerate_up_to": 0}, {"samples": "all"}, {"oracle": "branch_and_bound"}])
def test_the_optimum_is_that_of_enumeration(settings: dict[str, object], training: bool, best: list) -> None:
    own = Facilities(**settings)
    result = own.layer.train(training).solve(COSTS, DEMAND)
    for item, (value, point, x, duals) in enumerate(best):
        assert result.value[item].item() == pytest.approx(value, abs=1e-6)
        assert result[own.y][item].tolist() == list(point)
        np.testing.assert_allclose(result[own.x][item], x, atol=1e-5)
        np.testing.assert_allclose(result.dual(own.constraints[0])[item], duals[0], atol=1e-4)
        np.testing.assert_allclose(result.dual(own.constraints[2])[item], duals[1], atol=1e-4)
    assert (result.gap == 0).all()
    torch.testing.assert_close(result.probabilities.sum(1), torch.ones(4, dtype=torch.float64))


def test_continuous_variables_are_differentiated_at_fixed_integers() -> None:
    own = Facilities()
    with pytest.warns(IntegerGradientWarning, match="expected"):
        own.layer(COSTS, DEMAND.clone().requires_grad_())

    def total(d: torch.Tensor) -> torch.Tensor:
        x, y = own.layer(COSTS, d)
        return (x * torch.tensor([1.0, 2.0, 4.0])).sum() + y.sum()

    assert_gradients(total, [DEMAND])
    assert_gradients(lambda c, d: own.layer.solve(c, d).value.sum(), [COSTS, DEMAND])


@pytest.mark.parametrize("settings", [{}, {"enumerate_up_to": 0, "samples": 2, "candidates": 1}])
def test_the_surrogate_is_its_formula_with_its_derivative(settings: dict[str, object]) -> None:
    own = Facilities(temperature=0.7, **settings)
    state = own.layer.sampler.rng.bit_generator.state

    def expected(c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        own.layer.sampler.rng.bit_generator.state = state
        return own.layer.solve(c, d).expected(own.loss).sum()

    assert_gradients(expected, [COSTS, DEMAND], atol=1e-3)
    if settings:
        return
    result = own.layer.solve(COSTS, DEMAND)
    energies = torch.where(
        result.probabilities > 0, -result.objective / 0.7, torch.full_like(result.objective, -torch.inf)
    )
    losses = own.loss(result.candidates)
    torch.testing.assert_close(result.expected(own.loss), (torch.softmax(energies, 1) * losses).sum(1))


def test_a_small_temperature_gives_the_optimum() -> None:
    own = Facilities(temperature=RelativeTemperature(1e-4))
    result = own.layer.solve(COSTS, DEMAND)
    best = own.loss({own.x: result[own.x], own.y: result[own.y]})
    torch.testing.assert_close(result.expected(own.loss), best, atol=1e-6, rtol=0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("enumerate_up_to", [32, 0])
def test_unsolved_items_are_nan_in_integers_too(training: bool, enumerate_up_to: int) -> None:
    own = Facilities(enumerate_up_to=enumerate_up_to)
    d = torch.tensor([2.5, 100.0, torch.nan], dtype=torch.float64, requires_grad=True)
    with pytest.warns(UnsolvedItemsWarning):
        result = own.layer.train(training).solve(COSTS[0], d)
    assert result.statuses == [Status.OPTIMAL, Status.INFEASIBLE, Status.FAILED]
    expected = result.expected(own.loss)
    for tensor in (result[own.x], result[own.y], result.value, result.gap, expected, result.dual(own.constraints[0])):
        assert tensor[0].isfinite().all()
        assert tensor[1:].isnan().all()
    (expected.sum() + result.value.sum() + result[own.x].sum()).backward()
    assert d.grad is not None
    assert d.grad[0] != 0
    assert (d.grad[1:] == 0).all()


def test_maximisation() -> None:
    y, c = cp.Variable(3, boolean=True), cp.Parameter(3)
    layer = ConeLayer(cp.Problem(cp.Maximize(c @ y), [cp.sum(y) <= 2]), [c])
    result = layer.solve(torch.tensor([1.0, 2.0, -3.0]))
    assert result.value.item() == pytest.approx(3.0)
    torch.testing.assert_close(result[y], torch.tensor([1.0, 1.0, 0.0]))
    feasible = result.probabilities[0] > 0
    # Larger values are more probable.
    order = result.objective[0][feasible].argsort()
    assert (result.probabilities[0][feasible][order].diff() >= 0).all()


def test_general_integers() -> None:
    z, c = cp.Variable(2, integer=True, bounds=[-3, 5]), cp.Parameter(2)
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.sum_squares(z - c)), [cp.sum(z) >= 1]), [c])
    result = layer.solve(torch.tensor([[1.4, 2.6], [-7.0, 4.4]]))
    torch.testing.assert_close(result[z], torch.tensor([[1.0, 3.0], [-3.0, 4.0]]))


def test_a_search_that_ends_early_reports_its_gap() -> None:
    generator = np.random.default_rng(0)
    x, y, target = cp.Variable(30, nonneg=True), cp.Variable(30, boolean=True), cp.Parameter(10)
    misfit = cp.sum_squares(generator.standard_normal((10, 30)) @ x - target)
    problem = cp.Problem(cp.Minimize(misfit + 0.05 * cp.sum(y)), [x <= y, cp.sum(y) <= 12])
    layer = ConeLayer(problem, [target], [x, y], time_limit=1e-6).eval()
    result = layer.solve(3 * generator.standard_normal((2, 10)))
    for status, gap, value in zip(result.statuses, result.gap, result.value, strict=True):
        if status.ok:
            assert (gap == 0) if status == Status.OPTIMAL else (gap > 0)
            assert value.isfinite()
        else:
            assert gap.isnan()
            assert value.isnan()


def test_wrong_settings() -> None:
    for settings, message in (
        ({"oracle": "enumeration", "time_limit": 1.0}, "time_limit"),
        ({"oracle": "guess"}, "no oracle"),
        ({"samples": -1}, "samples"),
    ):
        with pytest.raises(ModelError, match=message):
            Facilities(**settings)
    z = cp.Variable(integer=True)
    with pytest.raises(ModelError, match="not bounded"):
        ConeLayer(cp.Problem(cp.Minimize(z)), [])
    y = cp.Variable(20, boolean=True)
    with pytest.raises(ModelError, match="more than the 65536"):
        ConeLayer(cp.Problem(cp.Minimize(cp.sum(y))), [], samples="all").solve()
