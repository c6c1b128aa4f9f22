"""The linear systems of an interior-point method, solved through their block-arrow shape.

Every step solves  [P + AᵀH⁻¹A, Eᵀ; E, 0]  for the columns x and the equality rows of A (E; H scales the other rows).
In our programs items, assets or scenarios are independent given a handful of coupling columns (multipliers) and rows
(budgets): without these the matrix falls apart into many small blocks. The plan, made once a program, finds coupling
nodes and blocks; a factorisation then costs a small LDLᵀ for every block and one more for the coupling, and so grows
linearly with the number of items. Without such a shape everything is coupling: one dense system.

Tensors are laid out with the batch last, so that gathers and scatters move whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from conelayers.program.program import ConeProgram, row_index

SMALL = 8
"""Coupling nodes up to which their system is factored like a block."""

MOST_COUPLING = 64
"""Numbers of coupling nodes that are tried before the system is taken as dense."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of one size: where their nodes stand, padded with -1, and where their entries stand in the flat matrix."""

    nodes: Tensor
    offset: int
    border_offset: int

    @property
    def count(self) -> int:
        """Number of blocks."""
        return int(self.nodes.shape[1])

    @property
    def size(self) -> int:
        """Nodes a block."""
        return int(self.nodes.shape[0])


@dataclass(frozen=True, eq=False)
class ArrowPlan:
    """Where every entry of the system goes.

    The flat matrix holds, one after another, the entries of the blocks ``(size, size, count)``, their borders
    ``(size, coupling, count)``, and the corner ``(coupling, coupling)``.

    Args:
        nodes: columns and equality rows together.
        coupling: the nodes that tie blocks together.
        groups: the blocks, by size.
        length: entries of the flat matrix.
        corner_offset: where the corner begins.
        padding: flat positions of padded diagonal entries.
    """

    nodes: int
    coupling: Tensor
    groups: tuple[Blocks, ...]
    length: int
    corner_offset: int
    padding: Tensor
    _where: Tensor

    @classmethod
    def of(cls, pattern: sp.csr_array) -> ArrowPlan:
        """The cheapest plan for a symmetric pattern, among those that take the busiest nodes as coupling."""
        pattern = sp.csr_array(pattern)
        count = pattern.shape[0]
        busiest = np.argsort(-_ties(pattern), kind="stable")
        best: tuple[float, int, np.ndarray] = (float(count) ** 3 / 3, count, np.zeros(0, dtype=np.int64))
        for taken in range(min(MOST_COUPLING, count) + 1):
            rest = np.sort(busiest[taken:])
            if not rest.size:
                break
            _, label = connected_components(pattern[rest][:, rest], directed=False)
            sizes = np.bincount(label).astype(float)
            # A block is factored, its border solved and squared; then the corner is factored.
            cost = float((sizes**3 / 3 + sizes**2 * taken + sizes * taken**2 / 2).sum() + taken**3 / 3 + 50.0 * count)
            if cost < best[0]:
                best = (cost, taken, label)
        taken, label = best[1], best[2]
        coupling, rest = np.sort(busiest[:taken]), np.sort(busiest[taken:])
        return cls._lay_out(count, coupling, rest, label)

    @classmethod
    def _lay_out(cls, count: int, coupling: np.ndarray, rest: np.ndarray, label: np.ndarray) -> ArrowPlan:
        """Group blocks by (rounded) size and give every entry its place."""
        members: dict[int, list[np.ndarray]] = {}
        if rest.size:
            order = np.argsort(label, kind="stable")
            for block in np.split(rest[order], np.cumsum(np.bincount(label))[:-1]):
                members.setdefault(_rounded(block.size), []).append(block)
        group_of, block_of, position = (np.full(count, -1) for _ in range(3))
        groups, offset, padding = [], 0, []
        border = sum(size * size * len(blocks) for size, blocks in members.items())
        for g, (size, blocks) in enumerate(sorted(members.items())):
            nodes = np.full((size, len(blocks)), -1, dtype=np.int64)
            for b, block in enumerate(blocks):
                nodes[: block.size, b] = block
                group_of[block], block_of[block], position[block] = g, b, np.arange(block.size)
            r, c = np.nonzero(nodes < 0)
            padding.append(offset + (r * size + r) * len(blocks) + c)
            groups.append(Blocks(torch.as_tensor(nodes), offset, border))
            offset += size * size * len(blocks)
            border += size * coupling.size * len(blocks)
        place = np.full(count, -1)
        place[coupling] = np.arange(coupling.size)
        where = np.stack([group_of, block_of, position, place])
        return cls(
            count,
            torch.as_tensor(coupling),
            tuple(groups),
            border + coupling.size**2,
            border,
            torch.as_tensor(np.concatenate(padding) if padding else np.zeros(0, dtype=np.int64)),
            torch.as_tensor(where),
        )

    def to(self, device: torch.device) -> ArrowPlan:
        """The plan with its indices on a device."""
        groups = tuple(replace(group, nodes=group.nodes.to(device)) for group in self.groups)
        return replace(self, groups=groups, coupling=self.coupling.to(device), padding=self.padding.to(device))

    @property
    def pivot_free(self) -> bool:
        """Whether the coupling is factored like a block; a dense system is worth pivoting, though the host waits."""
        return bool(self.groups) and self.coupling.numel() <= SMALL

    def place(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat positions of entries (i, j), and which of them are stored.

        Of a border, and of a block off its diagonal, only one of both mirror images is.
        """
        where = self._where.numpy()
        coupling = self.coupling.numel()
        position = np.full(i.size, -1, dtype=np.int64)
        both = (where[3, i] >= 0) & (where[3, j] >= 0)
        position[both] = self.corner_offset + where[3, i[both]] * coupling + where[3, j[both]]
        for g, group in enumerate(self.groups):
            inside = (where[0, i] == g) & (where[0, j] == g) & (where[2, i] >= where[2, j])
            r, c, b = where[2, i[inside]], where[2, j[inside]], where[1, i[inside]]
            position[inside] = group.offset + (r * group.size + c) * group.count + b
            edge = (where[0, i] == g) & (where[3, j] >= 0)
            r, c, b = where[2, i[edge]], where[3, j[edge]], where[1, i[edge]]
            position[edge] = group.border_offset + (r * coupling + c) * group.count + b
        return position, position >= 0

    def factor(self, flat: Tensor) -> ArrowFactor:
        """Factor a batch of systems given by their flat entries ``(length, batch)``, which are overwritten."""
        batch = flat.shape[1]
        flat.index_fill_(0, self.padding, 1.0)
        coupling = self.coupling.numel()
        corner = flat[self.corner_offset :].reshape(coupling, coupling, batch)
        blocks, borders = [], []
        for group in self.groups:
            size, count = group.size, group.count
            matrix = flat[group.offset : group.offset + size * size * count].reshape(size, size, count * batch)
            _ldl(matrix)
            border = None
            if coupling:
                width = size * coupling * count
                edge = flat[group.border_offset : group.border_offset + width].reshape(size, coupling, count * batch)
                # With K = LDLᵀ and the border B: keep V = L⁻¹B, and take VᵀD⁻¹V off the corner.
                _forward(matrix, edge)
                border = edge
                diagonal = matrix.diagonal(dim1=0, dim2=1).permute(1, 0)
                scaled = edge / diagonal[:, None]
                left = edge.reshape(size, coupling, count, batch).permute(3, 1, 0, 2).reshape(batch, coupling, -1)
                right = scaled.reshape(size, coupling, count, batch).permute(3, 0, 2, 1).reshape(batch, -1, coupling)
                corner = corner - (left @ right).permute(1, 2, 0)
            blocks.append(matrix)
            borders.append(border)
        dense: tuple[Tensor, ...] = ()
        if coupling and not self.pivot_free:
            dense = tuple(torch.linalg.lu_factor_ex(corner.permute(2, 0, 1).contiguous())[:2])
        elif coupling:
            corner = corner.contiguous()
            _ldl(corner)
            dense = (corner,)
        return ArrowFactor(self, blocks, borders, dense)


@dataclass(frozen=True, eq=False)
class ArrowFactor:
    """A factorisation, to be solved with many right-hand sides."""

    plan: ArrowPlan
    blocks: list[Tensor]
    borders: list[Tensor | None]
    dense: tuple[Tensor, ...]

    def solve(self, rhs: Tensor) -> Tensor:
        """Solutions for right-hand sides ``(nodes, batch)``."""
        plan, batch = self.plan, rhs.shape[1]
        padded = torch.cat([rhs, rhs.new_zeros(1, batch)])
        at = plan.coupling
        top = rhs[at]
        halves = []
        for group, matrix, border in zip(plan.groups, self.blocks, self.borders, strict=True):
            part = padded[group.nodes].reshape(group.size, 1, group.count * batch)
            _forward(matrix, part)
            part = part[:, 0] / matrix.diagonal(dim1=0, dim2=1).permute(1, 0)
            if border is not None:
                product = (border * part[:, None]).sum(0).reshape(-1, group.count, batch).sum(1)
                top = top - product
            halves.append(part)
        solution = torch.zeros_like(padded)
        if self.dense:
            top = self._corner(top)
            solution[at] = top
        for group, matrix, border, half in zip(plan.groups, self.blocks, self.borders, halves, strict=True):
            if border is not None:
                diagonal = matrix.diagonal(dim1=0, dim2=1).permute(1, 0)
                spread = top[:, None].expand(-1, group.count, -1).reshape(1, -1, group.count * batch)
                half = half - (border * spread).sum(1) / diagonal
            _backward(matrix, half)
            solution[group.nodes] = half.reshape(group.size, group.count, batch)
        return solution[:-1]

    def _corner(self, rhs: Tensor) -> Tensor:
        """Solve for the coupling nodes."""
        if len(self.dense) == 2:
            return torch.linalg.lu_solve(self.dense[0], self.dense[1], rhs.T[..., None])[..., 0].T
        (matrix,) = self.dense
        top = rhs[:, None].clone()
        _forward(matrix, top)
        half = top[:, 0] / matrix.diagonal(dim1=0, dim2=1).permute(1, 0)
        _backward(matrix, half)
        return half


def _ties(pattern: sp.csr_array) -> np.ndarray:
    """How many nodes each one ties together: pairs of its neighbours that do not meet but through it.

    Among many nodes the degree says the same, and is had for less.
    """
    degree = np.diff(pattern.indptr).astype(float)
    if pattern.shape[0] > 500:
        return degree
    ones = sp.csr_array((np.ones(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
    meeting = (ones @ ones).multiply(ones).sum(1)
    return degree**2 - np.asarray(meeting).ravel()


def _ldl(matrix: Tensor) -> None:
    """K = L D Lᵀ in place, for ``(size, size, many)``: D on the diagonal, L below it.

    No pivoting: the matrices are quasi-definite (regularised), for which every ordering works.
    """
    size = matrix.shape[0]
    for j in range(size - 1):
        column = matrix[j + 1 :, j] / matrix[j, j]
        # In one kernel each: an assignment to a part of a tensor copies it onto itself.
        matrix[j + 1 :, j + 1 :].addcmul_(column[:, None], matrix[j + 1 :, j][None], value=-1.0)
        matrix[j + 1 :, j] = column


def _forward(matrix: Tensor, rhs: Tensor) -> None:
    """Rhs ← L⁻¹ rhs for ``(size, columns, many)``."""
    for j in range(matrix.shape[0] - 1):
        rhs[j + 1 :].addcmul_(matrix[j + 1 :, j][:, None], rhs[j], value=-1.0)


def _backward(matrix: Tensor, rhs: Tensor) -> None:
    """Rhs ← L⁻ᵀ rhs for ``(size, many)``."""
    for j in range(matrix.shape[0] - 1, 0, -1):
        rhs[:j].addcmul_(matrix[j, :j], rhs[j], value=-1.0)


def _rounded(size: int) -> int:
    """Sizes are rounded up a little, so that there are few groups."""
    return size if size <= 12 else -(-size // 8) * 8


def system_pattern(program: ConeProgram) -> sp.csr_array:
    """Which nodes (columns, then equality rows) meet in the system."""
    cones, columns = program.cones, program.columns
    A = sp.csr_array(
        (np.ones(program.nonzeros), program.A_indices.numpy(), program.A_indptr.numpy()), shape=(program.rows, columns)
    )
    equal, rest = A[: cones.zero], A[cones.zero :]
    # Rows of one second-order cone meet as one.
    cone = np.concatenate([np.arange(cones.nonneg), *(np.full(d, cones.nonneg + k) for k, d in enumerate(cones.soc))])
    shape = (cones.nonneg + len(cones.soc), cone.size)
    merge = sp.csr_array((np.ones(cone.size), (cone.astype(np.int64), np.arange(cone.size))), shape=shape)
    touched = sp.csr_array(merge @ rest)
    P_rows = row_index(program.P_indptr).numpy()
    P = sp.csr_array((np.ones(P_rows.size), (P_rows, program.P_indices.numpy())), shape=(columns, columns))
    top = touched.T @ touched + P + sp.eye_array(columns)
    return sp.csr_array(sp.block_array([[top, equal.T], [equal, sp.eye_array(cones.zero)]]))
