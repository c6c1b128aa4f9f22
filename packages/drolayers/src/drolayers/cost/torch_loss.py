"""The cost that was written in CVXPY, as a batched differentiable torch function: nobody writes it twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import cvxpy as cp
import torch
from cvxpy.expressions.leaf import Leaf
from torch import Tensor

from drolayers.cost.torch_atoms import Fixed, Operation, operation
from drolayers.cost.torch_sizes import Sized, sized
from drolayers.errors import ModelError, ShapeError


@dataclass(frozen=True, eq=False)
class _Step:
    """One atom: the operation, and the numbers of the slots that it reads; its own slot is the next one."""

    node: cp.Expression
    apply: Operation
    reads: tuple[int, ...]

    @cached_property
    def sized(self) -> Sized:
        """The same with the size of its terms."""
        return sized(self.node)


class TorchCost:
    """A CVXPY expression compiled into torch operations.

    Calling it takes a mapping from CVXPY variables and parameters to tensors ``(..., *leaf.shape)`` and returns a
    tensor ``(..., *expression.shape)``. Leading dimensions are batch dimensions; those of different leaves broadcast,
    for example decisions ``(batch, candidate, n)`` against outcomes ``(batch, 1, n)``. It works with torch's autograd,
    on any device, in the dtype of the values.

    Args:
        expression: any expression of atoms that are common in costs. One with an atom that is not known in torch is
            refused when it is called: a cone program may hold it all the same.
    """

    def __init__(self, expression: cp.Expression) -> None:
        self.expression = expression
        self._program: list[Leaf | Fixed | _Step] = []
        self._refused: ModelError | None = None
        try:
            self._compile(expression, {})
        except ModelError as error:
            self._refused = error

    def __call__(self, values: Mapping[Leaf, Tensor]) -> Tensor:
        """Evaluates the expression.

        Args:
            values: tensors for at least all variables and parameters of the expression.

        Raises:
            ModelError: the expression holds an atom that is not known in torch.
            ShapeError: a leaf has no value, or one whose last dimensions are not its shape.
        """
        batch, reference, by_id = self._checked(values)
        slots: list[Tensor] = []
        for step in self._program:
            if isinstance(step, _Step):
                slots.append(step.apply([slots[k] for k in step.reads]))
            else:
                slots.append(step.like(reference) if isinstance(step, Fixed) else by_id[step.id])
        return slots[-1].expand(*batch, *self.expression.shape)

    @torch.no_grad()
    def sized(self, values: Mapping[Leaf, Tensor], sizes: Mapping[Leaf, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The expression, without a derivative, and how large the terms are that it is made of.

        Args:
            values: as above.
            sizes: of the terms that leaves themselves are made of; their absolute values unless given.
        """
        batch, reference, by_id = self._checked(values)
        told = {leaf.id: size for leaf, size in (sizes or {}).items()}
        slots: list[tuple[Tensor, Tensor]] = []
        for step in self._program:
            if isinstance(step, _Step):
                read = [slots[k] for k in step.reads]
                slots.append(step.sized([value for value, _ in read], [size for _, size in read]))
            elif isinstance(step, Fixed):
                slots.append((step.like(reference), step.like(reference).abs()))
            else:
                value = by_id[step.id]
                slots.append((value, told.get(step.id, value.abs())))
        value, size = (part.expand(*batch, *self.expression.shape) for part in slots[-1])
        return value, size

    def _checked(self, values: Mapping[Leaf, Tensor]) -> tuple[torch.Size, Tensor, dict[int, Tensor]]:
        """Batch dimensions, a tensor for the dtype and the device, and the values by leaf."""
        if self._refused is not None:
            raise ModelError(str(self._refused)) from self._refused
        if not values:
            raise ShapeError(f"The cost {self.expression} needs values for its variables and parameters.")
        for leaf, value in values.items():
            if tuple(value.shape[value.ndim - leaf.ndim :]) != leaf.shape:
                raise ShapeError(f"{leaf.name()} needs a tensor (..., *{leaf.shape}), not {tuple(value.shape)}.")
        by_id = {leaf.id: value for leaf, value in values.items()}
        for step in self._program:
            if isinstance(step, Leaf) and step.id not in by_id:
                raise ShapeError(f"The cost needs a value for {step.name()}.")
        batch = torch.broadcast_shapes(*[value.shape[: value.ndim - leaf.ndim] for leaf, value in values.items()])
        return batch, next(iter(values.values())), by_id

    def _compile(self, node: cp.Expression, done: dict[int, int]) -> int:
        """Appends what computes a node, arguments first, and returns its slot."""
        if id(node) in done:
            return done[id(node)]
        if not node.variables() and not node.parameters():
            self._program.append(Fixed.of(node))
        elif isinstance(node, Leaf):
            self._program.append(node)
        else:
            reads = tuple(self._compile(arg, done) for arg in node.args)
            self._program.append(_Step(node, operation(node), reads))
        done[id(node)] = len(self._program) - 1
        return done[id(node)]

    def __reduce__(self) -> tuple[type[TorchCost], tuple[cp.Expression]]:
        return TorchCost, (self.expression,)


def evaluate(expression: cp.Expression, values: Mapping[Leaf, Tensor]) -> Tensor:
    """Evaluates a CVXPY expression once; keep a :class:`TorchCost` to evaluate it often."""
    return TorchCost(expression)(values)
