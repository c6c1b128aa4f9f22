"""The synthetic portfolio of Yeh et al. by its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.experiments.runner import collect
from research.experiments.task import Task
from research.problems import mixture
from research.proving import calibrated, portfolio
from research.proving.calibrated import ALPHAS, PLAIN
from research.proving.table import TABLE, prove


def test_every_method_has_a_task_of_its_own() -> None:
    tasks = portfolio.tasks(3)
    assert len({task.id for task in tasks}) == len(tasks) == 3 * (2 + len(PLAIN) + 4 * len(ALPHAS))
    assert {float(t.columns["alpha"]) for t in portfolio.tasks(1, quick=True) if "alpha" in t.columns} == {0.1}


def test_the_command_keeps_its_promise_and_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Coverage on 1,000 test points of a set calibrated on 400: 0.9 within four deviations of both draws."""
    only = ("true mean", "weighted sample average", "fitted ellipsoid")
    assert prove("portfolio", tmp_path, None, 1, True, only, 1) == []
    found = {(str(r["method"]), str(r["metric"])): float(r["value"]) for r in collect(tmp_path)}
    assert abs(found["fitted ellipsoid", "coverage"] - 0.9) < 4 * (0.09 / 1000 + 0.09 / 400) ** 0.5
    assert found["true mean", "loss"] < found["fitted ellipsoid", "loss"] < 0.0
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert "arXiv:2409.20534" in text
    assert "| E2E ellipse | -1.456 ± 0.122 |" in text
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "tasks").iterdir()}
    assert prove("portfolio", tmp_path, None, 1, True, only, 1) == []
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "tasks").iterdir()}
    # What was fitted serves the other levels.
    assert [path.name for path in (tmp_path / "fitted").iterdir()] == ["ellipsoid-0.fit"]
    split, mean, deviation = mixture.returns(0)
    task = Task("portfolio", "published", "fitted ellipsoid", (("alpha", 0.1),), 0)
    build = lambda ambiguity: mixture.investing(mean, deviation, ambiguity)  # noqa: E731
    for store in (tmp_path / "fitted", tmp_path / "anew"):
        again = calibrated.run(task, build, split, store).rows
        assert [r["value"] for r in again] == [
            pytest.approx(found["fitted ellipsoid", r["metric"]], rel=1e-9) for r in again
        ]
    capsys.readouterr()
