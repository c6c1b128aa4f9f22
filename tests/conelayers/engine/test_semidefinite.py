"""Semidefinite cones: their rows, their projection and its derivative, kinks, certificates, and Delage and Ye's set."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Derivative, Smoothed, Status, compile_program, make_engine
from conelayers.derivative.barrier import Barrier
from conelayers.derivative.newton import basis, gap, split
from conelayers.derivative.path import Path
from conelayers.derivative.theorem import Found, Pulled, by_feature
from conelayers.engine.engine import MaskedGradientWarning
from conelayers.engine.solvers.automatic import Automatic
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.polished import Polished
from conelayers.engine.verdict import ACCEPT
from conelayers.errors import ModelError
from conelayers.integer.feasibility import feasible_points
from conelayers.oracles import SCIP, BranchAndBound, Enumeration, Gurobi, HiGHS, Oracle
from conelayers.program import residuals
from conelayers.program.program import Cones
from conelayers.program.semidefinite import matrix, parts, rows_of, smallest_eigenvalue
from conelayers.scaling.units import Units
from tests.conelayers.derivative.test_gradients import gradients, weights
from tests.helpers.cone_checks import assert_agrees, assert_gradient, central_differences, symmetric_matrix
from tests.helpers.programs import GENERAL, SEMIDEFINITE, family, moment_block

CONES = Cones(zero=1, nonneg=2, soc=(3,), psd=(3, 1, 4), exp=1)
NAMES = [f.__name__ for f in SEMIDEFINITE]


# --- Rows -------------------------------------------------------------------------------------------------------------


def test_rows_are_the_scaled_upper_triangle() -> None:
    rng = np.random.default_rng(0)
    assert CONES.rows == 1 + 2 + 3 + (6 + 1 + 10) + 3
    assert [(part.start, part.stop, order) for part, order in parts(CONES)] == [(6, 12, 3), (12, 13, 1), (13, 23, 4)]
    for order in (1, 2, 5):
        S, T = (0.5 * (M + M.T) for M in rng.normal(size=(2, order, order)))
        np.testing.assert_allclose(matrix(rows_of(S), order), S)
        np.testing.assert_allclose(symmetric_matrix(rows_of(S), order), S)
        assert rows_of(S) @ rows_of(T) == pytest.approx(np.trace(S @ T))


@pytest.mark.parametrize("engine", GENERAL)
def test_solvers_read_the_same_triangle(engine: str) -> None:
    """The closest semidefinite matrix to one of order three whose entries all differ: a wrong order shows."""
    G, X = cp.Parameter((3, 3)), cp.Variable((3, 3), PSD=True)
    program = compile_program(cp.Problem(cp.Minimize(cp.sum_squares(X - G))), [G])
    given = torch.tensor([[1.0, 0.7, -0.4], [0.7, -0.5, 0.2], [-0.4, 0.2, 0.3]], dtype=torch.float64)
    solution = make_engine(engine).solve(program, given.reshape(1, -1))
    values, vectors = torch.linalg.eigh(given)
    closest = (vectors * values.clamp(min=0.0)) @ vectors.T
    torch.testing.assert_close(solution.variable(X)[0], closest, rtol=1e-5, atol=1e-5)
    slack = symmetric_matrix(solution.slack[0, parts(program.cones)[0][0]].numpy(), 3)
    np.testing.assert_allclose(slack, closest.numpy(), atol=1e-5)


@pytest.mark.parametrize("engine", GENERAL)
def test_exponential_cones_follow(engine: str) -> None:
    member = family("log_det")
    assert member.program.cones.psd
    assert member.program.cones.exp
    theta, weight = member.theta(5, seed=2), weights(member, 5)
    assert_agrees(member, theta, make_engine(engine).solve(member.program, theta))
    of_decision, of_value = central_differences(member.program, theta, weight)
    known = of_decision.isfinite().all(1)
    assert int(known.sum()) >= 4
    by_decision, by_value = gradients(make_engine(engine), member, theta, weight)
    # The point cannot be polished, and has the digits that the solver gave it.
    assert_gradient(by_decision[known], of_decision[known], 2e-3)
    assert_gradient(by_value[known], of_value[known], 1e-4)


# --- Projection and residuals -----------------------------------------------------------------------------------------


def _points(batch: int) -> np.ndarray:
    """Random v = z - s for cones without the exponential one."""
    return np.random.default_rng(1).normal(size=(batch, CONES.rows - 3))


SELF_DUAL = Cones(zero=1, nonneg=2, soc=(3,), psd=(3, 1, 4))


def test_projections_leave_a_remainder_that_is_orthogonal() -> None:
    for v in _points(30):
        z, s = split(SELF_DUAL, v)
        np.testing.assert_allclose(z - s, v)
        assert abs(z @ s) < 1e-12
        for part, order in parts(SELF_DUAL):
            for side in (z, s):
                assert np.linalg.eigvalsh(matrix(side[part], order))[0] > -1e-12


def test_the_derivative_of_the_projection_is_that_of_differences() -> None:
    step = 1e-6
    for v in _points(10):
        assert gap(SELF_DUAL, v) > 1e-3
        U, H = basis(SELF_DUAL, *split(SELF_DUAL, v), 0.0)
        D = U @ np.diag(1.0 / (1.0 + H)) @ U.T
        moves = step * np.eye(v.size)
        expected = [(split(SELF_DUAL, v + m)[0] - split(SELF_DUAL, v - m)[0]) / (2 * step) for m in moves]
        np.testing.assert_allclose(D, np.array(expected), atol=1e-6)
        np.testing.assert_allclose((U.T @ U).toarray(), np.eye(U.shape[1]), atol=1e-12)


def test_an_eigenvalue_on_the_verge_leans_to_either_side() -> None:
    v = rows_of(np.diag([2.0, 0.0, -1.0]))
    cones = Cones(psd=(3,))
    ranks = [basis(cones, *split(cones, v), lean)[0].shape[1] for lean in (1e-9, -1e-9)]
    # With two positive eigenvalues 3 + 1 directions, with one 1 + 1; Ω vanishes between the zero and the negative one.
    assert ranks == [4, 3]


def test_smallest_eigenvalues() -> None:
    s = torch.tensor(np.random.default_rng(2).normal(size=(6, CONES.rows)))
    expected = [
        min(np.linalg.eigvalsh(matrix(row[part], order))[0] for part, order in parts(CONES)) for row in s.numpy()
    ]
    np.testing.assert_allclose(smallest_eigenvalue(CONES, s).numpy(), expected)
    s[2, 7], s[4, 14] = torch.nan, torch.inf
    found = smallest_eigenvalue(CONES, s)
    assert found.isfinite().tolist() == [True, True, False, True, False, True]
    assert float(found[2]) == float(found[4]) == -np.inf


@pytest.mark.parametrize("name", NAMES)
def test_residuals_see_an_indefinite_slack(name: str) -> None:
    """A slack that leaves the cone, and a multiplier that does."""
    member = family(name)
    values = member.program.values(member.theta(3))
    points = Clarabel(1e-10).solve(member.program, values)
    part, order = parts(member.program.cones)[0]
    out = torch.tensor(rows_of(-1e-3 * np.eye(order)))
    assert float(residuals.optimality(member.program, values, points.x, points.z, points.s, ACCEPT).max()) < 1e-6
    for field in ("z", "s"):
        moved = {k: getattr(points, k).clone() for k in ("x", "z", "s")}
        moved[field][:, part] += out
        assert float(residuals.outside(member.program, moved[field], dual=field == "z").min()) > 5e-4


# --- Derivatives ------------------------------------------------------------------------------------------------------


def closest() -> tuple[ConeProgram, cp.Variable]:
    """The semidefinite matrix closest to diag(θ)."""
    X, theta = cp.Variable((2, 2), PSD=True), cp.Parameter(2)
    return compile_program(cp.Problem(cp.Minimize(cp.sum_squares(X - cp.diag(theta))), [X << 9 * np.eye(2)])), X


def _pulled(theta: list[list[float]]) -> tuple[list[Derivative], Tensor]:
    program, X = closest()
    leaf = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, leaf)
    assert solution.statuses == [Status.OPTIMAL] * len(theta)
    solution.variable(X)[:, 1, 1].sum().backward()
    return solution.derivatives, leaf.grad


def test_a_zero_eigenvalue_is_a_kink() -> None:
    """X₁₁ = max(θ₁, 0)."""
    with pytest.warns(MaskedGradientWarning, match="1 of 3 items got no gradient, most of them KINK"):
        codes, gradient = _pulled([[1.0, 1.0], [1.0, 0.0], [1.0, -1.0]])
    assert codes == [Derivative.FACTORED, Derivative.KINK, Derivative.FACTORED]
    torch.testing.assert_close(gradient[:, 1], torch.tensor([1.0, 0.0, 0.0]).double(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7])
def test_next_to_a_zero_eigenvalue_the_side_is_known(size: float) -> None:
    codes, gradient = _pulled([[1.0, size], [1.0, -size]])
    assert codes == [Derivative.FACTORED] * 2
    torch.testing.assert_close(gradient[:, 1], torch.tensor([1.0, 0.0]).double(), rtol=1e-6, atol=1e-8)


def test_an_eigenvalue_on_the_verge_that_does_not_matter_is_no_kink() -> None:
    program, X = closest()
    leaf = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, leaf)
    (gradient,) = torch.autograd.grad(solution.variable(X)[:, 0, 0].sum(), leaf)
    assert solution.derivatives == [Derivative.FACTORED]
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0]]).double(), rtol=1e-6, atol=1e-8)


def test_a_matrix_that_is_not_unique_is_loose() -> None:
    """The trace is given, and no more."""
    X, theta = cp.Variable((2, 2), PSD=True), cp.Parameter()
    program = compile_program(cp.Problem(cp.Minimize(cp.trace(X)), [cp.trace(X) >= theta]), [theta])
    leaf = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, leaf)
    with pytest.warns(MaskedGradientWarning, match="LOOSE"):
        (gradient,) = torch.autograd.grad(solution.variable(X)[:, 0, 0].sum(), leaf, retain_graph=True)
    assert float(gradient.abs().max()) == 0.0
    total = solution.variable(X).diagonal(dim1=1, dim2=2).sum()
    torch.testing.assert_close(torch.autograd.grad(total, leaf)[0], torch.ones_like(leaf))


# --- Smoothed derivatives ---------------------------------------------------------------------------------------------


def _at(name: str, theta: Tensor, level: float, dx: Tensor) -> tuple[Pulled, Found]:
    """The adjoint on the path for given parameters, in the program's own units."""
    program = family(name).program
    values = program.values(theta).detach()
    points = Clarabel(1e-9).solve(program, values)
    one = torch.ones(len(theta), 1, dtype=torch.float64)
    found = Found(points.x, points.z, points.s, Units(one, one, one, one))
    return Barrier(level)(program, values, found, dx), found


