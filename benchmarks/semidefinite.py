"""Random semidefinite programs: values and gradients of every item against a reference, and times beside Clarabel's.

    python benchmarks/semidefinite.py [--programs 100] [--seed 0] [--engine auto] [--items 4]

Five kinds in turn, of orders 2 to 8: a semidefinite variable in standard form (linear or quadratic), linear matrix
inequalities, a mixture with second-order and linear cones, norms of matrices, and the worst case of Delage and Ye's
ambiguity set. Values are compared with Clarabel at 1e-12 on the compiled program (1e-6), the gradient of a random
weight of the decision and that of the objective with stable central differences of Clarabel's solutions (1 %).

Where multipliers are not unique Clarabel's last digits are noise, and its differences are not stable. Such items are
looked at once more, with differences of points that Newton's method has polished and whose residual certifies them.

These are counted: right; wrong while the status says OPTIMAL; flagged (any other status, or a
gradient that was masked); skipped (no stable difference, a decision that is not unique, no accurate reference). Times
are those of a batch that was solved before: ours forward, and backward for the decision; CVXPY's with Clarabel, one
item after another, from parameters to values.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from conelayers import ConeProgram, Engine, compile_program, make_engine
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.polished import Polished
from conelayers.program import residuals
from drolayers import Status

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.drolayers.engine.strangers import directions, random_weights, stable_differences

VALUE, GRADIENT = 1e-6, 1e-2
"""Relative errors from which a value or a gradient is wrong."""

SMALL = 1e-2
"""Values below this are compared with it, since the reference's gap may be 1e-8."""

NOTHING = 1e-8
"""Difference of two derivatives, relative to the weight of the decision, that is none."""

CERTIFIED = 1e-11
"""Residual up to which a polished point serves as a reference of its own."""

OUTCOMES = (
    "right",
    "right, certified",
    "wrong value",
    "wrong gradient",
    "wrong value gradient",
    "flagged: status",
    "flagged: masked",
    "skipped: unstable",
    "skipped: not unique",
    "skipped: reference",
)

