"""Decisions that are taken after (part of) ``y`` is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import NDArray

from drolayers.cost.torch_loss import TorchCost
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

ENTRIES = "entries of a dro.Uncertain, such as y, y[:3] or y[[0, 2]]"


class Adaptive(cp.Variable):
    """A decision that is taken after (part of) the uncertain vector is seen.

    In a problem it is a rule, ``γ₀ + Γ_y y + Γ_u u``: affine in the entries of ``y`` that it may see, and in the
    moments that the ambiguity set bounds, as far as these depend on such entries alone. Under ``Wasserstein``, a
    decision that sees all of ``y`` has a rule for every atom, and the distance from the atom in place of moments (one
    rule for all where it stands in several worst cases, those of ``dro.always`` apart). A rule makes the worst case an
    upper bound. Constraints on it need ``dro.always``, ``dro.expected``, ``dro.cvar`` or ``dro.chance`` around them; it
    cannot be multiplied by ``y``, and must be continuous.

    Args:
        shape: of the decision, as for ``cp.Variable``.
        to: the entries of ``y`` that are seen: ``y``, ``y[:t]``, ``Y[:t]`` for rows of a matrix; or a list with one
            such expression for every entry (for a matrix: row) of the decision, for several stages.
        name: shown in messages.
        nonneg: whether it is never negative, whatever the outcome.
    """

    def __init__(
        self,
        shape: int | tuple[int, ...] = (),
        to: cp.Expression | Sequence[cp.Expression] | None = None,
        name: str | None = None,
        nonneg: bool = False,
        **attributes: Any,
    ) -> None:
        if attributes.get("boolean") or attributes.get("integer"):
            raise ModelError(
                "An adaptive decision is affine in what it sees and cannot be integer: decide integers before y is "
                "seen, with cp.Variable."
            )
        if attributes:
            raise ModelError(
                f"dro.Adaptive takes shape, to, name and nonneg, not {sorted(attributes)}: say the rest with "
                "dro.always around a constraint."
            )
        super().__init__(shape, name=name, nonneg=nonneg)
        self.y, self.sees = self._seen(to)

    def _seen(self, to: Any) -> tuple[Uncertain, NDArray[np.bool_]]:
        """The uncertain vector, and which of its coordinates every entry sees, entries in Fortran order."""
        several = isinstance(to, list | tuple)
        if several and (not self.shape or len(to) != self.shape[0]):
            raise ModelError(
                f"dro.Adaptive(to=[...]) needs one expression for each of the "
                f"{self.shape[0] if self.shape else 1} entries (or rows) of {self.name()}, not {len(to)}: to see some "
                "entries of y, write to=y[[0, 2]]."
            )
        parts = list(to) if several else [to]
        leaves = {id(leaf): leaf for part in parts for leaf in getattr(part, "parameters", list)()}
        if len(leaves) != 1 or not isinstance(y := next(iter(leaves.values())), Uncertain):
            raise ModelError(f"dro.Adaptive(to=...) needs {ENTRIES}.")
        seen = np.array([_entries(part, y) for part in parts])
        row = np.unravel_index(np.arange(self.size), self.shape, order="F")[0] if several else np.zeros(self.size, int)
        return y, seen[row]

    @property
    def sees_all(self) -> bool:
        """Whether every entry sees all of ``y``."""
        return bool(self.sees.all())


def _entries(part: Any, y: Uncertain) -> NDArray[np.bool_]:
    """The coordinates that an expression is made of, which must be entries of ``y``."""
    if not isinstance(part, cp.Expression):
        raise ModelError(f"dro.Adaptive(to=...) needs {ENTRIES}, not {part!r}.")
    found = np.zeros(y.dim, dtype=bool)
    if not part.size:
        return found
    if part.variables() or any(p is not y for p in part.parameters()) or not part.parameters():
        raise ModelError(f"dro.Adaptive(to=...) needs {ENTRIES}, not {part}.")
    # Numbers that no sum or product of others gives.
    numbers = torch.rand(y.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = TorchCost(part)({y: numbers.reshape(1, *y.shape)}).reshape(-1, 1)
    places = values == numbers
    if not bool(places.any(1).all()):
        raise ModelError(f"dro.Adaptive(to=...) needs {ENTRIES}, not {part}: it can see entries, not combinations.")
    found[places.any(0).numpy()] = True
    return found


def adaptive_in(expressions: Sequence[cp.Expression]) -> tuple[Adaptive, ...]:
    """The adaptive decisions in some expressions, each once."""
    found = {v.id: v for expression in expressions for v in expression.variables() if isinstance(v, Adaptive)}
    return tuple(found.values())
