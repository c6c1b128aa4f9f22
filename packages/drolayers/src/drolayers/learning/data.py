"""Data in, whatever it came in; batches out, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from conelayers.internals import check_same_index, finite, number, real, row_weights
from drolayers.ambiguity.base import beyond
from drolayers.errors import ModelError, ShapeError
from drolayers.panels import entry
from drolayers.problem import DecisionProblem
from drolayers.support import Box

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Contexts, outcomes, numbers of the rows, and known data."""


def matrix(data: Any, name: str) -> Tensor:
    """A float64 matrix from a tensor, an array, a data frame or nested lists; NaN is refused, with its rows."""
    real(name, data)
    try:
        values = data.detach().cpu() if isinstance(data, Tensor) else torch.as_tensor(np.array(data, dtype=float))
    except (TypeError, ValueError) as error:
        if wrong := _no_numbers(data):
            raise ShapeError(
                f"{name} must be a table of numbers, which its columns {wrong[:8]} are not: encode categories, for "
                "example by pandas.get_dummies, and fill what is missing."
            ) from error
        raise ShapeError(f"{name} must be a table of numbers: {error}") from error
    values = values.double()
    if values.dim() == 1:
        values = values[:, None]
    if values.dim() != 2 or not values.numel():
        raise ShapeError(f"{name} must be a non-empty table of numbers, not of shape {tuple(values.shape)}.")
    finite(name, values)
    return values


def check_width(Z: Any, contexts: Tensor, width: int) -> None:
    """Raise unless contexts have as many columns as in training.

    Args:
        Z: contexts as the user gave them.
        contexts: the same as a matrix.
        width: number of columns in training.
    """
    if contexts.shape[1] == width:
        return
    message = f"Z must have {width} columns, as in training, not {contexts.shape[1]}."
    if np.ndim(Z) == 1 and len(Z) == width:
        message = f"Z is one row of {width} numbers, not a table: pass Z[:1] or Z[None] for one context."
    raise ShapeError(message)


def _no_numbers(data: Any) -> list[Any]:
    """The columns of a data frame that hold something else, or miss entries of a kind that is not NaN."""
    wrong = []
    for name, column in data.items() if hasattr(data, "columns") and hasattr(data, "items") else ():
        try:
            [float(entry) for entry in column]
        except (TypeError, ValueError):
            wrong.append(name)
    return wrong


def column_names(data: Any) -> list[str] | None:
    """The names of the columns of a data frame, where all are text."""
    columns = getattr(data, "columns", None)
    names = None if columns is None else list(columns)
    return names if names is not None and all(isinstance(name, str) for name in names) else None


def same_columns(table: Any, name: str, known: list[str] | None) -> None:
    """Data frames have the columns of those of training, in the same order."""
    names = column_names(table)
    if names is not None and known is not None and names != known:
        raise ShapeError(f"{name} must have the columns {known}, in this order, as in training, not {names}.")


@final
@dataclass(frozen=True, eq=False)
class Examples:
    """Contexts, outcomes and known data; their rows are numbered from ``first`` on among all points of a training.

    ``weights`` are positive and have mean one; None stands for equal weights.
    """

    Z: Tensor
    Y: Tensor
    first: int = 0
    known: Tensor = torch.zeros(0, 0)  # noqa: RUF009 (replaced)
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.known.numel():
            object.__setattr__(self, "known", self.Z.new_zeros(len(self.Z), 0))
        if len(self.Z) != len(self.Y):
            raise ShapeError(
                f"Z has {len(self.Z)} rows and Y has {len(self.Y)}: there must be one outcome for each context."
            )

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, rows: Any) -> Examples:
        weights = None if self.weights is None else row_weights(self.weights[rows], len(self.Z[rows]))
        return Examples(self.Z[rows], self.Y[rows], known=self.known[rows], weights=weights)

    def batch(self, rows: list[int]) -> Batch:
        """Several rows at once, possibly none, with their numbers."""
        index = torch.tensor(rows, dtype=torch.int64)
        return self.Z[index], self.Y[index], index + self.first, self.known[index]


def examples(
    problem: DecisionProblem,
    Z: Any,
    Y: Any,
    known: Any = None,
    what: str = "",
    first: int = 0,
    sample_weight: Any = None,
) -> Examples:
    """Check contexts, outcomes and known data, and drop the rows of weight zero."""
    tables = {"Z": Z, "Y": Y, "known": known, "sample_weight": sample_weight}
    check_same_index({f"{what}{name}": table for name, table in tables.items()})
    contexts, realised = matrix(Z, f"{what}Z"), outcomes(problem, Y, what)
    table = problem.known_data.table(known, len(contexts), f"{what}known", strict=True)
    weights = row_weights(sample_weight, len(contexts), f"{what}sample_weight")
    if weights is not None and len(realised) == len(weights):
        counted = weights > 0
        contexts, realised, table, weights = (part[counted] for part in (contexts, realised, table, weights))
    return Examples(contexts, realised, first, table, weights)


def outcomes(problem: DecisionProblem, Y: Any, what: str = "") -> Tensor:
    """Outcomes as a matrix with a column for each coordinate of ``y``."""
    found, dim = matrix(problem.ambiguity.y.rows(Y), f"{what}Y"), problem.ambiguity.y.dim
    if found.shape[1] != dim:
        raise ShapeError(f"{what}Y must have {dim} columns, not {found.shape[1]}.")
    return found


