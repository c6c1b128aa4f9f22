"""The coefficients of expressions that are affine in the variables, in ``y`` and in known data, by calls to CVXPY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from cvxpy.cvxcore.python import canonInterface
from cvxpy.expressions.leaf import Leaf
from cvxpy.lin_ops.lin_op import CONSTANT_ID

from drolayers.cost.lowering import shorten
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

ROUNDING = 1e-14
"""Differences so much smaller than the numbers that they are differences of are what rounding has left of zero."""


_Tensor = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Numbers ``value`` of the products p_factor · x_column · y_coordinate in every row; ``-1`` stands for a one."""

    row: np.ndarray
    column: np.ndarray
    coordinate: np.ndarray
    factor: np.ndarray
    value: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> Coefficients:
        return Coefficients(*(part[chosen] for part in self.parts))

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        """All arrays."""
        return self.row, self.column, self.coordinate, self.factor, self.value

    @staticmethod
    def join(several: Sequence[Coefficients]) -> Coefficients:
        """All of them."""
        return Coefficients(*(np.concatenate(parts) for parts in zip(*(one.parts for one in several), strict=True)))


def coefficients(
    expressions: Sequence[cp.Expression],
    variables: Sequence[cp.Variable],
    y: Uncertain,
    known: Sequence[cp.Parameter] = (),
) -> Coefficients:
    """The entries of the expressions (Fortran order, one expression after the other) as rows.

    Columns are those of the variables, coordinates those of ``y`` and factors those of known data, each in Fortran
    order, one leaf after the other. CVXPY's tensor holds products of variables with one parameter; with known data
    there are two, so that it is asked with ``y`` zero, with the data zero, and for what is left, ``y`` times data, once
    for coordinates that share no entry, or once for every number of the data, whichever is less work.

    Raises:
        ModelError: an expression is not affine in the variables, in ``y``, or in known data, the others being fixed.
    """
    _check(expressions, y, known)
    if not known:
        row, column, coordinate, value = _tensor(expressions, variables, [y])
        return Coefficients(row, column, coordinate, np.full_like(row, -1), value)

    def at(values: Mapping[int, np.ndarray], free: Sequence[cp.Parameter]) -> _Tensor:
        return _tensor(_substituted(expressions, values), variables, free)

    size = sum(p.size for p in known)
    still, plain = at({y.id: np.zeros(y.shape)}, known), at(_values(known, np.zeros(size)), [y])
    row, column, coordinate, value = plain
    found = [
        Coefficients(still[0], still[1], np.full_like(still[0], -1), still[2], still[3]),
        Coefficients(row, column, coordinate, np.full_like(row, -1), value)[coordinate >= 0],
    ]
    # Values at which no two terms cancel.
    generic = np.random.default_rng(size).uniform(0.5, 1.5, size)
    row, column, coordinate, _ = _difference(at(_values(known, generic), [y]), plain)
    mixed = coordinate >= 0
    row, column, coordinate = row[mixed], column[mixed], coordinate[mixed]
    colour = _colours(row, column, coordinate, y.size)
    if colour.max(initial=-1) < size:
        for c in range(int(colour.max(initial=-1)) + 1):
            chosen = (colour == c).astype(float).reshape(y.shape, order="F")
            some, of, factor, value = _difference(at({y.id: chosen}, known), still)
            mine = colour[coordinate] == c
            owner = dict(zip(zip(row[mine], column[mine], strict=True), coordinate[mine], strict=True))
            place = np.array([owner.get(key, -1) for key in zip(some, of, strict=True)], dtype=np.int64)
            found.append(Coefficients(some, of, place, factor, value)[(factor >= 0) & (place >= 0)])
    else:
        for k in range(size):
            some, of, place, value = _difference(at(_values(known, np.eye(size)[k]), [y]), plain)
            found.append(Coefficients(some, of, place, np.full_like(some, k), value)[place >= 0])
    return Coefficients.join(found)


def _values(known: Sequence[cp.Parameter], flat: np.ndarray) -> dict[int, np.ndarray]:
    """Numbers for all entries of known data, by CVXPY's numbers of the parameters."""
    ends = np.cumsum([p.size for p in known])
    return {p.id: flat[end - p.size : end].reshape(p.shape, order="F") for p, end in zip(known, ends, strict=True)}


