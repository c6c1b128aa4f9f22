"""The cost that was written in CVXPY, as a batched differentiable torch function: nobody writes it twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cvxpy as cp
import torch
from cvxpy.expressions.leaf import Leaf
from torch import Tensor

from drolayers.cost.torch_atoms import Fixed, Operation, operation
from drolayers.errors import ModelError, ShapeError


@dataclass(frozen=True)
class _Step:
    """One atom: the operation, and the numbers of the slots that it reads; its own slot is the next one."""

    apply: Operation
    reads: tuple[int, ...]


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
        if self._refused is not None:
            raise ModelError(str(self._refused)) from self._refused
        if not values:
            raise ShapeError(f"The cost {self.expression} needs values for its variables and parameters.")
        for leaf, value in values.items():
            if tuple(value.shape[value.ndim - leaf.ndim :]) != leaf.shape:
                raise ShapeError(f"{leaf.name()} needs a tensor (..., *{leaf.shape}), not {tuple(value.shape)}.")
        reference = next(iter(values.values()))
        by_id = {leaf.id: value for leaf, value in values.items()}
        slots: list[Tensor] = []
        for step in self._program:
            if isinstance(step, _Step):
                slots.append(step.apply([slots[k] for k in step.reads]))
            elif isinstance(step, Fixed):
                slots.append(step.like(reference))
            elif step.id in by_id:
                slots.append(by_id[step.id])
            else:
                raise ShapeError(f"The cost needs a value for {step.name()}.")
        batch = torch.broadcast_shapes(*[value.shape[: value.ndim - leaf.ndim] for leaf, value in values.items()])
        return slots[-1].expand(*batch, *self.expression.shape)

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
            self._program.append(_Step(operation(node), reads))
        done[id(node)] = len(self._program) - 1
        return done[id(node)]

    def __reduce__(self) -> tuple[type[TorchCost], tuple[cp.Expression]]:
        return TorchCost, (self.expression,)


def evaluate(expression: cp.Expression, values: Mapping[Leaf, Tensor]) -> Tensor:
    """Evaluates a CVXPY expression once; keep a :class:`TorchCost` to evaluate it often."""
    return TorchCost(expression)(values)
