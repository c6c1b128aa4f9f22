"""The nominal distribution of every item of a batch: weighted atoms, checked once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import refuse_vmap, tensor
from drolayers.errors import ShapeError

Pair = tuple[Float[Tensor, "batch atom dim"], Float[Tensor, "batch atom"]]
"""What a user may give: a :class:`Nominal`, or any pair of atoms and weights."""


class Nominal(NamedTuple):
    """Q_z = Σ ω_n δ_{y_n}, one an item; a plain pair of tensors does wherever one is asked for.

    Attributes:
        atoms: y_n, ``(batch, atom, dim)``.
        weights: ω_n, ``(batch, atom)``; nonnegative, with sums of one.
    """

    atoms: Float[Tensor, "batch atom dim"]
    weights: Float[Tensor, "batch atom"]

    @classmethod
    def of(cls, given: Pair | None, dim: int, batch: int, count: int = 0) -> Nominal:
        """Atoms and weights in float64, checked.

        Args:
            given: what the user gave.
            dim: number of coordinates of y.
            batch: number of items.
            count: number of atoms; zero for any.

        Raises:
            ShapeError: no pair of tensors, wrong shapes, NaN or infinities, or weights that are no probabilities.
        """
        pair = isinstance(given, tuple | list) and len(given) == 2
        if given is None or not pair:
            raise ShapeError(
                "The nominal distribution must be a pair of tensors, atoms and weights: pass nominal(z) beside theta, "
                f"not {type(given).__name__}."
            )
        atoms, weights = (
            tensor(f"The tensor of nominal {part}", given[k]) for k, part in enumerate(("atoms", "weights"))
        )
        number = count or (atoms.shape[1] if atoms.dim() == 3 else 0)
        shapes = (batch, number, dim), (batch, number)
        if not number or tuple(atoms.shape) != shapes[0] or tuple(weights.shape) != shapes[1]:
            named = f"{batch}, {count or 'atom'}"
            raise ShapeError(
                f"The nominal distribution needs atoms of shape ({named}, {dim}) and weights of shape ({named}), "
                f"not {tuple(atoms.shape)} and {tuple(weights.shape)}."
            )
        refuse_vmap(atoms)
        refuse_vmap(weights)
        atoms, weights = atoms.double(), weights.double()
        if not (_finite(atoms) and _finite(weights) and bool((weights >= 0).all())):
            good = atoms.isfinite().all((1, 2)) & weights.isfinite().all(1) & (weights >= 0).all(1)
            raise ShapeError(
                f"The nominal distribution holds NaN, infinities or negative weights in items {_where(~good)}."
            )
        total = weights.sum(1, keepdim=True)
        off = (total[:, 0] - 1.0).abs() >= 1e-4
        if bool(off.any()):
            raise ShapeError(
                f"The weights of the nominal distribution must add up to one, not so in items {_where(off)}."
            )
        # Single precision leaves the sum off one by more than what is computed from it.
        return cls(atoms, weights / total)

    def at(self, items: Tensor | list[int]) -> Nominal:
        """Those of some items."""
        return Nominal(self.atoms[items], self.weights[items])

    def to(self, like: Tensor | torch.device) -> Nominal:
        """The same with another tensor's type and device, or on a device."""
        return Nominal(self.atoms.to(like), self.weights.to(like))

    def mean(self, values: Float[Tensor, "batch atom value"]) -> Float[Tensor, "batch value"]:
        """Σ ω_n v_n."""
        return torch.bmm(self.weights[:, None], values)[:, 0]


def _finite(values: Tensor) -> bool:
    """Whether all values are; one pass without a mask does, unless the sum overflows."""
    return bool(values.detach().sum().isfinite()) or bool(values.isfinite().all())


def _where(mask: Tensor) -> list[int]:
    """The first few items of a mask."""
    return mask.nonzero()[:8, 0].tolist()
