"""The notebooks run, print what they show, and are notebooks of the standard format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.drolayers.test_docs import RUN, load

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks = load("notebooks")
    monkeypatch.chdir(tmp_path)
    told = 0
    for number, cell, said in notebooks.run(path):
        RUN.assert_same(said, notebooks.shown(cell), f"{path.name}, cell {number}")
        told += bool(said)
    assert told >= 3


def test_there_are_three_of_the_standard_format() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_steps", "learning_to_decide", "your_own_problem"]
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text("utf-8"))
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len(set(ids)) == len(ids)
        for cell in notebook["cells"]:
            assert cell.keys() >= {"cell_type", "metadata", "source"}
            if cell["cell_type"] == "code":
                assert cell["execution_count"] is not None
        title = notebook["cells"][0]["source"][0]
        page = load("notebooks").markdown(path)
        assert page.startswith(title.strip())
        assert page.count("```") % 2 == 0


def test_wrong_output_and_errors_are_noticed(tmp_path: Path) -> None:
    notebooks = load("notebooks")
    path = tmp_path / "n.ipynb"
    cell = {"cell_type": "code", "source": ["x = 1\n", "x + 1"], "outputs": [{"text": ["3\n"]}]}
    path.write_text(json.dumps({"cells": [cell, {"cell_type": "code", "source": ["1 / 0"]}]}))
    found = notebooks.run(path)
    _, first, said = next(found)
    assert said == "2\n"
    with pytest.raises(AssertionError):
        RUN.assert_same(said, notebooks.shown(first), "here")
    with pytest.raises(ZeroDivisionError):
        next(found)
