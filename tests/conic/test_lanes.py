"""The compiled CPU form of the interior-point method, held to the torch form on the same data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from drolayers.conic import ipm
from drolayers.conic.compile import compile_program
from drolayers.conic.engine import Engine
from drolayers.conic.interior.system import Data, SystemPlan
from drolayers.conic.program import ConeProgram, Values
from drolayers.conic.solvers import interior as gpu
from drolayers.conic.solvers.contract import Exact, Smoothed
from drolayers.conic.solvers.interior import EXACT, Batched
from drolayers.problems import Newsvendor
from drolayers.status import Status
from tests.conic.families import family

lanes = pytest.importorskip("drolayers.conic.lanes", reason="the compiled form needs numba")
lanes_ipm = pytest.importorskip("drolayers.conic.lanes_ipm", reason="the compiled form needs numba")

SIZES = (1, 3, 17, 70)
TOLERANCE, STEPS = 1e-9, 60
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _shapes(items: int, shared: bool, quadratic: bool) -> tuple[cp.Problem, list[cp.Parameter]]:
    """Items with second-order cones of sizes 2, 3, 4 …, tied by a budget."""
    rng = np.random.default_rng(items)
    c, w, h = cp.Parameter(items), cp.Parameter(items), cp.Parameter()
    total, constraints, cost = 0, [], 0
    for k in range(items):
        x = cp.Variable(k + 1)
        F = rng.normal(size=(k + 1, k + 1)) + 2 * np.eye(k + 1)
        image = F @ x if shared else cp.multiply(w[k], F @ x)
        # A cone of its own, without an epigraph, whose variable would not be unique.
        constraints += [cp.SOC(2 + (w[k] if shared else 0), image - 0.3), x >= -1]
        cost = cost + c[k] * cp.sum(x) + (cp.sum_squares(x) if quadratic else cp.norm(x))
        total = total + cp.sum(x)
    constraints.append(total == h)
    return cp.Problem(cp.Minimize(cost), constraints), [c, w, h]


def _draw(items: int, batch: int) -> Tensor:
    rng = np.random.default_rng(batch)
    c, w, h = (
        3 * rng.normal(size=(batch, items)),
        rng.uniform(0.5, 1.0, (batch, items)),
        rng.uniform(0, 0.4, (batch, 1)),
    )
    return torch.tensor(np.concatenate([c, w, h], 1))


@cache
def _program(name: str) -> ConeProgram:
    if name.startswith("items"):
        return compile_program(*_shapes(4, "shared" in name, "quadratic" in name))
    return family(name).program


def _values(name: str, batch: int) -> Values:
    theta = _draw(4, batch) if name.startswith("items") else family(name).theta(batch, seed=batch)
    return _program(name).values(theta)


@cache
def _plan(name: str) -> tuple[SystemPlan, lanes.Structure]:
    plan = SystemPlan.of(_program(name), CPU)
    return plan, lanes.Structure.of(plan)


def _both(name: str, values: Values, level: float) -> tuple[Data, ipm.Outcome, ipm.Outcome]:
    """One batch by both forms."""
    plan, structure = _plan(name)
    data = Data.of(plan, values)
    first = ipm.solve(data, TOLERANCE, STEPS, level)
    return data, first, lanes_ipm.solve_lanes(structure, data, TOLERANCE, STEPS, level)


def _assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Agreement relative to the largest entry of each item, batch last."""
    assert found.shape == expected.shape
    if found.shape[0]:
        error = (found - expected).abs().amax(0) / (1.0 + expected.abs().amax(0))
        assert float(error.max()) <= tolerance, f"item {int(error.argmax())} is off by {float(error.max()):.1e}"


def test_near_sees_a_difference() -> None:
    point = torch.ones(3, 2)
    _assert_near(point, point + 1e-9, 1e-8)
    with pytest.raises(AssertionError, match="item 1 is off"):
        _assert_near(point, point + torch.tensor([0.0, 1e-3]), 1e-6)


REGULAR = ("lp", "lp_matrix", "qp", "qp_weights", "socp", "portfolio", "items", "items_shared", "items_quadratic")
NAMES = (*REGULAR, "items_shared_quadratic")


def test_the_families_have_what_they_are_for() -> None:
    """Cones of several sizes, quadratic objectives, matrices that items share and others that they do not."""
    cones = _program("items_shared").cones
    assert cones.zero
    assert cones.nonneg
    assert len(set(cones.soc)) > 2
    assert _program("items_quadratic").quadratic
    assert _program("qp_weights").rows == _program("qp_weights").cones.zero  # no inequality at all
    for name, width in (("items_shared", 1), ("items_shared_quadratic", 1), ("items", 3), ("items_quadratic", 3)):
        assert Data.of(_plan(name)[0], _values(name, 3)).A.shape[1] == width
    assert _plan("items")[0].arrow.groups  # a block-arrow system, not a dense one


