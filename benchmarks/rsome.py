"""Examples of RSOME's documentation, solved by RSOME and by this library, side by side in one run.

RSOME states the dual of a problem and leaves it to a solver; here that is Clarabel, on the very program that RSOME's
``do_math`` returns. It needs ``pip install rsome``.

    python -m benchmarks.rsome [name ...]        (as a module: by its path it would hide the package of its name)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch

import drolayers as dro


@dataclass(frozen=True)
class Example:
    """One page of RSOME's documentation.

    Attributes:
        theirs: makes RSOME's model.
        ours: makes the problem, θ and the nominal distribution.
        note: what is to be known of the comparison.
    """

    theirs: Callable[[], Any]
    ours: Callable[[], tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]]
    note: str = ""


def tensor(values: Any) -> torch.Tensor:
    """One item of float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))[None]


def around(points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of equal weight as a nominal distribution."""
    return tensor(points), tensor(np.full(len(points), 1.0 / len(points)))


# --- Robust satisficing: a portfolio with two targets ---------------------------------------------------------------


def satisficing_data() -> np.ndarray:
    """Returns of 300 days and ten assets."""
    rng, i = np.random.RandomState(1), np.arange(1, 11)
    common = 0.05 * rng.normal(size=(300, 10))
    return common + 0.02 * i + 0.03 * i * rng.normal(size=(300, 10))


def satisficing_theirs() -> Any:
    """As on the page: a mean return of 0.125, and a CVaR of 0.1 ten times as dear."""
    from rsome import E, maxof, norm
    from rsome import dro as rs

    zhat = satisficing_data()
    s, n = zhat.shape
    model = rs.Model(s)
    x, alpha, k0, k1 = model.dvar(n), model.dvar(), model.dvar(), model.dvar()
    z, u = model.rvar(n), model.rvar()
    fset = model.ambiguity()
    for j in range(s):
        fset[j].suppset(norm(z - zhat[j], 1) <= u)
    pr = model.p
    fset.probset(pr == 1 / s)
    r = z @ x
    model.minsup(k0 + 10 * k1, fset)
    model.st(E(r) >= 0.125 - E(k0 * u))
    model.st(alpha + (1 / 0.05) * E(maxof(-r - alpha, 0)) <= 0.1 + E(k1 * u))
    model.st(x >= 0, x.sum() == 1)
    return model


def satisficing_ours() -> tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Two fragilities."""
    zhat = satisficing_data()
    s, n = zhat.shape
    z, x = dro.Uncertain(n), cp.Variable(n, nonneg=True)
    loss = -z @ x
    cost = dro.fragility(loss, -0.125) + 10 * dro.fragility(dro.cvar(loss, 0.95), 0.1)
    problem = dro.DecisionProblem(cost, [cp.sum(x) == 1], dro.Wasserstein(z, s))
    return problem, tensor([0.01]), around(zhat)


# --- A mean-CVaR portfolio under a Wasserstein ball -----------------------------------------------------------------


def mean_cvar_data() -> np.ndarray:
    """Returns of 30 years and ten assets."""
    rng, i = np.random.RandomState(1), np.arange(1, 11)
    common = 0.02 * rng.normal(size=(30, 10))
    return np.maximum(common + 0.03 * i + 0.025 * i * rng.normal(size=(30, 10)), -1.0)


def mean_cvar_theirs() -> Any:
    """As on the page: the larger of two pieces, with the threshold a decision."""
    from rsome import E, maxof, norm
    from rsome import dro as rs

    zhat = mean_cvar_data()
    n, m = zhat.shape
    rho, alpha = 10, 0.2
    model = rs.Model(n)
    x, tau = model.dvar(m), model.dvar()
    z, u = model.rvar(m), model.rvar()
    fset = model.ambiguity()
    for s in range(n):
        fset[s].suppset(norm(z - zhat[s], 1) <= u, z >= -1)
    fset.exptset(E(u) <= 0.01)
    pr = model.p
    fset.probset(pr == 1 / n)
    r = z @ x
    model.minsup(E(maxof(-r + rho * tau, (-1 - rho / alpha) * r + rho * (1 - 1 / alpha) * tau)), fset)
    model.st(x.sum() == 1, x >= 0)
    return model


def mean_cvar_ours() -> tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """The mean loss and ten times its CVaR, as they are."""
    zhat = mean_cvar_data()
    n, m = zhat.shape
    z, x = dro.Uncertain(m, support=dro.support.Box(-1.0, np.inf)), cp.Variable(m, nonneg=True)
    cost = -z @ x + 10 * dro.cvar(-z @ x, 0.8)
    problem = dro.DecisionProblem(cost, [cp.sum(x) == 1], dro.Wasserstein(z, n))
    return problem, tensor([0.01]), around(zhat)


EXAMPLES = {
    "robust satisficing": Example(satisficing_theirs, satisficing_ours),
    "mean-CVaR portfolio": Example(mean_cvar_theirs, mean_cvar_ours),
}


# --- Both, side by side ---------------------------------------------------------------------------------------------


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


def main() -> None:
    """Print a line for every example: values, seconds to build and to solve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {list(EXAMPLES)}; all without")
    chosen = parser.parse_args().names or list(EXAMPLES)
    print(
        f"{'example':20} {'RSOME':>14} {'ours':>14} {'build':>7} {'solve':>7} | {'build':>7} {'solve':>7} {'again':>7}"
    )
    for name in chosen:
        example = EXAMPLES[name]
        start = time.perf_counter()
        formula = example.theirs().do_math()
        built = time.perf_counter()
        value = by_clarabel(formula)
        solved = time.perf_counter()
        problem, theta, nominal = example.ours()
        made = time.perf_counter()
        found = problem.solve(theta, nominal)
        first = time.perf_counter()
        problem.solve(theta, nominal)
        again = time.perf_counter()
        seconds = f"{built - start:7.2f} {solved - built:7.2f}"
        seconds += f" | {made - solved:7.2f} {first - made:7.2f} {again - first:7.2f}"
        status = "" if bool(found.ok) else f" {found.statuses[0]}"
        print(f"{name:20} {value:14.8f} {float(found.objective):14.8f} {seconds}{status} {example.note}", flush=True)


if __name__ == "__main__":
    main()
