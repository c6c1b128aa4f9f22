"""Portfolios under divergence balls, beside cvxpylayers.

    python benchmarks/divergences.py [--batch 100] [--atoms 100] [--assets 20] [--peer 100] [--kinds chi2 kl]

The worst expected loss over all reweightings of the atoms within a χ² or Kullback-Leibler ball, where radius, atoms and
weights differ from item to item. cvxpylayers has no ambiguity sets: it gets the dual of the ball written out by hand,
as it stands in our own program, and for χ² also in one cone. Both answer for the same batch, forward and back to
radius, atoms and weights; cvxpylayers at its own tolerance, and at 1e-8 on a fifth of ``--peer`` items. Seconds are
processor time, the better of two runs, scaled up to the batch.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro


def drawn(batch: int, atoms: int, assets: int) -> list[Tensor]:
    """Radius, atoms and weights of a batch."""
    rng = np.random.default_rng(0)
    returns = rng.normal(0.05, 0.2, (batch, atoms, assets)) + rng.normal(0, 0.1, (batch, atoms, 1))
    return [
        torch.as_tensor(rng.uniform(0.05, 0.3, (batch, 1))),
        torch.as_tensor(returns),
        torch.as_tensor(rng.dirichlet(np.full(atoms, 5.0), batch)),
    ]


def robust(kind: str, atoms: int, assets: int) -> tuple[cp.Variable, dro.DecisionProblem]:
    """The loss of a portfolio that is not short."""
    y, x = dro.Uncertain(assets), cp.Variable(assets, nonneg=True)
    return x, dro.DecisionProblem(-y @ x, [cp.sum(x) == 1], dro.Divergence(y, atoms, kind))


@dataclass(frozen=True)
class Statement:
    """The worst case written out by hand: parameters, and their values from radius, atoms and weights."""

    name: str
    x: cp.Variable
    problem: cp.Problem
    parameters: list[cp.Parameter]
    values: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def by_hand(kind: str, atoms: int, assets: int) -> Statement:
    """``min λρ + η + Σ ω_n λφ*((v_n - η)/λ)``, with the products of weights and atoms as parameters."""
    x, scale, level = cp.Variable(assets, nonneg=True), cp.Variable(nonneg=True), cp.Variable()
    radius, weights = cp.Parameter(nonneg=True), cp.Parameter(atoms, nonneg=True)
    weighted = cp.Parameter((atoms, assets))
    r, lam = -weighted @ x - weights * level, weights * scale
    t = cp.Variable(atoms)
    if kind == "kl":
        cones = [cp.ExpCone(r, lam, t + lam)]
    else:
        root = cp.Variable(atoms)
        cones = [root >= 0.5 * r + lam, cp.SOC(t + 2 * lam, cp.vstack([t, 2 * root]), axis=0)]
    problem = cp.Problem(cp.Minimize(radius * scale + level + cp.sum(t)), [*cones, cp.sum(x) == 1])
    return Statement(
        "a cone per atom",
        x,
        problem,
        [radius, weights, weighted],
        lambda rho, y, omega: (rho[:, 0], omega, omega[..., None] * y),
    )


def in_one_cone(atoms: int, assets: int) -> Statement:
    """χ² alone: ``min η + ωᵀg + √ρ‖√ω∘g‖`` over g ≥ v - η, which takes a pencil."""
    x, level, size = cp.Variable(assets, nonneg=True), cp.Variable(), cp.Variable()
    g, radius, root = cp.Variable(atoms), cp.Parameter(nonneg=True), cp.Parameter(atoms, nonneg=True)
    rooted = cp.Parameter((atoms, assets))
    rows = [g >= -rooted @ x - root * level, cp.SOC(size, g), cp.sum(x) == 1]
    return Statement(
        "one cone",
        x,
        cp.Problem(cp.Minimize(level + root @ g + radius * size), rows),
        [radius, root, rooted],
        lambda rho, y, omega: (rho[:, 0].sqrt(), omega.sqrt(), omega.sqrt()[..., None] * y),
    )


def timed(
    run: Callable[[Sequence[Tensor]], Tensor], given: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], float, float]:
    """Decisions, gradients of a weighted sum of them, seconds forward and back; the better of two runs."""
    times = []
    for _ in range(2):
        leaves = [value.clone().requires_grad_() for value in given]
        start = time.process_time()
        x = run(leaves)
        middle = time.process_time()
        (x * torch.linspace(1, 2, x.shape[1], dtype=x.dtype)).sum().backward()
        times.append((middle - start, time.process_time() - middle))
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return x.detach(), grads, min(t[0] for t in times), min(t[1] for t in times)


def exact(statement: Statement, given: Sequence[Tensor], items: int) -> np.ndarray:
    """Decisions of some items by Clarabel at a tight tolerance."""
    found = []
    for numbers in zip(*(part[:items].numpy() for part in statement.values(*given)), strict=True):
        for parameter, value in zip(statement.parameters, numbers, strict=True):
            parameter.value = value
        statement.problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        found.append(statement.x.value)
    return np.array(found)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """The share of items whose gradients differ by more than 1 %."""
    size = theirs.flatten(1).norm(dim=1)
    return float(((ours - theirs).flatten(1).norm(dim=1) > 1e-2 * size).double().mean())


def compare(kind: str, batch: int, atoms: int, assets: int, peer: int) -> None:
    """One kind: both layers on the same items."""
    given = drawn(batch, atoms, assets)
    start = time.process_time()
    x, problem = robust(kind, atoms, assets)
    layer = dro.DROLayer(problem)
    built = time.process_time() - start

    def by_layer(leaves: Sequence[Tensor]) -> Tensor:
        return layer(leaves[0], (leaves[1], leaves[2])).best[x]

    by_layer([part[:2] for part in given])
    mine, my_grads, forward, back = timed(by_layer, given)
    reference = exact(by_hand(kind, atoms, assets), given, min(batch, 10))
    print(f"{kind}, {atoms} atoms, {assets} assets, batch {batch}: {problem}")
    off = float(np.abs(mine[: len(reference)].numpy() - reference).max())
    print(
        f"  {'drolayers':34} built {built:5.2f} s, forward {forward:6.3f} s, backward {back:6.3f} s, off by {off:.0e}"
    )
    try:
        from cvxpylayers.torch import CvxpyLayer
    except ImportError:
        print("  cvxpylayers is not installed (pip install 'drolayers[bench]'), so there is nothing beside it")
        return
    tight = {"solve_method": "SCS", "eps_abs": 1e-8, "eps_rel": 1e-8, "max_iters": 100_000}
    statements = [by_hand(kind, atoms, assets), *([in_one_cone(atoms, assets)] if kind == "chi2" else [])]
    for statement, settings in ((one, how) for one in statements for how in ({}, tight)):
        items = min(peer if not settings else -(-peer // 5), batch)
        start = time.process_time()
        other = CvxpyLayer(statement.problem, parameters=statement.parameters, variables=[statement.x])
        built = time.process_time() - start

        def by_peer(
            leaves: Sequence[Tensor],
            layer: Any = other,
            statement: Statement = statement,
            settings: dict[str, Any] = settings,
        ) -> Tensor:
            # As our own layer does: what is a distribution stays one.
            weights = leaves[2] / leaves[2].sum(1, keepdim=True)
            return layer(*statement.values(leaves[0], leaves[1], weights), solver_args=settings)[0]

        theirs, their_grads, one, two = timed(by_peer, [part[:items] for part in given])
        one, two = one * batch / items, two * batch / items
        few = min(items, len(reference))
        off = float(np.abs(theirs[:few].numpy() - reference[:few]).max())
        apart = [
            f"{leaf} {_apart(a[:items], b):.0%}"
            for leaf, a, b in zip(("radius", "atoms", "weights"), my_grads, their_grads, strict=True)
        ]
        name = f"cvxpylayers{' 1e-8' if settings else ''}, {statement.name}"
        print(
            f"  {name:34} built {built:5.2f} s, forward {one:6.3f} s, backward {two:6.3f} s, off by {off:.0e}, "
            f"{(one + two) / (forward + back):.1f} times as long, gradients apart by 1 %: {', '.join(apart)}"
        )


def main() -> None:
    """Print one block a kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--atoms", type=int, default=100)
    parser.add_argument("--assets", type=int, default=20)
    parser.add_argument("--peer", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", default=["chi2", "kl"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in options.kinds:
        compare(kind, options.batch, options.atoms, options.assets, options.peer)


if __name__ == "__main__":
    main()
