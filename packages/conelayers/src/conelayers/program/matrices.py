"""Programs given by their matrices instead of a CVXPY problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from conelayers.checks import number, numbers, whole
from conelayers.errors import ModelError, ShapeError
from conelayers.program.program import AffineMap, ConeProgram, Cones, Slot

NAMES = ("P", "q", "A", "b")
"""The parameters, in their order among the features."""

SYMMETRIC_REL = 1e-9
"""Largest difference between P and its transpose, relative to its largest entry, that counts as rounding."""


def program_from_matrices(
    P: Any, q: Any, A: Any, b: Any, cones: Mapping[str, Any] | Cones, parameters: Sequence[str] | None = None
) -> ConeProgram:
    """Build the program  minimise ½xᵀPx + qᵀx  subject to  Ax + s = b, s ∈ K.

    Args:
        P: symmetric positive semidefinite matrix ``(columns, columns)``; None for a linear objective.
        q: ``(columns,)``.
        A: ``(rows, columns)``.
        b: ``(rows,)``.
        cones: the cone K, as ``{"zero": 2, "nonneg": 3, "soc": [4, 3], "psd": [2], "exp": 1, "power": [0.5]}`` in this
            order of rows; kinds that do not occur may be left out. "psd" has orders of matrices, whose rows are the
            upper triangle column by column, off the diagonal times √2.
        parameters: which of "P", "q", "A" and "b" are the features, in their order; the others are constants. All by
            default, but for a P of None. Features of a dense matrix are all its entries, of a sparse one the stored
            entries by rows.
    """
    if parameters is None:
        parameters = [name for name in NAMES if name != "P" or P is not None]
    unknown = sorted(set(parameters) - set(NAMES))
    if unknown or len(set(parameters)) < len(parameters):
        raise ModelError(f"`parameters` must be different names among {list(NAMES)}, got {list(parameters)}.")
    q, b = (_vector(name, value) for name, value in (("q", q), ("b", b)))
    rows, columns = b.size, q.size
    P, A = (_from_torch(M) for M in (sp.csr_array((columns, columns)) if P is None else P, A))
    dense_P, dense_A = not sp.issparse(P), not sp.issparse(A)
    P = _matrix("P", P, (columns, columns), keep_zeros="P" in parameters)
    A = _matrix("A", A, (rows, columns), keep_zeros="A" in parameters)
    for name, constant in (("P", P.data), ("q", q), ("A", A.data), ("b", b)):
        if name not in parameters and not np.isfinite(constant).all():
            raise ModelError(f"`{name}` holds NaN or infinity. Leave out rows without a bound.")
    K = _cones(cones)
    if K.rows != rows:
        raise ShapeError(f"The cones have {K.rows} rows in all, but A has {rows}. Adapt `cones`.")
    if P.nnz and abs(P - P.T).max() > SYMMETRIC_REL * abs(P).max():
        raise ModelError(
            "P must be symmetric. Use `(P + P.T) / 2`, which has the same quadratic form; if P holds one triangle of a "
            "symmetric matrix, use `P + P.T - diag(P)`."
        )
    # Every entry of the quadratic form is the mean of an entry and its mirror image, so that gradients are symmetric.
    pattern = sp.csr_array((np.ones(P.nnz), P.indices, P.indptr), shape=P.shape)
    union = sp.csr_array(pattern + pattern.T)
    union.sort_indices()
    terms = {"P": _mirror(P, union), "q": _identity(columns), "A": _identity(A.nnz), "b": _identity(rows)}
    stored = {"P": P.data, "q": q, "A": A.data, "b": b}
    shapes = {
        "P": P.shape if dense_P else (P.nnz,),
        "q": (columns,),
        "A": A.shape if dense_A else (A.nnz,),
        "b": (rows,),
    }
    slots, offset = [], 0
    for name in parameters:
        slots.append(Slot(name, offset, tuple(map(int, shapes[name])), -1))
        offset += slots[-1].size
    offsets = {slot.name: slot.offset for slot in slots}
    maps = {name: _affine(terms[name], stored[name], offsets.get(name)) for name in NAMES}
    nothing = sp.csr_array((1, 0))
    return ConeProgram(
        cones=K,
        columns=columns,
        A_indptr=_long(A.indptr),
        A_indices=_long(A.indices),
        P_indptr=_long(union.indptr),
        P_indices=_long(union.indices),
        A_map=maps["A"],
        b_map=maps["b"],
        q_map=maps["q"],
        P_map=maps["P"],
        constant_map=_affine(nothing, np.zeros(0), None),
        variables=(Slot("x", 0, (columns,), -1),),
        parameters=tuple(slots),
    )


def _vector(name: str, value: Any) -> np.ndarray:
    """Return a vector of floats."""
    array = numbers(f"`{name}`", _from_torch(value))
    if array.ndim != 1:
        raise ShapeError(f"`{name}` must be a vector, got shape {array.shape}.")
    return array


def _from_torch(value: Any) -> Any:
    """Return a tensor as a NumPy array, or as a SciPy array if it is sparse; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if value.layout == torch.strided:
        return value.numpy()
    entries = value.to_sparse_coo().coalesce()
    return sp.csr_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(value.shape))


