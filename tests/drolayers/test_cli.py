from __future__ import annotations

import csv
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import drolayers as dro
from drolayers import tables
from drolayers.cli import _compare, _Own, _Table, app

ROOT = Path(__file__).parents[2]
ASSETS = """
import cvxpy as cp
import drolayers as dro

y = dro.Uncertain(5)
lots, free = cp.Variable(1, boolean=True, name="lots"), cp.Variable(4, nonneg=True, name="free")
holdings = cp.hstack([lots / 5, free])
problem = dro.DecisionProblem(-(y @ holdings), [cp.sum(holdings) == 1], dro.MomentSet.grouped(y, 1))
short = dro.Stage(epochs=1, batch_size=15)
learner = dro.DecisionFocusedLearner(problem, pretraining=short, training=short)
"""


def returns(path: Path, rows: int = 40) -> Path:
    """Contexts and returns that depend on them."""
    rng = np.random.default_rng(0)
    z = rng.normal(scale=0.2, size=(rows, 5))
    y = 0.1 * z + 0.01 * rng.normal(size=(rows, 5))
    names = ",".join([f"z{k + 1}" for k in range(5)] + [f"r{k + 1}" for k in range(5)])
    np.savetxt(path, np.hstack([z, y]), delimiter=",", header=names, comments="")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what was learnt of a portfolio."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "assets.py").write_text(ASSETS)
    result = CliRunner().invoke(
        app, ["run", str(folder / "assets.py"), str(returns(folder / "data.csv")), "--out", str(folder / "out"), "-q"]
    )
    assert result.exit_code == 0, result.output
    for word in ("weighted sample average", "prediction-focused", "decision-focused", "32 rows"):
        assert word in result.output
    return folder / "out"