Draws = dict[cp.Parameter, Callable[[], np.ndarray]]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A problem, the variables whose gradients are looked at, and how its parameters are drawn."""

    problem: cp.Problem
    variables: tuple[cp.Variable, ...]
    draws: Draws


def _symmetric(rng: np.random.Generator, order: int) -> np.ndarray:
    """A random symmetric matrix of norm about one."""
    M = rng.normal(size=(order, order)) / np.sqrt(2 * order)
    return M + M.T


def _inner(C: cp.Expression | np.ndarray, X: cp.Expression) -> cp.Expression:
    """The trace of a product of symmetric matrices."""
    return cp.sum(cp.multiply(C, X))


def standard(rng: np.random.Generator, order: int) -> Drawn:
    """min ⟨C, X⟩ (+ ½‖X‖²), ⟨Aᵢ, X⟩ = bᵢ, tr X ≤ 2n, X ⪰ 0: the identity is feasible, or nearly."""
    X = cp.Variable((order, order), PSD=True)
    count = int(rng.integers(1, order + 1))
    A = [_symmetric(rng, order) for _ in range(count)]
    C, b = cp.Parameter((order, order)), cp.Parameter(count)
    quadratic = 0.5 * cp.sum_squares(X) if rng.random() < 0.5 else 0.0
    rows = [_inner(A[i], X) == b[i] for i in range(count)]
    problem = cp.Problem(cp.Minimize(_inner(C, X) + quadratic), [*rows, cp.trace(X) <= 2 * order])
    traces = np.array([np.trace(M) for M in A])
    return Drawn(
        problem,
        (X,),
        {C: lambda: rng.normal(size=(order, order)), b: lambda: traces + 0.1 * rng.normal(size=count)},
    )


def inequalities(rng: np.random.Generator, order: int) -> Drawn:
    """min cᵀx, F₀ + Σ xᵢFᵢ ⪰ 0 twice, x in a box; F₀ and a slope are parameters."""
    count = int(rng.integers(2, 6))
    x, c, k = cp.Variable(count), cp.Parameter(count), cp.Parameter(count)
    constraints, draws = [cp.abs(x) <= 3], {}
    for size in (order, int(rng.integers(2, 5))):
        F, G = [_symmetric(rng, size) for _ in range(count)], cp.Parameter((size, size))
        constraints.append(G + sum(x[i] * F[i] for i in range(count)) + (k @ x) * _symmetric(rng, size) >> 0)
        draws[G] = lambda size=size: np.eye(size) + 0.2 * rng.normal(size=(size, size))
    draws |= {c: lambda: rng.normal(size=count), k: lambda: 0.3 * rng.normal(size=count)}
    return Drawn(cp.Problem(cp.Minimize(c @ x), constraints), (x,), draws)


def mixture(rng: np.random.Generator, order: int) -> Drawn:
    """[X, y; yᵀ, t] ⪰ 0 with a ball, linear rows and a quadratic form in y."""
    n = order - 1
    X, y, t = cp.Variable((n, n), symmetric=True), cp.Variable(n), cp.Variable()
    C, g, w = cp.Parameter((n, n)), cp.Parameter(n), cp.Parameter(nonneg=True)
    corner = cp.bmat([[X, y[:, None]], [y[None, :], cp.reshape(t, (1, 1), order="F")]])
    target = rng.normal(size=n)
    problem = cp.Problem(
        cp.Minimize(_inner(C, X) + g @ y + t + w * cp.sum_squares(y - target)),
        [corner >> 0, X << 2 * np.eye(n), cp.SOC(1 + cp.trace(X) / n, y), cp.sum(y) >= -0.5],
    )
    return Drawn(
        problem,
        (X, y, t),
        {
            C: lambda: rng.normal(size=(n, n)),
            g: lambda: rng.normal(size=n),
            w: lambda: np.array(rng.uniform(0.2, 1.0)),
        },
    )


def norms(rng: np.random.Generator, order: int) -> Drawn:
    """Fit a matrix under a nuclear norm, or under the largest eigenvalue and the spectral norm."""
    B, w = cp.Parameter((order, order)), cp.Parameter(2, nonneg=True)
    if rng.random() < 0.5:
        X = cp.Variable((order, max(order - 1, 1)))
        objective = cp.sum_squares(X - B[:, : X.shape[1]]) + w[0] * cp.normNuc(X)
    else:
        X = cp.Variable((order, order), symmetric=True)
        objective = cp.sum_squares(X - B) + w[0] * cp.lambda_max(X) + w[1] * cp.sigma_max(X)
    draws = {B: lambda: rng.normal(size=(order, order)), w: lambda: rng.uniform(0.3, 1.0, size=2)}
    return Drawn(cp.Problem(cp.Minimize(objective)), (X,), draws)


def delage_ye(rng: np.random.Generator, order: int) -> Drawn:
    """A portfolio's worst case over y = mu + L ξ, ‖E ξ‖² ≤ g₁, E ξξᵀ ⪯ g₂ I, for a loss of two to four pieces."""
    n = order - 1
    x, q, Q, r = cp.Variable(n, nonneg=True), cp.Variable(n), cp.Variable((n, n), PSD=True), cp.Variable()
    mu, L = cp.Parameter(n), cp.Parameter((n, n))
    root, second = rng.uniform(0.1, 0.7), rng.uniform(1.0, 2.0)
    constraints = [cp.sum(x) == 1]
    for k in range(int(rng.integers(2, 5))):
        a, b = -(k + rng.random()) * x, -0.5 * k * rng.random()
        side = 0.5 * (q - L.T @ a)[:, None]
        corner = cp.reshape(r - b - mu @ a, (1, 1), order="F")
        constraints.append(cp.bmat([[Q, side], [side.T, corner]]) >> 0)
    problem = cp.Problem(cp.Minimize(r + second * cp.trace(Q) + root * cp.norm(q)), constraints)
    draws = {mu: lambda: 0.3 * rng.normal(size=n), L: lambda: np.eye(n) + 0.3 * rng.normal(size=(n, n))}
    return Drawn(problem, (x,), draws)


KINDS = (standard, inequalities, mixture, norms, delage_ye)


def by_cvxpy(drawn: Drawn, theta: Tensor) -> float:
    """Seconds that CVXPY and Clarabel take for a batch, compiled before."""
    began = 0.0
    for row in (theta[0], *theta):
        at = 0
        for parameter in drawn.draws:
            parameter.value = row[at : at + parameter.size].numpy().reshape(parameter.shape)
            at += parameter.size
        drawn.problem.solve(cp.CLARABEL)
        began = began or time.perf_counter()
    return time.perf_counter() - began


def by_us(engine: Engine, program: ConeProgram, theta: Tensor, weight: Tensor) -> tuple[float, float]:
    """Seconds of a forward pass and of a backward pass, after a first of both."""
    times = (0.0, 0.0)
    for _ in range(2):
        leaf = theta.clone().requires_grad_()
        began = time.perf_counter()
        x = engine.solve(program, leaf).primal
        middle = time.perf_counter()
        (x * weight).nan_to_num().sum().backward()
        times = middle - began, time.perf_counter() - middle
    return times


