"""The documentation: its code runs and prints what it says, what it names exists, and the site builds."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import pytest
from mkdocs.exceptions import PluginError

import conelayers
import drolayers as dro

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "quickstart.md", *sorted(DOCS.glob("concepts/*.md")), *sorted(DOCS.glob("howto/*.md"))]


def load(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = load("run")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    count = RUN.run_page(page.read_text(encoding="utf-8"), str(page))
    assert count or page.stem == "ambiguity"


def test_wrong_output_is_noticed() -> None:
    page = "```python\nprint('value', {})\n```\n\n```text\nvalue {}\n```\n"
    assert RUN.run_page(page.format(1.001, 1.002), "page") == 1
    assert RUN.run_page(page.format(0.61, 0.62), "page") == 1
    for printed, written in ((1.00, "1.02"), (0.001, "0.003"), (2, 3), ("1.0, 2.0", "1.0")):
        with pytest.raises(AssertionError, match="page:5"):
            RUN.run_page(page.format(printed, written), "page")
    with pytest.raises(AssertionError):
        RUN.run_page(page.format("'a'", "b"), "page")


def test_output_that_is_not_shown_is_noticed() -> None:
    block = "```python\nprint(1)\n```\n"
    with pytest.raises(AssertionError, match="page does not show what it prints last"):
        RUN.run_page(block, "page")
    with pytest.raises(AssertionError, match="page:4 comes before what was printed is shown"):
        RUN.run_page(block + "```python\nx = 1\n```\n", "page")
    with pytest.raises(AssertionError, match="page:4 comes before what was printed is shown"):
        RUN.run_page(block + "```bash\nls\n```\n", "page")


def test_what_is_shown_must_be_printed() -> None:
    silent, shown = "```python\nx = 1\n```\n", "```text\n0.5\n```\n"
    with pytest.raises(AssertionError, match="page:4 prints"):
        RUN.run_page(silent + shown, "page")
    # What a command prints is not run here.
    assert RUN.run_page(silent + "```bash\nls\n```\n" + shown, "page") == 1


def test_the_site_runs_the_tutorial_as_the_tests_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load("run")
    assert run.TUTORIAL in PAGES
    page, stamp = tmp_path / "page.md", tmp_path / "stamp"
    monkeypatch.setattr(run, "TUTORIAL", page)
    monkeypatch.setattr(run, "STAMP", stamp)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    page.write_text("```python\nopen('here', 'w').close()\nprint(0.61)\n```\n\n```text\n0.65\n```\n")
    with pytest.raises(RuntimeError, match=r"page.md:6 prints\n0.61\n\nand shows\n0.65"):
        run.run_if_changed()
    assert not stamp.exists()
    page.write_text(page.read_text().replace("0.65", "0.62"))
    run.run_if_changed()
    assert set(tmp_path.iterdir()) == {page, stamp}
    # What has run and stayed the same is not run again.
    monkeypatch.setattr(run.subprocess, "run", None)
    run.run_if_changed()


def test_tests_that_the_mathematics_names_exist() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    paths = set(re.findall(r"\btests/[\w/]+\.py", text))
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]
    known = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 40
    assert not named - known


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: (?:cone|dro)layers\.[\w.]*?(\w+)$", text, re.MULTILINE))
    listed = {name for group in re.findall(r"members: \[([^\]]*)\]", text) for name in re.findall(r"\w+", group)}
    assert not set(dro.__all__) - documented - listed
    assert not set(conelayers.__all__) - documented - listed
    assert {name for name in dro.moments.__all__ if name != "Moment"} <= documented | listed


def test_the_site_builds_without_a_warning_and_holds_together(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    assert load("check").problems(site) == []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "arithmatex" not in text, f"{page} has a formula that was not rendered"
        assert "<!-- include" not in text
    assert (site / "search" / "search_index.js").exists()


def test_the_checker_sees_what_is_broken(tmp_path: Path) -> None:
    check = load("check")
    assert check.problems(tmp_path) == [f"{tmp_path} holds no pages."]
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>')
    page = tmp_path / "index.html"
    page.write_text('<a href="other.html#here">fine</a><a href="https://example.org">elsewhere</a>')
    assert check.problems(tmp_path) == []
    for broken in (
        '<a href="missing.html">',
        '<a href="other.html#nowhere">',
        '<img src="missing.svg">',
        '<a href="#nowhere">',
        '<script src="https://example.org/x.js"></script>',
        '<link rel="stylesheet" href="//example.org/x.css">',
    ):
        page.write_text(broken)
        assert len(check.problems(tmp_path)) == 1, broken
    page.write_text("")
    (tmp_path / "style.css").write_text("body { background: url(https://example.org/x.png) }")
    assert len(check.problems(tmp_path)) == 1


def test_included_files_keep_their_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = load("hooks")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "a.png").write_bytes(b"")
    source = tmp_path / "RESULTS.md"
    source.write_text(
        "![A](plots/a.png) [log](CHANGELOG.md) [page](docs/howto/gpu.md) [code](src/x.py) [web](https://example.org)"
    )
    assert hooks._pictures(source) == ["plots/a.png"]
    assert hooks._relinked(source, "results.md") == (
        "![A](assets/included/plots/a.png) [log](changelog.md) [page](howto/gpu.md) code (`src/x.py`) "
        "[web](https://example.org)"
    )
    found = hooks.INCLUDE.search("<!-- include: RESULTS.md or Nothing yet. -->")
    assert found is not None
    assert (found["path"], found["otherwise"]) == ("RESULTS.md", "Nothing yet.")


def test_formulas_become_mathml_or_an_error() -> None:
    hooks = load("hooks")
    shown = hooks.on_page_content('<div class="arithmatex">\\[\\max_{x} \\bigl\\{x\\bigr\\}\\]</div>', None, None, None)
    assert "<munder><mo>max</mo>" in shown
    assert "arithmatex" not in shown
    with pytest.raises(PluginError, match="does not know"):
        hooks.on_page_content('<span class="arithmatex">\\(\\nosuchthing\\)</span>', None, None, None)
