"""Projections in other units: what is relative stays so, and distances are told in the units of the data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import Status
from tests.drolayers.projection.families import ALL, DIM, bounds, make, needs, nominal, outputs

SIZES = [1e-6, 1e6]
FIXED = ("squared, mu given", "absolute, all given")
"""Families that hold a constant with a unit."""
DIRECTIONS = {
    "linear": ("0.mu",),
    "linear, negative": ("0.mu",),
    "absolute": ("0.mu",),
    "third power": ("0.mu",),
    "positive square": ("0.mu",),
    "maximum": ("0.1.mu",),
}
SQUARES = {"l1 and squared": ("1.sigma",), "l2 and squared": ("1.sigma",)}
DEGREES = {"third power": 3.0, "second power, mu given": 2.0, "positive square": 2.0}


def units(family: str, ambiguity: dro.MomentSet, size: float) -> Tensor:
    """By how much every entry of θ grows with the outcomes."""
    whole = DEGREES.get(family, 2.0 if family.startswith("squared") else 1.0)
    parts = []
    for name, shape in ambiguity.parameters.items():
        degree = 1.0
        if name in DIRECTIONS.get(family, ()) or name.endswith("A"):
            degree = 0.0
        elif name.endswith("sigma"):
            degree = 2.0 if name in SQUARES.get(family, ()) else whole
        parts.append(torch.full((int(np.prod(shape)),), size**degree, dtype=torch.float64))
    return torch.cat(parts)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", [family for family in ALL if family not in FIXED])
def test_a_relative_margin_is_relative(family: str, size: float) -> None:
    """With weights that undo the units, scaling the data scales the answer; the margin is a share of what is needed."""
    ambiguity = make(family)
    theta, (y, omega) = outputs(4, ambiguity.size, 2), nominal(4, 5, 1)
    u = units(family, ambiguity, size)
    found = dro.Projection(ambiguity, margin=0.05)(theta, (y, omega))
    layer = dro.Projection(ambiguity, (u**-2).numpy(), margin=0.05)
    scaled = layer(theta * u, (size * y, omega))
    assert layer.last is not None
    assert bool(layer.last.ok.all()), layer.last.sentences
    # A minimiser by a cone program is as accurate as the root of what its minimum is.
    torch.testing.assert_close(scaled / u, found, rtol=1e-4, atol=1e-4)
    need = needs(ambiguity, scaled, (size * y, omega))
    assert bool((need <= bounds(ambiguity, scaled) + 1e-9 * need.abs() + 1e-15 * size).all())


@pytest.mark.parametrize("size", [1e-8, *SIZES, 1e8])
@pytest.mark.parametrize("family", ["squared", "l1", "l2", "third power"])
def test_projected_sets_are_not_empty_in_any_unit(family: str, size: float) -> None:
    """Raising the bounds alone: whatever the size, the sets have room, and the problems on them a solution."""
    ambiguity = make(family)
    theta, (y, omega) = outputs(4, ambiguity.size, 2), nominal(4, 5, 1)
    projected = dro.Projection(ambiguity, margin=1e-3, method="clip")(
        theta * units(family, ambiguity, size), (size * y, omega)
    )
    x = cp.Variable(DIM)
    problem = dro.DecisionProblem(-ambiguity.y @ x, [x >= 0, cp.sum(x) == 1], ambiguity)
    at_one = dro.Projection(ambiguity, margin=1e-3, method="clip")(theta, (y, omega))
    torch.testing.assert_close(projected / units(family, ambiguity, size), at_one, rtol=1e-9, atol=1e-9)
    solution, expected = problem.solve(projected), problem.solve(at_one)
    assert solution.statuses == expected.statuses
    ok = expected.ok
    torch.testing.assert_close(solution.objective[ok] / size, expected.objective[ok], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1.0, 1e4, 1e8])
def test_atoms_outside_the_support_are_remarked_upon_in_any_unit(size: float) -> None:
    y = dro.Uncertain(2, dro.support.Box(0.0, size))
    layer = dro.Projection(dro.MomentSet(y, [dro.moments.SquaredNorm()]), method="clip")
    atoms = torch.tensor([[[0.2, 0.3], [0.9, 1.0]], [[0.2, 0.3], [0.9, 1.001]]], dtype=torch.float64)
    report = layer.status(torch.ones(2, 3, dtype=torch.float64), (size * atoms, torch.full((2, 2), 0.5).double()))
    assert [Status(int(s)) for s in report.status] == [Status.OPTIMAL, Status.INFEASIBLE]


@pytest.mark.parametrize("size", [*SIZES, 1e3])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_radii_in_other_units(norm: float, order: int, size: float) -> None:
    """The distance to a half-plane, in closed form, and to a disc, by a program in units of one."""
    atoms, weights = np.array([[0.2, 0.1], [1.5, 1.4], [3.0, -1.0]]), np.array([0.2, 0.5, 0.3])
    plane = np.maximum(atoms.sum(1) - 2.0, 0.0) / {1: 1.0, 2: np.sqrt(2.0), np.inf: 2.0}[norm]
    y = cp.Variable(2)
    disc = [cp.Problem(cp.Minimize(cp.norm(y - a, norm)), [cp.norm(y) <= 1]).solve(cp.CLARABEL) for a in atoms]
    for distances, support in (
        (plane, dro.support.Polyhedron([[1.0, 1.0]], [2.0 * size])),
        (np.array(disc), dro.support.Ellipsoid([0.0, 0.0], size * np.eye(2))),
    ):
        ball = dro.Wasserstein(dro.Uncertain(2, support), 3, norm, order)
        nominal = torch.as_tensor(size * atoms)[None], torch.as_tensor(weights)[None]
        found = dro.Projection(ball, margin=0.05)(torch.zeros(1, 1).double(), nominal)
        assert float(found) / size == pytest.approx(1.05 * (weights @ distances**order) ** (1 / order), rel=1e-6)
