"""A failed item never fails its batch; bad input is named at once."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import Engine, Smoothed, Solution, Status, make_engine
from conelayers.engine.solvers.automatic import general_solver
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.errors import ModelError, ShapeError, SolveError
from conelayers.program.program import Values
from tests.helpers.programs import ENGINES, FRAGILE, NAMES, family, pairs

BATCH = 32
BAD = {9: Status.INFEASIBLE, 15: Status.UNBOUNDED, 16: Status.FAILED, 17: Status.FAILED, 23: Status.INFEASIBLE}
GOOD = [i for i in range(BATCH) if i not in BAD]
FRAGILE_NAMES = [f.__name__ for f in FRAGILE]


def spoil(theta: Tensor) -> Tensor:
    """The same batch with bad items in the middle."""
    theta = theta.clone()
    theta[[9, 23], -1] = -0.5
    theta[15, 0] = -1.0
    theta[16, 1] = torch.nan
    theta[17, -1] = torch.inf
    return theta


def solve(engine: Engine, name: str, theta: Tensor) -> tuple[Solution, Tensor, Tensor]:
    """A solution, and gradients of a loss of the decisions and of the objectives over the usable items."""
    theta = theta.clone().requires_grad_()
    solution = engine.solve(family(name).program, theta)
    # Of the user's variables: what CVXPY adds need not be unique.
    decision = member_variables(solution)
    loss = torch.where(solution.ok[:, None], decision, 0.0).div(3).sin().sum()
    (by_decision,) = torch.autograd.grad(loss, theta, retain_graph=True)
    value = torch.where(solution.ok, solution.objective, 0.0).sum()
    (by_value,) = torch.autograd.grad(value, theta)
    return solution, by_decision, by_value


@pytest.mark.parametrize(("engine", "name"), pairs(FRAGILE_NAMES))
def test_bad_items_in_the_middle_of_a_batch(engine: str, name: str) -> None:
    theta = family(name).theta(BATCH, seed=4)
    clean = solve(make_engine(engine), name, theta)
    mixed = solve(make_engine(engine), name, spoil(theta))
    assert clean[0].statuses == [Status.OPTIMAL] * BATCH
    assert mixed[0].statuses == [BAD.get(i, Status.OPTIMAL) for i in range(BATCH)]
    for field in ("primal", "dual", "slack", "objective"):
        before, after = (getattr(s[0], field) for s in (clean, mixed))
        torch.testing.assert_close(after[GOOD], before[GOOD], rtol=1e-9, atol=1e-9)
        assert bool(after[list(BAD)].isnan().all())
    for before, after in zip(clean[1:], mixed[1:], strict=True):
        assert float(before[GOOD].norm(dim=1).max()) > 1e-3  # there is something to compare
        torch.testing.assert_close(after[GOOD], before[GOOD], rtol=1e-7, atol=1e-7)
        assert float(after[list(BAD)].abs().max()) == 0.0


def test_bad_items_with_smoothed_gradients() -> None:
    theta = family("fragile_lp").theta(BATCH, seed=4)
    engine = make_engine(general_solver(), Smoothed(1e-2))
    (_, before, _), (solution, after, _) = (solve(engine, "fragile_lp", t) for t in (theta, spoil(theta)))
    assert solution.statuses == [BAD.get(i, Status.OPTIMAL) for i in range(BATCH)]
    torch.testing.assert_close(after[GOOD], before[GOOD], rtol=1e-7, atol=1e-7)
    assert float(after[list(BAD)].abs().max()) == 0.0


@pytest.mark.parametrize(("engine", "name"), pairs(FRAGILE_NAMES))
def test_a_batch_of_nothing_but_bad_items(engine: str, name: str) -> None:
    theta = spoil(family(name).theta(BATCH, seed=4))[list(BAD)]
    for items in (list(range(len(BAD))), [2, 3], [0], [1]):
        solution, *gradients = solve(make_engine(engine), name, theta[items])
        assert solution.statuses == [list(BAD.values())[i] for i in items]
        assert not bool(solution.ok.any())
        assert bool(solution.primal.isnan().all())
        for gradient in gradients:
            assert float(gradient.abs().max()) == 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_without_gradients(engine: str) -> None:
    theta = spoil(family("fragile_lp").theta(BATCH, seed=4))
    with torch.no_grad():
        plain = make_engine(engine).solve(family("fragile_lp").program, theta)
    assert plain.statuses == [BAD.get(i, Status.OPTIMAL) for i in range(BATCH)]
    assert not plain.primal.requires_grad


def test_nan_in_the_constant_of_the_objective() -> None:
    """It reaches no matrix, and must not be called optimal all the same."""
    member = family("lp")
    values = member.program.values(member.theta(3))
    constant = values.constant.clone()
    constant[1] = torch.nan
    spoilt = Values(values.P, values.A, values.q, values.b, constant)
    assert make_engine().solve_values(member.program, spoilt).statuses[1] == Status.FAILED


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
@pytest.mark.parametrize("name", ["fragile_lp", "fragile_socp", "fragile_qp", "fragile_sdp"])
def test_extreme_numbers_do_not_spread(name: str, scale: float) -> None:
    theta = family(name).theta(5, seed=4)
    _, *expected = solve(make_engine(), name, theta)
    theta[2] *= scale
    solution, *found = solve(make_engine(), name, theta)
    assert bool(solution.ok[[0, 1, 3, 4]].all())
    for a, b in zip(found, expected, strict=True):
        assert bool(a.isfinite().all())
        torch.testing.assert_close(a[[0, 1, 3, 4]], b[[0, 1, 3, 4]], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_second_route_agrees_with_the_first(name: str) -> None:
    member = family(name)
    theta = member.theta(6, seed=7)
    first = make_engine(general_solver()).solve(member.program, theta)
    second = Engine(replace(general_solver(), max_iter=3), Clarabel()).solve(member.program, theta)
    assert second.statuses == [Status.OPTIMAL] * 6
    torch.testing.assert_close(second.objective, first.objective, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(member_variables(second), member_variables(first), rtol=1e-4, atol=1e-4)


def member_variables(solution: Solution) -> Tensor:
    """The user's variables, without what CVXPY adds."""
    slots = solution.program.variables
    return torch.cat([solution.primal[:, s.offset : s.offset + s.size] for s in slots], 1)


