"""The pieces of a cost must give the number that CVXPY gives, for every cost and at every point."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import drolayers as dro
from conelayers.errors import ModelError
from drolayers.cost.parse import PiecewiseCost, parse
from drolayers.cost.recourse import recourse
from drolayers.cost.risk import cvar
from drolayers.support import Nonnegative
from drolayers.uncertainty import Uncertain

N = 3
RNG = np.random.default_rng(0)
A, B, M = RNG.normal(size=(N, N)), RNG.random((2, N)), RNG.normal(size=(2, 3))


def holds(expression: cp.Expression | cp.Constraint, leaf: cp.Expression) -> bool:
    """Whether the leaf occurs, by identity, since CVXPY's ``==`` builds a constraint."""
    return any(other is leaf for other in [*expression.variables(), *expression.parameters()])


def value_of_pieces(parsed: PiecewiseCost, y: np.ndarray) -> float:
    """``c0(x) + sum_j max_k {a'y + b}`` at the values that the variables hold, epigraphs being tight."""
    for constraint, variable in zip(parsed.constraints, parsed.auxiliary, strict=True):
        # The constraint reads e >= c(x) or c(x) >= e, so c(x) is the argument without e.
        (bound,) = [arg for arg in constraint.args if not holds(arg, variable)]
        variable.value = bound.value
    x = np.concatenate([np.zeros(0), *[np.ravel(v.value, order="F") for v in parsed.variables]])
    slope, offset = parsed.pieces.evaluate(x)
    rows = slope @ y + offset
    total = float(np.sum(parsed.deterministic.value))
    return total + sum(rows[parsed.term == j].max() for j in range(parsed.terms))


def assert_agrees(cost: cp.Expression, y: Uncertain, seed: int = 0, points: int = 20) -> PiecewiseCost:
    """Parses the cost and compares it with CVXPY at random points."""
    parsed = parse(cost, y)
    rng = np.random.default_rng(seed)
    for _ in range(points):
        for variable in cost.variables():
            draw = rng.normal(size=variable.shape)
            variable.value = np.abs(draw) if variable.is_nonneg() else draw
        y.value = np.abs(rng.normal(size=y.dim)) if y.is_nonneg() else rng.normal(size=y.dim)
        expected = float(np.sum(cost.value))
        assert value_of_pieces(parsed, y.value) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert parsed.deterministic.is_convex()
    assert not holds(parsed.deterministic, y)
    assert all(constraint.is_dcp() and not holds(constraint, y) for constraint in parsed.constraints)
    return parsed


Build = Callable[[cp.Variable, cp.Variable, Uncertain], cp.Expression]

