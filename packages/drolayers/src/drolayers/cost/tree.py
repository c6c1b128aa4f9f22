"""Walks over CVXPY's trees."""

from __future__ import annotations

from collections.abc import Iterable

import cvxpy as cp


def walk(expressions: Iterable[cp.Expression], stop: type | tuple[type, ...] = ()) -> list[cp.Expression]:
    """All nodes of some trees, each once; those below nodes of some types are left out."""
    seen: dict[int, cp.Expression] = {}
    left = list(expressions)
    while left:
        node = left.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            left += [] if isinstance(node, stop) else node.args
    return list(seen.values())


def replaced(node: cp.Expression, by: dict[int, cp.Expression]) -> cp.Expression:
    """The same tree with some nodes replaced, by their ids; the table remembers what was done."""
    if id(node) not in by:
        args = [replaced(arg, by) for arg in node.args]
        same = all(new is old for new, old in zip(args, node.args, strict=True))
        by[id(node)] = node if same else node.copy(args)
    return by[id(node)]
