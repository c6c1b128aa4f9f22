"""Processor time and memory to build problems, how both grow, and one solve against Clarabel through CVXPY.

    python benchmarks/building.py [--quick] [--only portfolio,moments,newsvendor,rows,vectors,solve]

Building is the construction of a ``DecisionProblem``, the compiled program included. Each size is built in a process of
its own, so that its peak memory is its own; what the imports take is taken off. The exponent is the slope of log
seconds against log size between the two largest sizes. The solve is of the same problem, written by hand for CVXPY.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro

ASSETS = 20
RISK, WEIGHT = 0.9, 0.5
SUPPORTS = {
    "reals": dro.support.Reals,
    "nonnegative": dro.support.Nonnegative,
    "box": lambda: dro.support.Box(-1.0, 2.0),
}
ATOMS = [100, 300, 1000, 3000, 10000]
TOLERANCE = 1e-9
"""That of our solver, which Clarabel is asked for as well."""
COUNTS = [24, 120, 500]
ITEMS = [50, 200, 800]


def portfolio(atoms: int, support: str, norm: float, order: int) -> dro.DecisionProblem:
    """Mean and CVaR of a portfolio of 20 assets under a Wasserstein ball."""
    y = dro.Uncertain(ASSETS, SUPPORTS[support]())
    x = cp.Variable(ASSETS, nonneg=True)
    loss = -(y @ x)
    cost = loss + WEIGHT * dro.cvar(loss, RISK)
    return dro.DecisionProblem(cost, [cp.sum(x) == 1], dro.Wasserstein(y, atoms, norm, order))


def moments(count: int, kind: str, pieces: int) -> dro.DecisionProblem:
    """A portfolio under many moments of one kind, with directions that are learnt or given."""
    rng = np.random.default_rng(0)
    y, x = dro.Uncertain(ASSETS), cp.Variable(ASSETS, nonneg=True)
    given = [rng.normal(size=ASSETS) if kind.endswith("given") else None for _ in range(count)]
    make = {"absolute": dro.moments.Absolute, "linear": dro.moments.Linear, "square": dro.moments.PositiveSquare}
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm(), *[make[kind.split("-")[0]](mu=mu) for mu in given]])
    cost = -(y @ x) if pieces == 1 else dro.cvar(-(y @ x), RISK)
    return dro.DecisionProblem(cost, [cp.sum(x) == 1], ambiguity)


def newsvendor(items: int, atoms: int) -> dro.DecisionProblem:
    """Orders against demand, under both moments of the paper or a ball around some atoms."""
    rng = np.random.default_rng(0)
    y, x = dro.Uncertain(items, dro.support.Nonnegative()), cp.Variable(items, nonneg=True)
    shortage, surplus = rng.uniform(2.0, 4.0, items), rng.uniform(0.2, 1.0, items)
    cost = cp.sum(x) + cp.sum(cp.maximum(cp.multiply(shortage, y - x), cp.multiply(surplus, x - y)))
    both = [dro.moments.Norm(1), dro.moments.SquaredNorm()]
    ambiguity = dro.Wasserstein(y, atoms) if atoms else dro.MomentSet(y, both)
    return dro.DecisionProblem(cost, [], ambiguity)


def vectors(items: int, kind: str) -> dro.DecisionProblem:
    """The newsvendor with a mean and a variance an item, as two vectors or three moments an item; or one square."""
    y, x = dro.Uncertain(items, dro.support.Nonnegative()), cp.Variable(items, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(3.0 * (y - x), 0.5 * (x - y)))
    sides = [dro.moments.Linear(mu=sign * e) for sign in (1.0, -1.0) for e in np.eye(items)]
    sets = {
        "vectors": [dro.moments.Mean(sigma=None), dro.moments.Variance()],
        "one-by-one": [*sides, *[dro.moments.SquaredNorm([i]) for i in range(items)]],
        "one-square": [dro.moments.SquaredNorm()],
    }
    return dro.DecisionProblem(cost, [], dro.MomentSet(y, sets[kind]))


def rows(items: int, kind: str) -> dro.DecisionProblem:
    """The newsvendor with a bound on the expected shortage of every item."""
    y, x = dro.Uncertain(items, dro.support.Nonnegative()), cp.Variable(items, nonneg=True)
    sets: dict[str, Callable[[], Any]] = {
        "square": lambda: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
        "ball": lambda: dro.Wasserstein(y, 20),
        "chi2": lambda: dro.Divergence(y, 20),
    }
    return dro.DecisionProblem(cp.sum(x), [dro.expected(cp.pos(y - x)) <= 0.5], sets[kind]())


FAMILIES: dict[str, tuple[Callable[..., dro.DecisionProblem], list[tuple[object, ...]], list[int]]] = {
    "portfolio": (
        portfolio,
        [(support, norm, order) for support in SUPPORTS for norm in (1, 2, np.inf) for order in (1, 2)],
        ATOMS,
    ),
    "moments": (
        moments,
        [(kind, pieces) for kind in ("absolute", "absolute-given", "linear", "square") for pieces in (1, 2)],
        COUNTS,
    ),
    "newsvendor": (newsvendor, [(0,), (20,)], ITEMS),
    "rows": (rows, [("square",), ("ball",), ("chi2",)], [15, 30, 60]),
    "vectors": (vectors, [("vectors",), ("one-by-one",), ("one-square",)], [10, 40, 160]),
}


def build(family: str, size: int, settings: tuple[object, ...]) -> dict[str, float]:
    """Build once, in this process."""
    function = FAMILIES[family][0]
    function(2, *settings)  # Imports and caches.
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        program = function(size, *settings).program
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    warned = sum("subexpressions" in str(w.message) for w in caught)
    return {
        "seconds": seconds,
        "megabytes": (peak - base) / 1024,
        "rows": program.rows,
        "columns": program.columns,
        "nonzeros": program.nonzeros,
        "warnings": warned,
    }


def in_process(family: str, size: int, settings: tuple[object, ...], limit: float) -> dict[str, float] | None:
    """Build in a process of its own; None where that took too long or failed."""
    # A fork starts with the memory of the imports, and with a peak of its own.
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: there.send(build(family, size, settings)))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(limit) else None  # type: ignore[no-any-return]
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


def table(family: str, quick: bool, limit: float) -> None:
    """One line for every setting and size, and the exponent between the last two sizes."""
    _, all_settings, sizes = FAMILIES[family]
    heads = f"{'rows':>9}{'columns':>9}{'non-zeros':>11}{'exp':>7}"
    print(f"\n{family}\n{'settings':<26}{'size':>7}{'cpu s':>9}{'MB':>8}{heads}")
    for settings in all_settings:
        name, last = " ".join(str(s) for s in settings), None
        for size in sizes[:3] if quick else sizes:
            found = in_process(family, size, settings, limit)
            if found is None:
                print(f"{name:<26}{size:>7}   failed, or over {limit:.0f} s", flush=True)
                break
            growth = "" if last is None else f"{np.log(found['seconds'] / last[1]) / np.log(size / last[0]):.2f}"
            last = size, found["seconds"]
            print(
                f"{name:<26}{size:>7}{found['seconds']:>9.3f}{found['megabytes']:>8.0f}{found['rows']:>9}"
                f"{found['columns']:>9}{found['nonzeros']:>11}{growth:>7}"
                + (f"  ({found['warnings']} warnings of subexpressions)" if found["warnings"] else ""),
                flush=True,
            )


def by_hand(atoms: np.ndarray, radius: float, support: str, norm: float, order: int) -> cp.Problem:
    """The same mean-CVaR portfolio by the textbook, all atoms in one expression (Mohajerin Esfahani and Kuhn)."""
    count, dim = atoms.shape
    x, level = cp.Variable(dim, nonneg=True), cp.Variable()
    beta, s = cp.Variable(nonneg=True), cp.Variable(count)
    dual = {1: "inf", 2: 2, np.inf: 1}[norm]
    constraints = [cp.sum(x) == 1]
    # max over two pieces of  a_k xᵀy + b_k level:  the mean, and the loss beyond the level.
    for a, b in ((-1.0, WEIGHT), (-1.0 - WEIGHT / (1.0 - RISK), WEIGHT * (1.0 - 1.0 / (1.0 - RISK)))):
        slope = a * x
        if support == "reals":
            value = atoms @ slope + b * level
            if order == 1:
                constraints.append(cp.norm(slope, dual) <= beta)
            else:
                value = value + cp.quad_over_lin(cp.norm(slope, dual), 4 * beta)
        else:
            w = cp.Variable((count, dim))
            one = np.ones((count, 1))
            rest = one @ cp.reshape(slope, (1, dim), order="C") - w
            value = cp.sum(cp.multiply(atoms, w), axis=1) + b * level
            if support == "box":
                corner = cp.Variable((count, dim))
                constraints += [corner >= -rest, corner >= 2.0 * rest]
                value = value + cp.sum(corner, axis=1)
            else:
                constraints.append(rest <= 0)
            if order == 1 and norm == 1:
                constraints += [w <= beta, -w <= beta]
            elif order == 1:
                constraints.append(cp.norm(w, dual, axis=1) <= beta)
            else:
                size, t = cp.Variable(count), cp.Variable(count)
                head = one[:, 0] * beta
                constraints.append(cp.norm(w, dual, axis=1) <= size)
                constraints.append(cp.SOC(head + t, cp.vstack([head - t, size]), axis=0))
                value = value + t
        constraints.append(s >= value)
    return cp.Problem(cp.Minimize(radius**order * beta + cp.sum(s) / count), constraints)


def solves(quick: bool) -> None:
    """One solve of 1,000 atoms: ours, and Clarabel's through CVXPY, with its compilation and without."""
    count = 200 if quick else 1000
    atoms = np.random.default_rng(1).normal(0.05, 0.2, size=(count, ASSETS)).clip(-0.9, 1.9)
    print(f"\none solve, {count} atoms, processor time; Clarabel through CVXPY, again and for the first time")
    print(f"{'settings':<22}{'ours':>8}{'Clarabel':>10}{'(first)':>11}{'ratio':>7}{'steps':>10}{'error':>10}")
    for settings in FAMILIES["portfolio"][1]:
        points = np.abs(atoms) if settings[0] == "nonnegative" else atoms
        problem = portfolio(count, *settings)  # type: ignore[arg-type]
        theta = torch.tensor([[0.05]], dtype=torch.float64)
        nominal = torch.as_tensor(points)[None], torch.full((1, count), 1.0 / count, dtype=torch.float64)
        theirs = by_hand(points, 0.05, *settings)  # type: ignore[arg-type]
        same = {"tol_feas": TOLERANCE, "tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE}
        solution = problem.solve(theta, nominal)  # Compiles kernels, and orders the elimination.
        first = _seconds(theirs.solve, solver=cp.CLARABEL, **same)
        ours, again = [], []
        for _ in range(3):
            ours.append(_seconds(problem.solve, theta, nominal))
            again.append(_seconds(theirs.solve, solver=cp.CLARABEL, **same))
        name = " ".join(str(s) for s in settings)
        error = abs(float(solution.objective[0]) - theirs.value) / (1.0 + abs(theirs.value))
        steps = f"{int(solution.iterations[0])} / {theirs.solver_stats.num_iters}"
        a, b = min(ours), min(again)
        print(f"{name:<22}{a:>8.3f}{b:>10.3f}{first:>11.3f}{a / b:>7.2f}{steps:>10}{error:>10.1e}", flush=True)


def _seconds(work: Callable[..., object], *given: object, **options: object) -> float:
    """Processor time."""
    start = time.process_time()
    work(*given, **options)
    return time.process_time() - start


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the three smallest sizes")
    parser.add_argument("--only", default="portfolio,moments,newsvendor,vectors,solve", help="tables, by commas")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one building")
    given = parser.parse_args()
    for name in given.only.split(","):
        if name == "solve":
            solves(given.quick)
        else:
            table(name, given.quick, given.limit)


if __name__ == "__main__":
    main()
