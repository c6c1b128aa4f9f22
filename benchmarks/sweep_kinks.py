"""Derivatives at places where certificates are not unique, against differences on either side.

    python benchmarks/sweep_kinks.py --programs 40 --seed 0

Random costs under balls of total variation whose radius is the mass of a whole number of equal atoms, boxes whose ends
are those of the support, and known bounds that coincide. An item that says FACE or FACTORED must have the derivative of
both sides, along θ or along the known bound; one that says KINK or LOOSE claims nothing. What is neither is printed.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers.conic.solvers.interior import Interior
from drolayers.status import Derivative

STEP, AGREE = 1e-3, 1e-2
ENGINE = Interior(tolerance=1e-11)
"""Differences need more digits than decisions do."""

Case = tuple[Callable[[Tensor], dro.Decision], Tensor, cp.Variable]


def cost(rng: np.random.Generator, x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    """Stages that depend on one another, and a little curvature."""
    left, total = rng.uniform(1, 4), 0.0
    for k in range(y.dim):
        left = left + x[k] - y[k]
        over, short = rng.uniform(1, 3), rng.uniform(4, 8)
        total = total + cp.maximum(over * left, -short * left)
    return rng.uniform(0.05, 0.5) * cp.sum_squares(x) + rng.uniform(0.5, 1.5, y.dim) @ x + total


def whole_atoms(rng: np.random.Generator) -> Case:
    """Total variation; a radius that moves so many whole atoms."""
    dim, count = int(rng.integers(1, 4)), int(rng.integers(3, 9))
    y, x = dro.Uncertain(dim, support=dro.support.Box(np.zeros(dim), np.full(dim, 10.0))), cp.Variable(dim)
    problem = dro.DecisionProblem(cost(rng, x, y), [x >= 0, x <= 9], dro.Divergence(y, count, kind="tv"))
    nominal = dro.Nominal(
        torch.as_tensor(np.round(rng.uniform(0, 10, (1, count, dim)), int(rng.integers(0, 3)))),
        torch.full((1, count), 1.0 / count).double(),
    )
    layer = dro.DROLayer(problem, gradient="exact", engine=ENGINE)
    radius = torch.tensor([[2.0 * rng.integers(1, count) / count]], dtype=torch.float64)
    return lambda theta: layer(theta, nominal), radius, x


def ends_of_the_support(rng: np.random.Generator) -> Case:
    """A robust box one or more ends of which are those of the support."""
    dim = int(rng.integers(1, 4))
    y, x = dro.Uncertain(dim, support=dro.support.Box(np.zeros(dim), np.full(dim, 6.0))), cp.Variable(dim)
    problem = dro.DecisionProblem(cost(rng, x, y), [x >= 0, x <= 9], dro.Outcomes(y, "box"))
    centre = rng.uniform(1, 5, dim)
    size = np.where(rng.random(dim) < 0.7, np.minimum(centre, 6 - centre), 0.5)
    layer = dro.DROLayer(problem, gradient="exact", engine=ENGINE)
    values = {"center": centre, "centre": centre, "radius": size, "size": size, "widths": size}
    theta = problem.pack({n: torch.as_tensor(values.get(n, size))[None] for n in problem.ambiguity.parameters})
    return layer, theta, x


def bounds(rng: np.random.Generator) -> Case:
    """A known bound beside one that is given, equal in some coordinates."""
    dim = int(rng.integers(1, 4))
    y, x, most = dro.Uncertain(dim), cp.Variable(dim), cp.Parameter(dim, name="most")
    given = rng.uniform(0.5, 2.0, dim)
    problem = dro.DecisionProblem(
        cost(rng, x, y), [x >= 0, x <= given, x <= most], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    theta = torch.cat([torch.as_tensor(rng.uniform(2, 5, (1, dim))), torch.full((1, 1), 0.5).double()], 1)
    layer = dro.DROLayer(problem, gradient="exact", engine=ENGINE)
    start = torch.as_tensor(np.where(rng.random(dim) < 0.5, given, given * 0.8))[None]
    return lambda known: layer(theta, known={"most": known}), start, x


def looked_at(case: Case, rng: np.random.Generator) -> str:
    """How an item fares, along a random direction."""
    decide, start, x = case
    along = torch.as_tensor(rng.standard_normal(tuple(start.shape)))
    weight = torch.as_tensor(rng.standard_normal(x.size)).reshape(x.shape)
    leaf = start.clone().requires_grad_()
    decision = decide(leaf)
    if not bool(decision.ok.all()):
        return "no decision"
    (decision.best[x][0] * weight).sum().backward()
    code = Derivative(int(decision.derivative.flatten()[0]))
    ends = [decide(start + step * along) for step in (STEP, 0.0, -STEP)]
    up, here, down = (float((end.best[x][0].detach() * weight).sum()) for end in ends)
    sides = np.array([up - here, here - down]) / STEP
    told, size = float((leaf.grad * along).sum()), max(1e-3, np.abs(sides).max())
    right = bool((np.abs(sides - told) <= AGREE * size).all())
    smooth = abs(sides[0] - sides[1]) <= AGREE * size
    if code.ok and not right:
        print(f"  {code}: {told:.6g}, from below {sides[1]:.6g}, from above {sides[0]:.6g}")
        return "WRONG" if smooth or not min(sides) <= told <= max(sides) else "between both sides"
    return f"{code}, right" if code.ok else f"{code}, {'smooth along this direction' if smooth else 'a kink'}"


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for family in (whole_atoms, ends_of_the_support, bounds):
        found: Counter[str] = Counter()
        for k in range(given.programs):
            rng = np.random.default_rng([given.seed, k])
            found[looked_at(family(rng), rng)] += 1
        print(f"{family.__name__}: " + ", ".join(f"{count} {what}" for what, count in found.most_common()))


if __name__ == "__main__":
    main()
