"""A cone program of fixed structure whose data are affine in a parameter vector.

    minimise  ½ xᵀPx + qᵀx + constant   subject to  Ax + s = b,  s ∈ K

``P``, ``A``, ``q``, ``b`` and the constant are affine functions of *features*. Their pattern is fixed, so that a whole
batch of programs is one gather and one scatter away from one batch of features. Nothing here needs CVXPY: a program
that was compiled once (``compile.py``) can be saved, and loaded where CVXPY is not installed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from conelayers.errors import ModelError, ShapeError
from conelayers.files import load, must, save
from conelayers.numbering import Numbered
from conelayers.program.stored import check_program
from conelayers.transforms import wraps_all

SYMMETRIC = frozenset({"zero", "nonneg", "soc"})
"""The cones of our method."""

EVERY_CONE = frozenset({"zero", "nonneg", "soc", "psd", "exp", "power"})

FORMAT = 2

T = TypeVar("T")

_LOCK = threading.Lock()
_KNOWN: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def once(owner: Any, key: Any, make: Callable[[], T]) -> T:
    """What is known of an object under a key, made when first asked for; it must not refer to the object."""
    with _LOCK:
        known = _KNOWN.setdefault(owner, {})
    if key not in known:
        # What is made while nothing is differentiated serves others who differentiate.
        with torch.inference_mode(False), torch.no_grad():
            made = make()
        if wraps_all():
            # It ends with the transform.
            return made
        with _LOCK:
            known.setdefault(key, made)
    found: T = known[key]
    return found


@dataclass(frozen=True)
class Cones:
    """The cone K as a product, in the order in which its rows stand.

    Args:
        zero: rows with ``s = 0``.
        nonneg: rows with ``s ≥ 0``.
        soc: dimensions of the second-order cones, ``s[0] ≥ ‖s[1:]‖``.
        psd: orders of the semidefinite cones, whose rows are laid out as ``semidefinite.py`` says.
        exp: number of exponential cones (three rows each).
        power: exponents of the power cones ``s₀^α s₁^(1-α) ≥ |s₂|`` (three rows each).
    """

    zero: int = 0
    nonneg: int = 0
    soc: tuple[int, ...] = ()
    psd: tuple[int, ...] = ()
    exp: int = 0
    power: tuple[float, ...] = ()
    blocks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Rows of each cone that follows the linear ones."""
    rows: int = field(init=False, repr=False, compare=False)
    """Number of rows of A."""
    kinds: frozenset[str] = field(init=False, repr=False, compare=False)
    """Names of the cones that occur."""

    def __post_init__(self) -> None:
        triangles = (order * (order + 1) // 2 for order in self.psd)
        blocks = (*self.soc, *triangles, *[3] * (self.exp + len(self.power)))
        rows, kinds = self.zero + self.nonneg + sum(blocks), frozenset(k for k, v in self.given.items() if v)
        vars(self).update(blocks=blocks, rows=rows, kinds=kinds)

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> Cones:
        """Those of a saved program."""
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in header["cones"].items()}
        return cls(**given)

    @property
    def polyhedral(self) -> bool:
        """Whether the cone is an orthant times a subspace."""
        return self.kinds <= {"zero", "nonneg"}

    @property
    def given(self) -> dict[str, Any]:
        """What it was made from, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}


@dataclass(frozen=True, eq=False)
class AffineMap:
    """``features -> constant + Σ coefficient · features[column]``, added up at ``entry``."""

    constant: Float[Tensor, "size"]
    entry: Int[Tensor, "terms"]
    column: Int[Tensor, "terms"]
    coefficient: Float[Tensor, "terms"]

    @property
    def varies(self) -> bool:
        """Whether the values depend on the features at all."""
        return self.entry.numel() > 0

    def __call__(self, features: Float[Tensor, "batch feature"]) -> Float[Tensor, "batch size"]:
        """The values for a batch; a constant map is stored once and expanded, not copied."""
        like = self._like(features)
        constant = like.constant.expand(features.shape[0], -1)
        if not self.varies:
            return constant
        return constant.index_add(1, like.entry, features[:, like.column] * like.coefficient)

    def pull(self, gradient: Float[Tensor, "batch size"], size: int) -> Float[Tensor, "batch feature"]:
        """The gradient with respect to so many features."""
        like = self._like(gradient)
        terms = gradient[:, like.entry] * like.coefficient
        return gradient.new_zeros(len(gradient), size).index_add(1, like.column, terms)

    def _like(self, numbers: Tensor) -> AffineMap:
        """The same on the device of some numbers, and of their type."""

        def copy() -> AffineMap:
            constant, coefficient = self.constant.to(numbers), self.coefficient.to(numbers)
            return AffineMap(constant, self.entry.to(numbers.device), self.column.to(numbers.device), coefficient)

        return once(self, (numbers.device, numbers.dtype), copy)


@dataclass(frozen=True)
class Slot:
    """Where a named array lives in a flat vector."""

    name: str
    offset: int
    shape: tuple[int, ...]
    key: int = -1
    leaf: Any = field(default=None, compare=False, repr=False)
    """The variable or parameter of CVXPY itself, whose number the key is; None where it was read from a file."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(torch.Size(self.shape).numel())

    @property
    def header(self) -> dict[str, Any]:
        """What a file says of it."""
        return {"name": self.name, "offset": self.offset, "shape": self.shape, "key": self.key}

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        # It never changes, and a copy of a leaf is another one.
        return self


