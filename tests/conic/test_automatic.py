"""Which solver the default one hands a program to, and what it says about it."""

from __future__ import annotations

import pytest
import torch

import drolayers as dro
from drolayers.conic.registry import make_engine
from drolayers.conic.solvers import automatic
from drolayers.conic.solvers.automatic import Automatic, general_solver
from drolayers.conic.solvers.clarabel import Clarabel
from drolayers.conic.solvers.interior import Interior
from drolayers.conic.solvers.moreau import Moreau
from drolayers.errors import ModelError
from drolayers.status import Status
from research.problems import Newsvendor, Portfolio
from tests.conic.families import family


@pytest.mark.parametrize("name", ["lp", "qp", "qp_weights", "socp", "portfolio", "flat"])
def test_self_dual_cones_are_ours(name: str) -> None:
    solver = Automatic()
    assert solver.choice(family(name).program) is solver.own
    assert "our own method" in solver.why(family(name).program)


@pytest.mark.parametrize(("name", "kind"), [("entropy", "exp"), ("power", "power"), ("every_cone", "exp and power")])
def test_other_cones_go_to_the_general_solver(name: str, kind: str) -> None:
    solver = Automatic()
    assert solver.choice(family(name).program) is solver.general
    assert f"since {kind} cones" in solver.why(family(name).program)


def test_the_paper_s_programs_are_ours() -> None:
    for problem in (Newsvendor("SOC-III").problem, Portfolio(50, 10, 1).problem, Portfolio(50, 10, 5).problem):
        assert isinstance(Automatic().choice(problem.program), Interior)


def test_the_first_installed_general_solver_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "find_spec", lambda module: object())
    assert isinstance(general_solver(), Moreau)
    monkeypatch.setattr(automatic, "find_spec", lambda module: None)
    assert isinstance(general_solver(), Clarabel)


@pytest.mark.parametrize("name", ["entropy", "power", "every_cone"])
def test_without_moreau_other_cones_are_solved_and_differentiated_all_the_same(name: str) -> None:
    """As on Windows and Intel Macs."""
    member = family(name)
    found = []
    for general in (Clarabel(), Moreau()):
        theta = member.theta(3, seed=2).requires_grad_()
        solution = make_engine(Automatic(general=general)).solve(member.program, theta)
        assert solution.statuses == [Status.OPTIMAL] * 3
        slot = member.program.variables[0]
        solution.primal[:, slot.offset : slot.offset + slot.size].sum().backward()
        found.append(theta.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("general", [Moreau(), Clarabel()])
def test_a_tolerance_is_passed_on(general: Moreau | Clarabel) -> None:
    found = Automatic(general=general).with_tolerance(1e-5)
    assert found.own.tolerance == found.general.tolerance == 1e-5
    assert type(found.general) is type(general)
    assert Interior().tolerance != 1e-5


def test_a_layer_s_engine_says_what_it_chose() -> None:
    layer = dro.DROLayer(Newsvendor("SOC-III").problem)
    assert layer.engine.explain() == (
        "Solved by batched, since all cones (nonneg, soc) are those of our own method; "
        "differentiated exactly, on the active face."
    )
    layer.gradient = dro.Smoothed(1e-2)
    assert "on the central path at level 0.01" in layer.engine.explain()
    assert "moreau, as asked for" in dro.DROLayer(Newsvendor("SOC-I").problem, engine="moreau").engine.explain()
    with pytest.raises(ModelError, match="needs a program"):
        make_engine().explain()
