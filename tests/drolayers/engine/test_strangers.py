"""Programs from outside: values against Clarabel, gradients against stable differences, smoothing against Newton.

What the engine was once seen to get wrong while it said OPTIMAL stands here, through the public interface alone.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import Derivative, Smoothed, Solution, compile_program, make_engine
from conelayers.errors import LayerError
from drolayers import Status
from tests.drolayers.engine.strangers import (
    Barrier,
    Differences,
    Stranger,
    directions,
    reference,
    stable_differences,
    stranger,
)
from tests.helpers.programs import needs_moreau

BATCHES = {"box": 120, "ellipse": 60, "newsvendor": 60, "wasserstein": 16, "appointments": 3}
"""How many items are looked at; a program that takes longer gets fewer."""

EXACT = ("FACE", "FACTORED")
LEVELS = (1e-1, 1e-2, 1e-3)


@dataclass(frozen=True, eq=False)
class Look:
    """A batch, what was found about it, and what differences say."""

    leaf: Tensor
    weight: Tensor
    along: Tensor
    expected: Differences


@cache
def look(name: str) -> Look:
    """Differences of a batch, taken once."""
    one, batch = stranger(name), BATCHES[name]
    leaf, weight = one.leaves(batch, seed=1), one.weights(batch, seed=2)
    along = directions(leaf, 3, np.random.default_rng(3))
    return Look(leaf, weight, along, stable_differences(one.program, leaf, weight, along, one.features))


def gradients(one: Stranger, at: Look) -> tuple[Solution, Tensor, Tensor]:
    """The solution, and derivatives of ``weight · x*`` and of the objective along the directions."""
    leaf = at.leaf.clone().requires_grad_()
    solution = one.solve(leaf)
    (of_value,) = torch.autograd.grad(solution.objective.sum(), leaf, retain_graph=True)
    (of_decision,) = torch.autograd.grad((solution.primal * at.weight).sum(), leaf)
    return solution, *((g * at.along).sum(-1).T for g in (of_decision, of_value))


@pytest.mark.parametrize("name", BATCHES)
def test_gradients_agree_with_stable_differences(name: str) -> None:
    at = look(name)
    solution, of_decision, of_value = gradients(stranger(name), at)
    stable = at.expected.stable
    assert int(stable.sum()) >= len(stable) // 2, "too few stable differences to show anything"
    assert bool(solution.ok.all()), solution
    wrong = {
        kind: {i: round(float(errors[i]), 4) for i in (known & ~(errors <= 1e-2)).nonzero()[:, 0].tolist()}
        for kind, known, errors in (
            ("decision", stable, at.expected.errors(of_decision)),
            ("value", at.expected.value_stable, at.expected.errors(of_value, "value")),
        )
    }
    assert not any(wrong.values()), f"relative errors over 1 % of {int(stable.sum())} stable items: {wrong}"


@pytest.mark.parametrize("name", BATCHES)
def test_differences_show_something(name: str) -> None:
    """Some decisions move with their parameters, and some of those are stable."""
    expected = look(name).expected
    moving = expected.stable & (expected.decision.norm(dim=1) > expected.size)
    assert int(moving.sum()) >= 3


@pytest.mark.parametrize("name", [*BATCHES, "path"])
def test_values_agree_with_clarabel(name: str) -> None:
    one = stranger(name)
    leaf = look(name).leaf if name in BATCHES else one.leaves(20, seed=1)
    tolerance, asked = (1e-7, 1e-10) if name == "appointments" else (1e-6, 1e-12)
    expected = reference(one.program, one.features(leaf), asked)
    solution = one.solve(leaf)
    optimal = solution.status == int(Status.OPTIMAL)
    assert int(optimal.sum()) >= 0.9 * len(leaf)
    assert bool(expected.accurate[optimal].all())
    error = (solution.objective - expected.objective).abs() / expected.objective.abs()
    assert float(error[optimal].max()) <= tolerance


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("engine", ["auto", pytest.param("moreau", marks=needs_moreau)])
def test_smoothed_gradient_of_the_shortest_path(engine: str, level: float) -> None:
    one = stranger("path")
    leaf, weight = one.leaves(6, seed=1), one.weights(6, seed=2)
    barrier = Barrier(one.program, level)
    expected = torch.tensor(np.array([barrier.gradient(*row) for row in zip(leaf, weight, strict=True)]))
    moved = leaf.clone().requires_grad_()
    solution = one.solve(moved, make_engine(engine, Smoothed(level)))
    assert bool(solution.ok.all()), solution
    (found,) = torch.autograd.grad((solution.primal * weight).sum(), moved)
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) <= 1e-4, error.tolist()


def _twice(one: Stranger, of: str, curved: bool) -> None:
    """Differentiate a gradient once more."""
    leaf = one.leaves(2, seed=1).requires_grad_()
    solution = one.solve(leaf)
    total = (solution.primal * one.weights(2)).sum(1) if of == "primal" else solution.objective
    total = (total.square() if curved else total).sum()
    (first,) = torch.autograd.grad(total, leaf, create_graph=True)
    torch.autograd.grad(first.square().sum(), leaf)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("of", ["primal", "objective"])
@pytest.mark.parametrize("name", ["newsvendor", "box"])
def test_second_derivatives_raise(name: str, of: str, curved: bool) -> None:
    with pytest.raises((LayerError, RuntimeError), match=r"(?i)second|twice"):
        _twice(stranger(name), of, curved)


def names(codes: Tensor) -> list[str]:
    """Codes of derivatives by name."""
    return [Derivative(int(code)).name for code in codes]


@pytest.mark.parametrize("name", ["box", "ellipse"])
def test_exact_derivatives_are_told(name: str) -> None:
    at = look(name)
    leaf = at.leaf.clone().requires_grad_()
    solution = stranger(name).solve(leaf)
    assert names(solution.derivative) == ["UNASKED"] * len(leaf)
    (solution.primal * at.weight).sum().backward()
    assert tuple(solution.derivative.shape) == (len(leaf),)
    assert not solution.derivative.is_floating_point()
    told = names(solution.derivative)
    assert "UNASKED" not in told
    unproved = {i: told[i] for i in at.expected.stable.nonzero()[:, 0].tolist() if told[i] not in EXACT}
    assert not unproved
    masked = torch.tensor([code not in EXACT for code in told])
    assert float(leaf.grad[masked].abs().sum()) == 0.0


def test_items_that_are_not_asked_about_are_told() -> None:
    at = look("box")
    solution = stranger("box").solve(at.leaf[:4].clone().requires_grad_())
    weight = at.weight[:4].clone()
    weight[1] = 0.0
    (solution.primal * weight).sum().backward()
    told = names(solution.derivative)
    assert told[1] == "UNASKED"
    assert "UNASKED" not in (told[0], told[2], told[3])


@pytest.mark.parametrize("level", LEVELS)
def test_smoothed_derivatives_are_told(level: float) -> None:
    one = stranger("path")
    leaf = one.leaves(6, seed=1).requires_grad_()
    solution = one.solve(leaf, make_engine("auto", Smoothed(level)))
    (solution.primal * one.weights(6, seed=2)).sum().backward()
    assert names(solution.derivative) == ["PATH"] * 6


# --- The helpers must be able to fail ---------------------------------------------------------------------------------


def _corner() -> Stranger:
    """min ½(x - c)² over x ≥ 0, and a variable u in [0, 1] that nothing pins down."""
    x, u, c = cp.Variable(name="x"), cp.Variable(name="u"), cp.Parameter(1, name="c")
    problem = cp.Problem(cp.Minimize(0.5 * cp.square(x) - c[0] * x), [x >= 0, u >= 0, u <= 1])
    return Stranger("corner", compile_program(problem, [c]), lambda rng: rng.normal(size=1), (x, u))


def _weight(one: Stranger, variable: int, batch: int) -> Tensor:
    """One on a single variable."""
    weight = torch.zeros(batch, one.program.columns, dtype=torch.float64)
    slot = next(s for s in one.program.variables if s.key == one.variables[variable].id)
    weight[:, slot.offset] = 1.0
    return weight


def test_differences_know_kinks_and_free_variables() -> None:
    one = _corner()
    leaf = torch.tensor([[1.0], [-1.0], [0.0], [5e-5]], dtype=torch.float64)
    along = torch.ones(1, 4, 1, dtype=torch.float64)
    found = stable_differences(one.program, leaf, _weight(one, 0, 4), along)
    assert found.stable.tolist() == [True, True, False, False]
    assert bool(found.value_stable[:2].all())
    assert found.unique.tolist() == [True] * 4
    torch.testing.assert_close(found.decision[:2, 0], torch.tensor([1.0, 0.0]).double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.value[:2, 0], torch.tensor([-1.0, 0.0]).double(), rtol=1e-4, atol=1e-5)
    free = stable_differences(one.program, leaf, _weight(one, 1, 4), along)
    assert not bool(free.unique.any())
    assert not bool(free.stable.any())


def test_errors_of_gradients_are_seen() -> None:
    expected = look("newsvendor").expected
    moving = expected.stable & (expected.decision.norm(dim=1) > expected.size)
    for of in ("decision", "value"):
        right = getattr(expected, of)
        assert float(expected.errors(right, of).max()) == 0.0
        for wrong in (-right, 1.02 * right, 0.0 * right, right.flip(1)):
            assert float(expected.errors(wrong, of)[moving].max()) > 1e-2
        assert not bool((expected.errors(torch.full_like(right, torch.nan), of) <= 1e-2).any())


def test_reference_is_the_shortest_path() -> None:
    """Against a table filled row by row; and another cost is another answer."""
    one, side = stranger("path"), 5
    leaf = one.leaves(4, seed=1)
    expected = []
    for row in leaf.tolist():
        right, down = np.array(row[:20]).reshape(side, side - 1), np.array(row[20:]).reshape(side - 1, side)
        table = np.full((side, side), np.inf)
        table[0, 0] = 0.0
        for i in range(side):
            for j in range(side):
                if j:
                    table[i, j] = min(table[i, j], table[i, j - 1] + right[i, j - 1])
                if i:
                    table[i, j] = min(table[i, j], table[i - 1, j] + down[i - 1, j])
        expected.append(table[-1, -1])
    found = reference(one.program, leaf)
    assert bool(found.accurate.all())
    torch.testing.assert_close(found.objective, torch.tensor(expected), rtol=1e-9, atol=0.0)
    assert not torch.allclose(reference(one.program, 1.001 * leaf).objective, found.objective, rtol=1e-6)


def test_reference_says_where_it_has_no_answer() -> None:
    x, c = cp.Variable(name="x"), cp.Parameter(1, name="c")
    program = compile_program(cp.Problem(cp.Minimize(x), [x >= 1, x <= c[0]]), [c])
    found = reference(program, torch.tensor([[2.0], [0.0]], dtype=torch.float64))
    assert found.accurate.tolist() == found.solvable.tolist() == [True, False]
    assert not bool(reference(program, torch.tensor([[2.0]], dtype=torch.float64), residual=0.0).accurate.any())


@pytest.mark.parametrize("level", LEVELS)
def test_gradient_of_the_barrier_problem(level: float) -> None:
    """By differences of its minimisers, which tend to the shortest path."""
    one = stranger("path")
    leaf, weight = one.leaves(1, seed=1)[0], one.weights(1, seed=2)[0]
    barrier = Barrier(one.program, level)
    found, kappa = barrier.gradient(leaf, weight), barrier.scale(leaf)
    for entry in (0, 7, 30):
        step = torch.zeros_like(leaf).index_fill(0, torch.tensor([entry]), 1e-5)
        ends = [barrier.minimiser(leaf + sign * step, kappa) @ weight.numpy() for sign in (1.0, -1.0)]
        # Beside the other entries: far from the path nothing moves.
        assert abs((ends[0] - ends[1]) / 2e-5 - found[entry]) <= 1e-5 * np.abs(found).max()
    assert np.abs(found - Barrier(one.program, 1.1 * level).gradient(leaf, weight)).max() > 1e-3 * np.abs(found).max()


def test_barrier_problem_tends_to_the_linear_program() -> None:
    one = stranger("path")
    leaf = one.leaves(1, seed=1)
    exact = reference(one.program, leaf).x[0].numpy()
    distances = [np.abs(Barrier(one.program, level).minimiser(leaf[0]) - exact).max() for level in (1e-1, 1e-2, 1e-5)]
    assert all(far > near for far, near in pairwise(distances))
    assert distances[-1] < 1e-2


def test_flat_gradients_warn_of_nothing_else() -> None:
    """The default engine on a battery whose decisions stand still is silent, or says that gradients vanish."""
    at = look("box")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients(stranger("box"), at)
    assert not [w for w in caught if "vanished" not in str(w.message)]
