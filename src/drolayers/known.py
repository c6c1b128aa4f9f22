"""Known data: the CVXPY parameters of a problem that are not ``y``, and what is given for them in a call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.ambiguity.parameters import columns
from drolayers.cost.products import Products, intervals
from drolayers.errors import MaskedDataWarning, ModelError, ShapeError
from drolayers.uncertainty import Uncertain

Known = Mapping[cp.Parameter | str, Any]
"""Values by parameter or name, ``(batch, *shape)`` or ``shape`` for all items."""


class KnownData:
    """The parameters of a problem that are known when the decision is taken.

    Args:
        parameters: in the order in which they are met; ``y`` is left out.
        products: of the cost, whose monomials are features too.
    """

    def __init__(self, parameters: Sequence[cp.Parameter], products: Products) -> None:
        found = {p.id: p for p in parameters if not isinstance(p, Uncertain)}
        self.parameters, self.products = tuple(found.values()), products
        names = [p.name() for p in self.parameters]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ModelError(f"Several parameters are named {twice[0]}: give each a name of its own.")
        self._low, self._high = (torch.as_tensor(end) for end in intervals(self.parameters))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What must be given: name and shape."""
        return {p.name(): tuple(p.shape) for p in self.parameters}

    @property
    def features(self) -> list[cp.Parameter]:
        """What compiled programs are affine in."""
        return [*self.parameters, *([self.products.parameter] if len(self.products) else [])]

    def given(self, known: Known | None, batch: int | None = None) -> dict[cp.Parameter, Tensor]:
        """Values for all parameters, ``(batch, *shape)`` each, checked.

        Args:
            known: what a user gave.
            batch: the number of items; None takes the one of the data.

        Raises:
            ShapeError: a value is missing, unknown, misshapen, or no item's is a number of the declared kind.
        """
        given = {getattr(key, "id", key): value for key, value in (known or {}).items()}
        unknown = [key for key in given if all(key not in (p.id, p.name()) for p in self.parameters)]
        if unknown:
            have = f"its known data are {list(self.shapes)}" if self else "it has no known data"
            raise ShapeError(f"known has a value for {unknown[0]!r}, which the problem does not use: {have}.")
        missing = [p.name() for p in self.parameters if p.id not in given and p.name() not in given]
        if missing:
            raise ShapeError(
                f"The problem needs known data for {missing}: give known={{{missing[0]!r}: ...}}, (batch, *shape) each."
            )
        values = {p: self._tensor(p, given.get(p.id, given.get(p.name()))) for p in self.parameters}
        sizes = {value.shape[0] for p, value in values.items() if value.dim() > p.ndim} - {1}
        if batch is not None and batch > 1:
            sizes.add(batch)
        for p, value in values.items():
            if value.dim() > p.ndim and value.shape[0] not in (1, max(sizes, default=1)):
                raise ShapeError(
                    f"Known data {p.name()} has {value.shape[0]} items where there are {max(sizes)}: give (batch, "
                    f"*{tuple(p.shape)}), or {tuple(p.shape)} for all."
                )
        count = max(sizes, default=1)
        return {
            p: (value if value.dim() > p.ndim else value[None]).expand(count, *p.shape) for p, value in values.items()
        }

    def _tensor(self, p: cp.Parameter, value: Any) -> Tensor:
        """One value as a tensor of floats whose last dimensions are those of the parameter."""
        try:
            tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value, dtype=float))
        except (TypeError, ValueError) as error:
            raise ShapeError(f"Known data {p.name()} must be numbers, not {type(value).__name__}.") from error
        tensor = tensor if tensor.is_floating_point() else tensor.double()
        extra = tensor.dim() - p.ndim
        if extra not in (0, 1) or tuple(tensor.shape[extra:]) != tuple(p.shape):
            raise ShapeError(
                f"Known data {p.name()} must have shape (batch, *{tuple(p.shape)}) or {tuple(p.shape)}, not "
                f"{tuple(tensor.shape)}."
            )
        return tensor

    def flat(self, values: Mapping[cp.Parameter, Tensor]) -> Float[Tensor, "batch entry"]:
        """All entries side by side, in Fortran order, NaN in items that cannot be used.

        Raises:
            ShapeError: no item can be used.
        """
        # Reversed axes in torch's order are CVXPY's.
        parts = [columns(v.double().permute(0, *range(v.dim() - 1, 0, -1))) for v in values.values()]
        entries = torch.cat(parts, 1)
        bad = self._bad(entries.detach())
        wrong = bad.any(1)
        if bool(wrong.any()):
            p, reason = self._culprit(entries.detach(), bad)
            items = wrong.nonzero()[:8, 0].tolist()
            said = f"Known data {p.name()} {reason} in items {items}"
            if bool(wrong.all()):
                raise ShapeError(f"{said}: correct it, or declare the parameter otherwise.")
            warnings.warn(f"{said}: they are masked.", MaskedDataWarning, stacklevel=2)
            entries = torch.where(wrong[:, None], torch.full_like(entries, torch.nan), entries)
        return entries

    def _bad(self, entries: Tensor) -> Bool[Tensor, "batch entry"]:
        """Entries that are no numbers, or not of the declared sign, bounds or kind."""
        bad = ~entries.isfinite() | (entries < self._low.to(entries)) | (entries > self._high.to(entries))
        whole = [bool(p.attributes.get("integer") or p.attributes.get("boolean")) for p in self.parameters]
        counts = torch.tensor([p.size for p in self.parameters])
        integral = torch.repeat_interleave(torch.tensor(whole), counts).to(entries.device)
        return bad | (integral & (entries != entries.round()))

    def _culprit(self, entries: Tensor, bad: Tensor) -> tuple[cp.Parameter, str]:
        """The first parameter with a bad entry, and what is wrong with it."""
        ends = np.cumsum([p.size for p in self.parameters])
        k = int(bad.any(0).nonzero()[0, 0])
        p = self.parameters[int(np.searchsorted(ends, k, side="right"))]
        values = entries[bad[:, k], k]
        if not bool(values.isfinite().all()):
            return p, "is NaN or infinite"
        return p, f"is {float(values[0]):g}, against its declaration,"

    def feature_values(self, values: Mapping[cp.Parameter, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """All entries, each parameter row by row, and the monomials of a batch: differentiable, where others are."""
        if not self:
            return like[:, :0], like[:, :0]
        entries = self.flat(values).to(like)
        # Programs lay parameters out row by row, costs column by column.
        order, start = [], 0
        for p in self.parameters:
            order.append(start + np.arange(p.size).reshape(p.shape, order="F").ravel(order="C"))
            start += p.size
        products = [entries[:, list(monomial)].prod(1) for monomial in self.products.monomials]
        return entries[:, np.concatenate(order)], torch.stack(products, 1) if products else entries[:, :0]
