"""Open boxes of all items of a batch, and how one box is divided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Nodes:
    """Boxes of integer points, one a row: whose they are, their ends, and a lower bound on what they hold."""

    item: Array
    lower: Array
    upper: Array
    bound: Array

    @classmethod
    def none(cls, integers: int) -> Nodes:
        """No boxes; their ends have the smallest type, which gives way to any other."""
        ends = np.zeros((0, integers), dtype=np.int8)
        return cls(np.zeros(0, dtype=np.int64), ends, ends, np.zeros(0))

    def __len__(self) -> int:
        return self.item.size

    def __getitem__(self, chosen: Array) -> Nodes:
        return Nodes(self.item[chosen], self.lower[chosen], self.upper[chosen], self.bound[chosen])

    def __add__(self, other: Nodes) -> Nodes:
        pairs = ((getattr(self, f), getattr(other, f)) for f in ("item", "lower", "upper", "bound"))
        return Nodes(*(np.concatenate(pair) for pair in pairs))

    @property
    def single(self) -> Array:
        """Which boxes hold one point."""
        return (self.lower == self.upper).all(1)

    @property
    def size(self) -> Array:
        """How many steps apart the ends of each box are."""
        return (self.upper - self.lower).sum(1)

    def rank(self, *keys: Array) -> Array:
        """The position of each box among those of its item, by keys in falling order of importance."""
        order = np.lexsort((*keys[::-1], self.item))
        ordered = self.item[order]
        rank = np.empty(order.size, dtype=np.int64)
        rank[order] = np.arange(order.size) - np.searchsorted(ordered, ordered)
        return rank


def halve(nodes: Nodes, column: Array, at: Array) -> Nodes:
    """Two children each: the column at most ``floor(at)``, and more."""
    rows, floor = np.arange(len(nodes)), np.floor(at).astype(nodes.lower.dtype)
    below, above = nodes.upper.copy(), nodes.lower.copy()
    below[rows, column], above[rows, column] = floor, floor + 1
    return Nodes(nodes.item, nodes.lower, below, nodes.bound) + Nodes(nodes.item, above, nodes.upper, nodes.bound)


def exclude(nodes: Nodes, point: Array, cost: Array, proven: bool = False) -> Nodes:
    """Children that cover each box but for one point of it.

    Child i agrees with the point in the columns before the i-th and differs from it in the i-th, on either side.

    Args:
        nodes: the boxes.
        point: one point of each.
        cost: an estimate of the best value where a column differs from the point. Columns come in falling order of it:
            the children of the first, with most columns free, are then the least promising.
        proven: whether ``cost`` is a lower bound.
    """
    integers = point.shape[1]
    order = np.argsort(-cost, 1, kind="stable")
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.broadcast_to(np.arange(integers), order.shape), 1)
    # One child for each node, side and column in question; of each, all columns.
    agreed = position[:, None, :] < position[:, :, None]
    p, low, high = (a[:, None, :] for a in (point.astype(nodes.lower.dtype), nodes.lower, nodes.upper))
    children = Nodes.none(integers)
    for side in (-1, 1):
        node, column = np.nonzero((point > nodes.lower) if side < 0 else (point < nodes.upper))
        lower, upper = (np.where(agreed, p, end)[node, column] for end in (low, high))
        rows = np.arange(node.size)
        moved = point[node, column] + side
        if side < 0:
            upper[rows, column] = moved
        else:
            lower[rows, column] = moved
        bound = np.maximum(nodes.bound[node], cost[node, column]) if proven else nodes.bound[node]
        children += Nodes(nodes.item[node], lower, upper, bound)
    return children
