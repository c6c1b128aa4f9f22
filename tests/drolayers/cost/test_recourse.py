"""The vertices and rays of the dual must give the value of the second-stage program, infeasible cases included."""

from __future__ import annotations

from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from scipy.optimize import linprog

import drolayers as dro
from conelayers.errors import ModelError
from drolayers.cost.parse import parse
from drolayers.cost.recourse import Recourse, recourse
from drolayers.cost.risk import cvar
from drolayers.cost.vertices import dual_vertices
from drolayers.uncertainty import Uncertain


def linear_program(q: np.ndarray, W: np.ndarray, rhs: np.ndarray) -> float:
    """The value of the second stage, infinite where infeasible."""
    result = linprog(q, A_eq=W, b_eq=rhs, bounds=(0, None), method="highs")
    assert result.status in (0, 2)
    return float(result.fun) if result.status == 0 else np.inf


def by_vertices(q: np.ndarray, W: np.ndarray, rhs: np.ndarray) -> float:
    """The value by the vertices and rays of the dual."""
    dual = dual_vertices(q, W)
    assert dual is not None
    if dual.forbidden.shape[0] and (dual.forbidden @ rhs).max() > 1e-7:
        return np.inf
    return float(sum((dual.points @ rhs)[dual.block == b].max() for b in range(dual.blocks)))


