"""Adjoints: what is verified, what is told to have no derivative, and that both ways to the active face agree."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Derivative, Status, compile_program, make_engine
from conelayers.derivative.active import Active
from conelayers.derivative.factored import Factored
from conelayers.derivative.newton import basis, split
from conelayers.derivative.theorem import Found, Pulled, gradients
from conelayers.engine.engine import MaskedGradientWarning
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.errors import DifferentiationError
from conelayers.interior.face import Face, cone_rows
from conelayers.program.program import Cones, Values
from conelayers.scaling.units import Units
from tests.helpers.programs import family

CONES = Cones(zero=2, nonneg=4, soc=(3, 4, 4, 2))


def _points(batch: int) -> np.ndarray:
    """Random v = z - s, on all kinds of faces."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(CONES.rows, batch))
    v[6] *= 3.0
    return v


def test_the_face_of_a_batch_is_that_of_each_item() -> None:
    """E and H of ``face.py`` against U and H of ``factored.py``, which come from an eigendecomposition."""
    v = _points(200)
    face = Face.at(np, cone_rows(CONES, None), v)
    u = np.random.default_rng(1).normal(size=v.shape)
    z, s = face.split(v)
    kinds = set()
    for k in range(v.shape[1]):
        U, H = basis(CONES, *split(CONES, v[:, k]), 0.0)
        np.testing.assert_allclose(face.project(u)[:, k], U @ (U.T @ u[:, k]), atol=1e-9)
        h = U @ (U.T @ u)
        np.testing.assert_allclose(face.curve(h)[:, k], (U @ (H[:, None] * (U.T @ u)))[:, k], atol=1e-9)
        np.testing.assert_allclose([z[:, k], s[:, k]], split(CONES, v[:, k]), atol=1e-12)
        kinds.add(U.shape[1])
    assert len(kinds) > 5
    assert bool((face.margin > 0).all())


def test_projections_are_those_of_optimisation() -> None:
    """z = Π(v) is the closest point of the dual cone, and s the rest: z ⟂ s, both in their cones."""
    v = _points(50)
    for k in range(50):
        z, s = split(CONES, v[:, k])
        assert abs(z @ s) < 1e-12
        np.testing.assert_allclose(z - s, v[:, k])
        at = 6
        for size in CONES.soc:
            for part in (z, s):
                assert np.linalg.norm(part[at + 1 : at + size]) <= part[at] + 1e-12
            at += size


def test_the_soft_point_scales_like_the_face() -> None:
    """H of the interior-point system that is factored is the face's, up to what is soft."""
    v, soft = _points(40), 1e-7
    rows = cone_rows(CONES, None)
    face = Face.at(np, rows, v)
    s, z = face.point(v, soft)
    assert bool((s[2:] != 0).any())
    u = np.random.default_rng(2).normal(size=v.shape)
    u[:2] = 0.0
    inside = face.project(u)
    # H u by the formula of Nesterov and Todd, cone by cone.
    image = np.zeros_like(u)
    image[2:6] = s[2:6] / z[2:6] * inside[2:6]
    for group in rows.groups:
        for cone in group:
            J = np.diag([1.0, *[-1.0] * (len(cone) - 1)])
            for k in range(v.shape[1]):
                a, b = s[cone, k], z[cone, k]
                eta = np.sqrt((a @ J @ a) / (b @ J @ b))
                bar_a, bar_b = a / np.sqrt(a @ J @ a), b / np.sqrt(b @ J @ b)
                w = (bar_a + J @ bar_b) / np.sqrt(2.0 * (1.0 + bar_a @ bar_b))
                image[cone, k] = eta * (2.0 * w * (w @ inside[cone, k]) - J @ inside[cone, k])
    error = face.project(image) - face.curve(inside)
    # What is soft, and rounding of numbers as large as 1/soft.
    assert float(np.abs(error).max()) < 1e-4


