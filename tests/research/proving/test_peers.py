"""Commands that set other packages beside ours, with and without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from research.experiments.runner import collect
from research.experiments.task import row
from research.problems.rsome import EXAMPLES
from research.proving import linear, peers, rsome
from research.proving.table import TABLE, prove


def test_every_page_and_every_model_has_a_task_of_its_own() -> None:
    pages, fits = rsome.tasks(10), linear.tasks(2)
    assert [task.method for task in pages] == list(EXAMPLES)
    assert len({task.id for task in fits}) == len(fits) == 2 * len(linear.models(2))


def test_a_missing_package_is_a_sentence_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "_there", lambda package: False)
    assert prove("rsome", tmp_path, None, 1, True, ("appointments",), 1) == []
    found = {(r["method"], r["metric"]): r["value"] for r in collect(tmp_path)}
    # The value that RSOME's page prints.
    assert found["ours", "value"] == pytest.approx(148.7207495, rel=1e-7)
    assert found["RSOME", "value"] == "rsome is not installed here: pip install --no-deps rsome."
    assert "| appointments | 148.7 (1) | rsome is not installed here" in (tmp_path / TABLE).read_text(encoding="utf-8")
    assert ("ours", "relative difference") not in found
    capsys.readouterr()


def test_a_peer_that_fails_is_a_sentence_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(features: object, target: object) -> float:
        raise ValueError("no licence")

    monkeypatch.setattr(linear, "unavailable", lambda package: "")
    monkeypatch.setattr(linear, "of_rsome", fails)
    task = next(task for task in linear.tasks(1, quick=True) if task.method == "RSOME")
    found = {(r["method"], r["metric"]): r["value"] for r in linear.run(task, Path()).rows}
    assert found["theirs", "value"] == "RSOME failed with ValueError: no licence"
    assert found["ours", "seconds to solve"] > 0


def test_what_was_found_without_a_package_is_found_again_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint, which tells whether a result is finished, is the package's version and what it lacks."""
    assert peers.installed("numpy") == f"numpy {np.__version__}"
    monkeypatch.setattr(peers, "requires", lambda package: ["no-such-need[x]>=1", "torch", 'other; extra == "docs"'])
    assert peers.installed("numpy") == f"numpy {np.__version__} without no-such-need"
    assert peers.installed("no-such-package") == "without no-such-package"
    assert peers.unavailable("numpy") == ""
    assert {task.fingerprint for task in rsome.tasks(1)} == {peers.installed("rsome")}


def test_differences_are_relative_to_the_peer() -> None:
    assert row("ours", "relative difference", 0.5) in peers.compared("ours", 3.0, "theirs", 2.0, [])
