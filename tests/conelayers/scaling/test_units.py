"""Units of cone programs: points go there and back, and programs in other units have the same hats and answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, Status, make_engine
from conelayers.engine.verdict import ACCEPT
from conelayers.program.program import AffineMap, Cones, Values, row_index
from conelayers.program.residuals import optimality, products
from conelayers.program.semidefinite import triangle
from conelayers.scaling.units import Units
from tests.helpers.programs import family, pairs

NAMES = sorted({name for _, name in pairs()})


def rescaled(program: ConeProgram, values: Values, rng: np.random.Generator, spread: float) -> tuple[Values, Units]:
    """The same programs with columns, rows (cone by cone), objective and right-hand side counted in other units.

    Constant matrices are balanced once, by themselves: for them only objective and right-hand side change, alike.
    """
    batch, varies = len(values.q), program.A_map.varies or program.P_map.varies

    def factors(count: int, spread: float = spread if varies else 0.0) -> Tensor:
        return torch.tensor(10.0 ** rng.uniform(-spread, spread, (batch, count)))

    cones, D = program.cones, factors(program.columns)
    E = torch.cat([factors(cones.zero + cones.nonneg), *(factors(1).expand(-1, size) for size in cones.soc)], 1)
    for order in cones.psd:
        row, column, _ = triangle(order)
        each = factors(order) ** 0.5
        E = torch.cat([E, each[:, row] * each[:, column]], 1)
    E = torch.cat([E, *(factors(1).expand(-1, 3) for _ in range(cones.exp + len(cones.power)))], 1)
    kappa = factors(1, spread)
    beta = factors(1) if varies else kappa
    row, P_row = row_index(program.A_indptr), row_index(program.P_indptr)
    P = values.P * D[:, P_row] * D[:, program.P_indices] * (beta / kappa)
    A = values.A * E[:, row] * D[:, program.A_indices]
    return Values(P, A, values.q * D / kappa, values.b * E / beta, 0.0 * values.constant), Units(D, E, kappa, beta)


@pytest.mark.parametrize("name", NAMES)
def test_points_go_there_and_back(name: str) -> None:
    member = family(name)
    values = member.program.values(member.theta(3)).detach()
    units, hats = Units.of(member.program, values)
    rng = np.random.default_rng(0)
    x, z = (torch.tensor(rng.normal(size=t.shape)) for t in (values.q, values.b))
    for there, back in zip(units.own(*units.hats(x, z, z)), (x, z, z), strict=True):
        torch.testing.assert_close(there, back)
    # Residuals of a point are the same, factor by factor: cᵀx is κβ ĉᵀx̂.
    hat = units.hats(x, z, z)[0]
    expected = (values.q * x).sum(1, keepdim=True)
    torch.testing.assert_close((hats.q * hat).sum(1, keepdim=True) * units.kappa * units.beta, expected)


@pytest.mark.parametrize("name", NAMES)
def test_cones_stay_themselves(name: str) -> None:
    """A factor for every row of the orthant, one for a second-order or exponential cone, two for powers."""
    cones, member = family(name).program.cones, family(name)
    units, _ = Units.of(member.program, member.program.values(member.theta(3)).detach())
    at = cones.zero + cones.nonneg
    for k, alpha in enumerate(reversed(cones.power)):
        u, v, w = units.E[:, units.E.shape[1] - 3 * (k + 1) :][:, :3].T
        torch.testing.assert_close(w, u**alpha * v ** (1.0 - alpha))
    for size in (*cones.soc, *(-order for order in cones.psd), *[3] * cones.exp):
        row, column, _ = triangle(max(-size, 0))
        part = units.E[:, at : at + max(size, len(row))]
        diagonal = part[:, row == column].sqrt() if size < 0 else part[:, :1]
        expected = diagonal[:, row] * diagonal[:, column] if size < 0 else diagonal.expand_as(part)
        torch.testing.assert_close(part, expected)
        at += part.shape[1]


@pytest.mark.parametrize("name", NAMES)
def test_hats_do_not_depend_on_units(name: str) -> None:
    """Counted in units that are 1e6 apart, numbers in hats are the same but for a fifth, where the balance stops."""
    member = family(name)
    program = member.program
    values = program.values(member.theta(4)).detach()
    other, _ = rescaled(program, values, np.random.default_rng(1), 3.0)
    _, one = Units.of(program, values)
    _, two = Units.of(program, other)
    seen = 0
    for part in ("A", "q", "b", "P"):
        if part == "P" and not bool(values.b.any()):
            # Without a right-hand side nothing gives the decision a unit.
            continue
        first, second = getattr(one, part), getattr(two, part)
        there = first.abs() > 0
        ratio = (second[there] / first[there]).abs().log10()
        seen += ratio.numel()
        assert bool((ratio.abs() < 0.1).all()), part
    assert seen


@pytest.mark.parametrize(("engine", "name"), pairs())
def test_answers_follow_units(engine: str, name: str) -> None:
    member = family(name)
    program, values = member.program, member.program.values(member.theta(4)).detach()
    solver = make_engine(engine)
    expected = solver.solve_values(program, values)
    other, by = rescaled(program, values, np.random.default_rng(2), 3.0)
    found = solver.solve_values(program, other)
    unit = (by.kappa * by.beta)[:, 0]
    for item in range(4):
        if found.statuses[item] == Status.OPTIMAL:
            value = float(found.objective[item] * unit[item])
            right = float((expected.objective - values.constant)[item])
            assert abs(value - right) <= 1e-6 * max(abs(right), 1e-5)
        else:
            assert found.statuses[item] in (Status.INACCURATE, Status.FAILED)
    assert bool((found.status == int(Status.OPTIMAL)).float().mean() >= 0.75)


def test_rounding_that_multipliers_see_is_no_optimum() -> None:
    """min t + 1e15 b, 4 b t >= w^2 and w = 1e3, as a cone in (b + t, b - t, w): b is lost beside t."""
    program = _product()
    values = Values(
        torch.zeros(1, 0).double(),
        program.A_map.constant[None],
        torch.tensor([[1e15, 1.0, 0.0]]).double(),
        torch.tensor([[1e3, 0.0, 0.0, 0.0]]).double(),
        torch.zeros(1).double(),
    )
    t = 0.5e3 * 1e15**0.5
    b = 0.25e6 / t
    x = torch.tensor([[3.0 * b, t, 1e3]]).double()
    s = torch.tensor([[0.0, b + t, b - t, 1e3]]).double()
    # Multipliers of the solution: with them an x that is three times too dear looks optimal but for rounding.
    ratio = 1e15**0.5
    z = torch.tensor([[-ratio, 0.5 * (1e15 + 1.0), 0.5 * (1e15 - 1.0), -ratio]]).double()
    assert float(optimality(program, values, x, z, s, ACCEPT)) > 1e-4


def _product() -> ConeProgram:
    """Columns b, t, w; w is given, and (b + t, b - t, w) lies in the second-order cone."""

    def constant(*numbers: float) -> AffineMap:
        none = torch.zeros(0, dtype=torch.int64)
        return AffineMap(torch.tensor(numbers, dtype=torch.float64), none, none, none.double())

    return ConeProgram(
        cones=Cones(zero=1, soc=(3,)),
        columns=3,
        A_indptr=torch.tensor([0, 1, 3, 5, 6]),
        A_indices=torch.tensor([2, 0, 1, 0, 1, 2]),
        P_indptr=torch.zeros(4, dtype=torch.int64),
        P_indices=torch.zeros(0, dtype=torch.int64),
        A_map=constant(1.0, -1.0, -1.0, -1.0, 1.0, -1.0),
        b_map=constant(0.0, 0.0, 0.0, 0.0),
        q_map=constant(0.0, 0.0, 0.0),
        P_map=constant(),
        constant_map=constant(0.0),
        variables=(),
        parameters=(),
    )


def test_boosts_keep_products() -> None:
    """(u + v, u - v, w) becomes (λu + v/λ, λu - v/λ, w): the cone, inner products and Ax + s = b are kept."""
    program = replace(_product(), b_map=replace(_product().b_map, constant=torch.ones(4).double()))
    numbers = torch.tensor([[1e15, 1.0, 0.0], [1.0, 1e8, 0.0]]).double()
    b = torch.tensor([[1e3, 1.0, 1.0, 0.0], [1e-4, 2.0, 2.0, 0.0]]).double()
    A = program.A_map.constant.expand(2, -1)
    values = Values(torch.zeros(2, 0).double(), A, numbers, b, torch.zeros(2).double())
    units, hats = Units.of(program, values)
    assert units.boost.rows.tolist() == [[1], [2]]
    assert float(units.boost.size.log().abs().min()) > 1.0
    x, s, z = (torch.tensor(np.random.default_rng(0).normal(size=(2, k))) for k in (3, 4, 4))

    def cone(s: Tensor) -> Tensor:
        return s[:, 1] ** 2 - s[:, 2] ** 2 - s[:, 3] ** 2

    x_hat, z_hat, s_hat = units.hats(x, z, s)
    unit = (units.kappa * units.beta)[:, 0]
    torch.testing.assert_close((s_hat * z_hat).sum(1) * unit, (s * z).sum(1))
    torch.testing.assert_close(cone(s_hat) * (units.beta / units.E[:, 1:2])[:, 0] ** 2, cone(s))
    _, Ax, _ = products(program, values, x, z)
    _, Ax_hat, _ = products(program, hats, x_hat, z_hat)
    torch.testing.assert_close(units.own(x_hat, z_hat, Ax_hat)[2], Ax)
    torch.testing.assert_close(units.own(x_hat, z_hat, hats.b)[2], b)