@pytest.mark.parametrize("name", ["lp", "lp_matrix", "qp", "qp_weights", "socp", "portfolio"])
@pytest.mark.parametrize("algebra", ["numba", "torch"])
def test_both_ways_to_the_face_agree(name: str, algebra: str) -> None:
    member = family(name)
    values = member.program.values(member.theta(8, seed=1))
    points = Clarabel(1e-10).solve(member.program, values)
    one = torch.ones(8, 1, dtype=torch.float64)
    found = Found(points.x, points.z, points.s, Units(one, one, one, one))
    dx = torch.zeros_like(values.q)
    for slot in member.program.variables:
        dx[:, slot.offset : slot.offset + slot.size] = 1.0
    first, second = (a(member.program, values, found, dx) for a in (Active(algebra), Factored()))  # type: ignore[arg-type]
    assert set(first.code.tolist()) == {int(Derivative.FACE)}
    assert set(second.code.tolist()) == {int(Derivative.FACTORED)}
    for one, other in zip(*(gradients(member.program, side, found.units) for side in (first, second)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def _one(problem: cp.Problem, parameters: list[cp.Parameter]) -> ConeProgram:
    return compile_program(problem, parameters)


def _pulled(program: ConeProgram, theta: Tensor, entry: int = 0) -> tuple[list[Derivative], Tensor]:
    """The codes and gradients of one entry of the decision."""
    leaf = theta.double().requires_grad_()
    solution = make_engine().solve(program, leaf)
    assert solution.statuses == [Status.OPTIMAL] * len(theta)
    assert solution.derivatives == [Derivative.UNASKED] * len(theta)
    solution.primal[:, entry].sum().backward()
    return solution.derivatives, leaf.grad


def test_a_kink_is_told_and_passes_no_gradient() -> None:
    """x = max(θ, 0): at zero the derivative is zero on one side and one on the other."""
    x, theta = cp.Variable(), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(cp.square(x) - 2 * theta * x), [x >= 0]), [theta])
    with pytest.warns(MaskedGradientWarning, match=r"1 of 3 items got no gradient, most of them KINK"):
        codes, gradient = _pulled(program, torch.tensor([[1.0], [0.0], [-1.0]]))
    assert codes == [Derivative.FACE, Derivative.KINK, Derivative.FACE]
    torch.testing.assert_close(gradient[:, 0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7])
def test_next_to_a_kink_the_side_is_known(size: float) -> None:
    """Slack and multiplier are both below the root of the tolerance: a point of the central path says nothing."""
    x, theta = cp.Variable(), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(cp.square(x) - 2 * theta * x), [x >= 0, x <= 5]), [theta])
    codes, gradient = _pulled(program, torch.tensor([[size], [-size]], dtype=torch.float64))
    assert all(code.ok for code in codes)
    torch.testing.assert_close(gradient[:, 0], torch.tensor([1.0, 0.0], dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_a_row_on_the_verge_that_does_not_matter_is_no_kink() -> None:
    """y = 0 is on its bound with a multiplier of zero, always, and does not move with θ."""
    x, y, theta = cp.Variable(), cp.Variable(), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(cp.square(x - theta) + cp.square(y)), [y >= 0, x <= 5]), [theta])
    entry = next(s.offset for s in program.variables if s.key == x.id)
    codes, gradient = _pulled(program, torch.tensor([[1.0], [2.0]]), entry)
    assert all(code.ok for code in codes)
    torch.testing.assert_close(gradient, torch.ones_like(gradient))


def test_a_decision_that_is_not_unique_is_told() -> None:
    """x + y = θ and nothing else: how it is split is anybody's guess, the sum is not."""
    x, theta = cp.Variable(2, nonneg=True), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) >= theta]), [theta])
    with pytest.warns(MaskedGradientWarning, match="LOOSE"):
        codes, gradient = _pulled(program, torch.tensor([[1.0], [2.0]]))
    assert codes == [Derivative.LOOSE] * 2
    assert float(gradient.abs().max()) == 0.0
    leaf = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    make_engine().solve(program, leaf).primal.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.ones_like(leaf))


