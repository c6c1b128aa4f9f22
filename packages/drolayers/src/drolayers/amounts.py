"""Numbers of a model that may depend on known data: constants, or affine expressions of CVXPY parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, final

import cvxpy as cp
import numpy as np
import torch
from cvxpy.utilities import scopes
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from conelayers.internals import numbers
from drolayers.errors import ModelError, ShapeError

Told = Mapping[Any, Tensor]
"""Values of known data by parameter, ``(batch, *shape)`` each."""


@final
class Amount:
    """A number or an array of them, as given, or an expression that is affine in CVXPY parameters.

    Args:
        name: of what is given, for messages.
        given: numbers or an expression.
        vector: whether a single number is meant as a vector.
    """

    def __init__(self, name: str, given: Any, vector: bool = False) -> None:
        if isinstance(given, list | tuple) and any(isinstance(part, cp.Expression) for part in given):
            if not all(np.ndim(part) == 0 for part in given):
                raise ModelError(f"{name} lists arrays and CVXPY expressions: join them with cp.hstack.")
            given = cp.hstack(given)
        if isinstance(given, cp.Expression) and not given.variables() and not given.parameters():
            given = given.value
        self.parameters: tuple[cp.Parameter, ...] = ()
        if not isinstance(given, cp.Expression):
            self.written: Any = np.atleast_1d(numbers(name, given)) if vector else numbers(name, given)
            self.shape: tuple[int, ...] = tuple(self.written.shape)
            return
        given = cp.reshape(given, (1,), order="F") if vector and given.ndim == 0 else given
        self.written, self.parameters = given, tuple({p.id: p for p in given.parameters()}.values())
        self.shape = tuple(given.shape)
        with scopes.dpp_scope():
            affine = given.is_affine()
        if given.variables() or not affine:
            raise ModelError(f"{name} must be numbers or affine in CVXPY parameters, not {given}.")
        if not np.isfinite(self._map[0]).all():
            raise ModelError(f"{name} mixes known data with NaN or infinity: intersect supports with & instead.")

    @cached_property
    def _map(self) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """The value where all data are zero, and what each entry of each parameter adds to it, all row by row."""
        before = [p.value for p in self.parameters]

        def value(p: cp.Parameter | None = None, entry: int = 0) -> NDArray[np.float64]:
            # Values that a user may have set, and declared signs, play no part.
            for q in self.parameters:
                data = np.zeros(q.size)
                if q is p:
                    data[entry] = 1.0
                q.save_value(data.reshape(q.shape))
            return np.ravel(np.asarray(self.written.value, dtype=float))

        try:
            base = value()
            with np.errstate(invalid="ignore"):
                return base, [np.stack([value(p, k) - base for k in range(p.size)]) for p in self.parameters]
        finally:
            for p, old in zip(self.parameters, before, strict=True):
                p.save_value(old)

    @property
    def base(self) -> NDArray[np.float64]:
        """The numbers where all known data are zero."""
        return self._map[0].reshape(self.shape) if self.parameters else self.written

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which entries are no infinities."""
        return np.full(self.shape, True) if self.parameters else np.isfinite(self.written)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Which entries depend on no data."""
        return np.all([~part.any(0) for part in self._map[1]], axis=0) if self.parameters else np.full(self.shape, True)

    def entries(self, which: NDArray[np.int64]) -> Any:
        """Some entries as a vector, in which a single number serves all; with known data, as CVXPY sees them."""
        if self.shape:
            return self.written[which]
        return self.written if self.parameters else np.full(which.size, self.written)

    def rows(self, which: NDArray[np.int64], count: int) -> Any:
        """Some entries as so many rows."""
        some = self.entries(which)
        if not self.parameters:
            return np.tile(some, (count, 1))
        some = some if self.shape else cp.promote(some, (which.size,))
        return np.ones((count, 1)) @ cp.reshape(some, (1, which.size), order="F")

    def at(self, known: Told | None) -> Tensor:
        """The numbers themselves: ``(*shape)``, or with known data ``(batch, *shape)``, differentiable."""
        if not self.parameters:
            return torch.as_tensor(self.written)
        data = told(self.parameters, known)
        if isinstance(self.written, cp.Parameter):
            return data.reshape(len(data), *self.shape)
        base, parts = self._map
        found = torch.as_tensor(base).to(data) + data @ torch.as_tensor(np.concatenate(parts)).to(data)
        return found.reshape(len(data), *self.shape)

    def __str__(self) -> str:
        return str(self.written) if self.parameters else shown(self.written)


def told(parameters: Sequence[cp.Parameter], known: Told | None) -> Float[Tensor, "batch entry"]:
    """The values of some parameters side by side, each row by row, in float64.

    Raises:
        ShapeError: they were not given.
    """
    if missing := [p.name() for p in parameters if p not in (known or {})]:
        raise ShapeError(f"The support of y needs known data for {missing}: give known={{{missing[0]!r}: ...}}.")
    assert known is not None
    return torch.cat([known[p].double().reshape(len(known[p]), p.size) for p in parameters], 1)


def shown(values: NDArray[np.float64]) -> str:
    """A number where all entries are one, a list where they are few, else their number."""
    flat = np.ravel(values)
    if flat.size and np.all(flat == flat[0]):
        return f"{flat[0]:g}"
    return f"[{', '.join(f'{v:g}' for v in flat)}]" if flat.size <= 6 else f"{flat.size} numbers"