def _substituted(expressions: Sequence[cp.Expression], fixed: Mapping[int, np.ndarray]) -> list[cp.Expression]:
    """Affine expressions with constants in place of some parameters, by their numbers in CVXPY."""
    done: dict[int, cp.Expression] = {}

    def replaced(node: cp.Expression) -> cp.Expression:
        if id(node) not in done:
            if isinstance(node, Leaf):
                done[id(node)] = cp.Constant(fixed[node.id]) if getattr(node, "id", None) in fixed else node
            else:
                args = [replaced(arg) for arg in node.args]
                same = all(new is old for new, old in zip(args, node.args, strict=True))
                done[id(node)] = node if same else node.copy(args)
        return done[id(node)]

    return [replaced(expression) for expression in expressions]


def _tensor(
    expressions: Sequence[cp.Expression], variables: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]
) -> _Tensor:
    """Row, column (-1 for none), number of the parameters' entry (-1 for none) and value."""
    starts = np.concatenate([[0], np.cumsum([variable.size for variable in variables])]).astype(int)
    firsts = np.concatenate([[0], np.cumsum([parameter.size for parameter in parameters])]).astype(int)
    width, size, count = int(starts[-1]), int(firsts[-1]), sum(expression.size for expression in expressions)
    # Its row is (entry, column) with the entry running fastest and the constant as the last column.
    asked = (
        [expression.canonical_form[0] for expression in expressions],
        width,
        {variable.id: int(start) for variable, start in zip(variables, starts, strict=False)},
        {**{p.id: p.size for p in parameters}, CONSTANT_ID: 1},
        {**{p.id: int(first) for p, first in zip(parameters, firsts, strict=False)}, CONSTANT_ID: size},
        count,
    )
    try:
        tensor = canonInterface.get_problem_matrix(*asked, "COO").tocoo()
    except ValueError:
        # CVXPY 1.9's fast way stumbles over entrywise products of parameters with constants, such as y is here.
        tensor = canonInterface.get_problem_matrix(*asked, "SCIPY").tocoo()
    tensor.sum_duplicates()
    tensor.eliminate_zeros()
    column, row = np.divmod(tensor.row.astype(np.int64), max(count, 1))
    entry = tensor.col.astype(np.int64)
    return row, np.where(column == width, -1, column), np.where(entry == size, -1, entry), tensor.data


def _difference(one: _Tensor, other: _Tensor) -> _Tensor:
    """Entries of a tensor less those of another."""
    keys = np.stack([np.concatenate(pair) for pair in zip(one[:3], other[:3], strict=True)])
    keys, where = np.unique(keys, axis=1, return_inverse=True)
    where = where.reshape(-1)
    numbers = np.concatenate([one[3], -other[3]])
    value, size = (np.bincount(where, weights, keys.shape[1]) for weights in (numbers, np.abs(numbers)))
    kept = np.abs(value) > ROUNDING * size
    return keys[0, kept], keys[1, kept], keys[2, kept], value[kept]


def _colours(row: np.ndarray, column: np.ndarray, coordinate: np.ndarray, size: int) -> np.ndarray:
    """Numbers for coordinates, such that those of one number never stand in the same row and column; -1 for unused."""
    _, place = np.unique(np.stack([row, column]), axis=1, return_inverse=True)
    place = place.reshape(-1)
    colour, taken = np.full(size, -1), [set[int]() for _ in range(int(place.max(initial=-1)) + 1)]
    for i in np.unique(coordinate):
        places = place[coordinate == i]
        used = set[int]().union(*(taken[p] for p in places))
        colour[i] = next(c for c in range(len(used) + 1) if c not in used)
        for p in places:
            taken[p].add(int(colour[i]))
    return colour


def _check(expressions: Sequence[cp.Expression], y: Uncertain, known: Sequence[cp.Parameter]) -> None:
    """Names the smallest part that is not affine in the variables, in ``y`` and in known data separately."""
    of_y = (
        y.name(),
        "multiply it by constants, known data and decisions only, not by itself nor by a maximum, and divide by "
        "constants only",
        _values(known, np.ones(sum(p.size for p in known))),
    )
    of_known = (
        " and ".join(p.name() for p in known),
        "known data may be multiplied by decisions and outcomes, not by other known data, and nothing may be divided "
        "by it, so make the product or quotient a parameter of its own",
        {y.id: np.ones(y.shape)},
    )
    for name, advice, fixed in (of_y, of_known) if known else (of_y,):
        for part in expressions:
            if _substituted([part], fixed)[0].is_dpp():
                continue
            while culprits := [arg for arg in part.args if not _substituted([arg], fixed)[0].is_dpp()]:
                part = culprits[0]
            raise ModelError(f"The part {shorten(part)} of the cost is not affine in {name}: {advice}.")
