"""The command line: train a built-in problem, decide with what was trained, and repeat the paper's experiments.

Exit codes: 0 done; 1 it could not be done (a sentence on standard error says why); 2 wrong use of the command.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from drolayers.checks import directory
from drolayers.errors import DROError, ModelError, ShapeError

if TYPE_CHECKING:
    import numpy as np

    from drolayers.learning import DecisionFocusedLearner
    from drolayers.problems import Newsvendor, Portfolio

MODEL, RESULTS = "model.safetensors", "results.json"

app = typer.Typer(
    name="drolayers",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Decisions that are robust against a learnt set of distributions.\n\n"
    "Train on a problem of the paper with [bold]run[/], then decide for your own contexts with [bold]decide[/]:\n\n"
    "    drolayers run newsvendor --out runs/newsvendor\n\n"
    "    drolayers decide runs/newsvendor contexts.csv\n\n"
    "Repeat the experiments of the paper with [bold]reproduce[/] and read them with [bold]report[/].\n\n"
    "Exit codes: 0 done; 1 could not be done, with one sentence on standard error; 2 wrong use of the command.",
    rich_markup_mode="rich",
)
run = typer.Typer(no_args_is_help=True, help="Train on a built-in problem, compare, and save the model.")
app.add_typer(run, name="run")


class SetName(StrEnum):
    """The newsvendor's ambiguity sets."""

    SOC_I = "SOC-I"
    SOC_II = "SOC-II"
    SOC_III = "SOC-III"


Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Epochs = Annotated[int, typer.Option(min=0, help="Epochs of decision-focused training; 0 for prediction alone.")]
Pretrain = Annotated[int, typer.Option(min=0, help="Epochs of prediction-focused training before it.")]
Batch = Annotated[int, typer.Option(min=1, help="Points a step.")]
Rate = Annotated[float, typer.Option(min=1e-12, help="Learning rate of decision-focused training.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


@run.command()
def newsvendor(
    out: Annotated[Path, typer.Option(help="Folder for model, results, logs and checkpoints.")] = Path(
        "runs/newsvendor"
    ),
    ambiguity: Annotated[SetName, typer.Option("--set", help="The ambiguity set.")] = SetName.SOC_III,
    points: Annotated[
        int, typer.Option(min=2, help="Training points; a fifth as many are drawn for validation.")
    ] = 400,
    seed: Seed = 0,
    pretrain_epochs: Pretrain = 40,
    epochs: Epochs = 30,
    batch_size: Batch = 50,
    lr: Rate = 1e-3,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """The four-item newsvendor of the paper: buy at retail in any amount, or in wholesale lots.

    Compares the expected cost of prediction-focused and decision-focused learning with the benchmark that knows the
    true conditional moments, and with the true optimum. A model that it saves decides from one covariate, "z".
    """
    with _one_sentence():
        folder = directory(out)
        import numpy as np

        from drolayers.problems import Newsvendor

        built = Newsvendor(ambiguity.value)
        rng = np.random.default_rng(seed)
        (Z, Y), held_out = built.draw(points, rng), built.draw(max(1, points // 5), rng)
        settings = {"pretrain_epochs": pretrain_epochs, "epochs": epochs, "batch_size": batch_size, "lr": lr}
        learners = _learn(built, folder, (Z, Y), held_out, settings, seed, resume, quiet)

        costs = {name: built.mean_cost(_stock(built, learner)) for name, learner in learners.items()}
        costs["benchmark (true moments)"] = built.mean_cost(built.benchmark)
        best = built.mean_cost(built.optimal)
        rows = [
            {"method": name, "expected cost": cost, "gap %": 100 * (cost / best - 1)} for name, cost in costs.items()
        ]
        rows.append({"method": "true optimum", "expected cost": best, "gap %": 0.0})
        note = {"problem": "newsvendor", "options": {"ambiguity": ambiguity.value}}
        _finish(folder, f"Newsvendor, {ambiguity.value}, {points} points", rows, learners, note, settings, seed)


@run.command()
def portfolio(
    out: Annotated[Path, typer.Option(help="Folder for model, results, logs and checkpoints.")] = Path(
        "runs/portfolio"
    ),
    assets: Annotated[int, typer.Option(min=1, help="Number of assets.")] = 20,
    binaries: Annotated[
        int,
        typer.Option(min=0, help="How many of them are bought in a fixed amount or not at all; the paper: a fifth."),
    ] = 0,
    group: Annotated[int, typer.Option(min=1, help="Assets that share one bound on their deviation.")] = 1,
    points: Annotated[
        int, typer.Option(min=2, help="Training points; a fifth as many are drawn for validation.")
    ] = 2500,
    test_points: Annotated[int, typer.Option(min=1, help="Points on which the comparison is made.")] = 1000,
    data_seed: Annotated[int, typer.Option(help="Seed of the published returns.")] = 100,
    seed: Seed = 0,
    pretrain_epochs: Pretrain = 20,
    epochs: Epochs = 15,
    batch_size: Batch = 100,
    lr: Rate = 1e-3,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """The portfolio of the paper: the largest worst-case expected return, on its published synthetic returns.

    Scores are ten times the mean return on test data. A model that it saves decides from five covariates, "z1" to "z5".
    """
    with _one_sentence():
        folder = directory(out)
        from drolayers.problems import Portfolio, PortfolioData

        built = Portfolio(assets, binaries, group)
        held = max(1, points // 5)
        everything = PortfolioData.generate(assets, points + held + test_points, data_seed)
        training, held_out, test = everything.split(points, held, test_points)
        settings = {"pretrain_epochs": pretrain_epochs, "epochs": epochs, "batch_size": batch_size, "lr": lr}
        learners = _learn(
            built, folder, (training.Z, training.Y), (held_out.Z, held_out.Y), settings, seed, resume, quiet
        )

        scores = {
            name: float((built.weights(learner.decide(test.Z)) * test.Y).sum(1).mean())
            for name, learner in learners.items()
        }
        scores["equal weights"] = float(test.Y.mean())
        scores["Bayes-optimal (true means)"] = float(built.best_return(test.mean).mean())
        rows = [{"method": name, "score": 10 * value} for name, value in scores.items()]
        note = {"problem": "portfolio", "options": {"assets": assets, "binaries": binaries, "group": group}}
        _finish(folder, f"Portfolio, {assets} assets, {points} points", rows, learners, note, settings, seed)


@app.command()
def decide(
    model: Annotated[Path, typer.Argument(help="A folder written by [bold]run[/], or the model file in it.")],
    data: Annotated[
        Path, typer.Argument(help="CSV file with a header row and one context a row; '-' reads standard input.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV file to write; standard output without.")
    ] = None,
) -> None:
    """Decide for the contexts of a CSV file with a model that [bold]run[/] saved.

    The file needs the model's covariates as columns (others are ignored). Every row is answered with the decision, by
    variable, and a status; a row without a decision is left empty.
    """
    with _one_sentence():
        learner, covariates = _load(model)
        contexts = _read(data, covariates)
        decision = learner.decision(contexts)
        names = [
            f"{variable.name()}_{k + 1}" if variable.ndim else variable.name()
            for variable in decision.best
            for k in range(variable.size)
        ]
        import torch

        values = torch.cat([value.reshape(len(value), -1) for value in decision.best.values()], 1).tolist()
        rows = [
            ["" if number != number else repr(number) for number in row] + [str(status)]
            for row, status in zip(values, decision.statuses, strict=True)
        ]
        if output is None:
            _write(sys.stdout, [*names, "status"], rows)
        else:
            with output.open("w", newline="", encoding="utf-8") as file:
                _write(file, [*names, "status"], rows)
        missing = int((~decision.ok).sum())
        if missing:
            advice = " ".join(sorted({s.advice for s in decision.statuses if not s.ok}))
            raise ModelError(f"{missing} of {len(rows)} contexts have no decision: {advice}")


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
    with _one_sentence():
        folder = directory(out)
        from drolayers.experiments.reproduce import plan
        from drolayers.experiments.reproduce import reproduce as run_plan

        rows, failures = run_plan(plan(only or (), protocol or (), seeds, quick), folder, jobs)
        print(f"{len(rows)} figures in {folder / 'results.csv'}")
        for failure in failures:
            print(f"drolayers: {failure}", file=sys.stderr)
        if failures:
            raise ModelError(
                f"{len(failures)} tasks failed and all others are kept: run the same command to try again."
            )


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
    with _one_sentence():
        import torch

        from drolayers.experiments.step import STAGES, Step, growth

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
    with _one_sentence():
        from drolayers.experiments.report import write_report

        for path in write_report(source, out, markdown):
            print(f"Wrote {path}")


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What goes wrong in use is told in one sentence; faults of the program keep their traceback."""
    try:
        yield
    except (DROError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(f"drolayers: {' '.join(told.split())}", file=sys.stderr)
        raise typer.Exit(1) from None


def _learn(
    built: Newsvendor | Portfolio,
    folder: Path,
    training: tuple[np.ndarray, np.ndarray],
    held_out: tuple[np.ndarray, np.ndarray],
    settings: dict[str, Any],
    seed: int,
    resume: bool,
    quiet: bool,
) -> dict[str, DecisionFocusedLearner]:
    """Both kinds of learner, or the first alone where no epochs are asked for; the second goes on from the first."""
    from drolayers.learning import DecisionFocusedLearner

    learners = {}
    for strategy in ("prediction", "decision") if settings["epochs"] else ("prediction",):
        learner = DecisionFocusedLearner(
            built.problem,
            strategy=strategy,
            seed=seed,
            directory=folder / "training",
            resume=resume or strategy == "decision",
            progress=not quiet and sys.stderr.isatty(),
            **settings,
        )
        learners[f"{strategy}-focused"] = learner.fit(*training, validation=held_out)
    return learners


def _stock(built: Newsvendor, learner: DecisionFocusedLearner) -> Any:
    """A learner as a policy of the newsvendor."""

    def policy(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decision = learner.decide(Z)
        return decision[built.retail], decision[built.wholesale]

    return policy


def _finish(
    folder: Path,
    title: str,
    rows: Sequence[dict[str, Any]],
    learners: dict[str, DecisionFocusedLearner],
    note: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> None:
    """Save the last learner and the results, and show them."""
    list(learners.values())[-1].save(folder / MODEL, note)
    results = {
        **note,
        "seed": seed,
        "settings": settings,
        "rows": list(rows),
        "written": time.strftime("%Y-%m-%d %H:%M"),
    }
    (folder / RESULTS).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.4f}" for value in row.values()))
    console = Console()
    console.print(table)
    console.print(f"Saved in {folder}: {MODEL}, {RESULTS}, and logs for TensorBoard.", highlight=False)


def _load(path: Path) -> tuple[DecisionFocusedLearner, tuple[str, ...]]:
    """A model saved by ``run``, with the names of its covariates."""
    from drolayers.learning import DecisionFocusedLearner
    from drolayers.learning.storage import read_header
    from drolayers.problems import BUILT_IN

    file = path / MODEL if path.is_dir() else path
    header = read_header(file)
    note = header["note"] if isinstance(header.get("note"), dict) else {}
    name = note.get("problem")
    if name not in BUILT_IN:
        raise ModelError(
            f"{file} does not name a built-in problem: load it in Python, with the problem it was made for."
        )
    try:
        built = BUILT_IN[name](**note["options"])
    except (TypeError, KeyError) as error:
        raise ModelError(f"{file} describes its problem badly: {error}.") from error
    return DecisionFocusedLearner.load(file, built.problem), built.covariates


def _read(path: Path, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of a CSV file."""
    if str(path) == "-":
        return _table(sys.stdin, "standard input", columns)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return _table(file, str(path), columns)


def _table(file: TextIO, name: str, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of an open CSV file."""
    try:
        reader = csv.DictReader(file, skipinitialspace=True, strict=True)
        found = [field.strip() for field in reader.fieldnames or []]
        if missing := [column for column in columns if column not in found]:
            raise ShapeError(f"{name} lacks the columns {missing}; it has {found}.")
        reader.fieldnames = found
        rows = list(reader)
    except csv.Error as error:
        raise ShapeError(f"{name} is not a CSV file: {error}.") from error
    if not rows:
        raise ShapeError(f"{name} has a header but no rows.")
    values = []
    for number, row in enumerate(rows, start=2):
        try:
            values.append([float(row[column]) for column in columns])
        except (TypeError, ValueError):
            entries = [row[column] for column in columns]
            raise ShapeError(
                f"Line {number} of {name} needs a number in each of {list(columns)}, not {entries}."
            ) from None
    return values


def _write(file: TextIO, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A CSV file."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


def main() -> None:
    """The command ``drolayers``."""
    app()


if __name__ == "__main__":
    main()