def random_stage(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A second stage that is bounded: ``q = W'p + slack`` for some ``p`` and a nonnegative slack."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 5))
    columns = rows + int(rng.integers(1, 5))
    W = rng.normal(size=(rows, columns)) if kind != "degenerate" else rng.integers(-1, 2, (rows, columns)).astype(float)
    if kind == "complete":
        W = np.hstack([W, np.eye(rows), -np.eye(rows)])
    if kind == "dependent":
        W = np.vstack([W, rng.normal(size=(2, rows)) @ W])
    if kind == "blocks":
        W = np.block([[W, np.zeros((rows, 3))], [np.zeros((1, columns)), np.array([[1.0, -2.0, 0.5]])]])
    slack = rng.random(W.shape[1])
    if kind == "degenerate":
        slack = rng.integers(0, 3, W.shape[1]).astype(float)
    return W.T @ rng.integers(-2, 3, W.shape[0]) + slack, W, rng


@pytest.mark.parametrize("kind", ["rays", "complete", "dependent", "blocks", "degenerate"])
def test_vertices_agree_with_the_linear_program(kind: str) -> None:
    infinite = finite = 0
    for seed in range(40):
        q, W, rng = random_stage(seed, kind)
        for trial in range(6):
            # Half of the right-hand sides are feasible by construction.
            action = rng.integers(0, 4, W.shape[1]).astype(float)
            rhs = W @ action if trial % 2 else rng.normal(size=W.shape[0])
            expected = linear_program(q, W, rhs)
            if np.isinf(expected):
                infinite += 1
                assert by_vertices(q, W, rhs) == np.inf
            else:
                finite += 1
                assert by_vertices(q, W, rhs) == pytest.approx(expected, rel=1e-7, abs=1e-7)
    assert finite >= 100
    assert (infinite == 0) == (kind == "complete")


def by_bases(q: np.ndarray, W: np.ndarray) -> tuple[set[tuple[float, ...]], set[tuple[float, ...]]]:
    """Vertices and rays by trying every basis of a system with independent rows."""
    rows, columns = W.shape
    vertices, rays = set(), set()
    for basis in combinations(range(columns), rows):
        if np.linalg.matrix_rank(W[:, basis]) == rows:
            p = np.linalg.solve(W[:, basis].T, q[list(basis)])
            if np.all(W.T @ p <= q + 1e-9):
                vertices.add(tuple(np.round(p, 6) + 0.0))
    for edge in combinations(range(columns), rows - 1):
        if np.linalg.matrix_rank(W[:, edge]) == rows - 1:
            line = null_space(W[:, edge].T)[:, 0] if edge else np.ones(1)
            rays |= {tuple(np.round(r, 6) + 0.0) for r in (line, -line) if np.all(W.T @ r <= 1e-9)}
    return vertices, rays


@pytest.mark.parametrize("kind", ["rays", "complete", "degenerate"])
def test_pivots_find_what_all_bases_give(kind: str) -> None:
    """Also where many bases share a vertex; W is connected and has independent rows here."""
    compared = 0
    for seed in range(60):
        q, W, _ = random_stage(seed, kind)
        if np.linalg.matrix_rank(W) < W.shape[0]:
            continue
        dual = dual_vertices(q, W)
        assert dual is not None
        if dual.blocks > 1 or not W.any(axis=0).all():
            continue
        compared += 1
        vertices, rays = by_bases(q, W)
        assert {tuple(np.round(p, 6) + 0.0) for p in dual.points.toarray()} == vertices
        # Rays are of length one in units in which W is balanced.
        forbidden = dual.forbidden.toarray()
        forbidden /= np.linalg.norm(forbidden, axis=1, keepdims=True)
        assert {tuple(np.round(r, 6) + 0.0) for r in forbidden} == rays
    assert compared >= 20


def test_nine_rows_and_eighteen_columns() -> None:
    """48,620 bases, but fewer than a thousand vertices."""
    rng = np.random.default_rng(0)
    W = np.hstack([rng.random((9, 9)), np.eye(9)])
    y = Uncertain(9)
    atom = recourse(np.ones(18), W, y, method="vertices")
    assert isinstance(atom, Recourse)
    assert "vertices" in str(atom.stage)
    dual = atom.stage.vertices
    assert dual is not None
    for rhs in rng.uniform(0, 3, (10, 9)):
        assert float((dual.points @ rhs).max()) == pytest.approx(linear_program(np.ones(18), W, rhs), rel=1e-8)


def test_degenerate_duals_cost_no_more_than_others() -> None:
    """Equal costs on five by ten routes: two vertices, which thousands of bases share."""
    sources, sinks = 5, 10
    W = np.block(
        [
            [np.kron(np.eye(sources), np.ones((1, sinks))), np.eye(sources), np.zeros((sources, sinks))],
            [np.tile(np.eye(sinks), (1, sources)), np.zeros((sinks, sources)), np.eye(sinks)],
        ]
    )
    q = np.concatenate([np.ones(sources * sinks), np.zeros(sources), np.full(sinks, 9.0)])
    dual = dual_vertices(q, W)
    assert dual is not None
    assert dual.points.shape[0] == 2
    rng = np.random.default_rng(0)
    for rhs in rng.uniform(0, 3, (10, sources + sinks)):
        assert float((dual.points @ rhs).max()) == pytest.approx(linear_program(q, W, rhs), rel=1e-8)


def test_independent_systems_have_their_own_vertices() -> None:
    n = 100
    dual = dual_vertices(np.ones(2 * n), np.hstack([np.eye(n), -np.eye(n)]))
    assert dual is not None
    assert dual.points.shape == (2 * n, n)
    assert dual.points.nnz == 2 * n
    assert dual.blocks == n


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_vertices_do_not_depend_on_the_scale(scale: float) -> None:
    q, W, rng = random_stage(3, "complete")
    unit = rng.uniform(1e-3, 1e3, W.shape[1])
    rhs = rng.normal(size=W.shape[0])
    # Actions measured in other units, costs in another currency: the value changes by the currency only.
    assert by_vertices(scale * q * unit, W * unit, rhs) == pytest.approx(scale * linear_program(q, W, rhs), rel=1e-8)


def newsvendor_recourse(x: cp.Variable, y: Uncertain, method: str) -> cp.Expression:
    """Shortage costs 3 and surplus 1 a unit, written as a second stage."""
    n = y.dim
    return recourse(np.repeat([3.0, 1.0], n), np.hstack([np.eye(n), -np.eye(n)]), y - x, method)


def test_newsvendor_as_recourse_has_the_terms_of_the_newsvendor() -> None:
    x, y = cp.Variable(30), Uncertain(30)
    parsed = parse(newsvendor_recourse(x, y, "auto"), y)
    direct = parse(cp.sum(cp.maximum(3 * (y - x), x - y)), y)
    assert parsed.terms == direct.terms == 30
    assert len(parsed.forbidden) == 0
    for trial in range(5):
        rng = np.random.default_rng(trial)
        x.value, y.value = rng.normal(size=30), rng.normal(size=30)
        values = []
        for cost in (parsed, direct):
            a, b = cost.pieces.evaluate(x.value)
            values.append([(a @ y.value + b)[cost.term == j].max() for j in range(30)])
        np.testing.assert_allclose(values[0], values[1], atol=1e-12)


def facility_location(y: Uncertain, capacity: cp.Variable, method: str = "auto") -> cp.Expression:
    """Two facilities ship to two customers with demands ``y``; all demand must be met, unused capacity is free."""
    ship = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    W = np.block(
        [
            [np.tile(np.eye(2), (1, 2)), np.zeros((2, 2))],
            [ship, np.eye(2)],
        ]
    )
    return recourse([1.0, 3.0, 4.0, 2.0, 0.0, 0.0], W, cp.hstack([y, capacity]), method)


def test_facility_location_pieces_and_rays() -> None:
    y, capacity = Uncertain(2), cp.Variable(2, nonneg=True)
    cost = 5 * cp.sum(capacity) + 2 * facility_location(y, capacity)
    parsed = parse(cost, y)
    assert parsed.terms == 1
    assert len(parsed.forbidden) > 0
    rng = np.random.default_rng(0)
    infeasible = 0
    for _ in range(60):
        capacity.value, y.value = rng.uniform(0, 2, 2), rng.uniform(-0.2, 2, 2)
        a, b = parsed.forbidden.evaluate(capacity.value)
        if (a @ y.value + b).max() > 1e-9:
            infeasible += 1
            assert cost.value == np.inf
        else:
            a, b = parsed.pieces.evaluate(capacity.value)
            expected = 5 * capacity.value.sum() + (a @ y.value + b).max()
            assert cost.value == pytest.approx(expected, rel=1e-8)
            assert y.value.sum() <= capacity.value.sum() + 1e-8
    assert 10 < infeasible < 50


def test_dependent_rows_restrict_the_decision() -> None:
    y, x = Uncertain(1), cp.Variable(2)
    W = np.array([[1.0, -1.0], [2.0, -2.0]])
    parsed = parse(recourse([1.0, 1.0], W, cp.hstack([y + x[0], x[1] + y])), y)
    a, b = parsed.forbidden.evaluate(np.array([0.3, 0.6]))
    # rhs_2 = 2 rhs_1 has to hold: x_2 + y = 2 x_1 + 2 y for all y, which no decision achieves unless y is fixed.
    assert sorted(np.sign(a).ravel()) == [-1, 1]
    np.testing.assert_allclose(b, 0, atol=1e-12)
    consistent = parse(recourse([1.0, 1.0], W, cp.hstack([y + x[0], 2 * y + 2 * x[0]])), y)
    assert len(consistent.forbidden) == 0


def test_recourse_inside_maximum_and_cvar() -> None:
    x, y = cp.Variable(2), Uncertain(2)
    second = newsvendor_recourse(x, y, "vertices")
    for cost in (cp.maximum(second, cp.sum(x) - 1), cvar(second, 0.8), second / 2 + cp.pos(second - 1)):
        parsed = parse(cost, y)
        rng = np.random.default_rng(1)
        for _ in range(10):
            for variable in cost.variables():
                variable.value = rng.normal(size=variable.shape)
            y.value = rng.normal(size=2)
            stack = np.concatenate([np.ravel(v.value, order="F") for v in parsed.variables])
            a, b = parsed.pieces.evaluate(stack)
            rows = a @ y.value + b
            total = float(parsed.deterministic.value) + sum(rows[parsed.term == j].max() for j in range(parsed.terms))
            assert total == pytest.approx(float(cost.value), rel=1e-8, abs=1e-8)


def test_decision_rule_is_recorded_and_not_expanded() -> None:
    x, y = cp.Variable(2), Uncertain(2)
    second = newsvendor_recourse(x, y, "decision_rule")
    parsed = parse(cp.sum(x) + 0.5 * (second + cp.sum(cp.pos(y))), y)
    assert parsed.conservative
    # Shortage and surplus of both items, each with a constant and two slopes; rows of W γ = rhs that vanish.
    (rule,) = (v for v in parsed.variables if v is not x)
    assert rule.size == 4 * 3
    assert len(parsed.equations) == 2
    assert len(parsed.forbidden) == 4
    a, b = parsed.equations.evaluate(np.concatenate([[1.0, 2.0], np.zeros(12)]))
    np.testing.assert_allclose(a, -np.eye(2))
    np.testing.assert_allclose(b, [1.0, 2.0])
    # Two maxima of y, and the rule's cost as a third term of one piece.
    assert parsed.terms == 3


def test_recourse_without_y_belongs_to_the_deterministic_part() -> None:
    x, y = cp.Variable(2), Uncertain(2)
    fixed = recourse([3.0, 1.0], [[1.0, -1.0]], x[0] - 1)
    parsed = parse(fixed + cp.pos(y[0] - x[1]), y)
    x.value = np.array([3.0, 0.0])
    assert parsed.terms == 1
    assert parsed.deterministic.value == pytest.approx(6.0)


@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
def test_atom_is_the_linear_program(method: str) -> None:
    rhs = cp.Variable(2)
    atom = recourse([1.0, 2.0, 0.0], [[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]], rhs, method)
    assert isinstance(atom, Recourse)
    assert atom.is_convex()
    assert atom.is_nonneg()
    assert not atom.is_concave()
    rhs.value = np.array([-2.0, 1.0])
    assert atom.value == pytest.approx(4.0)
    np.testing.assert_allclose(atom.grad[rhs].toarray().ravel(), [-2.0, 0.0], atol=1e-9)
    rhs.value = np.array([-2.0, -1.0])
    assert atom.value == np.inf


def test_auto_leaves_many_vertices_to_a_rule() -> None:
    rng = np.random.default_rng(0)
    W = np.hstack([rng.random((12, 20)), np.eye(12)])
    y = Uncertain(12)
    with pytest.warns(UserWarning, match="a decision rule bounds the worst case"):
        atom = recourse(np.ones(32), W, y)
    assert isinstance(atom, Recourse)
    assert atom.stage.vertices is None
    assert "decision rule" in str(atom)
    with pytest.raises(ModelError, match="decision_rule"):
        recourse(np.ones(32), W, y, method="vertices")


def test_refused() -> None:
    x, y = cp.Variable(2), Uncertain(2)
    with pytest.raises(ModelError, match="unbounded below"):
        recourse([-1.0, -1.0], [[1.0, -1.0]], y[0])
    with pytest.raises(ModelError, match=r"not \(2,\), \(1, 2\) and \(2,\)"):
        recourse([1.0, 1.0], [[1.0, -1.0]], y)
    with pytest.raises(ModelError, match="finite"):
        recourse([1.0, np.nan], [[1.0, -1.0]], y[0])
    with pytest.raises(ModelError, match="must be one of"):
        recourse([1.0, 1.0], [[1.0, -1.0]], y[0], method="guess")
    with pytest.raises(ModelError, match="negative weight"):
        parse(-newsvendor_recourse(cp.Constant(np.zeros(2)), y, "vertices"), y)
    with pytest.raises(ModelError, match="negative weight"):
        parse(-newsvendor_recourse(cp.Constant(np.zeros(2)), y, "decision_rule"), y)
    with pytest.raises(ModelError, match="right-hand side"):
        parse(recourse([1.0, 1.0], [[1.0, -1.0]], cp.pos(y[0]) - x[0], "decision_rule"), y)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, float("nan")])
