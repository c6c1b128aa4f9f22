"""Runs pages as they are printed: `python docs/run.py [page ...]` says whether their code still prints what they show.

The site runs the tutorial when it is built, unless page and library are those of the last run; the tests
(tests/drolayers/test_docs.py) run every page, and tests/drolayers/test_notebooks.py the notebooks. All compare by
`assert_same`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "quickstart.md"
STAMP = ROOT / "docs" / "assets" / "figures" / "tutorial.sha256"
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")


def run_page(text: str, filename: str) -> int:
    """Execute the Python blocks of a page; the text block after one shows what it prints, and nothing else."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    said, count, before = "", 0, ""
    for block in BLOCK.finditer(text):
        kind, line = block[1], text.count("\n", 0, block.start(2))
        if kind == "text" and before == "python":
            assert_same(said, block[2], f"{filename}:{line}")
            said = ""
        assert not said, f"{filename}:{line} comes before what was printed is shown:\n{said}"
        if kind == "python":
            with redirect_stdout(StringIO()) as output:
                exec(compile("\n" * line + block[2], filename, "exec"), namespace)
            said, count = output.getvalue(), count + 1
        before = kind
    assert not said, f"{filename} does not show what it prints last:\n{said}"
    return count


def assert_same(said: str, shown: str, where: str) -> None:
    """Words and whole numbers are equal; other numbers to one of their last digit, or to 1 %.

    Trainings differ from machine to machine by some 0.3 %, so what a page tells apart must differ by more than this.
    """
    shapes = [NUMBER.sub("#", re.sub(r"\s+", " ", text)).replace("# ]", "#]").strip() for text in (said, shown)]
    alike = shapes[0] == shapes[1]
    for found, wanted in zip(NUMBER.findall(said), NUMBER.findall(shown), strict=alike):
        digit = 10.0 ** -len(wanted.partition("e")[0].partition(".")[2])
        alike = alike and abs(float(found) - float(wanted)) <= max(0.01 * abs(float(wanted)), 1.01 * digit)
    assert alike, f"{where} prints\n{said}\nand shows\n{shown}"


def fingerprint() -> str:
    """Of the page and of everything that it runs."""
    digest = hashlib.sha256(TUTORIAL.read_bytes())
    for path in (Path(__file__), *sorted((ROOT / "packages").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run_if_changed() -> None:
    """Run the tutorial in a process of its own, unless nothing has changed since it last ran; raise where it fails."""
    if "PYTEST_CURRENT_TEST" in os.environ:
        # The tests run every page by themselves; once is enough.
        return
    current = fingerprint()
    if STAMP.exists() and STAMP.read_text("utf-8") == current:
        return
    ended = subprocess.run([sys.executable, __file__, str(TUTORIAL)], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{TUTORIAL.name} does not do what it says:\n{ended.stderr[-2000:]}")
    STAMP.parent.mkdir(parents=True, exist_ok=True)
    STAMP.write_text(current, encoding="utf-8")


def main() -> None:
    """Type every page into an empty folder."""
    os.environ["MPLBACKEND"] = "Agg"
    for page in [Path(name).resolve() for name in sys.argv[1:]] or [TUTORIAL]:
        with TemporaryDirectory() as folder, chdir(folder):
            run_page(page.read_text("utf-8"), str(page))
        print(f"{page.name} runs and prints what it shows.")


if __name__ == "__main__":
    main()
