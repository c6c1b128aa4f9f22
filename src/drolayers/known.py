"""Known data: the CVXPY parameters of a problem that are not ``y``, and what is given for them in a call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.ambiguity.parameters import columns
from drolayers.cost.products import Monomial, Products, intervals
from drolayers.errors import MaskedDataWarning, ModelError, ShapeError
from drolayers.uncertainty import Uncertain

Known = Mapping[cp.Parameter | str, Any]
"""Values by parameter or name, ``(batch, *shape)`` or ``shape`` for all items; or a data frame, a column an entry."""


class KnownData:
    """The parameters of a problem that are known when the decision is taken.

    Args:
        parameters: in the order in which they are met; ``y`` is left out.
        products: of costs, whose monomials are features too, each with the parameters whose entries they count.
    """

    def __init__(
        self, parameters: Sequence[cp.Parameter], products: Sequence[tuple[Sequence[cp.Parameter], Products]]
    ) -> None:
        found = {p.id: p for p in parameters if not isinstance(p, Uncertain)}
        self.parameters, self.products = tuple(found.values()), [part for part in products if len(part[1])]
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
        return [*self.parameters, *(products.parameter for _, products in self.products)]

    @cached_property
    def monomials(self) -> list[Monomial]:
        """Those of all products, in entries of all parameters."""
        ends = np.cumsum([p.size for p in self.parameters])
        place = {p.id: np.arange(end - p.size, end) for p, end in zip(self.parameters, ends, strict=True)}
        found: list[Monomial] = []
        for parameters, products in self.products:
            at = np.concatenate([place[p.id] for p in parameters])
            found += [tuple(at[list(monomial)].tolist()) for monomial in products.monomials]
        return found

    def given(self, known: Known | None, batch: int | None = None) -> dict[cp.Parameter, Tensor]:
        """Values for all parameters, ``(batch, *shape)`` each, checked.

        Args:
            known: what a user gave.
            batch: the number of items; None takes the one of the data.

        Raises:
            ShapeError: a value is missing, unknown, misshapen, or no item's is a number of the declared kind.
        """
        if known is not None and hasattr(known, "columns"):
            known = self._from_frame(known)
        if known is not None and not isinstance(known, Mapping):
            raise ShapeError(f"known must be a dict by name or parameter, or a data frame, not {type(known).__name__}.")
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

    @property
    def columns(self) -> list[str]:
        """How columns of known data are called: ``stock`` for a number, ``stock_1`` for a vector's first."""
        return [name for p in self.parameters for name in _names(p)]

    def _from_frame(self, frame: Any) -> dict[str, Any]:
        """Values by name from the columns of a data frame; others are left alone."""
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            raise ShapeError(f"known lacks the columns {missing}; it has {list(frame.columns)}.")
        return {p.name(): np.asarray(frame[_names(p)]).reshape(-1, *p.shape) for p in self.parameters}

    def table(
        self, known: Known | None, batch: int, name: str = "known", strict: bool = False
    ) -> Float[Tensor, "batch entry"]:
        """One row an item, each parameter row by row.

        Args:
            known: what a user gave.
            batch: the number of items.
            name: of the data, for messages.
            strict: whether items that cannot be used are refused, as where one learns from them.
        """
        values = self.given(known, batch)
        if not self:
            return torch.zeros(batch, 0, dtype=torch.float64)
        if len(next(iter(values.values()))) != batch:
            raise ShapeError(f"{name} has {len(next(iter(values.values())))} items, but there are {batch} contexts.")
        wrong, said = self._wrong(self._flat(values).detach())
        if strict and bool(wrong.any()):
            raise ShapeError(f"{said}: drop or correct them first.")
        return torch.cat([columns(value.detach().double().cpu()) for value in values.values()], 1)

    def values(self, table: Float[Tensor, "batch entry"]) -> dict[cp.Parameter | str, Tensor] | None:
        """What a table of known data holds, by parameter; None where there is nothing known."""
        if not self:
            return None
        parts = table.split([p.size for p in self.parameters], 1)
        return {p: part.reshape(len(table), *p.shape) for p, part in zip(self.parameters, parts, strict=True)}

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

    def _flat(self, values: Mapping[cp.Parameter, Tensor]) -> Float[Tensor, "batch entry"]:
        """All entries side by side, in Fortran order: reversed axes in torch's order are CVXPY's."""
        return torch.cat([columns(v.double().permute(0, *range(v.dim() - 1, 0, -1))) for v in values.values()], 1)

    def _wrong(self, entries: Tensor) -> tuple[Bool[Tensor, "batch"], str]:
        """Items with entries that are no numbers, or not of the declared sign, bounds or kind; and which."""
        bad = ~entries.isfinite() | (entries < self._low.to(entries)) | (entries > self._high.to(entries))
        whole = [bool(p.attributes.get("integer") or p.attributes.get("boolean")) for p in self.parameters]
        counts = torch.tensor([p.size for p in self.parameters])
        integral = torch.repeat_interleave(torch.tensor(whole), counts).to(entries.device)
        bad |= integral & (entries != entries.round())
        wrong = bad.any(1)
        if not bool(wrong.any()):
            return wrong, ""
        k = int(bad.any(0).nonzero()[0, 0])
        p = self.parameters[int(np.searchsorted(np.cumsum(counts), k, side="right"))]
        values = entries[bad[:, k], k]
        reason = "is NaN or infinite"
        if bool(values.isfinite().all()):
            reason = f"is {float(values[0]):g}, against its declaration,"
        return wrong, f"Known data {p.name()} {reason} in items {wrong.nonzero()[:8, 0].tolist()}"

    def feature_values(self, values: Mapping[cp.Parameter, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """All entries, each parameter row by row, and the monomials of a batch: differentiable, where others are.

        Items that cannot be used are NaN, and are told of.

        Raises:
            ShapeError: no item can be used.
        """
        if not self:
            return like[:, :0], like[:, :0]
        entries = self._flat(values).to(like)
        wrong, said = self._wrong(entries.detach())
        if bool(wrong.any()):
            if bool(wrong.all()):
                raise ShapeError(f"{said}: correct it, or declare the parameter otherwise.")
            warnings.warn(f"{said}: they are masked.", MaskedDataWarning, stacklevel=2)
            entries = torch.where(wrong[:, None], torch.full_like(entries, torch.nan), entries)
        # Programs lay parameters out row by row, costs column by column.
        order, start = [], 0
        for p in self.parameters:
            order.append(start + np.arange(p.size).reshape(p.shape, order="F").ravel(order="C"))
            start += p.size
        products = [entries[:, list(monomial)].prod(1) for monomial in self.monomials]
        return entries[:, np.concatenate(order)], torch.stack(products, 1) if products else entries[:, :0]


def _names(p: cp.Parameter) -> list[str]:
    """Column names of a parameter's entries, row by row."""
    return ["_".join([p.name(), *(str(i + 1) for i in index)]) for index in np.ndindex(*p.shape)]
