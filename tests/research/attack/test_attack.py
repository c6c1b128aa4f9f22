"""A small attack: nothing is wrong, and the log, its counts and its scripts say what was tried."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.attack import judge, run, shrink
from research.attack.draw import build, draw_choices
from research.attack.invariants import SETTLED
from research.attack.judge import Finding, Verdict
from research.attack.report import Line, read_log, script, totals
from research.attack.run import Settings, Worker, attack, crashed, one

SEED, PROGRAMS = 0, 30


def test_nothing_is_wrong() -> None:
    lines = [one(SEED, number, SETTLED) for number in range(PROGRAMS)]
    found = totals(lines)
    assert [line.findings for line in lines if line.findings] == []
    assert found["tried"] == PROGRAMS
    assert found["judged"] >= PROGRAMS


def test_a_program_is_drawn_by_its_seed_and_number_alone() -> None:
    for number in range(20):
        choices = draw_choices(3, number)
        first, second = (build(choices, 3, number) for _ in range(2))
        assert choices == draw_choices(3, number)
        assert first.source == second.source
        for one_item, other in zip(first.items, second.items, strict=True):
            for name, value in one_item.theta.items():
                np.testing.assert_array_equal(value, other.theta[name])


class Inline(Worker):
    """A worker without a process."""

    def ask(self, function: str, number: int, *arguments: Any) -> None:
        self.number, self.connection = number, one(*arguments)

    def answer(self, limit: float) -> Any:
        return self.connection

    def stop(self) -> None:
        pass


def test_a_worker_has_a_process_of_its_own() -> None:
    worker = Worker()
    worker.ask("one", 1, SEED, 1, ())
    while (line := worker.answer(300.0)) is None:
        time.sleep(0.05)
    worker.stop()
    assert line.counts == one(SEED, 1, ()).counts


def test_the_command_resumes_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Worker", Inline)
    arguments = ["attack", "--programs", "2", "--seed", "1", "--no-scripts", "--out", str(tmp_path)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "tried 2" in said.stdout
    log = tmp_path / "seed-1.jsonl"
    first, second = log.read_text().splitlines()
    # A line that was cut off is run again, the others are not.
    log.write_text(f"{first}\n{second[:40]}")
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert set(read_log(log)) == {0, 1}
    assert log.read_text().count('"number": 0,') == 1
    assert "tried 2" in (tmp_path / "seed-1.txt").read_text()
    # A program that is asked for by its number is run again.
    runs = log.read_text().count('"number": 1,')
    said = CliRunner().invoke(app, [*arguments, "--only", "1"])
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("1: ")
    assert log.read_text().count('"number": 1,') == runs + 1


def test_an_attack_that_finds_something_fails_and_writes_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict()
    verdict.add("wrong value", 0, "1, not 2")
    planted = Line.of(0, draw_choices(SEED, 0), verdict, 0.1)
    monkeypatch.setattr(Worker, "ask", lambda self, function, number, *rest: setattr(self, "number", number))
    text = script(build(draw_choices(SEED, 0), SEED, 0), verdict.findings[0], SEED, 0)
    answers = iter([planted, (text,)])
    monkeypatch.setattr(Worker, "answer", lambda self, limit: next(answers))
    said = CliRunner().invoke(app, ["attack", "--programs", "1", "--out", str(tmp_path)])
    assert said.exit_code == 1
    assert "The attack found something" in said.stderr
    path = tmp_path / "wrong-value-0-0.py"
    assert subprocess.run([sys.executable, str(path)], check=True, capture_output=True).stdout


def test_a_program_that_ends_its_process_is_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = crashed(5, SEED, "the process ended with -11")
    assert totals([line])["raw"] == 1
    monkeypatch.setattr(Worker, "ask", lambda self, function, number, *rest: setattr(self, "number", number))
    monkeypatch.setattr(Worker, "answer", lambda self, limit: "the process ended with -11")
    lines = attack(Settings(SEED, [5], (), tmp_path))
    assert lines[0].findings[0]["note"] == "the process ended with -11"
    assert "process ended" in (tmp_path / "raw-0-5.py").read_text()


def test_no_program_is_begun_after_the_time(tmp_path: Path) -> None:
    assert run.attack(Settings(SEED, range(5), (), tmp_path, minutes=0.0)) == []


def test_shrinking_keeps_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    # A finding that needs a constraint "cvar", and nothing else.
    def planted(program, *_rest) -> Verdict:
        verdict = Verdict()
        if "cvar" in program.choices.constraints:
            verdict.add("wrong value", 0, "planted")
        return verdict

    monkeypatch.setattr(shrink, "examine", planted)
    number = next(
        k for k in range(400) if "cvar" in (c := draw_choices(SEED, k)).constraints and len(c.constraints) == 2
    )
    program = shrink.shrink(draw_choices(SEED, number), SEED, number, Finding("wrong value", 0, ""), ())
    choices = program.choices
    assert choices.constraints == ("cvar",)
    assert (choices.dim, choices.items, choices.own, choices.unit) == (1, 1, "", 1.0)
    assert not choices.integer
    assert not choices.known


def test_a_tenth_of_a_percent_is_noticed_and_rounding_is_not() -> None:
    assert judge._stable(np.array([0.0, 1e-3, -1e-3, 2.5e-4, -2.5e-4])) == pytest.approx(1.0)
    # A kink: slopes one and two.
    assert judge._stable(np.array([0.0, 2e-3, -1e-3, 5e-4, -2.5e-4])) is None
    assert judge._kink(np.array([0.0, 2e-3, -1e-3, 5e-4, -2.5e-4])) == pytest.approx((1.0, 2.0))
