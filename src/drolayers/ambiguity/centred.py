"""Sets around a centre: every parameter is given or learnt, and one of them grows with the set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.parameters import Typical, columns, deviation
from drolayers.checks import numbers
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain


class Centred(AmbiguitySet):
    """A set of distributions around a centre.

    Attributes:
        location: the name of the centre.
        extent: the name of what grows with the set.
        given: the parameters that were given a value.
        leaves: all parameters as CVXPY leaves, learnt or given.
    """

    location: str
    extent: str
    given: dict[str, NDArray[np.float64]]
    leaves: dict[str, cp.Expression]

    def _declare(self, y: Uncertain, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> None:
        """Names, shapes and leaves of all parameters; None stands for one that is learnt."""
        who = type(self).__name__
        if not isinstance(y, Uncertain):
            raise ModelError(f"{who} needs a dro.Uncertain, not {type(y).__name__}.")
        self.y, self.given = y, {}
        for name, shape in shapes.items():
            if given[name] is None:
                continue
            value = numbers(f"{who}'s {name}", given[name])
            value = np.asarray(y.rows(value, 0)) if shape == (y.dim,) else value
            if value.shape not in ((), shape) or (value.shape != shape and len(shape) == 2 and y.dim > 1):
                raise ModelError(f"{who}'s {name} must have shape {shape}, not {value.shape}.")
            self.given[name] = np.array(np.broadcast_to(value, shape))
            if not np.isfinite(self.given[name]).all():
                raise ModelError(f"{who}'s {name} must be finite, not {value.tolist()}.")
        self.parameters = {name: shape for name, shape in shapes.items() if name not in self.given}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}: {s}' for n, s in self.parameters.items())})"

    def values(self, theta: Float[Tensor, "batch theta"]) -> dict[str, Tensor]:
        """All parameters as tensors ``(batch, *shape)`` in float64, learnt or given."""
        theta = theta.double()
        fixed = {n: torch.as_tensor(v).to(theta).expand(len(theta), *v.shape) for n, v in self.given.items()}
        return fixed | self.unpack(theta)

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """θ of the same set, ``factor`` times as large about its centre; differentiable.

        Args:
            theta: flat.
            factor: one for all items or one an item, ``(batch,)``.

        Raises:
            ModelError: the size of the set was given.
        """
        if self.extent in self.given:
            raise ModelError(
                f"{type(self).__name__} cannot be scaled, since its {self.extent} was given: let it be learnt."
            )
        parts, size = self.unpack(theta), torch.as_tensor(factor).to(theta)
        parts[self.extent] = parts[self.extent] * size.reshape(-1, *[1] * len(self.parameters[self.extent]))
        return torch.cat([columns(part.expand(len(theta), *part.shape[1:])) for part in parts.values()], 1)

    @abstractmethod
    def whitened(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch point dim"]
    ) -> tuple[Float[Tensor, "batch point dim"], Float[Tensor, "batch"]]:
        """Deviations from the centre in units of the normal distribution that the set is made for, and their log det.

        Fitting ``½‖u‖² + log det`` to outcomes fits the centre to their mean and the shape to their spread.
        """


def spread(y: Float[Tensor, "point dim"]) -> tuple[Typical, Float[Tensor, "dim"], Float[Tensor, "dim dim"]]:
    """Where the centre of some outcomes is, their standard deviations, and a root of their covariance, shrunk."""
    scale = deviation(y)
    whitened = (y - y.mean(0)) / scale
    share = y.shape[1] / (len(y) + y.shape[1])
    correlation = (1.0 - share) * whitened.T @ whitened / len(y) + share * torch.eye(y.shape[1]).to(y)
    return Typical(y.mean(0), scale), scale, scale[:, None] * torch.linalg.cholesky(correlation)