def contexts(path: Path, rows: int = 3, header: str = "id,z1,z2,z3,z4,z5") -> Path:
    rng = np.random.default_rng(0)
    lines = [",".join([str(k), *(f"{v:.4f}" for v in rng.normal(scale=0.2, size=5))]) for k in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_run_saves_what_it_says(trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    assert [line.split()[0] for line in results["report"]][:3] == ["rows", "cost", "worst-case"]
    assert results["covariates"] == ["z1", "z2", "z3", "z4", "z5"]
    assert results["outcomes"] == ["r1", "r2", "r3", "r4", "r5"]
    assert [row["decided"] for row in results["rows"]] == [8, 8, 8]
    # Costs again, from the decisions that the saved model prints.
    lines = (trained.parent / "data.csv").read_text().splitlines()
    held = trained.parent / "held.csv"
    held.write_text("\n".join([lines[0], *lines[33:]]) + "\n")
    said = CliRunner().invoke(app, ["decide", str(trained), str(held)])
    decided = list(csv.DictReader(StringIO(said.stdout)))
    rows = list(csv.DictReader(StringIO(held.read_text())))
    costs = []
    for row, found in zip(rows, decided, strict=True):
        weights = [float(found["lots_1"]) / 5, *(float(found[f"free_{k}"]) for k in range(1, 5))]
        costs.append(-sum(w * float(row[f"r{k + 1}"]) for k, w in enumerate(weights)))
    assert results["rows"][-1]["method"] == "decision-focused"
    assert results["rows"][-1]["mean cost"] == pytest.approx(np.mean(costs), rel=1e-9)


@pytest.mark.parametrize("name", ["newsvendor", "portfolio"])
def test_example_files_are_problems(name: str, tmp_path: Path) -> None:
    file = ROOT / "examples" / "problems" / f"{name}.py"
    subprocess.run([sys.executable, str(file), "30", str(tmp_path / "data.csv")], check=True, timeout=100)
    own = _Own.read(file)
    covariates, outcomes = own.columns(tables.header(tmp_path / "data.csv"), "data.csv")
    assert len(outcomes) == own.problem.ambiguity.y.dim
    assert len(tables.read(tmp_path / "data.csv", [*covariates, *outcomes])) == 30


def test_decide_answers_every_row(trained: Path, tmp_path: Path) -> None:
    data = contexts(tmp_path / "data.csv", 4)
    printed = CliRunner().invoke(app, ["decide", str(trained), str(data)])
    assert printed.exit_code == 0, printed.output
    rows = list(csv.DictReader(StringIO(printed.stdout)))
    assert list(rows[0]) == ["lots_1", "free_1", "free_2", "free_3", "free_4", "status"]
    assert len(rows) == 4
    assert all(row["status"] == "OPTIMAL" for row in rows)
    bought = [sum(float(row[f"free_{k}"]) for k in range(1, 5)) + float(row["lots_1"]) / 5 for row in rows]
    np.testing.assert_allclose(bought, 1.0, atol=1e-6)

    target = tmp_path / "decisions.csv"
    written = CliRunner().invoke(app, ["decide", str(trained / "model.safetensors"), str(data), "-o", str(target)])
    assert written.exit_code == 0
    assert target.read_text() == printed.stdout
    piped = CliRunner().invoke(app, ["decide", str(trained), "-"], input=data.read_text())
    assert piped.stdout == printed.stdout


def sentence(result) -> str:
    """The one line on standard error of a failed command."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("drolayers: ")
    return lines[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,z1,z2,z3,z4,z6\n0,1,2,3,4,5\n", "lacks the columns ['z5']"),
        ("z1,z2,z3,z4,z5\n0.1,0.2,0.3,x,0.5\n", "Line 2"),
        ("z1,z2,z3,z4,z5\n0.1,0.2\n", "Line 2"),
        ("z1,z2,z3,z4,z5\n", "no rows"),
        ("", "empty"),
        ("z1,z2,z3,z4,z5\n0.1,0.2,0.3,nan,0.5\n", "NaN"),
        ("z1,z2,z3,z4,z5,z5\n1,2,3,4,5,6\n", "several columns called ['z5']"),
        ("z1,z2,z3,z4,z5\n1,2,3,4,5,6\n", "Line 2"),
        ("z1,z2,z3,z4,z5\n1,2,3,4,5\n1,2,3,4,5\n1,2,3,4,x\n", "Line 4"),
    ],
)
def test_bad_data_is_one_sentence(trained: Path, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    assert says in sentence(CliRunner().invoke(app, ["decide", str(trained), str(file)]))


def test_unreadable_files_are_one_sentence(trained: Path, tmp_path: Path) -> None:
    data = contexts(tmp_path / "data.csv")
    runner = CliRunner()
    assert "nothing" in sentence(runner.invoke(app, ["decide", str(trained), str(tmp_path / "nothing")]))
    assert "nothing" in sentence(runner.invoke(app, ["decide", str(tmp_path / "nothing"), str(data)]))
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    sentence(runner.invoke(app, ["decide", str(trained), str(tmp_path / "binary.csv")]))
    assert "cannot be read" in sentence(runner.invoke(app, ["decide", str(data), str(data)]))
    sentence(runner.invoke(app, ["decide", str(trained), str(data), "-o", str(tmp_path / "no" / "folder.csv")]))


def test_a_folder_that_cannot_be_written_is_one_sentence_before_any_work(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ["run", str(trained.parent / "assets.py"), str(trained.parent / "data.csv")]
    assert "file" in sentence(CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "file" / "out")]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "does not define problem"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        (ASSETS + "learner = 3", "learner in"),
        (ASSETS + "outcomes = 'r1'", "outcomes in"),
        (ASSETS + "outcomes = ['r1', 'r2']", "y has 5 entries"),
        (ASSETS + "covariates = ['z9']", "lacks the columns ['z9']"),
        ("import drolayers as dro\ndro.Uncertain(-1)", "own.py, line 2: "),
        ("x = 1\n\ny = x / 0", "own.py, line 3: ZeroDivisionError"),
        (ASSETS + "covariates = ['z1', 'r1']", "['r1'] are covariates and outcomes at once"),
    ],
)
def test_bad_problem_files_are_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "own.py").write_text(text)
    arguments = ["run", str(tmp_path / "own.py"), str(returns(tmp_path / "data.csv")), "--out", str(tmp_path / "out")]
    assert says in sentence(CliRunner().invoke(app, arguments))


def test_a_file_of_the_users_is_not_overwritten(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text("mine = 1")
    arguments = ["run", str(trained.parent / "assets.py"), str(trained.parent / "data.csv"), "--out", str(tmp_path)]
    assert "would be overwritten" in sentence(CliRunner().invoke(app, arguments))
    assert (tmp_path / "problem.py").read_text() == "mine = 1"


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    arguments = ["run", str(tmp_path / "own.py"), str(tmp_path / "data.csv")]
    assert "own.py is no file" in sentence(CliRunner().invoke(app, arguments))


def test_a_model_that_was_saved_in_python(tmp_path: Path) -> None:
    from tests.drolayers.learning.small import learner, sales, shop

    learner(shop(False).problem, training=None).fit(*sales()).save(tmp_path / "own")
    data = contexts(tmp_path / "data.csv")
    assert "load it in Python" in sentence(CliRunner().invoke(app, ["decide", str(tmp_path / "own"), str(data)]))


@pytest.mark.filterwarnings("error:.*trained anew")
def test_nothing_is_trained_twice(trained: Path, tmp_path: Path) -> None:
    """Neither by the second learner of a run, which went on in the folder of the first, nor when it is resumed."""
    out, own, data = tmp_path / "out", trained.parent / "assets.py", trained.parent / "data.csv"
    arguments = ["run", str(own), str(data), "--out", str(out), "-q"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.ckpt")}
    assert CliRunner().invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.ckpt")} == written
    # Without --resume all of it is.
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert all(path.stat().st_mtime_ns > before for path, before in written.items())


def test_resuming_something_else_is_one_sentence(trained: Path, tmp_path: Path) -> None:
    arguments = ["run", str(trained.parent / "assets.py"), str(returns(tmp_path / "other.csv", 50))]
    said = sentence(CliRunner().invoke(app, [*arguments, "--out", str(trained), "--resume", "-q"]))
    # In the words of the command, not of the library.
    assert "another folder as --out, or a run without --resume to begin again" in said


@pytest.mark.parametrize(
    "arguments", [["run", "knapsack"], ["run", "a.py", "b.csv", "--test-share", "-3"], ["decide"], ["fly"]]
)
def test_wrong_use_exits_with_two(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["decide", "--help"]])
def test_help_is_worth_reading(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert len(result.output.split()) > 30


def test_help_does_not_import_torch() -> None:
    code = "import sys, drolayers.cli; assert not {'torch', 'cvxpy', 'lightning'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rules_are_no_columns(tmp_path: Path) -> None:
    """Of a problem with adaptive decisions the columns are those of today's, and no average without a set is beside."""
    (tmp_path / "shop.py").write_text(
        ASSETS.split("y = ")[0]
        + """
y = dro.Uncertain(5, support=dro.support.Box(-2.0, 2.0))
stock, buy = cp.Variable(5, name="stock"), dro.Adaptive(5, to=y, nonneg=True)
rules = [dro.always(stock + buy >= y)]
problem = dro.DecisionProblem(cp.sum(stock) + 3 * cp.sum(buy), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
learner = dro.DecisionFocusedLearner(problem, pretraining=dro.Stage(epochs=1), training=None)
"""
    )
    data, out, asked = returns(tmp_path / "data.csv"), str(tmp_path / "out"), contexts(tmp_path / "asked.csv")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "shop.py"), str(data), "--out", out, "-q"])
    assert result.exit_code == 0, result.output
    assert "prediction-focused" in result.output
    assert "sample average" not in result.output
    result = CliRunner().invoke(app, ["decide", out, str(asked)])
    assert result.exit_code == 0, result.output
    header = next(csv.reader(StringIO(result.stdout)))
    assert header == [*(f"stock_{k}" for k in range(1, 6)), "status"]


def test_infinite_costs_are_counted_and_leave_no_mean() -> None:
    y, x, v = dro.Uncertain(1), cp.Variable(1, nonneg=True), cp.Variable(1, nonneg=True)
    cost = cp.sum(x) + dro.recourse(cp.Minimize(3 * cp.sum(v)), [v >= y - x, v <= 1])
    problem = dro.DecisionProblem(cost, [], dro.Divergence(y, 4))
    outcomes = torch.tensor([[1.0]] * 20 + [[1.5]] * 3 + [[9.0]]).double()
    data = _Table(torch.zeros(24, 1).double(), outcomes, None)
    (row,) = _compare(problem, {}, data, 20)
    assert (row["decided"], row["infinite"]) == (4, 1)
    assert row["mean cost"] is row["standard error"] is None
    (row,) = _compare(problem, {}, data[:23], 20)
    assert row["decided"] == 3
    assert "infinite" not in row
    assert row["mean cost"] == pytest.approx(2.5)
