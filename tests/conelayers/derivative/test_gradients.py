"""The contract of an engine: gradients of decisions and of the objective."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from conelayers import Engine, Smoothed, make_engine
from conelayers.engine.engine import FlatGradientWarning
from conelayers.engine.solvers.automatic import general_solver
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.moreau import Moreau, SolverPool
from conelayers.errors import ModelError
from tests.helpers.cone_checks import assert_gradient, central_differences, margin, step
from tests.helpers.programs import GENERAL, NAMES, Family, family, needs_moreau, pairs

ITEMS = 12


def weights(member: Family, batch: int = ITEMS) -> Tensor:
    """Random weights on the user's variables; what CVXPY adds need not be unique."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(batch, member.program.columns, dtype=torch.float64)
    for slot in member.program.variables:
        weight[:, slot.offset : slot.offset + slot.size] = torch.randn(batch, slot.size, generator=generator)
    return weight


@cache
def differences(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parameters away from kinks, weights, and the derivatives by central differences."""
    member = family(name)
    theta, weight = member.theta(ITEMS, seed=3), weights(member)
    keep = margin(member.program, make_engine().solve(member.program, theta)) > 5 * step(member.program)
    assert int(keep.sum()) >= ITEMS // 2, "too few non-degenerate cases"
    theta, weight = theta[keep], weight[keep]
    found = central_differences(member.program, theta, weight)
    known = torch.stack([t.isfinite().all(1) for t in found]).all(0)
    assert int(known.sum()) >= ITEMS // 2, "too few cases with an accurate reference"
    return theta[known], weight[known], *(t[known] for t in found)


def gradients(engine: Engine, member: Family, theta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``weight · x*`` and of the objective, item by item."""
    theta = theta.clone().requires_grad_()
    solution = engine.solve(member.program, theta)
    assert bool(solution.ok.all()), solution
    (by_decision,) = torch.autograd.grad((weight * solution.primal).sum(), theta, retain_graph=True)
    (by_value,) = torch.autograd.grad(solution.objective.sum(), theta)
    return by_decision, by_value


def assert_gradients(engine: Engine, name: str) -> None:
    theta, weight, of_decision, of_value = differences(name)
    by_decision, by_value = gradients(engine, family(name), theta, weight)
    assert_gradient(by_decision, of_decision, 5e-4)
    assert_gradient(by_value, of_value, 1e-4)


@pytest.mark.parametrize(("engine", "name"), pairs())
def test_central_differences(engine: str, name: str) -> None:
    assert_gradients(make_engine(engine), name)


@pytest.mark.parametrize("name", NAMES)
def test_second_route_central_differences(name: str) -> None:
    hasty = replace(general_solver(), max_iter=1)
    engine = Engine(hasty, Clarabel())
    if name != "qp_weights":
        first = Engine(hasty).solve(family(name).program, differences(name)[0])
        assert not bool(first.ok.any()), "the first route was meant to give up"
    assert_gradients(engine, name)


def test_differences_are_not_zero() -> None:
    sizes = torch.cat([differences(name)[2].norm(dim=1) for name in NAMES])
    assert float((sizes > 1e-2).double().mean()) >= 0.5
    for name in NAMES:
        assert float((differences(name)[2].norm(dim=1) > 1e-2).double().mean()) >= 0.5, name


def test_entry_that_is_zero_keeps_its_gradient() -> None:
    member = family("lp_matrix")
    theta = member.theta(1, seed=3)
    theta[0, 3:15] = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
    theta[0, 15:] = 1.0
    weight = weights(member, 1)
    of_decision, of_value = central_differences(member.program, theta, weight)
    assert float(of_value[0, 4].abs()) > 1e-2
    for engine in GENERAL:
        by_decision, by_value = gradients(make_engine(engine), member, theta, weight)
        assert_gradient(by_decision, of_decision, 5e-4)
        assert_gradient(by_value, of_value, 1e-4)


@pytest.mark.parametrize(("engine", "name"), pairs(["lp_matrix", "socp", "qp"]))
def test_interleaved_solves(engine: str, name: str) -> None:
    """Two forward passes, then two backward passes: each belongs to its own data."""
    member, solver = family(name), make_engine(engine)
    thetas = [member.theta(4, seed=seed).requires_grad_() for seed in (5, 6)]
    weight = weights(member, 4)
    alone = [torch.autograd.grad((solver.solve(member.program, t).primal * weight).sum(), t)[0] for t in thetas]
    solutions = [solver.solve(member.program, t) for t in thetas]
    together = [torch.autograd.grad((s.primal * weight).sum(), t)[0] for s, t in zip(solutions, thetas, strict=True)]
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b)


@needs_moreau
def test_backward_after_its_solver_was_dropped() -> None:
    member = family("socp")
    engine = Engine(Moreau(_pool=SolverPool(size=1)))
    theta = member.theta(3).requires_grad_()
    solution = engine.solve(member.program, theta)
    for batch in (1, 2, 5):
        engine.solve(member.program, member.theta(batch).requires_grad_())
    solution.primal.sum().backward()
    expected = gradients(make_engine(), member, member.theta(3), torch.ones(3, member.program.columns))[0]
    torch.testing.assert_close(theta.grad, expected)


