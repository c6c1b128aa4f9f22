"""Problems of RSOME's pages, solved by RSOME and by this library: values and seconds, side by side.

    pip install rsome
    python -m research prove rsome --out runs/rsome

RSOME states the dual of a problem and leaves it to a solver; here that is Clarabel, on the very program that RSOME's
``do_math`` returns. The pages' data are seeded, so that there is one draw; ``--only`` takes names of problems. Seconds
are those of a process with one thread: use one job where they matter.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import clarabel
import numpy as np
import scipy.sparse as sp

from research.experiments.task import Outcome, Row, Task, row
from research.problems.rsome import EXAMPLES
from research.proving.peers import compared, installed, unavailable

PEER, OURS = "RSOME", "ours"


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every page, or two small ones; seeds change nothing."""
    chosen = ("newsvendor", "appointments") if quick else EXAMPLES
    return [
        Task("rsome", "pages", name, (("problem", name), ("note", EXAMPLES[name].note)), 0, installed("rsome"))
        for name in chosen
    ]


def run(task: Task, work: Path) -> Outcome:
    """Both on one page."""
    _warm()
    example, clock = EXAMPLES[task.method], [time.perf_counter()]
    problem, theta, nominal = example.ours()
    clock.append(time.perf_counter())
    solution = problem.solve(theta, nominal)
    clock.append(time.perf_counter())
    problem.solve(theta, nominal)
    clock.append(time.perf_counter())
    build, solve, again = np.diff(clock)
    rows = [
        row(OURS, "seconds to build", build),
        row(OURS, "seconds to solve", solve),
        row(OURS, "seconds to solve again", again),
    ]
    value: float | str = float(solution.objective) if bool(solution.ok) else solution.statuses[0].name
    return Outcome([*compared(OURS, value, PEER, *_theirs(example)), *rows])


@cache
def _warm() -> None:
    """Imports, caches and compiled kernels, once a process."""
    problem, theta, nominal = EXAMPLES["newsvendor, one rule"].ours()
    problem.solve(theta, nominal)


def _theirs(example: Any) -> tuple[float | str, list[Row]]:
    """RSOME's value, or why there is none, and its seconds."""
    if told := unavailable("rsome"):
        return told, []
    clock = [time.perf_counter()]
    formula = example.theirs().do_math()
    clock.append(time.perf_counter())
    value = by_clarabel(formula)
    clock.append(time.perf_counter())
    build, solve = np.diff(clock)
    return value, [row(PEER, "seconds to build", build), row(PEER, "seconds to solve", solve)]


def by_clarabel(formula: Any) -> float:
    """The optimal value of a program of RSOME's."""
    columns = formula.linear.shape[1]
    equal = np.asarray(formula.sense).ravel() == 1
    identity = sp.identity(columns, format="csr")
    low, high = np.isfinite(formula.lb), np.isfinite(formula.ub)
    cones = [np.asarray(q) for q in getattr(formula, "qmat", [])]
    linear, const = sp.csr_matrix(formula.linear), np.asarray(formula.const).ravel()
    A = sp.vstack([linear[equal], linear[~equal], -identity[low], identity[high], *(-identity[q] for q in cones)])
    zeros = np.zeros(sum(len(q) for q in cones))
    b = np.concatenate([const[equal], const[~equal], -formula.lb[low], formula.ub[high], zeros])
    kinds = [clarabel.ZeroConeT(int(equal.sum()))]
    kinds += [clarabel.NonnegativeConeT(int((~equal).sum() + low.sum() + high.sum()))]
    kinds += [clarabel.SecondOrderConeT(len(q)) for q in cones]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    P = sp.csc_matrix((columns, columns))
    q = np.asarray(formula.obj).ravel().astype(float)
    solution = clarabel.DefaultSolver(P, q, sp.csc_matrix(A), b, kinds, settings).solve()
    return float(solution.obj_val)
