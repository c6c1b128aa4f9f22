"""What a user gave, as what was asked for, or one sentence that says what was wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conelayers.errors import ModelError, ShapeError

LARGEST = 2**63
"""Whole numbers are smaller."""


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least some size; NumPy's count, truth values do not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        kind = {0: "nonnegative ", 1: "positive "}.get(least, "")
        raise ModelError(f"{name} must be a {kind}whole number, not {value!r}.")
    if value >= LARGEST:
        raise ModelError(f"{name} must be a whole number below 2**63, not {value!r}.")
    return int(value)


def number(name: str, value: Any) -> float:
    """One real number."""
    try:
        array = numbers(name, value)
    except ModelError:
        array = None
    if array is None or array.shape != ():
        raise ModelError(f"{name} must be one number, not {value!r}.")
    return float(array)


def real(name: str, value: Any) -> None:
    """Refuse what NumPy and torch would silently take a part of, or something else, or of which there are no numbers.

    That is sparse or complex, masked, dates, text, or on torch's meta device.
    """
    rows = value if isinstance(value, list | tuple) else ()
    if _sparse(value) or any(map(_sparse, rows)):
        dense = "to_dense()" if any(hasattr(part, "to_dense") for part in (value, *rows)) else "toarray()"
        give = f"every row's {dense}" if rows else f"{name.split()[-1]}.{dense}"
        raise ShapeError(f"{name} is sparse, which is not supported: give {give}.")
    if getattr(value, "is_nested", False):
        raise ShapeError(
            f"{name} is a nested tensor, whose rows may differ in length: give one with rows of one length."
        )
    if str(getattr(value, "device", "")) == "meta":
        raise ShapeError(f"{name} is on the meta device, where there are no numbers: give it on another one.")
    try:
        typed = value if hasattr(value, "dtype") else np.asarray(value)
        imaginary = value.is_complex() if hasattr(value, "is_complex") else np.iscomplexobj(typed)
    except ValueError:
        # Rows of unequal lengths are told by whoever reads them.
        return
    if imaginary:
        raise ShapeError(f"Complex data not supported: {name} must hold real numbers, in columns of their own.")
    if hasattr(value, "is_complex"):
        # A tensor is neither of what follows, and may be traced.
        return
    if np.ma.is_masked(value):
        raise ShapeError(f"{name} has masked entries: drop or fill them first.")
    told: Any = np.asarray(value) if isinstance(value, list | tuple) else value
    of_columns = getattr(told, "dtypes", ())
    kinds = [getattr(told, "dtype", None), *(of_columns if np.iterable(of_columns) else ())]
    if any(getattr(kind, "kind", "") in ("m", "M") for kind in kinds):
        raise ShapeError(f"{name} holds dates or durations: turn them into numbers of your choice first.")
    framed = hasattr(told, "columns") and hasattr(told, "items")
    if text := [column for column, part in (told.items() if framed else [(None, told)]) if _text(part)]:
        where = f" in its columns {text[:8]}" if framed else ""
        raise ShapeError(
            f"{name} holds text{where}: turn it into numbers first, categories for example by pandas.get_dummies."
        )


def _sparse(part: Any) -> bool:
    """Whether this is sparse, for SciPy or torch."""
    return hasattr(part, "toarray") or str(getattr(part, "layout", "torch.strided")) != "torch.strided"


def _text(part: Any) -> bool:
    """Whether this is text or holds some, be it of digits."""
    kind = getattr(getattr(part, "dtype", None), "kind", "")
    if kind == "O":
        return any(isinstance(entry, str | bytes) for entry in np.asarray(part).ravel())
    return isinstance(part, str | bytes) or kind in ("U", "S")


def finite(name: str, table: Any) -> None:
    """Refuse a matrix, a tensor, with NaN or infinity in some row."""
    bad = ~table.isfinite().all(1)
    if bool(bad.any()):
        rows = bad.nonzero()[:8, 0].tolist()
        raise ShapeError(f"{name} holds NaN or infinity in rows {rows}: drop or fill them first.")


def check_same_index(tables: Mapping[str, Any]) -> None:
    """Refuse pandas objects with unequal indexes, since rows are paired by position.

    Arrays, tensors and lists have no index and fit to any. Tables of unequal lengths are left to other checks.

    Args:
        tables: data by name; a mapping of tables is compared table by table.
    """
    labelled: list[tuple[str, Any]] = []
    for name, table in tables.items():
        parts = (
            {f"{name}[{str(key)!r}]": part for key, part in table.items()}
            if isinstance(table, Mapping)
            else {name: table}
        )
        labelled += [(part_name, part) for part_name, part in parts.items() if hasattr(part, "iloc")]
    for name, table in labelled[1:]:
        first_name, first = labelled[0][0], labelled[0][1].index
        index = table.index
        if len(index) != len(first) or index.equals(first):
            continue
        row = next((k for k, (a, b) in enumerate(zip(first, index, strict=True)) if a != b), 0)
        where = f"first in row {row}: {first[row]!s} and {index[row]!s}"
        reordered = Counter(first) == Counter(index)
        difference = "the same index in another order" if reordered else "different indexes"
        # Labels that occur twice do not say which row is meant.
        align = f"use {name}.loc[{first_name}.index]" if first.is_unique and index.is_unique else "sort both alike"
        raise ShapeError(
            f"{first_name} and {name} have {difference}, {where}. Rows are paired by position: {align}, or give "
            f"{name}.to_numpy() if the rows correspond as they are."
        )


def numbers(name: str, value: Any) -> NDArray[np.float64]:
    """An array of real numbers; infinities are left to the caller."""
    try:
        real(name, value)
        return np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} must hold numbers only, in rows of equal length, not {value!r}.") from error


def directory(folder: Path) -> Path:
    """A directory that can be written to, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ModelError(
            f"The directory {folder} cannot be written to ({error.strerror}): give another one."
        ) from error
    return folder
