"""The same decisions under another set: how sample averages and point predictions reuse the one reformulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import keyed_as
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.reweighted import Empirical
from drolayers.cost.rules import over_one_set
from drolayers.errors import ModelError
from drolayers.layer import DROLayer
from drolayers.problem import DecisionProblem
from drolayers.support import Reals
from drolayers.uncertainty import Uncertain


def sibling(problem: DecisionProblem, ambiguity: Callable[[Uncertain], AmbiguitySet]) -> DecisionProblem:
    """The problem with the same cost, constraints and decision variables under another set, the same for all.

    Args:
        problem: the problem.
        ambiguity: makes the set from the uncertain vector. It must leave mass no room to move: then the support says
            nothing that the set does not, and is dropped where the cost can do without it. That makes the program about
            four times smaller, and no point lies outside.
    """
    if problem.adaptive:
        raise ModelError(
            f"Baselines know no adaptive decisions such as {problem.adaptive[0].name()}, whose rules belong to a set: "
            "write a second stage with dro.recourse."
        )
    if any(part.price is not None for part in problem.parts):
        raise ModelError("A fragility is about distances from the data, so that no policy without a set can have it.")
    y, cost = problem.ambiguity.y, over_one_set(problem.cost)
    constraints = [over_one_set(constraint) for constraint in problem.constraints]
    # Second stages and uncertain constraints need the support: it says for which outcomes they must hold.
    needed = problem.rules or any(len(part.parsed.forbidden) or part.parsed.conservative for part in problem.parts)
    if not isinstance(y.support, Reals) and not needed:
        free = Uncertain(y.shape, Reals(y.support.parameters), y.name())
        kept = {id(leaf): leaf for leaf in (*cost.variables(), *cost.constants(), *problem.known_data.parameters)}
        try:
            return DecisionProblem(cost.tree_copy({**kept, id(y): free}), constraints, ambiguity(free))
        except ModelError:
            # A convex function of the decision that multiplies y is convex for y ≥ 0 alone.
            pass
    return DecisionProblem(cost, constraints, ambiguity(y))


def affine(problem: DecisionProblem) -> bool:
    """Whether all that is uncertain is affine in y and on average, so that only the mean of a distribution matters."""
    return all(part.parsed.affine and not part.everywhere for part in problem.parts)


class ExpectedCost:
    """Decisions that minimise the expected cost Σ ω_n c(x, y_n) of weighted atoms.

    This is the layer on the set that holds them alone: ``dro.always`` and second stages hold at each of them. Where all
    that is uncertain is an average of what is affine in y, their mean replaces them, which is exact and much cheaper.

    Args:
        problem: the problem whose cost and constraints are meant.
        atoms: number of atoms.
        layer: settings of the layer, such as ``oracle`` and ``engine``.
    """

    def __init__(self, problem: DecisionProblem, atoms: int, **layer: Any) -> None:
        self.mean_only, self.known_data = affine(problem), problem.known_data
        count = 1 if self.mean_only else atoms
        self.problem = sibling(problem, lambda y: Empirical(y, count))
        self.layer = DROLayer(self.problem, **layer).eval()

    @torch.no_grad()
    def decide(
        self,
        atoms: Float[Tensor, "batch atom dim"],
        weights: Float[Tensor, "batch atom"],
        known: Float[Tensor, "batch entry"] | None = None,
    ) -> dict[cp.Variable, Tensor]:
        """One decision an item; NaN where there is none. Known data come as a table."""
        if self.mean_only:
            atoms = (weights[..., None] * atoms).sum(1, keepdim=True)
            weights = torch.ones_like(atoms[..., 0])
        # A batch of programs with many atoms is large, so they are solved in parts.
        chunk = min(512, max(1, 50_000 // atoms.shape[1]))
        table = atoms.new_zeros(len(atoms), 0) if known is None else known
        parts = []
        for some, omega, told in zip(atoms.split(chunk), weights.split(chunk), table.split(chunk), strict=True):
            values = None if known is None else self.known_data.values(told)
            parts.append(self.layer(some.new_zeros(len(some), 0), (some, omega), values).best)
        return keyed_as(parts[0], {variable: torch.cat([part[variable] for part in parts]) for variable in parts[0]})
