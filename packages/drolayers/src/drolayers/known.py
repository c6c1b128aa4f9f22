"""Known data: the CVXPY parameters of a problem that are not ``y``, and what is given for them in a call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpy.expressions.leaf import Leaf
from jaxtyping import Bool, Float
from torch import Tensor

from conelayers.internals import Numbered, refuse_vmap, tensor
from drolayers.ambiguity.theta import columns
from drolayers.cost.products import Monomial, Products, intervals
from drolayers.errors import MaskedDataWarning, ModelError, ShapeError
from drolayers.uncertainty import Uncertain

Known = Mapping[cp.Parameter | str, Any]
"""Values by parameter or name, ``(batch, *shape)`` or ``shape`` for all items; or a data frame, a column an entry."""

ROUNDING = 1e-7
"""How far numbers may be beyond what is declared, relative to an item's own: yesterday's decision is today's stock."""

NOISE = 1e-12
"""The same as a number, where there is nothing that it could be relative to: a stock of zero."""


class KnownData(Numbered):
    """The parameters of a problem that are known when the decision is taken.

    Args:
        parameters: in the order in which they are met; ``y`` is left out.
        products: of costs, whose monomials are features too, each with the parameters whose entries they count.

    Attributes:
        features: what compiled programs are affine in.
    """

    def __init__(
        self,
        parameters: Sequence[cp.Parameter],
        products: Sequence[tuple[Sequence[cp.Parameter], Products]] = (),
    ) -> None:
        found = {p.id: p for p in parameters if not isinstance(p, Uncertain)}
        self.parameters, self.products = tuple(found.values()), [part for part in products if len(part[1])]
        self.features = [*self.parameters, *(each.parameter for _, each in self.products)]
        names = [p.name() for p in self.parameters]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ModelError(f"Several parameters are named {twice[0]}: give each a name of its own.")
        self._ends = {
            p.id: tuple(torch.as_tensor(end.reshape(p.shape, order="F").copy()) for end in intervals([p]))
            for p in self.parameters
        }

    def __bool__(self) -> bool:
        return bool(self.parameters)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What must be given: name and shape."""
        return {p.name(): tuple(p.shape) for p in self.parameters}

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
        given: dict[cp.Parameter, Any] = {}
        for key, value in (known or {}).items():
            # CVXPY's own == makes a constraint.
            leaf = isinstance(key, Leaf)
            mine = [p for p in self.parameters if (key.id == p.id if leaf else key == p.name())]
            if leaf and self.foreign and mine and mine[0] is not key:
                raise ShapeError(
                    f"The problem was unpickled from another process, where {mine[0].name()} has the number that "
                    f"{key.name()} has here: give known by names, or by the problem's own parameters."
                )
            if not mine:
                name = key.name() if leaf else key
                have = f"its known data are {list(self.shapes)}" if self else "it has no known data"
                raise ShapeError(f"known has a value for {name!r}, which the problem does not use: {have}.")
            if mine[0] in given:
                raise ShapeError(f"known has two values for {mine[0].name()}: give it by name or by parameter.")
            given[mine[0]] = value
        missing = [p.name() for p in self.parameters if p not in given]
        if missing:
            raise ShapeError(
                f"The problem needs known data for {missing}: give known={{{missing[0]!r}: ...}}, (batch, *shape) each."
            )
        values = {p: self._tensor(p, given[p]) for p in self.parameters}
        values = {p: value if value.dim() > p.ndim else value[None] for p, value in values.items()}
        sizes = [1 if batch is None else batch, *(len(value) for value in values.values())]
        count = next((size for size in sizes if size != 1), 1)
        for p, value in values.items():
            if len(value) not in (1, count):
                raise ShapeError(
                    f"Known data {p.name()} has {len(value)} items where there are {count}: give (batch, "
                    f"*{tuple(p.shape)}), or {tuple(p.shape)} for all."
                )
        return {p: value.expand(count, *p.shape) for p, value in values.items()}

    @property
    def columns(self) -> list[str]:
        """How columns of known data are called: ``stock`` for a number, ``stock_1`` for a vector's first."""
        return [name for p in self.parameters for name in _names(p)]

    def _from_frame(self, frame: Any) -> dict[str, Any]:
        """Values by name from the columns of a data frame; others are left alone."""
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            raise ShapeError(f"known lacks the columns {missing}; it has {list(frame.columns)}.")
        if twice := [name for name in self.columns if list(frame.columns).count(name) > 1]:
            raise ShapeError(f"known has several columns called {twice[0]!r}: give each a name of its own.")
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
        said = self._checked(values)[2]
        if strict and said:
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
        found = tensor(f"Known data {p.name()}", value)
        refuse_vmap(found)
        found = found if found.is_floating_point() else found.double()
        extra = found.dim() - p.ndim
        if extra not in (0, 1) or tuple(found.shape[extra:]) != tuple(p.shape):
            raise ShapeError(
                f"Known data {p.name()} must have shape (batch, *{tuple(p.shape)}) or {tuple(p.shape)}, not "
                f"{tuple(found.shape)}."
            )
        return found

    def usable(self, values: Mapping[cp.Parameter, Tensor]) -> tuple[dict[cp.Parameter, Tensor], Bool[Tensor, "batch"]]:
        """The values, with those of another item where an item's cannot be used, which is told of; and where that is.

        Raises:
            ShapeError: no item can be used.
        """
        found, wrong, said = self._checked(values)
        if not said:
            return found, wrong
        if bool(wrong.all()):
            raise ShapeError(f"{said}: correct it, or declare the parameter otherwise.")
        warnings.warn(f"{said}: they are masked.", MaskedDataWarning, stacklevel=3)
        first = int((~wrong).nonzero()[0, 0])
        return {
            p: torch.where(wrong.to(v.device).reshape(-1, *[1] * p.ndim), v[first].detach(), v)
            for p, v in found.items()
        }, wrong

    def _checked(
        self, values: Mapping[cp.Parameter, Tensor]
    ) -> tuple[dict[cp.Parameter, Tensor], Bool[Tensor, "batch"], str]:
        """Values without rounding beyond what is declared; items that are no numbers or not of that kind; and which."""
        found, said = {}, []
        wrong, sizes = torch.zeros(len(next(iter(values.values()))), dtype=torch.bool), _sizes(values)
        for p, value in values.items():
            low, high = (end.to(value) for end in self._ends[p.id])
            now, finite = value.detach(), value.detach().isfinite()
            near = torch.minimum(torch.maximum(now, low), high)
            size = torch.stack([torch.where(end.isfinite(), end, 0.0).abs() for end in (low, high)]).amax(0)
            size = torch.maximum(size, sizes[p].to(value).reshape(-1, *[1] * p.ndim))
            if p.attributes.get("integer") or p.attributes.get("boolean"):
                # Whole numbers are counted in ones, whatever is beside them.
                near, size = near.round(), torch.where(finite, now, 0.0).abs().clamp(min=1.0)
            slack = (ROUNDING * size).clamp(min=NOISE)
            # Written so that NaN, and infinity less infinity, are bad.
            bad = ~((near - now).abs() <= slack).reshape(len(now), p.size)
            found[p] = value + (near - now)
            if bool(bad.any()):
                mine, first = bad.any(1).cpu(), now.reshape(len(now), p.size)[bad][0]
                reason = f"is {float(first):g}, against its declaration," if first.isfinite() else "is NaN or infinite"
                said.append(f"{p.name()} {reason} in items {mine.nonzero()[:8, 0].tolist()}")
                wrong |= mine
        return found, wrong, f"Known data {' and '.join(said)}" if said else ""

    def feature_values(self, values: Mapping[cp.Parameter, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """All entries, each parameter row by row, and the monomials of a batch: differentiable, where others are.

        Items that cannot be used are NaN, and are told of.

        Raises:
            ShapeError: no item can be used.
        """
        if not self:
            return like[:, :0], like[:, :0]
        values, wrong = self.usable(values)
        # In Fortran order: reversed axes in torch's order are CVXPY's.
        parts = [columns(v.to(like).permute(0, *range(v.dim() - 1, 0, -1))) for v in values.values()]
        entries = torch.cat(parts, 1).masked_fill(wrong[:, None].to(like.device), torch.nan)
        # Programs lay parameters out row by row, costs column by column.
        order, start = [], 0
        for p in self.parameters:
            order.append(start + np.arange(p.size).reshape(p.shape, order="F").ravel(order="C"))
            start += p.size
        products, ones = entries[:, :0], entries.new_ones(len(entries), 1)
        if self.monomials:
            # Monomials of few entries are filled up by the ones at the end.
            places = np.array(list(zip_longest(*self.monomials, fillvalue=-1)))
            extended = torch.cat([entries, ones], 1)
            products = torch.stack([extended[:, place] for place in places]).prod(0)
        return entries[:, np.concatenate(order)], products


def supported(y: Uncertain, known: Known | None, batch: int) -> dict[cp.Parameter, Tensor]:
    """What was given for the known data in the support of y; known data of other parts of a problem are left alone."""
    data = KnownData(y.support.parameters)
    data.foreign = y.foreign
    if not data:
        return {}
    if isinstance(known, Mapping):
        mine = {key for p in data.parameters for key in (p.id, p.name())}
        known = {key: value for key, value in known.items() if getattr(key, "id", key) in mine}
    values = data.given(known, batch)
    if not batch:
        return {p: value[:0] for p, value in values.items()}
    if (count := len(next(iter(values.values())))) != batch:
        raise ShapeError(f"Known data {data.parameters[0].name()} has {count} items, but theta has {batch}.")
    return values


def _sizes(values: Mapping[cp.Parameter, Tensor]) -> dict[cp.Parameter, Float[Tensor, "batch"]]:
    """How large every parameter is in every item: its largest entry, or that of others beside it, then at most one.

    Others may be counted in units of their own: a budget of 1e9 excuses no stock.
    """
    largest = {}
    for p, value in values.items():
        flat = value.detach().double().cpu().reshape(len(value), p.size)
        largest[p] = torch.where(flat.isfinite(), flat, 0.0).abs().amax(1) if p.size else flat.new_zeros(len(flat))
    beside = torch.stack(list(largest.values())).amax(0).clamp(max=1.0)
    return {p: torch.maximum(own, beside) for p, own in largest.items()}


def _names(p: cp.Parameter) -> list[str]:
    """Column names of a parameter's entries, row by row."""
    return ["_".join([p.name(), *(str(i + 1) for i in index)]) for index in np.ndindex(*p.shape)]
