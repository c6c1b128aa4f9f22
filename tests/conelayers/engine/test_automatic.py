"""Which solver the default one hands a program to, and what it says about it."""

from __future__ import annotations

from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from conelayers import Status, make_engine
from conelayers.engine.solvers import automatic
from conelayers.engine.solvers.automatic import Automatic, general_solver
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.interior import Interior
from conelayers.engine.solvers.moreau import Moreau
from tests.conelayers.derivative.test_gradients import assert_gradients
from tests.helpers.programs import ENGINES, family


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


def test_the_first_installed_general_solver_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "find_spec", lambda module: object())
    assert isinstance(general_solver(), Moreau)
    monkeypatch.setattr(automatic, "find_spec", lambda module: None)
    assert isinstance(general_solver(), Clarabel)


@pytest.mark.parametrize("name", ["entropy", "power", "every_cone"])
def test_without_moreau_other_cones_are_solved_and_differentiated_all_the_same(name: str) -> None:
    """As on Windows and Intel Macs."""
    engine, member = make_engine(Automatic(general=Clarabel())), family(name)
    assert engine.solve(member.program, member.theta(3, seed=2)).statuses == [Status.OPTIMAL] * 3
    assert_gradients(engine, name)


def test_moreau_is_there_wherever_it_was_asked_for() -> None:
    """Its tests are skipped without it: where it has no wheel, or where it was taken out of what is required."""
    needs = [Requirement(need) for need in requires("conelayers") or ()]
    asked = [need for need in needs if need.name == "moreau" and (need.marker is None or need.marker.evaluate())]
    assert "moreau" in ENGINES or not asked


@pytest.mark.parametrize("general", [Moreau(), Clarabel()])
def test_a_tolerance_is_passed_on(general: Moreau | Clarabel) -> None:
    found = Automatic(general=general).with_tolerance(1e-5)
    assert found.own.tolerance == found.general.tolerance == 1e-5
    assert type(found.general) is type(general)
    assert Interior().tolerance != 1e-5
