"""Smoothed gradients where integer columns are fixed, against central differences of a barrier problem without them.

The reference is written down once more: the fixed columns are constants, and Newton's method minimises the objective
plus the barrier of the cones, with nothing of the library's interior-point method in it.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Engine, Smoothed, compile_program
from conelayers.engine.solvers.interior import Interior
from conelayers.scaling.units import Units
from tests.helpers.cone_checks import assert_gradient, dense

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def _program(curved: bool) -> ConeProgram:
    """Three amounts and two switches; θ stands in q, b and A."""
    x, on = cp.Variable(3, nonneg=True), cp.Variable(2, boolean=True)
    c, G, h = cp.Parameter(3), cp.Parameter((2, 3)), cp.Parameter(2)
    cost = c @ x + np.array([5.0, -3.0]) @ on
    constraints = [G @ x <= h + 2 * on, cp.sum(x) + 0.5 * on[0] == 2.0, x <= 10.0]
    if curved:
        cost = cost + cp.quad_form(x, np.diag([0.5, 0.2, 0.4]))
        constraints.append(cp.SOC(4.0 + on[1], x - 0.5))
    return compile_program(cp.Problem(cp.Minimize(cost), constraints), [c, G, h])


def _theta(batch: int) -> Tensor:
    rng = np.random.default_rng(batch)
    parts = (rng.normal(size=(batch, 3)), rng.uniform(0.2, 1.0, (batch, 6)), rng.uniform(2.5, 4.0, (batch, 2)))
    return torch.tensor(np.concatenate(parts, 1))


def _slack_barrier(program: ConeProgram, s: Tensor, kept: list[int]) -> Tensor:
    """-Σ log s over the orthant's rows that are kept, -½ log det over second-order cones; s∘z = level·e at its end."""
    cones = program.cones
    first = cones.zero + cones.nonneg
    total = -torch.log(s[kept]).sum()
    for size in cones.soc:
        total = total - 0.5 * torch.log(s[first] ** 2 - (s[first + 1 : first + size] ** 2).sum())
        first += size
    return total


def _path(program: ConeProgram, theta: Tensor, fixed: Tensor, level: float | Tensor, start: Tensor) -> Tensor:
    """The minimiser of the barrier problem in the columns that are not fixed; the others are constants."""
    P, A, q, b = (torch.tensor(t) for t in dense(program, theta[None], 0))
    lower, upper = program.lower_rows.tolist(), program.upper_rows.tolist()
    b[lower], b[upper], values = -fixed, fixed, fixed
    zero = program.cones.zero
    kept = [r for r in range(zero, zero + program.cones.nonneg) if r not in (*lower, *upper)]
    free = [j for j in range(program.columns) if j not in program.integers.tolist()]

    def whole(y: Tensor) -> Tensor:
        x = torch.zeros(program.columns, dtype=torch.float64).index_copy(0, program.integers, values)
        return x.index_copy(0, torch.tensor(free), y)

    def objective(y: Tensor) -> Tensor:
        x = whole(y)
        return 0.5 * x @ P @ x + q @ x + level * _slack_barrier(program, b - A @ x, kept)

    y, E = start[free], A[:zero][:, free]
    for _ in range(100):
        gradient, curvature = torch.func.grad(objective)(y), torch.func.hessian(objective)(y)
        corner = torch.zeros(zero, zero, dtype=torch.float64)
        system = torch.cat([torch.cat([curvature, E.T], 1), torch.cat([E, corner], 1)])
        rest = torch.cat([-gradient, b[:zero] - A[:zero] @ whole(y)])
        step = torch.linalg.solve(system, rest)[: len(free)]
        size = 1.0
        while not bool(objective(y + size * step).isfinite()):
            size *= 0.5
        y = y + size * step
        if float(step.abs().max()) < 1e-13:
            break
    return whole(y)


def _interior(program: ConeProgram, fixed: Tensor) -> Tensor:
    """A point well inside, for every θ that is drawn."""
    x = torch.zeros(program.columns, dtype=torch.float64)
    slot = next(slot for slot in program.variables if slot.size == 3)
    x[slot.offset : slot.offset + 3] = (2.0 - 0.5 * fixed[0]) / 3.0
    return x.index_copy(0, program.integers, fixed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", [1e-2, 1e-3])
@pytest.mark.parametrize("curved", [False, True])
def test_smoothed_gradient_with_fixed_columns(curved: bool, level: float, device: str) -> None:
    program = _program(curved)
    assert program.columns == 5  # no epigraph: the interior point above is one of the whole program
    theta = _theta(4)
    fixed = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, -2.0, 0.5, 0.0, 0.0], dtype=torch.float64).roll(int(program.integers.min() == 0) * 2)
    leaf = theta.clone().to(device).requires_grad_()
    engine = Engine(Interior(), gradient=Smoothed(level))
    solution = engine.solve(program, leaf, fixed=fixed.to(device))
    assert bool(solution.ok.all())
    (solution.primal * weight.to(device)).sum().backward()

    h = 1e-5
    expected = torch.zeros_like(theta)
    # A level is relative to the objective's unit, which is a constant of the derivative.
    units, _ = Units.of(program, program.within(program.values(theta), fixed, fixed))
    levels = level * (units.kappa * units.beta)[:, 0]
    for item, (row, at) in enumerate(zip(theta, fixed, strict=True)):
        start = _path(program, row, at, levels[item], _interior(program, at))
        for entry in range(theta.shape[1]):
            step = torch.zeros_like(row).index_fill(0, torch.tensor([entry]), h)
            ends = [_path(program, row + sign * step, at, levels[item], start) @ weight for sign in (1.0, -1.0)]
            expected[item, entry] = (ends[0] - ends[1]) / (2 * h)
    assert float(expected.norm(dim=1).min()) > 1e-3  # there is something to compare
    # The room of a fixed column, 1e-4, lets it move a little: by the curvature level/1e-8 that holds it.
    assert_gradient(leaf.grad.cpu(), expected, 1e-3)


def test_fixed_columns_stay_where_they_are() -> None:
    """The room is for the derivative alone; and the smaller the level, the closer the path is to the solution."""
    program, theta = _program(True), _theta(4)
    fixed = torch.tensor([[0.0, 1.0]] * 4, dtype=torch.float64)
    solution = Engine(Interior(), gradient=Smoothed(1e-2)).solve(program, theta.clone().requires_grad_(), fixed=fixed)
    torch.testing.assert_close(solution.primal[:, program.integers], fixed, rtol=0, atol=1e-7)
    ends = [
        torch.stack([_path(program, row, fixed[0], level, _interior(program, fixed[0])) for row in theta])
        for level in (1e-2, 1e-4, 1e-6)
    ]
    distances = [float((end - solution.primal.detach()).norm()) for end in ends]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-3
