"""Compilation: structure, integers and their boxes, layouts, and errors that name the culprit."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeProgram, Status, compile_program, make_engine
from conelayers.errors import ModelError, ShapeError
from tests.helpers.programs import ENGINES, family


def test_structure() -> None:
    """What is fixed is stored once; what CVXPY needs to write is not more than it must be."""
    n = 50
    x, mu, deviation = cp.Variable(n, nonneg=True), cp.Parameter(n), cp.Parameter(n, nonneg=True)
    program = compile_program(cp.Problem(cp.Minimize(-mu @ x + deviation @ x), [cp.sum(x) == 1]), [mu, deviation])
    assert (program.columns, program.rows, program.nonzeros) == (n, n + 1, 2 * n)
    assert program.flat
    assert not program.A_map.varies
    values = program.values(torch.rand(100, 2 * n))
    assert values.A.stride(0) == 0, "a matrix that does not depend on theta must not be copied for every item"


def test_flat() -> None:
    assert family("flat").program.flat
    assert not family("lp").program.flat, "theta in the right-hand side"
    assert not family("lp_matrix").program.flat, "theta in the matrix"
    assert not family("portfolio").program.flat, "a curved cone"
    assert not family("qp").program.flat, "a quadratic objective"


def test_maximisation_is_negated() -> None:
    x, c = cp.Variable(3, nonneg=True), cp.Parameter(3)
    program = compile_program(cp.Problem(cp.Maximize(c @ x + 2), [cp.sum(x) <= 1]))
    value = make_engine().solve(program, torch.tensor([[1.0, 3.0, 2.0]])).objective
    torch.testing.assert_close(value, torch.tensor([-5.0]))


def test_constant_of_the_objective() -> None:
    x, c, k = cp.Variable(nonneg=True), cp.Parameter(), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(c * x + 2 * k + 7), [x >= 1]), [c, k])
    theta = torch.tensor([[1.0, 3.0]], requires_grad=True)
    value = make_engine().solve(program, theta).objective
    torch.testing.assert_close(value, torch.tensor([14.0]))
    value.backward()
    torch.testing.assert_close(theta.grad, torch.tensor([[1.0, 2.0]]), rtol=1e-5, atol=1e-5)


def test_pack_and_variable_follow_the_user_s_shapes() -> None:
    X = cp.Variable((2, 3), name="X")
    s, target, unused = cp.Variable(name="s"), cp.Parameter((2, 3), name="target"), cp.Parameter(4, name="unused")
    scale = cp.Parameter(name="scale")
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - target) + cp.square(s - scale)))
    program = compile_program(problem, [unused, scale, target])
    given = {target: torch.randn(5, 2, 3), scale: torch.randn(5), unused: torch.zeros(1, 4)}
    theta = program.pack(given)
    assert theta.shape == (5, 11)
    solution = make_engine().solve(program, theta)
    for key in (X, "X"):
        torch.testing.assert_close(solution.variable(key), given[target], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(solution.variable(s), given[scale], rtol=1e-5, atol=1e-5)
    assert torch.equal(program.pack({"target": given[target], "scale": given[scale], "unused": given[unused]}), theta)
    assert program.pack({p: t[:0] for p, t in given.items()}).shape == (0, 11)
    with pytest.raises(ShapeError, match="target"):
        program.pack(given | {target: torch.zeros(5, 3, 2)})
    with pytest.raises(ShapeError, match=r"\['scale'\]"):
        program.pack({target: given[target], unused: given[unused]})
    with pytest.raises(ShapeError, match="scale"):
        program.pack(given | {scale: torch.zeros(4)})
    with pytest.raises(ModelError, match=r"it has \['X', 's'\]|it has \['s', 'X'\]"):
        solution.variable("nothing")


def statement(x: cp.Variable, d: object, k: object, c: object) -> cp.Problem:
    """A cone program in a continuous x, two booleans d and an integer k (or in numbers in their place)."""
    objective = c[:3] @ x + c[3:5] @ d + c[5] * k + cp.norm(x - 1)
    return cp.Problem(cp.Minimize(objective), [cp.sum(x) + cp.sum(d) + k >= 2, x <= 2])


def mixed() -> ConeProgram:
    """The same with integer variables; k has a box with a fractional end."""
    x, d = cp.Variable(3, nonneg=True, name="x"), cp.Variable(2, boolean=True, name="d")
    k = cp.Variable(integer=True, bounds=[-1, 2.5], name="k")
    return compile_program(statement(x, d, k, cp.Parameter(6)))


def columns(program: ConeProgram, d: tuple[int, int], k: int) -> list[float]:
    """An assignment in the order of the program's integer columns."""
    offset = {slot.name: slot.offset for slot in program.variables}
    at = {offset["d"]: d[0], offset["d"] + 1: d[1], offset["k"]: k}
    return [float(at[int(column)]) for column in program.integers]


