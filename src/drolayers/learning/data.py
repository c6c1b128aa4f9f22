"""Data in, whatever it came in; batches out, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from drolayers.errors import ShapeError


def matrix(data: Any, name: str) -> Tensor:
    """A float64 matrix from a tensor, an array, a data frame or nested lists; NaN is refused, with its rows."""
    try:
        values = data.detach().cpu() if isinstance(data, Tensor) else torch.as_tensor(np.array(data, dtype=float))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} must be a table of numbers: {error}") from error
    values = values.double()
    if values.dim() == 1:
        values = values[:, None]
    if values.dim() != 2 or not values.numel():
        raise ShapeError(f"{name} must be a non-empty table of numbers, not of shape {tuple(values.shape)}.")
    bad = ~values.isfinite().all(1)
    if bool(bad.any()):
        rows = bad.nonzero()[:8, 0].tolist()
        raise ShapeError(f"{name} holds NaN or infinity in rows {rows}: drop or fill them first.")
    return values


def column_names(data: Any) -> list[str] | None:
    """The names of the columns of a data frame, where all are text."""
    columns = getattr(data, "columns", None)
    names = None if columns is None else list(columns)
    return names if names is not None and all(isinstance(name, str) for name in names) else None


class Outcomes(Dataset[tuple[Tensor, Tensor, int]]):
    """Contexts, outcomes, and the number of each row in the training data (-1 for rows that are not in it)."""

    def __init__(self, Z: Tensor, Y: Tensor, training: bool) -> None:
        if len(Z) != len(Y):
            raise ShapeError(f"Z has {len(Z)} rows and Y has {len(Y)}: there must be one outcome for each context.")
        self.Z, self.Y, self.training = Z, Y, training

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, int]:
        return self.Z[row], self.Y[row], row if self.training else -1

    def batch(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Several rows at once, possibly none."""
        index = torch.tensor(rows, dtype=torch.int64)
        return self.Z[index], self.Y[index], index if self.training else torch.full_like(index, -1)


class SeededBatches(Sampler[list[int]]):
    """Shuffled batches; with several processes each takes its share of every batch.

    The order is a function of the seed and the epoch, so that a resumed run sees what the interrupted one would have,
    and several processes together see what one would.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.rank, self.processes, self.epoch = rank, processes, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        for start in range(0, self.rows, self.batch_size):
            # A share may be empty: every process takes as many steps as the others.
            yield order[start : start + self.batch_size][self.rank :: self.processes].tolist()


class _Rows(Dataset[int]):
    """Row numbers, which the collation turns into a batch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> int:
        return row


class OutcomeData(pl.LightningDataModule):
    """Training and validation batches."""

    def __init__(
        self, training: Outcomes, validation: Outcomes | None, batch_size: int, seed: int, evaluation_size: int = 256
    ) -> None:
        super().__init__()
        self.training, self.validation = training, validation
        self.batch_size, self.seed, self.evaluation_size = batch_size, seed, evaluation_size

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled by seed and epoch."""
        trainer = self.trainer
        rank, processes = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        sampler = SeededBatches(len(self.training), self.batch_size, self.seed, rank, processes)
        return DataLoader(_Rows(len(self.training)), batch_sampler=sampler, collate_fn=self.training.batch)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """In order; every process sees all of it."""
        return [] if self.validation is None else DataLoader(self.validation, batch_size=self.evaluation_size)
