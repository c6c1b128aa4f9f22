"""The paper's portfolio, robust against all distributions of given moments: a batch solved and differentiated.

    min over x of the worst case of -yᵀx  over all distributions with E(yᵢ - μᵢ)² ≤ σᵢ,   x ≥ 0, 1ᵀx = 1

The worst case is Σ√σᵢ xᵢ - μᵀx, a linear program whose exact solution map is flat in (μ, σ), so the decision is
differentiated through a barrier: gradient="smoothed". In the mixed-integer portfolio some xᵢ are all or nothing.
"""

from __future__ import annotations

import time

import cvxpy as cp
import torch

from drolayers.conic import Smoothed, make_engine
from drolayers.conic.compile import compile_program

ASSETS, BATCH = 40, 100


def main() -> None:
    x = cp.Variable(ASSETS, nonneg=True, name="x")
    mu, deviation = cp.Parameter(ASSETS, name="mu"), cp.Parameter(ASSETS, nonneg=True, name="deviation")
    problem = cp.Problem(cp.Minimize(-mu @ x + deviation @ x), [cp.sum(x) == 1])
    program = compile_program(problem, [mu, deviation])
    engine = make_engine(gradient=Smoothed(1e-2))
    print(f"portfolio of {ASSETS} assets: {program.columns} columns, {program.rows} rows, flat: {program.flat}")

    generator = torch.Generator().manual_seed(0)
    mean = 0.01 * torch.randn(BATCH, ASSETS, generator=generator)
    variance = (0.005 + 0.01 * torch.rand(BATCH, ASSETS, generator=generator)) ** 2
    returns = mean + variance.sqrt() * torch.randn(BATCH, ASSETS, generator=generator)
    mean.requires_grad_()
    variance.requires_grad_()

    start = time.perf_counter()
    solution = engine.solve(program, torch.cat([mean, variance.sqrt()], 1))
    solved = time.perf_counter()
    loss = -(solution.variable(x) * returns).sum(1).mean()
    loss.backward()
    done = time.perf_counter()

    print(f"{solution}: {1e3 * (solved - start):.0f} ms forward, {1e3 * (done - solved):.0f} ms backward")
    print(f"loss {loss:.5f} = minus the mean return of the decisions\n")
    print(f"{'item':>4}  {'status':<8}  {'worst-case cost':>15}  {'held':>4}  {'|dl/dmu|':>8}  {'|dl/dsigma|':>11}")
    held = (solution.variable(x) > 1e-3).sum(1)
    for i in range(5):
        print(
            f"{i:4d}  {solution.statuses[i]!s:<8}  {solution.objective[i]:15.6f}  {held[i]:4d}  "
            f"{mean.grad[i].norm():8.1e}  {variance.grad[i].norm():11.1e}"
        )
    print("   …")


if __name__ == "__main__":
    main()
