"""Linear algebra of the interior-point method for the CPU: the systems of ``system.py``, compiled with numba.

In torch every small operation on a batch costs microseconds of overhead and a pass through memory; here a handful of
programs (the lanes) are stepped through together in one compiled loop, so that their data stay in the cache and the
innermost loops, over the lanes, are vectorised. Arrays are ``(entries, lanes)``. The plan is that of ``arrow.py``, but
the entries of a block stand next to each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from drolayers.conic.interior.system import SystemPlan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    # Not "fast": infinities and NaN are looked for.
    "fastmath": {"contract", "reassoc", "arcp"},
}


class Structure(NamedTuple):
    """What all programs of one structure share; the names are those of ``SystemPlan`` and ``ArrowPlan``."""

    columns: int
    rows: int
    zero: int
    linear: int
    cone_start: Ints
    cone_size: Ints
    row: Ints
    column: Ints
    P_row: Ints
    P_column: Ints
    line_first: Ints
    line_second: Ints
    line_target: Ints
    slot_entry: Ints
    slot: Ints
    slots: int
    slot_sign: Floats
    cone_first: Ints
    cone_second: Ints
    cone_of_pair: Ints
    cone_target: Ints
    product_first: Ints
    product_second: Ints
    product_sign: Floats
    product_target: Ints
    equal_entry: Ints
    equal_target: Ints
    P_entry: Ints
    P_target: Ints
    diagonal_target: Ints
    regularisation: Floats
    padding: Ints
    group_size: Ints
    group_count: Ints
    group_offset: Ints
    border_offset: Ints
    node_offset: Ints
    nodes: Ints
    coupling: Ints
    corner: int
    length: int

    @classmethod
    def of(cls, plan: SystemPlan) -> Structure:
        """The plan as arrays."""
        program, arrow = plan.program, plan.arrow
        cones, coupling = program.cones, arrow.coupling.numel()
        linear = cones.zero + cones.nonneg
        groups = arrow.groups
        place = np.arange(arrow.length)
        for group in groups:
            # From (row, column, block) to (block, row, column).
            for offset, width in ((group.offset, group.size), (group.border_offset, coupling)):
                shape = (group.size, width, group.count)
                length = group.size * width * group.count
                order = np.arange(length).reshape(shape[2], shape[0], shape[1]).transpose(1, 2, 0).ravel()
                place[offset : offset + length] = offset + order

        def ints(tensor: Any) -> Ints:
            return np.ascontiguousarray(np.asarray(tensor), dtype=np.int64)

        def put(tensor: Any) -> Ints:
            return ints(place[np.asarray(tensor)])

        sign = plan.sign.numpy()
        row = plan.row.numpy()
        sizes = np.array(cones.soc, dtype=np.int64)
        nodes = [group.nodes.numpy().T.ravel() for group in groups]
        lengths = np.array([n.size for n in nodes], dtype=np.int64)
        return cls(
            columns=program.columns,
            rows=program.rows,
            zero=cones.zero,
            linear=linear,
            cone_start=ints(linear + np.cumsum(sizes) - sizes),
            cone_size=sizes,
            row=ints(row),
            column=ints(plan.column),
            P_row=ints(plan.P_row),
            P_column=ints(plan.P_column),
            line_first=ints(plan.line_pairs[0]),
            line_second=ints(plan.line_pairs[1]),
            line_target=put(plan.line_target),
            slot_entry=ints(plan.slot_entry),
            slot=ints(plan.slot),
            slots=plan.slots,
            slot_sign=np.ascontiguousarray(sign[row[plan.slot_entry.numpy()] - linear], dtype=float),
            cone_first=ints(plan.cone_pairs[0]),
            cone_second=ints(plan.cone_pairs[1]),
            cone_of_pair=ints(plan.cone_of_pair),
            cone_target=put(plan.cone_target),
            product_first=ints(plan.product_pairs[0]),
            product_second=ints(plan.product_pairs[1]),
            product_sign=np.ascontiguousarray(sign[row[plan.product_pairs[0].numpy()] - linear], dtype=float),
            product_target=ints(plan.product_target),
            equal_entry=ints(plan.equal_entry),
            equal_target=put(plan.equal_target),
            P_entry=ints(plan.P_entry),
            P_target=put(plan.P_target),
            diagonal_target=put(plan.diagonal_target),
            regularisation=np.ascontiguousarray(plan.regularisation.numpy()[:, 0]),
            padding=put(arrow.padding),
            group_size=ints([g.size for g in groups]),
            group_count=ints([g.count for g in groups]),
            group_offset=ints([g.offset for g in groups]),
            border_offset=ints([g.border_offset for g in groups]),
            node_offset=ints(np.cumsum(lengths) - lengths),
            nodes=ints(np.concatenate(nodes) if nodes else []),
            coupling=ints(arrow.coupling),
            corner=arrow.corner_offset,
            length=arrow.length,
        )


class Programs(NamedTuple):
    """The numbers of a few programs, equilibrated."""

    A: Floats
    P: Floats
    q: Floats
    b: Floats


class Work(NamedTuple):
    """Room for a system and its solutions."""

    flat: Floats
    fixed: Floats
    inner: Floats
    slots: Floats
    weight: Floats
    point: Floats
    scale: Floats
    total: Floats
    scaled: Floats
    image: Floats
    half: Floats
    top: Floats
    rest_x: Floats
    rest_z: Floats
    more_x: Floats
    more_z: Floats


@njit(**OPTIONS)
def make_work(on: Structure, lanes: int) -> Work:
    """Room for so many lanes."""
    nodes, coupling = on.columns + on.zero, on.coupling.size
    cones = on.cone_start.size
    return Work(
        np.empty((on.length, lanes)),
        np.empty((on.length, lanes)),
        np.empty((on.cone_first.size, lanes)),
        np.empty((on.slots, lanes)),
        np.empty((on.rows, lanes)),
        np.empty((on.rows, lanes)),
        np.empty((cones, lanes)),
        np.empty(lanes),
        np.empty((on.rows, lanes)),
        np.empty((on.rows, lanes)),
        np.empty((nodes + 1, lanes)),
        np.empty((coupling, lanes)),
        np.empty((on.columns, lanes)),
        np.empty((on.rows, lanes)),
        np.empty((on.columns, lanes)),
        np.empty((on.rows, lanes)),
    )


@njit(**OPTIONS)
def add_products(out: Floats, to: Ints, of: Ints, A: Floats, v: Floats) -> None:
    """out[to] += A v[of], entry by entry: A v, Aᵀv or P v."""
    lanes = out.shape[1]
    for e in range(to.size):
        i, j = to[e], of[e]
        for k in range(lanes):
            out[i, k] += A[e, k] * v[j, k]


@njit(**OPTIONS)
def dots(u: Floats, v: Floats, out: Floats) -> None:
    """The inner product of every lane."""
    out[:] = 0.0
    for i in range(u.shape[0]):
        for k in range(out.size):
            out[k] += u[i, k] * v[i, k]


@njit(**OPTIONS)
def sizes(v: Floats, out: Floats) -> None:
    """The largest absolute entry of every lane."""
    out[:] = 0.0
    for i in range(v.shape[0]):
        for k in range(out.size):
            out[k] = max(out[k], abs(v[i, k]))


@njit(**OPTIONS)
def fix(on: Structure, of: Programs, work: Work) -> None:
    """What does not change from step to step: the constant entries, and products within cones."""
    lanes, fixed, inner = of.q.shape[1], work.fixed, work.inner
    fixed[:] = 0.0
    inner[:] = 0.0
    for e in range(on.equal_entry.size):
        i, j = on.equal_target[e], on.equal_entry[e]
        for k in range(lanes):
            fixed[i, k] += of.A[j, k]
    for e in range(on.P_entry.size):
        i, j = on.P_target[e], on.P_entry[e]
        for k in range(lanes):
            fixed[i, k] += of.P[j, k]
    for e in range(on.diagonal_target.size):
        fixed[on.diagonal_target[e]] += on.regularisation[e]
    for e in range(on.padding.size):
        fixed[on.padding[e]] = 1.0
    for e in range(on.product_first.size):
        i, p, r, sign = on.product_target[e], on.product_first[e], on.product_second[e], on.product_sign[e]
        for k in range(lanes):
            inner[i, k] += sign * of.A[p, k] * of.A[r, k]


@njit(**OPTIONS)
def factor(on: Structure, of: Programs, work: Work) -> None:
    """Assemble and factor the systems at the scaling in ``work`` (1/H on the orthant; w and η² of the cones)."""
    lanes, flat, A = of.q.shape[1], work.flat, of.A
    flat[:] = work.fixed
    for e in range(on.line_target.size):
        i, p, r = on.line_target[e], on.line_first[e], on.line_second[e]
        line = on.row[p]
        for k in range(lanes):
            flat[i, k] += A[p, k] * A[r, k] * work.weight[line, k]
    v = work.slots
    v[:] = 0.0
    for e in range(on.slot.size):
        i, p, sign = on.slot[e], on.slot_entry[e], on.slot_sign[e]
        line = on.row[p]
        for k in range(lanes):
            v[i, k] += sign * A[p, k] * work.point[line, k]
    for e in range(on.cone_target.size):
        i, p, r, cone = on.cone_target[e], on.cone_first[e], on.cone_second[e], on.cone_of_pair[e]
        for k in range(lanes):
            flat[i, k] += (2.0 * v[p, k] * v[r, k] - work.inner[e, k]) / work.scale[cone, k]
    coupling = on.coupling.size
    corner = flat[on.corner :]
    for g in range(on.group_size.size):
        size = on.group_size[g]
        for block in range(on.group_count[g]):
            start = on.group_offset[g] + block * size * size
            matrix = flat[start : start + size * size]
            _ldl(matrix, size)
            start = on.border_offset[g] + block * size * coupling
            border = flat[start : start + size * coupling]
            # With K = LDLᵀ and the border B: keep V = L⁻¹B, and take VᵀD⁻¹V off the corner.
            for j in range(size):
                for i in range(j + 1, size):
                    for c in range(coupling):
                        for k in range(lanes):
                            border[i * coupling + c, k] -= matrix[i * size + j, k] * border[j * coupling + c, k]
            for i in range(size):
                pivot = matrix[i * size + i]
                for c in range(coupling):
                    for d in range(c + 1):
                        for k in range(lanes):
                            corner[c * coupling + d, k] -= (
                                border[i * coupling + c, k] * border[i * coupling + d, k] / pivot[k]
                            )
    _ldl(corner, coupling)


@njit(**OPTIONS)
def _ldl(matrix: Floats, size: int) -> None:
    """K = L D Lᵀ in place, from the lower triangle; no pivoting: the matrices are quasi-definite (regularised)."""
    lanes = matrix.shape[1]
    for j in range(size - 1):
        pivot = matrix[j * size + j]
        for i in range(j + 1, size):
            below = matrix[i * size + j]
            for c in range(j + 1, i + 1):
                other, target = matrix[c * size + j], matrix[i * size + c]
                if c < i:
                    # Columns left of the diagonal are divided already.
                    for k in range(lanes):
                        target[k] -= below[k] * other[k]
                else:
                    for k in range(lanes):
                        target[k] -= below[k] * below[k] / pivot[k]
            for k in range(lanes):
                below[k] /= pivot[k]


@njit(**OPTIONS)
def _substitute(on: Structure, work: Work) -> None:
    """Solve for the right-hand sides in ``work.half`` (nodes, then one row of zeros), in place."""
    half, top, flat = work.half, work.top, work.flat
    lanes, coupling = half.shape[1], on.coupling.size
    for c in range(coupling):
        top[c] = half[on.coupling[c]]
    for g in range(on.group_size.size):
        size = on.group_size[g]
        for block in range(on.group_count[g]):
            nodes = on.nodes[on.node_offset[g] + block * size : on.node_offset[g] + (block + 1) * size]
            start = on.group_offset[g] + block * size * size
            border = on.border_offset[g] + block * size * coupling
            for j in range(size):
                if nodes[j] < 0:
                    break
                own = half[nodes[j]]
                for i in range(j + 1, size):
                    if nodes[i] < 0:
                        break
                    target, entry = half[nodes[i]], flat[start + i * size + j]
                    for k in range(lanes):
                        target[k] -= entry[k] * own[k]
                pivot = flat[start + j * size + j]
                for k in range(lanes):
                    own[k] /= pivot[k]
                for c in range(coupling):
                    target, entry = top[c], flat[border + j * coupling + c]
                    for k in range(lanes):
                        target[k] -= entry[k] * own[k]
    corner = on.corner
    for j in range(coupling):
        for i in range(j + 1, coupling):
            for k in range(lanes):
                top[i, k] -= flat[corner + i * coupling + j, k] * top[j, k]
    for j in range(coupling - 1, -1, -1):
        for k in range(lanes):
            top[j, k] /= flat[corner + j * coupling + j, k]
        for i in range(j + 1, coupling):
            for k in range(lanes):
                top[j, k] -= flat[corner + i * coupling + j, k] * top[i, k]
    for g in range(on.group_size.size):
        size = on.group_size[g]
        for block in range(on.group_count[g]):
            nodes = on.nodes[on.node_offset[g] + block * size : on.node_offset[g] + (block + 1) * size]
            start = on.group_offset[g] + block * size * size
            border = on.border_offset[g] + block * size * coupling
            for j in range(size - 1, -1, -1):
                if nodes[j] < 0:
                    continue
                own, pivot = half[nodes[j]], flat[start + j * size + j]
                for c in range(coupling):
                    entry = flat[border + j * coupling + c]
                    for k in range(lanes):
                        own[k] -= entry[k] * top[c, k] / pivot[k]
                for i in range(j + 1, size):
                    if nodes[i] < 0:
                        break
                    entry, other = flat[start + i * size + j], half[nodes[i]]
                    for k in range(lanes):
                        own[k] -= entry[k] * other[k]
    for c in range(coupling):
        half[on.coupling[c]] = top[c]


@njit(**OPTIONS)
def square(on: Structure, work: Work, v: Floats, out: Floats, inverse: bool) -> None:
    """H v = W²v or H⁻¹ v; zero on the rows of the zero cone."""
    lanes = v.shape[1]
    out[: on.zero] = 0.0
    for i in range(on.zero, on.linear):
        for k in range(lanes):
            out[i, k] = v[i, k] * work.weight[i, k] if inverse else v[i, k] / work.weight[i, k]
    sign, total = -1.0 if inverse else 1.0, work.total
    for c in range(on.cone_start.size):
        start, size = on.cone_start[c], on.cone_size[c]
        w, scale = work.point[start : start + size], work.scale[c]
        dots(w[1:], v[start + 1 : start + size], total)
        for k in range(lanes):
            total[k] = 2.0 * (w[0, k] * v[start, k] + sign * total[k])
            out[start, k] = total[k] * w[0, k] - v[start, k]
        for i in range(1, size):
            for k in range(lanes):
                out[start + i, k] = sign * total[k] * w[i, k] + v[start + i, k]
        for i in range(size):
            for k in range(lanes):
                out[start + i, k] = out[start + i, k] / scale[k] if inverse else out[start + i, k] * scale[k]


@njit(**OPTIONS)
def _once(on: Structure, of: Programs, work: Work, rx: Floats, rz: Floats, x: Floats, z: Floats) -> None:
    """Without refinement: z is eliminated from the rows of proper cones."""
    half = work.half
    square(on, work, rz, work.scaled, True)
    half[: on.columns] = rx
    half[on.columns : on.columns + on.zero] = rz[: on.zero]
    add_products(half, on.column, on.row, of.A, work.scaled)
    _substitute(on, work)
    x[:] = half[: on.columns]
    work.image[:] = 0.0
    add_products(work.image, on.row, on.column, of.A, x)
    square(on, work, work.image, z, True)
    z -= work.scaled
    z[: on.zero] = half[on.columns : on.columns + on.zero]


@njit(**OPTIONS)
def solve(
    on: Structure, of: Programs, work: Work, rx: Floats, rz: Floats, x: Floats, z: Floats, careful: Flags
) -> None:
    """X and z with Px + Aᵀz = rx and Ax - Hz = rz; refined once in the lanes where the last digits matter."""
    _once(on, of, work, rx, rz, x, z)
    if np.any(careful):
        refine(on, of, work, rx, rz, x, z, careful)


@njit(**OPTIONS)
def refine(
    on: Structure, of: Programs, work: Work, rx: Floats, rz: Floats, x: Floats, z: Floats, careful: Flags
) -> None:
    """Take the error of a solution back, as far as it is known; other lanes keep theirs, whoever stands beside them."""
    ex, ez = work.rest_x, work.rest_z
    square(on, work, z, ez, False)
    work.image[:] = 0.0
    add_products(work.image, on.row, on.column, of.A, x)
    ez += rz - work.image
    ex[:] = 0.0
    add_products(ex, on.column, on.row, of.A, z)
    add_products(ex, on.P_row, on.P_column, of.P, x)
    ex[:] = rx - ex
    _once(on, of, work, ex, ez, work.more_x, work.more_z)
    for v, more in ((x, work.more_x), (z, work.more_z)):
        for i in range(v.shape[0]):
            for k in range(careful.size):
                v[i, k] += more[i, k] if careful[k] else 0.0