# name: (cost of x (3,), X (2, 3) and y (3,), number of terms, number of pieces)
COSTS: dict[str, tuple[Build, int, int]] = {
    "newsvendor": (lambda x, X, y: B[0] @ x + cp.sum(cp.maximum(2 * (y - x), x - y)), 3, 6),
    "two slopes": (
        lambda x, X, y: cp.sum(cp.maximum(cp.multiply(B[0], y - x), cp.multiply(B[1], x - y))),
        3,
        6,
    ),
    "pos and neg": (lambda x, X, y: 2 * cp.sum(cp.pos(y - x)) + 3 * cp.sum(cp.neg(y - x)), 6, 12),
    "newsvendor with minimum": (lambda x, X, y: 2 * cp.sum(x) - 5 * cp.sum(cp.minimum(x, y)), 3, 6),
    "min of a vector": (lambda x, X, y: -cp.min(x + y), 1, 3),
    "portfolio": (lambda x, X, y: -y @ x, 1, 1),
    "matrix product": (lambda x, X, y: cp.sum(A @ cp.multiply(y, x)) + y @ A @ x, 1, 1),
    "absolute": (lambda x, X, y: cp.abs(y @ x - 1) + cp.sum(cp.abs(A @ y - x)), 4, 8),
    "norm 1": (lambda x, X, y: 0.5 * cp.norm1(A @ x - y), 3, 6),
    "norm inf": (lambda x, X, y: cp.norm_inf(A @ x - y), 1, 6),
    "norms with axis": (
        lambda x, X, y: cp.sum(cp.norm(X + y[None, :], 1, axis=0)) + cp.sum(cp.norm(X + y[None, :], "inf", axis=1)),
        8,
        24,
    ),
    "matrix norm": (lambda x, X, y: cp.norm(X + cp.vstack([y, y]), 1), 1, 12),
    "norm of nonnegative": (lambda x, X, y: cp.norm1(cp.pos(y - x) + 1), 3, 6),
    "max": (lambda x, X, y: cp.max(cp.hstack([y - x, 0, cp.sum(x)])), 1, 5),
    "max with axis": (lambda x, X, y: cp.sum(cp.max(X + y[None, :], axis=0)), 3, 6),
    "max with axis kept": (lambda x, X, y: cp.sum(cp.max(cp.multiply(X, cp.vstack([y, y])), 1, keepdims=True)), 2, 6),
    "nested": (lambda x, X, y: cp.maximum(cp.sum(cp.pos(y - x)), cp.abs(y[0]) - 2, 1), 1, 11),
    "nested in vectors": (lambda x, X, y: cp.sum(cp.maximum(x - y, cp.pos(y - x) + x, -1)), 3, 12),
    "copies of a piece": (lambda x, X, y: cp.sum(cp.maximum(cp.pos(y - x), 0)), 3, 6),
    "shared node": (lambda x, X, y: (lambda v: cp.maximum(cp.sum(v), 2 * cp.sum(v) - 1))(cp.pos(y - x)), 1, 16),
    "maximum of one": (lambda x, X, y: cp.max(cp.reshape(cp.sum(cp.pos(y - x)), (1,), order="F")), 3, 6),
    "mixing matrix": (lambda x, X, y: cp.sum(B @ cp.maximum(y, x)), 3, 6),
    "index": (lambda x, X, y: cp.pos(y[1] - X[0, 2]) + cp.sum(cp.pos(y[[0, 2]] - X[1, [0, 1]])) + cp.sum(y[1:]), 4, 7),
    "reshape": (
        lambda x, X, y: (
            cp.sum(cp.pos(cp.reshape(X, (3, 2), order="C") - cp.vstack([y, y]).T))
            + cp.max(M @ cp.reshape(y, (3, 1), order="F") - cp.reshape(X, (6,), order="F")[1])
        ),
        7,
        14,
    ),
    "stacks": (lambda x, X, y: cp.max(cp.hstack([y, x, 2.0])) + cp.max(cp.vstack([y - x, 2 * x])), 2, 13),
    "cumulative": (lambda x, X, y: cp.sum(cp.abs(cp.cumsum(y - x))), 3, 6),
    "cumulative matrix": (
        lambda x, X, y: cp.sum(cp.multiply(B, cp.pos(cp.cumsum(X + cp.vstack([y, 2 * y]), axis=1)))),
        6,
        12,
    ),
    "cumulative rows": (lambda x, X, y: B[0] @ cp.pos(cp.cumsum(X + cp.vstack([y, 2 * y]), axis=0))[1], 3, 6),
    "cumulative flat": (lambda x, X, y: np.arange(1, 7) @ cp.pos(cp.cumsum(X + cp.vstack([y, x]), axis=None)), 6, 12),
    "division": (lambda x, X, y: cp.sum(cp.pos(y - x) / B[0]) / 3, 3, 6),
    "trace": (lambda x, X, y: cp.trace(cp.diag(cp.pos(y - x))) + cp.pos(cp.trace(A @ cp.diag(y))), 4, 8),
    "quadratic beside": (lambda x, X, y: cp.sum_squares(x) + cp.quad_form(x, np.eye(N)) + cp.sum(cp.pos(y - x)), 3, 6),
    "quadratic within a sum": (lambda x, X, y: 3 * cp.sum(cp.square(x) + cp.pos(y - x)), 3, 6),
    "quadratic of some entries": (
        lambda x, X, y: np.array([1.0, 0.0, 2.0]) @ (cp.square(x) + cp.pos(y - x)),
        2,
        4,
    ),
    "convex inside": (lambda x, X, y: cp.pos(y @ x + cp.sum_squares(x) - 1), 1, 2),
    "concave inside": (lambda x, X, y: cp.sum(cp.pos(y - cp.minimum(x, 1))), 3, 6),
    "terms without y": (lambda x, X, y: cp.sum(cp.pos(cp.hstack([y - x, x, 2 * x[0] - 1]))), 3, 6),
    "uncertain only": (lambda x, X, y: cp.sum(cp.abs(y)) + cp.max(y) + y[0] - 2, 5, 10),
    "deterministic only": (lambda x, X, y: cp.sum_squares(x) + cp.max(X), 0, 0),
    "constant": (lambda x, X, y: cp.Constant(3.0), 0, 0),
    "tracking with spread": (lambda x, X, y: cp.ptp(y - x), 2, 6),
    "cvar": (lambda x, X, y: cvar(-y @ x, 0.9), 1, 2),
    "cvar of newsvendor": (lambda x, X, y: cvar(cp.sum(x) + cp.sum(cp.maximum(y - x, 2 * (x - y))), 0.5), 1, 9),
    "mean and cvar": (lambda x, X, y: -y @ x + 0.3 * cvar(cp.pos(1 - y @ x), 0.8), 2, 4),
}


