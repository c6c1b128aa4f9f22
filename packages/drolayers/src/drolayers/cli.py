"""The command line: train on a problem of one's own, and decide with what was trained.

A problem is a Python file that defines ``problem`` and, if one likes, ``learner``, ``covariates`` and ``outcomes``.
Exit codes: 0 done; 1 it could not be done (a sentence on standard error says why); 2 wrong use of the command.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any

from conelayers.internals import directory, replacing
from drolayers import __version__, tables
from drolayers.errors import LayerError, ModelError, ShapeError
from drolayers.extras import needs

needs("cli", "typer", "rich")

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from drolayers.known import KnownData
    from drolayers.learning import DecisionFocusedLearner
    from drolayers.problem import DecisionProblem

MODEL, PROBLEM, RESULTS = "model.safetensors", "problem.py", "results.json"
WAYS = {"another directory": "another folder as --out", "resume=False": "a run without --resume"}
"""What the library advises, as it is said here."""

app = typer.Typer(
    name="drolayers",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Decisions that are robust against a learnt set of distributions.\n\n"
    "Train on a problem of yours with [bold]run[/], then decide for new contexts with [bold]decide[/]:\n\n"
    "    drolayers run my_problem.py data.csv --out runs/mine\n\n"
    "    drolayers decide runs/mine contexts.csv\n\n"
    "Exit codes: 0 done; 1 could not be done, with one sentence on standard error; 2 wrong use of the command.",
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        print(f"drolayers {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def run(
    problem: Annotated[
        Path, typer.Argument(help="Python file that defines 'problem' (and 'learner', 'covariates', 'outcomes').")
    ],
    data: Annotated[Path, typer.Argument(help="CSV file with a header row: covariates and outcomes, one pair a row.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for model, results, logs and checkpoints; runs/PROBLEM unless given.")
    ] = None,
    test_share: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the rows, the last ones, that training never sees.")
    ] = 0.2,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train on the problem of a Python file and the data of a CSV file, compare on rows held out, and save the model.

    Known data of the problem are columns by their names: stock for a number, stock_1, stock_2 for a vector. Of the
    others, unless the file names them, the outcomes are the last, as many as y has, and the covariates all before them.
    """
    with one_sentence("; what was trained is kept, and --resume goes on from there"):
        own = _Own.read(problem)
        source, folder = problem.read_bytes(), directory(out or Path("runs") / problem.stem)
        copy = folder / PROBLEM
        if copy.exists() and copy.read_bytes() != source and not (folder / RESULTS).exists():
            raise ModelError(f"{copy} is a file of yours that would be overwritten: give another folder as --out.")
        covariates, outcomes = own.columns(tables.header(data), str(data))
        known = own.problem.known_data
        rows = tables.read(data, [*covariates, *outcomes], known.columns)
        held = int(test_share * len(rows))
        if len(rows) - held < 2:
            raise ShapeError(f"{data} leaves {len(rows) - held} rows to learn from: give more, or a smaller share.")
        everything = _Table.of(rows, len(covariates), len(outcomes), known)
        kept = len(rows) - held
        trainings = _learn(own, folder, everything[:kept], resume, not quiet and sys.stderr.isatty())
        found = _compare(own.problem, trainings, everything, kept) if held else []
        note = {"problem": PROBLEM, "covariates": covariates, "outcomes": outcomes}
        last, rest = list(trainings.values())[-1], everything[kept:]
        told = str(last.report(rest.Z, rest.Y, rest.known)).splitlines() if held else []
        last.save(folder / MODEL, note)
        with replacing(copy) as unfinished:
            unfinished.write_bytes(source)
        written = {**note, "rows": found, "report": told, "written": time.strftime("%Y-%m-%d %H:%M")}
        with replacing(folder / RESULTS) as unfinished:
            unfinished.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        _show(f"{problem.stem}: {kept} rows to learn from, {held} to compare on", found)
        if told:
            Console().print(*told, sep="\n", markup=False, highlight=False, soft_wrap=True)
        Console().print(f"Saved in {folder}: {MODEL}, {PROBLEM}, {RESULTS}, and logs for TensorBoard.", highlight=False)