@pytest.mark.parametrize("batch", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_points_and_verdicts_agree(name: str, batch: int) -> None:
    data, first, second = _both(name, _values(name, batch), 0.0)
    assert first.verdict.tolist() == [int(Status.OPTIMAL)] * batch
    assert second.verdict.tolist() == first.verdict.tolist()
    a, b = first.iterate, second.iterate
    cost = [0.5 * (x * data.form(x)).sum(0) + (data.q * x).sum(0) for x in (a.x / a.tau, b.x / b.tau)]
    _assert_near(cost[1][None], cost[0][None], 1e-7)
    # A curved program pins its minimiser down to the square root of its own accuracy.
    accuracy = 1e-7 if _program(name).cones.polyhedral else 1e-3
    for field in ("x", "s"):
        _assert_near(getattr(b, field) / b.tau, getattr(a, field) / a.tau, accuracy)


@pytest.mark.parametrize("level", [1e-3, 1e-5])
@pytest.mark.parametrize("batch", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_the_path_and_its_derivative_agree(name: str, batch: int, level: float) -> None:
    """On the path, away from its end, everything is smooth, so that both forms meet the same point to many digits."""
    data, first, second = _both(name, _values(name, batch), level)
    dx = torch.randn(data.q.shape, generator=torch.Generator().manual_seed(batch), dtype=torch.float64)
    expected = ipm.pull(data, level, first.anchor, dx)
    found = lanes_ipm.pull_lanes(_plan(name)[1], data, level, second.anchor, dx)
    for one, other in zip(found, expected, strict=True):
        _assert_near(one, other, 1e-6)


@pytest.mark.parametrize("name", ["lp", "lp_matrix", "qp", "qp_weights"])
def test_the_derivative_agrees_at_the_end_of_the_path(name: str) -> None:
    data, first, second = _both(name, _values(name, 17), EXACT)
    dx = torch.randn(data.q.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = ipm.pull(data, EXACT, first.anchor, dx)
    found = lanes_ipm.pull_lanes(_plan(name)[1], data, EXACT, second.anchor, dx)
    for one, other in zip(found, expected, strict=True):
        _assert_near(one, other, 1e-6)


@pytest.mark.parametrize("name", ["items_quadratic", "items", "socp"])
def test_a_broken_step_does_not_serve_the_derivative(name: str) -> None:
    """Arithmetic may break down after the best point; the point that the derivative starts from is an earlier one."""
    data, *found = _both(name, _values(name, 500), EXACT)
    for outcome in found:
        assert bool((outcome.verdict == int(Status.OPTIMAL)).all())
        at = outcome.anchor
        error = (data.rows(at.x / at.tau) + at.s / at.tau - data.b).abs().amax(0)
        assert float(error.max()) < 1e-3


@pytest.mark.parametrize("name", ["fragile_lp", "fragile_socp", "fragile_qp"])
@pytest.mark.parametrize("batch", SIZES)
def test_mixed_verdicts_agree(name: str, batch: int) -> None:
    """Every third item infeasible, every third unbounded, the others solvable, side by side in the same lanes."""
    theta = family(name).theta(batch, seed=batch)
    kind = torch.arange(batch) % 3
    theta[kind == 1, -1] = -1.0
    theta[kind == 2, 0] = -1.0
    values = family(name).program.values(theta)
    data, first, second = _both(name, values, 0.0)
    expected = [(Status.OPTIMAL, Status.INFEASIBLE, Status.NO_MINIMUM)[k] for k in kind.tolist()]
    assert [Status(v) for v in first.verdict.tolist()] == expected
    assert [Status(v) for v in second.verdict.tolist()] == expected
    at = second.iterate
    # What proves the verdicts: Aᵀz = 0 and bᵀz < 0; or Ax + s = 0, Px = 0 and qᵀx < 0.
    proof, ray = (data.b * at.z).sum(0), (data.q * at.x).sum(0)
    nothing = data.columns(at.z).abs().amax(0)
    still = torch.maximum((data.rows(at.x) + at.s).abs().amax(0), data.form(at.x).abs().amax(0))
    assert bool(((proof < 0) & (nothing <= -1e-6 * proof))[kind == 1].all())
    assert bool(((ray < 0) & (still <= -1e-6 * ray))[kind == 2].all())


@pytest.mark.parametrize("name", ["items", "items_shared_quadratic", "fragile_socp"])
def test_two_threads_give_what_one_gives(name: str) -> None:
    values, structure, level = _values(name, 70), _plan(name)[1], 1e-3
    data = Data.of(_plan(name)[0], values)
    dx = torch.ones_like(data.q)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outcome = lanes_ipm.solve_lanes(structure, data, TOLERANCE, STEPS, level)
        found.append((outcome, lanes_ipm.pull_lanes(structure, data, level, outcome.anchor, dx)))
    (one, pulled), (two, others) = found
    assert two.verdict.tolist() == one.verdict.tolist()
    for a, b in zip(pulled, others, strict=True):
        _assert_near(b, a, 1e-7)


def test_a_batch_of_seventy_has_several_parts() -> None:
    assert lanes_ipm.lane_count(_plan("items")[1], 70) < 70
    assert lanes_ipm.lane_count(_plan("items")[1], 1) == 1


@pytest.mark.parametrize("gradient", [Exact(), Smoothed(1e-2)])
@pytest.mark.parametrize("name", ["lp_matrix", "items_quadratic"])
def test_without_numba_the_torch_form_is_used(
    name: str, gradient: Exact | Smoothed, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, values = _program(name), _values(name, 5)
    dx = torch.randn(5, program.columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    compiled = Batched().solve(program, values, gradient, None)
    expected = compiled.pullback(dx)
    real = gpu.find_spec
    monkeypatch.setattr(gpu, "find_spec", lambda module: None if module == "numba" else real(module))
    for module in ("drolayers.conic.lanes", "drolayers.conic.lanes_ipm"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    assert not Batched().compiled
    found = Batched().solve(program, values, gradient, None)
    assert found.verdict.tolist() == compiled.verdict.tolist() == [0] * 5
    _assert_near(found.x.T, compiled.x.T, 1e-3 if program.cones.soc else 1e-7)
    for one, other in zip(found.pullback(dx), expected, strict=True):
        _assert_near(one.T, other.T, 1e-4 if isinstance(gradient, Exact) else 1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_lane_that_breaks_leaves_the_others_alone(bad: float) -> None:
    values = _values("items_quadratic", 5)
    data = Data.of(_plan("items_quadratic")[0], values)
    expected = lanes_ipm.solve_lanes(_plan("items_quadratic")[1], data, TOLERANCE, STEPS, 0.0)
    data.q[0, 2] = bad
    found = lanes_ipm.solve_lanes(_plan("items_quadratic")[1], data, TOLERANCE, STEPS, 0.0)
    assert found.verdict.tolist() == [0, 0, int(Status.FAILED), 0, 0]
    others = [0, 1, 3, 4]
    _assert_near(found.iterate.x[:, others], expected.iterate.x[:, others], 1e-4)


def test_where_arithmetic_breaks_down_a_step_further_up_the_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Newsvendor("SOC-II")
    contexts = np.linspace(0.1, 0.9, 5)[:, None]
    theta = shop.problem.features(shop.full_knowledge(contexts))[1].clone().requires_grad_()
    engine = Engine(Batched())
    (expected,) = torch.autograd.grad(engine.solve(shop.problem.program, theta).primal.sum(), theta)
    pull = Batched._pull

    def breaks(*given: Any) -> tuple[Tensor, ...]:
        found = pull(*given)
        if len(found[2][0]) == 5:
            found[2][:, 3] = torch.nan
        return found

    def unused(*_: Any) -> None:
        raise AssertionError("an item was factored by itself")

    monkeypatch.setattr(Batched, "_pull", breaks)
    monkeypatch.setattr("drolayers.conic.implicit.pull_back", unused)
    (found,) = torch.autograd.grad(engine.solve(shop.problem.program, theta).primal.sum(), theta)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert not torch.equal(found[3], expected[3])
    torch.testing.assert_close(found[:3], expected[:3], rtol=0, atol=0)


def test_an_item_does_not_feel_those_beside_it() -> None:
    """Among others, of which some take careful steps while it takes rough ones, and among copies of itself."""
    shop, engine = Newsvendor("SOC-III"), Engine(Batched())
    rng = np.random.default_rng(3)
    theta = shop.full_knowledge(rng.uniform(size=(16, 1))) * torch.as_tensor(10.0 ** rng.uniform(-2, 2, (16, 1)))
    together = shop.problem.solve(theta, engine=engine)
    assert len(set(together.iterations.tolist())) > 2
    for k in range(16):
        alone = shop.problem.solve(theta[k].expand(16, -1), engine=engine)
        assert torch.equal(together.primal[k], alone.primal[0]), k