ASSIGNMENTS = [((a, b), k) for a, b, k in itertools.product((0, 1), (0, 1), (-1, 0, 1, 2))]


def test_integers_and_their_bounds() -> None:
    program = mixed()
    lower, upper = program.integer_bounds
    assert lower.tolist() == columns(program, (0, 0), -1)
    assert upper.tolist() == columns(program, (1, 1), 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_fixed_integers(engine: str) -> None:
    """Every assignment in one batch, against the problem with numbers in place of the integers."""
    program = mixed()
    c = np.random.default_rng(3).normal(size=6)
    theta = torch.tensor(c).expand(len(ASSIGNMENTS), -1).clone().requires_grad_()
    fixed = torch.tensor([columns(program, *a) for a in ASSIGNMENTS])
    solution = make_engine(engine).solve(program, theta, fixed=fixed)
    x = cp.Variable(3, nonneg=True)
    expected = [statement(x, np.array(d), k, c).solve(cp.CLARABEL) for d, k in ASSIGNMENTS]
    assert solution.statuses == [Status.OPTIMAL if np.isfinite(v) else Status.INFEASIBLE for v in expected]
    assert sum(s == Status.OPTIMAL for s in solution.statuses) > 10
    np.testing.assert_allclose(solution.objective.detach().numpy(), expected, rtol=1e-6, atol=1e-6)
    integers = solution.primal[:, program.integers].detach()
    torch.testing.assert_close(integers, fixed.double(), rtol=1e-6, atol=1e-6)
    solution.objective.sum().backward()
    # The envelope theorem: the derivative by the price of an integer is the integer.
    torch.testing.assert_close(
        theta.grad[:, 3:5], torch.tensor([a[0] for a in ASSIGNMENTS]).double(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_boxes(engine: str) -> None:
    """Relaxed within a box: no worse than its assignments, no better than the box without it."""
    program = mixed()
    theta = torch.tensor(np.random.default_rng(4).normal(size=(1, 6)))
    solver = make_engine(engine)
    lower, upper = (torch.tensor([columns(program, *end)]) for end in (((0, 1), 0), ((1, 1), 1)))
    free = solver.solve(program, theta)
    boxed = solver.solve(program, theta, fixed=(lower, upper))
    inside = [a for a in ASSIGNMENTS if a[0][1] == 1 and a[1] in (0, 1)]
    fixed = torch.tensor([columns(program, *a) for a in inside])
    points = solver.solve(program, theta.expand(len(inside), -1), fixed=fixed)
    x = boxed.primal[:, program.integers]
    assert bool((x >= lower - 1e-7).all())
    assert bool((x <= upper + 1e-7).all())
    assert float(free.objective) <= float(boxed.objective) + 1e-8 <= float(points.objective.min()) + 2e-8
    whole = solver.solve(program, theta, fixed=tuple(end[None] for end in program.integer_bounds))
    torch.testing.assert_close(whole.objective, free.objective)
    empty = solver.solve(program, theta, fixed=(upper + 1, lower))
    assert empty.statuses == [Status.INFEASIBLE]
    with pytest.raises(ShapeError, match=r"\(1, 3\)"):
        solver.solve(program, theta, fixed=lower[:, :2])


def test_gradient_reaches_the_fixed_values() -> None:
    program = mixed()
    theta = torch.tensor(np.random.default_rng(3).normal(size=(1, 6)))
    fixed = torch.tensor([columns(program, (1, 0), 1)], dtype=torch.float64, requires_grad=True)
    make_engine().solve(program, theta, fixed=fixed).objective.sum().backward()
    step = 1e-4 * torch.eye(3).double()
    moved = torch.cat([fixed.detach() + step, fixed.detach() - step])
    value = make_engine().solve(program, theta.expand(6, -1), fixed=moved).objective
    torch.testing.assert_close(fixed.grad[0], (value[:3] - value[3:]) / 2e-4, rtol=1e-3, atol=1e-3)


x, y, p, q = cp.Variable(2, name="x"), cp.Variable(name="y"), cp.Parameter(2, name="p"), cp.Parameter(2, name="q")
X = cp.Variable((2, 2), name="X")
stack = cp.Variable((3, 2, 2), symmetric=True, name="stack")

REFUSED = {
    "product of parameters": (cp.sum(cp.multiply(cp.multiply(p, q), x)), [], r"Not DPP.*p.*q"),
    "parameter in a constraint": (cp.sum(x), [cp.norm(x) <= p[0] * q[0]], r"Not DPP.*p\[0\].*q\[0\]"),
    "concave objective": (cp.sum(cp.sqrt(x)), [], r"Not convex.*x"),
    "reverse constraint": (cp.sum(x), [cp.square(y) >= 1], r"Not convex.*y"),
    "hidden culprit": (cp.sum(x) + 3 * cp.exp(cp.log(y) * y), [], r"Not convex.*log\(y\)"),
    "equality of a convex expression": (cp.sum(x), [cp.norm(x) == 1], r"Not convex.*norm"),
    "power cone in n dimensions": (cp.sum(x), [cp.PowConeND(X[0], y, np.array([0.4, 0.6]))], r"n dimensions.*PowND\(X"),
    "a stack of symmetric matrices": (cp.sum(stack), [], r"Variable stack has structure \['symmetric'\]"),
    "unbounded integer": (cp.sum(x), [x >= cp.Variable(2, integer=True, name="count")], r"count is not bounded"),
    "half-bounded integer": (cp.Variable(integer=True, nonneg=True, name="half"), [], r"half is not bounded"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_refused_is_named(case: str) -> None:
    objective, constraints, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        compile_program(cp.Problem(cp.Minimize(objective), constraints))


def test_parameter_that_is_not_listed() -> None:
    with pytest.raises(ModelError, match="Parameter q is used in the problem but is not listed"):
        compile_program(cp.Problem(cp.Minimize(p @ x + q @ x)), [p])


@pytest.mark.parametrize("attribute", ["diag", "hermitian", "complex"])
def test_variables_with_structure(attribute: str) -> None:
    """CVXPY stores fewer entries than such a variable shows."""
    Y = cp.Variable((2, 2), name="Y", **{attribute: True})
    with pytest.raises(ModelError, match="Variable Y has structure"):
        compile_program(cp.Problem(cp.Minimize(cp.norm(Y - np.eye(2), "fro"))))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("symmetric", [[1.0, 2.0], [2.0, -3.0]]),
        ("PSD", [[2.0, 0.0], [0.0, 0.0]]),
        ("NSD", [[0.0, 0.0], [0.0, -3.0]]),
    ],
)
def test_symmetric_variables(attribute: str, expected: list[list[float]]) -> None:
    """CVXPY keeps a triangle of them; ours have all their entries, under the user's own variable."""
    Y, target = cp.Variable((2, 2), name="Y", **{attribute: True}), cp.Parameter((2, 2))
    program = compile_program(cp.Problem(cp.Minimize(cp.sum_squares(Y - target))), [target])
    given = {"symmetric": [1.0, 4.0, 0.0, -3.0], "PSD": [2.0, 1.0, -1.0, -3.0], "NSD": [2.0, 1.0, -1.0, -3.0]}
    solution = make_engine().solve(program, torch.tensor([given[attribute]], dtype=torch.float64))
    found = solution.variable(Y)[0]
    assert found.shape == (2, 2)
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"nonneg": True}, [0.0, 2.0]),
        ({"nonpos": True}, [-1.0, 0.0]),
        ({"bounds": [-0.5, np.array([1.0, 1.5])]}, [-0.5, 1.5]),
        ({"bounds": [-np.inf, 0.5]}, [-1.0, 0.5]),
    ],
)
def test_attributes_of_variables(attributes: dict, expected: list[float]) -> None:
    v, target = cp.Variable(2, **attributes), cp.Parameter(2)
    program = compile_program(cp.Problem(cp.Minimize(cp.sum_squares(v - target))))
    solution = make_engine().solve(program, torch.tensor([[-1.0, 2.0]]))
    torch.testing.assert_close(solution.variable(v), torch.tensor([expected]), rtol=1e-6, atol=1e-6)
