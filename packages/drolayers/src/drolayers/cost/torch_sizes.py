"""How large the terms are that a value is made of: what is next to none beside them is rounding, a solver's or ours.

The size of a leaf is its absolute value, that of a sum the sum of its terms' sizes, that of a product the product. Of
anything else it is what the value moves by where every argument moves by its size, to first order: of a maximum the
size of what attains it. So a row has a size of its own at every point, which changes with units as the row does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import cvxpy as cp
import torch
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.elementwise import Elementwise
from torch import Tensor

from drolayers.cost.torch_atoms import Operation, absolute, operation

Sized = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor]]
"""From the values and the sizes of its arguments to those of an atom, without a derivative."""


def sized(node: cp.Expression) -> Sized:
    """An atom's value and size.

    Raises:
        ModelError: the atom is not known in torch.
    """
    apply = operation(node)
    if isinstance(node, NegExpression):
        return lambda values, sizes: (apply(values), sizes[0])
    if isinstance(node, DivExpression):
        return lambda values, sizes: (apply(values), apply([sizes[0], values[1].abs()]))
    if isinstance(node, AddExpression | MulExpression | cp.multiply):
        return lambda values, sizes: (apply(values), apply(sizes))
    if isinstance(node, AffAtom):
        bare = absolute(node)
        return lambda values, sizes: (apply(values), bare(sizes))
    varies = [bool(arg.variables() or arg.parameters()) for arg in node.args]
    if isinstance(node, Elementwise):
        # As wide as the atom: each of its entries sees one of every argument's.
        wide = operation(node.copy([cp.Variable(node.shape) for _ in node.args]))
        return lambda values, sizes: _entrywise(wide, varies, *(_widened(node, given) for given in (values, sizes)))
    return lambda values, sizes: _jointly(apply, varies, node, values, sizes)


def _batch(node: cp.Expression, given: Sequence[Tensor]) -> tuple[int, ...]:
    """The batch dimensions of arguments together."""
    return tuple(torch.broadcast_shapes(*(v.shape[: v.ndim - a.ndim] for v, a in zip(given, node.args, strict=True))))


def _widened(node: cp.Expression, given: Sequence[Tensor]) -> list[Tensor]:
    """Arguments in the shape of the atom."""
    batch, found = _batch(node, given), []
    for value, arg in zip(given, node.args, strict=True):
        lead = value.shape[: value.ndim - arg.ndim]
        found.append(value.reshape(*lead, *[1] * (node.ndim - arg.ndim), *arg.shape).expand(*batch, *node.shape))
    return found


def _entrywise(
    apply: Operation, varies: Sequence[bool], values: Sequence[Tensor], sizes: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Where every entry sees one of each argument's."""
    with torch.inference_mode(False), torch.enable_grad():
        asked = [value.detach().clone().requires_grad_() for value in values]
        out = apply(asked)
        moved = sum(_moves(out, asked, sizes, varies), torch.zeros_like(out))
    return out.detach(), torch.maximum(out.detach().abs(), moved.detach())


def _jointly(
    apply: Operation, varies: Sequence[bool], node: cp.Expression, values: Sequence[Tensor], sizes: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Where an entry may see all of the arguments: one entry after the other."""
    batch = _batch(node, values)
    with torch.inference_mode(False), torch.enable_grad():
        pairs = zip(values, node.args, strict=True)
        asked = [value.detach().clone().expand(*batch, *arg.shape).requires_grad_() for value, arg in pairs]
        out = apply(asked)
        moved = [
            sum((m.reshape(*batch, -1).sum(-1) for m in _moves(entry, asked, sizes, varies)), torch.zeros_like(entry))
            for entry in out.reshape(*batch, prod(node.shape)).unbind(-1)
        ]
    moves = torch.stack(moved, -1).reshape(out.shape).detach()
    return out.detach(), torch.maximum(out.detach().abs(), moves)


def _moves(out: Tensor, asked: Sequence[Tensor], sizes: Sequence[Tensor], varies: Sequence[bool]) -> list[Tensor]:
    """By how much the entries of the arguments move it; constants do not, nor where there is no derivative."""
    slopes = torch.autograd.grad(out.sum(), asked, retain_graph=True, materialize_grads=True)
    parts = zip(slopes, sizes, varies, strict=True)
    return [(slope.abs() * size).nan_to_num(0.0, 0.0) for slope, size, some in parts if some]
