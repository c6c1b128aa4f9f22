"""The benchmark of Maros and Meszaros on three small programs that are made here; its tables on records that are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from benchmarks import maros, maros_one
from benchmarks.maros_one import QuadraticProgram, cone_form


def projection() -> tuple[QuadraticProgram, float]:
    """A point of the box nearest to (-1, 2, 0.5); its squared distance, halved, is 1."""
    identity, target = sp.csc_array(np.eye(3)), np.array([-1.0, 2.0, 0.5])
    return QuadraticProgram("box", identity, -target, 0.5 * target @ target, identity, np.zeros(3), np.ones(3)), 1.0


def linear() -> tuple[QuadraticProgram, float]:
    """Minimise x₁ + 2x₂ on x₁ + x₂ = 1, x >= 0; one row has no bound."""
    A = sp.csc_array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    lower, upper = np.array([1.0, 0.0, 0.0, -np.inf]), np.array([1.0, np.inf, np.inf, np.inf])
    return QuadraticProgram("lp", sp.csc_array((2, 2)), np.array([1.0, 2.0]), 0.0, A, lower, upper), 1.0


def equality() -> tuple[QuadraticProgram, float]:
    """Minimise ½‖x‖² on x₁ + x₂ + x₃ = 3, stated twice: the multipliers are not unique."""
    A = sp.csc_array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    bound = np.array([3.0, 6.0])
    return QuadraticProgram("rows", sp.csc_array(np.eye(3)), np.zeros(3), 0.0, A, bound, bound), 1.5


@pytest.mark.parametrize("make", [projection, linear, equality])
def test_solves_measures_and_differentiates(make):
    problem, optimum = make()
    form = cone_form(problem)
    for solve in (maros_one.solve_with_layer, maros_one.solve_with_clarabel):
        answer = solve(problem, form)
        assert answer["value"] == pytest.approx(optimum, abs=1e-7)
        assert max(answer[name] for name in ("primal", "dual", "gap")) < 1e-7
        assert abs(answer["value"] - optimum) <= answer["support"] + 1e-9
    gradients = maros_one.check_gradients(problem, form)
    assert not any(counts.get("wrong") for counts in gradients["outcomes"].values())
    assert gradients["outcomes"]["value"]["right"] > 0


def test_measurement_sees_errors():
    problem, _ = projection()
    form = cone_form(problem)
    # At x = (0, 1, 0.5) the upper bound of x₂ has the multiplier 1, and the lower one of x₁ too.
    x, z = np.array([0.0, 1.0, 0.5]), np.array([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    exact = maros_one.measure(problem, form, x, z)
    assert exact["value"] == 1.0
    assert max(exact[name] for name in ("primal", "dual", "gap", "support")) == 0.0
    assert maros_one.measure(problem, form, x + np.array([0.0, 0.1, 0.0]), z)["primal"] > 0.01
    assert maros_one.measure(problem, form, x, -z)["dual"] > 0.1
    assert maros_one.measure(problem, form, x, 0 * z)["gap"] > 0.1


def test_reads_files(tmp_path):
    triangle = sp.csc_matrix(np.array([[2, 1], [0, 2]], dtype=np.int16))
    fields = {
        "P": triangle,
        "A": sp.csc_matrix(np.eye(2)),
        "q": [[1], [1]],
        "r": 7,
        "l": [[0], [-1e20]],
        "u": [[1e20], [1]],
    }
    scipy.io.savemat(tmp_path / "SMALL.mat", fields)
    problem = maros_one.read_problem(tmp_path / "SMALL.mat")
    np.testing.assert_array_equal(problem.P.toarray(), [[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_array_equal(problem.lower, [0.0, -np.inf])
    np.testing.assert_array_equal(problem.upper, [np.inf, 1.0])
    assert problem.constant == 7.0
    assert cone_form(problem).cones == {"zero": 0, "nonneg": 2}


def test_differences_tell_kinks_from_slopes():
    slope, kink = (np.full((2, 3), 2.0), np.array([[2.0] * 3, [-2.0] * 3]))
    assert maros_one.stable_difference(slope, 0.0) == 2.0
    assert maros_one.stable_difference(kink, 0.0) is None
    assert maros_one.stable_difference(np.full((2, 3), np.nan), 0.0) is None
    differences = maros_one.Differences(np.stack([slope, slope], axis=2), 0.0)
    outcomes = [entry["outcome"] for entry in maros_one.compare(np.array([2.0, 3.0]), differences, masked=False)]
    assert outcomes == ["right", "wrong"]


def record(status: str, value: float, clarabel: float = 10.0, constant: float = 0.0) -> dict:
    return {
        "optimum": 10.0,
        "constant": constant,
        "ours": {"status": status, "value": value},
        "clarabel": {"status": "Solved", "value": clarabel},
    }


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (record("OPTIMAL", 10.00001), "right"),
        (record("OPTIMAL", 10.0001), "WRONG"),
        (record("INACCURATE", 10.0001), "reported"),
        (record("INACCURATE", 10.1), "WRONG"),
        (record("INFEASIBLE", np.nan), "WRONG"),
        (record("FAILED", np.nan), "FAILED"),
        ({"optimum": 10.0, "constant": 0.0}, "FAILED"),
        (record("OPTIMAL", 11.0, clarabel=11.0), "disputed"),
        # The layer solves the problem without the constant, of which OPTIMAL promises a share.
        (record("OPTIMAL", 10.0001, constant=10_000), "reported"),
        # 2525.41 may stand for 2525.4149: the published optimum is right to no more.
        (record("OPTIMAL", 10.004, clarabel=10.004, constant=2525.41), "right"),
        (record("OPTIMAL", 10.004, clarabel=10.0, constant=2525.41), "WRONG"),
    ],
)
def test_outcomes_follow_what_statuses_promise(case, outcome):
    assert maros.judge(case) == outcome


def test_published_optima_are_read():
    optima = maros.read_optima()
    assert len(optima) == 138
    assert optima["HS21"] == -99.96


def test_a_process_reports_what_it_solved():
    script = Path(maros_one.__file__)
    run = subprocess.run([sys.executable, script, "--solver", "clarabel"], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["clarabel"]["value"] == pytest.approx(-1.5, abs=1e-8)
