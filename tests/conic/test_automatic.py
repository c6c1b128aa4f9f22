"""Which back end the default one hands a program to."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from drolayers.conic.compile import compile_program
from drolayers.conic.engine import Engine
from drolayers.conic.program import ConeProgram
from drolayers.conic.solvers import automatic
from drolayers.conic.solvers import interior as gpu
from drolayers.conic.solvers.automatic import Automatic, general_backend
from drolayers.conic.solvers.contract import Exact
from drolayers.conic.solvers.diffcp import Diffcp
from drolayers.conic.solvers.interior import Batched
from drolayers.conic.solvers.moreau import Moreau
from drolayers.problems import Newsvendor, Portfolio
from drolayers.status import Status
from tests.conic.families import family

CPU = torch.device("cpu")


def _without(monkeypatch: pytest.MonkeyPatch, place: object, *missing: str) -> None:
    """As if some packages were not installed."""
    real = place.find_spec
    monkeypatch.setattr(place, "find_spec", lambda module: None if module in missing else real(module))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Automatic:
    """A default back end with both choices, wherever the tests run."""
    monkeypatch.setattr(gpu, "find_spec", lambda module: object())
    return Automatic(quick=True, general=Diffcp())


def _dense(columns: int) -> ConeProgram:
    """A program whose columns all meet in every row."""
    x, c = cp.Variable(columns), cp.Parameter(columns)
    G = np.random.default_rng(0).uniform(0.5, 1.0, size=(2, columns))
    return compile_program(cp.Problem(cp.Minimize(c @ x), [G @ x <= 1, cp.SOC(2.0, x)]), [c])


@pytest.mark.parametrize("name", ["entropy", "power", "every_cone"])
def test_other_cones_go_to_the_general_back_end(both: Automatic, name: str) -> None:
    assert both.choice(family(name).program, CPU) is both.general


@pytest.mark.parametrize("name", ["lp", "socp"])
def test_unless_quick_the_cpu_goes_to_the_general_back_end(name: str) -> None:
    backend = Automatic(general=Diffcp())
    assert backend.choice(family(name).program, CPU) is backend.general


@pytest.mark.parametrize("name", ["lp", "qp", "socp", "portfolio"])
def test_self_dual_cones_stay(both: Automatic, name: str) -> None:
    assert both.choice(family(name).program, CPU) is both.batched


def test_the_paper_s_programs_stay(both: Automatic) -> None:
    for problem in (Newsvendor("SOC-III").problem, Portfolio(50, 10, 1).problem, Portfolio(50, 10, 5).problem):
        assert both.choice(problem.program, CPU) is both.batched


def test_fill_decides(both: Automatic) -> None:
    """A dense system has n² entries, and n + m rows and columns: above some n it goes to the general back end."""
    small, large = _dense(40), _dense(300)
    for program, filled in ((small, False), (large, True)):
        length = both.batched.plan(program, CPU).arrow.length
        assert (length > automatic.FILL * (program.rows + program.columns)) == filled
    assert both.choice(small, CPU) is both.batched
    assert both.choice(large, CPU) is both.general


def test_without_numba_the_cpu_goes_to_the_general_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, gpu, "numba")
    backend = Automatic(quick=True, general=Diffcp())
    assert not backend.batched.compiled
    assert backend.choice(family("lp").program, CPU) is backend.general


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_without_numba_a_gpu_keeps_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, gpu, "numba")
    backend = Automatic(general=Diffcp())
    assert backend.choice(family("lp").program, torch.device("cuda")) is backend.batched


def test_without_a_general_back_end_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, gpu, "numba")
    backend = Automatic(general=None)
    assert backend.choice(_dense(300), CPU) is backend.batched
    assert backend.capabilities == backend.batched.capabilities
    assert not Engine(backend).supports(family("entropy").program)


def test_the_first_installed_general_back_end_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "find_spec", lambda module: object())
    assert isinstance(general_backend(), Moreau)
    monkeypatch.setattr(automatic, "find_spec", lambda module: object() if module == "diffcp" else None)
    assert isinstance(general_backend(), Diffcp)
    monkeypatch.setattr(automatic, "find_spec", lambda module: None)
    assert general_backend() is None


def test_it_can_what_either_can(both: Automatic) -> None:
    able, own, other = both.capabilities, both.batched.capabilities, both.general.capabilities
    assert able.cones == own.cones | other.cones
    assert able.smoothed == own.smoothed | other.smoothed
    assert able.quadratic


@pytest.mark.parametrize("general", [Moreau(), Diffcp(), None])
def test_a_tolerance_is_passed_on(general: Moreau | Diffcp | None) -> None:
    found = Automatic(quick=True, general=general).with_tolerance(1e-5)
    assert isinstance(found, Automatic)
    assert found.quick
    assert found.batched.tolerance == 1e-5
    if general is None:
        assert found.general is None
    else:
        assert type(found.general) is type(general)
        assert found.general.tolerance == 1e-5
    assert Batched().tolerance != 1e-5


@pytest.mark.parametrize("quick", [False, True])
def test_it_gives_what_its_choice_gives(quick: bool) -> None:
    member, backend = family("socp"), Automatic(quick=quick)
    values = member.program.values(member.theta(4, seed=1))
    chosen = backend.choice(member.program, CPU)
    found, expected = (b.solve(member.program, values, Exact(), None) for b in (backend, chosen))
    assert found.verdict.tolist() == expected.verdict.tolist() == [int(Status.OPTIMAL)] * 4
    torch.testing.assert_close(found.x, expected.x)
    dx = torch.ones_like(values.q)
    for one, other in zip(found.pullback(dx), expected.pullback(dx), strict=True):
        torch.testing.assert_close(one, other)