@app.command()
def decide(
    model: Annotated[Path, typer.Argument(help="A folder written by [bold]run[/], or the model file in it.")],
    data: Annotated[
        Path, typer.Argument(help="CSV file with a header row and one context a row; '-' reads standard input.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV file to write; standard output without.")
    ] = None,
    problem: Annotated[
        Path | None, typer.Option(help="The Python file of the problem; the copy beside the model unless given.")
    ] = None,
) -> None:
    """Decide for the contexts of a CSV file with a model that [bold]run[/] saved.

    The file needs the model's covariates and the problem's known data as columns (others are ignored). Every row is
    answered with the decision, by variable, and a status; a row without a decision is left empty.
    """
    with one_sentence():
        from conelayers.internals import no_unsolved_warnings

        learner, covariates = _load(model, problem)
        known = learner.problem.known_data
        given = _Table.of(tables.read(data, covariates, known.columns), len(covariates), 0, known)
        with no_unsolved_warnings():
            # The table and the sentence below report these rows.
            decision = learner.decision(given.Z, given.known)
        from drolayers.learning.policy import column_titles, side_by_side

        # What makes up rules says nothing by itself.
        best = {variable: decision.best[variable] for variable in learner.problem.variables}
        names, values = column_titles(best), side_by_side(best).tolist()
        rows = [
            ["" if number != number else repr(number) for number in row] + [str(status)]
            for row, status in zip(values, decision.statuses, strict=True)
        ]
        tables.write(output, [*names, "status"], rows)
        missing = int((~decision.ok).sum())
        if missing:
            advice = " ".join(sorted({s.advice for s in decision.statuses if not s.ok}))
            raise ModelError(f"{missing} of {len(rows)} contexts have no decision: {advice}")


@contextmanager
def one_sentence(kept: str = "") -> Iterator[None]:
    """What goes wrong in use is told in one sentence; faults of the program keep their traceback.

    ``kept`` says what is not lost when it is interrupted.
    """
    try:
        yield
    except (LayerError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        for python, here in WAYS.items():
            told = told.replace(python, here)
        print(f"drolayers: {' '.join(told.split())}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(f"drolayers: interrupted{kept}.", file=sys.stderr)
        raise typer.Exit(130) from None


@dataclass(frozen=True)
class _Table:
    """Contexts, outcomes and known data of a file."""

    Z: Tensor
    Y: Tensor
    known: Any

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]], covariates: int, outcomes: int, known: KnownData) -> _Table:
        """Rows of so many covariates and outcomes, and of known data behind them."""
        import torch

        table = torch.tensor(rows, dtype=torch.float64)
        Z, Y, told = table.tensor_split((covariates, covariates + outcomes), 1)
        return cls(Z, Y, known.values(told))

    def __getitem__(self, rows: slice) -> _Table:
        known = None if self.known is None else {p: value[rows] for p, value in self.known.items()}
        return _Table(self.Z[rows], self.Y[rows], known)


@dataclass(frozen=True)
class _Own:
    """What a user's Python file defines."""

    problem: DecisionProblem
    learner: DecisionFocusedLearner
    covariates: list[str] | None
    outcomes: list[str] | None

    @classmethod
    def read(cls, path: Path, copied: bool = False) -> _Own:
        """Run the file, as Python would, with its own folder to import from."""
        from drolayers.learning import DecisionFocusedLearner
        from drolayers.problem import DecisionProblem

        if not path.is_file():
            raise ModelError(f"{path} is no file: give a Python file that defines problem = dro.DecisionProblem(...).")
        sys.path.insert(0, str(path.resolve().parent))
        try:
            found = runpy.run_path(str(path), run_name="drolayers_problem")
        except Exception as error:
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
            where = f"{path}, line {lines[-1]}" if lines else str(path)
            told = str(error) if isinstance(error, LayerError) else f"{type(error).__name__}: {error}"
            help_ = " Give the file itself with --problem." if isinstance(error, ImportError) and copied else ""
            raise ModelError(f"{where}: {told}{help_}") from error
        finally:
            sys.path.pop(0)
        if not isinstance(found.get("problem"), DecisionProblem):
            raise ModelError(f"{path} does not define problem = dro.DecisionProblem(...).")
        learner = found.get("learner")
        if learner is None:
            learner = DecisionFocusedLearner(found["problem"])
        if not isinstance(learner, DecisionFocusedLearner) or learner.problem is not found["problem"]:
            raise ModelError(f"learner in {path} must be a dro.DecisionFocusedLearner of its problem, not {learner!r}.")
        for name in ("covariates", "outcomes"):
            value = found.get(name)
            if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
                raise ModelError(f"{name} in {path} must be a list of column names, not {value!r}.")
        named = (list(found[name]) if found.get(name) is not None else None for name in ("covariates", "outcomes"))
        return cls(found["problem"], learner, *named)

    def columns(self, header: Sequence[str], data: str) -> tuple[list[str], list[str]]:
        """The names of covariates and outcomes among the columns of a file."""
        dim = self.problem.ambiguity.y.dim
        header = [name for name in header if name not in self.problem.known_data.columns]
        outcomes = list(header[-dim:]) if self.outcomes is None else self.outcomes
        covariates = self.covariates or [name for name in header if name not in outcomes]
        if len(outcomes) != dim:
            raise ShapeError(f"y has {dim} entries, but there are {len(outcomes)} outcomes: {outcomes}.")
        if both := sorted(set(covariates) & set(outcomes)):
            raise ShapeError(f"{both} are covariates and outcomes at once: a decision cannot know them.")
        if not covariates:
            raise ShapeError(f"{data} has {len(header)} columns, none of them a covariate beside {dim} outcomes.")
        return covariates, outcomes


