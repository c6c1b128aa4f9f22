"""Attacks with many programs: resumable, in several processes, each of which survives the other's crash."""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from research.attack.draw import build, draw_choices
from research.attack.judge import Finding, Verdict, examine
from research.attack.report import Line, read_log, script, summary
from research.attack.shrink import shrink

LIMIT_SECONDS = 180
"""Time that a program may take in a process of its own."""

SHOWN = 20
"""Reproductions of one kind that are written."""


@dataclass(frozen=True)
class Settings:
    """What is attacked.

    Attributes:
        seed: of all programs.
        numbers: of the programs.
        invariants: names of those that count.
        folder: of the log and the reproductions.
        jobs: processes.
        minutes: after which no program is begun.
        reproduce: whether findings are shrunk and written as scripts.
        again: whether programs that are in the log are run again.
    """

    seed: int
    numbers: Sequence[int]
    invariants: tuple[str, ...]
    folder: Path
    jobs: int = 1
    minutes: float = float("inf")
    reproduce: bool = True
    again: bool = False


def one(seed: int, number: int, invariants: tuple[str, ...]) -> Line:
    """Draw, solve and judge one program."""
    start = time.process_time()
    choices = draw_choices(seed, number)
    try:
        verdict = examine(build(choices, seed, number), seed, number, invariants)
    except Exception:
        # A defect of the attack itself ends nothing, and counts.
        verdict = Verdict()
        verdict.add("the attack failed", -1, traceback.format_exc(limit=-2))
    return Line.of(number, choices, verdict, time.process_time() - start)


def reproduction(seed: int, number: int, invariants: tuple[str, ...], finding: Finding) -> tuple[str]:
    """The script of a finding, shrunk."""
    program = shrink(draw_choices(seed, number), seed, number, finding, invariants)
    return (script(program, finding, seed, number),)


def _serve(connection: Any) -> None:
    """Answer requests until there are none; this is the main function of a worker process."""
    import torch

    torch.set_num_threads(1)
    while (request := connection.recv()) is not None:
        function, arguments = request
        connection.send(one(*arguments) if function == "one" else reproduction(*arguments))


@dataclass
class Worker:
    """A process that is started anew after a crash."""

    process: Any = None
    connection: Any = None
    number: int = -1
    since: float = field(default=0.0)

    def ask(self, function: str, number: int, *arguments: Any) -> None:
        """Begin something."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            # Not a daemon: the attack starts processes of its own.
            self.process = context.Process(target=_serve, args=(theirs,))
            self.process.start()
            theirs.close()
        self.number, self.since = number, time.monotonic()
        self.connection.send((function, arguments))

    def answer(self, limit: float) -> Any:
        """The answer; a sentence after a crash or too long a time; None as long as there is none."""
        if self.connection.poll(0.0):
            try:
                return self.connection.recv()
            except EOFError:
                self.process.join()
                return self._ended(f"the process ended with {self.process.exitcode}")
        if time.monotonic() - self.since > limit:
            return self._ended(f"no answer after {limit:.0f} s")
        return None

    def _ended(self, sentence: str) -> str:
        """Forget the process."""
        self.process.kill()
        self.process = None
        return sentence

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.connection.send(None)
            self.process.join(10)
            if self.process.is_alive():
                self.process.kill()


def crashed(number: int, seed: int, sentence: str) -> Line:
    """The line of a program that ended its process."""
    verdict = Verdict()
    verdict.add("raw", -1, sentence)
    return Line.of(number, draw_choices(seed, number), verdict, 0.0)


def attack(settings: Settings) -> list[Line]:
    """Run what the log does not hold yet; write the log, its summary and the reproductions."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    path = settings.folder / f"seed-{settings.seed}.jsonl"
    lines = read_log(path)
    waiting = [number for number in settings.numbers if settings.again or number not in lines]
    end = time.monotonic() + 60 * settings.minutes
    if path.exists() and not path.read_text().endswith("\n"):
        # A line that an interruption cut off stays alone.
        with path.open("a") as log:
            log.write("\n")
    workers = [Worker() for _ in range(settings.jobs)]
    start, total = time.monotonic(), len(waiting)
    try:
        with path.open("a") as log:
            busy: list[Worker] = []
            while busy or (waiting and time.monotonic() < end):
                for worker in workers:
                    if worker not in busy and waiting and time.monotonic() < end:
                        number = waiting.pop(0)
                        worker.ask("one", number, settings.seed, number, settings.invariants)
                        busy.append(worker)
                for worker in list(busy):
                    line = worker.answer(LIMIT_SECONDS)
                    if line is None:
                        continue
                    busy.remove(worker)
                    if isinstance(line, str):
                        line = crashed(worker.number, settings.seed, line)
                    lines[line.number] = line
                    _write(log, line)
                    _show(total - len(waiting) - len(busy), total, time.monotonic() - start, lines)
                time.sleep(0.005)
        reported = [lines[number] for number in settings.numbers if number in lines]
        if settings.reproduce:
            _reproduce(settings, reported, workers[0])
    finally:
        for worker in workers:
            worker.stop()
    (settings.folder / f"seed-{settings.seed}.txt").write_text(summary(reported) + "\n")
    return reported


def _write(log: TextIO, line: Line) -> None:
    log.write(line.text + "\n")
    log.flush()


def _show(done: int, total: int, seconds: float, lines: dict[int, Line]) -> None:
    """Progress on standard error."""
    findings = sum(len(line.findings) for line in lines.values())
    remaining = seconds / max(1, done) * (total - done)
    print(
        f"\r{done} of {total} programs, {findings} findings, {remaining:.0f} s left   ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if done == total:
        print(file=sys.stderr)


def _reproduce(settings: Settings, lines: list[Line], worker: Worker) -> None:
    """A script for every finding that is wrong or raw, some of each kind."""
    written: dict[str, int] = {}
    for line in lines:
        for record in line.findings[:1]:
            finding = Finding(**record)
            path = settings.folder / f"{finding.kind.replace(' ', '-')}-{settings.seed}-{line.number}.py"
            written[finding.kind] = written.get(finding.kind, 0) + 1
            if path.exists() or written[finding.kind] > SHOWN:
                continue
            worker.ask("reproduction", line.number, settings.seed, line.number, settings.invariants, finding)
            while (answer := worker.answer(10 * LIMIT_SECONDS)) is None:
                time.sleep(0.05)
            if isinstance(answer, str):
                # Its process ended once more: the program as it was drawn.
                program = build(draw_choices(settings.seed, line.number), settings.seed, line.number)
                answer = (script(program, finding, settings.seed, line.number),)
            path.write_text(answer[0])
