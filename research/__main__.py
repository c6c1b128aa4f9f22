"""The commands of the workshop: the demonstration, the paper's experiments and their report, the case studies.

Exit codes: 0 done; 1 it could not be done (a sentence on standard error says why); 2 wrong use of the command.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from conelayers.checks import directory
from conelayers.errors import ModelError
from drolayers.cli import one_sentence

app = typer.Typer(
    name="research",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The workshop beside drolayers.\n\n"
    "Repeat the experiments of the paper with [bold]reproduce[/] and read them with [bold]report[/].",
    rich_markup_mode="rich",
)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the page, plots and checkpoints.")] = Path("runs/demo"),
) -> None:
    """Learn to stock four items from 400 points, and compare with the true optimum."""
    with one_sentence():
        folder = directory(out)
        from research.demo import run

        run(seed, folder)


@app.command()
def reproduce(
    only: Annotated[
        list[str] | None, typer.Option(help="An experiment: newsvendor, portfolio, mixed, robustness or time; repeat.")
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(help="paper, paper-published-weights or strong; repeat. All unless given.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of everything that is random.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Everything, small and with one seed, in minutes.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results; what is finished in it is not run again.")] = Path(
        "runs/reproduce"
    ),
) -> None:
    """Repeat the experiments of the paper, and one of ours; an interrupted run goes on where it stopped.

    Results are one file a task, and all of them in results.csv. Read them with [bold]report[/].
    """
    with one_sentence():
        folder = directory(out)
        from research.experiments.reproduce import plan
        from research.experiments.reproduce import reproduce as run_plan

        rows, failures = run_plan(plan(only or (), protocol or (), seeds, quick), folder, jobs)
        print(f"{len(rows)} figures in {folder / 'results.csv'}")
        for failure in failures:
            print(f"research: {failure}", file=sys.stderr)
        if failures:
            raise ModelError(
                f"{len(failures)} tasks failed and all others are kept: run the same command to try again."
            )


@app.command()
def prove(
    benchmark: Annotated[str, typer.Argument(help="battery, frontier, linear, portfolio, pyepo or rsome.")],
    data: Annotated[Path | None, typer.Option(help="battery.npz of chrisyeh96/e2e-conformal, for the battery.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of data.")] = 10,
    first: Annotated[int | None, typer.Option(min=0, help="The first draw; the benchmark's own unless given.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few settings only.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="A method by name; repeat. All unless given.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Settings alone, such as degree=8 or seed=3; repeat.")] = None,
    known: Annotated[Path | None, typer.Option(help="figures.csv of draws run elsewhere, to count with these.")] = None,
    beside: Annotated[Path | None, typer.Option(help="figures.csv of an earlier run, to stand beside.")] = None,
    against: Annotated[str, typer.Option(help="Whose wins and losses are counted; the first learner's.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for results; runs/<benchmark> unless given.")] = None,
) -> None:
    """Run a benchmark of others and print its table; an interrupted run goes on where it stopped."""
    with one_sentence():
        from research.proving.table import prove as run_benchmark

        folder = directory(out or Path("runs") / benchmark)
        chosen: dict[str, Any] = {"only": tuple(only or ()), "where": tuple(where or ()), "jobs": jobs}
        chosen |= {"against": against, "beside": beside, "known": known, "first": first}
        failures = run_benchmark(benchmark, folder, data, seeds, quick, **chosen)
        for failure in failures:
            print(f"research: {failure}", file=sys.stderr)
        if failures:
            raise ModelError(f"{len(failures)} tasks failed and all others are kept: run the same command again.")


@app.command()
def bench(
    assets: Annotated[list[int] | None, typer.Option(min=5, help="Numbers of assets; 100, 200, 400 and 800.")] = None,
    group: Annotated[list[int] | None, typer.Option(min=1, help="Assets that share a bound; 1 and 4.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed, after two that are not.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Time one training step of the mixed-integer portfolio by stage: batch 100, T = 3, S = 4.

    Peers are timed beside it by benchmarks/step.py in the repository.
    """
    with one_sentence():
        import torch

        from drolayers.learning.pipeline import STAGES
        from research.experiments.step import Step, growth

        if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
            raise ModelError(f"There is no device {device!r} here: choose cpu, or cuda where there is a GPU.")
        sizes = assets or [100, 200, 400, 800]
        for size, shared in ((size, shared) for size in sizes for shared in group or [1, 4]):
            if size % shared:
                raise ModelError(f"{size} assets cannot be put into groups of {shared}: choose a divisor.")
        table = Table(title="Seconds a step")
        for column in ("assets", "bounds", *STAGES, "all", "GB"):
            table.add_column(column, justify="right")
        notes = []
        for shared in group or [1, 4]:
            found = []
            for size in sizes:
                found.append(Step(size, shared, device=device).measure(steps))
                seconds = [f"{found[-1].seconds[stage]:.4f}" for stage in STAGES]
                memory = f"{found[-1].memory / 1e9:.2f}"
                table.add_row(str(size), str(size // shared), *seconds, f"{found[-1].total:.3f}", memory)
            if len(found) > 1:
                notes.append(f"Groups of {shared}: time grows with n^{growth(found[0], found[-1]):.2f}.")
        console = Console()
        console.print(table)
        for note in notes:
            console.print(note, highlight=False)


@app.command()
def report(
    source: Annotated[Path, typer.Option("--from", help="Folder that [bold]reproduce[/] wrote.")] = Path(
        "runs/reproduce"
    ),
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables as Markdown to this file.")] = None,
) -> None:
    """Write one self-contained page with the results of [bold]reproduce[/] beside the paper's."""
    with one_sentence():
        from research.experiments.report import write_report

        for path in write_report(source, out, markdown):
            print(f"Wrote {path}")


class Invariants(StrEnum):
    """The properties that an attack checks of every program."""

    SETTLED = "settled"
    ALL = "all"
    NONE = "none"


@app.command()
def attack(
    programs: Annotated[int, typer.Option(min=1, help="Number of random programs.")] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all programs.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first program.")] = 0,
    only: Annotated[list[int] | None, typer.Option(min=0, help="A program's number, to run it again; repeat.")] = None,
    invariants: Annotated[Invariants, typer.Option(help="Properties of batches, copies and failures to check.")] = (
        Invariants.SETTLED
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 1,
    minutes: Annotated[float, typer.Option(min=0, help="Time after which no program is begun.")] = float("inf"),
    scripts: Annotated[bool, typer.Option(help="Write a shrunk script for every finding.")] = True,
    out: Annotated[Path, typer.Option(help="Folder of the log; its programs are not run again.")] = Path("runs/attack"),
) -> None:
    """Attack the library with random programs and judge it by an independent reference.

    Values, decisions, statuses and gradients are compared with programs over probabilities and means, enumeration and
    differences. The log, a summary and a script for every finding are written. Exit code 1: something is wrong.
    """
    with one_sentence():
        from research.attack.invariants import INVARIANTS, SETTLED
        from research.attack.report import summary, totals
        from research.attack.run import Settings
        from research.attack.run import attack as run_attack

        names = {Invariants.SETTLED: SETTLED, Invariants.ALL: tuple(INVARIANTS), Invariants.NONE: ()}[invariants]
        numbers = only or list(range(first, first + programs))
        settings = Settings(seed, numbers, names, directory(out), jobs, minutes, scripts, again=bool(only))
        lines = run_attack(settings)
        for line in lines if only else ():
            print(
                f"{line.number}: {line.words}",
                *(f"  {f['kind']}, item {f['item']}: {f['note']}" for f in line.findings),
            )
        print(summary(lines))
        counts = totals(lines)
        if counts["wrong"] or counts["raw"] or counts["broken"]:
            raise ModelError(f"The attack found something: see the scripts and seed-{seed}.jsonl in {out}.")


class Study(StrEnum):
    """The case studies."""

    PORTFOLIO = "portfolio"
    ENERGY = "energy"


class Part(StrEnum):
    """The data that a study is judged on."""

    DEVELOPMENT = "development"
    TEST = "test"


@app.command()
def study(
    name: Annotated[Study, typer.Argument(help="A weekly portfolio of stocks, or power stations for tomorrow's load.")],
    quick: Annotated[bool, typer.Option("--quick", help="A short run that shows that everything works.")] = False,
    part: Annotated[Part | None, typer.Option(help="The period; quick runs default to development.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Folder for results; runs/studies/NAME unless given.")] = None,
) -> None:
    """A case study on data of the world: robust sets against what people use there."""
    with one_sentence():
        module = import_module(f"research.studies.{name.value}")
        folder = directory(out or Path("runs/studies") / name.value)
        settings = module.Settings.quick() if quick else module.Settings()
        chosen = part or (Part.DEVELOPMENT if quick else Part.TEST)
        module.run(settings, folder / "quick" if quick else folder, chosen.value, jobs)


if __name__ == "__main__":
    app(prog_name="python -m research")
