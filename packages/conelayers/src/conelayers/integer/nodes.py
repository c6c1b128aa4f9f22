"""Open boxes of all items of a batch, and how one box is divided; tensors, on whichever device the programs are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Nodes:
    """Boxes of integer points, one a row: whose they are, their ends, and a lower bound on what they hold."""

    item: Int[Tensor, "box"]
    lower: Int[Tensor, "box integer"]
    upper: Int[Tensor, "box integer"]
    bound: Float[Tensor, "box"]

    def __len__(self) -> int:
        return self.item.shape[0]

    def __getitem__(self, chosen: Tensor | slice) -> Nodes:
        if isinstance(chosen, Tensor) and chosen.dtype == torch.bool:
            # Once for all parts: on a GPU the host waits to hear how many there are.
            chosen = chosen.nonzero()[:, 0]
        return Nodes(self.item[chosen], self.lower[chosen], self.upper[chosen], self.bound[chosen])

    def __add__(self, other: Nodes) -> Nodes:
        if not len(self) or not len(other):
            return other if len(other) else self
        pairs = ((getattr(self, f), getattr(other, f)) for f in ("item", "lower", "upper", "bound"))
        return Nodes(*(torch.cat(pair) for pair in pairs))

    @property
    def single(self) -> Bool[Tensor, "box"]:
        """Which boxes hold one point."""
        return (self.lower == self.upper).all(1)

    @property
    def size(self) -> Int[Tensor, "box"]:
        """How many steps apart the ends of each box are."""
        return (self.upper - self.lower).sum(1)

    def rank(self, *keys: Tensor) -> Int[Tensor, "box"]:
        """The position of each box among those of its item, by keys in falling order of importance."""
        return ranks(self.item, lexsort(self.item, *keys))


def lexsort(*keys: Tensor) -> Int[Tensor, "row"]:
    """The order by keys in falling order of importance; what is equal in all of them keeps its order."""
    order = torch.argsort(keys[-1], stable=True)
    for key in keys[-2::-1]:
        order = order[torch.argsort(key[order], stable=True)]
    return order


def ranks(item: Int[Tensor, "row"], order: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
    """The position of each row among those of its item, in an order by items."""
    ordered, rank = item[order], torch.empty_like(order)
    rank[order] = torch.arange(order.shape[0], device=order.device) - torch.searchsorted(ordered, ordered)
    return rank


def halve(nodes: Nodes, column: Int[Tensor, "box"], at: Tensor) -> Nodes:
    """Two children each: the column at most ``floor(at)``, and more."""
    floor = torch.floor(at).to(nodes.lower.dtype)[:, None]
    below, above = nodes.upper.scatter(1, column[:, None], floor), nodes.lower.scatter(1, column[:, None], floor + 1)
    return Nodes(nodes.item, nodes.lower, below, nodes.bound) + Nodes(nodes.item, above, nodes.upper, nodes.bound)


def exclude(
    nodes: Nodes,
    point: Int[Tensor, "box integer"],
    cost: Float[Tensor, "box integer"],
    target: Float[Tensor, "box"] | None = None,
) -> Nodes:
    """Children that cover each box but for one point of it.

    Child i agrees with the point in the columns before the i-th and differs from it in the i-th, on either side.

    Args:
        nodes: the boxes.
        point: one point of each.
        cost: lower bounds on what differs from the point in a column. Columns come in falling order of it: the children
            of the first, with most columns free, are then the least promising.
        target: children whose bound reaches it are left out.
    """
    position = torch.argsort(torch.argsort(cost, dim=1, descending=True, stable=True), dim=1)
    bound = torch.maximum(nodes.bound[:, None], cost)
    wanted = bound < (torch.inf if target is None else target[:, None])
    children = nodes[:0]
    for side, free in ((-1, point > nodes.lower), (1, point < nodes.upper)):
        node, column = (free & wanted).nonzero(as_tuple=True)
        agreed, p = position[node] < position[node, column][:, None], point[node]
        moved = (p.gather(1, column[:, None]) + side).to(p.dtype)
        lower, upper = (torch.where(agreed, p, end[node]) for end in (nodes.lower, nodes.upper))
        upper, lower = (
            (upper.scatter(1, column[:, None], moved), lower)
            if side < 0
            else (upper, lower.scatter(1, column[:, None], moved))
        )
        children += Nodes(nodes.item[node], lower, upper, bound[node, column])
    return children