@pytest.mark.parametrize("level", [1e-1, 1e-3])
@pytest.mark.parametrize("name", ["lp", "lp_matrix", "qp", "socp", "portfolio", "flat"])
def test_the_path_item_by_item_is_that_of_the_batch(name: str, level: float) -> None:
    program, theta = family(name).program, family(name).theta(6, seed=1)
    dx = torch.randn(6, program.columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, found = _at(name, theta, level, dx)
    other = Path(level)(program, program.values(theta).detach(), found, dx)
    assert set(one.code.tolist()) == set(other.code.tolist()) == {int(Derivative.PATH)}
    torch.testing.assert_close(one.x, other.x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        by_feature(program, one, found.units), by_feature(program, other, found.units), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("level", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("name", NAMES)
def test_smoothed_derivatives_are_those_of_the_path(name: str, level: float) -> None:
    """Differences of the points of the path, which need no derivative to be found."""
    program, theta, weight = family(name).program, family(name).theta(3, seed=2), weights(family(name), 3)
    pulled, found = _at(name, theta, level, weight)
    assert pulled.code.tolist() == [int(Derivative.PATH)] * 3
    gradient = by_feature(program, pulled, found.units)
    along = torch.tensor(np.random.default_rng(3).normal(size=(2, *theta.shape)))
    ends = [_at(name, theta + step * move, level, weight)[0] for move in along for step in (1e-5, -1e-5)]
    sums = torch.stack([(end.x * weight).sum(1) for end in ends]).reshape(-1, 2, 3)
    assert_gradient((gradient * along).sum(-1).T, ((sums[:, 0] - sums[:, 1]) / 2e-5).T, 1e-4)


def spectraplex(C: Tensor, level: float) -> Tensor:
    """argmin ⟨C, X⟩ - level log det X over tr X = 1: X = level (C + νI)⁻¹ with ν found by bisection."""
    values, vectors = torch.linalg.eigh(C)
    low, high = -values[0] + 1e-14, -values[0] + 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((level / (values + middle)).sum()) > 1 else (low, middle)
    return (vectors * (level / (values + low))) @ vectors.T


@pytest.mark.parametrize("engine", ["auto", *GENERAL])
@pytest.mark.parametrize("level", [1e-1, 1e-2])
def test_smoothed_gradient_is_that_of_the_log_determinant(engine: str, level: float) -> None:
    X, C = cp.Variable((3, 3), PSD=True), cp.Parameter((3, 3))
    program = compile_program(cp.Problem(cp.Minimize(cp.sum(cp.multiply(C, X))), [cp.trace(X) == 1]), [C])
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    given = given + given.T
    weight = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    # The level is relative to the objective's unit, which is a constant of the derivative.
    units, _ = Units.of(program, program.values(given.reshape(1, 9)))
    absolute = level * float(units.kappa * units.beta)
    leaf = given.reshape(1, 9).clone().requires_grad_()
    solution = make_engine(engine, Smoothed(level)).solve(program, leaf)
    (solution.variable(X)[0] * weight).sum().backward()
    assert solution.derivatives == [Derivative.PATH]
    for i in range(3):
        for j in range(3):
            # An entry of C counts with its mirror image, half each.
            move = torch.zeros(3, 3, dtype=torch.float64)
            move[i, j] = 1e-6
            move = 0.5 * (move + move.T)
            ends = [(spectraplex(given + sign * move, absolute) * weight).sum() for sign in (1.0, -1.0)]
            expected = float(ends[0] - ends[1]) / 2e-6
            assert float(leaf.grad[0, 3 * i + j]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_smoothing_beside_exponential_cones_is_refused_with_advice() -> None:
    member = family("log_det")
    with pytest.raises(ModelError, match=r"smoothed gradients over exp cones: use gradient=\"exact\""):
        make_engine(gradient="smoothed").solve(member.program, member.theta(1))


# --- Delage and Ye ----------------------------------------------------------------------------------------------------


def two_pieces(n: int) -> ConeProgram:
    """The worst case of max(a₁ᵀy + b₁, a₂ᵀy + b₂) under the mean and the covariance L Lᵀ, both given."""
    q, Q, r = cp.Variable(n), cp.Variable((n, n), PSD=True), cp.Variable()
    mu, L, slopes, offsets = cp.Parameter(n), cp.Parameter((n, n)), np.eye(2, n) - 0.3, (0.2, -0.1)
    pieces = [moment_block(Q, q, r, mu, L, slopes[k], offsets[k]) >> 0 for k in range(2)]
    return compile_program(cp.Problem(cp.Minimize(r + cp.trace(Q)), pieces), [mu, L])


def by_hand(theta: Tensor, n: int) -> Tensor:
    """½(sum of the means of both pieces) + ½√(difference² + variance of the difference)."""
    mu, L = theta[:, :n], theta[:, n:].reshape(-1, n, n)
    slopes = torch.eye(2, n, dtype=torch.float64) - 0.3
    first, second = mu @ slopes[0] + 0.2, mu @ slopes[1] - 0.1
    spread = (L.transpose(1, 2) @ (slopes[0] - slopes[1])).square().sum(1)
    return 0.5 * (first + second) + 0.5 * ((first - second).square() + spread).sqrt()


@pytest.mark.parametrize("engine", ["auto", *GENERAL])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_worst_case_of_two_pieces_is_known(engine: str, n: int) -> None:
    rng = np.random.default_rng(n)
    theta = torch.tensor(np.concatenate([rng.normal(size=(6, n)), rng.normal(size=(6, n * n))], 1))
    one, two = (theta.clone().requires_grad_() for _ in range(2))
    solution, expected = make_engine(engine).solve(two_pieces(n), one), by_hand(two, n)
    assert solution.statuses == [Status.OPTIMAL] * 6
    torch.testing.assert_close(solution.objective, expected, rtol=1e-6, atol=1e-6)
    solution.objective.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_multipliers_that_are_not_unique_are_polished() -> None:
    """What Clarabel leaves at 1e-10 or more, Newton's method takes to the last digits."""
    program = two_pieces(5)
    rng = np.random.default_rng(5)
    values = program.values(torch.tensor(rng.normal(size=(6, 30))))
    for solver, most in ((Clarabel(1e-9), 1e-4), (Polished(Clarabel(1e-9)), 1e-12)):
        points = solver.solve(program, values)
        assert float(residuals.optimality(program, values, points.x, points.z, points.s, ACCEPT).max()) <= most


def test_certificates_are_not_polished() -> None:
    member = family("fragile_sdp")
    theta = member.theta(3)
    theta[0, -1], theta[1, 0] = -0.5, -1.0
    values = member.program.values(theta)
    plain, found = (solver.solve(member.program, values) for solver in (Clarabel(), Polished(Clarabel())))
    assert found.verdict.tolist() == [int(s) for s in (Status.INFEASIBLE, Status.UNBOUNDED, Status.OPTIMAL)]
    assert torch.equal(plain.z[:2], found.z[:2])


# --- The rest of the house --------------------------------------------------------------------------------------------


def test_the_default_engine_says_who_solves() -> None:
    program = family("sdp").program
    assert Automatic().choice(program) is Automatic().general or Automatic().choice(program).name in GENERAL
    assert "since psd cones are not among those of our own method" in make_engine().explain(program)
    with pytest.raises(ModelError, match="psd cones"):
        make_engine("batched").solve(program, family("sdp").theta(1))


ATOMS = {
    "largest eigenvalue": lambda X: cp.lambda_max(X),
    "nuclear norm": lambda X: cp.normNuc(X),
    "spectral norm": lambda X: cp.sigma_max(X),
    "sum of the largest": lambda X: cp.lambda_sum_largest(X, 2),
}


@pytest.mark.parametrize("atom", list(ATOMS))
def test_atoms_over_matrices(atom: str) -> None:
    """A random matrix, drawn towards smaller values of the atom."""
    X, B = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3))
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(X - B) + ATOMS[atom](X)))
    given = np.random.default_rng(4).normal(size=(4, 3, 3))
    solution = make_engine().solve(compile_program(problem, [B]), torch.tensor(given.reshape(4, 9)))
    for item in range(4):
        B.value = given[item]
        problem.solve(cp.CLARABEL, tol_feas=1e-9, tol_gap_abs=1e-9, tol_gap_rel=1e-9)
        assert float(solution.objective[item]) == pytest.approx(problem.value, rel=1e-6)
        np.testing.assert_allclose(solution.variable(X)[item].numpy(), X.value, atol=1e-4)


