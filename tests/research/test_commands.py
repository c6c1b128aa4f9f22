"""The commands of the workshop that have no test elsewhere, each once and small."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

from research import demo
from research.__main__ import app


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "POINTS", 40)
    monkeypatch.setattr(demo, "GRID", demo.GRID[::100])
    with mpl.rc_context():
        said = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert said.exit_code == 0, said.output
    page = (tmp_path / "index.html").read_text()
    assert all(name in said.stdout and name in page for name in demo.COLOURS)
    assert page.count("data:image/png;base64,") == 3


def test_bench() -> None:
    arguments = ["bench", "--assets", "5", "--assets", "10", "--group", "1", "--steps", "1"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "Groups of 1: time grows with n^" in said.stdout
    wrong = CliRunner().invoke(app, ["bench", "--assets", "10", "--group", "3"])
    assert wrong.exit_code == 1
    assert "10 assets cannot be put into groups of 3: choose a divisor." in wrong.stderr


def test_prove(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["prove", "rsome", "--quick", "--only", "newsvendor", "--out", str(tmp_path)])
    assert said.exit_code == 0, said.output
    # RSOME's page says -184.637334.
    assert "| -184.6 (1) |" in said.stdout
    assert (tmp_path / "table.md").read_text().strip() in said.stdout
    wrong = CliRunner().invoke(app, ["prove", "nothing", "--out", str(tmp_path)])
    assert wrong.exit_code == 1
    assert "There is no benchmark 'nothing'" in wrong.stderr