@pytest.mark.parametrize("name", COSTS)
def test_pieces_agree_with_cvxpy(name: str) -> None:
    build, terms, pieces = COSTS[name]
    x, X, y = cp.Variable(N), cp.Variable((2, 3)), Uncertain(3)
    parsed = assert_agrees(build(x, X, y), y)
    assert (parsed.terms, len(parsed.pieces)) == (terms, pieces)
    assert not parsed.conservative


NONNEGATIVE: dict[str, tuple[Build, int, int]] = {
    "square": (lambda x, X, y: y @ cp.square(x), 1, 1),
    "weighted": (lambda x, X, y: cp.sum(cp.multiply(2 * y, cp.abs(x))) + cp.sum_squares(x), 1, 1),
    "inside a maximum": (lambda x, X, y: cp.maximum(y[0] * cp.exp(x[0]), y[1] * x[1], 1), 1, 3),
    "absolute of nonnegative": (lambda x, X, y: cp.abs(y[0] + cp.square(x[0])), 1, 1),
    "concave": (lambda x, X, y: -cp.multiply(y[0], cp.minimum(x[0], x[1])), 1, 1),
    "same function twice": (lambda x, X, y: (lambda s: y[0] * s + cp.pos(s - y[1]))(cp.square(x[0])), 2, 3),
}


@pytest.mark.parametrize("name", NONNEGATIVE)
def test_convex_coefficients_need_nonnegative_y(name: str) -> None:
    build, terms, pieces = NONNEGATIVE[name]
    x, X = cp.Variable(N), cp.Variable((2, 3))
    y = Uncertain(3, Nonnegative())
    parsed = assert_agrees(build(x, X, y), y)
    assert (parsed.terms, len(parsed.pieces)) == (terms, pieces)
    assert len(parsed.auxiliary) == len(parsed.constraints)
    if name != "absolute of nonnegative":
        with pytest.raises(ModelError, match="nonnegative"):
            parse(build(x, X, free := Uncertain(3)), free)


def test_expressions_of_slope_and_offset_agree_with_evaluate() -> None:
    x, X, y = cp.Variable(N), cp.Variable((2, 3)), Uncertain(3)
    parsed = parse(cp.sum(cp.pos(M @ cp.multiply(y, x) - X[:, 1])) + cp.max(X @ y) + y @ x, y)
    x.value, X.value = RNG.normal(size=N), RNG.normal(size=(2, 3))
    slope, offset = parsed.pieces.evaluate(parsed.stack.value)
    np.testing.assert_allclose(parsed.pieces.slope(parsed.stack).value, slope)
    np.testing.assert_allclose(parsed.pieces.offset(parsed.stack).value, offset)
    assert np.abs(slope).max() > 0.1
    assert np.abs(offset).max() > 0.1


def test_coordinates_are_the_structure() -> None:
    x, y = cp.Variable(N), Uncertain(3)
    parsed = parse(cp.sum(cp.pos(y - x)) + cp.pos(y[0] * x[2] - y[2]) + y[1] * x[0], y)
    seen = [set(np.flatnonzero(parsed.pieces.coordinates()[parsed.term == j].any(axis=0))) for j in range(parsed.terms)]
    assert seen == [{0}, {1}, {2}, {0, 2}, {1}]


