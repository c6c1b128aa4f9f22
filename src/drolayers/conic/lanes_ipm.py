"""The interior-point method of ``ipm.py`` for the CPU, compiled: the same embedding, steps and verdicts, lane by lane.

What is written there once for a batch of tensors is written here for a handful of programs in one loop; the tests of
the engine contract hold both to the same answers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from drolayers.conic.interior.system import Data
from drolayers.conic.ipm import CENTRING, CLOSE, PATIENCE, SPOILT, Iterate, Outcome
from drolayers.conic.lanes import (
    OPTIONS,
    Flags,
    Floats,
    Ints,
    Programs,
    Structure,
    Work,
    add_products,
    dots,
    factor,
    fix,
    make_work,
    refine,
    sizes,
    solve,
    square,
)
from drolayers.status import Status

OPTIMAL, FAILED = int(Status.OPTIMAL), int(Status.FAILED)
INFEASIBLE, NO_MINIMUM = int(Status.INFEASIBLE), int(Status.NO_MINIMUM)

PULL_REFINE = 3
"""Further refinements of the system of the derivative, which is solved at the end of the path."""

ROUGH = 1e-3
"""Distance from optimality above which the systems need no refinement: the next step corrects what is left."""

LANES = 16
"""Programs that are stepped through together at least, and at most four times as many: measured, fewer are not
vectorised, and more wait for the slowest."""

CACHE = 1 << 21
"""Bytes that more than the least number of lanes may take, so that they stay in the cache."""


def solve_lanes(on: Structure, data: Data, tolerance: float, max_iter: int, level: float) -> Outcome:
    """Solve a batch of programs, and remember where each passed a level of the barrier; as ``ipm.solve``."""
    batch = data.q.shape[1]
    best, anchor = (_iterate(on, batch) for _ in range(2))
    verdict, steps = np.full(batch, FAILED), np.zeros(batch, dtype=np.int64)

    def some(chosen: slice) -> None:
        found = _run(on, _part(data, chosen), tolerance, max_iter, level)
        for target, source in zip((*best, *anchor, verdict, steps), found, strict=True):
            target[..., chosen] = source

    _each(some, on, batch)
    iterates = [Iterate(*(torch.from_numpy(t) for t in part)) for part in (best, anchor)]
    return Outcome(iterates[0], iterates[1], torch.from_numpy(verdict), torch.from_numpy(steps))


def pull_lanes(on: Structure, data: Data, level: float, anchor: Iterate, dx: Tensor) -> tuple[Tensor, ...]:
    """The point x, z of the central path at a level, and g, h with K (g, h) = (dx, 0) there; as ``ipm.central``."""
    batch = dx.shape[1]
    start = [(v / anchor.tau).numpy() for v in (anchor.x, anchor.z, anchor.s)]
    incoming = dx.numpy()
    found = [np.empty((size, batch)) for size in (on.columns, on.rows, on.columns, on.rows)]

    def some(chosen: slice) -> None:
        at = [np.ascontiguousarray(v[:, chosen]) for v in (*start, incoming)]
        for target, source in zip(found, _pull(on, _part(data, chosen), level, *at), strict=True):
            target[:, chosen] = source

    _each(some, on, batch)
    return tuple(torch.from_numpy(t) for t in found)


def _part(data: Data, chosen: slice) -> Programs:
    """The numbers of some programs; what all share is repeated."""
    width = chosen.stop - chosen.start

    def cut(tensor: Tensor) -> Floats:
        t = tensor.numpy()
        part = t[:, chosen] if t.shape[1] == data.q.shape[1] else np.broadcast_to(t, (t.shape[0], width))
        return np.ascontiguousarray(part)

    return Programs(cut(data.A), cut(data.P), cut(data.q), cut(data.b))


def lane_count(on: Structure, batch: int) -> int:
    """How many programs are stepped through together."""
    fitting = CACHE // (8 * max(on.length + 12 * on.rows + on.row.size, 1))
    share = -(-batch // torch.get_num_threads())
    return max(1, min(max(LANES, fitting), 4 * LANES, share))


def _each(work: Callable[[slice], None], on: Structure, batch: int) -> None:
    """Do the parts of a batch, on as many threads as torch has."""
    lanes = lane_count(on, batch)
    parts = [slice(start, min(start + lanes, batch)) for start in range(0, batch, lanes)]
    threads = min(torch.get_num_threads(), len(parts))
    if threads == 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, parts))


def _iterate(on: Structure, batch: int) -> tuple[Floats, ...]:
    """An iterate's arrays."""
    shapes = ((on.columns, batch), (on.rows, batch), (on.rows, batch), (batch,), (batch,))
    return tuple(np.empty(shape) for shape in shapes)


