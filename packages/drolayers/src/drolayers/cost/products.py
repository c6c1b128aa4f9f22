"""Known data in a cost: products of its numbers with decisions, and maxima that are multiplied by them.

A row of a cost with known data p holds p_k x_j y_i, with the numbers p_k different from item to item. The products
p_k x_j become columns of their own, beside those of x, so that all coefficients stay numbers. A maximum that is
multiplied by a nonnegative function of p is the maximum of rows that are; nested ones may hold products of several p_k.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.cost.affine_rows import AffineRows
from drolayers.cost.coefficients import Coefficients
from drolayers.cost.expansion import MaxSystem
from drolayers.errors import ModelError

Monomial = tuple[int, ...]
"""The entries of known data that are multiplied with each other; the empty one is a one."""

Polynomial = tuple[tuple[Monomial, float], ...]


@dataclass(frozen=True, eq=False)
class Products:
    """Columns of a stack beyond its variables: a monomial of known data times an entry of the variables, or alone.

    Attributes:
        monomials: the monomials that occur, in entries of known data, Fortran order, one parameter after the other.
        monomial: ``(columns,)``, which of them.
        column: ``(columns,)``, which entry of the variables; -1 where it stands alone.
        ranges: lower and upper ends of all entries of known data.
    """

    monomials: tuple[Monomial, ...]
    monomial: np.ndarray
    column: np.ndarray
    ranges: np.ndarray

    def __len__(self) -> int:
        return len(self.column)

    @cached_property
    def parameter(self) -> cp.Parameter:
        """The monomials as CVXPY sees them."""
        return cp.Parameter(len(self.monomials), name="products of known data")

    def columns(self, stack: cp.Expression) -> cp.Expression:
        """The columns as an expression of the variables' stack."""
        return cp.multiply(self.parameter[self.monomial], cp.hstack([stack, 1.0])[self.column])

    def take(self, places: np.ndarray) -> Products:
        """Some of the columns."""
        used, monomial = np.unique(self.monomial[places], return_inverse=True)
        names = tuple(self.monomials[k] for k in used)
        return Products(names, monomial.reshape(-1), self.column[places], self.ranges)

    def over(self, kept: np.ndarray) -> Products:
        """The same over the variables' columns that are kept."""
        place = np.full(max(int(kept.max(initial=-1)), int(self.column.max(initial=-1))) + 2, -1)
        place[kept] = np.arange(len(kept))
        return Products(self.monomials, self.monomial, place[self.column], self.ranges)

    def each_atom(self, own: np.ndarray, columns: np.ndarray) -> tuple[Products, np.ndarray]:
        """Those with every atom's coefficients, and where the columns of the first atom's rows are for each."""
        place = np.full(int(max(columns.max(initial=-1), own.max(initial=-1))) + 1, -1)
        place[columns] = np.arange(len(columns))
        own, count = place[own], len(self.column)
        there = np.hstack([own, np.full((len(own), 1), -1)])[:, self.column] if count else own[:, :0]
        atom, which = np.nonzero(there != there[0])
        behind = len(columns) + np.tile(np.arange(count), (len(own), 1))
        behind[atom, which] = len(columns) + count + np.arange(len(atom))
        same = np.tile(len(columns) + count + np.arange(len(atom)), (len(own), 1))
        monomial = np.concatenate([self.monomial, self.monomial[which]])
        more = Products(self.monomials, monomial, np.concatenate([self.column, there[atom, which]]), self.ranges)
        return more, np.hstack([own, behind, same])

    def signs(self, of_variables: np.ndarray) -> np.ndarray:
        """1.0 or -1.0 where the signs of data and variables settle that of the product; NaN elsewhere."""
        low, high = np.array([_range(m, self.ranges) for m in self.monomials]).T
        of_data = np.where(low >= 0, 1.0, np.where(high <= 0, -1.0, np.nan))
        return of_data[self.monomial] * np.append(of_variables, 1.0)[self.column]


def stack(variables: Sequence[cp.Variable], products: Products) -> cp.Expression:
    """The variables as one vector, each in Fortran order, and their products with known data."""
    plain = stack_variables(variables)
    return cp.hstack([plain, products.columns(plain)]) if len(products) else plain


def stack_variables(variables: Sequence[cp.Variable]) -> cp.Expression:
    """The variables as one vector, each in Fortran order."""
    if not variables:
        return cp.Constant(np.zeros(0))
    return cp.hstack([cp.vec(variable, order="F") for variable in variables])