def test_nonaffine_functions_beside_y_stay_as_they_were() -> None:
    x, y = cp.Variable(N), Uncertain(3)
    parsed = parse(2 * cp.sum(cp.square(x) + cp.pos(y - x)), y)
    assert parsed.auxiliary == ()
    assert parsed.variables == (x,)


def test_too_many_pieces_are_refused_before_they_are_built() -> None:
    x, y = cp.Variable(60), Uncertain(60)
    with pytest.raises(ModelError, match=r"1\.15e\+18 pieces"):
        parse(cvar(cp.sum(cp.pos(y - x)), 0.9), y)
    x, y = cp.Variable(12), Uncertain(12)
    assert len(parse(cp.maximum(cp.sum(cp.pos(y - x)[:11]), 1), y).pieces) == 2**11 + 1
    with pytest.raises(ModelError, match="4097 pieces"):
        parse(cp.maximum(cp.sum(cp.pos(y - x)), 1), y)


def test_thousands_of_terms_stay_apart() -> None:
    x, y = cp.Variable(600), Uncertain(600)
    parsed = parse(cp.sum(cp.maximum(y - x, 2 * (x - y))), y)
    assert parsed.terms == 600
    assert parsed.pieces.slope_linear.nnz == 0
    assert parsed.pieces.coordinates().sum() == 1200