def outside_support(problem: DecisionProblem, Y: Tensor, known: Any, what: str = "") -> str | None:
    """Describe the outcomes ``(n, dim)`` that lie outside of the support of ``y``; None if all lie inside.

    Args:
        problem: the decision problem.
        Y: outcomes.
        known: values of ``problem.known``, as ``problem.known_data.values`` returns them.
        what: which outcomes they are.
    """
    y = problem.ambiguity.y
    rows = beyond(y, Y, known).nonzero()[:, 0].tolist()
    if not rows:
        return None
    first = rows[0]
    shown, listed = f"{y.name()} = [{', '.join(f'{value:g}' for value in Y[first, :4].tolist())}]", rows[:8]
    for box in (part for part in getattr(y.support, "parts", (y.support,)) if isinstance(part, Box)):
        low, high = (end.expand(len(Y), -1)[first] for end in box.ends(y.dim, known))
        distance = torch.maximum(low - Y[first], Y[first] - high)
        if float(distance.max()) > 0.0:
            column = int(distance.argmax())
            shown = f"{entry(y.shape, column)} = {float(Y[first, column]):g}"
    more = ", ..." if len(rows) > len(listed) else ""
    count, where = f"{len(rows)} of {len(Y)} {what}outcomes", f"[{', '.join(map(str, listed))}{more}]"
    return (
        f"{count} ({len(rows) / len(Y):.0%}) lie outside of the support {y.support!r} of {y.name()}, in rows {where}, "
        f"such as {shown} in row {first}"
    )


def check_in_support(problem: DecisionProblem, data: Examples, what: str = "") -> None:
    """Raise where outcomes lie outside of the support of ``y`` by more than rounding."""
    if description := outside_support(problem, data.Y, problem.known_data.values(data.known), what):
        raise ModelError(f"{description}: clip or drop them, or choose a support that holds them.")


def warn_outside_support(problem: DecisionProblem, Y: Tensor, known: Any = None) -> None:
    """Warn where costs are those of outcomes outside of the support of ``y``."""
    if description := outside_support(problem, Y, known):
        warnings.warn(f"{description}: the worst case does not bound their costs.", stacklevel=4)


def split(
    problem: DecisionProblem, everything: Examples, validation: Any, share: float, seed: int
) -> tuple[Examples, Examples | None]:
    """Training and validation data: those that were given, or a share of the data, drawn at random."""
    if validation is not None:
        if not isinstance(validation, tuple | list) or not 2 <= len(validation) <= 4:
            wanted = "(Z, Y, known)" if problem.known else "a pair (Z, Y)"
            raise ShapeError(
                f"validation must be {wanted}, or (Z, Y, known, sample_weight), not {type(validation).__name__}."
            )
        Z, Y, known, weights = (*validation, None, None)[:4]
        held_out = examples(problem, Z, Y, known, "validation ", len(everything), weights)
        check_in_support(problem, held_out, "validation ")
        if held_out.Z.shape[1] != everything.Z.shape[1] or held_out.Y.shape[1] != everything.Y.shape[1]:
            raise ShapeError("Validation data must have the columns of the training data.")
        return everything, held_out
    return _parted("validation_share", everything, share, np.random.default_rng(seed))


def held_back(everything: Examples, share: float, seed: int) -> tuple[Examples, Examples | None]:
    """Data to learn from, and a share of them, drawn at random, to calibrate on."""
    return _parted("calibration_share", everything, share, np.random.default_rng([seed, 1]))


def _parted(
    name: str, everything: Examples, share: float, generator: np.random.Generator
) -> tuple[Examples, Examples | None]:
    """All but a share, drawn at random, and that share."""
    if not 0 <= number(name, share) < 1:
        raise ModelError(f"{name} must lie in [0, 1), not {share}.")
    held = int(len(everything) * share)
    if not held:
        return everything, None
    order = torch.as_tensor(generator.permutation(len(everything)))
    # In their own order: a policy may ask for the latest training points.
    kept, rest = everything[order[held:].sort().values], everything[order[:held].sort().values]
    return kept, replace(rest, first=len(kept))


class SeededBatches(Sampler[list[int]]):
    """Shuffled batches; with several processes each takes its share of every batch.

    The order is a function of the seed and the epoch, so that a resumed run sees what the interrupted one would have,
    and several processes together see what one would.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.rank, self.processes, self.epoch = rank, processes, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before every epoch, of what a loader has as ``sampler``, not as ``batch_sampler``."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        for start in range(0, self.rows, self.batch_size):
            # A share may be empty: every process takes as many steps as the others.
            yield order[start : start + self.batch_size][self.rank :: self.processes].tolist()


class _Rows(Dataset[Any]):
    """Row numbers, one or many, which the collation turns into a batch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: Any) -> Any:
        return row


class ExampleData(pl.LightningDataModule):
    """Training and validation batches."""

    def __init__(
        self, training: Examples, validation: Examples | None, batch_size: int, seed: int, evaluation_size: int = 256
    ) -> None:
        super().__init__()
        self.training, self.validation = training, validation
        self.batch_size, self.seed, self.evaluation_size = batch_size, seed, evaluation_size

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled by seed and epoch."""
        trainer = self.trainer
        rank, processes = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        sampler = SeededBatches(len(self.training), self.batch_size, self.seed, rank, processes)
        rows = _Rows(len(self.training))
        return DataLoader(rows, batch_size=None, sampler=sampler, collate_fn=self.training.batch)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """In order; every process sees all of it."""
        if self.validation is None:
            return []
        rows = _Rows(len(self.validation))
        return DataLoader(rows, batch_size=self.evaluation_size, collate_fn=self.validation.batch)