def test_second_route_takes_only_the_unfinished() -> None:
    asked = []

    class Counting:
        def solve(self, program, values):  # type: ignore[no-untyped-def]
            asked.append(len(values.q))
            return Clarabel().solve(program, values)

    rescue = Counting()

    member = family("socp")
    assert bool(Engine(general_solver(), rescue).solve(member.program, member.theta(6)).ok.all())
    assert asked == []
    assert bool(Engine(replace(general_solver(), max_iter=3), rescue).solve(member.program, member.theta(6)).ok.all())
    assert asked == [6]


def test_without_a_second_route_an_item_has_failed() -> None:
    member = family("socp")
    solution = Engine(replace(general_solver(), max_iter=3)).solve(member.program, member.theta(4))
    assert solution.statuses == [Status.FAILED] * 4
    assert bool(solution.primal.isnan().all())


def test_raise_lists_the_items() -> None:
    member = family("fragile_lp")
    engine = make_engine()
    assert engine.solve(member.program, member.theta(4)).checked().statuses == [Status.OPTIMAL] * 4
    with pytest.raises(SolveError, match=r"5 of 32 items .* INFEASIBLE \(items? 9.* UNBOUNDED \(items? 15") as caught:
        engine.solve(member.program, spoil(member.theta(BATCH, seed=4))).checked()
    assert caught.value.items == BAD


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_batch(engine: str) -> None:
    member = family("fragile_socp")
    theta = torch.zeros(0, member.program.feature_size, requires_grad=True)
    solution = make_engine(engine).solve(member.program, theta)
    assert solution.primal.shape == (0, member.program.columns)
    assert solution.dual.shape == solution.slack.shape == (0, member.program.rows)
    assert solution.objective.shape == solution.status.shape == solution.ok.shape == (0,)
    assert solution.primal.dtype == torch.float32
    (solution.primal.sum() + solution.objective.sum()).backward()
    assert theta.grad.shape == theta.shape


@pytest.mark.parametrize(
    "theta",
    [
        torch.zeros(4),
        torch.zeros(2, 3),
        torch.zeros(2, 5),
        torch.zeros(1, 2, 4),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(2, 4, dtype=torch.complex64),
        np.zeros((2, 4)),
    ],
    ids=lambda t: f"{tuple(t.shape)}-{t.dtype}",
)
def test_wrong_features(theta: object) -> None:
    with pytest.raises(ShapeError, match="features"):
        make_engine().solve(family("fragile_lp").program, theta)


def test_wrong_warm_start() -> None:
    member = family("fragile_lp")
    warm = make_engine().solve(member.program, member.theta(3)).warm_start
    with pytest.raises(ShapeError, match="warm start"):
        make_engine().solve(member.program, member.theta(4), warm_start=warm)


@pytest.mark.parametrize("engine", ENGINES)
def test_warm_start_is_only_a_hint(engine: str) -> None:
    member = family("fragile_socp")
    theta = spoil(member.theta(BATCH, seed=4))
    cold = make_engine(engine).solve(member.program, theta)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warm = make_engine(engine).solve(member.program, theta, warm_start=cold.warm_start)
    assert warm.statuses == cold.statuses
    torch.testing.assert_close(warm.objective, cold.objective, rtol=1e-7, atol=1e-7, equal_nan=True)


def test_wrong_names() -> None:
    with pytest.raises(ModelError, match="There is no engine 'gurobi'"):
        make_engine("gurobi")
    with pytest.raises(ModelError, match="gradient must be"):
        make_engine("auto", "approximate")
    with pytest.raises(ModelError, match="on_failure must be"):
        make_engine().solve(family("socp").program, family("socp").theta(1)).checked("ignore")
    with pytest.raises(ModelError, match="power cones"):
        make_engine("batched").solve(family("power").program, family("power").theta(1))
    with pytest.warns(FutureWarning, match="clarabel"):
        assert make_engine("diffcp").name == "clarabel"


@pytest.mark.parametrize(("engine", "name"), pairs(["lmi", "log_det", "sdp_mixed"]))
def test_numbers_whose_squares_are_none_break_no_batch(engine: str, name: str) -> None:
    """Moreau and Clarabel break off on some of them, with what is no ``Exception`` of Python."""
    theta = family(name).theta(4)
    expected = make_engine(engine).solve(family(name).program, theta)
    for size in (1e150, 1e250):
        huge = theta.clone()
        huge[1] *= size
        found = make_engine(engine).solve(family(name).program, huge)
        assert found.statuses[::2] == expected.statuses[::2]