def mixed(c: object, d: object, X: cp.Variable) -> cp.Problem:
    """A program in three booleans d (or in numbers in their place) and a matrix that they bound."""
    bound = cp.bmat([[1 + d[0] + 0.5 * d[1], 0.4 * d[2]], [0.4 * d[2], 1.5 - 1.4 * d[0]]])
    objective = c @ d - cp.trace(X) + 0.5 * cp.sum_squares(X)
    return cp.Problem(cp.Minimize(objective), [X << bound, X[0, 1] >= 0.4])


def test_integers_beside_a_semidefinite_cone() -> None:
    """Our tree against enumeration, and against numbers in place of the integers."""
    X, c = cp.Variable((2, 2), PSD=True), cp.Parameter(3)
    program = compile_program(mixed(c, cp.Variable(3, boolean=True), X), [c])
    theta = torch.tensor(np.random.default_rng(6).normal(size=(5, 3)))
    grid = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], dtype=float)
    values = np.array([[mixed(row, d, X).solve(cp.CLARABEL) for d in grid] for row in theta.numpy()])
    assert bool(np.isfinite(values).any(1).all())
    assert bool(np.isinf(values).any()), "some points were meant to be infeasible"
    for oracle in (BranchAndBound(), Enumeration()):
        found = oracle.best(program, program.values(theta), 3)
        np.testing.assert_array_equal(found.points.numpy(), grid[np.argsort(values, axis=1)[:, :3]])
    feasible = feasible_points(make_engine(), program, program.values(theta), torch.tensor(grid).expand(5, -1, -1))
    np.testing.assert_array_equal(feasible.numpy(), np.isfinite(values))


@pytest.mark.parametrize("oracle", [SCIP, HiGHS, Gurobi])
def test_solvers_of_others_refuse_integers_beside_a_semidefinite_cone(oracle: Callable[[], Oracle]) -> None:
    X, c = cp.Variable((2, 2), PSD=True), cp.Parameter(3)
    program = compile_program(mixed(c, cp.Variable(3, boolean=True), X), [c])
    with pytest.raises(ModelError, match=r"cannot handle psd.*oracle='branch_and_bound'"):
        oracle().best(program, program.values(torch.zeros(1, 3)), 1)
