"""Which parts of a program are independent of each other once the integers are fixed.

Rows that share a continuous column, directly or through others, or stand in one cone, form a component. With integers p
fixed the program falls apart, ``f(p) = constant + qᵀp + Σ_C f_C(p)``, and so does its dual: multipliers of different
components may come from different solves. A portfolio with one cone for every group of assets, for example, has a
component for every group that is all integer, and one for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from conelayers.program.program import ConeProgram, once

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Components:
    """The components of a program and the integer columns that each of them sees.

    Args:
        count: number of components.
        row: the component of every row; rows that bound integer columns have none (-1).
        column: the component of every continuous column; integer columns have none (-1).
        entry: the stored entries of A that stand in integer columns and in rows of a component.
        entry_pair: the pair (component, integer column) of each of them.
        pair: component and integer (its position in ``program.integers``) of each pair, sorted by component.
        pairs_of: the pairs of each integer, padded with the number of pairs.
    """

    count: int
    row: Array
    column: Array
    entry: Array
    entry_pair: Array
    pair: tuple[Array, Array]
    pairs_of: Array

    @classmethod
    def of(cls, program: ConeProgram) -> Components:
        """Those of a program, looked for once."""
        return once(program, "components", lambda: cls._found(program))

    @classmethod
    def _found(cls, program: ConeProgram) -> Components:
        """Look at the pattern of a program."""
        rows, columns, integers = program.rows, program.columns, program.integers.numel()
        entry_row = np.repeat(np.arange(rows), np.diff(program.A_indptr.numpy()))
        entry_column = program.A_indices.numpy()
        place = np.full(columns, -1)
        place[program.integers.numpy()] = np.arange(integers)
        own = np.zeros(rows, dtype=bool)
        own[np.concatenate([program.lower_rows.numpy(), program.upper_rows.numpy()])] = True

        label = np.zeros(rows + columns, dtype=np.int64)
        if not program.quadratic:
            # Rows are joined to their continuous columns and to the first row of their cone.
            head = _heads(program)
            linked = place[entry_column] < 0
            ends = (
                np.concatenate([entry_row[linked], np.arange(rows)]),
                np.concatenate([rows + entry_column[linked], head]),
            )
            graph = sp.coo_array((np.ones(ends[0].size), ends), shape=(rows + columns,) * 2)
            label = connected_components(graph, directed=False)[1]
        entry = np.flatnonzero((place[entry_column] >= 0) & ~own[entry_row])
        # A quadratic objective ties all integers to its one component.
        extra = np.arange(integers) if program.quadratic else np.zeros(0, dtype=np.int64)
        codes = np.concatenate([label[entry_row[entry]], np.zeros(extra.size, dtype=np.int64)]) * max(1, integers)
        pairs, inverse = np.unique(codes + np.concatenate([place[entry_column[entry]], extra]), return_inverse=True)
        owner, integer = pairs // max(1, integers), pairs % max(1, integers)
        # Components that see integers come first, all others together make the last.
        kept, component = np.unique(owner, return_inverse=True)
        renamed = np.full(rows + columns, kept.size)
        renamed[kept] = np.arange(kept.size)
        by_row, by_column = renamed[label[:rows]], renamed[label[rows:]]
        by_row[own], by_column[program.integers.numpy()] = -1, -1
        return cls(
            count=kept.size + 1,
            row=by_row,
            column=by_column,
            entry=entry,
            entry_pair=inverse[: entry.size],
            pair=(component, integer),
            pairs_of=_inverse(integer, integers),
        )

    def without(self, known: Array) -> Components:
        """The same without the components that are known otherwise."""
        return once(self, known.tobytes(), lambda: self._without(known)) if known.size else self

    def _without(self, known: Array) -> Components:
        """As it says."""
        name = np.cumsum(~np.isin(np.arange(self.count), known)) - 1
        name[known] = -1
        keep = name[self.pair[0]] >= 0
        pairs = np.where(keep, np.cumsum(keep) - 1, -1)
        kept_entry = pairs[self.entry_pair] >= 0
        component, integer = name[self.pair[0][keep]], self.pair[1][keep]
        return Components(
            count=self.count - known.size,
            row=np.where(self.row >= 0, name[self.row], -1),
            column=np.where(self.column >= 0, name[self.column], -1),
            entry=self.entry[kept_entry],
            entry_pair=pairs[self.entry_pair][kept_entry],
            pair=(component, integer),
            pairs_of=_inverse(integer, self.pairs_of.shape[0]),
        )


def _heads(program: ConeProgram) -> Array:
    """The first row of each row's cone."""
    cones = program.cones
    linear = cones.zero + cones.nonneg
    sizes = np.array(cones.blocks, dtype=np.int64)
    first = linear + np.cumsum(sizes) - sizes
    return np.concatenate([np.arange(linear), np.repeat(first, sizes)])


def _inverse(integer: Array, integers: int) -> Array:
    """The pairs of each integer as a table, padded with the number of pairs."""
    order = np.argsort(integer, kind="stable")
    ordered = integer[order]
    nth = np.arange(order.size) - np.searchsorted(ordered, ordered)
    table = np.full((integers, int(nth.max(initial=-1)) + 1), integer.size)
    table[ordered, nth] = order
    return table
