"""CSV files of numbers, read by the names of their columns; what cannot be read is told with file and line."""

from __future__ import annotations

import csv
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Sequence
from io import StringIO
from math import isfinite
from pathlib import Path

from conelayers.internals import replacing
from drolayers.errors import ShapeError


def header(path: Path) -> list[str]:
    """The names of a file's columns."""
    return _rows(path)[1][0][1]


def read(path: Path, columns: Sequence[str], others: Sequence[str] = ()) -> list[list[float]]:
    """The named columns of a CSV file, and others, which may hold NaN, behind them; '-' reads standard input."""
    name, ((_, found), *rows) = _rows(path)
    wanted = [*columns, *others]
    if missing := [column for column in wanted if column not in found]:
        raise ShapeError(f"{name} lacks the columns {missing}; it has {found}.")
    if not rows:
        raise ShapeError(f"{name} has a header but no rows.")
    places = [found.index(column) for column in wanted]
    values = []
    for line, row in rows:
        entries = [row[place] for place in places]
        try:
            numbers = [_number(entry) for entry in entries]
        except ValueError:
            raise ShapeError(f"Line {line} of {name} needs a number in each of {wanted}, not {entries}.") from None
        if not all(map(isfinite, numbers[: len(columns)])):
            raise ShapeError(f"Line {line} of {name} holds NaN or infinity: drop the line, or fill it.")
        values.append(numbers)
    return values


def write(path: Path | None, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A CSV file, or standard output."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    if path is None:
        sys.stdout.write(text.getvalue())
        return
    with replacing(path) as unfinished:
        unfinished.write_text(text.getvalue(), encoding="utf-8", newline="")


def _rows(path: Path) -> tuple[str, list[tuple[int, list[str]]]]:
    """The name of a file and its rows, the header first, each with the line where it ends; all of one length."""
    piped = str(path) == "-"
    name = "standard input" if piped else str(path)
    text = _text(sys.stdin.buffer.read() if piped else path.read_bytes(), name)
    reader = csv.reader(StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ShapeError(f"Line {reader.line_num} of {name} is not CSV: {error}.") from None
    if not rows:
        raise ShapeError(f"{name} is empty: its first line must name the columns.")
    found = [field.strip() for field in rows[0][1]]
    if not any(found):
        raise ShapeError(f"Line 1 of {name} is blank: it must name the columns.")
    _check_names(name, found)
    for line, row in rows[1:]:
        if not any(entry.strip() for entry in row):
            raise ShapeError(f"Line {line} of {name} is blank: delete it, or give its numbers.")
        if len(row) != len(found):
            raise ShapeError(f"Line {line} of {name} has {len(row)} entries where there are {len(found)} columns.")
    return name, [(1, found), *rows[1:]]


def _check_names(name: str, found: list[str]) -> None:
    """Refuse a first line that does not name every column once, between commas."""
    if len(found) == 1 and (others := [mark for mark in ";\t|" if mark in found[0]]):
        raise ShapeError(f"Line 1 of {name} has {others[0]!r} between its columns: save the file with commas.")
    if unnamed := [k + 1 for k, column in enumerate(found) if not column]:
        raise ShapeError(f"Line 1 of {name} has no name for column {unnamed[0]}: give every column one.")
    if twice := sorted({column for column in found if found.count(column) > 1}):
        raise ShapeError(f"Line 1 of {name} has several columns called {twice}: give each a name of its own.")
    if all(_is_number(column) for column in found):
        raise ShapeError(f"Line 1 of {name} holds numbers where the names of the columns must be: add a header.")


def _text(data: bytes, name: str) -> str:
    """Text in UTF-8, with or without its mark."""
    # The longer marks first: one of them begins with another.
    for mark, width in ((BOM_UTF32_LE, 32), (BOM_UTF32_BE, 32), (BOM_UTF16_LE, 16), (BOM_UTF16_BE, 16)):
        if data.startswith(mark):
            raise ShapeError(f"Line 1 of {name} is in UTF-{width}: save the file as UTF-8.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ShapeError(f"Line {line} of {name} is not in UTF-8: save the file as UTF-8.") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ShapeError(f"Line {line} of {name} holds a zero byte: this is no text file.")
    return text


def _number(entry: str) -> float:
    """A number as it is written in tables: Python's own underscores are none."""
    if "_" in entry:
        raise ValueError
    return float(entry)


def _is_number(entry: str) -> bool:
    try:
        _number(entry)
    except ValueError:
        return False
    return True