def test_backward_twice() -> None:
    member = family("socp")
    theta = member.theta(3).requires_grad_()
    x = make_engine().solve(member.program, theta).primal
    first, second = (torch.autograd.grad(x.sum(), theta, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


def test_objective_alone_needs_no_linear_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    member = family("socp")
    theta = member.theta(3).requires_grad_()
    solution = make_engine().solve(member.program, theta)
    monkeypatch.setattr("conelayers.engine.engine._ImplicitSolve.backward", None)
    solution.objective.sum().backward()
    assert float(theta.grad.norm()) > 0.1


def test_flat_program_warns_once() -> None:
    member, engine = family("flat"), make_engine()
    assert member.program.flat

    def backward() -> Tensor:
        theta = member.theta(8).requires_grad_()
        engine.solve(member.program, theta).primal.square().sum().backward()
        return theta.grad

    with pytest.warns(FlatGradientWarning, match="smoothed"):
        gradient = backward()
    assert float(gradient.abs().max()) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward()


@pytest.mark.parametrize("name", NAMES)
def test_other_programs_do_not_warn(name: str) -> None:
    member = family(name)
    assert not member.program.flat
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(make_engine(), member, member.theta(4), weights(member, 4))


def test_unused_loss_does_not_warn() -> None:
    """A zero gradient coming in says nothing about the program."""
    member = family("flat")
    theta = member.theta(4).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (0.0 * make_engine().solve(member.program, theta).primal).sum().backward()
    assert float(theta.grad.abs().max()) == 0.0


def barrier_minimiser(c: Tensor, level: float) -> Tensor:
    """argmin cᵀx - level Σ log x on the simplex: x = level/(c + ν) with ν found by bisection."""
    low, high = -c.amin(1, keepdim=True) + 1e-14, -c.amin(1, keepdim=True) + 10.0
    for _ in range(200):
        middle = (low + high) / 2
        total = (level / (c + middle)).sum(1, keepdim=True)
        low, high = torch.where(total > 1, middle, low), torch.where(total > 1, high, middle)
    return level / (c + low)


def test_smoothed_gradient_is_that_of_the_barrier_problem() -> None:
    member = family("flat")
    theta = member.theta(6, seed=1)
    theta = theta / theta.abs().amax(1, keepdim=True)
    weight = weights(member, 6)
    for level, tolerance in ((1e-1, 1e-4), (1e-2, 5e-3)):
        found, _ = gradients(make_engine(general_solver(), Smoothed(level)), member, theta, weight)
        moved = 1e-6 * torch.eye(5, dtype=torch.float64)
        expected = torch.stack(
            [
                ((barrier_minimiser(theta + d, level) - barrier_minimiser(theta - d, level)) * weight).sum(1) / 2e-6
                for d in moved
            ],
            1,
        )
        assert float(expected.norm(dim=1).min()) > 5e-3
        error = (found - expected).norm(dim=1) / expected.norm(dim=1)
        assert float(error.max()) < tolerance


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_smoothing_means_the_same_at_every_scale(scale: float) -> None:
    member = family("flat")
    theta, weight = member.theta(6, seed=1), weights(member, 6)
    engine = make_engine(general_solver(), Smoothed(1e-2))
    expected, _ = gradients(engine, member, theta, weight)
    found, _ = gradients(engine, member, scale * theta, weight)
    assert float(expected.norm(dim=1).min()) > 1e-3
    torch.testing.assert_close(scale * found, expected, rtol=1e-5, atol=1e-7)


def test_smoothed_gradient_survives_the_second_route() -> None:
    member = family("flat")
    theta, weight = member.theta(6, seed=1), weights(member, 6)
    # Short of OPTIMAL, but usable: the second route improves the point and leaves the gradient to the first.
    rough = general_solver().with_tolerance(1e-5)
    engine = Engine(rough, Clarabel(), Smoothed(1e-1))
    # Polishing would leave nothing to improve.
    first = Engine(rough).solve(member.program, theta, polish=False)
    assert bool(first.ok.all())
    assert float(first.residual.max()) > 1e-7
    leaf = theta.clone().requires_grad_()
    (weight * engine.solve(member.program, leaf, polish=False).primal).sum().backward()
    found = leaf.grad
    expected, _ = gradients(make_engine(general_solver(), Smoothed(1e-1)), member, theta, weight)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)


def test_smoothing_over_other_cones_is_refused() -> None:
    member = family("entropy")
    with pytest.raises(ModelError, match="smoothed gradients over exp cones"):
        make_engine(general_solver(), "smoothed").solve(member.program, member.theta(2))
    with pytest.raises(ModelError, match="positive"):
        Smoothed(0.0)
