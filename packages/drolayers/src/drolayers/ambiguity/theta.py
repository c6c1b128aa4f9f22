"""The layout of θ: parameters by name, one after another in a flat vector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import real, refuse_vmap, tensor
from drolayers.errors import ShapeError
from drolayers.uncertainty import Uncertain


class Theta:
    """What has parameters: one set, or all sets of a problem."""

    y: Uncertain
    parameters: Mapping[str, tuple[int, ...]]
    """The learnable parameters in the order of θ: name and shape."""

    @property
    def size(self) -> int:
        """Length of θ."""
        return sum(int(np.prod(shape)) for shape in self.parameters.values())

    def pack(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, "batch theta"]:
        """Return the flat θ of a dict of ``(batch, *shape)`` tensors or arrays."""
        shapes = self.parameters
        unknown = set(parameters) - set(shapes)
        missing = set(shapes) - set(parameters)
        if unknown or missing:
            raise ShapeError(
                f"The set has parameters {list(shapes)}; unknown: {sorted(unknown)}, missing: {sorted(missing)}."
            )
        parts: list[Tensor] = []
        for name, shape in shapes.items():
            value = tensor(f"Parameter {name!r}", parameters[name])
            if shape == (self.y.dim,):
                value = self.y.rows(value)
            expected = (parts[0].shape[0] if parts else value.shape[:1].numel(), *shape)
            if tuple(value.shape) != expected:
                raise ShapeError(
                    f"Parameter {name!r} must have shape {expected} (batch first), not {tuple(value.shape)}."
                )
            parts.append(columns(value))
        return torch.cat(parts, 1) if parts else torch.zeros(1, 0)

    def unpack(self, theta: Float[Tensor, "batch theta"]) -> dict[str, Tensor]:
        """The parameters by name, each ``(batch, *shape)``."""
        self.check(theta)
        sizes = [int(np.prod(shape)) for shape in self.parameters.values()]
        parts = torch.split(theta, sizes, dim=1)
        return {
            name: part.reshape(theta.shape[0], *shape)
            for (name, shape), part in zip(self.parameters.items(), parts, strict=True)
        }

    def flat(self, theta: Tensor | Mapping[str, Tensor]) -> Float[Tensor, "batch theta"]:
        """θ as a flat tensor, checked: shape, type, no NaN or infinity."""
        theta = self.pack(theta) if isinstance(theta, Mapping) else tensor("theta", theta)
        self.check(theta)
        refuse_vmap(theta)
        bad = ~theta.isfinite().all(1)
        if bool(bad.any()):
            where = bad.nonzero()[:, 0].tolist()
            names = [n for n, v in self.unpack(theta).items() if not bool(v.isfinite().all())]
            raise ShapeError(
                f"theta holds NaN or infinity in items {where[:8]} (parameters {names}): check the model's output."
            )
        return theta

    def check(self, theta: Tensor) -> None:
        """Raise unless θ is a float tensor of shape (batch, size)."""
        if isinstance(theta, Tensor):
            real("theta", theta)
        if not isinstance(theta, Tensor) or not theta.is_floating_point():
            if isinstance(theta, Tensor):
                raise ShapeError(f"theta must hold floating-point numbers, not {theta.dtype}: use theta.float().")
            raise ShapeError(
                f"theta must be a floating-point tensor or a dict of them, not {type(theta).__name__}: "
                "use torch.as_tensor(theta)."
            )
        if theta.dim() != 2 or theta.shape[1] != self.size:
            raise ShapeError(f"theta must have shape (batch, {self.size}), not {tuple(theta.shape)}.")


def columns(values: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch column"]:
    """Everything but the batch flattened; a batch of nothing too."""
    return values.reshape(values.shape[0], values.shape[1:].numel())