def _learn(own: _Own, folder: Path, data: _Table, resume: bool, progress: bool) -> dict[str, DecisionFocusedLearner]:
    """A learner that fits sets to data, and one that goes on from it and trains on decisions, where that was asked."""
    from sklearn.base import clone

    found, place = {}, folder / "training"
    first, second = own.learner.pretraining, own.learner.training
    # What is compared begins with another first training than what is fitted alone: each has a folder of its own then.
    apart = second is not None and first is not None and first.rate == "auto" and own.learner.trainer.budget > 0
    for name in ("prediction-focused",) if second is None else ("prediction-focused", "decision-focused"):
        last = name == "decision-focused"
        learner = clone(own.learner)
        where = place / name if apart and not last else place
        trainer = learner.trainer.but(directory=where, resume=resume or (last and not apart), progress=progress)
        learner.set_params(trainer=trainer, training=second if last else None)
        found[name] = learner.fit(data.Z, data.Y, known=data.known)
    return found


def _compare(
    problem: DecisionProblem, learners: dict[str, DecisionFocusedLearner], data: _Table, kept: int
) -> list[dict[str, Any]]:
    """Mean costs on the rows behind the first ``kept``, with their standard errors; none where some are infinite."""
    from drolayers.baselines import WeightedSampleAverage

    first, rest = data[:kept], data[kept:]
    policies: dict[str, Any] = dict(learners)
    # Rules, and prices of distances, belong to sets, and an average has none.
    if not problem.adaptive and all(part.price is None for part in problem.parts):
        average = WeightedSampleAverage(problem).fit(first.Z, first.Y, known=first.known)
        policies = {"weighted sample average": average, **learners}
    rows = []
    for name, policy in policies.items():
        decided = policy.decide(rest.Z, rest.known)
        cost = problem.loss(decided, rest.Y, rest.known)
        cost = cost[~cost.isnan()]
        infinite = int(cost.isinf().sum())
        # JSON has no infinity: where some costs are infinite there is no mean, and their number says why.
        error = float(cost.std() / len(cost) ** 0.5) if len(cost) > 1 and not infinite else None
        mean = float(cost.mean()) if len(cost) and not infinite else None
        found = {"method": name, "mean cost": mean, "standard error": error, "decided": len(cost)}
        rows.append(found | {"infinite": infinite})
    some = any(row["infinite"] for row in rows)
    return rows if some else [{key: value for key, value in row.items() if key != "infinite"} for row in rows]


def _show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table, where there is something to show."""
    if not rows:
        return
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def _load(path: Path, problem: Path | None) -> tuple[DecisionFocusedLearner, list[str]]:
    """A model saved by ``run``, with the names of its covariates."""
    from drolayers.learning import DecisionFocusedLearner
    from drolayers.learning.storage import read_header

    file = path / MODEL if path.is_dir() else path
    header = read_header(file)
    note = header["note"] if isinstance(header.get("note"), dict) else {}
    covariates = note.get("covariates")
    if not isinstance(covariates, list):
        raise ModelError(f"{file} was not saved by 'drolayers run': load it in Python, with the problem it is for.")
    own = _Own.read(problem or file.parent / PROBLEM, copied=problem is None)
    # Parts of the user's own making come from the file; None and names are what was saved.
    parts = {name: getattr(own.learner, name) for name in ("model", "nominal", "projection", "layer")}
    given = {name: part for name, part in parts.items() if part is not None and not isinstance(part, str)}
    return DecisionFocusedLearner.load(file, own.problem, **given), covariates
