"""CSV files of numbers, read by the names of their columns."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from drolayers.errors import ShapeError


def header(path: Path) -> list[str]:
    """The names of a file's columns."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [name.strip() for name in next(csv.reader(file, skipinitialspace=True), [])]


def read(path: Path, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of a CSV file; '-' reads standard input."""
    if str(path) == "-":
        return _table(sys.stdin, "standard input", columns)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return _table(file, str(path), columns)


def write(path: Path | None, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A CSV file, or standard output."""
    if path is None:
        _write(sys.stdout, names, rows)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            _write(file, names, rows)


def _table(file: TextIO, name: str, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of an open file."""
    try:
        reader = csv.DictReader(file, skipinitialspace=True, strict=True)
        found = [field.strip().removeprefix("\ufeff") for field in reader.fieldnames or []]
        if twice := sorted({column for column in found if found.count(column) > 1}):
            raise ShapeError(f"{name} has several columns called {twice}: give each a name of its own.")
        if missing := [column for column in columns if column not in found]:
            raise ShapeError(f"{name} lacks the columns {missing}; it has {found}.")
        reader.fieldnames = found
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ShapeError(f"{name} is not a CSV file: {error}.") from error
    if not rows:
        raise ShapeError(f"{name} has a header but no rows.")
    values = []
    for number, row in rows:
        if None in row or None in row.values():
            raise ShapeError(f"Line {number} of {name} has not as many entries as there are columns, {len(found)}.")
        try:
            values.append([float(row[column]) for column in columns])
        except (TypeError, ValueError):
            entries = [row[column] for column in columns]
            raise ShapeError(
                f"Line {number} of {name} needs a number in each of {list(columns)}, not {entries}."
            ) from None
    return values


def _write(file: TextIO, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under a header."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
