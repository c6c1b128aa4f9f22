"""Both algebras of the interior-point method, held to the same operations and the same answers on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Derivative, Engine, Status, compile_program
from conelayers.derivative.path import Path
from conelayers.derivative.theorem import Found
from conelayers.engine.solvers.interior import Interior
from conelayers.interior.batch import AlgebraName, Batch, lane_count
from conelayers.interior.method import Algebra, Goal
from conelayers.program.program import Values
from conelayers.scaling.units import Units
from tests.helpers.programs import family

SIZES = (1, 3, 17, 70)


def _items(items: int, shared: bool, quadratic: bool) -> tuple[cp.Problem, list[cp.Parameter]]:
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
    c, w = 3 * rng.normal(size=(batch, items)), rng.uniform(0.5, 1.0, (batch, items))
    return torch.tensor(np.concatenate([c, w, rng.uniform(0, 0.4, (batch, 1))], 1))


@cache
def _program(name: str) -> ConeProgram:
    if name.startswith("items"):
        return compile_program(*_items(4, "shared" in name, "quadratic" in name))
    return family(name).program


def _values(name: str, batch: int) -> Values:
    theta = _draw(4, batch) if name.startswith("items") else family(name).theta(batch, seed=batch)
    return _program(name).values(theta)


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


NAMES = ("lp", "lp_matrix", "qp", "qp_weights", "socp", "portfolio", "items", "items_shared", "items_quadratic")


def _inside(program: ConeProgram, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random slacks and multipliers inside their cones, batch last."""
    generator, cones = torch.Generator().manual_seed(seed), program.cones
    found = []
    for _ in range(2):
        v = torch.rand(program.rows, batch, generator=generator, dtype=torch.float64) + 0.1
        at = cones.zero + cones.nonneg
        for size in cones.soc:
            v[at + 1 : at + size] -= 0.5
            v[at] = v[at + 1 : at + size].norm(dim=0) * 1.2 + 0.1
            at += size
        found.append(v)
    found[0][: cones.zero] = 0.0
    return found[0], found[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_agrees(name: str) -> None:
    program, values = _program(name), _values(name, 5)
    s, z = _inside(program, 5, 0)
    ds, dz = (v - 0.7 for v in _inside(program, 5, 1))
    generator = torch.Generator().manual_seed(2)
    x, rx = (torch.randn(program.columns, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    target = torch.rand(1, 5, generator=generator, dtype=torch.float64)

    def work(on: Algebra, x: Any, rx: Any, s: Any, z: Any, ds: Any, dz: Any, target: Any) -> tuple[Any, ...]:
        scaling = on.scale(s, z)
        gx, gz = on.solve(on.factor(scaling, 1e-9), rx, dz, 3)
        numbers = (on.dots(s, z), on.masses(ds, dz), on.sizes(dz), on.margin(s), on.reach(s, ds, z, dz))
        offset = on.correct(scaling, z, ds, dz, target[0])
        blend = on.combine(target[0], s, 2.0 * target[0], z)
        vectors = (on.rows(x), on.columns(z), on.form(x), on.slack(scaling, dz, ds), offset, blend, gx, gz)
        return *(v[None] for v in numbers), *vectors

    found = [Batch.of(program, values, a).each(work, x, rx, s, z, ds, dz, target) for a in ("numba", "torch")]
    for one, other in zip(*found, strict=True):
        _assert_near(one.nan_to_num(posinf=9.0), other.nan_to_num(posinf=9.0), 1e-8)


@pytest.mark.parametrize("algebra", ["numba", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_a_factorisation_close_by_serves(name: str, algebra: AlgebraName) -> None:
    program, values = _program(name), _values(name, 5)
    (s, z), rx = _inside(program, 5, 0), torch.ones(program.columns, 5, dtype=torch.float64)

    def work(on: Algebra, rx: Any, s: Any, z: Any) -> tuple[Any, ...]:
        here = on.scale(s, z)
        close = on.renewed(on.factor(on.scale(1.01 * s, z), 1e-10), here)
        # There is room for one factorisation, so that the one close by comes first.
        near = on.solve(close, rx, z, 6)
        return *near, *on.solve(on.factor(here, 1e-10), rx, z, 3)

    gx, gz, *exact = Batch.of(program, values, algebra).each(work, rx, s, z)
    _assert_near(gx, exact[0], 1e-9)
    _assert_near(gz, exact[1], 1e-9)


@pytest.mark.parametrize("batch", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_solves_agree(name: str, batch: int) -> None:
    program, values = _program(name), _values(name, batch)
    first, second = (Interior(algebra=a).solve(program, values) for a in ("numba", "torch"))
    assert first.verdict.tolist() == second.verdict.tolist() == [int(Status.OPTIMAL)] * batch
    cost = [(values.q * p.x).sum(1)[None] for p in (first, second)]
    if not program.quadratic:
        _assert_near(cost[0], cost[1], 1e-7)
    # A curved program pins its minimiser down to the square root of its own accuracy.
    _assert_near(first.x.T, second.x.T, 1e-7 if program.cones.polyhedral else 1e-3)


@pytest.mark.parametrize("level", [1e-3, 1e-5])
@pytest.mark.parametrize("name", NAMES)
def test_the_path_and_its_derivative_agree(name: str, level: float) -> None:
    """On the path, away from its end, everything is smooth, so that both meet the same point to many digits."""
    program, values = _program(name), _values(name, 17)
    dx = torch.randn(values.q.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = []
    for algebra in ("numba", "torch"):
        points = Interior(algebra=algebra).solve(program, values, level=level)
        one = torch.ones(17, 1, dtype=torch.float64)
        # From where the path was left, and without that knowledge.
        for passed in (points.passed, None):
            solved = Found(points.x, points.z, points.s, Units(one, one, one, one), passed)
            found.append(Path(level, algebra)(program, values, solved, dx))
    for other in found:
        assert other.code.tolist() == [int(Derivative.PATH)] * 17
        for part in ("x", "z", "g", "h"):
            _assert_near(getattr(other, part).T, getattr(found[0], part).T, 1e-5)


@pytest.mark.parametrize("algebra", ["numba", "torch"])
@pytest.mark.parametrize("name", ["fragile_lp", "fragile_socp", "fragile_qp"])
@pytest.mark.parametrize("batch", SIZES)
def test_mixed_verdicts(name: str, batch: int, algebra: Any) -> None:
    """Every third item infeasible, every third unbounded, the others solvable, side by side in the same lanes."""
    theta, kind = family(name).theta(batch, seed=batch), torch.arange(batch) % 3
    theta[kind == 1, -1] = -1.0
    theta[kind == 2, 0] = -1.0
    points = Interior(algebra=algebra).solve(family(name).program, family(name).program.values(theta))
    expected = [(Status.OPTIMAL, Status.INFEASIBLE, Status.UNBOUNDED)[k] for k in kind.tolist()]
    assert [Status(v) for v in points.verdict.tolist()] == expected


@pytest.mark.parametrize("algebra", ["numba", "torch"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_lane_that_breaks_leaves_the_others_alone(bad: float, algebra: Any) -> None:
    program, values = _program("items_quadratic"), _values("items_quadratic", 5)
    expected = Interior(algebra=algebra).solve(program, values)
    q = values.q.clone()
    q[2, 0] = bad
    found = Interior(algebra=algebra).solve(program, Values(values.P, values.A, q, values.b, values.constant))
    assert found.verdict.tolist() == [0, 0, int(Status.FAILED), 0, 0]
    _assert_near(found.x[[0, 1, 3, 4]].T, expected.x[[0, 1, 3, 4]].T, 1e-4)


def test_lanes_are_few_enough_for_the_cache_and_shared_by_threads() -> None:
    assert lane_count(10**9, 1000, 2) == 32
    assert lane_count(10, 1000, 2) == 128
    assert lane_count(10, 6, 2) == 3
    assert lane_count(10, 1, 2) == 1


def _long_cone(size: int) -> ConeProgram:
    """One second-order cone over so many columns, each of which has a price."""
    x, c = cp.Variable(size), cp.Parameter(size)
    return compile_program(cp.Problem(cp.Minimize(c @ x), [cp.SOC(2.0, x), x >= -0.4]), [c])


@pytest.mark.parametrize("size", [12, 94])
def test_cones_of_any_length(size: int) -> None:
    """A ball cut by bounds: x = max(-0.4, -λc), found by bisection."""
    program = _long_cone(size)
    c = torch.tensor(np.random.default_rng(size).uniform(-1, 1, (6, size)))
    solution = Engine(Interior()).solve(program, c)
    assert solution.statuses == [Status.OPTIMAL] * 6
    low, high = torch.zeros(6, 1, dtype=torch.float64), torch.full((6, 1), 1e3, dtype=torch.float64)
    for _ in range(200):
        middle = (low + high) / 2
        inside = (-middle * c).clamp(min=-0.4).norm(dim=1, keepdim=True) <= 2.0
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    expected = (c * (-low * c).clamp(min=-0.4)).sum(1)
    torch.testing.assert_close(solution.objective, expected, rtol=1e-7, atol=1e-7)


def test_remembered_points_lie_above_their_level() -> None:
    program, values = _program("socp"), _values("socp", 8)
    batch = Batch.of(program, values)
    _, passed, _, steps, _ = batch.solve(Goal(level=1e-2))
    _, same, _, fewer, _ = batch.solve(Goal(level=1e-2, stop=True))
    assert passed is not None
    assert same is not None
    degree = program.cones.nonneg + len(program.cones.soc)
    level = ((passed.s * passed.z).sum(0) + passed.tau * passed.kappa) / (degree + 1) / passed.tau**2
    assert bool((level >= 1e-2).all())
    assert bool((level < 10.0).all())
    torch.testing.assert_close(passed.x, same.x)
    assert bool((fewer < steps).all())
