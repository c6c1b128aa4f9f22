"""The simplex method and the search on it, against enumeration and against HiGHS; and what they hand on."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from conelayers import ConeProgram, Status, compile_program
from conelayers.errors import ModelError
from conelayers.integer import registry as registry_module
from conelayers.integer.simplex import linear as linear_module
from conelayers.integer.simplex.partition import DOUBTFUL, FIRST, counted
from conelayers.integer.simplex.simplex import EMPTY, REFRESH, SOLVED, solve
from conelayers.oracles import Auto, Enumeration, HiGHS, Simplex
from tests.helpers.integer_checks import assert_contract, assert_same_values, brute_force
from tests.helpers.integer_programs import FAMILIES, LINEAR


@pytest.mark.parametrize("seed", range(40))
def test_boxes_one_after_the_other_have_the_optimum_of_highs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, 7), rng.integers(1, 9)
    zero = int(rng.integers(0, min(m, n, 3)))
    A = rng.integers(-3, 4, (m, n)) * (rng.uniform(size=(m, n)) < 0.7) * 1.0
    inner = rng.uniform(0, 3, n)
    b = A @ inner + np.where(np.arange(m) < zero, 0.0, rng.uniform(-0.5, 1, m))
    c = rng.standard_normal(n)
    row, column = np.nonzero(A)
    rows = (np.searchsorted(row, np.arange(m + 1)), column, A[row, column])
    T, x, basis, slope = np.zeros((m + 1, n + m)), np.zeros(n + m), np.arange(n, n + m), np.zeros(n)
    where, work = np.arange(-n, m).clip(-1), np.full(n + m + 1, REFRESH + m + 1)
    for _ in range(30):
        ends = np.stack([np.zeros(n + m), np.full(n + m, np.inf)])
        ends[:, :n] = np.sort(rng.integers(0, 4, (2, n)), 0)
        ends[1, n : n + zero] = 0.0
        status, value = solve(*rows, b, c, zero, ends, np.inf, T, x, basis, where, slope, work)
        bounds = ends[:, :n].T
        truth = linprog(c, A[zero:], b[zero:], A[:zero], b[:zero], bounds)
        assert status == (SOLVED if truth.status == 0 else EMPTY)
        if truth.status == 0:
            np.testing.assert_allclose(value, truth.fun, rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(A @ x[:n] + x[n:], b, atol=1e-8)
            np.testing.assert_allclose(c @ x[:n], truth.fun, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_enumeration_on_random_batches(name: str, seed: int) -> None:
    family = FAMILIES[name](np.random.default_rng(seed), 24)
    expected = brute_force(family.program, family.theta)
    everything = min(int(expected.isfinite().sum(1).max()) + 2, 12)
    for count in (1, 3, everything):
        found = Simplex().best(family.program, family.values, count)
        assert_contract(family.program, family.theta, found, count)
        assert_same_values(found, expected)
        feasible = expected.isfinite().any(1)
        assert torch.equal(found.status == int(Status.OPTIMAL), feasible)
        assert torch.equal(found.status == int(Status.INFEASIBLE), ~feasible)
        assert found.rounds == 1


def stranger(seed: int, batch: int = 4) -> tuple[ConeProgram, torch.Tensor]:
    """A random program: integers of either sign, continuous columns that are bounded, or from below, or not at all."""
    rng = np.random.default_rng(seed)
    k, free, m = rng.integers(2, 5), rng.integers(1, 4), rng.integers(1, 5)

    def draw(*shape: int) -> np.ndarray:
        size = 10.0 ** rng.integers(-2, 3, shape) if seed % 3 == 2 else 1.0
        return rng.integers(-3, 4, shape) * 1.0 if seed % 3 == 0 else rng.standard_normal(shape) * size

    x = cp.Variable(k, integer=True, bounds=[rng.integers(-2, 1, k), rng.integers(1, 3, k)])
    y, cost, price, room = cp.Variable(free), cp.Parameter(k), cp.Parameter(free), cp.Parameter(m)
    rows = [draw(m, k) @ x + draw(m, free) @ y <= room, *([y >= -3, y <= 4] if seed % 2 else [y >= draw(free, k) @ x])]
    if seed % 5 == 0:
        rows.append(draw(1, k) @ x + draw(1, free) @ y == 1)
    program = compile_program(cp.Problem(cp.Minimize(cost @ x + price @ y), rows), [cost, price, room])
    some = rng.uniform(size=(batch, 1)) < 0.2
    prices = draw(batch, free)
    theta = np.concatenate([draw(batch, k), np.where(some, prices, np.abs(prices)), rng.uniform(-2, 5, (batch, m))], 1)
    return program, torch.from_numpy(theta)


@pytest.mark.parametrize(("seed", "whole"), [*((seed, False) for seed in range(60)), (20, True), (248, True)])
def test_equals_enumeration_on_random_programs(seed: int, whole: bool) -> None:
    program, theta = stranger(seed)
    values = program.values(theta.round() if whole else theta)
    expected, found = (oracle.best(program, values, 4) for oracle in (Enumeration(), Simplex()))
    assert torch.equal(found.valid, expected.valid)
    # Enumeration solves all points, and may fail at one that need not be looked at.
    assert torch.equal(found.status[expected.status != 1], expected.status[expected.status != 1])
    torch.testing.assert_close(found.objective, expected.objective, rtol=1e-6, atol=1e-7)


def knapsack(items: int, rows: int, top: int = 1) -> tuple[ConeProgram, int]:
    """Several capacities, with whole weights so that sums meet them exactly, and some overtime to be bought."""
    rng = np.random.default_rng(items)
    weight = rng.integers(1, 20, (rows, items)).astype(float)
    x, extra, worth = cp.Variable(items, integer=True, bounds=[0, top]), cp.Variable(nonneg=True), cp.Parameter(items)
    room = np.floor(0.4 * top * weight.sum(1))
    problem = cp.Problem(cp.Minimize(3.0 * extra - worth @ x), [weight @ x <= room + extra, extra <= 2.5])
    return compile_program(problem, [worth]), items


def path(side: int) -> tuple[ConeProgram, int]:
    """From one corner of a grid to the other."""
    node = np.arange(side * side).reshape(side, side)
    tail = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    head = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    flow = (node.reshape(-1, 1) == tail) * 1.0 - (node.reshape(-1, 1) == head)
    x, cost = cp.Variable(tail.size, boolean=True), cp.Parameter(tail.size)
    ends = np.zeros(side * side)
    ends[0], ends[-1] = 1.0, -1.0
    return compile_program(cp.Problem(cp.Minimize(cost @ x), [flow @ x == ends]), [cost]), tail.size


@pytest.mark.parametrize(
    ("program", "size"),
    [path(5), knapsack(20, 2), knapsack(12, 3, top=4)],
    ids=["path", "knapsack", "integer knapsack"],
)
@pytest.mark.parametrize("whole", [False, True], ids=["distinct", "tied"])
def test_equals_highs_where_there_is_too_much_to_enumerate(program: ConeProgram, size: int, whole: bool) -> None:
    rng = np.random.default_rng(8)
    theta = torch.from_numpy(rng.integers(1, 4, (3, size)) * 1.0 if whole else rng.uniform(1, 3, (3, size)))
    found = Auto().best(program, program.values(theta), 5)
    assert found.oracle == "simplex"
    assert_contract(program, theta, found, 5)
    assert found.statuses == [Status.OPTIMAL] * 3
    torch.testing.assert_close(
        found.objective, HiGHS(jobs=1).best(program, program.values(theta), 5).objective, rtol=1e-7, atol=1e-7
    )


def test_whole_costs_are_told_apart_by_their_divisor() -> None:
    x, worth = cp.Variable(9, integer=True, bounds=[0, 1]), cp.Parameter(9)
    weight = np.random.default_rng(0).integers(3, 9, (2, 9))
    program = compile_program(cp.Problem(cp.Minimize(-worth @ x), [weight @ x <= 0.4 * weight.sum(1)]), [worth])
    whole = 5.0 * np.random.default_rng(1).integers(2, 9, (6, 9))
    nodes = []
    for costs in (whole, whole + 1e-3 * np.random.default_rng(2).uniform(size=whole.shape)):
        values = program.values(torch.from_numpy(costs))
        found = Simplex().best(program, values, 6)
        torch.testing.assert_close(
            found.objective, Enumeration().best(program, values, 6).objective, rtol=1e-7, atol=1e-7
        )
        nodes.append(int(found.nodes.sum()))
    assert nodes[0] < nodes[1]


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["packed", "covered"])
def test_integers_that_are_worth_nearly_the_same_are_counted(sign: float) -> None:
    """What fits, or must be had, is a whole number; without a row that says so the packing took 2,300 boxes."""
    rng = np.random.default_rng(2)
    weight, count, batch = rng.uniform(3, 8, (2, 28)), 3, 3
    x, worth = cp.Variable(28, integer=True, bounds=[0, 1]), cp.Parameter(28)
    rows = [sign * (weight @ x) <= sign * 0.3 * weight.sum(1)]
    program = compile_program(cp.Problem(cp.Minimize(-sign * worth @ x), rows), [worth])
    values = program.values(torch.from_numpy(1.0 + 0.02 * rng.standard_normal((batch, 28))))
    found = Simplex().best(program, values, count)
    assert found.statuses == [Status.OPTIMAL] * batch
    assert bool((found.nodes > FIRST).any())
    assert int(found.nodes.max()) < 1500
    truth = HiGHS(jobs=1).best(program, values, count)
    torch.testing.assert_close(found.objective, truth.objective, rtol=1e-7, atol=1e-7)


def test_rows_that_count_integers_cut_off_no_point_however_large_and_ill_conditioned() -> None:
    """First and last rows are nearly the same, so that large multipliers enlarge the rounding of right-hand sides."""
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        n, size = int(rng.integers(2, 6)), int(10.0 ** rng.uniform(1, 5))
        A, point = rng.integers(1, 50, (n, n)).astype(float), rng.integers(size // 2, size, n).astype(float)
        A[-1] = A[0] + 10.0 ** -rng.uniform(0, 7) * rng.standard_normal(n)
        # The point is the vertex at which the count is the largest.
        A *= np.sign(np.linalg.solve(A.T, np.ones(n)))[:, None]
        start = np.append(np.arange(0, n * n + 1, n), 0)
        column, entry = np.tile(np.arange(n), n + 1), np.append(A, np.zeros(n))
        b, low, high = np.append(A @ point, 0.0), np.zeros(n), np.full(n, 2.0 * size)
        stop = np.zeros(1, dtype=bool)
        taken = counted(
            start, column, entry, b, n, n * n, -1.0 - 1e-3 * rng.random(n), 0, low, high, np.arange(n), 1e-9, stop
        )
        assert taken == n * n or entry[n * n :] @ point <= b[n] + 0.5, seed


def test_bounds_of_integers_do_not_make_a_program_large() -> None:
    assert Auto().choose(path(24)[0]).name == "simplex"
    assert Auto().choose(path(40)[0]).name == "branch_and_bound"


def split(items: int, lot: float) -> ConeProgram:
    """A budget over shares and lots, which alone ties all items together; with large lots it is a knapsack."""
    held, lots, worth = cp.Variable(items, nonneg=True), cp.Variable(items, boolean=True), cp.Parameter(2 * items)
    size = lot * np.random.default_rng(0).uniform(1, 3, items)
    rows = [cp.sum(held) + size @ lots == 1, held <= 0.1]
    return compile_program(cp.Problem(cp.Minimize(-worth @ cp.hstack([held, lots])), rows), [worth])


def test_large_batches_on_a_device_ask_the_tree_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were one: what the tree settles in a few boxes is its own, the rest is the simplex method's."""
    monkeypatch.setattr(registry_module, "LARGE", {"cpu": 6})
    rng = np.random.default_rng(3)
    oracles = []
    for program in (split(12, 0.03), split(12, 0.1)):
        values = program.values(torch.from_numpy(rng.uniform(1, 3, (6, 24))))
        few = Auto().best(program, values[torch.arange(5)], 3)
        found, truth = Auto().best(program, values, 3), Simplex().best(program, values, 3)
        assert (few.oracle, Auto().choose(program, values).name) == ("simplex", "branch_and_bound")
        assert found.statuses == [Status.OPTIMAL] * 6
        torch.testing.assert_close(found.objective, truth.objective, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(found.points, truth.points)
        oracles.append(found.oracle)
    assert oracles == ["branch_and_bound", "branch_and_bound, simplex"]
    # A grid ties all of its rows together: such programs are not recorded on a GPU.
    program, size = path(5)
    assert Auto().choose(program, program.values(torch.ones(6, size).double())).name == "simplex"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_chooses_by_batch() -> None:
    program, least = split(12, 0.03), registry_module.LARGE["cuda"]
    theta = torch.from_numpy(np.random.default_rng(0).uniform(1, 3, (least, 24)))
    for batch, name in ((least - 1, "simplex"), (least, "branch_and_bound")):
        found = Auto().best(program, program.values(theta[:batch].cuda()), 3)
        assert (found.oracle, found.objective.device.type) == (name, "cuda")
        truth = Simplex().best(program, program.values(theta[:batch]), 3)
        torch.testing.assert_close(found.objective.cpu(), truth.objective, rtol=1e-7, atol=1e-7)


def test_an_integral_vertex_ends_the_search_at_the_root() -> None:
    program, size = path(5)
    theta = torch.from_numpy(np.random.default_rng(0).uniform(1, 3, (16, size)))
    found = Simplex().best(program, program.values(theta), 1)
    assert found.nodes.tolist() == [1] * 16


def test_a_node_limit_ends_with_an_honest_gap() -> None:
    program, size = knapsack(12, 3)
    theta = torch.from_numpy(np.random.default_rng(0).uniform(1, 3, (8, size)))
    best = Enumeration().best(program, program.values(theta), 2)
    found = Simplex(node_limit=30).best(program, program.values(theta), 2)
    stopped = found.status == int(Status.INACCURATE)
    assert stopped.any()
    assert bool((found.nodes <= 30).all())
    assert bool((found.gap[stopped] > 0).all())
    full = stopped & found.valid.all(1)
    assert full.any()
    assert bool((best.objective[full, 1] >= found.objective[full, 1] - found.gap[full] - 1e-7).all())


def test_a_time_limit_ends_with_an_honest_gap() -> None:
    program, size = knapsack(200, 20)
    theta = torch.from_numpy(np.random.default_rng(0).uniform(1, 3, (3, size)))
    found = Simplex(node_limit=10**9, time_limit=0.3).best(program, program.values(theta), 2)
    assert bool((found.status != int(Status.OPTIMAL)).all())
    assert bool((found.gap > 0).all())
    assert found.statuses[0] == Status.INACCURATE
    assert bool(found.valid[0].all())
    assert bool(found.gap[0].isfinite())
    with pytest.raises(ModelError, match="time_limit must be positive"):
        Simplex(time_limit=0.0)


def test_items_that_the_time_did_not_reach_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Over:
        def __init__(self, seconds: float, ring: Callable[[bool], None], said: tuple[bool]) -> None:
            self.start = lambda: ring(*said)

        def cancel(self) -> None: ...

    family = FAMILIES["covering"](np.random.default_rng(3), 6)
    monkeypatch.setattr(linear_module, "Timer", Over)
    found = Simplex(time_limit=1.0).best(family.program, family.values, 3)
    looked = found.status != int(Status.INFEASIBLE)
    assert looked.any()
    assert bool((found.status[looked] == int(Status.FAILED)).all())
    assert bool(found.gap[looked].isinf().all())
    assert not bool(found.valid.any())
    assert not bool(found.nodes.any())


def test_one_compilation_serves_all() -> None:
    family = FAMILIES["prices"](np.random.default_rng(3), 6)
    for oracle in (Simplex(), Simplex(time_limit=10.0)):
        oracle.best(family.program, family.values, 3)
    assert len(linear_module.search_each.signatures) == 1


def test_threads_change_nothing() -> None:
    program, size = knapsack(20, 2)
    theta, threads = torch.from_numpy(np.random.default_rng(0).uniform(1, 3, (8, size))), torch.get_num_threads()
    alone = Simplex().best(program, program.values(theta), 3)
    try:
        torch.set_num_threads(threads + 2)
        shared = Simplex().best(program, program.values(theta), 3)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone.points, shared.points)
    assert torch.equal(alone.nodes, shared.nodes)


