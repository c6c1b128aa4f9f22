"""Exact decisions of PyEPO's three problems for many known outcomes at once.

Every method asks for tens of thousands of them, so each problem has its own quick way: all paths of a small grid, a
branch and bound for packing, and Newton's method on the few factors of a portfolio. The tests hold them against the
library's own solver.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]


def paths(grid: int) -> Array:
    """All ways from one corner to the other, one row each, over edges as the generator counts them."""
    found = []
    for downs in combinations(range(2 * (grid - 1)), grid - 1):
        used, i, j = np.zeros(2 * grid * (grid - 1)), 0, 0
        for step in range(2 * (grid - 1)):
            # A row holds grid - 1 edges to the right, then grid to the next row.
            if step in downs:
                used[i * (2 * grid - 1) + grid - 1 + j] = 1.0
                i += 1
            else:
                used[i * (2 * grid - 1) + j] = 1.0
                j += 1
        found.append(used)
    return np.stack(found)


@njit(cache=True)
def packed(values: Array, weights: Array, room: Array) -> Array:
    """The most valuable items that fit, per row of values."""
    found = np.zeros_like(values)
    for row in range(len(values)):
        _pack(values[row], weights, room, found[row])
    return found


@njit(cache=True)
def _pack(values: Array, weights: Array, room: Array, best: Array) -> None:
    """Depth first, the item that is worth most for its weight first; bounded by one combined weight.

    Any nonnegative combination of the dimensions gives a bound; the least of them at the root is about as good as that
    of the linear program.
    """
    dims, count = weights.shape
    low, high, golden = 0.0, 1.0, 0.6180339887498949
    for _ in range(16 if dims > 1 else 0):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _relaxed(values, weights, room, left) < _relaxed(values, weights, room, right):
            high = right
        else:
            low = left
    share = 0.5 * (low + high)
    mixed = _mixed(weights, room, share)
    order = np.argsort(-values / mixed)
    v, m = values[order], mixed[order]
    w = np.ascontiguousarray(weights[:, order].T)
    last = count
    while last > 0 and v[last - 1] <= 0.0:
        # What is worth nothing stays out.
        last -= 1
    taken, kept = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    left_over, left_mixed, worth, top, k = room.copy(), 1.0, 0.0, 0.0, 0
    while True:
        # Bound: fill what is left by combined weight, the last item in part.
        bound, free, j = worth, left_mixed, k
        while j < last and m[j] <= free:
            bound += v[j]
            free -= m[j]
            j += 1
        if j < last:
            bound += v[j] * free / m[j]
        if bound > top + 1e-12 * abs(top) and k < last:
            fits = True
            for d in range(dims):
                fits = fits and w[k, d] <= left_over[d] + 1e-9
            if fits:
                taken[k] = True
                worth += v[k]
                left_mixed -= m[k]
                for d in range(dims):
                    left_over[d] -= w[k, d]
                if worth > top:
                    top = worth
                    kept[:] = taken
            k += 1
            continue
        # Back to the last item that was taken, and on without it.
        k -= 1
        while k >= 0 and not taken[k]:
            k -= 1
        if k < 0:
            break
        taken[k] = False
        worth -= v[k]
        left_mixed += m[k]
        for d in range(dims):
            left_over[d] += w[k, d]
        k += 1
    for j in range(count):
        best[order[j]] = 1.0 if kept[j] else 0.0


@njit(cache=True)
def _mixed(weights: Array, room: Array, share: float) -> Array:
    """Weights of one dimension with room one: the first dimension's share, and what is left among the others."""
    dims = len(room)
    total = share * weights[0] / room[0] if dims > 1 else weights[0] / room[0]
    for d in range(1, dims):
        total = total + (1.0 - share) / (dims - 1) * weights[d] / room[d]
    return total


