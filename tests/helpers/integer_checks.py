"""What every oracle must satisfy, and a reference that shares no code with the search."""

from __future__ import annotations

import itertools

import torch

from conelayers import ConeProgram, Engine, Status, make_engine
from conelayers.oracles import Candidates


def brute_force(program: ConeProgram, theta: torch.Tensor, engine: Engine | None = None) -> torch.Tensor:
    """Values (batch, point) at all integer points of the box in lexicographic order; +inf where infeasible."""
    engine = engine or make_engine()
    lower, upper = (end.long().tolist() for end in program.integer_bounds)
    points = torch.tensor(list(itertools.product(*(range(a, b + 1) for a, b in zip(lower, upper, strict=True)))))
    batch, count = theta.shape[0], points.shape[0]
    values = program.values(theta)
    index = torch.arange(batch).repeat_interleave(count)
    fixed = points.double().repeat(batch, 1)
    with torch.no_grad():
        solution = engine.solve_values(program, program.within(values[index], fixed, fixed))
    assert set(solution.status.tolist()) <= {int(s) for s in (Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE)}
    objective = torch.where(solution.ok, solution.objective, torch.full_like(solution.objective, torch.inf))
    return objective.reshape(batch, count)


def assert_same_values(found: Candidates, expected: torch.Tensor, relative: float = 1e-7) -> None:
    """The values found are the smallest of the expected ones, slot by slot, and honest about missing points."""
    count = found.objective.shape[1]
    padded = torch.cat([expected, torch.full((expected.shape[0], count), torch.inf)], 1)
    best = padded.sort(1).values[:, :count]
    assert torch.equal(found.valid, best.isfinite())
    assert torch.equal(found.objective.isfinite(), found.valid)
    scale = best[best.isfinite()].abs()
    error = (found.objective[found.valid] - best[found.valid]).abs()
    assert bool((error <= relative * scale + 1e-9).all()), float((error / scale.clamp(min=1e-9)).max())


def assert_contract(program: ConeProgram, theta: torch.Tensor, found: Candidates, count: int) -> None:
    """Shapes, masks, order, distinctness, membership in the box, and the certificate of every point."""
    batch, integers = theta.shape[0], program.integers.numel()
    assert found.points.shape == (batch, count, integers)
    assert found.objective.shape == found.valid.shape == (batch, count)
    assert found.status.shape == found.gap.shape == found.nodes.shape == (batch,)
    assert found.primal.shape == (batch, count, program.columns)
    assert found.dual.shape == (batch, count, program.rows)
    assert found.points.dtype == found.objective.dtype == torch.float64
    assert bool(found.points.isfinite().all() & found.primal.isfinite().all() & found.dual.isfinite().all())
    assert torch.equal(found.points, found.points.round())
    lower, upper = program.integer_bounds
    assert bool(((found.points >= lower) & (found.points <= upper)).all())
    # Valid slots come first, best first, and differ.
    assert bool((found.valid[:, 1:] <= found.valid[:, :-1]).all())
    steps = found.objective[:, 1:] - found.objective[:, :-1]
    assert bool((steps[found.valid[:, 1:]] >= -1e-7 * (1 + found.objective[:, 1:][found.valid[:, 1:]].abs())).all())
    for points, valid in zip(found.points, found.valid, strict=True):
        assert points[valid].unique(dim=0).shape[0] == int(valid.sum())
    usable = found.status <= int(Status.INACCURATE)
    assert torch.equal(usable, found.valid.any(1))
    assert bool((found.gap[found.status == int(Status.OPTIMAL)] == 0).all())
    # The certificate: an independent solve at the fixed integers, and duals that prove its value.
    item, slot = found.valid.nonzero(as_tuple=True)
    points = found.points[item, slot]
    solution = make_engine().solve(program, theta[item], fixed=points)
    torch.testing.assert_close(found.objective[item, slot], solution.objective, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.primal[item, slot][:, program.integers], points, rtol=0, atol=1e-6)
    values = program.within(program.values(theta)[item], points, points)
    dual_value = values.constant - (values.b * found.dual[item, slot]).sum(1)
    if not program.quadratic:
        torch.testing.assert_close(dual_value, solution.objective, rtol=1e-6, atol=1e-7)