def test_what_the_arithmetic_cannot_settle_goes_to_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["covering"](np.random.default_rng(3), 6)
    reference = Simplex().best(family.program, family.values, 3)
    honest = linear_module.search_each

    def doubtful(*arguments):  # type: ignore[no-untyped-def]
        honest(*arguments)
        told = arguments[-2]
        told[::2, 1] = DOUBTFUL

    monkeypatch.setattr(linear_module, "search_each", doubtful)
    found = Simplex().best(family.program, family.values, 3)
    assert torch.equal(found.points, reference.points)
    assert found.statuses == reference.statuses
    assert found.rounds > reference.rounds


def test_a_continuous_part_that_runs_away_has_no_minimum() -> None:
    x, y, price = cp.Variable(6, boolean=True), cp.Variable(nonneg=True), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(price * y + cp.sum(x)), [cp.sum(x) >= 1]), [price])
    found = Auto().best(program, program.values(torch.tensor([[1.0], [-1.0]]).double()), 2)
    assert found.oracle == "simplex"
    assert found.statuses == [Status.OPTIMAL, Status.UNBOUNDED]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    family = FAMILIES["pure"](np.random.default_rng(2), 6)
    reference = Simplex().best(family.program, family.values, 3)
    found = Simplex().best(family.program, family.program.values(scale * family.theta), 3)
    assert torch.equal(found.points, reference.points)
    torch.testing.assert_close(found.objective, scale * reference.objective, rtol=1e-7, atol=0.0)
