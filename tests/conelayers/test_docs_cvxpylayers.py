"""The page for users of cvxpylayers runs and prints what it shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_page_runs() -> None:
    spec = importlib.util.spec_from_file_location("docs_run", DOCS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    page = DOCS / "coming-from-cvxpylayers.md"
    assert run.run_page(page.read_text(encoding="utf-8"), str(page))