@dataclass(frozen=True, eq=False)
class Values:
    """The numbers of a batch of programs of one structure."""

    P: Float[Tensor, "batch nnz_P"]
    A: Float[Tensor, "batch nnz_A"]
    q: Float[Tensor, "batch column"]
    b: Float[Tensor, "batch row"]
    constant: Float[Tensor, "batch"]

    def __len__(self) -> int:
        return self.q.shape[0]

    def __getitem__(self, items: Tensor) -> Values:
        """The programs of some items; matrices that all items share stay shared."""
        matrices = [M[:1].expand(int(items.numel()), -1) if M.stride(0) == 0 else M[items] for M in (self.P, self.A)]
        return Values(matrices[0], matrices[1], self.q[items], self.b[items], self.constant[items])

    def detach(self) -> Values:
        """The same numbers, outside any graph."""
        return Values(*(getattr(self, f.name).detach() for f in fields(self)))


class Index(NamedTuple):
    """Where the numbers of a program stand: row and column of every entry of A and P, and its integers."""

    row: Int[Tensor, "nnz_A"]
    column: Int[Tensor, "nnz_A"]
    P_row: Int[Tensor, "nnz_P"]
    P_column: Int[Tensor, "nnz_P"]
    integers: Int[Tensor, "integer"]
    lower: Int[Tensor, "integer"]
    upper: Int[Tensor, "integer"]


