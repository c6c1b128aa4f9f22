from __future__ import annotations

import csv
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import drolayers as dro
from drolayers.cli import app
from drolayers.problems import Newsvendor, Portfolio

QUICK = ["--points", "30", "--pretrain-epochs", "1", "--epochs", "1", "--batch-size", "15", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained portfolio, which is quicker than the newsvendor."""
    folder = tmp_path_factory.mktemp("cli") / "portfolio"
    result = CliRunner().invoke(
        app,
        ["run", "portfolio", "--out", str(folder), "--assets", "5", "--binaries", "1", "--test-points", "20", *QUICK],
    )
    assert result.exit_code == 0, result.output
    return folder


def contexts(path: Path, rows: int = 3, header: str = "id,z1,z2,z3,z4,z5") -> Path:
    rng = np.random.default_rng(0)
    lines = [",".join([str(k), *(f"{v:.4f}" for v in rng.normal(scale=0.2, size=5))]) for k in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_run_portfolio_saves_what_it_says(trained: Path) -> None:
    results = json.loads((trained / "results.json").read_text())
    assert [row["method"] for row in results["rows"]] == [
        "prediction-focused",
        "decision-focused",
        "equal weights",
        "Bayes-optimal (true means)",
    ]
    assert results["options"] == {"assets": 5, "binaries": 1, "group": 1}
    built = Portfolio(5, 1)
    model = dro.DecisionFocusedLearner.load(trained / "model.safetensors", built.problem)
    held = built.weights(model.decide(np.zeros((2, 5))))
    np.testing.assert_allclose(held.sum(1), 1.0, atol=1e-6)


def test_run_newsvendor_prints_a_table(tmp_path: Path) -> None:
    # Without decision-focused epochs: the comparison itself takes the time.
    quick = ["--points", "20", "--pretrain-epochs", "1", "--epochs", "0", "--quiet", "--set", "SOC-I"]
    result = CliRunner().invoke(app, ["run", "newsvendor", "--out", str(tmp_path / "out"), *quick])
    assert result.exit_code == 0, result.output
    for word in ("prediction-focused", "benchmark", "true optimum", "0.0000"):
        assert word in result.output
    assert "decision-focused" not in result.output
    rows = {row["method"]: row for row in json.loads((tmp_path / "out" / "results.json").read_text())["rows"]}
    assert rows["true optimum"]["expected cost"] == pytest.approx(Newsvendor("SOC-I").mean_cost(Newsvendor().optimal))
    assert rows["prediction-focused"]["gap %"] > 0


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
        ("", "lacks the columns"),
        ("z1,z2,z3,z4,z5\n0.1,0.2,0.3,nan,0.5\n", "NaN"),
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


def test_a_folder_that_cannot_be_written_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in sentence(CliRunner().invoke(app, ["run", "newsvendor", "--out", str(tmp_path / "file" / "out")]))


def test_a_model_without_a_built_in_problem(tmp_path: Path) -> None:
    from tests.learning.small import learner, sales, shop

    learner(shop(False).problem, epochs=0).fit(*sales()).save(tmp_path / "own")
    data = contexts(tmp_path / "data.csv")
    assert "built-in" in sentence(CliRunner().invoke(app, ["decide", str(tmp_path / "own"), str(data)]))


def test_resuming_something_else_is_one_sentence(trained: Path) -> None:
    other = ["run", "portfolio", "--out", str(trained), "--assets", "5", "--binaries", "1", "--seed", "5", "--resume"]
    assert "resume" in sentence(CliRunner().invoke(app, [*other, "--test-points", "20", *QUICK]))


@pytest.mark.parametrize(
    "arguments", [["run", "knapsack"], ["run", "newsvendor", "--points", "-3"], ["decide"], ["fly"]]
)
def test_wrong_use_exits_with_two(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["run", "newsvendor", "--help"], ["decide", "--help"]]
)
def test_help_is_worth_reading(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert len(result.output.split()) > 30


def test_help_does_not_import_torch() -> None:
    code = "import sys, drolayers.cli; assert not {'torch', 'cvxpy', 'lightning'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
