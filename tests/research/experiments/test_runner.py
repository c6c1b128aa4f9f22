from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drolayers.learning import Annealed
from research.experiments.protocols import NAMES, PROTOCOLS
from research.experiments.registry import EXPERIMENTS
from research.experiments.reproduce import plan
from research.experiments.runner import collect, curves, is_finished, run_tasks
from research.experiments.task import Outcome, Task, fingerprint, row
from tests.research.experiments.small import fails_at_two, some_tasks, square


def test_ids_are_stable_and_distinct() -> None:
    task = Task("mixed", "strong", "sets", (("assets", 20), ("group", 1)), 3, "whatever")
    # Written down, so that results of last year are still found.
    assert task.id == "mixed-strong-sets-assets20-group1-seed3-681a6b94"
    assert replace(task, fingerprint="other").id == task.id
    assert replace(task, setting=(("assets", 2), ("group", 1))).id != task.id
    # The same letters in other places.
    assert Task("a", "b", "c", (("x", 11),), 0).id != Task("a", "b", "c", (("x1", 1),), 0).id
    for everything in (plan(seeds=10), plan(quick=True)):
        assert len({t.id for t in everything}) == len(everything) > 20


def test_an_id_does_not_depend_on_the_process() -> None:
    code = (
        "from research.experiments.reproduce import plan\nprint(*((t.id, t.fingerprint) for t in plan(only=['mixed'])))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == " ".join(str((t.id, t.fingerprint)) for t in plan(only=["mixed"]))


def test_fingerprints_tell_settings_apart() -> None:
    first = {"lr": Annealed(1e-3), "hidden": (64, 64)}
    assert fingerprint(first) == fingerprint({"hidden": [64, 64], "lr": Annealed(1e-3)})
    assert fingerprint(first) != fingerprint({"lr": Annealed(2e-3), "hidden": (64, 64)})
    for settings in PROTOCOLS.values():
        assert len({fingerprint(one) for one in settings.values()}) == len(settings)


def test_a_changed_baseline_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan(["portfolio"], ["strong"], seeds=1)
    settings = PROTOCOLS["portfolio"]["strong"]
    changed = replace(settings, baselines={**settings.baselines, "mean": {"epochs": 1}})
    monkeypatch.setitem(PROTOCOLS["portfolio"], "strong", changed)
    after = plan(["portfolio"], ["strong"], seeds=1)
    assert [b.method for b, a in zip(before, after, strict=True) if b.fingerprint != a.fingerprint] == ["mean"]
    monkeypatch.setitem(PROTOCOLS["portfolio"], "strong", replace(changed, neighbours=7))
    last = plan(["portfolio"], ["strong"], seeds=1)
    assert [a.method for a, c in zip(after, last, strict=True) if a.fingerprint != c.fingerprint] == ["sets"]


def test_a_failing_task_stops_no_other_and_a_second_call_runs_it_alone(tmp_path: Path) -> None:
    tasks = some_tasks()
    (failure,) = run_tasks(tasks, tmp_path, jobs=1, run=fails_at_two)
    assert tasks[2].id in failure
    assert "ValueError: nothing works" in failure
    assert "\n" not in failure
    assert "ValueError" in (tmp_path / "failed" / f"{tasks[2].id}.txt").read_text()
    assert [is_finished(task, tmp_path) for task in tasks] == [True, True, False, True]
    # What a killed run left to go on from is still there; what finished ones needed is not.
    assert [p.name for p in (tmp_path / "work").iterdir()] == [f"{tasks[2].id}-a"]

    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "tasks").glob("*.json")}
    seen: list[int] = []

    def again(task: Task, work: Path) -> Outcome:
        seen.append(task.seed)
        assert (work / "last.ckpt").read_text() == "half done"
        return Outcome([row("decision-focused", "score", 4.0)])

    assert run_tasks(tasks, tmp_path, jobs=1, run=again) == []
    assert seen == [2]
    assert all(p.stat().st_mtime_ns == time for p, time in kept.items())
    assert len(collect(tmp_path)) == 4
    assert not list((tmp_path / "failed").iterdir())
    assert not list((tmp_path / "work").iterdir())