def copy_array(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor into a numpy array that may be cached.

    Pickling for another process moves the tensor's storage into shared memory. A view would then read freed memory.
    """
    return tensor.numpy().copy()


def row_index(indptr: Tensor) -> Tensor:
    """The row of every stored entry of a CSR matrix."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())


@dataclass(frozen=True, eq=False)
class ConeProgram(Numbered):
    """The structure of a family of cone programs and the affine map from features to their data.

    Matrices are stored by rows (CSR); ``P`` is the full symmetric matrix. Every integer column has its own two rows,
    ``-x ≤ -lower`` and ``x ≤ upper``, so that branching and fixing only write into ``b``.
    """

    cones: Cones
    columns: int
    A_indptr: Int[Tensor, "row+1"]
    A_indices: Int[Tensor, "nnz_A"]
    P_indptr: Int[Tensor, "column+1"]
    P_indices: Int[Tensor, "nnz_P"]
    A_map: AffineMap
    b_map: AffineMap
    q_map: AffineMap
    P_map: AffineMap
    constant_map: AffineMap
    variables: tuple[Slot, ...]
    parameters: tuple[Slot, ...]
    integers: Int[Tensor, "integer"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    lower_rows: Int[Tensor, "integer"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    upper_rows: Int[Tensor, "integer"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    rows: int = field(init=False, repr=False)
    """Number of rows of A."""
    nonzeros: int = field(init=False, repr=False)
    """Number of structural non-zeros of A."""
    feature_size: int = field(init=False, repr=False)
    """Number of features."""
    quadratic: bool = field(init=False, repr=False)
    """Whether the objective has a quadratic part."""
    integer_bounds: tuple[Float[Tensor, "integer"], Float[Tensor, "integer"]] = field(init=False, repr=False)
    """The box of the integer columns, as compiled."""

    def __post_init__(self) -> None:
        box, sizes = self.b_map.constant, (slot.size for slot in self.parameters)
        vars(self).update(
            rows=self.cones.rows,
            nonzeros=self.A_indices.numel(),
            feature_size=sum(sizes),
            quadratic=self.P_indices.numel() > 0,
            # Adding zero turns the minus zero of a negated zero into zero.
            integer_bounds=(0.0 - box[self.lower_rows], box[self.upper_rows]),
        )

    @property
    def flat(self) -> bool:
        """Whether the solution map is constant almost everywhere: polyhedral, features in the objective alone."""
        return (
            self.cones.polyhedral
            and not self.quadratic
            and not (self.A_map.varies or self.b_map.varies or self.P_map.varies)
        )

    def on(self, device: torch.device) -> Index:
        """The indices of this program on a device."""

        def copy() -> Index:
            entries = row_index(self.A_indptr), self.A_indices, row_index(self.P_indptr), self.P_indices
            return Index(*(t.to(device) for t in (*entries, self.integers, self.lower_rows, self.upper_rows)))

        return once(self, ("index", device), copy)

    def sides(self) -> tuple[NDArray[np.int64], ...]:
        """A by rows, as starts and columns, and by columns: the order of its entries, starts and rows."""
        column = copy_array(self.A_indices)
        order = np.argsort(column, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=self.columns))])
        return copy_array(self.A_indptr), column, order, starts, row_index(self.A_indptr).numpy()[order]

    def values(self, features: Float[Tensor, "batch feature"]) -> Values:
        """The data of a batch of programs, differentiable in the features."""
        self.check(features)
        features = features.double()
        maps = (self.P_map, self.A_map, self.q_map, self.b_map, self.constant_map)
        P, A, q, b, constant = (affine(features) for affine in maps)
        return Values(P, A, q, b, constant[:, 0])

    def within(
        self, values: Values, lower: Float[Tensor, "batch integer"], upper: Float[Tensor, "batch integer"]
    ) -> Values:
        """The same programs with their integer columns confined to a box (or fixed, where both ends agree)."""
        expected = (len(values.q), self.integers.numel())
        for name, bound in (("lower", lower), ("upper", upper)):
            if tuple(bound.shape) != expected:
                raise ShapeError(
                    f"The {name} ends of the integer box must have shape {expected}, not {tuple(bound.shape)}."
                )
        b = values.b.clone()
        b[:, self.on(b.device).lower] = -lower.to(b)
        b[:, self.on(b.device).upper] = upper.to(b)
        return replace(values, b=b)

    def check(self, features: Tensor) -> None:
        """Raise unless features have the shape and type that this program needs."""
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise ShapeError(
                f"features must be a floating-point tensor, not {getattr(features, 'dtype', type(features).__name__)}."
            )
        if features.dim() != 2 or features.shape[1] != self.feature_size:
            raise ShapeError(f"features must have shape (batch, {self.feature_size}), not {tuple(features.shape)}.")

    def pack(self, parameters: Mapping[Any, Tensor]) -> Float[Tensor, "batch feature"]:
        """The features of a mapping from parameter (or its name) to ``(batch, *shape)`` tensors."""
        known = {self._slot(self.parameters, key): value for key, value in parameters.items()}
        missing = [slot.name for slot in self.parameters if slot not in known]
        if missing:
            raise ShapeError(f"No value was given for the parameters {missing}.")
        batch = max((t.shape[0] for t in known.values()), default=1)
        parts = []
        for slot in self.parameters:
            value = known[slot]
            if tuple(value.shape[1:]) != slot.shape or value.shape[0] not in (1, batch):
                raise ShapeError(
                    f"Parameter {slot.name} must have shape {(batch, *slot.shape)} (or a batch of 1), "
                    f"not {tuple(value.shape)}."
                )
            parts.append(value.reshape(value.shape[0], slot.size).expand(batch, -1))
        return torch.cat(parts, 1)

    def variable(self, x: Float[Tensor, "*batch column"], key: Any) -> Tensor:
        """The part of a primal point that belongs to a variable (a CVXPY variable or its name), in its own shape."""
        slot = self._slot(self.variables, key)
        part = x[..., slot.offset : slot.offset + slot.size]
        # CVXPY flattens in Fortran order: reverse the axes, then transpose them back.
        part = part.reshape(*x.shape[:-1], *reversed(slot.shape))
        lead = x.dim() - 1
        return part.permute(*range(lead), *reversed(range(lead, lead + len(slot.shape))))

    def _slot(self, slots: tuple[Slot, ...], key: Any) -> Slot:
        """The slot of a CVXPY leaf, or of a name."""
        alike = [slot for slot in slots if slot.name == str(key)]
        if isinstance(key, str):
            found = alike
        else:
            # By number too, since pickled problems know the variables that they are copies of; but not where others
            # have these numbers.
            number = None if self.foreign else getattr(key, "id", None)
            found = [slot for slot in slots if slot.leaf is key or slot.key == number]
        if len(found) == 1:
            return found[0]
        if found:
            raise ModelError(f"{len(found)} parts of this program are called {key}: give the variable itself.")
        advice = f", whose {key} is another one: give the name, or the problem's own" if alike else ""
        raise ModelError(f"{key} is not part of this program; it has {[slot.name for slot in slots]}{advice}.")

    def _tensors(self) -> dict[str, Tensor]:
        """Everything numerical, by name."""
        tensors: dict[str, Tensor] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                tensors[f.name] = value.contiguous()
            elif isinstance(value, AffineMap):
                tensors |= {f"{f.name}.{g.name}": getattr(value, g.name).contiguous() for g in fields(value)}
        return tensors

    @property
    def fingerprint(self) -> str:
        """A digest of all numbers and cones: programs of one problem, built twice, have the same."""
        digest = sha256(json.dumps(self.cones.given).encode())
        for name, tensor in self._tensors().items():
            digest.update(name.encode() + str(tuple(tensor.shape)).encode() + tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the program to one safetensors file."""
        tensors = self._tensors()
        header = {
            "format": FORMAT,
            "columns": self.columns,
            "cones": self.cones.given,
            "variables": [slot.header for slot in self.variables],
            "parameters": [slot.header for slot in self.parameters],
        }
        save(path, header, tensors)

    @classmethod
    def load(cls, path: str | Path) -> ConeProgram:
        """Read a program written by :meth:`save`; only tensors and JSON are read, never code."""
        header, tensors = load(path, "compiled program", FORMAT, _check)

        def slots(entries: list[dict[str, Any]]) -> tuple[Slot, ...]:
            # The numbers that CVXPY gave in another process may be anybody's here: slots are found by their names.
            return tuple(Slot(e["name"], e["offset"], tuple(e["shape"]), -1) for e in entries)

        parts: dict[str, Any] = {
            f.name: AffineMap(*(tensors[f"{f.name}.{g.name}"] for g in fields(AffineMap)))
            for f in fields(cls)
            if f"{f.name}.entry" in tensors
        }
        parts |= {name: tensor for name, tensor in tensors.items() if "." not in name}
        return cls(
            cones=Cones.read(header),
            columns=header["columns"],
            variables=slots(header["variables"]),
            parameters=slots(header["parameters"]),
            **parts,
        )


def _check(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """What a file says, and that its cones have as many rows as its matrix."""
    check_program(header, tensors)
    rows = tensors["A_indptr"].numel() - 1
    must("cones", Cones.read(header).rows == rows, f"of {rows} rows in all")


def matrices(program: ConeProgram, values: Values, item: int) -> tuple[sp.csr_array, sp.csr_array]:
    """P and A of one item as sparse matrices that keep their structural zeros."""
    n = program.columns
    P_data, A_data = (M[item].detach().cpu().numpy() for M in (values.P, values.A))
    P = sp.csr_array((P_data, program.P_indices.numpy(), program.P_indptr.numpy()), shape=(n, n))
    A = sp.csr_array((A_data, program.A_indices.numpy(), program.A_indptr.numpy()), shape=(program.rows, n))
    return P, A
