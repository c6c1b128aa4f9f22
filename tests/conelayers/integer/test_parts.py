"""Division of boxes, bounds and tables, each against all points of small boxes; and that the checks can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from conelayers import make_engine
from conelayers.integer.boxes import Boxes
from conelayers.integer.components import Components
from conelayers.integer.enumeration import all_points
from conelayers.integer.feasibility import Screen
from conelayers.integer.nodes import Nodes, exclude, halve
from conelayers.integer.propagation import implied
from conelayers.integer.tree.bounds import Bounds
from conelayers.integer.tree.tables import Tables
from conelayers.oracles import BranchAndBound
from tests.helpers.integer_checks import assert_contract, assert_same_values, brute_force
from tests.helpers.integer_programs import FAMILIES, newsvendor


def _nodes(item: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> Nodes:
    return Nodes(*map(torch.from_numpy, (item, lower, upper, np.zeros(item.size))))


def _members(nodes: Nodes, points: np.ndarray) -> np.ndarray:
    lower, upper = nodes.lower.numpy(), nodes.upper.numpy()
    return ((points[None] >= lower[:, None]) & (points[None] <= upper[:, None])).all(2)


def test_division_partitions_a_box() -> None:
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(-1, 4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    for _ in range(20):
        ends = np.sort(rng.integers(-1, 4, (2, 1, 3)), 0).astype(np.int32)
        box = _nodes(np.zeros(1, dtype=np.int64), ends[0], ends[1])
        inside = _members(box, grid)[0]
        point = rng.integers(ends[0], ends[1] + 1)
        cost = torch.from_numpy(rng.uniform(size=(1, 3)))
        parts = _members(exclude(box, torch.from_numpy(point.astype(np.int32)), cost), grid).sum(0)
        np.testing.assert_array_equal(parts, inside & (grid != point).any(1))
        wide = np.flatnonzero(ends[0, 0] < ends[1, 0])
        if wide.size:
            at = torch.tensor([rng.uniform(ends[0, 0, wide[0]], ends[1, 0, wide[0]] - 1e-3)])
            np.testing.assert_array_equal(_members(halve(box, torch.from_numpy(wide[:1]), at), grid).sum(0), inside)


@pytest.mark.parametrize("name", FAMILIES)
def test_bounds_hold_at_all_points_of_all_boxes(name: str) -> None:
    rng = np.random.default_rng(1)
    family = FAMILIES[name](rng, 4)
    program, values = family.program, family.values
    truth, grid = brute_force(program, family.theta).numpy(), all_points(program, 10_000)
    components = Components.of(program)
    tables = Tables.of(program, values, components)
    components = components.without(tables.component)
    boxes = Boxes(make_engine(), program, values, components=components)
    bounds = Bounds(components, tables, values.constant, values.q[:, program.integers])
    lower, upper = (end.numpy().astype(np.int32) for end in program.integer_bounds)
    item = np.arange(4).repeat(12)
    ends = np.sort(rng.integers(lower, upper + 1, (2, 48, lower.size)), 0).astype(np.int32)
    whole = item[::12], np.tile(lower, (4, 1)), np.tile(upper, (4, 1))
    for cut in (whole, (item[:24], ends[0, :24], ends[0, :24]), (item[24:], ends[0, 24:], ends[1, 24:])):
        given = tuple(map(torch.from_numpy, cut))
        solved = boxes.solve(*given)
        bounds.add(given[0][solved.ok], solved.share[solved.ok], solved.weight[solved.ok])
    box = _nodes(item, *ends)
    inside = _members(box, grid)
    best = np.where(inside, truth[item], np.inf).min(1)
    bound = bounds.of(box.item, box.lower, box.upper).numpy()
    assert (bound <= best + 1e-8 * (1 + np.abs(np.where(np.isfinite(best), best, 0)))).all()
    # At a solved point the bound is its value.
    at = boxes.solve(item[:24], ends[0, :24], ends[0, :24])
    found = bounds.of(box.item[:24], box.lower[:24], box.lower[:24]).numpy()[at.ok]
    np.testing.assert_allclose(found, at.objective[at.ok], rtol=1e-6, atol=1e-7)
    # Nothing better than the threshold is cut away.
    threshold = np.where(np.isfinite(best), best, 0.0) + rng.uniform(0, 0.5, 48)
    low, high, _ = bounds.tighten(box.item, box.lower, box.upper, torch.from_numpy(threshold))
    kept = _members(replace(box, lower=low, upper=high), grid)
    lost = inside & ~kept & (truth[item] < threshold[:, None] - 1e-7)
    assert not lost.any()
    assert (kept <= inside).all()


@pytest.mark.parametrize(("name", "free"), [("portfolio", 2), ("portfolio_single", 0), ("assignment", 0)])
def test_tables_are_exact(name: str, free: int) -> None:
    family = FAMILIES[name](np.random.default_rng(2), 3)
    values = family.values
    components = Components.of(family.program)
    tables = Tables.of(family.program, values, components)
    assert int(tables.free.sum()) == free
    boxes = Boxes(make_engine(), family.program, values, components=components)
    grid = all_points(family.program, 10_000)
    point = np.random.default_rng(3).choice(grid, 40)
    for item in range(3):
        solved = boxes.solve(np.full(40, item), point, point)
        owner, integer = components.pair
        for at, component in enumerate(tables.component):
            columns = tables.column[at][tables.column[at] < grid.shape[1]].numpy()
            state = (tables.state[at].numpy()[:, None, : columns.size] == point[None][:, :, columns]).all(2).argmax(0)
            pairs = owner == component
            dual = solved.share[:, component] + (solved.weight[:, pairs] * point[:, integer[pairs]]).sum(1)
            np.testing.assert_allclose(tables.value.numpy()[item, at, state][solved.ok], dual[solved.ok], atol=1e-7)


@pytest.mark.parametrize(("name", "complete"), [("portfolio", True), ("newsvendor", True), ("pure", True)])
def test_arithmetic_decides_feasibility_where_it_can(name: str, complete: bool) -> None:
    family = FAMILIES[name](np.random.default_rng(2), 3)
    assert Screen.of(family.program, family.values).complete is complete


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_cut_away_no_feasible_point(name: str) -> None:
    rng = np.random.default_rng(4)
    family = FAMILIES[name](rng, 4)
    truth, grid = brute_force(family.program, family.theta).numpy(), all_points(family.program, 10_000)
    lower, upper = (end.numpy().astype(np.int32) for end in family.program.integer_bounds)
    item = np.arange(4).repeat(12)
    ends = np.sort(rng.integers(lower, upper + 1, (2, 48, lower.size)), 0).astype(np.int32)
    box = _nodes(item, *ends)
    low, high, alive = Screen.of(family.program, family.values).tighten(box.item, box.lower, box.upper)
    inside = _members(box, grid)
    kept = _members(replace(box, lower=low, upper=high), grid) & alive.numpy()[:, None]
    assert (kept <= inside).all()
    assert not (inside & ~kept & np.isfinite(truth[item])).any()
    if name in ("pure", "assignment"):
        assert kept.sum() < inside.sum()


def test_rows_imply_bounds_of_continuous_columns_too() -> None:
    # Column 0 is an integer, 1 is free: 2 x₀ + x₁ ≤ 5, x₁ - x₀ ≥ -3, and nothing bounds x₂.
    matrix = np.array([[[2.0, 1.0, 0.0], [-1.0, 1.0, 0.0]]])
    ends = np.array([[0.0, -np.inf, -np.inf]]), np.array([[9.0, np.inf, np.inf]])
    least, most = np.array([[-np.inf, -3.0]]), np.array([[5.0, np.inf]])
    low, high, alive = implied(matrix, np.zeros(1, dtype=np.int64), least, most, *ends, np.array([True, False, False]))
    assert alive.all()
    np.testing.assert_allclose(low, [[0.0, -3.0, -np.inf]])
    np.testing.assert_allclose(high, [[4.0, 5.0, np.inf]])
    assert not implied(matrix, np.zeros(1, dtype=np.int64), least, most - 9.0, *ends, np.array([True, False, False]))[
        2
    ].any()


def test_the_checks_can_fail() -> None:
    family = newsvendor(np.random.default_rng(0), 3)
    expected = brute_force(family.program, family.theta)
    found = BranchAndBound().best(family.program, family.values, 3)
    assert_same_values(found, expected)
    with pytest.raises(AssertionError):
        assert_same_values(replace(found, objective=found.objective * (1 + 1e-6)), expected)
    swapped = torch.cat([found.points[:, 1:], found.points[:, :1]], 1)
    with pytest.raises(AssertionError):
        assert_contract(family.program, family.theta, replace(found, points=swapped), 3)
    twice = replace(found, points=found.points[:, :1].expand(-1, 3, -1))
    with pytest.raises(AssertionError):
        assert_contract(family.program, family.theta, twice, 3)
