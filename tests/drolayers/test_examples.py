"""The examples run, in a short form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["newsvendor", "portfolio"])
def test_example_runs(name: str) -> None:
    file = EXAMPLES / f"{name}.py"
    assert len(file.read_text().splitlines()) < 60
    command = [sys.executable, str(file), "--epochs", "1", "--points", "40"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert said.returncode == 0, said.stderr
    assert len(re.findall(r"epoch \d+: .* -?\d+\.\d+", said.stdout)) == 2, said.stdout