def intervals(known: Sequence[cp.Parameter]) -> np.ndarray:
    """What is declared about known data: lower and upper end of every entry, ``(2, entries)``."""
    low, high = [np.zeros(0)], [np.zeros(0)]
    for p in known:
        ends = [np.full(p.shape, -np.inf), np.full(p.shape, np.inf)]
        declared = p.attributes
        if declared.get("bounds") is not None:
            ends = [np.broadcast_to(np.asarray(end, dtype=float), p.shape) for end in declared["bounds"]]
        if p.is_nonneg() or declared.get("boolean"):
            ends[0] = np.maximum(ends[0], 0.0)
        if p.is_nonpos():
            ends[1] = np.minimum(ends[1], 0.0)
        if declared.get("boolean"):
            ends[1] = np.minimum(ends[1], 1.0)
        low.append(np.ravel(ends[0], order="F"))
        high.append(np.ravel(ends[1], order="F"))
    return np.stack([np.concatenate(low), np.concatenate(high)])


def _range(monomial: Monomial, ranges: np.ndarray) -> tuple[float, float]:
    """The interval of a product."""
    low = high = 1.0
    for k in monomial:
        with np.errstate(invalid="ignore"):
            ends = np.nan_to_num(np.outer([low, high], ranges[:, k]), nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = float(ends.min()), float(ends.max())
    return low, high


def system(
    entries: Coefficients, owner: np.ndarray, inner: range, ranges: np.ndarray, describe: Callable[[int], str]
) -> tuple[Coefficients, tuple[Monomial, ...], MaxSystem]:
    """The maxima of rows, those that are multiplied by known data with rows of their own.

    Args:
        entries: of all rows.
        owner: the maximum that a row belongs to, or -1.
        inner: the columns that stand for maxima.
        ranges: lower and upper ends of known data.
        describe: the text of a maximum for messages.

    Returns:
        What the rows hold besides maxima, with monomials in place of factors (-1 for a one); the monomials; the maxima.
    """
    work = _Unfolding(entries, owner, inner, ranges, describe)
    return work.entries, tuple(work.monomials), work.system


class _Unfolding:
    """One pass over the rows whose maxima are multiplied by known data, and over those that come with them."""

    def __init__(
        self,
        entries: Coefficients,
        owner: np.ndarray,
        inner: range,
        ranges: np.ndarray,
        describe: Callable[[int], str],
    ) -> None:
        self.inner, self.ranges, self.describe = inner, ranges, describe
        self.monomials: dict[Monomial, int] = {(k,): k for k in range(ranges.shape[1])}
        self.copies: dict[tuple[int, Polynomial], int] = {}
        self.queue: list[tuple[int, Polynomial]] = []
        # Row, maximum, its copy (0: the maximum itself) and the number that it is multiplied by.
        self.weights: list[tuple[int, int, int, float]] = []
        weights = self._is_weight(entries)
        rows = set(entries.row[weights & (entries.factor >= 0)].tolist())
        special = weights & np.isin(entries.row, list(rows))
        at = entries[weights & ~special]
        self.weights += [
            (int(r), int(c) - inner.start, 0, v) for r, c, v in zip(at.row, at.column, at.value, strict=True)
        ]
        for r, some in _by_row(entries[special]):
            self._weigh(r, self._multiplied(some, (((), 1.0),)))
        found, owners = [entries[~weights]], [(int(f), 0) for f in owner]
        of_row = dict(_by_row(entries)) if self.queue else {}
        while self.queue:
            f, factor = self.queue.pop()
            members = np.flatnonzero(owner == f)
            if len(members) > 1:
                self._check_sign(f, factor)
            for r in members.tolist():
                if r in of_row:
                    product = self._multiplied(of_row[r], factor)
                    self._weigh(len(owners), product)
                    found.append(self._plain(len(owners), product))
                owners.append((f, self.copies[f, factor]))
        self.entries = Coefficients.join(found)
        self.system = self._numbered(owners)

    def _is_weight(self, entries: Coefficients) -> np.ndarray:
        """Which entries are numbers, or known data, times a maximum."""
        start, stop = self.inner.start, self.inner.stop
        return (entries.column >= start) & (entries.column < stop) & (entries.coordinate < 0)

    def _multiplied(self, some: Coefficients, factor: Polynomial) -> dict[tuple[int, int], dict[Monomial, float]]:
        """Entries of one row times a polynomial, by column and coordinate."""
        product: dict[tuple[int, int], dict[Monomial, float]] = defaultdict(lambda: defaultdict(float))
        for column, coordinate, k, value in zip(*some.parts[1:], strict=True):
            for monomial, number in factor:
                name = tuple(sorted((*monomial, int(k)))) if k >= 0 else monomial
                product[int(column), int(coordinate)][name] += number * float(value)
        return product

    def _weigh(self, row: int, product: dict[tuple[int, int], dict[Monomial, float]]) -> None:
        """Note what a row holds of maxima: where known data multiplies one, once the copy that is its product."""
        for (column, coordinate), polynomial in product.items():
            if column not in self.inner or coordinate >= 0:
                continue
            f, key = column - self.inner.start, tuple(sorted(polynomial.items()))
            if set(polynomial) == {()}:
                self.weights.append((row, f, 0, polynomial[()]))
                continue
            if (f, key) not in self.copies:
                self.copies[f, key] = len(self.copies) + 1
                self.queue.append((f, key))
            self.weights.append((row, f, self.copies[f, key], 1.0))

    def _plain(self, row: int, product: dict[tuple[int, int], dict[Monomial, float]]) -> Coefficients:
        """What a row holds besides."""
        terms = [
            (column, coordinate, self._number(name), number)
            for (column, coordinate), polynomial in product.items()
            if column not in self.inner or coordinate >= 0
            for name, number in polynomial.items()
        ]
        column, coordinate, factor, value = np.array(terms, dtype=float).reshape(-1, 4).T
        here, column, coordinate, factor = (
            part.astype(np.int64) for part in (np.full(len(terms), row), column, coordinate, factor)
        )
        return Coefficients(here, column, coordinate, factor, value)

    def _number(self, name: Monomial) -> int:
        """The number of a monomial; -1 for a one."""
        return self.monomials.setdefault(name, len(self.monomials)) if name else -1

    def _check_sign(self, f: int, factor: Polynomial) -> None:
        """What multiplies a maximum must not be negative."""
        low = 0.0
        for monomial, number in factor:
            low += float(np.multiply(number, _range(monomial, self.ranges)).min())
        if not low >= 0:
            raise ModelError(
                f"The maximum {self.describe(f)} is multiplied by known data that may be negative: declare the "
                "parameter with nonneg=True."
            )

    def _numbered(self, owners: list[tuple[int, int]]) -> MaxSystem:
        """Maxima and their copies in one order, inner ones before outer ones."""
        names = sorted({(f, 0) for f in range(len(self.inner))} | {(f, k) for (f, _), k in self.copies.items()})
        position = {name: number for number, name in enumerate(names)}
        shape = (len(owners), len(names))
        row = np.array([w[0] for w in self.weights], dtype=np.int64)
        column = np.array([position[w[1:3]] for w in self.weights], dtype=np.int64)
        weight = sp.csr_array((np.array([w[3] for w in self.weights]), (row, column)), shape=shape)
        weight.eliminate_zeros()
        owner = np.array([position.get(name, -1) for name in owners], dtype=np.int64)
        return MaxSystem(weight, owner, lambda g: self.describe(names[g][0]))


def _by_row(entries: Coefficients) -> list[tuple[int, Coefficients]]:
    """The entries of every row that has some."""
    order = np.argsort(entries.row, kind="stable")
    rows, start = np.unique(entries.row[order], return_index=True)
    return [(int(r), entries[part]) for r, part in zip(rows, np.split(order, start[1:]), strict=False)]


def affine_rows(
    entries: Coefficients, count: int, dim: int, width: int, monomials: Sequence[Monomial], ranges: np.ndarray
) -> tuple[AffineRows, Products]:
    """Rows over the variables' columns and, behind them, those of the products that occur."""
    known = entries.factor >= 0
    keys = np.stack([entries.factor[known], entries.column[known]])
    found, where = np.unique(keys, axis=1, return_inverse=True) if keys.size else (keys, np.zeros(0, dtype=np.int64))
    column = entries.column.copy()
    column[known] = width + where.reshape(-1)
    used, monomial = np.unique(found[0], return_inverse=True)
    products = Products(tuple(monomials[k] for k in used), monomial.reshape(-1), found[1], ranges)
    linear, sloped = column >= 0, entries.coordinate >= 0
    total = width + len(products)

    def collect(mask: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
        matrix = sp.csr_array((entries.value[mask], (rows[mask], columns[mask])), shape=shape)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    row, coordinate = entries.row, entries.coordinate
    return AffineRows(
        collect(linear & sloped, row * dim + coordinate, column, (count * dim, total)),
        collect(~linear & sloped, row, coordinate, (count, dim)).toarray(),
        collect(linear & ~sloped, row, column, (count, total)),
        collect(~linear & ~sloped, row, np.zeros_like(row), (count, 1)).toarray().ravel(),
    ), products
