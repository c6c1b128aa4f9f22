"""What a saved program says about itself, checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from conelayers.errors import ModelError
from conelayers.files import is_count, is_number, misfits, must

SIZES, ORDERS = ("zero", "nonneg", "exp"), ("soc", "psd")
"""The cones of which there is a number, and those of which each has its own."""

SYMMETRY = 1e-9
"""Relative difference up to which a matrix and its transpose are the same: inverses of covariances are rounded."""


def check_program(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise one sentence unless all parts of a program are what they should be, and fit one another.

    That the rows of its cones add up is left to whoever builds them: none has more than there are.

    Args:
        header: of a saved program.
        tensors: in the file, by name.
    """
    rows, columns = (_count(tensors, name) - 1 for name in ("A_indptr", "P_indptr"))
    must("A_indptr and P_indptr", rows >= 0 and columns >= 0, "there, with a start for every row")
    must("columns", is_count(header.get("columns")) and header["columns"] == columns, f"the whole number {columns}")
    _check_cones(header.get("cones"), rows)
    for name in ("variables", "parameters"):
        found = header.get(name)
        must(name, isinstance(found, list) and all(map(_is_slot, found)), "names, offsets and shapes")
    ends = [slot["offset"] + prod(slot["shape"]) for slot in header["variables"]]
    must("variables", max(ends, default=0) <= columns, f"within its {columns} columns")
    features = 0
    for slot in header["parameters"]:
        must("parameters", slot["offset"] == features, "one after another")
        features += prod(slot["shape"])
    must("parameters", is_count(features), "fewer")
    _check_tensors(tensors, rows, columns, features)


def _check_cones(cones: Any, rows: int) -> None:
    """Sizes are whole numbers, none of them larger than the number of rows."""
    known = {*SIZES, *ORDERS, "power"}
    must("cones", isinstance(cones, dict) and cones.keys() <= known, f"sizes by name, of {sorted(known)}")
    for name in SIZES:
        found = cones.get(name, 0)
        must(f"cones.{name}", is_count(found) and found <= rows, f"a whole number of at most {rows}")
    for name in ORDERS:
        found = cones.get(name, [])
        right = isinstance(found, list) and all(is_count(order) and 0 < order <= rows for order in found)
        must(f"cones.{name}", right, f"a list of positive whole numbers of at most {rows}")
    power = cones.get("power", [])
    right = isinstance(power, list) and all(is_number(share) and 0 < share < 1 for share in power)
    must("cones.power", right, "a list of numbers between 0 and 1")


def _is_slot(entry: Any) -> bool:
    """Whether this is where a named array lies."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not is_count(entry.get("offset")):
        return False
    shape = entry.get("shape")
    return isinstance(shape, list) and all(map(is_count, shape)) and is_count(prod(shape))


def _check_tensors(tensors: Mapping[str, Tensor], rows: int, columns: int, features: int) -> None:
    """Shapes and types, and every index where it should be."""
    counts = {name: _count(tensors, f"{name}_indices") for name in ("A", "P")}
    integers = _count(tensors, "integers")
    wanted = {"A_indptr": rows + 1, "P_indptr": columns + 1, "lower_rows": integers, "upper_rows": integers}
    ends = {"integers": columns, "lower_rows": rows, "upper_rows": rows}
    for name, count in counts.items():
        wanted[f"{name}_indices"], ends[f"{name}_indices"] = count, columns
    wanted["integers"], numbers = integers, set()
    for name, count in {**counts, "b": rows, "q": columns, "constant": 1}.items():
        terms = _count(tensors, f"{name}_map.entry")
        parts = {"constant": count, "entry": terms, "column": terms, "coefficient": terms}
        wanted |= {f"{name}_map.{part}": length for part, length in parts.items()}
        ends |= {f"{name}_map.entry": count, f"{name}_map.column": features}
        numbers |= {f"{name}_map.constant", f"{name}_map.coefficient"}
    if why := misfits(tensors, {name: torch.empty(length, device="meta") for name, length in wanted.items()}):
        raise ModelError(f"{why}.")
    for name, value in tensors.items():
        kind = torch.float64 if name in numbers else torch.int64
        must(name, value.dtype == kind, f"of type {kind}")
    for name, end in ends.items():
        must(name, bool(((tensors[name] >= 0) & (tensors[name] < end)).all()), f"whole numbers below {end}")
    for name, count in counts.items():
        starts, indices = tensors[f"{name}_indptr"], tensors[f"{name}_indices"]
        right = int(starts[0]) == 0 and int(starts[-1]) == count and bool((starts.diff() >= 0).all())
        must(f"{name}_indptr", right, f"whole numbers that rise from 0 to {count}")
        # Columns rise within a row: where they do not, a new row begins.
        begins = torch.zeros(count + 1, dtype=torch.bool).index_fill(0, starts, True)[1:-1]
        must(f"{name}_indices", bool((begins | (indices.diff() > 0)).all()), "columns in order, row by row")
    _check_symmetry(tensors, columns)


def _check_symmetry(tensors: Mapping[str, Tensor], columns: int) -> None:
    """P is symmetric but for rounding, whatever the features: a random mixture of its parts is."""
    row = torch.repeat_interleave(torch.arange(columns), tensors["P_indptr"].diff()).numpy()
    constant, entry, feature, coefficient = (
        tensors[f"P_map.{part}"].numpy() for part in ("constant", "entry", "column", "coefficient")
    )
    known, which = np.unique(feature, return_inverse=True)
    share = np.random.default_rng(0).uniform(1.0, 2.0, len(known))[which]
    values = constant + np.bincount(entry, coefficient * share, len(constant))
    matrix = sp.csr_array((values, (row, tensors["P_indices"].numpy())), shape=(columns, columns))
    gap, largest = (np.abs(part.data).max(initial=0.0) for part in (matrix - matrix.T, matrix))
    must("P_map", bool(gap <= SYMMETRY * largest), "symmetric")


def _count(tensors: Mapping[str, Tensor], name: str) -> int:
    """The number of entries of a tensor, zero where it is missing."""
    return tensors[name].numel() if name in tensors else 0