SECOND = Uncertain(3, name="noise")
REFUSED: dict[str, tuple[Build, str]] = {
    "cube of y": (lambda x, X, y: cp.sum(cp.power(cp.pos(y), 3)), "Power.*not piecewise affine"),
    "square of a maximum": (lambda x, X, y: cp.square(cp.pos(y[0] - x[0])), "a loss is taken of a maximum of y"),
    "maximum of squares": (lambda x, X, y: cp.maximum(cp.square(y[0] - x[0]), 1), "can only be added to the cost"),
    "cvar of a square": (lambda x, X, y: dro.cvar(cp.square(y[0] - x[0]), 0.9), "can only be added to the cost"),
    "square of a product with y": (lambda x, X, y: cp.square(y[0] * y[1]), "not affine in y"),
    "two-norm": (lambda x, X, y: cp.norm(y - x, 2), "not piecewise affine"),
    "product of y": (lambda x, X, y: cp.multiply(y[0], y[1]) + x[0], r"y\[0\].*not affine in y"),
    "y times a maximum": (lambda x, X, y: y[0] * cp.pos(y[1]), "not piecewise affine in y because"),
    "x times a maximum": (lambda x, X, y: x[0] * cp.pos(y[0]), "not affine in y"),
    "division by y": (lambda x, X, y: cp.sum(x / y[0]), "not affine in y"),
    "not convex": (lambda x, X, y: cp.sum(cp.sqrt(x)) + cp.max(y), "not convex in the decision"),
    "product of decisions": (lambda x, X, y: x[0] * x[1] + y[0], r"x\[0\].*x\[1\]"),
    "concave maximum": (lambda x, X, y: x[0] - cp.abs(y[0]), "negative weight"),
    "concave inside": (lambda x, X, y: cp.maximum(x[0], 2 - cp.max(y)), "negative weight"),
    "convex minimum": (lambda x, X, y: x[0] + cp.min(y), "negative weight"),
    "second vector": (lambda x, X, y: SECOND @ x + y @ x, "noise"),
    "vector": (lambda x, X, y: y - x, r"shape \(3,\)"),
    "complex": (lambda x, X, y: 1j * cp.sum(x), "complex"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, message = REFUSED[name]
    x, X, y = cp.Variable(N, name="x"), cp.Variable((2, 3)), Uncertain(3)
    with pytest.raises(ModelError, match=message):
        parse(build(x, X, y), y)


def test_not_an_expression() -> None:
    with pytest.raises(ModelError, match="CVXPY expression"):
        parse(3.0, Uncertain(2))  # type: ignore[arg-type]


@st.composite
def convex_costs(draw: st.DrawFn, x: cp.Variable, y: Uncertain, depth: int) -> cp.Expression:
    """A random vector-valued expression that is convex in ``(x, y)`` and piecewise affine."""
    kind = draw(st.sampled_from(["affine", "bilinear"] if depth == 0 else ["sum", "maximum", "mix", "abs", "index"]))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    inner = convex_costs(x, y, max(depth - 1, 0))
    if kind == "affine":
        return rng.integers(-2, 3, (2, 3)) @ y + rng.integers(-2, 3, (2, 3)) @ x + rng.integers(-2, 3, 2)
    if kind == "bilinear":
        return rng.integers(-2, 3, (2, 3)) @ cp.multiply(y, x)
    if kind == "sum":
        return draw(inner) + 2 * draw(inner)
    if kind == "maximum":
        return cp.maximum(draw(inner), draw(inner))
    if kind == "mix":
        return rng.random((2, 2)) @ draw(inner)
    if kind == "abs":
        return cp.abs(draw(convex_costs(x, y, 0)))
    return draw(inner)[[1, 0]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_costs_agree_with_cvxpy(data: st.DataObject) -> None:
    x, y = cp.Variable(3), Uncertain(3)
    expression = data.draw(convex_costs(x, y, 2))
    outer = cp.max(expression) if data.draw(st.booleans()) else 0
    assert_agrees(cp.sum(expression) + outer, y, points=3)


def test_recourse_without_a_decision() -> None:
    """Dependent rows that agree for every y forbid nothing, also where there is no column at all."""
    y = Uncertain(1)
    parsed = assert_agrees(recourse([1.0, 3.0], [[1.0, -1.0], [2.0, -2.0]], cp.hstack([y, 2 * y])), y)
    assert (parsed.terms, len(parsed.pieces), len(parsed.forbidden)) == (1, 2, 0)


def test_recourse_in_a_sum_is_parsed_into_its_vertices() -> None:
    x, y = cp.Variable(3, nonneg=True), Uncertain(3)
    shortage = recourse([1.0, 2.0], [[1.0, -1.0]], cp.sum(y - x))
    parsed = assert_agrees(cp.sum(x) + 3 * shortage, y)
    assert (parsed.terms, len(parsed.pieces)) == (1, 2)


@pytest.mark.parametrize(
    "part",
    [
        lambda x, fee, held: fee * cp.norm1(x - held),
        lambda x, fee, held: 2 * cp.sum(x) + 3 * (fee * cp.sum_squares(x - held)) - cp.sum(held),
        lambda x, fee, held: fee * (cp.norm(x - held) + cp.max(x)) + cp.sum(cp.pos(held - x)),
    ],
)
def test_known_data_may_multiply_convex_functions_of_known_data(part: Callable[..., cp.Expression]) -> None:
    """CVXPY's rules refuse such products of parameters; here the inner function is cut out."""
    y, x = Uncertain(3, Nonnegative()), cp.Variable(3, nonneg=True)
    fee, held = cp.Parameter(nonneg=True, name="fee"), cp.Parameter(3, name="held")
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(-(y @ x) + part(x, fee, held), [cp.sum(x) <= 1], ambiguity)
    rng = np.random.default_rng(0)
    theta = torch.cat([torch.tensor(rng.uniform(0, 1, (4, 3))), torch.full((4, 1), 0.1)], 1)
    fees, holdings = rng.uniform(0.1, 1, 4), rng.normal(size=(4, 3))
    found = problem.solve(theta, known={"fee": fees, "held": holdings})
    for k in range(4):
        constant = dro.DecisionProblem(-(y @ x) + part(x, fees[k], holdings[k]), [cp.sum(x) <= 1], ambiguity)
        expected = constant.solve(theta[k : k + 1])
        torch.testing.assert_close(found.objective[k : k + 1], expected.objective, rtol=1e-6, atol=1e-7)
        value = problem.loss(problem.decision(found.primal), theta[:, :3], {"fee": fees, "held": holdings})[k]
        again = constant.loss(problem.decision(found.primal[k : k + 1]), theta[k : k + 1, :3])[0]
        torch.testing.assert_close(value, again)
