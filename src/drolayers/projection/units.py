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

from drolayers.ambiguity.composite import Maximum, Scaled, Sum
from drolayers.ambiguity.conic_moment import Conic
from drolayers.ambiguity.elementary import Image, Ridge, Separate
from drolayers.ambiguity.moment import Leaves, Moment
from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.outer import Constraints
from drolayers.projection.rule import Values, expectation

Power = Callable[[float], cp.Expression]
"""From e to s^(-e), as a CVXPY expression."""


def known(moment: Moment) -> bool:
    """Whether it is known how the moment scales."""
    if isinstance(moment, Scaled):
        return known(moment.member)
    if isinstance(moment, Sum | Maximum):
        return all(known(member) for member in moment.members)
    return isinstance(moment, Separate | Ridge | Image | Conic)


def degree(moment: Moment) -> float:
    """P where g(y) grows like the p-th power; the largest of a sum's or maximum's members."""
    if isinstance(moment, Scaled):
        return degree(moment.member)
    return max(map(degree, moment.members)) if isinstance(moment, Sum | Maximum) else moment.degree


def leaf_degree(moment: Moment, name: str) -> float:
    """With which power of the outcomes' unit a parameter grows: directions and matrices have none."""
    if isinstance(moment, Scaled):
        return leaf_degree(moment.member, name)
    if isinstance(moment, Sum | Maximum):
        position, own = name.split(".", 1)
        return leaf_degree(moment.members[int(position)], own)
    direction = name.startswith("A") or (isinstance(moment, Ridge) and name == "mu")
    return 0.0 if direction else 1.0


def written(moment: Moment, y: cp.Expression, leaves: Leaves, power: Power) -> tuple[cp.Expression, Constraints]:
    """G in units of s^p, from y and parameters in theirs."""
    if isinstance(moment, Scaled):
        inner, constraints = written(moment.member, y, leaves, power)
        return moment.factor * inner, constraints
    if not isinstance(moment, Sum | Maximum):
        return moment.expression(y, leaves)
    top, parts, constraints = degree(moment), [], []
    for j, member in enumerate(moment.members):
        part, more = written(member, y, moment.leaves_of(j, leaves), power)
        below = top - degree(member)
        parts.append(power(below) * part if below else part)
        constraints += more
    if len(parts) == 1:
        return parts[0], constraints
    return (sum(parts[1:], parts[0]) if isinstance(moment, Sum) else cp.maximum(*parts)), constraints


def size(moment: Moment, alpha: Values, nominal: Nominal) -> Float[Tensor, "batch"]:
    """S: the size of deviations, from the expectations of all members; one where they vanish."""
    found = _size(moment, alpha, nominal) if known(moment) else torch.ones_like(nominal.weights[:, 0])
    return torch.where((found > 0) & found.isfinite(), found, torch.ones_like(found)).detach()


def _size(moment: Moment, alpha: Values, nominal: Nominal) -> Float[Tensor, "batch"]:
    if isinstance(moment, Scaled):
        return _size(moment.member, alpha, nominal)
    if isinstance(moment, Sum | Maximum):
        members = enumerate(moment.members)
        return torch.stack([_size(m, moment.leaves_of(j, alpha), nominal) for j, m in members]).amax(0)
    return expectation(moment, alpha, nominal).detach().abs().amax(1) ** (1.0 / moment.degree)
