"""The paper's portfolio as a differentiable cone program: drolayers beside cvxpylayers with its default solver.

    worst case of -yᵀx over all distributions with E(yᵢ - μᵢ)² ≤ σᵢ,   x ≥ 0, 1ᵀx = 1

Three statements of one problem. *Written out*: the dual of the paper's appendix B.1 with all its multipliers, the way
the paper gives it to cvxpylayers. *Eliminated*: β and η solved for by hand, Σ√σᵢ|xᵢ| - μᵀx, with |x| left to CVXPY.
*Reduced*: the same with |x| = x. A batch of 100 is solved and differentiated; cvxpylayers gets a part of the batch and
its time is scaled up. It is run as it comes, and once more with its solver asked for the accuracy that ours reaches.
Errors are of the worst-case cost of the returned portfolios, relative to Clarabel's optimum.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

from conelayers import compile_program, make_engine

BATCH = 100


@dataclass(frozen=True, eq=False)
class Statement:
    """A way to write the problem down; ``theta`` maps (μ, σ) to its parameters."""

    problem: cp.Problem
    parameters: list[cp.Parameter]
    x: cp.Variable
    theta: Callable[[Tensor, Tensor], list[Tensor]]


def written_out(n: int) -> Statement:
    """Each bound (yᵢ - μᵢ)² ≤ uᵢ is (uᵢ + 1, uᵢ - 1, 2yᵢ - 2μᵢ) in a second-order cone, with multiplier ηᵢ."""
    x, r, beta = cp.Variable(n, nonneg=True), cp.Variable(), cp.Variable(n, nonneg=True)
    eta = [cp.Variable(n) for _ in range(3)]
    mu, sigma = cp.Parameter(n), cp.Parameter(n, nonneg=True)
    constraints = [
        r >= cp.sum(eta[0] - eta[1]) - 2 * (mu @ eta[2]),
        2 * eta[2] == x,
        eta[0] + eta[1] == beta,
        cp.SOC(eta[0], cp.vstack(eta[1:]), axis=0),
        cp.sum(x) == 1,
    ]
    return Statement(cp.Problem(cp.Minimize(r + sigma @ beta), constraints), [mu, sigma], x, lambda m, s: [m, s])


def eliminated(n: int, magnitude: Callable[[cp.Expression], cp.Expression] = cp.abs) -> Statement:
    """min over β and η in closed form."""
    x, mu, deviation = cp.Variable(n, nonneg=True), cp.Parameter(n), cp.Parameter(n, nonneg=True)
    problem = cp.Problem(cp.Minimize(-mu @ x + deviation @ magnitude(x)), [cp.sum(x) == 1])
    return Statement(problem, [mu, deviation], x, lambda m, s: [m, s.sqrt()])


STATEMENTS = {
    "written out": written_out,
    "eliminated": eliminated,
    "reduced": lambda n: eliminated(n, lambda x: x),
}


def draw(n: int) -> tuple[Tensor, Tensor]:
    """Conditional means and variances of the paper's returns at random covariates z.

    y = a + zB + eC + (products of z)D + s ‖z‖₁ g with the published coefficients.
    """
    random = np.random.RandomState(100)
    a, B, C = np.sort(random.rand(n) / 200) + 0.0005, random.randn(5, n) / 4, random.randn(3, n)
    D, s, z = random.randn(25, n) / 5, np.sort(random.rand(n)) / 20 + 0.02, random.randn(BATCH, 5) / 50
    products = 100 * (z[:, :, None] * z[:, None, :]).reshape(BATCH, 25)
    mu = a + z @ B + (products - products.mean(0)) @ D
    sigma = (C**2).sum(0) / 50**2 + (s * np.abs(z).sum(1, keepdims=True)) ** 2
    return torch.tensor(mu), torch.tensor(sigma)


def cost(x: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """The worst-case expected cost of portfolios."""
    return (-mu * x + sigma.sqrt() * x.abs()).sum(1)


def optimum(n: int, mu: Tensor, sigma: Tensor) -> Tensor:
    """Clarabel's optimal values, item by item."""
    statement = STATEMENTS["reduced"](n)
    values = []
    for row in zip(*statement.theta(mu, sigma), strict=True):
        for parameter, value in zip(statement.parameters, row, strict=True):
            parameter.value = value.numpy()
        values.append(statement.problem.solve(cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10))
    return torch.tensor(values)


def timed(
    clock: Callable[[], float],
    solve: Callable[[list[Tensor]], Tensor],
    parameters: list[Tensor],
    warm_up: int,
    repeats: int,
) -> tuple[float, float, Tensor]:
    """The least seconds forward and backward (others may use the machine), and the portfolios."""
    forward, backward = [], []
    for attempt in range(warm_up + repeats):
        leaves = [p.clone().requires_grad_() for p in parameters]
        start = clock()
        x = solve(leaves)
        middle = clock()
        (x * torch.linspace(-1, 1, x.shape[1])).sum().backward()
        if attempt >= warm_up:
            forward.append(middle - start)
            backward.append(clock() - middle)
    return min(forward), min(backward), x.detach()


