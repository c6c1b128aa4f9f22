"""Where adjoint equations are singular: whether their solutions differ in what a gradient is asked of.

Multipliers need not be unique. The solutions of the adjoint equations then agree
along all changes of the data that keep the face, and nowhere else: a row that holds beside another one, or the price of
a radius, may be told any number. So the same equations are solved with nothing on their right-hand side, from noise.
What is left is the difference between two solutions. Where it moves something that is differentiated, the item is at a
kink; a nominal distribution that is data, say, does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.derivative.theorem import AGREE, Pulled, gradients, sum_features
from conelayers.program.program import ConeProgram
from conelayers.scaling.units import Units
from conelayers.status import Derivative


@final
@dataclass(frozen=True)
class Upstream:
    """What the numbers P, A, q and b of a batch were made of, as autograd remembers it."""

    numbers: Sequence[Tensor]

    def leaves(self) -> list[Tensor]:
        """What is differentiated."""
        found = {id(t): t for t in self.numbers if t.requires_grad and t.grad_fn is None}
        waiting: list[Any] = [t.grad_fn for t in self.numbers if t.grad_fn is not None]
        seen: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found[id(node.variable)] = node.variable
            waiting += [other for other, _ in node.next_functions]
        return list(found.values())

    def reached(self, pieces: Sequence[Tensor]) -> float:
        """The largest entry of what arrives there of gradients in the numbers; infinite where that cannot be asked."""
        asked = [k for k, t in enumerate(self.numbers) if t.requires_grad]
        numbers, given = [self.numbers[k] for k in asked], [pieces[k] for k in asked]
        if not asked:
            # Those of an activation checkpoint remember nothing.
            return float("inf")
        try:
            arrived = torch.autograd.grad(numbers, self.leaves(), given, retain_graph=True, allow_unused=True)
        except RuntimeError:
            # What torch.compile has made of a model may be gone through once only.
            return float("inf")
        return max((float(t.abs().amax()) for t in arrived if t is not None and t.numel()), default=0.0)


def unambiguous(
    program: ConeProgram, pulled: Pulled, units: Units, items: Int[Tensor, "some"], upstream: Upstream | None
) -> Pulled:
    """The same, where every solution of the adjoint equations says it; the other items are at a kink.

    Args:
        program: the structure.
        pulled: of some items.
        units: theirs.
        items: their numbers in the batch.
        upstream: of the batch; without it all features count.
    """
    other = pulled.elsewhere
    if other is None or not program.feature_size:
        return pulled
    sides = [gradients(program, one, units) for one in (pulled, other)]
    kink = pulled.ok & depends(program, sides[0], sides[1], pulled.ok, items, upstream)
    return replace(pulled, code=torch.where(kink, int(Derivative.KINK), pulled.code))


def depends(
    program: ConeProgram,
    gradient: Sequence[Tensor],
    change: Sequence[Tensor],
    asked: Bool[Tensor, "some"],
    items: Int[Tensor, "some"],
    upstream: Upstream | None,
) -> Bool[Tensor, "some"]:
    """Test for which items a change of the gradients in P, A, q and b reaches whatever is differentiated.

    Args:
        program: the structure.
        gradient: in P, A, q and b.
        change: by which another solution may differ.
        asked: which items matter.
        items: their numbers in the batch.
        upstream: of the batch; without it all features count.
    """
    here, there = (sum_features(program, side).abs().amax(1) for side in (gradient, change))
    kink = asked & (there > AGREE * here)
    if upstream is not None and bool(kink.any()):
        size = torch.maximum(here, there).clamp(min=1e-300)
        kink = kink & _matters((gradient, change), items, upstream, size, kink.nonzero()[:, 0])
    return kink


def _matters(
    sides: tuple[Sequence[Tensor], Sequence[Tensor]],
    items: Int[Tensor, "some"],
    upstream: Upstream,
    size: Float[Tensor, "some"],
    rows: Int[Tensor, "doubtful"],
) -> Tensor:
    """For which rows the difference arrives at what is differentiated."""
    # So that nothing cancels where items share what is differentiated, and a large gradient hides no small one.
    weights = torch.randn(len(size), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = weights.to(size) / size[:, None]

    def arrives(chosen: Tensor) -> bool:
        here, there = (
            upstream.reached(
                [
                    torch.zeros_like(t).index_copy(0, items[chosen], (weights.to(p) * p)[chosen].to(t))
                    for t, p in zip(upstream.numbers, pieces, strict=True)
                ]
            )
            for pieces in sides
        )
        return there > AGREE * here or there == float("inf")

    matters = torch.zeros_like(size, dtype=torch.bool)
    if arrives(rows):
        # Rarely: of what is only data, nothing arrives of all together.
        for row in rows:
            matters[row] = arrives(row[None])
    return matters