def _matrix(name: str, value: Any, shape: tuple[int, int], keep_zeros: bool) -> sp.csr_array:
    """Return a matrix by rows, sorted; with ``keep_zeros`` all entries of a dense one are stored."""
    if sp.issparse(value):
        matrix = sp.csr_array(value, dtype=float)
    else:
        array = numbers(f"`{name}`", value)
        if array.ndim != 2:
            raise ShapeError(f"`{name}` must have shape {shape}, got {array.shape}.")
        index = np.indices(array.shape).reshape(2, -1)
        matrix = sp.csr_array(sp.coo_array((array.ravel(), index), shape=array.shape))
    if matrix.shape != shape:
        raise ShapeError(f"`{name}` must have shape {shape}, got {matrix.shape}.")
    matrix.sum_duplicates()
    if not keep_zeros:
        matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def _cones(cones: Mapping[str, Any] | Cones) -> Cones:
    """Return cones from their sizes by name."""
    if isinstance(cones, Cones):
        return cones
    if not isinstance(cones, Mapping):
        raise ModelError(f"`cones` must be a dict such as {{'zero': 2, 'nonneg': 3}}, got {type(cones).__name__}.")
    known = ("zero", "nonneg", "soc", "psd", "exp", "power")
    unknown = sorted(set(cones) - set(known))
    if unknown:
        raise ModelError(f"Unknown cones {unknown}. Choose among {list(known)}.")
    sizes: dict[str, Any] = {}
    for kind, size in cones.items():
        if kind in ("zero", "nonneg", "exp"):
            sizes[kind] = whole(f"The number of {kind} cones", size, 0)
            continue
        if not np.iterable(size):
            raise ModelError(f"cones[{kind!r}] must be a list with one entry for each cone, got {size!r}.")
        entries = list(size)
        if kind == "power":
            sizes[kind] = tuple(number("An exponent of a power cone", entry) for entry in entries)
            if not all(0 < exponent < 1 for exponent in sizes[kind]):
                raise ModelError(f"Exponents of power cones must be between 0 and 1, got {entries}.")
        else:
            sizes[kind] = tuple(whole(f"The size of a {kind} cone", entry, 1) for entry in entries)
    return Cones(**sizes)


def _identity(size: int) -> sp.csr_array:
    """Return the identity."""
    return sp.csr_array(sp.eye_array(size))


def _mirror(P: sp.csr_array, union: sp.csr_array) -> sp.csr_array:
    """Return the linear map from the stored entries of P to those of (P + Pᵀ)/2, whose pattern is ``union``."""
    row, column = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr)), P.indices
    keys = np.repeat(np.arange(P.shape[0]), np.diff(union.indptr)) * P.shape[1] + union.indices
    entry = np.concatenate(
        [np.searchsorted(keys, row * P.shape[1] + column), np.searchsorted(keys, column * P.shape[1] + row)]
    )
    stored = np.tile(np.arange(P.nnz), 2)
    return sp.csr_array((np.full(entry.size, 0.5), (entry, stored)), shape=(union.nnz, P.nnz))


def _affine(terms: sp.csr_array, stored: np.ndarray, offset: int | None) -> AffineMap:
    """Return a map from the features at an offset, or from none, with its value at the stored numbers."""
    if offset is None:
        entries = sp.coo_array((terms.shape[0], 0))
        constant, offset = terms @ stored, 0
    else:
        entries, constant = sp.coo_array(terms), np.zeros(terms.shape[0])
    return AffineMap(
        torch.from_numpy(np.ascontiguousarray(constant, dtype=np.float64)),
        _long(entries.row),
        offset + _long(entries.col),
        torch.from_numpy(np.ascontiguousarray(entries.data, dtype=np.float64)),
    )


def _long(values: Any) -> Tensor:
    """Return indices as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