def test_other_settings_replace_a_result(tmp_path: Path) -> None:
    run_tasks(some_tasks(mark="a"), tmp_path, run=square)
    assert not is_finished(some_tasks(mark="b")[0], tmp_path)
    run_tasks(some_tasks(mark="b"), tmp_path, run=square)
    assert is_finished(some_tasks(mark="b")[0], tmp_path)
    assert len(collect(tmp_path)) == 4


def test_half_a_file_is_no_result(tmp_path: Path) -> None:
    (task,) = some_tasks(1)
    run_tasks([task], tmp_path, run=square)
    path = tmp_path / "tasks" / f"{task.id}.json"
    path.write_text(path.read_text()[:40])
    assert not is_finished(task, tmp_path)
    assert collect(tmp_path) == []
    run_tasks([task], tmp_path, run=square)
    assert len(collect(tmp_path)) == 1


def test_collected_rows_are_tidy(tmp_path: Path) -> None:
    run_tasks(some_tasks(), tmp_path, run=square)
    rows = collect(tmp_path)
    with (tmp_path / "results.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows) == 4
    assert list(read[0]) == list(rows[0])
    for column in ("experiment", "protocol", "method", "points", "seed", "metric", "value", "version", "cores",
                   "platform", "python", "torch", "wall_seconds", "cpu_seconds"):  # fmt: skip
        assert all(r[column] != "" for r in read), column
    assert sorted(float(r["value"]) for r in read) == [0.0, 1.0, 4.0, 9.0]
    assert {(r["seed"], r["points"]) for r in read} == {("0", "0"), ("1", "10"), ("2", "20"), ("3", "30")}
    assert curves(tmp_path, "toy")[1] == ("strong", "decision-focused", 1, [1.0, 2.0])
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 4 * 2


def test_workers_use_one_thread(tmp_path: Path) -> None:
    def threads(task: Task, work: Path) -> Outcome:
        import torch

        assert os.environ["OMP_NUM_THREADS"] == "1"
        return Outcome([row("x", "pid", float(os.getpid())), row("x", "threads", float(torch.get_num_threads()))])

    before = os.environ.get("MKL_NUM_THREADS")
    assert run_tasks(some_tasks(2), tmp_path, jobs=2, run=threads) == []
    assert os.environ.get("MKL_NUM_THREADS") == before
    rows = collect(tmp_path)
    assert {r["value"] for r in rows if r["metric"] == "threads"} == {1.0}
    assert os.getpid() not in {int(r["value"]) for r in rows if r["metric"] == "pid"}
    stored = json.loads(next((tmp_path / "tasks").glob("*.json")).read_text())
    assert stored["about"]["wall_seconds"] >= 0


@pytest.mark.parametrize(("only", "protocols"), [(["nothing"], ()), ((), ["nothing"])])
def test_unknown_names_are_refused(only: list[str], protocols: list[str]) -> None:
    with pytest.raises(ValueError, match=r"There is no .* 'nothing': choose from"):
        plan(only, protocols)


def test_what_is_planned() -> None:
    tasks = plan(seeds=2)
    count = {name: sum(t.experiment == name for t in tasks) for name in EXPERIMENTS}
    # Sets by points for two protocols, and a benchmark once; all for two seeds.
    assert count["newsvendor"] == 2 * 3 * (2 * 4 + 1)
    assert {t.protocol for t in tasks if t.experiment == "mixed"} == {*NAMES, "reference"}
    assert {t.columns["group"] for t in tasks if t.experiment == "mixed"} == {1, 2, 4}
    assert count["time"] == 2 * 4
    assert {t.protocol for t in plan(quick=True)} == {"quick", "paper"}
    assert {t.experiment for t in plan(quick=True)} == set(EXPERIMENTS)
    assert {t.seed for t in plan(seeds=range(3, 5), only=["robustness"])} == {3, 4}