def test_cvar_refuses_levels(level: float) -> None:
    with pytest.raises(ModelError, match="level"):
        cvar(cp.Variable(), level)


def test_cvar_refuses_vectors() -> None:
    with pytest.raises(ModelError, match="scalar"):
        cvar(cp.Variable(2), 0.5)


def test_cvar_minimised_over_tau_is_the_mean_of_the_tail() -> None:
    losses = np.random.default_rng(0).normal(size=20)
    taus = cp.Variable()
    expressions = [cvar(cp.Constant(loss), 0.75) for loss in losses]
    same = [expression.variables()[0] == taus for expression in expressions]
    cp.Problem(cp.Minimize(sum(expressions) / 20), same).solve(solver="CLARABEL")
    assert sum(e.value for e in expressions) / 20 == pytest.approx(np.sort(losses)[-5:].mean(), rel=1e-6)
    assert all(e.variables()[0].name().startswith("cvar_tau") for e in expressions)


@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
def test_an_item_without_a_decision_has_no_loss_and_leaves_the_others_theirs(method: str) -> None:
    y, x, v = Uncertain(2), cp.Variable(2, nonneg=True), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + dro.recourse(cp.Minimize(5 * cp.sum(v)), [v >= y - x, cp.sum(v) <= 9], method=method)
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    chosen = torch.tensor([[1.0, 1.0], [np.nan, np.nan], [0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    loss = problem.loss({x: chosen}, torch.tensor([[2.0, 0.5], [2.0, 1.0], [1.0, 1.0]], dtype=torch.float64))
    np.testing.assert_allclose(loss.detach(), [7.0, np.nan, 7.0], rtol=1e-9)
    loss[[0, 2]].sum().backward()
    assert chosen.grad is not None
    np.testing.assert_allclose(chosen.grad[[0, 2]], [[-4.0, 1.0], [-4.0, 1.0]], atol=1e-9)
