"""The library's side: the problem from its source text, tensors of items, and calls of the layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from research.attack.draw import Program
from research.attack.drawn import Item

Array = Any


@dataclass(frozen=True)
class Inputs:
    """What the layer is called with, in the library's units.

    Attributes:
        theta: parameters by name, ``(batch, *shape)``.
        atoms: ``(batch, atom, dim)`` or None.
        weights: ``(batch, atom)`` or None.
        known: known data by name.
        batch: number of items.
    """

    theta: dict[str, Tensor]
    atoms: Tensor | None
    weights: Tensor | None
    known: dict[str, Tensor]
    batch: int

    @classmethod
    def of(cls, program: Program, items: Sequence[Item]) -> Inputs:
        """The inputs of some items."""
        units, unit = program.units, program.choices.unit
        like = program.items[0]

        def stacked(values: list[Array], shape: tuple[int, ...]) -> Tensor:
            return torch.tensor(np.array(values, dtype=float).reshape(len(items), *shape))

        theta = {n: stacked([i.theta[n] * units[n] for i in items], np.shape(v)) for n, v in like.theta.items()}
        known = {n: stacked([i.known[n] * units[n] for i in items], np.shape(v)) for n, v in like.known.items()}
        if like.atoms is None:
            return cls(theta, None, None, known, len(items))
        atoms = stacked([i.atoms * unit for i in items], like.atoms.shape)
        return cls(theta, atoms, stacked([i.weights for i in items], like.weights.shape), known, len(items))

    @property
    def leaves(self) -> list[Tensor]:
        """All tensors."""
        parts = [] if self.atoms is None or self.weights is None else [self.atoms, self.weights]
        return [*self.theta.values(), *parts, *self.known.values()]

    def differentiable(self) -> Inputs:
        """The same, with gradients."""
        for leaf in self.leaves:
            leaf.requires_grad_()
        return self

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """θ, nominal distributions and known data as the layer takes them."""
        theta = self.theta or torch.zeros(self.batch, 0, dtype=torch.float64)
        nominal = None if self.atoms is None or self.weights is None else dro.Nominal(self.atoms, self.weights)
        return theta, nominal, self.known or None


def compiled(program: Program) -> dict[str, Any]:
    """The names that the source text defines."""
    names: dict[str, Any] = {}
    exec(compile(program.source, "<program>", "exec"), names)
    return names


def decisions(program: Program, names: dict[str, Any], decision: dro.Decision) -> Array:
    """The variables of all items at size one, ``(batch, column)``."""
    parts = []
    for name, count in program.cost.names:
        values = decision.best[names[name]].detach().numpy().reshape(-1, count)
        parts.append(values / (program.cost.unit if name == "x" else 1.0))
    return np.concatenate(parts, 1)


def gradient(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of a sum, zeros where a leaf has none."""
    if not leaves or not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    gradients = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True)]


def along(program: Program, ways: Sequence[Item], gradients: list[Tensor]) -> Array:
    """The directional derivatives of every item, ``(batch,)``: gradients times directions of size one."""
    steps = Inputs.of(program, ways).leaves
    parts = [(g * s).reshape(len(ways), -1).sum(1) for g, s in zip(gradients, steps, strict=True)]
    return torch.stack(parts).sum(0).detach().numpy() if parts else np.zeros(len(ways))