def ours(statement: Statement) -> Callable[[list[Tensor]], Tensor]:
    """A compiled program and Moreau."""
    program, engine = compile_program(statement.problem, statement.parameters), make_engine("moreau")
    return lambda leaves: engine.solve(program, torch.cat(leaves, 1)).variable(statement.x)


def theirs(statement: Statement, **settings: float) -> Callable[[list[Tensor]], Tensor]:
    """cvxpylayers with its default solver, SCS."""
    layer = CvxpyLayer(statement.problem, parameters=statement.parameters, variables=[statement.x])
    return lambda leaves: layer(*leaves, solver_args=settings)[0]


def theirs_accurate(statement: Statement) -> Callable[[list[Tensor]], Tensor]:
    """The same, asked for more digits."""
    return theirs(statement, eps=1e-8, max_iters=100_000)


@dataclass(frozen=True)
class Contestant:
    """A solver, which share of the batch it gets, and how often it runs."""

    name: str
    make: Callable[[Statement], Callable[[list[Tensor]], Tensor]]
    part: dict[int, int]
    warm_up: int
    repeats: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 and 200 assets only, fewer repetitions")
    parser.add_argument("--cpu", action="store_true", help="processor time of all threads, for a busy machine")
    options = parser.parse_args()
    quick, clock = options.quick, time.process_time if options.cpu else time.perf_counter
    warnings.simplefilter("ignore")  # flat gradients (these are linear programs); SCS at its iteration limit
    sizes = [100, 200] if quick else [100, 200, 400, 800]
    contestants = [
        Contestant("cvxpylayers", theirs, {100: 20, 200: 10, 400: 6, 800: 4}, 1, 2),
        Contestant("cvxpylayers 1e-8", theirs_accurate, {100: 6, 200: 4, 400: 2, 800: 2}, 0, 1),
        Contestant("drolayers", ours, dict.fromkeys(sizes, BATCH), 4, 3 if quick else 5),
    ]
    kind = "Processor seconds" if options.cpu else "Seconds"
    print(f"{kind} for a batch of {BATCH}; 'items' were timed, and scaled up. Ratios: time of cvxpylayers on the")
    print("same statement, on the written-out one, and on that one at 1e-8, to ours.\n")
    print(
        f"{'assets':>6}  {'statement':<11}  {'solver':<16}  {'items':>5}  {'forward':>8}  {'backward':>8}  {'error':>6}"
        f"  {'same':>5}  {'written':>7}  {'at 1e-8':>7}"
    )
    total: dict[tuple[str, str, int], float] = {}
    for n in sizes:
        mu, sigma = draw(n)
        compared = contestants[0].part[n]
        best = optimum(n, mu[:compared], sigma[:compared])
        for name, build in STATEMENTS.items():
            statement = build(n)
            for one in contestants:
                if one.make is theirs_accurate and name != "written out":
                    continue
                items = one.part[n]
                parameters = [p[:items] for p in statement.theta(mu, sigma)]
                forward, backward, x = timed(clock, one.make(statement), parameters, one.warm_up, one.repeats)
                forward, backward = (t * BATCH / items for t in (forward, backward))
                k = min(items, compared)
                error = (cost(x[:k], mu[:k], sigma[:k]) - best[:k]).abs().max() / best.abs().mean()
                total[one.name, name, n] = forward + backward
                row = f"{n:6d}  {name:<11}  {one.name:<16}  {items:5d}  {forward:8.3f}  {backward:8.3f}  {error:6.0e}"
                if one.name == "drolayers":
                    peers = [("cvxpylayers", name), ("cvxpylayers", "written out"), ("cvxpylayers 1e-8", "written out")]
                    ratios = [total[*peer, n] / (forward + backward) for peer in peers]
                    row += f"  {ratios[0]:4.0f}x  {ratios[1]:6.0f}x  {ratios[2]:6.0f}x"
                print(row, flush=True)
    print(f"\nGrowth from {sizes[0]} to {sizes[-1]} assets, as a power of their number:")
    for name in STATEMENTS:
        for one in contestants:
            if (one.name, name, sizes[0]) not in total:
                continue
            growth = math.log(total[one.name, name, sizes[-1]] / total[one.name, name, sizes[0]])
            print(f"  {name:<11}  {one.name:<16}  {growth / math.log(sizes[-1] / sizes[0]):5.2f}")


if __name__ == "__main__":
    main()