def test_multipliers_that_are_not_unique_do_no_harm() -> None:
    """The same row twice: x = θ, whichever of both holds it."""
    x, theta = cp.Variable(), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(x), [x >= theta, 2 * x >= 2 * theta, x + 1 >= theta + 1]), [theta])
    codes, gradient = _pulled(program, torch.tensor([[1.0], [-3.0]]))
    assert all(code.ok for code in codes)
    torch.testing.assert_close(gradient, torch.ones_like(gradient))


def test_constraints_that_coincide_are_a_kink_where_one_of_them_moves() -> None:
    """x ≤ 1 and x ≤ θ at θ = 1: which of both holds x is anybody's guess, and its derivative with it."""
    x, theta = cp.Variable(), cp.Parameter()
    program = _one(cp.Problem(cp.Minimize(-x), [x <= 1, x <= theta]), [theta])
    with pytest.warns(MaskedGradientWarning, match="1 of 3 items"):
        codes, gradient = _pulled(program, torch.tensor([[0.5], [1.0], [2.0]]))
    assert [code.ok for code in codes] == [True, False, True]
    assert codes[1] == Derivative.KINK
    torch.testing.assert_close(gradient[:, 0], torch.tensor([1.0, 0.0, 0.0]).to(gradient))


def test_features_of_which_nothing_is_asked_make_no_kink() -> None:
    """x ≤ θ₁ and x ≤ θ₂ where both are one: along θ₃ there is a derivative all the same."""
    x, theta = cp.Variable(2), cp.Parameter(3)
    held = [x[0] <= theta[0], x[0] <= theta[1]]
    program = _one(cp.Problem(cp.Minimize(cp.sum_squares(x - theta[2]) - 9 * x[0]), held), [theta])
    for data, code in ((False, Derivative.KINK), (True, Derivative.FACE)):
        parts = [torch.ones(2, n, dtype=torch.float64).requires_grad_(n == 1 or not data) for n in (2, 1)]
        solution = make_engine().solve(program, torch.cat(parts, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MaskedGradientWarning)
            solution.variable(x).sum().backward()
        assert solution.derivatives == [code] * 2
    torch.testing.assert_close(parts[1].grad, torch.ones_like(parts[1]))


def test_features_that_move_together_make_no_kink() -> None:
    """x ≤ θ₁ and x ≤ θ₂ where both are the same number: both solutions say the same of it."""
    x, theta = cp.Variable(), cp.Parameter(2)
    program = _one(cp.Problem(cp.Minimize(-x), [x <= theta[0], x <= theta[1]]), [theta])
    leaf = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    solution = make_engine().solve(program, leaf.expand(-1, 2))
    solution.primal.sum().backward()
    assert all(code.ok for code in solution.derivatives)
    torch.testing.assert_close(leaf.grad, torch.ones_like(leaf))


def test_fixed_columns() -> None:
    """Both bounds of a column are active: it stands still, and the others move as if it were a number."""
    x, on, theta = cp.Variable(2), cp.Variable(boolean=True), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - theta) + on), [cp.sum(x) == 1 + on])
    program = _one(problem, [theta])
    leaf = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    solution = make_engine().solve(program, leaf, fixed=torch.tensor([[0.0], [1.0], [0.0], [1.0]]).double())
    solution.variable(x)[:, 0].sum().backward()
    assert all(code.ok for code in solution.derivatives)
    torch.testing.assert_close(leaf.grad, torch.tensor([[0.5, -0.5]]).double().expand(4, -1))


def test_a_large_gradient_of_another_item_hides_no_kink() -> None:
    """As above: only the first item is differentiated along θ₁, and the second, along θ₃, counts for ever so much."""
    x, theta = cp.Variable(2), cp.Parameter(3)
    held = [x[0] <= theta[0], x[0] <= theta[1]]
    program = _one(cp.Problem(cp.Minimize(cp.sum_squares(x - theta[2]) - 9 * x[0]), held), [theta])
    first, last = (torch.ones(n, 1, dtype=torch.float64, requires_grad=True) for n in (1, 2))
    given = torch.ones(2, 1, dtype=torch.float64)
    solution = make_engine().solve(program, torch.cat([torch.cat([first, given[:1]]), given, 0.5 * last], 1))
    with pytest.warns(MaskedGradientWarning):
        (solution.variable(x).sum(1) * torch.tensor([1.0, 1e9])).sum().backward()
    assert solution.derivatives[0] == Derivative.KINK
    assert first.grad is not None
    assert float(first.grad.abs().max()) == 0.0