@njit(cache=True)
def _relaxed(values: Array, weights: Array, room: Array, share: float) -> float:
    """The bound of a combination."""
    mixed = _mixed(weights, room, share)
    bound, free = 0.0, 1.0
    for j in np.argsort(-values / mixed):
        if values[j] <= 0.0:
            break
        if mixed[j] > free:
            return bound + values[j] * free / mixed[j]
        bound += values[j]
        free -= mixed[j]
    return bound


def invested(returns: Array, covariance: Array, risk: float) -> Array:
    """The portfolio of the best return with variance at most ``risk``, per row; any, where there is no variance."""
    if not covariance.any():
        return np.eye(len(covariance))[returns.argmax(1)]
    own, directions = np.linalg.eigh(covariance)
    # PyEPO's covariances are a few factors beside the same variance for all.
    factors = own > own[0] * (1 + 1e-6)
    loadings = directions[:, factors] * np.sqrt(own[factors] - own[0])
    return np.asarray(_invested(np.ascontiguousarray(returns, dtype=np.float64), loadings, float(own[0]), risk))


@njit(cache=True)
def _invested(returns: Array, loadings: Array, own: float, risk: float) -> Array:
    """At the price of variance at which the bound is met, by false position on its inverse."""
    found = np.zeros_like(returns)
    for row in range(len(returns)):
        r, f = returns[row], np.zeros(loadings.shape[1])
        x = np.zeros(len(r))
        x[r.argmax()] = 1.0
        if _variance(x, loadings, own) <= risk:
            found[row] = x
            continue
        # Appetite for risk, the inverse of the price: at none the variance is the least, and grows with it.
        low = high = own / (r.max() - r.min())
        below = above = _variance(_priced(r, loadings, own, 1.0 / low, f), loadings, own) - risk
        while below > 0.0 and low > 1e-12 * high:
            low, high, above = 0.25 * low, low, below
            below = _variance(_priced(r, loadings, own, 1.0 / low, f), loadings, own) - risk
        while above < 0.0:
            low, high, below = high, 4.0 * high, above
            above = _variance(_priced(r, loadings, own, 1.0 / high, f), loadings, own) - risk
        side = 0
        for _ in range(100):
            if high - low <= 1e-12 * high or below >= -1e-12 * risk:
                break
            middle = (low * above - high * below) / (above - below)
            value = _variance(_priced(r, loadings, own, 1.0 / middle, f), loadings, own) - risk
            if value <= 0.0:
                low, below = middle, value
                above = 0.5 * above if side == 1 else above
                side = 1
            else:
                high, above = middle, value
                below = 0.5 * below if side == -1 else below
                side = -1
        found[row] = _priced(r, loadings, own, 1.0 / low, f)
    return found


@njit(cache=True)
def _variance(x: Array, loadings: Array, own: float) -> float:
    """Of a portfolio."""
    exposed = loadings.T @ x
    return float(own * (x @ x) + exposed @ exposed)


@njit(cache=True)
def _priced(r: Array, loadings: Array, own: float, price: float, f: Array) -> Array:
    """The best portfolio at a price of half the variance; f, its factors, is where Newton's method begins and ends."""
    x = _simplex((r - price * (loadings @ f)) / (price * own))
    for _ in range(50):
        # Where the assets that are held stay the same, x is affine in f.
        miss = f - loadings.T @ x
        if np.abs(miss).max() <= 1e-13:
            break
        held = loadings[x > 0.0]
        centred = held - held.sum(0) / len(held)
        f -= np.linalg.solve(np.eye(len(f)) + centred.T @ centred / own, miss)
        x = _simplex((r - price * (loadings @ f)) / (price * own))
    return x


@njit(cache=True)
def _simplex(point: Array) -> Array:
    """The nearest point whose entries are nonnegative with sum one."""
    falling = np.sort(point)[::-1]
    total, level = -1.0, 0.0
    for k in range(len(falling)):
        total += falling[k]
        if falling[k] - total / (k + 1) > 0.0:
            level = total / (k + 1)
    return np.maximum(point - level, 0.0)
