"""A moment in units of the item's own: with y = sỹ a moment of degree p is s^p times the same moment of ỹ.

Squares and powers compare lengths with a constant one inside their cones, so that no scaling of rows and columns brings
a program of theirs back to the right size: outcomes of 1e-6 have squares of 1e-12 there. Written in units of the
deviations that an item starts from, its program is the same whatever the outcomes are counted in.
"""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.ambiguity.composite import Composite, Sum
from drolayers.ambiguity.conic_moment import Epigraph
from drolayers.ambiguity.moment import Elementary, Moment
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.outer import Constraints
from drolayers.ambiguity.parameters import Leaves
from drolayers.projection.rule import Values, expectation

Power = Callable[[float], cp.Expression]
"""From e to s^(-e), as a CVXPY expression."""


def known(moment: Moment) -> bool:
    """Whether it is known how the moment scales."""
    if isinstance(moment, Composite):
        return all(known(member) for member in moment.members)
    return isinstance(moment, Elementary | Epigraph)


def degree(moment: Moment) -> float:
    """P where g(y) grows like the p-th power; the largest of a sum's or maximum's members."""
    return max(map(degree, moment.members)) if isinstance(moment, Composite) else moment.degree


def leaf_degree(moment: Moment, name: str) -> float:
    """With which power of the outcomes' unit a parameter grows: directions and matrices have none."""
    if isinstance(moment, Composite):
        position, own = name.split(".", 1)
        return leaf_degree(moment.members[int(position)], own)
    if isinstance(moment, Elementary):
        return 1.0 if name == moment.image.shift else 0.0
    return 0.0 if name.startswith("A") else 1.0


def written(moment: Moment, y: cp.Expression, leaves: Leaves, power: Power) -> tuple[cp.Expression, Constraints]:
    """G in units of s^p, from y and parameters in theirs."""
    if not isinstance(moment, Composite):
        return moment.expression(y, leaves)
    top, parts, constraints = degree(moment), [], []
    for member, own in moment.each(leaves):
        part, more = written(member, y, own, power)
        below = top - degree(member)
        parts.append(power(below) * part if below else part)
        constraints += more
    total = sum(parts[1:], parts[0])
    return moment.factor * (total if isinstance(moment, Sum) or len(parts) == 1 else cp.maximum(*parts)), constraints


def size(moment: Moment, alpha: Values, nominal: Nominal) -> Float[Tensor, "batch"]:
    """S: the size of deviations, from the expectations of all members; one where they vanish."""
    found = _size(moment, alpha, nominal) if known(moment) else torch.ones_like(nominal.weights[:, 0])
    return torch.where((found > 0) & found.isfinite(), found, torch.ones_like(found)).detach()


def _size(moment: Moment, alpha: Values, nominal: Nominal) -> Float[Tensor, "batch"]:
    if isinstance(moment, Composite):
        return torch.stack([_size(member, own, nominal) for member, own in moment.each(alpha)]).amax(0)
    return expectation(moment, alpha, nominal).detach().abs().amax(1) ** (1.0 / moment.degree)