def test_the_first_that_is_verified_is_taken() -> None:
    member = family("lp")
    values = member.program.values(member.theta(4))

    def adjoint(codes: list[Derivative], mark: float):  # type: ignore[no-untyped-def]
        def pull(program: ConeProgram, values: Values, found: Found, dx: Tensor, dz: Tensor | None = None) -> Pulled:
            asked.append(len(dx))
            x, z = torch.full_like(values.q, mark), torch.full_like(values.b, mark)
            return Pulled(x, z, x, z, torch.tensor([int(code) for code in codes]))

        return pull

    asked: list[int] = []
    first = adjoint([Derivative.FACE, Derivative.UNVERIFIED, Derivative.KINK, Derivative.FACE], 1.0)
    second = adjoint([Derivative.FACTORED, Derivative.LOOSE], 2.0)
    one = torch.ones(4, 1, dtype=torch.float64)
    nothing = torch.zeros_like(values.b)
    found = Found(torch.zeros_like(values.q), nothing, nothing, Units(one, one, one, one))
    engine = replace(make_engine(), gradient=SimpleNamespace(adjoints=lambda program, algebra: (first, second)))
    with pytest.warns(MaskedGradientWarning, match="1 of 4 items"):
        pulled = engine.pull(member.program, values, found, torch.ones_like(values.q), torch.ones(4, dtype=torch.bool))
    assert asked == [4, 2]
    assert [Derivative(c) for c in pulled.code.tolist()] == [
        Derivative.FACE,
        Derivative.FACTORED,
        Derivative.LOOSE,
        Derivative.FACE,
    ]
    assert pulled.g[:, 0].tolist() == [1.0, 2.0, 2.0, 1.0]
    _, dA, dq, db = gradients(member.program, pulled, found.units)
    assert float(dq[2].abs().max()) == float(db[2].abs().max()) == float(dA[2].abs().max()) == 0.0


@pytest.mark.parametrize("gradient", ["exact", "smoothed"])
@pytest.mark.parametrize("of", ["primal", "objective"])
def test_second_derivatives_are_refused(of: str, gradient: str) -> None:
    member = family("qp")
    theta = member.theta(3).requires_grad_()
    solution = make_engine(gradient=gradient).solve(member.program, theta)  # type: ignore[arg-type]
    (first,) = torch.autograd.grad(getattr(solution, of).square().sum(), theta, create_graph=True)
    with pytest.raises(DifferentiationError, match="differentiated once only"):
        first.sum().backward()


def test_every_code_has_advice() -> None:
    for code in Derivative:
        assert code.advice.endswith(".")
        assert str(code) == code.name
    assert [code.name for code in Derivative if code.ok] == ["FACE", "FACTORED", "PATH"]


@pytest.mark.parametrize("gradient", ["exact", "smoothed"])
@pytest.mark.parametrize("name", ["qp", "socp", "sdp"])
def test_asking_about_all_items_is_asking_about_each(name: str, gradient: str) -> None:
    """All items are pulled back from the solution itself, some from a copy: neither is changed by it."""
    member = family(name)
    theta = member.theta(4).requires_grad_()
    primal = make_engine(gradient=gradient).solve(member.program, theta).primal  # type: ignore[arg-type]
    weight = torch.randn(primal.shape, generator=torch.Generator().manual_seed(0), dtype=primal.dtype)

    def pull(items: list[int]) -> Tensor:
        return torch.autograd.grad((weight * primal)[items].sum(), theta, retain_graph=True)[0]

    whole, parts = pull([0, 1, 2, 3]), pull([0, 2]) + pull([1]) + pull([3])
    assert float(whole.abs().max()) > 0.0
    torch.testing.assert_close(whole, pull([0, 1, 2, 3]), rtol=0.0, atol=0.0)
    torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-12)
