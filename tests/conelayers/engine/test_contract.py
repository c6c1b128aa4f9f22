"""The contract of an engine: values. Register a back end and it receives every check here."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import Engine, Status, compile_program, make_engine
from conelayers.engine.registry import SOLVERS
from conelayers.engine.solvers.clarabel import Clarabel
from tests.helpers.cone_checks import assert_agrees, assert_kkt
from tests.helpers.programs import ENGINES, family, needs_moreau, pairs


@pytest.mark.parametrize(("engine", "name"), pairs())
def test_optimality_conditions(engine: str, name: str) -> None:
    member = family(name)
    theta = member.theta(6, seed=1)
    solution = make_engine(engine).solve(member.program, theta)
    assert solution.statuses == [Status.OPTIMAL] * 6
    assert_kkt(member, theta, solution)


@pytest.mark.parametrize(("engine", "name"), pairs())
def test_agrees_with_clarabel(engine: str, name: str) -> None:
    member = family(name)
    theta = member.theta(8, seed=2)
    assert_agrees(member, theta, make_engine(engine).solve(member.program, theta))


@pytest.mark.parametrize(("engine", "name"), pairs())
def test_first_route_suffices(engine: str, name: str) -> None:
    """Without a second route, so that it cannot cover for the first."""
    member = family(name)
    solution = Engine(SOLVERS[engine]()).solve(member.program, member.theta(20, seed=3))
    assert solution.statuses == [Status.OPTIMAL] * 20


@pytest.mark.parametrize(("engine", "name"), pairs())
@pytest.mark.filterwarnings("ignore::conelayers.engine.engine.FlatGradientWarning")  # of single items, at a corner
def test_batch_equals_loop(engine: str, name: str) -> None:
    member = family(name)
    solver = make_engine(engine)
    together, alone = (member.theta(7, seed=4).requires_grad_() for _ in range(2))
    batch = solver.solve(member.program, together)
    items = [solver.solve(member.program, row[None]) for row in alone]
    # Our algebras round otherwise when one program is alone, and a curved program has its minimiser to five digits.
    tolerance = 1e-7 if engine in ("moreau", "clarabel") else 1e-5
    for field in ("primal", "dual", "slack", "objective"):
        loop = torch.cat([getattr(item, field) for item in items])
        torch.testing.assert_close(getattr(batch, field), loop, rtol=tolerance, atol=tolerance)
    weight = torch.linspace(-1, 2, member.program.columns) ** 2
    (weight * batch.primal).sum().backward()
    sum((weight * item.primal).sum() for item in items).backward()
    torch.testing.assert_close(together.grad, alone.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("engine", "name"), pairs(["qp", "socp", "every_cone"]))
def test_changing_batch_sizes(engine: str, name: str) -> None:
    member = family(name)
    solver = make_engine(engine)
    theta = member.theta(33, seed=5)
    expected = solver.solve(member.program, theta).objective
    for size in (1, 33, 2, 5, 17, 5, 5, 5, 8, 1, 33, 33):
        leaf = theta[:size].clone().requires_grad_()
        solution = solver.solve(member.program, leaf)
        torch.testing.assert_close(solution.objective, expected[:size], rtol=1e-8, atol=1e-8)
        solution.primal.sum().backward()
        assert leaf.grad.shape == leaf.shape


@pytest.mark.parametrize(("engine", "name"), pairs(["lp_matrix", "qp", "socp", "entropy"]))
def test_single_precision(engine: str, name: str) -> None:
    member = family(name)
    theta = member.theta(5, seed=6).float()
    double, single = theta.double().requires_grad_(), theta.clone().requires_grad_()
    expected, found = (make_engine(engine).solve(member.program, t) for t in (double, single))
    for field in ("primal", "dual", "slack", "objective"):
        assert getattr(found, field).dtype == torch.float32
        # The solve itself is in double precision: only the result is rounded.
        assert torch.equal(getattr(found, field), getattr(expected, field).float())
    found.primal.sum().backward()
    expected.primal.sum().backward()
    assert single.grad.dtype == torch.float32
    torch.testing.assert_close(single.grad, double.grad.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rhs", [1e-3, 1.0, 1e2])
@pytest.mark.parametrize("objective", [1e-3, 1.0, 1e2])
@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (engine, kind)
        for engine in ENGINES
        for kind in ("lp", "socp", "qp")
        if kind != "qp" or SOLVERS[engine]().capabilities.quadratic
    ],
)
def test_scale_of_the_data(engine: str, kind: str, objective: float, rhs: float) -> None:
    """Returns of 1e-3 and demands of 1e+2 are solved to the same relative accuracy."""
    x, c, w, h = cp.Variable(4), cp.Parameter(4), cp.Parameter(nonneg=True), cp.Parameter(3)
    G = np.random.default_rng(0).random((3, 4))
    risk = {"lp": 0.0, "socp": w * cp.norm(x), "qp": w * cp.sum_squares(x)}[kind]
    constraints = [G @ x >= h, x >= 0]
    problem = cp.Problem(cp.Minimize(c @ x + risk), constraints)
    program = compile_program(problem, [c, w, h])
    unit = torch.tensor(np.random.default_rng(1).uniform(0.5, 1.5, size=(6, 8)))
    scaled = unit.clone()
    scaled[:, :5] *= objective
    scaled[:, 5:] *= rhs
    if kind == "qp":
        scaled[:, 4] /= rhs
    found = make_engine(engine).solve(program, scaled).objective
    expected = Clarabel(tolerance=1e-12).solve(program, program.values(unit)).x
    values = program.values(unit)
    exact = (values.q * expected).sum(1)
    if kind == "qp":
        exact = exact + unit[:, 4] * program.variable(expected, x).square().sum(1)
    error = (found / (objective * rhs) - exact).abs() / exact.abs()
    assert float(error.max()) < 1e-7


def test_threads_share_one_engine() -> None:
    """One engine, several threads, different programs and batch sizes, forward and backward."""
    solver = make_engine()
    jobs = [(name, size) for name in ("qp", "socp", "lp_matrix") for size in (3, 8, 8, 5)]

    def work(job: tuple[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        member = family(job[0])
        theta = member.theta(job[1], seed=7).requires_grad_()
        solution = solver.solve(member.program, theta)
        solution.primal.sum().backward()
        return solution.objective.detach(), theta.grad

    expected = [work(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, jobs * 3))
    for (value, gradient), (value_alone, gradient_alone) in zip(found, expected * 3, strict=True):
        torch.testing.assert_close(value, value_alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient, gradient_alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))])
def test_copies(engine: str, duplicate: Callable[[Engine], Engine]) -> None:
    member = family("socp")
    solver = make_engine(engine, "smoothed")
    theta = member.theta(3)
    expected = solver.solve(member.program, theta).objective
    twin = duplicate(solver)
    assert twin is not solver
    assert (twin.name, twin.gradient) == (solver.name, solver.gradient)
    torch.testing.assert_close(twin.solve(member.program, theta).objective, expected)


def test_deepcopy_of_a_program() -> None:
    member = family("every_cone")
    theta = member.theta(3)
    twin = copy.deepcopy(member.program)
    torch.testing.assert_close(
        make_engine().solve(twin, theta).objective, make_engine().solve(member.program, theta).objective
    )


@needs_moreau
def test_programs_are_forgotten() -> None:
    """Solver objects live as long as their program."""
    solver = make_engine("moreau")
    program = copy.deepcopy(family("socp").program)
    gone = weakref.ref(program)
    solver.solve(program, family("socp").theta(3))
    del program
    gc.collect()
    assert gone() is None


def test_solution_reads_well() -> None:
    member = family("socp")
    assert repr(make_engine().solve(member.program, member.theta(3))) == "Solution(batch=3, OPTIMAL: 3)"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("engine", "name"), pairs())
def test_cuda(engine: str, name: str) -> None:
    member = family(name)
    theta = member.theta(5, seed=8)
    here, there = theta.clone().requires_grad_(), theta.cuda().requires_grad_()
    expected, found = (make_engine(engine).solve(member.program, t) for t in (here, there))
    for field in ("primal", "dual", "slack", "objective", "status", "residual", "iterations"):
        assert getattr(found, field).device.type == "cuda"
    torch.testing.assert_close(found.objective.cpu(), expected.objective, rtol=1e-6, atol=1e-6)
    found.primal.sum().backward()
    expected.primal.sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-3, atol=1e-3)
    nothing = make_engine(engine).solve(member.program, torch.full_like(there, torch.nan))
    assert nothing.status.device.type == "cuda"
