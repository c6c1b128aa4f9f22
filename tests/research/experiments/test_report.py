from __future__ import annotations

import base64
import json
import math
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import matplotlib.image
import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.experiments import newsvendor, portfolio, robustness, timing
from research.experiments.runner import collect, run_tasks
from research.experiments.sections import improvements
from research.experiments.summary import COLOURS, Mean
from research.experiments.task import Outcome, Task, row

BENCHMARK = newsvendor.BENCHMARK


def invented(task: Task, work: Path) -> Outcome:
    """Results of every experiment without any training; a method's name has a sign that HTML must escape."""
    noise = 0.01 * task.seed
    if task.experiment == "newsvendor":
        names = (
            [(BENCHMARK, 2.0)] if task.method == "benchmark" else [("decision-focused", 1.5), ("prediction-focused", 3)]
        )
        return Outcome([row(name, m, v + noise) for name, v in names for m in ("cost", "gap", "sampled_gap")])
    if task.experiment == "time":
        return Outcome([row("drolayers", name, 0.1 + noise) for name in (*timing.STAGES, "all")])
    if task.experiment == "robustness":
        rows = [row(m, metric, 1 + noise) for m in robustness.METHODS for metric in ("mean", "cvar95")]
        return Outcome([{**r, "shift": shift} for r in rows for shift in robustness.SHIFTS])
    names = (
        ["Bayes-optimal", "a <b> & c"] if task.method == "references" else ["decision-focused", "prediction-focused"]
    )
    return Outcome(
        [row(name, "score", 0.5 + noise) for name in names],
        {name: [100.0 * 1.01**day for day in range(20)] for name in names} if task.experiment == "portfolio" else {},
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    tasks = []
    for seed in range(3):
        for name in newsvendor.SETS[:2]:
            tasks.append(Task("newsvendor", "reference", "benchmark", (("set", name),), seed))
            tasks += [Task("newsvendor", "strong", "sets", (("set", name), ("points", n)), seed) for n in (100, 200)]
        for method in ("references", "sets"):
            once = "reference" if method == "references" else None
            tasks.append(Task("portfolio", once or "paper", method, (("assets", 40),), seed))
            tasks.append(Task("mixed", once or "strong", method, (("assets", 60), ("group", 1)), seed))
        tasks.append(Task("mixed", "strong", "sets", (("assets", 60), ("group", 4)), seed))
        tasks.append(Task("robustness", "strong", "sets", (("problem", "newsvendor"), ("points", 50)), seed))
        tasks.append(Task("time", "paper", "sets", (("assets", 100),), seed))
    assert run_tasks(tasks, folder, run=invented) == []
    return folder


class Page(HTMLParser):
    """What a page shows and what it asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scrolled: list[bool] = []
        self.boxes: list[bool] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "div":
            self.boxes.append(found.get("class") == "scroll")
        if tag == "table":
            self.scrolled.append(bool(self.boxes) and self.boxes[-1])
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "div":
            self.boxes.pop()


def broken(text: str) -> list[str]:
    """What is wrong with a page that must stand by itself on a phone."""
    page, wrong = Page(text), []
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action"):
            address = attributes.get(name)
            if address is None:
                continue
            if not address.startswith("data:image/png;base64,"):
                wrong.append(f"<{tag}> asks for {address[:40]}")
                continue
            try:
                image = matplotlib.image.imread(BytesIO(base64.b64decode(address.split(",", 1)[1], validate=True)))
                if image.std() == 0:
                    wrong.append("an empty image")
            except Exception as error:
                wrong.append(f"an image that does not decode: {type(error).__name__}")
    wrong += ["a table outside of a scrolling box"] * page.scrolled.count(False)
    if not any(tag == "meta" and a.get("name") == "viewport" for tag, a in page.tags):
        wrong.append("no viewport")
    wrong += [f"the style asks for {word}" for word in ("url(", "@import", "http:", "https:") if word in text]
    return wrong


def test_the_page_stands_by_itself(results: Path, tmp_path: Path) -> None:
    out, tables = tmp_path / "sub" / "report.html", tmp_path / "tables.md"
    done = CliRunner().invoke(app, ["report", "--from", str(results), "--out", str(out), "--markdown", str(tables)])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert broken(text) == []
    page = Page(text)
    assert page.open == []
    assert sum(tag == "h2" for tag, _ in page.tags) == 5 + 1
    assert sum(tag == "img" for tag, _ in page.tags) == 3
    assert "a &lt;b&gt; &amp; c" in text
    assert "<b>" not in text
    for word in ("0.510 ± 0.006 (3)", "0.289", "0.2145", "21.4", "16.5", "15", "python -m research reproduce"):
        assert word in text, word
    markdown = tables.read_text()
    for line in markdown.splitlines():
        assert line.startswith("|") == line.endswith("|")
    assert markdown.count("\n## ") == 4
    assert "| 60 | 15 | decision-focused | 0.0762 | 0.510 ± 0.006 (3), 100.0 % |" in markdown


@pytest.mark.parametrize(
    "text",
    [
        '<img src="figure.png">',
        '<img src="data:image/png;base64,AAAA">',
        "<table></table>",
        '<link href="https://example.org/style.css">',
    ],
)
def test_the_check_of_the_page_can_fail(text: str) -> None:
    assert broken('<meta name="viewport" content="x">' + text)


def test_improvement_over_seeds(results: Path) -> None:
    found = improvements(collect(results), "strong", "SOC-I")
    assert found is not None
    # For seed s the benchmark is 2 + s/100 and the learner 1.5 + s/100.
    expected = [100 * 0.5 / (2 + 0.01 * s) for s in range(3)]
    assert found.count == 3
    assert found.value == pytest.approx(sum(expected) / 3)
    assert improvements(collect(results), "paper", "SOC-I") is None


def test_means_and_errors() -> None:
    found = Mean.of([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.value, found.count) == (2.0, 3)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.text(2) == "2.00 ± 0.58 (3)"
    single = Mean.of([1.0])
    assert single is not None
    assert single.text(1) == "1.0 (1)"
    assert Mean.of([]) is None


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--from", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 1
    assert "holds no results: run 'python -m research reproduce" in done.output
    (tmp_path / "tasks").mkdir()
    done = CliRunner().invoke(app, ["report", "--from", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 1
    assert "no finished task" in done.output


def test_reproduce_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from research.experiments import mixed

    monkeypatch.setattr(mixed, "run", invented)
    out = tmp_path / "runs"
    command = ["reproduce", "--only", "mixed", "--protocol", "strong", "--seeds", "1", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    stored = [json.loads(p.read_text()) for p in (out / "tasks").glob("*.json")]
    # Five problems; references and two mean predictions for each number of assets.
    assert len(stored) == 5 + 3 + 2 * 3
    done = CliRunner().invoke(app, ["reproduce", "--only", "nothing", "--out", str(out)])
    assert done.exit_code == 1
    assert "There is no experiment 'nothing'" in done.output


def test_no_two_methods_of_a_figure_look_alike() -> None:
    for methods in (robustness.METHODS, (*portfolio.PAPER, *portfolio.BASELINES.values(), *portfolio.REFERENCES)):
        assert len({COLOURS[method] for method in methods}) == len(set(methods))
