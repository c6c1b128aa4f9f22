"""Runs the tutorial as it is printed: `python docs/run.py` says whether its code still prints what the page shows.

The site runs it when it is built, unless page and library are those of the last run. The other pages are run by the
tests (tests/test_docs.py), with the same rules.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "quickstart.md"
STAMP = ROOT / "docs" / "assets" / "figures" / "tutorial.sha256"
BLOCK = re.compile(r"^```(python|text)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
TOLERANCE = 0.05
"""Trainings differ a little from machine to machine."""


def script(text: str) -> tuple[str, str]:
    """The Python of a page as one script, and all that the page says it prints."""
    code, shown, printing = [], [], False
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            code.append(block[2])
            printing = "print(" in block[2]
        elif printing:
            shown.append(block[2])
            printing = False
    return "\n".join(code), "".join(shown)


def same(said: str, shown: str) -> bool:
    """Words and whole numbers are equal, other numbers nearly so."""
    words = [re.sub(r"\s+", "", NUMBER.sub("#", text)) for text in (said, shown)]
    found, wanted = ([float(number) for number in NUMBER.findall(text)] for text in (said, shown))
    return words[0] == words[1] and all(
        abs(a - b) <= max(0.02, TOLERANCE * abs(b)) for a, b in zip(found, wanted, strict=True)
    )


def fingerprint() -> str:
    """Of the page and of everything that it runs."""
    digest = hashlib.sha256(TUTORIAL.read_bytes())
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(page: Path = TUTORIAL) -> None:
    """Type the page into an empty folder; raises where it fails or prints something else."""
    code, shown = script(page.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", code]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{page.name} does not run:\n{ended.stderr[-2000:]}")
    if not same(ended.stdout, shown):
        raise RuntimeError(f"{page.name} prints\n{ended.stdout}\nand shows\n{shown}")


def run_if_changed() -> None:
    """Run the tutorial unless nothing has changed since it last ran."""
    if "PYTEST_CURRENT_TEST" in os.environ:
        # The tests run every page by themselves; once is enough.
        return
    current = fingerprint()
    if STAMP.exists() and STAMP.read_text("utf-8") == current:
        return
    run()
    STAMP.parent.mkdir(parents=True, exist_ok=True)
    STAMP.write_text(current, encoding="utf-8")


if __name__ == "__main__":
    run()
    print(f"{TUTORIAL.name} runs and prints what it shows.")
