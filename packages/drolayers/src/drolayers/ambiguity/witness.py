"""Room around a witness: the unit mass at a support point, which a predicted set is made to hold.

A set that holds a distribution is not empty. Each set names such a distribution for its parameters, its *witness*, and
``ensure_nonempty`` raises every bound to at least what the witness needs. The room below keeps a Slater point, without
which multipliers have no bound.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.amounts import Told

ROOM_REL = 5e-4
"""Room of a bound relative to what its witness needs. Below half of the projection's margin (1e-3), so that a projected
set, which holds the mean of its nominal distribution by Jensen's inequality, stays as it is."""

LEAST_REL = 1e-7
"""Smallest size of a set relative to the size of outcomes. Solvers do not resolve smaller ones: at 1e-8 the boundary
case of an equation is reported instead."""


def outcome_size(*points: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch"]:
    """Return the largest absolute coordinate of some outcomes of every item; one where all of them vanish."""
    sizes = torch.stack([part.detach().reshape(len(part), -1).abs().amax(1) for part in points]).amax(0)
    return torch.where((sizes > 0) & sizes.isfinite(), sizes, torch.ones_like(sizes))


def at_least(value: Float[Tensor, "batch ..."], bound: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
    """Raise values to a bound; bounds that are NaN or infinite leave them alone."""
    return torch.where((bound > value) & bound.isfinite(), bound, value)


def known_of(known: Told | None, items: Bool[Tensor, "batch"]) -> Told | None:
    """Return the known data of some items."""
    if known is None:
        return None
    return {parameter: value[items.to(value.device)] for parameter, value in known.items()}


def selected(parts: Mapping[str, Tensor], items: Bool[Tensor, "batch"]) -> dict[str, Tensor]:
    """Return some items of parameters by name."""
    return {name: value[items] for name, value in parts.items()}