def certified(program: ConeProgram, theta: Tensor, weight: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Differences of ``weight · x*`` along directions at polished points, and the items for which they hold."""
    solver, sums, known = Polished(Clarabel(1e-10)), [], torch.ones(len(theta), dtype=torch.bool)
    for step in (0.0, 1e-5, -1e-5, 3e-5, -3e-5):
        values = program.values((theta + step * along).reshape(-1, theta.shape[1]))
        points = solver.solve(program, values)
        left = residuals.optimality(program, values, points.x, points.z, points.s).reshape(len(along), -1)
        known &= (left <= CERTIFIED).all(0)
        sums.append((points.x.reshape(len(along), *weight.shape) * weight).sum(-1).T)
    here, *ends = sums
    near, far = (ends[0] - ends[1]) / 2e-5, (ends[2] - ends[3]) / 6e-5
    size = torch.maximum(far.norm(dim=1), 0.1 * here.norm(dim=1)).clamp(min=1e-6)
    bend = (ends[0] + ends[1] - 2 * here) / 1e-5
    return far, known & ((far - near).norm(dim=1) <= 1e-3 * size) & (bend.norm(dim=1) <= 1e-2 * size)


def examine(number: int, options: argparse.Namespace) -> tuple[str, list[str], tuple[float, float, float]]:
    """One program: its kind, what became of each item, and seconds (forward, backward, CVXPY)."""
    rng = np.random.default_rng([options.seed, number])
    kind, order = KINDS[number % len(KINDS)], int(rng.integers(2, 9))
    drawn = kind(rng, order)
    program = compile_program(drawn.problem, list(drawn.draws))
    draw = (np.concatenate([np.ravel(d()) for d in drawn.draws.values()]) for _ in range(options.items))
    theta = torch.tensor(np.array(list(draw)))
    weight = random_weights(program, drawn.variables, options.items, rng)
    along = directions(theta, 2, rng)
    engine = make_engine(options.engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = (*by_us(engine, program, theta, weight), by_cvxpy(drawn, theta))
        leaf = theta.clone().requires_grad_()
        solution = engine.solve(program, leaf)
        (of_value,) = torch.autograd.grad(solution.objective.nan_to_num().sum(), leaf, retain_graph=True)
        (of_decision,) = torch.autograd.grad((solution.primal * weight).nan_to_num().sum(), leaf)
        expected = stable_differences(program, theta, weight, along)
        by_newton, holds = certified(program, theta, weight, along)
    decision, value = ((g * along).sum(-1).T for g in (of_decision, of_value))
    here = expected.here
    value_error = (solution.objective.detach() - here.objective).abs() / here.objective.abs().clamp(min=SMALL)
    # At an apex the decision is zero and stays there: what differences then show is Clarabel's last digits.
    moving = (decision - expected.decision).norm(dim=1) > NOTHING * weight.norm(dim=1)
    decision_error, slope_error = expected.errors(decision) * moving, expected.errors(value, "value")
    # Points that are certified to 1e-11 have differences to 1e-6.
    size = torch.maximum(torch.maximum(by_newton.norm(dim=1), expected.size), 1e-4 * weight.norm(dim=1))
    agree = (decision - by_newton).norm(dim=1) <= GRADIENT * size
    outcomes = []
    for i in range(options.items):
        if solution.statuses[i] != Status.OPTIMAL:
            outcome = "flagged: status"
        elif bool(here.accurate[i]) and float(value_error[i]) > VALUE:
            outcome = "wrong value"
        elif bool(expected.value_stable[i]) and float(slope_error[i]) > GRADIENT:
            outcome = "wrong value gradient"
        elif not solution.derivatives[i].ok:
            outcome = "flagged: masked"
        elif not bool(expected.unique[i]):
            outcome = "skipped: not unique"
        elif not bool(expected.stable[i]) and bool(holds[i]):
            outcome = "right, certified" if bool(agree[i]) else "wrong gradient"
        elif not bool(here.accurate[i]):
            outcome = "skipped: reference"
        elif not bool(expected.stable[i]):
            outcome = "skipped: unstable"
        else:
            outcome = "wrong gradient" if float(decision_error[i]) > GRADIENT else "right"
        if outcome.startswith(("wrong", "flagged")):
            print(
                f"{outcome}: {kind.__name__} {number}, item {i}, order {order}, {solution.statuses[i]}, "
                f"{solution.derivatives[i]}, residual {float(solution.residual[i]):.1e}, errors: value "
                f"{float(value_error[i]):.1e}, gradient {float(decision_error[i]):.1e} (stable: "
                f"{bool(expected.stable[i])}), of the value {float(slope_error[i]):.1e}"
            )
        outcomes.append(outcome)
    return kind.__name__, outcomes, times


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for number in range(options.programs):
        kind, outcomes, times = examine(number, options)
        counts[kind].update(outcomes)
        seconds[kind].append(times)
    print(f"\n{options.programs} programs of {options.items} items, seed {options.seed}, engine {options.engine}")
    for kind, count in counts.items():
        print(f"{kind:14}", ", ".join(f"{name} {count[name]}" for name in OUTCOMES if count[name]))
    total = sum(counts.values(), Counter())
    print(f"{'all':14}", ", ".join(f"{name} {total[name]}" for name in OUTCOMES if total[name]))
    print(f"\n{'median ms':14} {'forward':>9} {'backward':>9} {'CVXPY, Clarabel':>16}")
    for kind, times in seconds.items():
        forward, backward, other = 1e3 * np.median(np.array(times), axis=0)
        print(f"{kind:14} {forward:9.1f} {backward:9.1f} {other:16.1f}")


if __name__ == "__main__":
    main()
