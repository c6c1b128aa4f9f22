"""The projection layer: drolayers beside cvxpylayers with its default solver, on the paper's formulation.

    min ‖μ - μ⁰‖² + ‖σ - σ⁰‖²   subject to   Σ_n ω_n g(y_n, μ) ≤ σ

for the squared deviation ‖y - μ‖², for one such bound every four coordinates (the paper's portfolio), and for the
absolute deviation ‖y - μ‖₁: a batch of 100 with 20 atoms each, forward and backward. The objective is that of the
paper's newsvendor (its portfolio minimises norms, which have another solution). cvxpylayers is slow and gets a part of
the batch; its time is scaled up. How slow depends on the units: outcomes of size 0.05 (returns) suit its solver best,
and at size 1 (demands) it ends on its iteration limit. Errors are of the distance moved, against Clarabel.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import cvxpy as cp
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

import drolayers as dro

BATCH, ATOMS = 100, 20
# How many items cvxpylayers gets, by number of coordinates.
PART = {100: 10, 200: 6, 400: 4, 800: 2}
# (moment, size of the outcomes, numbers of coordinates)
RUNS = [
    ("squared", 0.05, (100, 200, 400, 800)),
    ("squared", 1.0, (100,)),
    ("by fours", 0.05, (100,)),
    ("absolute", 0.05, (100, 200, 400, 800)),
    ("absolute", 1.0, (100,)),
]


def bounds(n: int, kind: str) -> int:
    """Number of bounds."""
    return n // 4 if kind == "by fours" else 1


def draw(n: int, kind: str, size: float) -> tuple[Tensor, Tensor, Tensor]:
    """θ⁰ = (μ⁰, σ⁰) that is not valid, atoms and weights."""
    generator = torch.Generator().manual_seed(n)
    count = bounds(n, kind)
    atoms = torch.randn(BATCH, ATOMS, n, generator=generator, dtype=torch.float64)
    weights = torch.full((BATCH, ATOMS), 1.0 / ATOMS, dtype=torch.float64)
    mu = 0.5 * torch.randn(BATCH, n, generator=generator, dtype=torch.float64)
    sigma = 0.5 * n / count * torch.rand(BATCH, count, generator=generator, dtype=torch.float64)
    return torch.cat([size * mu, (size if kind == "absolute" else size**2) * sigma], 1), size * atoms, weights


def formulation(n: int, kind: str) -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    """As one writes it down for equally weighted atoms."""
    count = bounds(n, kind)
    mu, sigma = cp.Variable(n), cp.Variable(count)
    mu0, sigma0, atoms = cp.Parameter(n), cp.Parameter(count), cp.Parameter((ATOMS, n))
    g = cp.norm1 if kind == "absolute" else cp.sum_squares
    constraints = []
    for i in range(count):
        part = slice(i * n // count, (i + 1) * n // count)
        constraints.append(sum(g(atoms[k, part] - mu[part]) for k in range(ATOMS)) / ATOMS <= sigma[i])
    objective = cp.Minimize(cp.sum_squares(mu - mu0) + cp.sum_squares(sigma - sigma0))
    return cp.Problem(objective, constraints), [mu0, sigma0, atoms], [mu, sigma]


def theirs(n: int, kind: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """cvxpylayers as it comes."""
    problem, parameters, variables = formulation(n, kind)
    layer = CvxpyLayer(problem, parameters=parameters, variables=variables)
    return lambda theta, atoms, weights: torch.cat(layer(theta[:, :n], theta[:, n:], atoms), 1)


def ours(n: int, kind: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The projection layer."""
    y = dro.Uncertain(n)
    moments = {"squared": dro.moments.SquaredNorm(), "absolute": dro.moments.Norm(1)}
    projection = dro.Projection(
        dro.MomentSet.grouped(y, 4) if kind == "by fours" else dro.MomentSet(y, [moments[kind]])
    )
    return lambda theta, atoms, weights: projection(theta, (atoms, weights))


def timed(
    solve: Callable[[Tensor, Tensor, Tensor], Tensor], data: tuple[Tensor, ...], warm_up: int, repeats: int
) -> tuple[float, float, Tensor]:
    """Median seconds forward and backward, and the projections."""
    forward, backward = [], []
    for attempt in range(warm_up + repeats):
        theta = data[0].clone().requires_grad_()
        start = time.perf_counter()
        found = solve(theta, *data[1:])
        middle = time.perf_counter()
        (found * torch.linspace(-1, 1, found.shape[1])).sum().backward()
        if attempt >= warm_up:
            forward.append(middle - start)
            backward.append(time.perf_counter() - middle)
    return statistics.median(forward), statistics.median(backward), found.detach()


def distance(n: int, kind: str, theta: Tensor, atoms: Tensor) -> float:
    """The distance moved, by Clarabel, for one item."""
    problem, parameters, _ = formulation(n, kind)
    for parameter, value in zip(parameters, (theta[:n], theta[n:], atoms), strict=True):
        parameter.value = value.numpy()
    return problem.solve(cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 coordinates only, fewer repetitions")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    print(f"seconds for a batch of {BATCH}, {ATOMS} atoms ('items' were timed, and scaled up)\n")
    head = f"{'moment':<8}  {'size':>5}  {'n':>4}  {'layer':<11}  {'items':>5}  {'forward':>9}  {'backward':>9}  "
    print(head + f"{'error':>7}  {'ratio':>8}")
    for kind, size, numbers in RUNS:
        for n in numbers[:1] if quick else numbers:
            data, peer = draw(n, kind, size), 0.0
            best = distance(n, kind, data[0][0], data[1][0])
            for name, make, items in (("cvxpylayers", theirs, PART[n]), ("drolayers", ours, BATCH)):
                runs = (0, 1) if name == "cvxpylayers" else (3, 5 if quick else 21)
                part = tuple(t[:items] for t in data)
                forward, backward, found = timed(make(n, kind), part, *runs)
                forward, backward = (t * BATCH / items for t in (forward, backward))
                error = abs((found[0] - data[0][0]).norm().item() - best) / best
                peer = peer or forward + backward
                ratio = f"{peer / (forward + backward):7.0f}x" if name == "drolayers" else ""
                line = f"{kind:<8}  {size:5.2f}  {n:4d}  {name:<11}  {items:5d}  {forward:9.4f}  {backward:9.4f}  "
                print(line + f"{error:7.0e}  {ratio}", flush=True)


if __name__ == "__main__":
    main()