class Room(NamedTuple):
    """Arrays for the steps of a few programs."""

    Ax: Floats
    Az: Floats
    Px: Floats
    x1: Floats
    z1: Floats
    x2: Floats
    z2: Floats
    dx: Floats
    dz: Floats
    ds: Floats
    rx: Floats
    rz: Floats
    offset: Floats
    spare: Floats
    lam: Floats
    first: Floats
    second: Floats
    scalars: Floats


@njit(**OPTIONS)
def _make_room(on: Structure, lanes: int) -> Room:
    """Arrays for so many lanes."""
    n, m = on.columns, on.rows
    return Room(
        np.empty((m, lanes)),
        np.empty((n, lanes)),
        np.zeros((n, lanes)),
        np.empty((n, lanes)),
        np.empty((m, lanes)),
        np.empty((n, lanes)),
        np.empty((m, lanes)),
        np.empty((n, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((n, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((m, lanes)),
        np.empty((12, lanes)),
    )


@njit(**OPTIONS)
def _run(
    on: Structure, of: Programs, tolerance: float, max_iter: int, level: float
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats, Ints, Ints]:
    """All steps of a few programs: the best iterates, those above the level, verdicts and numbers of steps."""
    n, m, lanes = on.columns, on.rows, of.q.shape[1]
    degree = on.linear - on.zero + on.cone_start.size
    work, room = make_work(on, lanes), _make_room(on, lanes)
    fix(on, of, work)
    x, z, s = np.zeros((n, lanes)), np.zeros((m, lanes)), np.zeros((m, lanes))
    tau, kappa = np.ones(lanes), np.ones(lanes)
    _start(on, of, work, room, x, z, s)
    bx, bz, bs, bt, bk = x.copy(), z.copy(), s.copy(), tau.copy(), kappa.copy()
    ax, az, as_, at, ak = x.copy(), z.copy(), s.copy(), tau.copy(), kappa.copy()
    score, now, found = np.full(lanes, np.inf), np.empty(lanes), np.full(lanes, FAILED)
    idle, verdict, steps = np.zeros(lanes, dtype=np.int64), np.full(lanes, FAILED), np.zeros(lanes, dtype=np.int64)
    d_tau, d_kappa, after = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    mu, sigma, reach = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    careful, nowhere = np.zeros(lanes, dtype=np.bool_), np.zeros(lanes, dtype=np.bool_)
    for step in range(max_iter + 1):
        _products(on, of, room, x, z)
        _judge(on, of, room, x, z, s, tau, tolerance, now, found)
        dots(s, z, mu)
        running = False
        for k in range(lanes):
            mu[k] = (mu[k] + tau[k] * kappa[k]) / (degree + 1)
            careful[k] = False
            if verdict[k] != FAILED:
                continue
            # Not where arithmetic broke down after the best point was met.
            if mu[k] >= level * tau[k] * tau[k] and now[k] <= SPOILT * score[k]:
                _keep(k, ax, az, as_, at, ak, x, z, s, tau, kappa)
            better = now[k] < 0.9 * score[k]
            if better or found[k] == INFEASIBLE or found[k] == NO_MINIMUM:
                _keep(k, bx, bz, bs, bt, bk, x, z, s, tau, kappa)
            idle[k] = 0 if better else idle[k] + 1
            score[k] = now[k] if better else score[k]
            verdict[k] = found[k]
            # Close to the goal and no longer getting closer: arithmetic has no more to give.
            if found[k] == FAILED and idle[k] >= PATIENCE and score[k] <= CLOSE:
                verdict[k] = OPTIMAL
            running = running or verdict[k] == FAILED
            careful[k] = verdict[k] == FAILED and not now[k] > ROUGH
        if not running or step == max_iter:
            break
        _scale(on, work, room, s, z)
        factor(on, of, work)
        room.rx[:] = -of.q
        solve(on, of, work, room.rx, of.b, room.x2, room.z2, careful)
        # Predictor.
        for k in range(lanes):
            sigma[k] = 0.0
            d_kappa[k] = kappa[k] * tau[k]
        room.offset[:] = s
        _direction(on, of, work, room, x, z, s, tau, kappa, sigma, d_kappa, d_tau, nowhere)
        for k in range(lanes):
            after[k] = -(d_kappa[k] + kappa[k] * d_tau[k]) / tau[k]
        _reach(on, room, s, z, tau, kappa, d_tau, after, reach, 1.0)
        for k in range(lanes):
            sigma[k] = (1.0 - reach[k]) ** 3
            mu[k] *= sigma[k]
            d_kappa[k] = kappa[k] * tau[k] + after[k] * d_tau[k] - mu[k]
        # Mehrotra's corrector: the second-order term of the complementarity, and a target on the central path.
        _correct(on, work, room, z, mu)
        _direction(on, of, work, room, x, z, s, tau, kappa, sigma, d_kappa, d_tau, careful)
        for k in range(lanes):
            after[k] = -(d_kappa[k] + kappa[k] * d_tau[k]) / tau[k]
        _reach(on, room, s, z, tau, kappa, d_tau, after, reach, 1.0)
        for k in range(lanes):
            going = verdict[k] == FAILED
            steps[k] += going
            # Without a finite step in τ and κ there is none at all, and finished lanes stand still.
            if not (going and np.isfinite(d_tau[k] + after[k])):
                reach[k] = d_tau[k] = after[k] = 0.0
        _advance(room, x, z, s, reach)
        for k in range(lanes):
            tau[k] += reach[k] * d_tau[k]
            kappa[k] += reach[k] * after[k]
    return bx, bz, bs, bt, bk, ax, az, as_, at, ak, verdict, steps


@njit(**OPTIONS)
def _keep(
    k: int,
    ox: Floats,
    oz: Floats,
    os: Floats,
    ot: Floats,
    ok: Floats,
    x: Floats,
    z: Floats,
    s: Floats,
    tau: Floats,
    kappa: Floats,
) -> None:
    """Copy one lane."""
    for i in range(x.shape[0]):
        ox[i, k] = x[i, k]
    for i in range(z.shape[0]):
        oz[i, k] = z[i, k]
        os[i, k] = s[i, k]
    ot[k], ok[k] = tau[k], kappa[k]


@njit(**OPTIONS)
def _products(on: Structure, of: Programs, room: Room, x: Floats, z: Floats) -> None:
    """A x, Aᵀz and P x."""
    room.Ax[:] = 0.0
    room.Az[:] = 0.0
    add_products(room.Ax, on.row, on.column, of.A, x)
    add_products(room.Az, on.column, on.row, of.A, z)
    if on.P_row.size:
        room.Px[:] = 0.0
        add_products(room.Px, on.P_row, on.P_column, of.P, x)


@njit(**OPTIONS)
def _start(on: Structure, of: Programs, work: Work, room: Room, x: Floats, z: Floats, s: Floats) -> None:
    """Least-squares points, shifted into the cones."""
    lanes = x.shape[1]
    work.weight[:] = 1.0
    work.scale[:] = 1.0
    work.point[:] = 0.0
    for c in range(on.cone_start.size):
        work.point[on.cone_start[c]] = 1.0
    factor(on, of, work)
    nothing_x, nothing_z, everywhere = np.zeros_like(x), np.zeros_like(z), np.ones(lanes, dtype=np.bool_)
    if on.P_row.size:
        solve(on, of, work, -of.q, of.b, x, z, everywhere)
        s[:] = -z
    else:
        solve(on, of, work, nothing_x, of.b, x, s, everywhere)
        s[:] = -s
        solve(on, of, work, -of.q, nothing_z, room.x1, z, everywhere)
    margin = np.empty(lanes)
    for v in (s, z):
        _margin(on, v, margin)
        for k in range(lanes):
            if margin[k] < 1e-8:
                for i in range(on.zero, on.linear):
                    v[i, k] += 1.0 - margin[k]
                for c in range(on.cone_start.size):
                    v[on.cone_start[c], k] += 1.0 - margin[k]
    s[: on.zero] = 0.0


@njit(**OPTIONS)
def _margin(on: Structure, v: Floats, out: Floats) -> None:
    """The smallest eigenvalue over all cones: positive inside."""
    out[:] = np.inf
    length = np.empty_like(out)
    for i in range(on.zero, on.linear):
        for k in range(out.size):
            out[k] = min(out[k], v[i, k])
    for c in range(on.cone_start.size):
        start = on.cone_start[c]
        dots(v[start + 1 : start + on.cone_size[c]], v[start + 1 : start + on.cone_size[c]], length)
        for k in range(out.size):
            out[k] = min(out[k], v[start, k] - np.sqrt(length[k]))


@njit(**OPTIONS)
def _judge(
    on: Structure,
    of: Programs,
    room: Room,
    x: Floats,
    z: Floats,
    s: Floats,
    tau: Floats,
    tolerance: float,
    score: Floats,
    found: Ints,
) -> None:
    """How far programs are from optimality, and where they have arrived; FAILED means not yet."""
    n, m, lanes = on.columns, on.rows, tau.size
    xPx, qx, bz, primal, ray, dual, Az_size, Px_size, b_size, s_size, q_size, _ = room.scalars
    dots(of.q, x, qx)
    dots(of.b, z, bz)
    xPx[:] = 0.0
    Px_size[:] = 0.0
    if on.P_row.size:
        dots(x, room.Px, xPx)
        sizes(room.Px, Px_size)
    sizes(of.b, b_size)
    sizes(of.q, q_size)
    sizes(s, s_size)
    sizes(room.Az, Az_size)
    primal[:] = 0.0
    ray[:] = 0.0
    dual[:] = 0.0
    for i in range(m):
        for k in range(lanes):
            image = room.Ax[i, k] + s[i, k]
            ray[k] = max(ray[k], abs(image))
            primal[k] = max(primal[k], abs(image - of.b[i, k] * tau[k]))
    for i in range(n):
        for k in range(lanes):
            dual[k] = max(dual[k], abs(room.Px[i, k] + room.Az[i, k] + of.q[i, k] * tau[k]))
    for k in range(lanes):
        first = primal[k] / tau[k] / (1.0 + max(b_size[k], s_size[k] / tau[k]))
        second = dual[k] / tau[k] / (1.0 + max(q_size[k], Az_size[k] / tau[k]))
        a, b, c = xPx[k] / (tau[k] * tau[k]), qx[k] / tau[k], bz[k] / tau[k]
        gap = abs(a + b + c) / (1.0 + min(abs(0.5 * a + b), abs(0.5 * a + c)))
        score[k] = max(first, second, gap) if np.isfinite(first + second + gap) else np.inf
        found[k] = FAILED
        if score[k] <= tolerance:
            found[k] = OPTIMAL
        elif bz[k] < 0 and Az_size[k] <= -tolerance * bz[k]:
            found[k] = INFEASIBLE
        elif qx[k] < 0 and max(Px_size[k], ray[k]) <= -tolerance * qx[k]:
            found[k] = NO_MINIMUM


@njit(**OPTIONS)
def _dets(v: Floats, out: Floats) -> None:
    """v₀² - ‖v₁‖² of one cone, as a product, which loses less."""
    dots(v[1:], v[1:], out)
    for k in range(out.size):
        length = np.sqrt(out[k])
        out[k] = (v[0, k] - length) * (v[0, k] + length)


@njit(**OPTIONS)
def _scale(on: Structure, work: Work, room: Room, s: Floats, z: Floats) -> None:
    """The Nesterov-Todd point of (s, z); see ``scaling.py``."""
    lanes = s.shape[1]
    p, q, inner = room.scalars[0], room.scalars[1], room.scalars[2]
    for i in range(on.zero, on.linear):
        for k in range(lanes):
            work.weight[i, k] = z[i, k] / s[i, k]
    for c in range(on.cone_start.size):
        start, stop = on.cone_start[c], on.cone_start[c] + on.cone_size[c]
        _dets(s[start:stop], p)
        _dets(z[start:stop], q)
        dots(s[start:stop], z[start:stop], inner)
        for k in range(lanes):
            p[k] = np.sqrt(max(p[k], 1e-300))
            q[k] = np.sqrt(max(q[k], 1e-300))
            gamma = 2.0 * np.sqrt(0.5 * (1.0 + inner[k] / (p[k] * q[k])))
            work.scale[c, k] = p[k] / q[k]
            p[k] = 1.0 / (p[k] * gamma)
            q[k] = 1.0 / (q[k] * gamma)
            work.point[start, k] = s[start, k] * p[k] + z[start, k] * q[k]
        for i in range(start + 1, stop):
            for k in range(lanes):
                work.point[i, k] = s[i, k] * p[k] - z[i, k] * q[k]


@njit(**OPTIONS)
def _apply(on: Structure, work: Work, room: Room, v: Floats, out: Floats, inverse: bool) -> None:
    """W v or W⁻¹ v; zero on the rows of the zero cone."""
    lanes = v.shape[1]
    inner, scale = room.scalars[0], room.scalars[1]
    out[: on.zero] = 0.0
    for i in range(on.zero, on.linear):
        for k in range(lanes):
            root = np.sqrt(work.weight[i, k])
            out[i, k] = v[i, k] * root if inverse else v[i, k] / root
    sign = -1.0 if inverse else 1.0
    for c in range(on.cone_start.size):
        start, stop = on.cone_start[c], on.cone_start[c] + on.cone_size[c]
        dots(work.point[start + 1 : stop], v[start + 1 : stop], inner)
        for k in range(lanes):
            scale[k] = np.sqrt(work.scale[c, k])
            if inverse:
                scale[k] = 1.0 / scale[k]
            head = work.point[start, k]
            inner[k] *= sign
            out[start, k] = scale[k] * (head * v[start, k] + inner[k])
            inner[k] = sign * (v[start, k] + inner[k] / (1.0 + head))
        for i in range(start + 1, stop):
            for k in range(lanes):
                out[i, k] = scale[k] * (v[i, k] + inner[k] * work.point[i, k])


@njit(**OPTIONS)
def _correct(on: Structure, work: Work, room: Room, z: Floats, target: Floats) -> None:
    """W applied to the u with λ∘u = λ∘λ + (W⁻¹ds)∘(W dz) - target·e; goes into ``room.offset``."""
    lanes = z.shape[1]
    lam, first, second, spare = room.lam, room.first, room.second, room.spare
    _apply(on, work, room, z, lam, False)
    _apply(on, work, room, room.ds, first, True)
    _apply(on, work, room, room.dz, second, False)
    spare[: on.zero] = 0.0
    for i in range(on.zero, on.linear):
        for k in range(lanes):
            spare[i, k] = lam[i, k] + (first[i, k] * second[i, k] - target[k]) / lam[i, k]
    head, inner, det = room.scalars[0], room.scalars[1], room.scalars[2]
    for c in range(on.cone_start.size):
        start, stop = on.cone_start[c], on.cone_start[c] + on.cone_size[c]
        dots(first[start:stop], second[start:stop], head)
        _dets(lam[start:stop], det)
        inner[:] = 0.0
        for i in range(start + 1, stop):
            for k in range(lanes):
                spare[i, k] = first[start, k] * second[i, k] + second[start, k] * first[i, k]
                inner[k] += lam[i, k] * spare[i, k]
        # λ∘λ divided by λ is λ itself, so only the rest is divided.
        for k in range(lanes):
            head[k] = (lam[start, k] * (head[k] - target[k]) - inner[k]) / det[k]
            spare[start, k] = lam[start, k] + head[k]
        for i in range(start + 1, stop):
            for k in range(lanes):
                spare[i, k] = lam[i, k] + (spare[i, k] - head[k] * lam[i, k]) / lam[start, k]
    _apply(on, work, room, spare, room.offset, False)


@njit(**OPTIONS)
def _direction(
    on: Structure,
    of: Programs,
    work: Work,
    room: Room,
    x: Floats,
    z: Floats,
    s: Floats,
    tau: Floats,
    kappa: Floats,
    sigma: Floats,
    d_kappa: Floats,
    d_tau: Floats,
    careful: Flags,
) -> None:
    """The step that takes 1 - σ of the residuals away; ``room.offset`` is W applied to the u with λ∘u = d_s."""
    n, m, lanes = on.columns, on.rows, tau.size
    for i in range(n):
        for k in range(lanes):
            room.rx[i, k] = -(1.0 - sigma[k]) * (room.Px[i, k] + room.Az[i, k] + of.q[i, k] * tau[k])
    for i in range(m):
        for k in range(lanes):
            room.rz[i, k] = room.offset[i, k] - (1.0 - sigma[k]) * (room.Ax[i, k] + s[i, k] - of.b[i, k] * tau[k])
    solve(on, of, work, room.rx, room.rz, room.x1, room.z1, careful)
    qx, bz, q1, b1, q2, b2, xPx, xP1, aPa, xP2 = room.scalars[:10]
    dots(of.q, x, qx)
    dots(of.b, z, bz)
    dots(of.q, room.x1, q1)
    dots(of.b, room.z1, b1)
    dots(of.q, room.x2, q2)
    dots(of.b, room.z2, b2)
    room.scalars[6:10] = 0.0
    if on.P_row.size:
        away, image = room.x2 - x / tau, np.zeros_like(x)
        dots(x, room.Px, xPx)
        dots(room.Px, room.x1, xP1)
        add_products(image, on.P_row, on.P_column, of.P, away)
        dots(away, image, aPa)
        image[:] = 0.0
        add_products(image, on.P_row, on.P_column, of.P, room.x2)
        dots(room.x2, image, xP2)
    for k in range(lanes):
        rt = (qx[k] + bz[k] + kappa[k] + xPx[k] / tau[k]) * (1.0 - sigma[k])
        numerator = rt - d_kappa[k] / tau[k] + q1[k] + b1[k] + 2.0 * xP1[k] / tau[k]
        d_tau[k] = numerator / (kappa[k] / tau[k] - q2[k] - b2[k] + aPa[k] - xP2[k])
    for i in range(n):
        for k in range(lanes):
            room.dx[i, k] = room.x1[i, k] + d_tau[k] * room.x2[i, k]
    for i in range(m):
        for k in range(lanes):
            room.dz[i, k] = room.z1[i, k] + d_tau[k] * room.z2[i, k]
    square(on, work, room.dz, room.ds, False)
    for i in range(m):
        for k in range(lanes):
            room.ds[i, k] = -(room.ds[i, k] + room.offset[i, k])
    room.ds[: on.zero] = 0.0


@njit(**OPTIONS)
def _reach(
    on: Structure,
    room: Room,
    s: Floats,
    z: Floats,
    tau: Floats,
    kappa: Floats,
    d_tau: Floats,
    d_kappa: Floats,
    out: Floats,
    most: float,
) -> None:
    """The largest steps up to a length that stay in the cones."""
    for k in range(out.size):
        out[k] = most
        if d_tau[k] < 0:
            out[k] = min(out[k], -tau[k] / d_tau[k])
        if d_kappa[k] < 0:
            out[k] = min(out[k], -kappa[k] / d_kappa[k])
    a, b, det = room.scalars[0], room.scalars[1], room.scalars[2]
    for v, d in ((s, room.ds), (z, room.dz)):
        for i in range(on.zero, on.linear):
            for k in range(out.size):
                bound = -v[i, k] / d[i, k] if d[i, k] < 0 else np.inf
                out[k] = min(out[k], bound)
        for c in range(on.cone_start.size):
            start, stop = on.cone_start[c], on.cone_start[c] + on.cone_size[c]
            # Roots of det(v + t d) = a t² + 2 b t + det.
            _dets(d[start:stop], a)
            _dets(v[start:stop], det)
            dots(v[start + 1 : stop], d[start + 1 : stop], b)
            for k in range(out.size):
                half, rest = v[start, k] * d[start, k] - b[k], max(det[k], 0.0)
                inside = half * half - a[k] * rest
                if a[k] < 0 or (half < 0 and inside >= 0):
                    # The smallest positive root, in the form that does not cancel.
                    out[k] = min(out[k], rest / max(np.sqrt(max(inside, 0.0)) - half, 1e-300))
                if d[start, k] < 0:
                    out[k] = min(out[k], -v[start, k] / d[start, k])


@njit(**OPTIONS)
def _pull(
    on: Structure, of: Programs, level: float, x: Floats, z: Floats, s: Floats, incoming: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Newton steps to the central path, and one more system there; see ``ipm.central``."""
    m, lanes = on.rows, x.shape[1]
    degree = max(on.linear - on.zero + on.cone_start.size, 1)
    work, room = make_work(on, lanes), _make_room(on, lanes)
    fix(on, of, work)
    target, reach, none = np.empty(lanes), np.empty(lanes), np.zeros(lanes)
    everywhere = np.ones(lanes, dtype=np.bool_)
    for _ in range(CENTRING):
        _scale(on, work, room, s, z)
        factor(on, of, work)
        _products(on, of, room, x, z)
        dots(s, z, target)
        for k in range(lanes):
            target[k] = max(0.1 * target[k] / degree, level)
        room.ds[:] = 0.0
        room.dz[:] = 0.0
        _correct(on, work, room, z, target)
        room.rx[:] = -(room.Px + room.Az + of.q)
        room.rz[:] = room.offset - (room.Ax + s - of.b)
        solve(on, of, work, room.rx, room.rz, room.dx, room.dz, everywhere)
        square(on, work, room.dz, room.ds, False)
        for i in range(m):
            for k in range(lanes):
                room.ds[i, k] = -(room.ds[i, k] + room.offset[i, k])
        room.ds[: on.zero] = 0.0
        # Of which 99 % is a whole step: short of it Newton's method would not converge to the last digits.
        _reach(on, room, s, z, none, none, none, none, reach, 1.0 / 0.99)
        _advance(room, x, z, s, reach)
    _scale(on, work, room, s, z)
    factor(on, of, work)
    nothing, g, h = np.zeros((m, lanes)), np.empty_like(x), np.empty_like(z)
    solve(on, of, work, incoming, nothing, g, h, everywhere)
    for _ in range(PULL_REFINE):
        refine(on, of, work, incoming, nothing, g, h, everywhere)
    return x, z, g, h


@njit(**OPTIONS)
def _advance(room: Room, x: Floats, z: Floats, s: Floats, reach: Floats) -> None:
    """99 % of the way along a direction, in the lanes where it is finite and that have any way to go."""
    lanes = reach.size
    total = room.scalars[3]
    for k in range(lanes):
        reach[k] *= 0.99
        total[k] = reach[k]
    for v in (room.dx, room.dz, room.ds):
        for i in range(v.shape[0]):
            for k in range(lanes):
                total[k] += v[i, k]
    for k in range(lanes):
        if not np.isfinite(total[k]):
            reach[k] = 0.0
            # Zero times a number that is none would not be zero.
            room.dx[:, k] = 0.0
            room.dz[:, k] = 0.0
            room.ds[:, k] = 0.0
    for v, d in ((x, room.dx), (z, room.dz), (s, room.ds)):
        for i in range(v.shape[0]):
            for k in range(lanes):
                v[i, k] += reach[k] * d[i, k]
