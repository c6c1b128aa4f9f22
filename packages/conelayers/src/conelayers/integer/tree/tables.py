"""Components whose value at every state of their few integers is known in closed form.

A component without continuous columns is a constraint on integers: zero or infinity. One with a single continuous
column t of cost c ≥ 0 that only enlarges slacks is an epigraph, and worth c times the least t that satisfies its rows.
Bounds may then use the value at each state instead of a tangent, which is stronger than any continuous relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.integer.components import Components
from conelayers.program.program import ConeProgram, Values, once

Array = np.ndarray

_TOLERANCE = 1e-7
"""Violation of a row of integers, relative to its right-hand side, up to which it holds."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Values of components by state; tables share no integer, and are padded to one size.

    Args:
        component: which component each table describes.
        column: integers of each table, padded with the number of integers.
        state: their values in each state, zero where padded.
        value: what the component is worth there, for every item; +inf in padded or infeasible states.
        free: which integers stand in no table.
    """

    component: Array
    column: Int[Tensor, "table place"]
    state: Float[Tensor, "table state place"]
    value: Float[Tensor, "batch table state"]
    free: Bool[Tensor, "integer"]

    @classmethod
    def of(cls, program: ConeProgram, values: Values, components: Components, states: int = 64) -> Tables:
        """Tables for as many integers as possible, of at most so many states each."""
        few = once(components, ("few", states), lambda: _few(program, components, states))
        integers = program.integers.numel()
        if not few:
            return cls._padded([], len(values.q), np.ones(integers, dtype=bool), values.q.device)
        A = (values.A[:1] if values.A.stride(0) == 0 else values.A).cpu().numpy()
        b, q = values.b.cpu().numpy(), values.q.cpu().numpy()
        taken = np.zeros(integers, dtype=bool)
        found: list[tuple[int, Array, Array, Array]] = []
        for component, columns, grid in few:
            if taken[columns].any():
                continue
            worth = _worth(program, components, component, A, b, q, columns, grid)
            if worth is not None:
                taken[columns] = True
                found.append((component, columns, grid, worth))
        return cls._padded(found, b.shape[0], ~taken, values.q.device)

    @classmethod
    def _padded(
        cls, found: list[tuple[int, Array, Array, Array]], batch: int, free: Array, device: torch.device
    ) -> Tables:
        """Lists of different lengths as tensors."""
        most = max((columns.size for _, columns, _, _ in found), default=0)
        states = max((grid.shape[0] for _, _, grid, _ in found), default=0)
        column = np.full((len(found), most), free.size)
        state = np.zeros((len(found), states, most))
        value = np.full((batch, len(found), states), np.inf)
        for at, (_, columns, grid, worth) in enumerate(found):
            column[at, : columns.size] = columns
            state[at, : grid.shape[0], : columns.size] = grid
            value[:, at, : grid.shape[0]] = worth
        component = np.array([f[0] for f in found], dtype=np.int64)
        return cls(component, *(torch.from_numpy(a).to(device) for a in (column, state, value, free)))

    def __len__(self) -> int:
        return self.component.size

    def allowed(self, lower: Tensor, upper: Tensor) -> Bool[Tensor, "box table state"]:
        """Which states of each table lie in each box."""
        low, high = (_with_zero(end)[:, self.column][:, :, None, :] for end in (lower, upper))
        return ((self.state >= low) & (self.state <= high)).all(3)

    def costs(self, item: Int[Tensor, "box"], slope: Float[Tensor, "box integer"]) -> Float[Tensor, "box table state"]:
        """Value of every state with a linear price on its integers."""
        return self.value[item] + torch.einsum("nmj,msj->nms", _with_zero(slope)[:, self.column], self.state)

    def write(self, point: Tensor, entry: Float[Tensor, "box table place"]) -> Tensor:
        """Points with what belongs to tables."""
        wide = torch.cat([point, point[:, :1]], 1)
        wide[:, self.column.reshape(-1)] = entry.flatten(1).to(point.dtype)
        return wide[:, :-1]


def _with_zero(columns: Tensor) -> Tensor:
    """One column of zeros more, for padding to point at."""
    return torch.nn.functional.pad(columns, (0, 1))


def _few(program: ConeProgram, components: Components, states: int) -> list[tuple[int, Array, Array]]:
    """Components of one continuous column at most and few states, with their integers and those states."""
    lower, upper = (end.numpy().astype(np.int64) for end in program.integer_bounds)
    owner, integer = components.pair
    width = np.bincount(components.column[components.column >= 0], minlength=components.count)
    # Larger tables first: they know more.
    sizes = np.bincount(owner, minlength=components.count)
    found: list[tuple[int, Array, Array]] = []
    for component in np.argsort(-sizes, kind="stable"):
        columns = integer[owner == component]
        if columns.size and width[component] <= 1 and np.prod((upper - lower + 1.0)[columns]) <= states:
            axes = [np.arange(lower[j], upper[j] + 1) for j in columns]
            grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, columns.size)
            found.append((int(component), columns, grid))
    return found


def _worth(
    program: ConeProgram,
    components: Components,
    component: int,
    A: Array,
    b: Array,
    q: Array,
    columns: Array,
    grid: Array,
) -> Array | None:
    """The value of a component at every state, or None where there is no closed form."""
    cones, rows = program.cones, np.flatnonzero(components.row == component)
    linear = cones.zero + cones.nonneg
    if rows[-1] >= linear + sum(cones.soc) or program.quadratic:
        return None
    continuous = np.flatnonzero(components.column == component)
    dense = np.zeros((A.shape[0], rows.size, columns.size))
    lift = np.zeros((A.shape[0], rows.size))
    place = np.full(program.columns, -1)
    place[program.integers.numpy()[columns]] = np.arange(columns.size)
    indptr, indices = program.A_indptr.numpy(), program.A_indices.numpy()
    for position, (first, last) in enumerate(zip(indptr[rows], indptr[rows + 1], strict=True)):
        entries = slice(first, last)
        where = place[indices[entries]]
        dense[:, position, where[where >= 0]] = A[:, entries][:, where >= 0]
        lift[:, position] = A[:, entries][:, where < 0].sum(1)
    # Slack of every row without the continuous column: (item, row, state).
    slack = b[:, rows, None] - dense @ grid.T
    heads = linear + np.cumsum((0, *cones.soc))
    blocks = [(np.array([at]), int(row)) for at, row in enumerate(rows) if row < linear]
    blocks += [
        (np.flatnonzero((rows >= first) & (rows < last)), first)
        for first, last in pairwise(heads.tolist())
        if ((rows >= first) & (rows < last)).any()
    ]
    if not continuous.size:
        worth = np.zeros((b.shape[0], grid.shape[0]))
        for at, row in blocks:
            short = np.linalg.norm(slack[:, at[1:]], axis=1) - slack[:, at[0]]
            short = np.maximum(short, slack[:, at[0]]) if row < cones.zero else short
            worth[short > _TOLERANCE * (1.0 + np.abs(b[:, rows[at[0]]][:, None]))] = np.inf
        return worth
    cost = q[:, continuous[0]]
    least = np.full((b.shape[0], grid.shape[0]), -np.inf)
    for at, row in blocks:
        if row < cones.zero or not (lift[:, at[0]] < 0).all() or (lift[:, at[1:]] != 0).any():
            return None
        short = np.linalg.norm(slack[:, at[1:]], axis=1) - slack[:, at[0]]
        least = np.maximum(least, short / -lift[:, at[0]][:, None])
    return None if (cost < 0).any() else cost[:, None] * least
